"""The table of groups: what a store knows of each beyond its log, how far it was discarded, indexed, numbered.

A row is written when one of these changes, not at each commit: where the log ends, it says itself. `epoch`, `last`
and `time_us` of a row matter only once retention has taken the group's last block.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from lexicast.cluster.positions import EPOCH_OFFSET_GAP

from ..file.keys import group_prefix
from ..file.sealing import unpacked
from ..file.table import AnyTransaction, ReadTransaction, WriteTransaction
from ..log.block_log import Log
from .databases import Databases
from .state import parse_epoch_row
from .topics import GROUP_SHIFT

# A group whose row is damaged and of which nothing is left in the log goes on so far beyond the last epoch known of it:
# no epoch gives as many offsets (a million a second for 12 days), and 64 bits hold 16 million such gaps.
LOST_ROW_OFFSET_GAP: Final = 1 << 40

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


class StoredGroup:
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
        # A row before any block, or after all were forgotten, has neither.
        self.last = row.last if row and (row.last or row.epoch) else -1
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


def stored_group_rows(databases: Databases, txn: AnyTransaction) -> dict[int, GroupRow]:
    """Every stored row."""
    rows = databases.groups.rows(txn, b"", None, 1 << 16)
    return {int.from_bytes(key, "big"): parse_group_row(row) for key, row in rows}


class FoundGroups(NamedTuple):
    """The groups of a store as an opening finds them, the next topic number of each, and the last offset of each that a
    sound block or row tells."""

    groups: dict[int, StoredGroup]
    next_topics: dict[int, int]
    sound_lasts: dict[int, int]


def find_groups(databases: Databases, log: Log, txn: ReadTransaction) -> FoundGroups:
    """Every group, from its row and the end of its log. Nothing that is damaged is believed.

    A group whose row is lost is put together from what else is known of it.
    """
    rows = stored_group_rows(databases, txn)
    next_topics = {number: row.next_topic for number, row in rows.items()}
    lost: set[int] = set()
    if log.ledger.counts.get("groups"):
        highest = _highest_topics(databases, txn)
        next_topics = {n: max(next_topics.get(n, 1), highest.get(n, 0) + 1) for n in {*next_topics, *highest}}
        lost = {*highest, *_with_epochs(databases, txn)} - rows.keys()
    groups = {}
    sound_lasts = {}
    for number in sorted({*rows, *log.groups(txn), *lost}):
        group = groups[number] = StoredGroup(number, rows.get(number))
        sound_lasts[number] = _read_end(group, log, txn)
        first = log.head_at(txn, number, 0)
        if number in lost and first is None:
            rows_of = databases.epochs.rows(txn, group_prefix(number), None, 1 << 16)
            starts = [parse_epoch_row(key, row) for key, row in rows_of]
            group.epoch = max([start.epoch for start in starts], default=0)
            group.last = max([start.first for start in starts], default=0) + LOST_ROW_OFFSET_GAP
        group.first = group.last + 1 if first is None else first.first
        if number in lost:
            group.first_kept = group.first
    return FoundGroups(groups, next_topics, sound_lasts)


def _read_end(group: StoredGroup, log: Log, txn: ReadTransaction) -> int:
    """What the end of its log says of a group; the last offset that is sure."""
    head, claimed = log.end(txn, group.number)
    if head is not None and head.last >= group.last:
        group.epoch, group.last, group.time_us = head.epoch, head.last, head.time_us
    sure = group.last
    for last in claimed:
        # A damaged block may have stood up to there. Beyond the gap it is no offset that was ever given.
        if group.last < last <= group.last + EPOCH_OFFSET_GAP:
            group.last = last
    return sure


def _highest_topics(databases: Databases, txn: ReadTransaction) -> dict[int, int]:
    """The highest topic number of each group that a name, an id or a retained publication tells."""
    highest: dict[int, int] = {}
    for table in (databases.names, databases.ids, databases.retained):
        after: bytes | None = None
        while rows := table.rows(txn, b"", after):
            for key, row in rows:
                topic_id = int.from_bytes(row if table is databases.ids else key, "big")
                group, number = topic_id >> GROUP_SHIFT, topic_id & (1 << GROUP_SHIFT) - 1
                highest[group] = max(highest.get(group, 0), number)
            after = rows[-1][0]
    return highest


def _with_epochs(databases: Databases, txn: ReadTransaction) -> set[int]:
    """The groups that ever had an epoch."""
    found: set[int] = set()
    after = b""
    while rows := databases.epochs.rows(txn, b"", after, 1):
        found.add(int.from_bytes(rows[0][0][:2], "big"))
        after = rows[0][0][:2] + b"\xff" * 8
    return found


def parse_group_row(data: bytes) -> GroupRow:
    """A row of the groups table. Raises DamageError."""
    return GroupRow(*unpacked(_ROW, data, "groups"))


def pack_group_row(row: GroupRow) -> bytes:
    """The inverse of `parse_group_row`."""
    return _ROW.pack(*row)


def put_group_row(databases: Databases, txn: WriteTransaction, group: int, row: GroupRow) -> None:
    """Write a row."""
    databases.groups.put(txn, group_prefix(group), _ROW.pack(*row))
