"""Writing behind: the index's memory table to disk in bounded steps, and back from the log after a crash."""

from __future__ import annotations

from typing import Final

from lexicast.cluster.errors import UsageError
from lexicast.cluster.topics import is_wildcard

from . import groups as group_rows
from .dual import Entry, Index
from .environment import Environment
from .format import DamageError, block_of, verified_head
from .groups import Group
from .log import Log
from .outline import Outline, outline
from .state import subscription_of
from .table import WriteTransaction
from .topics import TopicIds, wildcard_id

# Blocks entered in one transaction when the index is brought up to the log: a few milliseconds each.
_BLOCKS_A_STEP: Final = 256


class WriteBehind:
    """Moves the index between its memory table, its runs on disk and the log. Writer thread only."""

    def __init__(
        self, environment: Environment, log: Log, index: Index, ids: TopicIds, groups: dict[int, Group]
    ) -> None:
        self._environment = environment
        self._databases = environment.databases
        self._log = log
        self._index = index
        self._ids = ids
        self._groups = groups
        self._records: dict[int, int] = {}

    def entries(self, txn: WriteTransaction, found: Outline) -> list[tuple[int, Entry]]:
        """What the index will hold of a block, by topic id (new topics get theirs in `txn`)."""
        group, time_us = found.block.group, found.block.time_us
        resolve = self._ids.resolve
        return [
            (resolve(txn, group, topic), Entry(first, count, time_us, expires_us))
            for topic, first, count, expires_us in found.topics
        ]

    def number_topics(self, txn: WriteTransaction) -> None:
        """Store the next topic number of each group in which `txn` has named topics."""
        for group, next_topic in self._ids.numbered().items():
            known = self._groups.get(group) or Group(group)
            group_rows.store(self._databases, txn, group, known.row(next_topic))

    def step(self) -> bool:
        """One durable step of writing the memory table; False when nothing was left to write."""
        if not self._index.writing:
            if not self._index.entries and not self._behind():
                return False
            self._index.freeze({g.number: g.entered_below for g in self._groups.values()})
            self._records = {g.number: g.records for g in self._groups.values()}
        with self._environment.begin() as txn:
            watermarks = self._index.write_step(txn)
            for group, below in (watermarks or {}).items():
                self._store_watermark(txn, group, below)
        if watermarks is not None:
            self._index.written()
            for group, below in watermarks.items():
                self._groups[group].indexed_below = below
                self._groups[group].records_indexed = self._records[group]
        return True

    def merge_step(self) -> bool:
        """One durable step of merging runs; False when there is nothing to merge."""
        if not self._index.merging:
            return False
        with self._environment.begin() as txn:
            self._index.merge_step(txn)
        return True

    def open(self) -> None:
        """Take up the index on disk, or build it; then enter what the log holds beyond it."""
        with self._environment.snapshot() as txn:
            found = self._index.open(txn)
        if found:
            self.catch_up()
        else:
            self.rebuild()

    def _behind(self) -> bool:
        return any(g.indexed_below < g.entered_below for g in self._groups.values())

    def _store_watermark(self, txn: WriteTransaction, group: int, below: int) -> None:
        row = self._groups[group].row(self._ids.next_number(group))
        group_rows.store(self._databases, txn, group, row._replace(indexed_below=below, records=self._records[group]))

    def discarded(self, group: int, records: int) -> None:
        """`records` below the watermark have left the log."""
        if group in self._records:
            self._records[group] -= records

    def flush(self) -> None:
        """Write all of the memory table."""
        while self.step():
            pass

    def catch_up(self) -> None:
        """Enter what the log holds beyond each group's watermark: after opening, and to rebuild."""
        for group in self._groups.values():
            while self._enter(group):
                if self._index.overdue:
                    self.flush()

    def _enter(self, group: Group) -> bool:
        """Enter the group's next blocks; False when there were none."""
        found = self._next_outlines(group.number, group.entered_below)
        if not found:
            group.entered_below = max(group.entered_below, group.last + 1)
            return False
        with self._environment.begin() as txn:
            entered = [pair for _, item in found if item is not None for pair in self.entries(txn, item)]
            self.number_topics(txn)
        self._ids.committed()
        for topic_id, entry in entered:
            self._index.add(topic_id, entry)
        for _, item in found:
            if item is not None:
                self._index.logged(item.block.size_bytes)
                group.records += item.block.count
        group.entered_below = found[-1][0] + 1
        return True

    def _next_outlines(self, group: int, below: int) -> list[tuple[int, Outline | None]]:
        """(last offset, outline) of the next blocks; no outline of a damaged one, which `check` names."""
        found: list[tuple[int, Outline | None]] = []
        with self._environment.snapshot() as txn:
            for last, value in self._log.from_offset(txn, group, below):
                if len(found) == _BLOCKS_A_STEP:
                    break
                try:
                    found.append((last, outline(block_of(value, verified_head(value, group, last)))))
                except (DamageError, UsageError):
                    found.append((last, None))
        return found

    def rebuild(self) -> None:
        """Empty the index and enter everything again: subscriptions from their table, publications from the log."""
        self._index.restart()
        with self._environment.begin() as txn:
            self._index.clear(txn)
            for group in self._groups.values():
                group.indexed_below = group.entered_below = group.records_indexed = group.records = 0
                group_rows.store(self._databases, txn, group.number, group.row(self._ids.next_number(group.number)))
        self._enter_subscriptions()
        self.catch_up()
        self.flush()

    def _enter_subscriptions(self) -> None:
        after: bytes | None = None
        while True:
            with self._environment.begin() as txn:
                rows = self._databases.subscriptions.rows(txn, b"", after)
                for key, row in rows:
                    record, offset = subscription_of(row)
                    group, name = int.from_bytes(key[:2], "big"), record.filter.encode()
                    topic_id = wildcard_id(group) if is_wildcard(name) else self._ids.resolve(txn, group, name)
                    self._index.put_subscription(txn, topic_id, offset, record)
                self.number_topics(txn)
            self._ids.committed()
            if not rows:
                return
            after = rows[-1][0]
