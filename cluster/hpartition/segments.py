"""One dimension cut into segments that get the same share of what is seen. Pure.

    cuts       c_1 < c_2 < ... of a dimension
    segment j  c_j <= value < c_(j+1); the first and the last one go on to infinity, so there is one for every value

SREM (section 4.1) cuts ranges evenly, which puts most of a skewed dimension into few segments; quantiles do not.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SEGMENTS_MAX: Final = 4_096


class DimensionCuts(NamedTuple):
    """`at`: where a dimension is cut, ascending, no two alike [segments - 1]."""

    at: Floats

    @property
    def segments(self) -> int:
        """How many segments there are."""
        return len(self.at) + 1

    def segment(self, values: Floats) -> Integers:
        """The segment of each value; of the same shape."""
        return np.searchsorted(self.at, values, side="right")

    def bounds(self, segment: int) -> tuple[float, float]:
        """(least value, first value beyond it)."""
        first = -math.inf if segment == 0 else float(self.at[segment - 1])
        return first, math.inf if segment == len(self.at) else float(self.at[segment])


def cut_by_quantiles(values: Floats, segments: int) -> DimensionCuts:
    """Cuts a dimension of which `values` [any] have been seen. Fewer segments come out where values are few or one of
    them is very frequent.

    Raises UsageError: no segment, more than SEGMENTS_MAX, nothing seen, or values that are no numbers.
    """
    if not 1 <= segments <= SEGMENTS_MAX:
        raise UsageError(f"a dimension has 1 to {SEGMENTS_MAX} segments, not {segments}")
    if not len(values) or np.isnan(values).any():
        raise UsageError("a dimension is cut by values that have been seen, all of them numbers")
    # Observed values, not means of two: those of equal values would lie between them, and infinities have none.
    quantiles = np.quantile(values, np.arange(1, segments) / segments, method="higher")
    cuts = np.unique(quantiles)
    # Nothing is below the least value: a cut there would make an empty segment.
    return DimensionCuts(cuts[cuts > values.min()])
