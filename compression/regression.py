"""PREDICT's model of MC: ordinary least squares on two features (thesis equation 5.3.5 and section 5.3.2).

A family learns its own model, from its own dictionaries. Until it has enough of them it may borrow one: the regression
that was fitted to the history of all families (`raydp_jobs.jobs.train_regression`) is published as its
observations, in JSON, and every family that is still in its bootstrap starts from those (`MessageCountModel.warm`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from lexicast.cluster.errors import UsageError

from .substring_repository import Features

OBSERVATIONS_MIN: Final = 6
OBSERVATIONS_MAX: Final = 64

MODEL_VERSION: Final = 1
MODEL_BYTES_MAX: Final = 64 * 1024
MESSAGES_MAX: Final = 1e12
"""More messages than any family will ever have between two looks."""

Observation: TypeAlias = tuple[Features, float]
"""Features of a dictionary, and after how many messages it had to be looked at again."""

_NOTHING: Final = Features(0.0, 0.0)


class PublishedModel(NamedTuple):
    """A regression as it is published; the later `created_us` counts."""

    created_us: int
    observations: tuple[Observation, ...]


def pack_model(observations: Sequence[Sequence[float]], created_us: int, plane: Sequence[float]) -> bytes:
    """The published form: of the observations (features, then MC) at most OBSERVATIONS_MAX, spread over all of them.

    `plane`: intercept and coefficients that were fitted to all, for who looks at it.
    """
    spread = np.linspace(0, len(observations) - 1, min(len(observations), OBSERVATIONS_MAX)).astype(int)
    rows = [list(observations[at]) for at in spread]
    body = {"version": MODEL_VERSION, "created_us": created_us, "plane": list(plane), "observations": rows}
    return json.dumps(body).encode()


def unpack_model(payload: bytes) -> PublishedModel:
    """A published regression. Raises UsageError for what is none, or none that can be right."""
    if len(payload) > MODEL_BYTES_MAX:
        raise UsageError(f"no published regression: {len(payload):,} bytes, {MODEL_BYTES_MAX:,} at most")
    try:
        body: Any = json.loads(payload)
        version, created_us = body["version"], body["created_us"]
        if version != MODEL_VERSION or not isinstance(created_us, int) or created_us < 0:
            raise ValueError(f"version {version!r}, created {created_us!r}; this lexicast reads {MODEL_VERSION}")
        found = tuple(_observations(body["observations"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise UsageError(f"no published regression: {error or type(error).__name__}") from None
    if not OBSERVATIONS_MIN <= len(found) <= OBSERVATIONS_MAX:
        raise UsageError(
            f"a regression of {len(found)} observations: {OBSERVATIONS_MIN} to {OBSERVATIONS_MAX} are right"
        )
    if not all(1 <= messages <= MESSAGES_MAX and min(seen) >= 0 for seen, messages in found):
        raise UsageError("a regression with an observation that cannot be: features are 0 or more, MC is 1 or more")
    return PublishedModel(created_us, found)


def _observations(state: Any) -> list[Observation]:
    """Observations from lists of numbers. Raises ValueError, TypeError or OverflowError when they are none."""
    rows = [[float(number) for number in row] for row in state]
    if any(len(row) != 1 + len(Features._fields) or not all(map(isfinite, row)) for row in rows):
        raise ValueError("observations have a number a feature and a count")
    return [(Features(*row[:-1]), row[-1]) for row in rows]


class MessageCountModel:
    """Learns after how many messages (MC) dictionaries of this family had to be looked at again.

    Silent until OBSERVATIONS_MIN observations exist, its own or borrowed ones (`warm`) with its own; from then on its
    own alone count. A prediction never leaves the observed range by more than a factor of two: with few points the
    fitted plane soon points anywhere. Only the newest OBSERVATIONS_MAX are kept.
    """

    def __init__(self) -> None:
        self._observations: list[Observation] = []
        self._borrowed: tuple[Observation, ...] = ()

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
        self._observations = _observations(state)[-OBSERVATIONS_MAX:]

    @property
    def bootstrapping(self) -> bool:
        """Whether its own observations are still too few."""
        return len(self._observations) < OBSERVATIONS_MIN

    def warm(self, observations: Sequence[Observation]) -> None:
        """Borrow these, in place of those borrowed before, for as long as its own are too few."""
        self._borrowed = tuple(observations)[-OBSERVATIONS_MAX:]

    def predict(self, features: Features) -> float | None:
        """MC for these features; None while there are too few observations."""
        known = self._observations
        if self.bootstrapping:
            # Others' dictionaries say nothing of a family whose substrings have not been looked at yet.
            known = [] if features == _NOTHING else [*self._borrowed, *known]
        if len(known) < OBSERVATIONS_MIN:
            return None
        rows = np.array([(1.0, *seen) for seen, _ in known])
        counts = np.array([messages for _, messages in known])
        solution, *_ = np.linalg.lstsq(rows, counts, rcond=None)
        predicted = float(np.array((1.0, *features)) @ solution)
        return min(max(predicted, float(counts.min()) / 2), 2 * float(counts.max()))
