"""The repair of a stand-alone DualDB: a new file with every undamaged operation, row and payload of the old one.

A damaged operation of a batch is LOST: it keeps its number, so the others keep theirs. Damaged rows are left out of
their segment. Without a manifest the runs cannot be told from remains of merges: all rows are taken once by their
number, in memory (40 bytes each), and operations of every batch are entered again; expired and unsubscribed ones may
come back for as long as their own times say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import lmdb
import numpy as np

from lexicast.cluster.errors import LexicastError, StoreError, StoreFormatError

from ..dualdb.batches import batch_head, salvaged
from ..dualdb.environment import DUAL_FILE, new_dual_environment
from ..dualdb.journal import content_of, journal_bytes
from ..dualdb.manifest import MANIFEST, TOMBSTONES, Manifest, RunRow, pack_manifest, unpack_manifest
from ..dualdb.rows import joined, sorted_rows
from ..dualdb.runs import parse_segment_key, segment_key
from ..dualdb.segments import encode_segment, salvaged_rows, segment_rows
from ..file.disk import disk_is_full
from ..file.sealing import DamageError, unseal
from .check import DAMAGES_MAX, CheckReport, Damage
from .dualdb_check import DUAL_TABLES
from .salvage import Progress, Salvage, Writer, no_progress

_SEGMENT_ROWS = 16_384
_BATCH_KEY_BYTES = 8


class DualRepair:
    """One repair, from the file in `directory` to the directory `new`."""

    def __init__(self, directory: Path, new: Path, progress: Progress) -> None:
        self._directory = directory
        self._salvage = Salvage(directory / DUAL_FILE, progress)
        size = (directory / DUAL_FILE).stat().st_size
        self._writer = Writer(new, partial(new_dual_environment, new), DUAL_TABLES, size)
        self._damages: list[Damage] = []
        self._named: Counter[str] = Counter()
        self._operations = self._batches = self._rows = 0

    def run(self) -> CheckReport:
        """Copy everything."""
        whole = False
        try:
            for name in DUAL_TABLES:
                for key, value in self._salvage.rows(name):
                    if not self._take(name, key, value) and not self._take_stray(key, value):
                        self._lost(name, key)
            for key, value in self._salvage.strays(DUAL_TABLES):
                self._take_stray(key, value)
            self._tell()
            manifest = self._manifest()
            flushed = self._gather_runs() if manifest is None else self._settle_runs(manifest)
            self._take_journal(flushed)
            whole = True
        finally:
            self._salvage.close()
            self._writer.close(whole)
        return CheckReport(self._batches, self._operations, self._rows, self._damages)

    def _note(self, table: str, offset: int, what: str) -> None:
        if len(self._damages) < DAMAGES_MAX:
            self._damages.append(Damage(table, -1, offset, what))

    def _lost(self, table: str, key: bytes) -> None:
        self._named[table] += 1
        if table == "batches" and len(key) == _BATCH_KEY_BYTES:
            self._note(table, int.from_bytes(key, "big"), "the batch is lost")
        else:
            self._note(table, -1, f"the row {key[:32]!r} is lost")

    def _tell(self) -> None:
        for name in DUAL_TABLES:
            entries, kept = self._salvage.entries(name), self._writer.entries(name)
            if entries is None:
                self._note(name, -1, f"an unknown number of rows is lost, {kept} were found")
            elif entries > kept + self._named[name]:
                self._note(name, -1, f"{entries - kept - self._named[name]} of {entries} rows are lost")
        if not self._salvage.free_known:
            self._note("file", -1, "the list of free pages is damaged: rows that were deleted may have come back")

    # taking rows

    def _take(self, table: str, key: bytes, value: bytes) -> bool:
        """Take what is undamaged of a row; False when nothing of it can be told."""
        if table == "batches":
            return self._take_batch(key, value)
        return self._take_segment(key, value) if table == "runs" else self._take_meta(key, value)

    def _take_stray(self, key: bytes, value: bytes) -> bool:
        """Take a row that is whole, whatever table it is of."""
        first = int.from_bytes(key, "big") if len(key) == _BATCH_KEY_BYTES else -1
        with suppress(LexicastError):
            if batch_head(memoryview(value), first).first == first:
                return self._take_batch(key, value)
        with suppress(LexicastError):
            segment_rows(memoryview(value), verify=True)
            return self._take_segment(key, value)
        return self._take_meta(key, value)

    def _take_batch(self, key: bytes, value: bytes) -> bool:
        first = int.from_bytes(key, "big")
        kept, lost = salvaged(memoryview(value), first)
        if kept is None or len(key) != _BATCH_KEY_BYTES:
            return False
        if self._writer.get("batches", key) is None:
            for seq in lost:
                self._note("batches", seq, "the operation is lost")
            self._batches += 1
            self._operations += batch_head(memoryview(kept), first).operations - len(lost)
            self._writer.put("batches", key, kept)
        return True

    def _take_segment(self, key: bytes, value: bytes) -> bool:
        try:
            run, number = parse_segment_key(key)
        except DamageError:
            return False
        try:
            segment_rows(memoryview(value), verify=True)
        except DamageError:
            rows = salvaged_rows(memoryview(value))
            self._note("runs", number, f"run {run}: rows of this segment are lost")
            value = encode_segment(rows) if rows.size else b""
        if value and self._writer.get("runs", key) is None:
            self._writer.put("runs", key, value)
        return True

    def _take_meta(self, key: bytes, value: bytes) -> bool:
        if key not in (MANIFEST, TOMBSTONES):
            return False
        try:
            unseal("meta", key, value)
        except DamageError:
            return False
        if self._writer.get("meta", key) is None:
            self._writer.put("meta", key, value)
        return True

    # runs

    def _manifest(self) -> Manifest | None:
        row = self._writer.get("meta", MANIFEST)
        if row is None:
            return None if self._salvage.entries("meta") != 0 else Manifest()
        try:
            return unpack_manifest(bytes(row), self._directory)
        except StoreFormatError as error:
            self._note("meta", -1, str(error))
            return None

    def _segments(self) -> Iterator[tuple[int, bytes, memoryview]]:
        for key, value in self._writer.rows("runs"):
            yield parse_segment_key(key)[0], key, value

    def _settle_runs(self, manifest: Manifest) -> int:
        """Leave the runs that count, their segments numbered without a gap; what the manifest says is flushed."""
        counts = {run.number: 0 for run in manifest.runs}
        for run, key, value in self._segments():
            if run not in counts:
                self._writer.delete("runs", key)
                continue
            self._rows += segment_rows(value, verify=False).size
            wanted = segment_key(run, counts[run])
            counts[run] += 1
            if key != wanted:
                kept = bytes(value)
                self._writer.delete("runs", key)
                self._writer.put("runs", wanted, kept)
        for row in manifest.runs:
            if counts[row.number] < row.segments:
                lost = row.segments - counts[row.number]
                self._note("runs", -1, f"{lost} segments of run {row.number} are lost")
        manifest.runs = [RunRow(r.number, r.level, counts[r.number]) for r in manifest.runs if counts[r.number]]
        manifest.dropped = []
        self._writer.put("meta", MANIFEST, pack_manifest(manifest))
        return manifest.flushed

    def _gather_runs(self) -> int:
        found = []
        for _, key, value in self._segments():
            found.append(segment_rows(memoryview(bytes(value)), verify=False))
            self._writer.delete("runs", key)
        rows = joined(found)
        rows = sorted_rows(rows.take(np.unique(rows.seq, return_index=True)[1]))
        # Whatever a batch still holds is entered from it; rows of older batches come from the runs.
        first = next(self._writer.rows("batches"), None)
        oldest = int(rows.seq.max(initial=0)) + 1 if first is None else int.from_bytes(first[0], "big")
        rows = rows.take(rows.seq < oldest)
        segments = [rows.slice(at, at + _SEGMENT_ROWS) for at in range(0, rows.size, _SEGMENT_ROWS)]
        manifest = Manifest(flushed=oldest, next_run=2)
        if segments:
            for number, part in enumerate(segments):
                self._writer.put("runs", segment_key(1, number), encode_segment(part))
            self._rows += rows.size
            manifest.runs = [RunRow(1, 0, len(segments))]
            manifest.until_us = int(rows.high.max())
        self._writer.put("meta", MANIFEST, pack_manifest(manifest))
        return oldest

    # the journal

    def _take_journal(self, flushed: int) -> None:
        """Make batches of what the journal holds beyond the tables."""
        following = flushed
        for key, value in self._writer.rows("batches"):
            first = int.from_bytes(key, "big")
            following = max(following, first + batch_head(memoryview(value), first).operations)
        for entry in content_of(journal_bytes(self._directory), following).entries:
            key = entry.first.to_bytes(_BATCH_KEY_BYTES, "big")
            if not entry.value or not self._take_batch(key, entry.value):
                self._note("journal", entry.first, "an entry of the journal is lost")


def repair_dual(directory: Path, new: Path, progress: Progress = no_progress) -> CheckReport:
    """Write a repaired DualDB into the directory `new`; what was lost is in the report. Raises StoreError, OSError."""
    try:
        return DualRepair(directory, new, progress).run()
    except lmdb.Error as error:
        if disk_is_full(new, error) or isinstance(error, lmdb.MapFullError):
            raise StoreError(f"there is no room for a repaired copy beside {directory}: make some") from None
        raise StoreFormatError(f"{directory} cannot be repaired ({error}): restore a backup") from None
