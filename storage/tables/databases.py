"""The databases of a coordinator's store, by name, and what stands in each."""

from __future__ import annotations

from typing import Final, NamedTuple

from ..file.table import Database, Table


class Databases(NamedTuple):
    """Every table of the environment. Keys of tables by group start with the group (u16, big-endian)."""

    identity: Database
    log: Database  # (group, last offset) -> block
    kept: Database  # (group, offset) -> single-record block of a retained publication that outlived its log block
    expiry: Database  # (expires_us u64, group, last offset) -> "": blocks that expire as a whole
    dual: Database  # DualDB, see `index.log_index`
    groups: Table  # group -> what of it cannot be read from the log's end
    names: Table  # topic id u64 -> topic name
    ids: Table  # name -> topic id u64
    superseded: Database  # (group, offset) -> "", sealed: control records that count no more and are still in the log
    sessions: Table  # group, client id -> see `sessions`
    session_due: Table  # due_us u64, group, client id -> ""
    subscriptions: Table  # group, broker and filter -> offset u64, the Subscribed record
    producers: Table  # group, producer -> see `producers`
    marks: Table  # group, session uid, packet id u16 -> offset u64, time_us i64; 0 -> generation u64, time_us
    retained: Table  # topic id u64 -> offset u64, expires_us u64
    dictionaries: Table  # group, dictionary u64 -> the DictionaryStored record
    epochs: Table  # group, epoch u64 -> first offset u64, last offset before it u64
    tail: Database  # block that is not applied yet, see `log.unapplied_tail`
    promises: Table  # group -> the epoch below which nothing is taken u64, see `promises`
    counted: Table  # group -> the last epoch that was led here, and the members that counted, see `counted`


PLAIN: Final = ("identity", "log", "kept", "expiry", "dual", "superseded", "tail")


def raw_database(databases: Databases, name: str) -> Database:
    """The LMDB database called `name`."""
    found: Database | Table = getattr(databases, name)
    return found.database if isinstance(found, Table) else found
