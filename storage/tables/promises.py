"""The promises of a follower: the epoch of each group below which it takes nothing any more, and up to where its tables
know the group's log because they were installed and not followed.

A promise is durable before it is given (`cluster.replication`): a leader that was deposed while this coordinator was
down must not find it willing again.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ..file.keys import group_prefix
from ..file.sealing import unpacked
from ..file.table import AnyTransaction, WriteTransaction
from .databases import Databases

_GROUP: Final = struct.Struct(">H")
_ROW: Final = struct.Struct("<QQQ")


class Promise(NamedTuple):
    """A row. `reflected_below`: blocks before this offset are in the tables already, whenever they are applied;
    `first_kept`: what retention had not discarded where they came from."""

    epoch: int
    reflected_below: int
    first_kept: int


NOT_PROMISED: Final = Promise(0, 0, 0)


def parse_promise(key: bytes, row: bytes) -> Promise:
    """A row of the promises table. Raises DamageError."""
    unpacked(_GROUP, key, "promises")
    return Promise(*unpacked(_ROW, row, "promises"))


def promises(databases: Databases, txn: AnyTransaction) -> dict[int, Promise]:
    """Every promise that can be read."""
    rows = databases.promises.rows(txn, b"", None, 1 << 16)
    return {int.from_bytes(key, "big"): parse_promise(key, row) for key, row in rows}


def put_promise(databases: Databases, txn: WriteTransaction, group: int, promise: Promise) -> None:
    """Write a row."""
    databases.promises.put(txn, group_prefix(group), _ROW.pack(*promise))
