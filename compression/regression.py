"""PREDICT's model of MC: ordinary least squares on two features (thesis equation 5.3.5 and section 5.3.2)."""

from __future__ import annotations

from math import isfinite
from typing import Final

import numpy as np

from .repository import Features

OBSERVATIONS_MIN: Final = 6
OBSERVATIONS_MAX: Final = 64


class MessageCountModel:
    """Learns after how many messages (MC) dictionaries of this family had to be looked at again.

    Silent until OBSERVATIONS_MIN observations exist. A prediction never leaves the observed range by more than a
    factor of two: with few points the fitted plane soon points anywhere. Only the newest OBSERVATIONS_MAX are kept.
    """

    def __init__(self) -> None:
        self._observations: list[tuple[Features, float]] = []

    def __len__(self) -> int:
        return len(self._observations)

    def record(self, features: Features, messages: float) -> None:
        """A new observation."""
        self._observations.append((features, messages))
        del self._observations[:-OBSERVATIONS_MAX]

    def correct(self, messages: float) -> None:
        """The newest observation turned out to be `messages`. Raises ValueError when there is none."""
        if not self._observations:
            raise ValueError("no observation to correct")
        self._observations[-1] = (self._observations[-1][0], messages)

    def state(self) -> list[list[float]]:
        """The observations, for a successor."""
        return [[*seen, messages] for seen, messages in self._observations]

    def restore(self, state: list[list[float]]) -> None:
        """Go on from a predecessor's `state`. Raises ValueError or TypeError, nothing changed, when it is none."""
        rows = [[float(number) for number in row] for row in state]
        if any(len(row) != 1 + len(Features._fields) or not all(map(isfinite, row)) for row in rows):
            raise ValueError("observations have a number a feature and a count")
        self._observations = [(Features(*row[:-1]), row[-1]) for row in rows][-OBSERVATIONS_MAX:]

    def predict(self, features: Features) -> float | None:
        """MC for these features; None while there are too few observations."""
        if len(self._observations) < OBSERVATIONS_MIN:
            return None
        rows = np.array([(1.0, *seen) for seen, _ in self._observations])
        counts = np.array([messages for _, messages in self._observations])
        solution, *_ = np.linalg.lstsq(rows, counts, rcond=None)
        predicted = float(np.array((1.0, *features)) @ solution)
        return min(max(predicted, float(counts.min()) / 2), 2 * float(counts.max()))
