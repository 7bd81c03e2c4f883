"""The runs of a coordinator's index: DualDB's sorted runs (`dualdb.runs`) in its database, behind the subscriptions.

    key                                       value
    0xFFFF, run u32, segment u32              a segment (`dualdb.segments`): topic id, offset, T_P, T_max, records
    0xFFFF, 0, 0                              the manifest: which runs count; sealed msgpack

No topic has these keys: groups end at 65,534. So segments are the last keys of the database, and are appended.

A reader finds the manifest in its own snapshot, and there the segments that it names: a run that was merged meanwhile
is still whole for it. Rows of a topic are in the order of their offsets, so a look-up reads from where it begins.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgpack
import numpy as np

from ..dualdb.merging import Merge, in_memory
from ..dualdb.rows import U64, Index, RowColumns, empty, joined
from ..dualdb.runs import SortedRun, delete_some
from ..file.sealing import DamageError, seal, unpacked, unseal
from ..file.table import AnyTransaction, Database, WriteTransaction

RUNS_PREFIX: Final = b"\xff\xff"
_KEY = struct.Struct(">HII")
MANIFEST_KEY: Final = _KEY.pack(0xFFFF, 0, 0)
MANIFEST_VERSION: Final = 1

# A look-up asks at most three runs a level; an entry is merged once a level, four times as many entries each.
FANOUT: Final = 4
_SEGMENTS_DELETED_A_STEP: Final = 8
# What has expired in a run lies there for so long at most, unless merges or the end of all of it come first: then the
# run is written anew without it. (2 million rows take 1.5 s of CPU, in steps.) Looked for every CLEAN_LOOK_US.
CLEAN_US: Final = 600_000_000
CLEAN_LOOK_US: Final = 10_000_000

StillWanted = Callable[[RowColumns], RowColumns]
OldestUs = Callable[[AnyTransaction], int]
Stored = list[tuple[int, int, int]]  # (run, level, segments)


def _stale(run: SortedRun, now_us: int) -> bool:
    """All of a run has expired, or something has for long."""
    return run.high_max < now_us or run.high_min < now_us - CLEAN_US


class LookUp(NamedTuple):
    """Rows of some topics, complete up to offset `upto`, and how many segments were touched for them."""

    rows: RowColumns
    upto: int
    touched: int


def in_offset_order(parts: Sequence[RowColumns]) -> RowColumns:
    """Rows of one group by offset, each once: while a frozen memory table is written, two places hold its entries."""
    rows = joined([part for part in parts if part.size])
    _, chosen = np.unique(rows.seq, return_index=True)
    return rows.take(chosen)


def _between(rows: RowColumns, keys: U64, first: int, last: int) -> tuple[Index, Index]:
    """Where the rows of each key at offsets from `first` to `last` begin and end. A key's rows are in their order."""
    starts = np.searchsorted(rows.key, keys, "left")
    ends = np.searchsorted(rows.key, keys, "right")
    before = np.concatenate(([0], np.cumsum(rows.seq < np.uint64(first))))
    upto = np.concatenate(([0], np.cumsum(rows.seq <= np.uint64(last))))
    return starts + before[ends] - before[starts], starts + upto[ends] - upto[starts]


def _between_of(rows: RowColumns, key: np.uint64, first: int, last: int) -> tuple[int, int]:
    """The same of one key."""
    start = int(rows.key.searchsorted(key))
    own = rows.seq[start : int(rows.key.searchsorted(key, "right"))]
    low, high = int(own.searchsorted(np.uint64(first))), int(own.searchsorted(np.uint64(last), "right"))
    return start + low, start + max(low, high)


def row_places(starts: Index, counts: Index) -> Index:
    """The places from each start on, as many as its count says."""
    places = np.arange(int(counts.sum()), dtype=np.intp)
    places += np.repeat(starts - (np.cumsum(counts) - counts), counts)
    return places


class IndexRuns:
    """Runs on disk. Written by the writer thread, in steps inside its transactions; looked up by any thread.

    `still_wanted` gives the rows that retention has not passed by, `oldest_us` the time of the oldest block in the log.
    """

    def __init__(self, database: Database, segment_rows: int, still_wanted: StillWanted, oldest_us: OldestUs) -> None:
        self._database = database
        self._segment_rows = segment_rows
        self._still_wanted = still_wanted
        self._oldest_us = oldest_us
        # What is known of each run; a run that is complete never changes, so any thread may use and add it.
        self._known: dict[int, SortedRun] = {}
        self._next = 1
        self._dropped: list[int] = []
        self._flush: Merge | None = None
        self._merge: tuple[Merge, list[int]] | None = None
        self._before: tuple[dict[int, SortedRun], list[int], list[int]] | None = None
        self._looked_us = 0

    def stale(self, now_us: int) -> bool:
        """Something has been expired in a run for CLEAN_US: call `clean`. Looked for every CLEAN_LOOK_US."""
        if self._merge is not None or self._dropped or abs(now_us - self._looked_us) < CLEAN_LOOK_US:
            return False
        self._looked_us = now_us
        return any([_stale(run, now_us) for run in list(self._known.values())])

    def _memory(self) -> tuple[dict[int, SortedRun], list[int], list[int]]:
        """What a step may change: known and dropped runs, and the runs being written."""
        written = [self._flush.target.number] if self._flush is not None else []
        written += [self._merge[0].target.number] if self._merge is not None else []
        return dict(self._known), list(self._dropped), written

    def step_done(self) -> None:
        """The last step is durable."""
        self._before = None

    def roll_back(self) -> None:
        """The last step is not durable. Runs that were being written are given up."""
        if self._before is not None:
            self._known, self._dropped, unfinished = self._before
            self._dropped += unfinished
            self._flush = self._merge = self._before = None

    def open(self, txn: AnyTransaction) -> bool:
        """Take up what is there; False when there is no manifest: it has to be made anew. Raises DamageError."""
        if txn.get(MANIFEST_KEY, None, self._database) is None:
            return False
        stored, self._next = self._manifest(txn)
        known = {run for run, _, _ in stored}
        with txn.cursor(self._database) as cursor:
            there = cursor.set_range(_KEY.pack(0xFFFF, 0, 1))
            while there:
                run = unpacked(_KEY, cursor.key(), "dual")[1]
                if run not in known:
                    self._dropped.append(run)  # of a flush or merge that a crash has ended
                self._next = max(self._next, run + 1)
                there = cursor.set_range(_KEY.pack(0xFFFF, run + 1, 0))
        for row in stored:
            self._run(txn, row)
        return True

    def reset(self) -> None:
        """Nothing is there any more. (Numbers of runs are not given again: readers may look at an older snapshot.)"""
        self._known, self._dropped, self._flush, self._merge = {}, [], None, None

    def create(self, txn: WriteTransaction) -> None:
        """Store an empty manifest."""
        self._store(txn, [])

    def _manifest(self, txn: AnyTransaction) -> tuple[Stored, int]:
        value = txn.get(MANIFEST_KEY, None, self._database)
        if value is None:
            return [], self._next
        data = unseal("dual", MANIFEST_KEY, value)
        try:
            _, next_run, stored = msgpack.unpackb(data)
            return [(run, level, segments) for run, level, segments in stored], next_run
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise DamageError("dual", -1, -1, f"the manifest cannot be read: {error}") from None

    def _store(self, txn: WriteTransaction, stored: Stored) -> None:
        data = msgpack.packb((MANIFEST_VERSION, self._next, stored))
        txn.put(MANIFEST_KEY, seal("dual", MANIFEST_KEY, data), db=self._database)

    def _new_run(self, level: int) -> SortedRun:
        self._next += 1
        return SortedRun(self._next - 1, level, RUNS_PREFIX)

    # writing

    def begin_flush(self, pieces: Sequence[RowColumns]) -> None:
        """Begin a run of level 0 with these rows, each piece in order."""
        sources = in_memory(pieces, self._segment_rows)
        self._flush = Merge(self._new_run(0), sources, self._still_wanted, self._segment_rows, by_seq=True)

    def flush_step(self, txn: WriteTransaction, now_us: int) -> bool:
        """Write the next segment of it, without what has expired by `now_us`; True when the run is complete and counts,
        once `txn` is committed."""
        assert self._flush is not None
        self._before = self._memory()
        if not self._flush.step(txn, self._database, now_us):
            return False
        run, self._flush = self._flush.target, None
        if run.segments:
            self._known[run.number] = run
            self._store(txn, [*self._manifest(txn)[0], (run.number, run.level, run.segments)])
        return True

    @property
    def merging(self) -> bool:
        """There is something to merge or to delete."""
        return self._merge is not None or bool(self._dropped)

    def merge_step(self, txn: WriteTransaction, now_us: int) -> None:
        """One bounded step of deleting what was merged, or of merging the runs of a level."""
        self._before = self._memory()
        if self._dropped:
            if delete_some(txn, self._database, self._dropped[0], _SEGMENTS_DELETED_A_STEP, RUNS_PREFIX):
                self._known.pop(self._dropped.pop(0), None)
        elif self._merge is not None:
            merge, replaced = self._merge
            if merge.step(txn, self._database, now_us):
                self._merge = None
                self._replace(txn, merge.target, replaced, now_us)

    def _replace(self, txn: WriteTransaction, run: SortedRun, replaced: Sequence[int], now_us: int) -> None:
        stored = [row for row in self._manifest(txn)[0] if row[0] not in replaced]
        if run.segments:
            self._known[run.number] = run
            stored.append((run.number, run.level, run.segments))
        self._store(txn, stored)
        self._dropped += replaced
        self.choose(txn, now_us)

    def clean(self, txn: WriteTransaction, now_us: int) -> None:
        """A step that drops runs that have expired, and begins to write one anew without what has."""
        self._before = self._memory()
        self.choose(txn, now_us)

    def choose(self, txn: WriteTransaction, now_us: int) -> None:
        """Drop runs that retention has passed by or that have expired, and begin to merge a level of FANOUT runs; or to
        write one anew of which a part has expired."""
        if self._merge is not None:
            return
        stored = self._manifest(txn)[0]
        # A reader of an older snapshot may have brought back what was forgotten.
        for number in set(self._known).difference([run for run, _, _ in stored], self._dropped):
            self._known.pop(number, None)
        oldest_us = self._oldest_us(txn)
        runs = {row: self._run(txn, row) for row in stored}
        gone = [row for row in stored if runs[row].low_max < oldest_us or runs[row].high_max < now_us]
        if gone:
            stored = [row for row in stored if row not in gone]
            self._store(txn, stored)
            self._dropped += [run for run, _, _ in gone]
        for level, count in sorted(Counter([level for _, level, _ in stored]).items()):
            if count >= FANOUT:
                own = [row for row in stored if row[1] == level]
                merge = Merge(
                    self._new_run(level + 1),
                    [runs[row] for row in own],
                    self._still_wanted,
                    self._segment_rows,
                    by_seq=True,
                )
                self._merge = (merge, [run for run, _, _ in own])
                return
        for row in stored:
            if _stale(runs[row], now_us):
                target = self._new_run(row[1])
                self._merge = (
                    Merge(target, [runs[row]], self._still_wanted, self._segment_rows, by_seq=True),
                    [row[0]],
                )
                return

    # look-up

    def _run(self, txn: AnyTransaction, row: tuple[int, int, int]) -> SortedRun:
        number, level, segments = row
        run = self._known.get(number)
        if run is None:
            run = SortedRun(number, level, RUNS_PREFIX)
            run.load(txn, self._database, segments)
            self._known[number] = run
        return run

    def rows(self, txn: AnyTransaction, topic_ids: U64, first: int, last: int, most: int) -> LookUp:
        """The rows of topics (ids in order, of one group) at offsets from `first` to `last`, `most` of each a run.

        Copies: they outlive the transaction. They are all there up to offset `upto` of the answer.
        """
        if len(topic_ids) == 1:
            return self._rows_of(txn, topic_ids[0], first, last, most)
        found: list[RowColumns] = []
        upto, touched = last, 0
        for row in self._manifest(txn)[0]:
            run = self._run(txn, row)
            taken = np.zeros(len(topic_ids), np.int64)
            for number, own in run.segments_with(topic_ids, first):
                left = most - taken[own]
                if not left.any():
                    continue
                touched += 1
                part = run.segment(txn, self._database, number)
                starts, ends = _between(part, topic_ids[own], first, last)
                counts = np.minimum(ends - starts, left)
                taken[own] += counts
                full = (counts == left) & (counts > 0)
                if full.any():
                    upto = min(upto, int(part.seq[(starts + counts)[full] - 1].min()))
                if counts.any():
                    found.append(part.take(row_places(starts, counts)))
        return LookUp(joined(found), upto, touched)

    def _rows_of(self, txn: AnyTransaction, topic_id: np.uint64, first: int, last: int, most: int) -> LookUp:
        """The same of one topic, without the arithmetic of many."""
        found: list[RowColumns] = []
        upto, touched = last, 0
        for row in self._manifest(txn)[0]:
            run, left = self._run(txn, row), most
            for number in run.segments_of(topic_id, first):
                touched += 1
                part = run.segment(txn, self._database, number)
                start, end = _between_of(part, topic_id, first, last)
                end = min(end, start + left)
                if start < end:
                    found.append(part.slice(start, end).copy())
                    left -= end - start
                if not left:
                    upto = min(upto, int(part.seq[end - 1]))
                    break
        return LookUp(joined(found), upto, touched)

    def last_rows(self, txn: AnyTransaction, topic_id: int, before: int, most: int) -> RowColumns:
        """The last rows of a topic at offsets below `before`, oldest first: `most` of them, or all there are.

        Copies. The youngest runs are looked at first: most often they have it all.
        """
        wanted = np.uint64(topic_id)
        found = empty()
        for row in sorted(self._manifest(txn)[0], key=lambda row: (row[1], -row[0])):
            run = self._run(txn, row)
            # What lies at or before this is not among the last ones.
            above = int(found.seq[-most]) + 1 if found.size >= most else 0
            parts, left = [], most
            for number in reversed(run.segments_of(wanted, above)):
                part = run.segment(txn, self._database, number)
                start, end = _between_of(part, wanted, above, before - 1)
                start = max(start, end - left)
                parts.append(part.slice(start, end).copy())
                left -= end - start
                if left <= 0:
                    break
            found = in_offset_order([found, *parts[::-1]])
            found = found.from_row(max(0, found.size - most))
        return found

    def bare(self, txn: AnyTransaction, topic_ids: Sequence[int], lasts: Sequence[int]) -> list[bool]:
        """Of each topic: no row of it lies beyond that offset. At most one segment a run and topic is looked at."""
        wanted, beyond = np.array(topic_ids, np.uint64), np.array(lasts, np.int64)
        bare = np.ones(len(wanted), np.bool_)
        # The youngest run first: most topics that live are found there.
        for row in reversed(self._manifest(txn)[0]):
            if not bare.any():
                break
            run = self._run(txn, row)
            first, last, _ = run.fences()
            segment = np.searchsorted(first, wanted, "right") - 1
            there = bare & (segment >= 0)
            there[there] = last[segment[there]] >= wanted[there]
            for number in set(segment[there].tolist()):
                part = run.segment(txn, self._database, number)
                own = np.flatnonzero(there & (segment == number))
                end = np.searchsorted(part.key, wanted[own], "right") - 1
                found = (part.key[end] == wanted[own]) & (part.seq[end].astype(np.int64) > beyond[own])
                bare[own[found]] = False
        return bare.tolist()
