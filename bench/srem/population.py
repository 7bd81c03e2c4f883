"""Subscriptions and events to match, drawn from a seed: boxes and points in a space of some dimensions.

Values lie in [0, 1). `spread` is the standard deviation of a normal distribution around one hot spot a dimension,
cropped to that range, from which centres of boxes and events alike are drawn: where most is asked for most happens, the
harder case. None: uniform.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BOUNDED: Final = 4
"""Dimensions of a set."""


class BoxSetting(NamedTuple):
    """What is drawn. `width`: of a box, in each dimension. `values`: so many distinct points instead of boxes in the
    first dimension, as equality asks for (0: boxes there too). `sets`: so many different sets of BOUNDED dimensions
    are what boxes bound (0: all of them bound all). `above`: so many of the last dimensions are bounded from below
    alone."""

    subscriptions: int
    dimensions: int = 4
    width: float = 0.1
    spread: float | None = None
    values: int = 0
    sets: int = 0
    above: int = 0


class BoxPopulation(NamedTuple):
    """Closed boxes [subscriptions x dimensions], infinite where a dimension is not bounded."""

    low: Floats
    high: Floats
    setting: BoxSetting
    hot: Floats

    def events(self, count: int, dice: np.random.Generator) -> Floats:
        """Points [count x dimensions]."""
        points = _points(self.setting, count, self.hot, dice)
        if self.setting.values:
            points[:, 0] = np.floor(points[:, 0] * self.setting.values)
        return points


def drawn(setting: BoxSetting, dice: np.random.Generator) -> BoxPopulation:
    """A population."""
    hot = dice.uniform(0.25, 0.75, setting.dimensions)
    centre = _points(setting, setting.subscriptions, hot, dice)
    low, high = centre - setting.width / 2, centre + setting.width / 2
    if setting.values:
        low[:, 0] = high[:, 0] = np.floor(centre[:, 0] * setting.values)
    if setting.above:
        low[:, -setting.above :] = centre[:, -setting.above :]
        high[:, -setting.above :] = np.inf
    if setting.sets:
        every = list(combinations(range(setting.dimensions), BOUNDED))
        sets = np.zeros((setting.sets, setting.dimensions), np.bool_)
        np.put_along_axis(sets, dice.permutation(every)[: setting.sets], True, axis=1)
        free = ~sets[dice.integers(setting.sets, size=setting.subscriptions)]
        low[free], high[free] = -np.inf, np.inf
    return BoxPopulation(low, high, setting, hot)


def _points(setting: BoxSetting, count: int, hot: Floats, dice: np.random.Generator) -> Floats:
    if setting.spread is None:
        return dice.random((count, setting.dimensions))
    points: NDArray[Any] = dice.normal(hot, setting.spread, (count, setting.dimensions))
    while (outside := (points < 0) | (points >= 1)).any():
        # Drawn again, not clipped: clipped ones would lie on the edge all together.
        again = dice.normal(hot, setting.spread, (count, setting.dimensions))
        points[outside] = again[outside]
    return points
