"""Values become ranks, and boxes places on a z-curve.

A dimension is cut at quantiles of what subscriptions ask for (as HPartition's segments are, SREM section 4.1), so that
ranks are spread evenly however values are. A rank never goes down when a value goes up: an interval's ranks are those
between its ends', and that is all that is relied on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

RANK_BITS: Final = 12
RANKS: Final = 1 << RANK_BITS


class Ranks:
    """The cuts of some dimensions.

    ends: for each dimension, ends of intervals to learn from, infinite ones among them.
    """

    def __init__(self, ends: Sequence[Floats]) -> None:
        self._cuts = [_cuts(each) for each in ends]
        # Few cuts are spread over all ranks, so that a part of the ranks is a part of the values for every dimension.
        self._ranks = [np.arange(len(cuts) + 1) * (RANKS - 1) // max(1, len(cuts)) for cuts in self._cuts]
        self._codes = _codes(len(ends))

    def of(self, dimension: int, values: Floats) -> Integers:
        """Ranks of values that are not NaN: below RANKS."""
        return self._ranks[dimension].take(np.searchsorted(self._cuts[dimension], values, "right"))

    def of_bounds(self, bounds: Floats) -> tuple[Integers, Integers]:
        """Ranks [... x dimensions] of the low and the high ends of bounds [... x dimensions x 2]."""
        ranks = np.empty(bounds.shape, np.int64)
        for dimension in range(bounds.shape[-2]):
            ranks[..., dimension, :] = self.of(dimension, bounds[..., dimension, :])
        return ranks[..., 0], ranks[..., 1]

    def z_codes(self, low: Integers, high: Integers) -> Words:
        """Where boxes lie on the z-curve, by their centres: the bits of the dimensions' ranks in turn."""
        centres = (low + high) >> 1
        codes: Words = self._codes[0].take(centres[..., 0])
        for dimension in range(1, centres.shape[-1]):
            codes |= self._codes[dimension].take(centres[..., dimension])
        return codes

    @property
    def nbytes(self) -> int:
        """What it takes of memory; tables that all share are not counted."""
        return sum([each.nbytes for each in (*self._cuts, *self._ranks)])


def _cuts(ends: Floats) -> Floats:
    """At most RANKS - 1, ascending."""
    distinct = np.unique(ends[np.isfinite(ends)])
    if len(distinct) < RANKS:
        return distinct
    sorted_ends = np.sort(ends[np.isfinite(ends)])
    return np.unique(sorted_ends[np.arange(1, RANKS) * len(sorted_ends) // RANKS])


@cache
def _codes(dimensions: int) -> NDArray[Any]:
    """A rank's part of the z-code [dimensions x RANKS]: its bits, `dimensions` apart, the lowest left out where all do
    not fit into a word."""
    bits = min(RANK_BITS, 64 // dimensions)
    ranks = np.arange(RANKS, dtype=np.uint64) >> np.uint64(RANK_BITS - bits)
    codes = np.zeros((dimensions, RANKS), np.uint64)
    for dimension in range(dimensions):
        for bit in range(bits):
            codes[dimension] |= (ranks >> np.uint64(bit) & np.uint64(1)) << np.uint64(bit * dimensions + dimension)
    return codes
