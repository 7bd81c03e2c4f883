"""A snapshot of what the tables know of one group, for a copy of it on another coordinator.

The log as it lies does not tell it any more: retention and compaction have taken what the rows follow from. So a joiner
takes the rows as they are, by names (topic ids are a store's own), and the log beside them; what of the log the rows
reflect already is not applied to them again. Rows that were read a little later than others do no harm: who replays the
log from before them comes to the same tables.

A page is a plain value (msgpack): (begins, rows, ends). `begins`: the group's rows here go first; `rows`: (table, key,
row), of a retained publication (RETAINED, topic, position, kept block or None); `ends`: None, or on the last page
(reflected_below, first_kept).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from lexicast.cluster.errors import PeerError

from .file.keys import MAX_OFFSET, group_prefix, log_key, parse_log_key
from .file.sealing import DamageError, seal
from .file.table import AnyTransaction, Database, Table, WriteTransaction
from .log.block_format import IS_KEPT, verified_head
from .tables.databases import Databases
from .tables.row_validation import check_row
from .tables.sessions import due_key, session_of
from .tables.state import State, parse_retained_row
from .tables.topics import TopicIds, id_key

SnapshotPage: TypeAlias = tuple[bool, tuple[Any, ...], tuple[int, int] | None]

RETAINED: Final = "retained"
SUPERSEDED: Final = "superseded"
# By group, under names that mean the same everywhere.
_BY_GROUP: Final = ("sessions", "subscriptions", "producers", "marks", "dictionaries", "epochs")
_TABLES: Final = (*_BY_GROUP, SUPERSEDED, RETAINED)
ROWS_A_PAGE: Final = 2_000
BYTES_A_PAGE: Final = 1024 * 1024
# Deleted in one transaction: some milliseconds.
ROWS_A_STEP: Final = 512
# LMDB's.
_KEY_BYTES_MAX: Final = 511


class SnapshotPlace(NamedTuple):
    """Where a snapshot goes on: the table, the last key read, and below which offset all of it is reflected."""

    table: int
    after: bytes | None
    reflected_below: int


def snapshot_page(
    databases: Databases, txn: AnyTransaction, group: int, place: SnapshotPlace | None, below: int, first_kept: int
) -> tuple[SnapshotPage, SnapshotPlace | None]:
    """The next page, and where to go on; `below`: the tables have followed from everything before this offset."""
    at = place or SnapshotPlace(0, None, below)
    rows: list[Any] = []
    size = 0
    for key, row in _rows(databases, txn, _TABLES[at.table], group, at.after):
        at = at._replace(after=key)
        found = _row(databases, txn, _TABLES[at.table], group, key, row)
        if found is not None:
            rows.append(found)
            size += sum([len(part) for part in found if isinstance(part, bytes)])
        if len(rows) >= ROWS_A_PAGE or size >= BYTES_A_PAGE:
            return (place is None, tuple(rows), None), at
    if at.table + 1 < len(_TABLES):
        return (place is None, tuple(rows), None), SnapshotPlace(at.table + 1, None, at.reflected_below)
    return (place is None, tuple(rows), (at.reflected_below, first_kept)), None


def _rows(
    databases: Databases, txn: AnyTransaction, table: str, group: int, after: bytes | None
) -> Sequence[tuple[bytes, bytes]]:
    if table != SUPERSEDED:
        found: list[tuple[bytes, bytes]] = getattr(databases, table).rows(
            txn, group_prefix(group), after, ROWS_A_PAGE + 1
        )
        return found
    keys: list[tuple[bytes, bytes]] = []
    with txn.cursor(databases.superseded) as cursor:
        there = cursor.set_range(group_prefix(group) if after is None else after + b"\0")
        while there and len(keys) <= ROWS_A_PAGE and bytes(cursor.key()).startswith(group_prefix(group)):
            keys.append((bytes(cursor.key()), b""))
            there = cursor.next()
    return keys


def _row(databases: Databases, txn: AnyTransaction, table: str, group: int, key: bytes, row: bytes) -> Any:
    if table != RETAINED:
        return (table, key, row)
    topic = databases.names.get(txn, key)
    if topic is None:
        return None  # damaged: nobody would find it
    kept = txn.get(log_key(group, parse_retained_row(row).offset), None, databases.kept)
    return (RETAINED, topic, row, None if kept is None else bytes(kept))


def clear_step(databases: Databases, txn: WriteTransaction, state: State, group: int) -> bool:
    """Some of what the tables know of a group goes; False when nothing is left. Names and ids of topics stay."""
    for name in (*_BY_GROUP, RETAINED):
        table: Table = getattr(databases, name)
        rows = table.rows(txn, group_prefix(group), None, ROWS_A_STEP)
        for key, row in rows:
            if name == "sessions" and (due := due_key(key, session_of(row))) is not None:
                databases.session_due.delete(txn, due)
            elif name == "subscriptions":
                state.forget_subscription(txn, group, row)
            table.delete(txn, key)
        if rows:
            return True
    return any([_delete_some(database, txn, group) for database in (databases.superseded, databases.kept)])


def _delete_some(database: Database, txn: WriteTransaction, group: int) -> bool:
    with txn.cursor(database) as cursor:
        there = cursor.set_range(group_prefix(group))
        for count in range(ROWS_A_STEP):
            if not there or not bytes(cursor.key()).startswith(group_prefix(group)):
                return count > 0
            there = cursor.delete()
    return True


def checked_page(group: int, page: Any) -> SnapshotPage:
    """A page that has come from another store. Raises PeerError when it is none; its rows are looked at one by one."""
    try:
        begins, rows, ends = page
        good = type(begins) is bool and type(rows) is tuple
        if ends is not None:
            below, first_kept = ends
            good = good and type(below) is type(first_kept) is int and min(ends) >= 0 and max(ends) <= MAX_OFFSET
    except (TypeError, ValueError) as error:
        raise PeerError(f"group {group}: this is no page of a snapshot: {error}") from None
    if not good:
        raise PeerError(f"group {group}: this is no page of a snapshot: a field is of a wrong type or out of range")
    return begins, rows, ends


def install_rows(
    databases: Databases, txn: WriteTransaction, state: State, ids: TopicIds, group: int, rows: Sequence[Any]
) -> None:
    """Enter a page's rows. Raises PeerError: one is none of this group's tables."""
    for row in rows:
        try:
            if row[0] == RETAINED:
                _install_retained(databases, txn, ids, group, *row[1:])
            else:
                _install(databases, txn, state, group, *row)
        except (DamageError, TypeError, ValueError, LookupError) as error:
            raise PeerError(f"group {group}: a row of a snapshot cannot be taken: {error}") from None


def _install_retained(
    databases: Databases, txn: WriteTransaction, ids: TopicIds, group: int, topic: Any, row: Any, kept: Any
) -> None:
    if not type(topic) is type(row) is bytes or type(kept) not in (bytes, type(None)):
        raise TypeError("a retained publication's topic or row is of a wrong type")
    offset = parse_retained_row(row).offset
    if kept is not None:
        if not verified_head(kept, group, offset).flags & IS_KEPT:
            raise DamageError("kept", group, offset, "it is no kept block")
        txn.put(log_key(group, offset), kept, db=databases.kept)
    databases.retained.put(txn, id_key(ids.resolve(txn, group, topic)), row)


def _install(
    databases: Databases, txn: WriteTransaction, state: State, group: int, name: Any, key: Any, row: Any
) -> None:
    if not type(key) is type(row) is bytes or len(key) > _KEY_BYTES_MAX:
        raise TypeError("a key or row is of a wrong type")
    if not key.startswith(group_prefix(group)):
        raise ValueError("a key of another group")
    if name == SUPERSEDED:
        parse_log_key(key, SUPERSEDED)
        txn.put(key, seal(SUPERSEDED, key, b""), db=databases.superseded)
        return
    if name not in _BY_GROUP:
        raise ValueError("no table of a group")
    check_row(name, key, row)
    table: Table = getattr(databases, name)
    table.put(txn, key, row)
    if name == "sessions" and (due := due_key(key, session_of(row))) is not None:
        databases.session_due.put(txn, due, b"")
    elif name == "subscriptions":
        state.index_subscription(txn, group, row)
