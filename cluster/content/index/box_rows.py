"""Boxes of one set of columns as rows: their bounds as they are, whose they are, and where the index has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from .growing import GrowingArray
from .ranks import Floats, Integers

BOXES_MAX: Final = 1 << 24
"""Boxes of one set of columns."""
# No value lies between these: rows that are free match nothing.
_NOTHING: Final = (np.inf, -np.inf)
# Comparisons at once: they stay in the processor's cache.
_SCANNED_AT_ONCE: Final = 1 << 16


class BoxRows:
    """Rows 0 to `used` - 1, some of which may be free. `slots`, one a row, is for whoever keeps an order of them."""

    def __init__(self, dimensions: int) -> None:
        self.used = 0
        self.slots = GrowingArray(np.int32)
        self._dimensions = dimensions
        self._bounds = GrowingArray(np.float64, dimensions, 2)
        self._keys = GrowingArray(np.int64)
        self._held = 0
        self._free = -1  # the first free row; the others are in a chain by `slots`

    def __len__(self) -> int:
        return self._held

    @property
    def nbytes(self) -> int:
        """What they take of memory."""
        return self.slots.nbytes + self._bounds.nbytes + self._keys.nbytes

    def add(self, key: int, bounds: Sequence[tuple[float, float]]) -> int:
        """A row for a box. Raises UsageError when there are BOXES_MAX."""
        row = self._free
        if row >= 0:
            self._free = int(self.slots.array[row])
        else:
            row = self.used
            if row == BOXES_MAX:
                raise UsageError(f"{BOXES_MAX:,} content subscriptions on the same fields: withdraw some")
            for each in (self.slots, self._bounds, self._keys):
                each.reserve(row + 1)
            self.used += 1
        self._bounds.array[row] = bounds
        self._keys.array[row] = key
        self._held += 1
        return row

    def remove(self, row: int) -> None:
        """Free a row."""
        self._bounds.array[row] = _NOTHING
        self.slots.array[row] = self._free
        self._free = row
        self._held -= 1

    def key(self, row: int) -> int:
        """Whose box it is."""
        return int(self._keys.array[row])

    def keys(self, rows: Integers) -> Integers:
        """Whose boxes they are."""
        return self._keys.array.take(rows)

    def bounds(self, rows: NDArray[np.integer]) -> Floats:
        """[rows x dimensions x 2]."""
        return self._bounds.array.take(rows, axis=0)

    def inside(self, rows: Integers, values: Floats) -> NDArray[np.bool_]:
        """Which of the pairs of a row and an event's values [pairs x dimensions] match."""
        bounds = self.bounds(rows)
        above: NDArray[np.bool_] = bounds[..., 0] <= values
        return np.asarray((above & (values <= bounds[..., 1])).all(axis=1))

    def scan(self, rows: Integers | None, values: Floats) -> tuple[Integers, Integers]:
        """(events, rows) that match, by comparing each event's values [events x dimensions] with each of the rows
        (None: with all)."""
        bounds = self._bounds.array[: self.used] if rows is None else self.bounds(rows)
        if not len(bounds) or not len(values):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        at_once = max(1, _SCANNED_AT_ONCE // len(values))
        found = [_compared(bounds[first : first + at_once], values) for first in range(0, len(bounds), at_once)]
        places = np.concatenate([each + number * at_once for number, (each, _) in enumerate(found)])
        events = np.concatenate([each for _, each in found])
        return events, places if rows is None else rows.take(places)


def _compared(bounds: Floats, values: Floats) -> tuple[Integers, Integers]:
    """(rows, events) that match."""
    inside = np.ones((len(bounds), len(values)), np.bool_)
    for dimension in range(bounds.shape[1]):
        own = values[:, dimension]
        inside &= bounds[:, dimension, 0, None] <= own
        inside &= own <= bounds[:, dimension, 1, None]
    rows, events = np.nonzero(inside)
    return rows, events
