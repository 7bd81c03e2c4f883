"""Merges, between the commits, a segment a step: of the frozen memory table's tiers, and of runs.

Both bring sorted rows into a new run; expired rows and rows under tombstones are left out on the way. (Bringing the
whole memory table into order first held up a commit: 22 ms for 400,000 rows.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np

from ..file.table import AnyTransaction, Database, WriteTransaction
from .rows import RowColumns, joined, merged
from .runs import SortedRun

Cleaned = Callable[[RowColumns], RowColumns]

# Ends of segments that one step of a merge passes: where all of them have expired, it writes nothing and goes on later.
TAKES_A_STEP: Final = 8


class RowSource(Protocol):
    """Sorted rows in pieces."""

    @property
    def segments(self) -> int:
        """How many pieces."""
        ...

    @property
    def window(self) -> int:
        """How many rows of a piece are looked at at once."""
        ...

    def segment(self, txn: AnyTransaction, database: Database, number: int) -> RowColumns:
        """One of them."""
        ...


class InMemory:
    """A tier of the memory table as a source: one piece, of which `window` rows are looked at at once."""

    def __init__(self, rows: RowColumns, window: int) -> None:
        self._rows = rows
        self.window = window
        self.segments = 1

    def segment(self, txn: AnyTransaction, database: Database, number: int) -> RowColumns:
        """See `RowSource`."""
        del txn, database, number
        return self._rows


def in_memory(tiers: Sequence[RowColumns], segment_rows: int) -> list[RowSource]:
    """Tiers as sources whose windows span about the same keys, and are about a segment together."""
    total = max(1, sum([tier.size for tier in tiers]))
    return [InMemory(tier, -(-segment_rows * tier.size // total)) for tier in tiers if tier.size]


class _Input:
    """A source being merged: its current piece from row `at` on."""

    def __init__(self, source: RowSource) -> None:
        self.source = source
        self.number = 0
        self.at = 0
        self._size = 0

    @property
    def left(self) -> bool:
        """There is more."""
        return self.number < self.source.segments

    def ahead(self, txn: AnyTransaction, database: Database) -> RowColumns:
        """The next rows of the current piece."""
        rows = self.source.segment(txn, database, self.number)
        self._size = rows.size
        return rows.slice(self.at, min(rows.size, self.at + self.source.window))

    def passed(self, rows: int) -> None:
        """So many of them are taken."""
        self.at += rows
        if self.at == self._size:
            self.number, self.at = self.number + 1, 0


class Merge:
    """Several sources to one run, in key order, so many rows a step as make about one segment.

    With `by_seq`, rows of a key are in the order of their `seq`, in all runs and in the new one.
    """

    def __init__(
        self,
        target: SortedRun,
        sources: Sequence[RowSource],
        cleaned: Cleaned,
        segment_rows: int,
        by_seq: bool = False,
    ) -> None:
        self.target = target
        self._cleaned = cleaned
        self._by_seq = by_seq
        self._segment_rows = segment_rows
        self._inputs = [_Input(source) for source in sources]
        self._pending: list[RowColumns] = []
        self._pending_rows = 0

    def step(self, txn: WriteTransaction, database: Database, now_us: int) -> bool:
        """Write up to a segment; True when the run is complete."""
        for _ in range(TAKES_A_STEP):
            if self._pending_rows >= self._segment_rows or not self._left:
                break
            self._take(txn, database, now_us)
        if self._pending_rows < self._segment_rows and self._left:
            return False
        rows = joined(self._pending)
        if rows.size:
            self.target.append(txn, database, rows.slice(0, self._segment_rows))
        rest = rows.slice(self._segment_rows, rows.size)
        self._pending, self._pending_rows = [rest], rest.size
        return not rest.size and not self._left

    @property
    def _left(self) -> bool:
        return any([each.left for each in self._inputs])

    def _take(self, txn: AnyTransaction, database: Database, now_us: int) -> None:
        """Move all rows up to the first end of a current segment: after it every input is at or beyond that key."""
        current = [(each, each.ahead(txn, database)) for each in self._inputs if each.left]
        bound = min([(rows.key[-1], rows.seq[-1] if self._by_seq else 0) for _, rows in current])
        parts = []
        for each, rows in current:
            taken = self._upto(rows, *bound)
            parts.append(rows.slice(0, taken))
            each.passed(taken)
        # Bringing them together copies: what it was taken from lies in the map and does not outlive the transaction.
        found = self._cleaned(in_order(parts, now_us) if self._by_seq else merged(parts, now_us))
        if found.size:
            self._pending.append(found)
            self._pending_rows += found.size

    def _upto(self, rows: RowColumns, key: np.uint64, seq: np.uint64 | int) -> int:
        """How many of the rows lie at or before the bound."""
        end = int(rows.key.searchsorted(key, "right"))
        if not self._by_seq:
            return end
        start = int(rows.key[:end].searchsorted(key))
        return start + int(rows.seq[start:end].searchsorted(np.uint64(seq), "right"))


def in_order(parts: Sequence[RowColumns], now_us: int) -> RowColumns:
    """The rows of all parts that have not expired, by key and seq."""
    rows = joined(parts).alive(now_us)
    return rows.take(np.lexsort((rows.seq, rows.key)))
