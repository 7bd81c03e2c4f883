"""The boxes that are indexed by the same columns: a clustering of most, and the newest ones loose.

A new box is *loose*: events are compared with it one by one. `step` moves some boxes at a time to where they belong in
the clustering. When that no longer fits (there are four times as many boxes as when its cuts were learned, its blocks
are more than half empty, or as many have come as there were twice over) a new one is begun with new cuts, into which
the boxes of the old one go in steps too; meanwhile both answer. A box is always in exactly one place, so all answers
are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .bit_blocks import BLOCK
from .box_rows import BoxRows
from .clustering import Clustering
from .further_terms import END
from .growing import GrowingArray
from .pairs import joined_pairs
from .ranks import Floats, Integers, Ranks

CLUSTERED_FROM: Final = 128
"""So many boxes are clustered; fewer are all loose."""
LOOSE_MAX: Final = 1_024
"""When so many are loose, adding one moves some."""
MOVED_MAX: Final = 512
"""Boxes that a step moves at most."""

# Cuts are learned from so many intervals.
_LEARNED_FROM: Final = 16_384
# Boxes to move for which the boxes of one block may be shared out: more than twice what new blocks need.
_BOXES_A_BLOCK: Final = 8
_GROWN: Final = 4
_TURNED_OVER: Final = 2
# The part of the blocks' places that is taken, below which they are made anew. They are fuller when they are made,
# unless there are only a few.
_SPARSE: Final = 0.45
_FEW_PLACES: Final = 8 * BLOCK
# Comparisons, one a dimension, up to which comparing events with all boxes is quicker than asking the bitsets.
_SCANNED: Final = 16_384
# What a group without columns has in place of one.
_EVERYTHING: Final = (-np.inf, np.inf)
_LOOSE: Final = -2  # the slot of the loose box 0; of box n: _LOOSE - n


class Marks(NamedTuple):
    """Of some boxes: their further terms, and whether another box of the same key may hold the same event."""

    chains: Integers
    overlaps: NDArray[np.bool_]


class ColumnGroup:
    """Boxes that bound `columns`, and some of them more: those have a chain of further terms."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self._rows = BoxRows(max(1, len(columns)))
        self._marks: GrowingArray | None = None  # one a row, from the first box on that has one
        self._loose: NDArray[np.int64] = np.empty(LOOSE_MAX, np.int64)
        self._loose_count = 0
        self._filling: Clustering | None = None
        self._draining: Clustering | None = None
        self._learned_at = 0  # how many boxes there were when the cuts of `_filling` were learned
        self._placed = 0  # since then

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """What it takes of memory."""
        parts = [self._rows, self._marks, self._loose, self._filling, self._draining]
        return sum([each.nbytes for each in parts if each is not None])

    @property
    def waiting(self) -> int:
        """Boxes that `step` has to move."""
        if self._stays_loose:
            return 0
        return self._loose_count + (self._draining.held if self._draining is not None else 0)

    def add(self, key: int, bounds: Sequence[tuple[float, float]], chain: int, overlap: bool) -> int:
        """A box: bounds in the order of the columns, its further terms, and whether another box of its key may hold the
        same event; its row. Raises LimitError when there are too many."""
        while self._loose_count == LOOSE_MAX:
            self.step(MOVED_MAX // 2)
        row = self._rows.add(key, bounds or [_EVERYTHING])
        mark = (chain - END) << 1 | overlap
        if mark and self._marks is None:
            self._marks = GrowingArray(np.int32)
            self._marks.reserve(self._rows.used)
            self._marks.array[:] = 0
        if self._marks is not None:
            self._marks.reserve(self._rows.used)
            self._marks.array[row] = mark
        self._rows.slots.array[row] = _LOOSE - self._loose_count
        self._loose[self._loose_count] = row
        self._loose_count += 1
        return row

    def remove(self, row: int) -> int:
        """Forget a box; its further terms."""
        slot = int(self._rows.slots.array[row])
        if slot <= _LOOSE:
            self._loose_count -= 1
            last = self._loose[self._loose_count]
            self._loose[_LOOSE - slot] = last
            self._rows.slots.array[last] = slot
        elif self._draining is not None and self._draining.holds(slot, row):
            self._draining.remove(slot)
        elif self._filling is not None:
            self._filling.remove(slot)
        self._rows.remove(row)
        return END if self._marks is None else (int(self._marks.array[row]) >> 1) + END

    def key(self, row: int) -> int:
        """Whose box it is."""
        return self._rows.key(row)

    def keys(self, rows: Integers) -> Integers:
        """Whose boxes they are."""
        return self._rows.keys(rows)

    def marks(self, rows: Integers) -> Marks | None:
        """What is to be known of each row beside its bounds; None: nothing of any."""
        if self._marks is None:
            return None
        marks = self._marks.array.take(rows)
        return Marks((marks >> 1) + END, (marks & 1).astype(np.bool_))

    def match(self, values: Floats) -> tuple[Integers, Integers]:
        """(events, rows) that match as far as the group's own columns go. values: [events x columns], no NaN."""
        if not self.columns:
            values = np.zeros((len(values), 1))
        if values.size * self._rows.used <= _SCANNED:
            return self._rows.scan(None, values)
        found = [self._rows.scan(self._loose[: self._loose_count], values)] if self._loose_count else []
        for clustering in (self._filling, self._draining):
            if clustering is not None and clustering.held:
                found.append(self._rows.inside(*clustering.candidates(values), values))
        return joined_pairs(found)

    def step(self, budget: int) -> int:
        """Move boxes to where they belong; returns how many were touched, 0 when nothing is to be done.

        At most `budget` boxes are moved (or 64, or MOVED_MAX), and eight times as many in blocks that have no room for
        them.
        """
        if self._stays_loose:
            return 0
        if self._filling is None or (self._draining is None and self._unfit(self._filling)):
            self._begin_anew()  # some 2 ms: a step of its own
            return budget
        if not self.waiting:
            return 0
        budget = min(budget, MOVED_MAX)
        if self._draining is not None and self._loose_count + max(budget, BLOCK) <= LOOSE_MAX:
            self._loosen(self._draining.take(budget))
            if not self._draining.held:
                self._draining = None
        moved = min(budget, self._loose_count)
        self._loose_count -= moved
        rows = self._loose[self._loose_count :][:moved].copy()
        left = self._filling.place(rows, -(-budget // _BOXES_A_BLOCK))
        self._loosen(left)
        self._placed += moved - len(left)
        return max(1, moved)

    @property
    def _stays_loose(self) -> bool:
        return not self.columns or (self._filling is None and len(self) < CLUSTERED_FROM)

    def _unfit(self, filling: Clustering) -> bool:
        """Whether the clustering is to be made anew."""
        sparse = filling.room > _FEW_PLACES and filling.held < filling.room * _SPARSE
        return sparse or len(self) >= _GROWN * self._learned_at or self._placed >= _TURNED_OVER * self._learned_at

    def _begin_anew(self) -> None:
        count = min(self._rows.used, _LEARNED_FROM // len(self.columns))
        rows = np.arange(count) * self._rows.used // count
        ranks = Ranks(np.concatenate([self._rows.low(rows), self._rows.high(rows)]).T)
        self._draining = self._filling if self._filling is not None and self._filling.held else None
        self._filling = Clustering(self._rows, len(self.columns), ranks)
        self._learned_at, self._placed = len(self), 0

    def _loosen(self, rows: Integers) -> None:
        count = self._loose_count + len(rows)
        self._loose[self._loose_count : count] = rows
        self._rows.slots.array[rows] = _LOOSE - np.arange(self._loose_count, count)
        self._loose_count = count
