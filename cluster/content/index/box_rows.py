"""Boxes of one set of columns as rows: their bounds as they are, whose they are, and where the index has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...errors import LimitError
from .growing import GrowingArray
from .pairs import NONE, joined_pairs
from .ranks import Floats, Integers

DIMENSIONS_MAX: Final = 8
"""Columns of such a set."""
BOXES_MAX: Final = 1 << 24
"""Boxes of one set of columns."""
# Pairs that are asked at once: they stay in the processor's cache, as do comparisons of a scan.
_ASKED_AT_ONCE: Final = 1 << 13
_SCANNED_AT_ONCE: Final = 1 << 16
_ROWS_AT_ONCE: Final = 1 << 11


class BoxRows:
    """Rows 0 to `used` - 1, some of which may be free. `slots`, one a row, is for whoever keeps an order of them."""

    def __init__(self, dimensions: int) -> None:
        self.used = 0
        self.slots = GrowingArray(np.int32)
        self._dimensions = dimensions
        self._low = GrowingArray(np.float64, dimensions)
        self._high = GrowingArray(np.float64, dimensions)
        self._keys = GrowingArray(np.int64)
        self._held = 0
        self._free = -1  # the first free row; the others are in a chain by `slots`

    def __len__(self) -> int:
        return self._held

    @property
    def nbytes(self) -> int:
        """What they take of memory."""
        return sum([each.nbytes for each in self._by_row])

    @property
    def _by_row(self) -> tuple[GrowingArray, ...]:
        return self.slots, self._low, self._high, self._keys

    def add(self, key: int, bounds: Sequence[tuple[float, float]]) -> int:
        """A row for a box. Raises LimitError when there are BOXES_MAX."""
        row = self._free
        if row >= 0:
            self._free = int(self.slots.array[row])
        else:
            row = self.used
            if row == BOXES_MAX:
                raise LimitError(f"{BOXES_MAX:,} content subscriptions on the same fields: end some")
            for each in self._by_row:
                each.reserve(row + 1)
            self.used += 1
        self._low.array[row], self._high.array[row] = zip(*bounds, strict=True)
        self._keys.array[row] = key
        self._held += 1
        return row

    def remove(self, row: int) -> None:
        """Free a row."""
        # No value is beyond infinity and below minus infinity: nothing matches a free row.
        self._low.array[row], self._high.array[row] = np.inf, -np.inf
        self.slots.array[row] = self._free
        self._free = row
        self._held -= 1

    def key(self, row: int) -> int:
        """Whose box it is."""
        return int(self._keys.array[row])

    def keys(self, rows: Integers) -> Integers:
        """Whose boxes they are."""
        return self._keys.array.take(rows)

    def low(self, rows: Integers) -> Floats:
        """Low ends [rows x dimensions]."""
        return self._low.array.take(rows, axis=0)

    def high(self, rows: Integers) -> Floats:
        """High ends [rows x dimensions]."""
        return self._high.array.take(rows, axis=0)

    def inside(self, events: Integers, rows: Integers, values: Floats) -> tuple[Integers, Integers]:
        """Those of the pairs (events, rows) that match. values: [events x dimensions]."""
        some = [slice(first, first + _ASKED_AT_ONCE) for first in range(0, len(rows), _ASKED_AT_ONCE)]
        found = [self._match(rows[each], values.take(events[each], axis=0)) for each in some]
        matches = found[0] if len(found) == 1 else np.concatenate(found or [np.empty(0, np.bool_)])
        return events[matches], rows[matches]

    def _match(self, rows: Integers, values: Floats) -> NDArray[np.bool_]:
        """Which rows match their values [rows x dimensions]."""
        inside = self.low(rows) <= values
        inside &= values <= self.high(rows)
        # Column by column: all(axis=1) takes three times as long for so few of them.
        matches: NDArray[np.bool_] = inside[:, 0].copy()
        for dimension in range(1, self._dimensions):
            matches &= inside[:, dimension]
        return matches

    def scan(self, rows: Integers | None, values: Floats) -> tuple[Integers, Integers]:
        """(events, rows) that match, by comparing each event's values [events x dimensions] with each of the rows
        (None: with all)."""
        if rows is None:
            low, high = self._low.array[: self.used], self._high.array[: self.used]
        else:
            low, high = self.low(rows), self.high(rows)
        if not len(low) or not len(values):
            return NONE, NONE
        at_once = max(1, min(_ROWS_AT_ONCE, _SCANNED_AT_ONCE // len(values)))
        some = [slice(first, first + at_once) for first in range(0, len(low), at_once)]
        events, places = joined_pairs([_compared(low[each], high[each], values, each.start) for each in some])
        return events, places if rows is None else rows.take(places)


def _compared(low: Floats, high: Floats, values: Floats, first: int) -> tuple[Integers, Integers]:
    """(events, rows) that match, of rows from `first` on."""
    # Columns by themselves, so that the inner loop goes over neighbours: half the time.
    low, high = low.T.copy(), high.T.copy()
    inside = low[0] <= values[:, :1]
    inside &= values[:, :1] <= high[0]
    for dimension in range(1, len(low)):
        own = values[:, dimension, None]
        inside &= low[dimension] <= own
        inside &= own <= high[dimension]
    # A third of what nonzero() takes in two dimensions.
    at = inside.reshape(-1).nonzero()[0]
    events = at // inside.shape[1]
    return events, at - events * inside.shape[1] + first
