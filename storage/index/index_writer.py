"""The writer of the index: its memory table to disk in bounded steps, and back from the log after a crash."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import UsageError
from lexicast.cluster.topics.names import is_wildcard

from ..dualdb.rows import NEVER_US
from ..environment.environment import Environment
from ..file.sealing import DamageError
from ..file.table import WriteTransaction
from ..log.block_format import block_of
from ..log.block_log import Log
from ..log.block_outline import Outline, outline
from ..tables import groups as group_rows
from ..tables.groups import StoredGroup
from ..tables.state import parse_subscription_row
from ..tables.topics import TopicIds, wildcard_id
from .log_index import LogIndex
from .memory import BlockEntries

# How long an opening waits for the index.
OPEN_S: Final = 1.0
# Blocks entered in one transaction when the index is brought up to the log: a few milliseconds each.
_BLOCKS_A_STEP: Final = 256


class IndexWriter:
    """Moves the index between its memory table, its runs on disk and the log. Writer thread only."""

    def __init__(
        self, environment: Environment, log: Log, index: LogIndex, ids: TopicIds, groups: dict[int, StoredGroup]
    ) -> None:
        self._environment = environment
        self._databases = environment.databases
        self._log = log
        self._index = index
        self._memory = index.memory
        self._ids = ids
        self._groups = groups
        # As of the last freeze: the records of each group, and up to where they were counted.
        self._records: dict[int, int] = {}
        self._below: dict[int, int] = {}
        # While the index is made anew: the last subscription entered, then the groups not yet caught up with.
        self._entering: bytes | None = None
        self._catching: list[int] = []

    def entries(self, txn: WriteTransaction, found: Outline) -> BlockEntries:
        """What the index will hold of a block (new topics get their ids in `txn`)."""
        names, firsts, records, expires_us = found.topics
        try:
            ids = list(map(self._ids.known, names))
        except KeyError:
            ids = [self._ids.resolve(txn, found.block.group, name) for name in names]
        until = [min(each, NEVER_US) for each in expires_us] if found.expire_first_us else None
        return BlockEntries(ids, firsts, records, until, found.block.time_us)

    def number_topics(self, txn: WriteTransaction) -> None:
        """Store the next topic number of each group in which `txn` has named topics."""
        for group, next_topic in self._ids.numbered().items():
            known = self._groups.get(group) or StoredGroup(group)
            group_rows.put_group_row(self._databases, txn, group, known.row(next_topic))

    @property
    def due(self) -> bool:
        """There is something to write or to enter."""
        return self._index.broken or self._entering is not None or bool(self._catching) or self._memory.due

    def step(self, now_us: int = 0) -> bool:
        """One durable step; False when nothing was left to do: entering what the index lacks, writing its memory table.

        What has expired by `now_us` may be left out. An index found damaged is begun anew.
        """
        if self._index.broken:
            self.begin_rebuild()
        elif self._entering is not None:
            self._enter_subscriptions()
        elif self._memory.due or not self._catch_up_step():
            return self._write(now_us)
        return True

    @contextmanager
    def _durable(self) -> Iterator[WriteTransaction]:
        """A transaction of a step of the index; where it fails, its memory is as it was before."""
        try:
            with self._environment.begin() as txn:
                yield txn
        except BaseException:
            self._index.step_failed()
            raise
        self._index.step_done()

    @contextmanager
    def _entered(self) -> Iterator[WriteTransaction]:
        """A transaction that may name topics."""
        try:
            with self._environment.begin() as txn:
                yield txn
        except BaseException:
            self._ids.aborted()
            raise
        self._ids.committed()

    def _write(self, now_us: int) -> bool:
        """A step of writing the memory table."""
        if self._memory.frozen is None:
            if not self._memory.entries and not self._behind():
                return False
            self._below = {g.number: g.entered_below for g in self._groups.values()}
            self._index.freeze(dict(self._below))
            self._records = {g.number: g.records for g in self._groups.values()}
        try:
            with self._durable() as txn:
                watermarks = self._index.write_step(txn, now_us)
                for group, below in (watermarks or {}).items():
                    self._store_watermark(txn, group, below)
        except DamageError as error:
            self._index.damaged(error)
            return True
        if watermarks is not None:
            self._memory.written()
            for group, below in watermarks.items():
                self._groups[group].indexed_below = below
                self._groups[group].records_indexed = self._records[group]
        return True

    def merge_step(self, now_us: int) -> bool:
        """One durable step of merging runs, or of cleaning them of what has expired; False: there is nothing to do."""
        merging = self._index.merging
        if self._index.broken or not (merging or self._index.stale(now_us)):
            return False
        try:
            with self._durable() as txn:
                (self._index.merge_step if merging else self._index.clean)(txn, now_us)
        except DamageError as error:
            self._index.damaged(error)
        return True

    def open(self, clock: Clock) -> None:
        """Take up the index on disk and enter what the log holds beyond it; else make it anew.

        For OPEN_S at most: of a large log the rest is housekeeping's, and until then it is the log that is looked at.
        """
        with self._environment.snapshot() as txn:
            found = self._index.open(txn)
        if self._index.broken or not found:
            self.begin_rebuild()
        else:
            self._catching = sorted(self._groups)
        until = clock.monotonic() + OPEN_S
        while self._entering is not None and clock.monotonic() < until:
            self._enter_subscriptions()
        while (self._catching or not self._index.complete) and clock.monotonic() < until:
            while self._memory.overdue or self._memory.frozen is not None:
                self._write(0)
            self._catch_up_step()

    def _behind(self) -> bool:
        return any(g.indexed_below < g.entered_below for g in self._groups.values())

    def _store_watermark(self, txn: WriteTransaction, group: int, below: int) -> None:
        row = self._groups[group].row(self._ids.next_number(group))
        group_rows.put_group_row(
            self._databases, txn, group, row._replace(indexed_below=below, records=self._records[group])
        )

    def discarded(self, group: int, last: int, records: int) -> None:
        """A block that ended at `last` has left the log, with `records`."""
        if last < self._below.get(group, 0):
            self._records[group] -= records

    def flush(self) -> None:
        """Write all of the memory table."""
        while self.step():
            pass

    def _catch_up_step(self) -> bool:
        """Enter the next blocks that the log holds beyond what has been entered; False when there are none.

        Commits add to the index by themselves once their group has been caught up with.
        """
        while self._catching:
            if self._enter(self._groups[self._catching[-1]]):
                return True
            self._catching.pop()
        self._index.complete = self._entering is None
        return False

    def _enter(self, group: StoredGroup) -> bool:
        """Enter the group's next blocks; False when there were none."""
        found = self._next_outlines(group.number, group.entered_below)
        if not found:
            group.entered_below = max(group.entered_below, group.last + 1)
            return False
        with self._entered() as txn:
            entered = [self.entries(txn, item) for _, item in found if item is not None]
            self.number_topics(txn)
        for entries in entered:
            self._memory.add(entries)
        for _, item in found:
            if item is not None:
                self._memory.logged(item.block.size_bytes)
                group.records += item.block.count
        group.entered_below = found[-1][0] + 1
        return True

    def _next_outlines(self, group: int, below: int) -> list[tuple[int, Outline | None]]:
        """(last offset, outline) of the next blocks; no outline of a damaged one, which `check` names."""
        found: list[tuple[int, Outline | None]] = []
        with self._environment.snapshot() as txn:
            for head, value in self._log.from_offset(txn, group, below):
                if len(found) == _BLOCKS_A_STEP:
                    break
                try:
                    found.append((head.last, outline(block_of(value, head))))
                except UsageError as error:  # a damaged control record, or no block of ours
                    self._log.ledger.note(DamageError("log", group, head.first, str(error)))
                    found.append((head.last, None))
        return found

    def rebuild(self) -> None:
        """Make the index anew at once: subscriptions from their table, publications from the log."""
        self.begin_rebuild()
        self.flush()

    def begin_rebuild(self) -> None:
        """Empty the index; the steps that follow enter everything again. After a crash they begin again."""
        self._memory.clear()
        with self._environment.begin() as txn:
            self._index.clear(txn)
            for group in self._groups.values():
                row = group.row(self._ids.next_number(group.number))
                group_rows.put_group_row(self._databases, txn, group.number, row._replace(indexed_below=0, records=0))
        for group in self._groups.values():
            group.indexed_below = group.entered_below = group.records_indexed = group.records = 0
        self._index.broken = self._index.complete = False
        self._entering = b""
        self._catching = []

    def _enter_subscriptions(self) -> None:
        """Enter the next of them; after the last the index counts, and publications are entered."""
        with self._entered() as txn:
            rows = self._databases.subscriptions.rows(txn, b"", self._entering)
            for key, row in rows:
                record, offset = parse_subscription_row(row)
                group, name = int.from_bytes(key[:2], "big"), record.filter.encode()
                topic_id = wildcard_id(group) if is_wildcard(name) else self._ids.resolve(txn, group, name)
                self._index.subscriptions.put(txn, topic_id, offset, record)
            self.number_topics(txn)
            if not rows:
                self._index.begin(txn)
        self._entering = rows[-1][0] if rows else None
        if not rows:
            self._catching = sorted(self._groups)
