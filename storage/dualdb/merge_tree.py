"""The merge tree that holds the lists of all IDs: a memory table in front, sorted runs behind it, and the work between.

    added    -> active tiers                       answers from memory
    freeze   -> frozen tiers                       answer from memory while they are merged, a segment a step
    flush    -> a run of level 0
    merge    -> `runs_fanout` runs of a level become one of the next

The work is done in bounded steps inside the transactions of commits, so it costs no fsync of its own and holds up a
commit for at most a few segments' time. A memory table that fills faster than that is written before the next batch is
taken: memory stays bounded.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import Final

import numpy as np

from ..file.sealing import DamageError, seal, unpacked_head, unseal
from ..file.table import AnyTransaction, WriteTransaction
from .environment import DualEnvironment
from .manifest import TOMBSTONES, Manifest, RunRow, write_manifest
from .merging import Merge, in_memory
from .options import DualOptions
from .rows import (
    I64,
    ROW_BYTES,
    Answer,
    Matches,
    Queries,
    Question,
    RowColumns,
    bounded_queries,
    joined_matches,
)
from .runs import SortedRun, delete_some
from .tiers import Tiers
from .tombstones import Tombstones

_SEGMENTS_DELETED_A_STEP: Final = 8
_COUNT = struct.Struct("<Q")


class MergeTree:
    """See the module's docstring. One thread."""

    def __init__(self, environment: DualEnvironment, options: DualOptions, manifest: Manifest) -> None:
        self._environment = environment
        self._options = options
        self._manifest = manifest
        self._active = Tiers()
        self._frozen: Tiers | None = None
        self._frozen_below = 0
        # Rows and tombstones since the last freeze, expired ones included: what a crash costs to enter again.
        self._entered = 0
        self._flush: Merge | None = None
        # With the runs that it replaces, and the number before which it applies all tombstones.
        self._merge: tuple[Merge, list[SortedRun], int] | None = None
        self._runs: list[SortedRun] = []
        self.tombstones = Tombstones()

    def load(self, txn: AnyTransaction) -> None:
        """Take up the runs and tombstones that the manifest names. Raises DamageError."""
        for row in self._manifest.runs:
            run = SortedRun(row.number, row.level)
            run.load(txn, self._environment.runs, row.segments)
            self._runs.append(run)
        stored = txn.get(TOMBSTONES, None, self._environment.meta)
        if stored is not None:
            self.tombstones = Tombstones(_unpack_rows(unseal("meta", TOMBSTONES, stored)))

    # memory

    def add(self, rows: RowColumns, now_us: int) -> None:
        """Enter sorted rows that are durable in the log."""
        self._entered += rows.size
        if rows.size:
            self._active.add(rows, now_us)

    def add_tombstones(self, tombstones: RowColumns) -> None:
        """Enter tombstones that are durable in the log."""
        self._entered += tombstones.size
        self.tombstones.add(tombstones)

    @property
    def memory_rows(self) -> int:
        """Rows in memory, those being written included."""
        return self._active.rows + (0 if self._frozen is None else self._frozen.rows)

    @property
    def run_rows(self) -> int:
        """Rows in runs, expired ones included that no merge has met yet."""
        return sum([run.rows for run in self._runs])

    @property
    def runs(self) -> int:
        """How many runs a look-up asks."""
        return len(self._runs)

    @property
    def pending(self) -> bool:
        """Something has been entered that only the log holds."""
        return self._entered > 0 or self._frozen is not None

    @property
    def overdue(self) -> bool:
        """The memory table is full and the one before it not yet written."""
        return self._full and self._frozen is not None

    @property
    def _full(self) -> bool:
        return self._entered >= self._options.memory_rows_max

    def due(self) -> bool:
        """There is work to do."""
        return self._full or self._flush is not None or self._merge is not None or bool(self._manifest.dropped)

    def freeze(self, flushed: int, now_us: int) -> None:
        """Begin to write the memory table; operations before `flushed` are in it or in runs."""
        self._frozen = self._active
        self._frozen_below = flushed
        self._active = Tiers()
        self._entered = 0
        size = self._options.segment_rows
        self._flush = Merge(self._new_run(0), in_memory(self._frozen.parts(now_us), size), self._clean, size)

    def _new_run(self, level: int) -> SortedRun:
        self._manifest.next_run += 1
        return SortedRun(self._manifest.next_run - 1, level)

    # look-up

    def probe(self, queries: Queries) -> Matches:
        """All answers to one question or more; tombstones not yet applied."""
        asking = bounded_queries(queries)
        found: list[Matches] = []
        if self._runs:
            with self._environment.snapshot() as txn:
                for run in self._runs:
                    found += run.probe(txn, self._environment.runs, asking)
        if self._frozen is not None:
            found += self._frozen.probe(asking)
        found += self._active.probe(asking)
        return joined_matches(found)

    def find(self, asked: Question, found: list[Answer]) -> None:
        """Add the answers to one question to `found`; tombstones not yet applied."""
        if self._runs:
            with self._environment.snapshot() as txn:
                for run in self._runs:
                    run.find(txn, self._environment.runs, asked, found)
        if self._frozen is not None:
            self._frozen.find(asked, found)
        self._active.find(asked, found)

    # work behind

    def work(self, txn: WriteTransaction, flushed: int, now_us: int) -> DamageError | None:
        """One bounded step inside a commit's transaction; `flushed`: all operations before it have been added.

        The damage that a merge met is returned. `txn` is to be committed all the same: memory has followed it, with
        whole runs of steps before this one.
        """
        if self._manifest.dropped and delete_some(
            txn, self._environment.runs, self._manifest.dropped[0], _SEGMENTS_DELETED_A_STEP
        ):
            self._manifest.dropped.pop(0)
        if self._flush is None and self._full:
            self.freeze(flushed, now_us)
        if self._flush is not None:
            if self._flush.step(txn, self._environment.runs, now_us):
                self._complete_flush(txn, self._flush.target, now_us)
            return None
        if self._merge is None:
            self._choose_merge()
        try:
            if self._merge is not None and self._merge[0].step(txn, self._environment.runs, now_us):
                self._complete_merge(txn, now_us)
        except DamageError as error:  # a step reads before it changes anything: it stands where it stood
            return error
        return None

    def _complete_flush(self, txn: WriteTransaction, run: SortedRun, now_us: int) -> None:
        if run.segments:
            self._runs.append(run)
        self._flush = self._frozen = None
        self._manifest.flushed = self._frozen_below
        self._drop([run for run in self._runs if run.high_max < now_us and not self._merging(run)])
        self.tombstones.forget(now_us, 0 if self._runs else self._frozen_below)
        self._store(txn, now_us)

    def _merging(self, run: SortedRun) -> bool:
        return self._merge is not None and run in self._merge[1]

    def _choose_merge(self) -> None:
        if self._runs and self.tombstones.before(self._manifest.flushed) > self._options.tombstones_max:
            level = max([run.level for run in self._runs])
            self._begin_merge(level + 1, list(self._runs), self._manifest.flushed)
            return
        for level, count in sorted(Counter([run.level for run in self._runs]).items()):
            if count >= self._options.runs_fanout:
                self._begin_merge(level + 1, [run for run in self._runs if run.level == level], 0)
                return

    def _begin_merge(self, level: int, replaced: list[SortedRun], tombstones_below: int) -> None:
        merge = Merge(self._new_run(level), replaced, self._clean, self._options.segment_rows)
        self._merge = (merge, replaced, tombstones_below)

    def _clean(self, rows: RowColumns) -> RowColumns:
        return self.tombstones.apply(rows)

    def _complete_merge(self, txn: WriteTransaction, now_us: int) -> None:
        assert self._merge is not None
        merge, replaced, tombstones_below = self._merge
        self._merge = None
        if merge.target.segments:
            self._runs.append(merge.target)
        self._drop(replaced)
        self.tombstones.forget(now_us, tombstones_below)
        self._store(txn, now_us)

    def _drop(self, runs: list[SortedRun]) -> None:
        self._manifest.dropped += [run.number for run in runs]
        self._runs = [run for run in self._runs if run not in runs]

    def _store(self, txn: WriteTransaction, now_us: int) -> None:
        self._manifest.runs = [RunRow(run.number, run.level, run.segments) for run in self._runs]
        self._manifest.now_us = max(self._manifest.now_us, now_us)
        write_manifest(txn, self._environment.meta, self._manifest)
        txn.put(TOMBSTONES, seal("meta", TOMBSTONES, _pack_rows(self.tombstones.rows)), db=self._environment.meta)


def _pack_rows(rows: RowColumns) -> bytes:
    return b"".join((_COUNT.pack(rows.size), *[np.ascontiguousarray(column).data for column in rows]))


def _unpack_rows(data: bytes) -> RowColumns:
    count = unpacked_head(_COUNT, data, "meta")[0]
    if len(data) != _COUNT.size + ROW_BYTES * count:
        raise DamageError("meta", -1, -1, "the tombstones are cut short")
    columns = np.frombuffer(data, np.uint64, 5 * count, _COUNT.size).reshape(5, count)
    low: I64 = columns[2].view(np.int64)
    return RowColumns(columns[0], columns[1], low, columns[3].view(np.int64), columns[4])
