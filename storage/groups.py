"""What a store knows of each group beyond the blocks in its log: how far it was discarded, indexed, numbered.

A row is written when one of these changes, not at each commit: where the log ends, it says itself. `epoch`, `last`
and `time_us` of a row matter only once retention has taken the group's last block.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from .environment import Databases
from .format import group_prefix, unpacked
from .table import AnyTransaction, WriteTransaction

_ROW: Final = struct.Struct("<QQqQQQQ")


class GroupRow(NamedTuple):
    """A stored row: `records` are those below offset `indexed_below` that are still in the log."""

    epoch: int
    last: int
    time_us: int
    first_kept: int
    indexed_below: int
    records: int
    next_topic: int


class Group:
    """A group's state in memory. Changed by the writer thread, after the commit that made it so."""

    __slots__ = (
        "entered_below",
        "epoch",
        "first",
        "first_kept",
        "indexed_below",
        "last",
        "number",
        "records",
        "records_indexed",
        "time_us",
    )

    def __init__(self, number: int, row: GroupRow | None = None) -> None:
        self.number = number
        self.epoch = row.epoch if row else 0
        self.last = row.last if row else -1
        self.time_us = row.time_us if row else 0
        self.first_kept = row.first_kept if row else 0
        self.indexed_below = row.indexed_below if row else 0
        self.records_indexed = row.records if row else 0
        self.records = self.records_indexed
        # All below this offset is in the index, on disk or in its memory table.
        self.entered_below = self.indexed_below
        # The first offset in the log; beyond `last` when the log is empty.
        self.first = self.last + 1

    def row(self, next_topic: int) -> GroupRow:
        """The state as a row."""
        last = max(self.last, 0)
        return GroupRow(
            self.epoch, last, self.time_us, self.first_kept, self.indexed_below, self.records_indexed, next_topic
        )


def load(databases: Databases, txn: AnyTransaction) -> dict[int, GroupRow]:
    """Every stored row."""
    rows = databases.groups.rows(txn, b"", None, 1 << 16)
    return {int.from_bytes(key, "big"): unpack(row) for key, row in rows}


def unpack(data: bytes) -> GroupRow:
    """A row of the groups table. Raises DamageError."""
    return GroupRow(*unpacked(_ROW, data, "groups"))


def pack(row: GroupRow) -> bytes:
    """The inverse of `unpack`."""
    return _ROW.pack(*row)


def store(databases: Databases, txn: WriteTransaction, group: int, row: GroupRow) -> None:
    """Write a row."""
    databases.groups.put(txn, group_prefix(group), _ROW.pack(*row))
