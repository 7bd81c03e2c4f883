"""The subscriptions that one matcher holds, cell by cell, and which of them an event matches: a scan in NumPy.

A cell's boxes are columns, an edge each. Below a thousand boxes the calls cost more than the comparisons. Pure, but for
its state.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from .partition import CellId
from .segments import Floats

SUBSCRIPTIONS_MAX: Final = 4_000_000
"""What a matcher holds at most, in all cells; one costs 16 B a dimension and some 100 B beside."""
# What is compared at once stays in the processor's cache.
_EVENTS_AT_ONCE: Final = 16
# Below this all edges are compared in one call, 5 us of calls an event in place of 15; above it, one after the other.
_COMPARISONS_AT_ONCE: Final = 65_536
_ROWS_FIRST: Final = 16

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]


class CellBoxes:
    """The subscriptions of one cell: closed boxes, by number."""

    def __init__(self, dimensions: int) -> None:
        # The lower sides, then the upper ones below zero: inside is where no edge is above (point, -point).
        self._edges = np.empty((2 * dimensions, _ROWS_FIRST), np.float64)
        self._numbers = np.empty(_ROWS_FIRST, np.int64)
        self._rows: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, number: int) -> bool:
        return number in self._rows

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The subscriptions, in no order."""
        return self._numbers[: len(self)]

    @property
    def sides(self) -> tuple[Floats, Floats]:
        """(low, high) of each in the same order [subscriptions x dimensions]."""
        low, below_zero = np.split(self._edges[:, : len(self)].T, 2, axis=1)
        return low, -below_zero

    def put(self, number: int, low: Floats, high: Floats) -> None:
        """A subscription [dimensions]; one with that number is another one now."""
        row = self._rows.setdefault(number, len(self._rows))
        if row == len(self._numbers):
            self._edges = np.concatenate([self._edges, np.empty_like(self._edges)], axis=1)
            self._numbers = np.concatenate([self._numbers, np.empty_like(self._numbers)])
        self._edges[:, row] = np.concatenate([low, -high])
        self._numbers[row] = number

    def remove(self, number: int) -> None:
        """A subscription that is here ends; the last one gets its place."""
        row, last = self._rows.pop(number), len(self._rows)
        if row != last:
            self._edges[:, row] = self._edges[:, last]
            self._numbers[row] = self._numbers[last]
            self._rows[int(self._numbers[row])] = row

    def match(self, points: Floats) -> Pairs:
        """(events, subscriptions): which rows of `points` [events x dimensions] match which numbers."""
        parts = [self._inside(points[at : at + _EVENTS_AT_ONCE]) for at in range(0, len(points), _EVENTS_AT_ONCE)]
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        rows, found = np.nonzero(np.concatenate(parts) if len(parts) > 1 else parts[0])
        return rows, self._numbers[found]

    def _inside(self, points: Floats) -> NDArray[np.bool_]:
        """Whether each of some events is inside each box [events x subscriptions]."""
        edges, values = self._edges[:, None, : len(self)], np.concatenate([points, -points], axis=1).T[:, :, None]
        if edges.size * len(points) <= _COMPARISONS_AT_ONCE:
            return np.asarray((edges <= values).all(axis=0))
        inside: NDArray[np.bool_] = edges[0] <= values[0]
        for edge, value in zip(edges[1:], values[1:], strict=True):
            inside &= edge <= value
        return inside


class MatcherCells:
    """All cells of one matcher."""

    def __init__(self, dimensions: int) -> None:
        self.held = 0
        """Subscriptions in all cells together."""
        self._dimensions = dimensions
        self._cells: dict[CellId, CellBoxes] = {}

    def __contains__(self, cell: CellId) -> bool:
        return cell in self._cells

    def put(self, cell: CellId, number: int, low: Floats, high: Floats) -> None:
        """Subscription `number` [dimensions] lies in `cell`.

        Raises UsageError: SUBSCRIPTIONS_MAX are held already, or edges that are no numbers.
        """
        if self.held >= SUBSCRIPTIONS_MAX:
            raise UsageError(f"a matcher holds {SUBSCRIPTIONS_MAX:,} subscriptions in all cells together: add matchers")
        if np.isnan(low).any() or np.isnan(high).any():
            raise UsageError(f"subscription {number} has edges that are no numbers")
        boxes = self._cells.setdefault(cell, CellBoxes(self._dimensions))
        before = len(boxes)
        boxes.put(number, low, high)
        self.held += len(boxes) - before

    def remove(self, cell: CellId, number: int) -> None:
        """Subscription `number` ends, or lies in `cell` no more; nothing where it did not."""
        boxes = self._cells.get(cell)
        if boxes is not None and number in boxes:
            boxes.remove(number)
            self.held -= 1
            if not len(boxes):
                del self._cells[cell]

    def forget(self, cell: CellId) -> None:
        """`cell` is not here any more."""
        self.held -= len(self._cells.pop(cell, ()))

    def boxes(self, cell: CellId) -> CellBoxes:
        """What is in a cell; to be read, not changed."""
        return self._cells.get(cell) or CellBoxes(self._dimensions)

    def match(self, cell: CellId, points: Floats) -> Pairs:
        """(events, subscriptions): which rows of `points` [events x dimensions] match which subscriptions of a cell."""
        return self.boxes(cell).match(points)
