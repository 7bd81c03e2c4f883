"""A sample of the events that have been seen, all alike by chance: what dimensions are cut by. Pure.

Reservoir sampling (Vitter 1985, algorithm R), a batch at a time.
"""

from __future__ import annotations

import numpy as np

from .segments import Floats


class SeenEvents:
    """A uniform sample of at most `most` events of so many dimensions."""

    def __init__(self, dimensions: int, most: int, dice: np.random.Generator) -> None:
        self.count = 0
        """How many have been seen."""
        self._kept = np.empty((most, dimensions), np.float64)
        self._dice = dice

    @property
    def sample(self) -> Floats:
        """Those that are kept [at most `most` x dimensions]."""
        return self._kept[: self.count]

    def see(self, points: Floats) -> None:
        """Events have come [events x dimensions]."""
        most = len(self._kept)
        free = points[: max(0, most - self.count)]
        self._kept[self.count : self.count + len(free)] = free
        later = points[len(free) :]
        # The n-th event ever is kept with probability most / n, in the place of any other one.
        places = self._dice.integers(0, self.count + len(free) + 1 + np.arange(len(later)))
        self.count += len(points)
        for row in np.flatnonzero(places < most):
            self._kept[places[row]] = later[row]
