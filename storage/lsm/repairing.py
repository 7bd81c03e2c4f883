"""Repairing a stand-alone DualDB: a new file with every undamaged operation, row and payload of the old one.

A damaged operation of a batch is LOST: it keeps its number, so the others keep theirs. Damaged rows are left out of
their segment. Without a manifest the runs cannot be told from remains of merges: all rows are taken once by their
number, and operations of every batch are entered again; expired and unsubscribed ones may come back for as long as
their own times say.
"""

from __future__ import annotations

from pathlib import Path

import lmdb
import numpy as np

from lexicast.cluster.errors import StoreFormatError

from ..check import Damage, Report
from ..format import DamageError, unseal
from ..options import GIB
from ..salvage import rows as salvaged_pairs
from .batches import batch_head, salvaged
from .home import DUAL_FILE, GRAVES, MANIFEST, Manifest, RunRow, open_lmdb, open_tables, read_manifest, write_manifest
from .rows import Rows, joined, sorted_rows
from .runs import parse_segment_key, segment_key
from .segments import encode_segment, salvaged_rows, segment_rows

_SEGMENT_ROWS = 16_384


class DualRepair:
    """One repair, from the file in `directory` to the directory `new`."""

    def __init__(self, directory: Path, new: Path) -> None:
        self._file = directory / DUAL_FILE
        self._directory = directory
        self._scratch = new / "scratch"
        self._environment = open_lmdb(new, 64 * GIB)
        self._batches, self._runs, self._meta = open_tables(self._environment, new)
        self._damages: list[Damage] = []
        self._lines: list[str] = []
        self._operations = self._kept = self._rows = 0

    def run(self) -> Report:
        """Copy everything."""
        manifest = self._copy_meta()
        self._copy_batches()
        if manifest is None:
            self._gather_runs()
        else:
            self._copy_runs(manifest)
        self._environment.close()
        self._scratch.unlink(missing_ok=True)
        self._damages += [Damage(line.partition(":")[0], -1, -1, line.partition(": ")[2]) for line in self._lines]
        return Report(self._kept, self._operations, self._rows, self._damages)

    def _copy_meta(self) -> Manifest | None:
        kept = dict(salvaged_pairs(self._file, "meta", self._scratch, self._lines))
        with self._environment.begin(write=True) as txn:
            for key, value in kept.items():
                txn.put(key, value, db=self._meta)
            try:
                if GRAVES in kept:
                    unseal("meta", GRAVES, kept[GRAVES])
            except DamageError as error:
                self._damages.append(Damage("meta", -1, -1, f"graves: {error.what}"))
                txn.delete(GRAVES, db=self._meta)
            try:
                return read_manifest(txn, self._meta, self._directory) if MANIFEST in kept else None
            except StoreFormatError as error:
                self._damages.append(Damage("meta", -1, -1, str(error)))
                txn.delete(MANIFEST, db=self._meta)
                return None

    def _copy_batches(self) -> None:
        for key, value in salvaged_pairs(self._file, "batches", self._scratch, self._lines):
            first = int.from_bytes(key, "big")
            kept, lost = salvaged(memoryview(value), first)
            self._damages += [Damage("batches", -1, seq, "the operation is lost") for seq in lost]
            if kept is None:
                self._damages.append(Damage("batches", -1, first, "the batch is lost"))
                continue
            self._kept += 1
            self._operations += batch_head(memoryview(kept), first).operations - len(lost)
            with self._environment.begin(write=True) as txn:
                txn.put(key, kept, db=self._batches)

    def _segments(self) -> dict[int, list[Rows]]:
        """The undamaged rows of each run, segment by segment."""
        found: dict[int, list[Rows]] = {}
        for key, value in salvaged_pairs(self._file, "runs", self._scratch, self._lines):
            try:
                run, number = parse_segment_key(key)
            except DamageError as error:
                self._damages.append(Damage("runs", -1, -1, f"a segment is lost: {error.what}"))
                continue
            try:
                rows = segment_rows(memoryview(value), verify=True)
            except DamageError:
                rows = salvaged_rows(memoryview(value))
                self._damages.append(Damage("runs", -1, number, f"run {run}: rows of this segment are lost"))
            found.setdefault(run, []).append(rows)
        return found

    def _copy_runs(self, manifest: Manifest) -> None:
        found = self._segments()
        runs = []
        for row in manifest.runs:
            parts = [rows for rows in found.get(row.number, []) if rows.size]
            if len(parts) < row.segments:
                lost = row.segments - len(parts)
                self._damages.append(Damage("runs", -1, -1, f"{lost} segments of run {row.number} are lost"))
            if parts:
                self._write_run(row.number, parts)
                runs.append(RunRow(row.number, row.level, len(parts)))
        manifest.runs, manifest.dropped = runs, []
        with self._environment.begin(write=True) as txn:
            write_manifest(txn, self._meta, manifest)

    def _gather_runs(self) -> None:
        parts = [rows for segments in self._segments().values() for rows in segments]
        rows = joined(parts)
        rows = sorted_rows(rows.take(np.unique(rows.seq, return_index=True)[1]))
        # Whatever a batch still holds is entered from it; rows of older batches come from the runs.
        with self._environment.begin() as txn, txn.cursor(self._batches) as cursor:
            oldest = int.from_bytes(cursor.key(), "big") if cursor.first() else int(rows.seq.max(initial=0)) + 1
        rows = rows.take(rows.seq < oldest)
        segments = [rows.slice(at, at + _SEGMENT_ROWS) for at in range(0, rows.size, _SEGMENT_ROWS)]
        manifest = Manifest(flushed=oldest, next_run=2)
        if segments:
            self._write_run(1, segments)
            manifest.runs = [RunRow(1, 0, len(segments))]
            manifest.until_us = int(rows.high.max())
        with self._environment.begin(write=True) as txn:
            write_manifest(txn, self._meta, manifest)

    def _write_run(self, run: int, parts: list[Rows]) -> None:
        for number, rows in enumerate(parts):
            self._rows += rows.size
            with self._environment.begin(write=True) as txn:
                txn.put(segment_key(run, number), encode_segment(rows), db=self._runs)


def repair_dual(directory: Path, new: Path) -> Report:
    """Write a repaired DualDB into the directory `new`; what was lost is in the report. Raises StoreError."""
    try:
        return DualRepair(directory, new).run()
    except lmdb.Error as error:
        raise StoreFormatError(f"{directory} cannot be repaired ({error}): restore a backup") from None
