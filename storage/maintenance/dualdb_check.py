"""The check of a stand-alone DualDB: every batch, every segment, the manifest, and that the runs are what it says.

Then the journal, which is read before the tables are: so what its owner moves meanwhile is in them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import Final

import lmdb
import numpy as np

from lexicast.cluster.errors import StoreError, StoreFormatError

from ..dualdb.batches import batch_head, decode_batch, undamaged, unverified_outline
from ..dualdb.environment import DUAL_FILE, ReadOnlyDual
from ..dualdb.journal import content_of, journal_bytes
from ..dualdb.manifest import read_manifest
from ..dualdb.runs import parse_segment_key
from ..dualdb.segments import segment_rows
from ..file.sealing import DamageError
from ..file.table import AnyTransaction, Database
from .check import DAMAGES_MAX, CheckReport, Damage

DUAL_TABLES: Final = ("batches", "runs", "meta")


class DualChecker:
    """One walk."""

    def __init__(self, store: ReadOnlyDual, directory: Path, journal: bytes) -> None:
        self._store = store
        self._journal = journal
        self._tables = dict(zip(DUAL_TABLES, store.tables, strict=True))
        self._directory = directory
        self._damages: list[Damage] = []
        self._batches = self._operations = self._rows = 0
        self._segments: dict[int, int] = {}

    def run(self, begun: Callable[[str], None], skip: Collection[str]) -> CheckReport:
        """Walk all tables but `skip`, then the journal where they say what follows.

        Each table is told to `begun` before anything of it is read: damaged pages of it may end the process.
        """
        following = None if {"batches", "meta"} & set(skip) else self._following(begun)
        looks: dict[str, Callable[[bytes, memoryview], None]] = {"batches": self._batch, "runs": self._segment}
        for name, look in looks.items():
            if name not in skip:
                begun(name)
                self._walk(name, look)
        if "meta" not in skip:
            begun("meta")
            self._manifest("runs" not in skip)
        if following is not None:
            self._look_at_journal(following)
        return CheckReport(self._batches, self._operations, self._rows, self._damages)

    def _note(self, table: str, at: int, what: str) -> None:
        if len(self._damages) < DAMAGES_MAX:
            self._damages.append(Damage(table, -1, at, what))

    def _walk(self, name: str, look: Callable[[bytes, memoryview], None]) -> None:
        after: bytes | None = None
        while True:
            try:
                with self._store.begin() as txn, txn.cursor(self._tables[name]) as cursor:
                    # One value a transaction: a segment or a batch is large enough, and an old snapshot costs pages.
                    if not (cursor.first() if after is None else cursor.set_range(after + b"\0")):
                        return
                    after = bytes(cursor.key())
                    look(after, cursor.value())
            except lmdb.Error as error:
                self._note(name, -1, f"the tree of this table is damaged: {error}")
                return
            except DamageError as error:
                self._note(name, error.offset, error.what)
            except (StoreError, ValueError) as error:
                self._note(name, -1, f"{after!r}: {error}")

    def _following(self, begun: Callable[[str], None]) -> int | None:
        """The operation after the last one in the tables; None when that cannot be told."""
        try:
            with self._store.begin() as txn:
                begun("meta")
                flushed = read_manifest(txn, self._tables["meta"], self._directory).flushed
                begun("batches")
                return max(flushed, _after_last(txn, self._tables["batches"]))
        except (StoreError, lmdb.Error):
            return None  # the walk says what is wrong

    def _look_at_journal(self, following: int) -> None:
        for entry in content_of(self._journal, following).entries:
            self._batches += entry.whole
            self._operations += entry.operations
            if not entry.whole:
                self._note("journal", entry.first, "an entry of the journal is damaged")

    def _batch(self, key: bytes, value: memoryview) -> None:
        first = int.from_bytes(key, "big")
        self._batches += 1
        head = batch_head(value, first)
        if head.first != first:
            raise DamageError("batches", -1, first, f"the batch says it begins with operation {head.first}")
        self._operations += head.operations
        for at in np.flatnonzero(~undamaged(value, head, decode_batch(value, head))).tolist():
            self._note("batches", first + at, "the operation does not match its checksum")

    def _segment(self, key: bytes, value: memoryview) -> None:
        run, number = parse_segment_key(key)
        self._segments[run] = self._segments.get(run, 0) + 1
        try:
            rows = segment_rows(value, verify=True)
        except DamageError as error:
            raise DamageError("runs", -1, number, f"run {run}: {error.what}") from None
        self._rows += rows.size
        if bool((rows.key[1:] < rows.key[:-1]).any()):
            raise DamageError("runs", -1, number, f"run {run}: the rows are not in order")

    def _manifest(self, compare: bool) -> None:
        try:
            with self._store.begin() as txn:
                manifest = read_manifest(txn, self._tables["meta"], self._directory)
        except (StoreFormatError, lmdb.Error) as error:
            self._note("meta", -1, str(error))
            return
        for run in manifest.runs if compare else []:
            found = self._segments.get(run.number, 0)
            if found != run.segments:
                self._note("runs", -1, f"run {run.number} has {found} segments, the manifest says {run.segments}")


def _after_last(txn: AnyTransaction, batches: Database) -> int:
    """The operation after the last one of all batches; 0 when there is none. Raises DamageError."""
    with txn.cursor(batches) as cursor:
        if not cursor.last():
            return 0
        first = int.from_bytes(cursor.key(), "big")
        return first + unverified_outline(memoryview(cursor.value()), first).operations


def check_dual(directory: Path, begun: Callable[[str], None], skip: Collection[str]) -> CheckReport:
    """Walk the DualDB in `directory`; a report counts batches, operations and rows. Raises StoreFormatError."""
    journal = journal_bytes(directory)
    with closing(ReadOnlyDual(directory)) as store:
        expected = (store.lmdb.info()["last_pgno"] + 1) * store.lmdb.stat()["psize"]
        found = (directory / DUAL_FILE).stat().st_size
        if found < expected:
            return CheckReport(0, 0, 0, [Damage("file", -1, -1, f"{expected - found} of {expected} bytes are cut off")])
        return DualChecker(store, directory, journal).run(begun, skip)
