"""The size of a dictionary by the thesis' rule (algorithm 5.1, lines 5 to 18).

Reductions measured at a few multiples of the mean message are fitted with a second-order polynomial
f(m) = a + b m + c m^2; the multiplier is raised by one until a step adds less than 3% (of the reduction, which is
itself in percent: the thesis says "a less than 3% increase").

`training` chooses the size by cost instead (mean bytes a message plus the packed dictionary spread over the messages
it is expected to serve) and has this rule as an alternative. Why: the fitted parabola knows nothing of what the
dictionary costs to send, and its vertex hides what a further octave of size brings. `bench.compression.driver` measures
both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

MULTIPLIERS: Final = (0.5, 1, 2, 3, 5, 8, 13, 21)
"""DM, equation 5.3.9: multiples of the mean message length."""

STEP_PERCENT_MIN: Final = 3.0


def polynomial(observations: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """(a, b, c) of the least-squares parabola through (multiplier, reduction); of fewer than three points, fewer terms.

    The problem is linear in a, b, c: one least-squares solution is what the thesis' Gauss-Newton iterations end at.
    """
    if not observations:
        raise ValueError("no observation to fit a polynomial to")
    multipliers, reductions = np.array(observations, float).T
    terms = min(3, len(set(multipliers.tolist())))
    solution, *_ = np.linalg.lstsq(np.vander(multipliers, terms, increasing=True), reductions, rcond=None)
    a, b, c = (*solution.tolist(), 0.0, 0.0)[:3]
    return float(a), float(b), float(c)


def flattening_multiplier(
    observations: Sequence[tuple[float, float]],
    *,
    step_percent_min: float = STEP_PERCENT_MIN,
    multiplier_max: float = MULTIPLIERS[-1],
) -> int:
    """The first multiplier at which a step of the fitted curve adds less than `step_percent_min` of the value there."""
    a, b, c = polynomial(observations)
    before = 0.0
    multiplier = 0
    while multiplier < multiplier_max:
        multiplier += 1
        value = a + b * multiplier + c * multiplier**2
        if value - before < step_percent_min / 100 * abs(value):
            break
        before = value
    return multiplier
