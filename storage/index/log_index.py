"""DualDB in a coordinator: publications and subscriptions of an ID side by side, as an index of the group log.

    key                                         value
    topic id u64, "S", offset of the cut u64    time_min_us i64, time_max_us i64, broker: sealed
    0xFFFF, run u32, segment u32                entries of publications, in sorted runs: see `runs`

An entry is one topic's publications in one block: first offset u64, records u32, time_us i64 (T_P), expires_us u64
(T_max of the last to expire, 0 = never). Payloads stay in the log: an entry is their position.

Nothing is read to be written (the paper's lazy lists): entries go to a memory table, which answers meanwhile, and are
*written behind* in sorted runs with LMDB's append, a segment a step; runs are merged in the background, and what
retention has passed by is left out on the way. A memory table that is full is frozen and a new one begun; while the
frozen one is written both answer, and an entry may be found twice: `entries` names it once. A table is brought into
order an eighth at a time as it fills, and the eighths together a segment a step (65,536 entries at once took 5 to
16 ms). Once all of it is on disk each group's watermark `indexed_below` moves, in the same transaction: after a crash
everything beyond the watermark is entered again from the log. Subscriptions are few (one a broker and filter) and
written at once.

A topic's times ascend with its offsets, so the entries of a span of time are found by offset: the caller turns times
into offsets through the log.

Before: one value a topic and flush under (topic id, "P", first offset), inserted topic by topic. A flush of 65,536
entries of as many topics wrote a page each, 256 MiB; as a run it writes 3 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..dualdb.rows import NEVER_US, U64, RowColumns
from ..dualdb.segments import segment_rows
from ..environment.options import StoreOptions
from ..file.damage import Ledger
from ..file.sealing import DamageError
from ..file.table import AnyTransaction, Database, WriteTransaction
from .memory import IndexEntry, IndexMemory
from .runs import MANIFEST_KEY, RUNS_PREFIX, IndexRuns, LookUp, OldestUs, StillWanted, in_offset_order
from .subscriptions import IndexSubscriptions


class LogIndex:
    """The index of one store. Written by the writer thread; looked up by any."""

    def __init__(
        self,
        database: Database,
        options: StoreOptions,
        still_wanted: StillWanted,
        oldest_us: OldestUs,
        ledger: Ledger,
    ) -> None:
        self._database = database
        self._ledger = ledger
        # Damage was met on disk: nothing is answered from there until all of it has been made anew.
        self.broken = False
        # All that the log holds has been entered, on disk or in memory.
        self.complete = False
        self._runs = IndexRuns(database, options.index_step_topics, still_wanted, oldest_us)
        self.memory = IndexMemory(options)
        self.subscriptions = IndexSubscriptions(database, self.damaged)

    # writing

    def freeze(self, below: dict[int, int]) -> None:
        """Begin to write the memory table; `below`: a watermark a group, all below it entered here or before."""
        self.memory.freeze(below)
        self._runs.begin_flush(self.memory.frozen_pieces())

    def write_step(self, txn: WriteTransaction, now_us: int) -> dict[int, int] | None:
        """Write the next segment of the frozen table, without what has expired by `now_us`; the watermarks to store
        when it was the last, else None.

        Raises DamageError, as `merge_step`: then give up the transaction and call `damaged`.
        """
        frozen = self.memory.frozen
        if frozen is None or not self._runs.flush_step(txn, now_us):
            return None
        self._runs.choose(txn, now_us)
        return frozen.below

    def step_done(self) -> None:
        """The last step of writing or merging is durable."""
        self._runs.step_done()

    def step_failed(self) -> None:
        """The last step's transaction came to nothing: memory goes back, what was under way begins again."""
        self._runs.roll_back()
        if self.memory.frozen is not None:
            self._runs.begin_flush(self.memory.frozen_pieces())

    @property
    def merging(self) -> bool:
        """Runs are being merged, or deleted after a merge."""
        return self._runs.merging

    def stale(self, now_us: int) -> bool:
        """Runs hold what has been expired for long."""
        return not self.broken and self._runs.stale(now_us)

    def clean(self, txn: WriteTransaction, now_us: int) -> None:
        """Drop runs that have expired, and begin to write one anew without what has."""
        self._runs.clean(txn, now_us)

    def merge_step(self, txn: WriteTransaction, now_us: int) -> None:
        """One bounded step of merging; what has expired by `now_us` is left out."""
        self._runs.merge_step(txn, now_us)

    def open(self, txn: AnyTransaction) -> bool:
        """Take up what is on disk; False when it has to be made anew: there is none, or a damaged one."""
        try:
            return self._runs.open(txn)
        except DamageError as error:
            self.damaged(error)
            return False

    def damaged(self, error: DamageError) -> None:
        """What is on disk cannot be believed."""
        self._ledger.note(error)
        self.broken = True

    # look-up

    @property
    def whole(self) -> bool:
        """It answers: all that the log holds is in it, and nothing damaged was met."""
        return self.complete and not self.broken

    def entries(
        self, txn: AnyTransaction, recent: RowColumns, topic_ids: U64, first: int, last: int, most: int
    ) -> LookUp | None:
        """Entries of topics of one group (ids in order) that begin from offset `first` to `last`, by offset.

        At least `most` of each topic, where there are so many, and all up to the offset `upto` of the answer. `recent`:
        `memory.recent` of the same topics, from before `txn` began. None: the index cannot tell.
        """
        if not self.whole:
            return None
        try:
            found = self._runs.rows(txn, topic_ids, first, last, most)
        except DamageError as error:
            self.damaged(error)
            return None
        own = recent.take((recent.seq >= first) & (recent.seq <= found.upto))
        inside = found.rows.take(found.rows.seq <= found.upto)
        return found._replace(rows=in_offset_order([inside, own]))

    def last_entries(
        self, txn: AnyTransaction, recent: RowColumns, topic_id: int, before: int, most: int
    ) -> RowColumns | None:
        """The last entries of a topic that begin below offset `before`, by offset: `most` of them, or all there are.

        `recent` and None as in `entries`.
        """
        if not self.whole:
            return None
        own = in_offset_order([recent.take(recent.seq < before)])
        if own.size < most:
            try:
                own = in_offset_order([self._runs.last_rows(txn, topic_id, before, most), own])
            except DamageError as error:
                self.damaged(error)
                return None
        return own.from_row(max(0, own.size - most))

    # retention

    def bare(self, txn: AnyTransaction, topic_ids: Sequence[int], lasts: Sequence[int]) -> list[bool]:
        """Of each topic: nothing at all stands under its ID beyond that offset, no publication and no subscription."""
        if not self.whole:
            return [False] * len(topic_ids)
        held = self.memory.held(np.array(topic_ids, np.uint64)).tolist()
        free = [
            not own and next(self.subscriptions.of(txn, i), None) is None
            for i, own in zip(topic_ids, held, strict=True)
        ]
        asked = [(topic_id, last) for topic_id, last, left in zip(topic_ids, lasts, free, strict=True) if left]
        try:
            found = iter(self._runs.bare(txn, [i for i, _ in asked], [last for _, last in asked]))
        except DamageError as error:
            self.damaged(error)
            return [False] * len(topic_ids)
        return [left and next(found) for left in free]

    def clear(self, txn: WriteTransaction) -> None:
        """Delete everything; the caller enters it again: subscriptions first, then `begin`, then publications."""
        txn.drop(self._database, delete=False)
        self._runs.reset()

    def begin(self, txn: WriteTransaction) -> None:
        """All subscriptions are there again. Before this, an opening finds no index, and makes it anew."""
        self._runs.create(txn)


def _entries_in(rows: RowColumns) -> Iterator[IndexEntry]:
    columns = (rows.seq, rows.tag, rows.low, rows.high)
    for offset, records, time_us, expires_us in zip(*[column.tolist() for column in columns], strict=True):
        yield IndexEntry(offset, records, time_us, 0 if expires_us == NEVER_US else expires_us)


def entries_in(rows: RowColumns) -> Iterator[tuple[int, IndexEntry]]:
    """The entries of a segment, each with its topic's id."""
    return zip(rows.key.tolist(), _entries_in(rows), strict=True)


def expired_rows(txn: AnyTransaction, database: Database, now_us: int) -> tuple[int, int]:
    """(rows of which everything had expired by `now_us`, all rows) of the runs on disk."""
    expired = rows = 0
    with txn.cursor(database) as cursor:
        there = cursor.set_range(RUNS_PREFIX)
        while there:
            if bytes(cursor.key()) != MANIFEST_KEY:
                high = segment_rows(memoryview(cursor.value()), verify=True).high
                expired += int((high < now_us).sum())
                rows += len(high)
            there = cursor.next()
    return expired, rows
