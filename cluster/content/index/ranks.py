"""Values become ranks, and boxes places on a z-curve.

A dimension is cut at quantiles of what subscriptions ask for (as HPartition's segments are, SREM section 4.1), so that
ranks are spread evenly however values are. A rank never goes down when a value goes up: an interval's ranks are those
between its ends', and that is all that is relied on.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Places = NDArray[np.int32]
Words = NDArray[np.uint64]

RANK_BITS: Final = 12
RANKS: Final = 1 << RANK_BITS

_ENDS_A_CUT: Final = 8
_FEW: Final = 256


class Ranks:
    """The cuts of some dimensions.

    ends: of intervals to learn from [dimensions x ends], infinite ones among them.
    """

    def __init__(self, ends: Floats) -> None:
        self._cuts = [_cuts(each) for each in ends]
        # Few cuts are spread over all ranks, so that a part of the ranks is a part of the values for every dimension.
        spread = [np.arange(len(cuts) + 1) * (RANKS - 1) // max(1, len(cuts)) for cuts in self._cuts]
        self._ranks = [each.astype(np.int32) for each in spread]
        self._codes = _codes(len(ends))

    def of_all(self, values: Floats) -> Places:
        """Ranks, below RANKS, of values [... x dimensions] that are not NaN."""
        ranks = np.empty(values.shape, np.int32)
        for dimension, (cuts, spread) in enumerate(zip(self._cuts, self._ranks, strict=True)):
            ranks[..., dimension] = spread.take(cuts.searchsorted(values[..., dimension], "right"))
        return ranks

    def z_codes(self, low: Places, high: Places) -> Words:
        """Where boxes lie on the z-curve, by their centres: the bits of the dimensions' ranks in turn."""
        centres = (low + high) >> 1
        codes: Words = self._codes[0].take(centres[..., 0])
        for dimension in range(1, centres.shape[-1]):
            codes |= self._codes[dimension].take(centres[..., dimension])
        return codes

    @property
    def nbytes(self) -> int:
        """What it takes of memory; tables that all share are not counted."""
        return sum([cuts.nbytes for cuts in self._cuts]) + sum([ranks.nbytes for ranks in self._ranks])


def _cuts(ends: Floats) -> Floats:
    """At most RANKS - 1, ascending: all that are different, or as many quantiles as so many ends tell."""
    finite = np.sort(ends[np.isfinite(ends)])
    most = min(RANKS, max(_FEW, len(finite) // _ENDS_A_CUT))
    distinct = np.unique(finite)
    if len(distinct) < most:
        return distinct
    return np.unique(finite[np.arange(1, most) * len(finite) // most])


@cache
def _codes(dimensions: int) -> NDArray[Any]:
    """A rank's part of the z-code [dimensions x RANKS]: its bits, `dimensions` apart, the lowest left out where all do
    not fit into 63 bits."""
    bits = min(RANK_BITS, 63 // dimensions)
    ranks = np.arange(RANKS, dtype=np.uint64) >> np.uint64(RANK_BITS - bits)
    codes = np.zeros((dimensions, RANKS), np.uint64)
    for dimension in range(dimensions):
        for bit in range(bits):
            codes[dimension] |= (ranks >> np.uint64(bit) & np.uint64(1)) << np.uint64(bit * dimensions + dimension)
    return codes
