"""Sorted runs on LMDB: segments under (run u32, number u32), so a run is appended in order and read in order.

A run is written in bounded steps (one segment a step) and comes to life in the transaction that stores its last
segment and the manifest that names it; what a crash leaves of an unfinished one is deleted at the next opening. A run
that has expired as a whole is dropped unread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import lmdb
import numpy as np

from ..file.sealing import DamageError, unpacked
from ..file.table import AnyTransaction, Database, WriteTransaction
from .manifest import Manifest
from .rows import (
    I64,
    U64,
    Answer,
    BoundedQueries,
    Bounds,
    Matches,
    Question,
    RowColumns,
    bounded_queries,
    bounds_of,
    find,
    probe,
)
from .segments import encode_segment, segment_rows, verified_segment_head

_KEY: Final = struct.Struct(">II")


def segment_key(run: int, number: int) -> bytes:
    """The key of a segment."""
    return _KEY.pack(run, number)


def parse_segment_key(key: bytes | memoryview) -> tuple[int, int]:
    """(run, number) of a segment's key. Raises DamageError."""
    run, number = unpacked(_KEY, key, "runs")
    return run, number


class SortedRun:
    """A run on disk and, in memory, where its segments begin: 24 bytes a segment of 16,384 rows."""

    # A merge looks at a segment as a whole.
    window: Final = 2**63

    def __init__(self, number: int, level: int, prefix: bytes = b"") -> None:
        self.number = number
        self._prefix = prefix
        self.level = level
        self.rows = 0
        self.segments = 0
        self._first: list[int] = []
        self._last: list[int] = []
        self._bounds: list[Bounds] = []
        self._verified: set[int] = set()
        self._fences: tuple[U64, U64, I64] | None = None

    def append(self, txn: WriteTransaction, database: Database, rows: RowColumns) -> None:
        """Write the next segment."""
        key = self._prefix + segment_key(self.number, self.segments)
        # A run that a younger one has overtaken (a flush during a merge) is no longer last, and MDB_APPEND refuses.
        if not txn.put(key, value := encode_segment(rows), db=database, append=_is_last(txn, database, key)):
            raise DamageError("runs", -1, -1, f"segment {self.segments} of run {self.number} is already there")
        del value
        self._verified.add(self.segments)
        self._note(rows, bounds_of(rows))

    def _note(self, rows: RowColumns, bounds: Bounds) -> None:
        self._first.append(int(rows.key[0]))
        self._last.append(int(rows.key[-1]))
        self._bounds.append(bounds)
        self.rows += rows.size
        self.segments += 1
        self._fences = None

    def load(self, txn: AnyTransaction, database: Database, segments: int) -> None:
        """Note the segments of a run that the manifest names. Raises DamageError when one is missing or torn."""
        for number in range(segments):
            value = self._value(txn, database, number)
            self._note(segment_rows(value, verify=False), verified_segment_head(value).bounds)

    def _value(self, txn: AnyTransaction, database: Database, number: int) -> memoryview:
        value = txn.get(self._prefix + segment_key(self.number, number), None, database)
        if value is None:
            raise DamageError("runs", -1, -1, f"segment {number} of run {self.number} is missing")
        return memoryview(value)

    def segment(self, txn: AnyTransaction, database: Database, number: int) -> RowColumns:
        """The rows of a segment, in place; its checksum is compared the first time. Raises DamageError."""
        try:
            rows = segment_rows(self._value(txn, database, number), number not in self._verified)
        except DamageError as error:
            raise DamageError("runs", self.number, number, error.what) from None
        self._verified.add(number)
        return rows

    @property
    def high_max(self) -> int:
        """When the last of its rows expires."""
        return max([bounds.high_max for bounds in self._bounds])

    @property
    def high_min(self) -> int:
        """When the first of its rows expires."""
        return min([bounds.high_min for bounds in self._bounds])

    @property
    def low_max(self) -> int:
        """The latest `low` of its rows."""
        return max([bounds.low_max for bounds in self._bounds])

    def segments_with(self, keys: U64, seq_min: int) -> Iterator[tuple[int, slice]]:
        """The segments that may hold rows of one of `keys` (in order) with `seq_min` or more, each with the keys that
        it may hold."""
        first, last, _ = self.fences()
        start, end = np.searchsorted(keys, first, "left"), np.searchsorted(keys, last, "right")
        for number in np.flatnonzero(start < end).tolist():
            if self._bounds[number].seq_max >= seq_min:
                yield number, slice(int(start[number]), int(end[number]))

    def segments_of(self, key: np.uint64, seq_min: int) -> list[int]:
        """The segments that may hold rows of one key with `seq_min` or more."""
        first, last, _ = self.fences()
        numbers = range(int(last.searchsorted(key)), int(first.searchsorted(key, "right")))
        return [number for number in numbers if self._bounds[number].seq_max >= seq_min]

    def fences(self) -> tuple[U64, U64, I64]:
        """First key, last key and last expiry of each segment."""
        if self._fences is None:
            self._fences = (
                np.array(self._first, np.uint64),
                np.array(self._last, np.uint64),
                np.array([bounds.high_max for bounds in self._bounds], np.int64),
            )
        return self._fences

    def probe(self, txn: AnyTransaction, database: Database, asking: BoundedQueries) -> Iterator[Matches]:
        """The answers that this run holds; only segments that may hold one are touched."""
        queries = asking.queries
        first, last, high_max = self.fences()
        start = np.searchsorted(queries.key, first, "left")
        end = np.searchsorted(queries.key, last, "right")
        for number in np.flatnonzero((start < end) & (high_max >= asking.valid_at_min)):
            own = bounded_queries(queries.slice(int(start[number]), int(end[number])))
            found = probe(self.segment(txn, database, int(number)), self._bounds[number], own)
            if found is not None:
                yield found

    def find(self, txn: AnyTransaction, database: Database, asked: Question, found: list[Answer]) -> None:
        """Add the answers to one question that this run holds to `found`."""
        first, last, _ = self.fences()
        wanted = np.uint64(asked.key)
        for number in range(int(last.searchsorted(wanted)), int(first.searchsorted(wanted, "right"))):
            if self._bounds[number].high_max >= asked.valid_at:
                find(self.segment(txn, database, number), self._bounds[number], asked, found)


def _is_last(txn: WriteTransaction, database: Database, key: bytes) -> bool:
    with txn.cursor(database) as cursor:
        return not cursor.last() or bytes(cursor.key()) < key


def delete_some(txn: WriteTransaction, database: Database, run: int, limit: int, prefix: bytes = b"") -> bool:
    """Delete up to `limit` segments of a run; True when none is left."""
    start = prefix + segment_key(run, 0)
    with txn.cursor(database) as cursor:
        for _ in range(limit):
            if not cursor.set_range(start) or bytes(cursor.key())[: len(start) - 4] != start[:-4]:
                return True
            cursor.delete()
    return False


def drop_unfinished(cursor: lmdb.Cursor[memoryview], manifest: Manifest) -> None:
    """Have all runs deleted that the manifest does not name. Raises DamageError."""
    known = {run.number for run in manifest.runs} | set(manifest.dropped)
    with cursor:
        for key in cursor.iternext(values=False):
            run = parse_segment_key(key)[0]
            manifest.next_run = max(manifest.next_run, run + 1)
            if run not in known:
                known.add(run)
                manifest.dropped.append(run)
