"""With whom a leader has counted: of each group that was led here the last epoch, and the members that may have been in
its in-sync set.

It is durable before the epoch begins, and before a member is asked for (`cluster.recovery` says what for).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgpack

from ..file.keys import group_prefix
from ..file.sealing import DamageError, unpacked
from ..file.table import AnyTransaction, WriteTransaction
from .databases import Databases

_GROUP: Final = struct.Struct(">H")


class CountedMembers(NamedTuple):
    """A row."""

    epoch: int
    members: tuple[str, ...]


def parse_counted(key: bytes, row: bytes) -> CountedMembers:
    """A row of the table. Raises DamageError."""
    unpacked(_GROUP, key, "counted")
    try:
        epoch, members = msgpack.unpackb(row)
        if isinstance(epoch, int) and all(isinstance(name, str) for name in members):
            return CountedMembers(epoch, tuple(members))
    except (ValueError, TypeError, msgpack.UnpackException):
        pass
    raise DamageError("counted", -1, -1, f"the row {row!r} is none")


def counted_rows(databases: Databases, txn: AnyTransaction) -> dict[int, CountedMembers]:
    """Every row that can be read."""
    rows = databases.counted.rows(txn, b"", None, 1 << 16)
    return {int.from_bytes(key, "big"): parse_counted(key, row) for key, row in rows}


def put_counted(databases: Databases, txn: WriteTransaction, rows: Mapping[int, CountedMembers]) -> None:
    """Write rows."""
    for group, row in rows.items():
        databases.counted.put(txn, group_prefix(group), msgpack.packb(tuple(row)))
