"""What the index is held against: a scan in NumPy, and a closure in Python for each subscription.

Both give the pairs (event, subscription) of a batch of points, as the index does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .population import BoxPopulation, Floats

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]

EVENTS_AT_ONCE: Final = 16
"""What a scan compares at once: the comparisons of 16 events with 40,000 boxes stay in the processor's cache."""
_ALL_BOXES: Final = 2


class Scan:
    """Every event is compared with every box in the first two dimensions, in the others with what is left.

    Measured at 40,000 boxes of width 10% in four dimensions: 1.3 times as fast as comparing all dimensions with all
    boxes, three times as fast as one dimension alone before the others.
    """

    def __init__(self, population: BoxPopulation) -> None:
        self._low = [np.ascontiguousarray(column) for column in population.low.T]
        self._high = [np.ascontiguousarray(column) for column in population.high.T]

    def match(self, points: Floats) -> Pairs:
        """(events, subscriptions) of the points [events x dimensions]."""
        firsts = range(0, len(points), EVENTS_AT_ONCE)
        found = [self._some(points[first : first + EVENTS_AT_ONCE]) for first in firsts]
        events = [own + first for first, (own, _) in zip(firsts, found, strict=True)]
        return np.concatenate(events), np.concatenate([boxes for _, boxes in found])

    def _some(self, points: Floats) -> Pairs:
        inside = np.ones((len(points), len(self._low[0])), np.bool_)
        for dimension in range(min(_ALL_BOXES, points.shape[1])):
            values = points[:, dimension, None]
            inside &= self._low[dimension] <= values
            inside &= values <= self._high[dimension]
        at = np.flatnonzero(inside)
        events = at // inside.shape[1]
        boxes = at - events * inside.shape[1]
        for dimension in range(_ALL_BOXES, points.shape[1]):
            values = points[events, dimension]
            left = (self._low[dimension][boxes] <= values) & (values <= self._high[dimension][boxes])
            events, boxes = events[left], boxes[left]
        return events, boxes


class Closures:
    """A function a subscription, which is asked about each event: what a broker does that has no index."""

    def __init__(self, population: BoxPopulation) -> None:
        boxes = zip(population.low.tolist(), population.high.tolist(), strict=True)
        self._asked = [_closure(low, high) for low, high in boxes]

    def match(self, points: Floats) -> Pairs:
        """(events, subscriptions) of the points [events x dimensions]."""
        rows, subscriptions = [], []
        for row, point in enumerate(points.tolist()):
            found = [number for number, asked in enumerate(self._asked) if asked(point)]
            rows += [row] * len(found)
            subscriptions += found
        return np.array(rows, np.int64), np.array(subscriptions, np.int64)


def _closure(low: list[float], high: list[float]) -> Callable[[list[float]], bool]:
    """A conjunction that stops at the first condition that is not true."""
    terms = list(zip(range(len(low)), low, high, strict=True))

    def asked(point: list[float]) -> bool:
        for dimension, least, most in terms:  # noqa: SIM110 - any() over a generator takes twice as long
            if not least <= point[dimension] <= most:
                return False
        return True

    return asked
