"""What a scan of a cell costs, measured: CPU seconds by subscriptions in the cell and events that are matched at once.

Simulated matchers are busy for that long. Between the measured sizes costs are interpolated in logarithms, beyond the
largest they grow as the size; a scan takes so many events at once, more are several scans.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

import numpy as np

from lexicast.cluster.hpartition.matcher_cells import CellBoxes
from lexicast.cluster.hpartition.segments import Floats, Integers

from .population import BoxPopulation

SIZES: Final = (1, 16, 64, 256, 1_024, 4_096, 16_384, 65_536)
EVENTS: Final = (1, 2, 4, 8, 16)
_ROUNDS: Final = 5
_ROUND_S: Final = 0.004


class ScanCost(NamedTuple):
    """`seconds` [sizes x events at once] of one call each."""

    measured_s: Floats

    def seconds(self, subscriptions: Integers, events: Integers) -> Floats:
        """Of matching so many events of a cell with so many subscriptions, both [scans]."""
        whole, left = np.divmod(events, EVENTS[-1])
        full = self._interpolated(subscriptions, np.full_like(events, EVENTS[-1]))
        rest = np.where(left > 0, self._interpolated(subscriptions, np.maximum(left, 1)), 0.0)
        return whole * full + rest

    def call_comparisons(self) -> int:
        """What a call for one event costs beside comparisons, in comparisons of an event with a subscription."""
        alone = self.measured_s[:, 0]
        each = (alone[-1] - alone[0]) / (SIZES[-1] - SIZES[0])
        return round(float(alone[0] / each))

    def _interpolated(self, subscriptions: Integers, events: Integers) -> Floats:
        logs = np.log(self.measured_s)
        size = np.interp(np.log(np.maximum(subscriptions, 1)), np.log(SIZES), np.arange(len(SIZES)))
        batch = np.interp(np.log(events), np.log(EVENTS), np.arange(len(EVENTS)))
        row, column = np.minimum(size.astype(int), len(SIZES) - 2), np.minimum(batch.astype(int), len(EVENTS) - 2)
        right, above = size - row, batch - column
        lower = logs[row, column] * (1 - right) + logs[row + 1, column] * right
        upper = logs[row, column + 1] * (1 - right) + logs[row + 1, column + 1] * right
        return np.asarray(np.exp(lower * (1 - above) + upper * above) * np.maximum(1.0, subscriptions / SIZES[-1]))


def measured_cost(population: BoxPopulation, dice: np.random.Generator) -> ScanCost:
    """The least of some rounds each: other processes only ever slow one down."""
    points = population.events(64, dice)
    found = np.empty((len(SIZES), len(EVENTS)))
    for row, size in enumerate(SIZES):
        boxes = CellBoxes(population.setting.dimensions)
        for number in dice.integers(0, len(population.low), size).tolist():
            boxes.put(len(boxes), population.low[number], population.high[number])
        for column, events in enumerate(EVENTS):
            found[row, column] = min([_call_s(boxes, points, events) for _ in range(_ROUNDS)])
    return ScanCost(found)


def _call_s(boxes: CellBoxes, points: Floats, events: int) -> float:
    begun, calls = time.process_time(), 0
    while (taken := time.process_time() - begun) < _ROUND_S:
        at = calls * events % (len(points) - events + 1)
        boxes.match(points[at : at + events])
        calls += 1
    return taken / calls
