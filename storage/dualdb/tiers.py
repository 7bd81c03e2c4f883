"""The memory table: a few sorted tiers, each FANOUT times the size of the one before.

A batch becomes a small tier; FANOUT tiers of a size become one of the next size, and what has expired meanwhile is
dropped on the way (section 4: "efficiently remove the expired items ... during background compaction"). So a row is
moved log(rows) times and a question is asked of at most FANOUT - 1 tiers a size.

Chosen by measurement: the paper's workload at 3:1, 20,000 operations a second, 10,000 a batch, 170,000 live rows; CPU
time an operation of the whole engine (two busy cores: the differences count, not the values).

    FANOUT 2 / 4 / 8 / 16                                          1.89 / 1.85 / 1.89 / 1.97 us
    no merging at all: every tier until it is written              3.30
    one array, each batch merged into it                           2.49
    no memory table: rows in LMDB under (ID, kind, seq)            17.0
    no memory table: duplicate sorted values under (ID, kind)      19.3

Buckets by expiry instead of sizes are what tiers are as long as windows are equal: a tier that has expired as a whole
is passed over by its bounds. They were not kept apart, because one long window would hold its bucket for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from .rows import Answer, BoundedQueries, Bounds, Matches, Question, RowColumns, bounds_of, find, merged, probe

FANOUT: Final = 4

# A batch moves at most so many times its own rows into larger tiers, or MOVED_ROWS_MIN: 2 ms for so many. (All at once
# it was 20 ms for 400,000 rows; never to merge more than 131,072 made a look-up a fifth dearer.)
MOVED_A_ROW: Final = 8
GROWN_ROWS: Final = 4_096
MOVED_ROWS_MIN: Final = 32_768
_TAKEN_ROWS: Final = 16_384


class Joining:
    """FANOUT tiers on their way into one, a part of the keys a step; they answer until it is done."""

    def __init__(self, tiers: Sequence[RowColumns]) -> None:
        self._tiers = tiers
        self._at = [0] * len(tiers)
        self._total = sum([tier.size for tier in tiers])
        self._made = RowColumns._make([np.empty(self._total, column.dtype) for column in tiers[0]])
        self._filled = 0

    @property
    def _left(self) -> bool:
        return any([at < tier.size for at, tier in zip(self._at, self._tiers, strict=True)])

    def step(self, rows: int, now_us: int) -> bool:
        """Move about so many rows; True when all are."""
        moved = 0
        while moved < rows and self._left:
            moved += self._take(now_us)
        return not self._left

    def _take(self, now_us: int) -> int:
        """Move all rows up to a key: of each tier at most its share of _TAKEN_ROWS, so no more than that together."""
        places = range(len(self._tiers))
        ends = [
            min(t.size, at + -(-_TAKEN_ROWS * t.size // self._total))
            for at, t in zip(self._at, self._tiers, strict=True)
        ]
        bound = min([self._tiers[i].key[ends[i] - 1] for i in places if self._at[i] < ends[i]])
        parts = []
        for i in places:
            piece = self._tiers[i].slice(self._at[i], ends[i])
            taken = int(np.searchsorted(piece.key, bound, "right"))
            parts.append(piece.slice(0, taken))
            self._at[i] += taken
        found = merged(parts, now_us)
        for column, new in zip(self._made, found, strict=True):
            column[self._filled : self._filled + found.size] = new
        self._filled += found.size
        return sum([part.size for part in parts])

    def result(self) -> RowColumns:
        """The one tier; a copy where most of the room for it has stayed empty."""
        rows = self._made.slice(0, self._filled)
        return rows if 2 * self._filled > self._total else rows.copy()


class Tiers:
    """Sorted rows in memory, asked as one."""

    __slots__ = ("_growing", "_joining", "_levels", "rows")

    def __init__(self) -> None:
        self._levels: list[list[tuple[RowColumns, Bounds]]] = [[]]
        # Of each level: its first FANOUT tiers on their way into one of the next.
        self._joining: list[Joining | None] = [None]
        self.rows = 0
        # The youngest tier is small: the next rows become part of it.
        self._growing = False

    def add(self, rows: RowColumns, now_us: int) -> None:
        """Take in sorted rows, at least one, and go on with joining tiers of which FANOUT of one size are there."""
        self._enter(rows, now_us)
        quota = max(MOVED_ROWS_MIN, MOVED_A_ROW * rows.size)
        for level, tiers in enumerate(self._levels):
            joining = self._joining[level]
            if joining is None:
                if len(tiers) - (not level and self._growing) < FANOUT:
                    continue
                joining = self._joining[level] = Joining([tier for tier, _ in tiers[:FANOUT]])
            if joining.step(quota, now_us):
                self._joined(level, joining.result())

    def _enter(self, rows: RowColumns, now_us: int) -> None:
        """Rows become the youngest tier, or part of it for as long as it is small: to ask one costs as much."""
        youngest = self._levels[0]
        if self._growing:
            last = youngest.pop()[0]
            self.rows -= last.size
            rows = merged([last, rows], now_us)
        self.rows += rows.size
        self._growing = 0 < rows.size < GROWN_ROWS
        if rows.size:
            youngest.append((rows, bounds_of(rows)))

    def _joined(self, level: int, rows: RowColumns) -> None:
        """The first FANOUT tiers of a level have become one of the next."""
        self._joining[level] = None
        self.rows += rows.size - sum([tier.size for tier, _ in self._levels[level][:FANOUT]])
        del self._levels[level][:FANOUT]
        if level + 1 == len(self._levels):
            self._levels.append([])
            self._joining.append(None)
        if rows.size:
            self._levels[level + 1].append((rows, bounds_of(rows)))

    def probe(self, asking: BoundedQueries) -> list[Matches]:
        """The answers that these tiers hold."""
        found = [probe(tier, bounds, asking) for tiers in self._levels for tier, bounds in tiers]
        return [matches for matches in found if matches is not None]

    def find(self, asked: Question, found: list[Answer]) -> None:
        """Add the answers to one question that these tiers hold to `found`."""
        for tiers in self._levels:
            for tier, bounds in tiers:
                find(tier, bounds, asked, found)

    def parts(self, now_us: int) -> list[RowColumns]:
        """The tiers; without those that have expired as a whole."""
        return [rows for tiers in self._levels for rows, bounds in tiers if bounds.high_max >= now_us]
