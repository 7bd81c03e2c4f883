"""The observations that PREDICT's regression is fitted to: how long each dictionary of a family would have been right.

At points that double (500, 1,000, 2,000, ... messages), and once between two of them, a dictionary is made as PREDICT
makes it: from the last 500 messages. The substring repository has observed every point before, so its features are
those that PREDICT would have had (equations 5.3.2 and 5.3.3). The MC that would have been right is how many messages
follow until a window of 100 is worse than the dictionary's first one by I.min (1% of it). Where none is, the history
ends first: the right MC is that much at least, and the row says so (`censored`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log2
from typing import Final, NamedTuple

import numpy as np

from lexicast.compression.codecs import ZSTD_DENSE
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.dictionary_content import RECENT
from lexicast.compression.predict import HISTORY, PROBE_MESSAGES, Base
from lexicast.compression.substring_repository import SUBSTRINGS_A_ROUND_MAX, SubstringRepository
from lexicast.compression.substrings import ranked
from lexicast.compression.training import train

TAG_BYTES: Final = 1
WORSE_SHARE: Final = 0.01
SIZE_MEANS: Final = 21
POINTS_MAX: Final = 24


class Observation(NamedTuple):
    """One dictionary: features, the MC that would have been right, and MC.base, what the bootstrap would have said."""

    mean_deviation: float
    mean_score: float
    messages: float
    base: float
    mean_bytes: float
    reduction: float
    censored: bool


class Fit(NamedTuple):
    """One model on all observations: how well it explains them, and its mean error in doublings on unseen families (NaN
    where there is none: too few observations without it)."""

    name: str
    r2: float
    rmse: float
    unseen_doublings: float
    intercept: float
    coefficients: tuple[float, ...]


class Regression(NamedTuple):
    """What came out. `bootstrap_doublings`: the error of MC.base on the same observations."""

    observations: list[tuple[bytes, Observation]]
    fits: list[Fit]
    bootstrap_doublings: float
    residuals: list[float]

    @property
    def pays(self) -> bool:
        """Whether the thesis' model, which is what PREDICT has features for, is known to be better than MC.base."""
        return self.fits[0].unseen_doublings < self.bootstrap_doublings  # not where it is NaN: nothing is known


def replay_points(count: int) -> list[int]:
    """Where dictionaries are made: 500, 750, 1,000, 1,500, ... as long as two windows follow."""
    found: list[int] = []
    at = HISTORY[-1]
    while at + 2 * PROBE_MESSAGES <= count and len(found) < POINTS_MAX:
        found.append(at)
        if at * 3 // 2 + 2 * PROBE_MESSAGES <= count:
            found.append(at * 3 // 2)
        at *= 2
    return sorted(found)


def replay(messages: Sequence[bytes], links: int = 2) -> Iterator[Observation]:
    """The observations of one family's messages, oldest first; `links`: |P| + |S|."""
    kept = [message for message in messages if message]
    repository = SubstringRepository()
    for at in replay_points(len(kept)):
        recent = kept[at - HISTORY[-1] : at]
        repository.observe(ranked(recent, SUBSTRINGS_A_ROUND_MAX), len(recent))
        mean = sum(map(len, recent)) / len(recent)
        made = train(recent, max(256, int(SIZE_MEANS * mean)), ZSTD_DENSE, RECENT, family=b"replay")
        right, promised, censored = _right(made, kept[at:])
        features = repository.features()
        base = Base.DERIVED.messages(len(made.pack()) * links, mean, promised)
        yield Observation(*features, right, base, mean, promised, censored)


def _right(made: Dictionary, later: Sequence[bytes]) -> tuple[float, float, bool]:
    """(messages until it is worse by I.min, its reduction in the first window, whether the history ended first)."""
    codec = made.build()
    promised = 0.0
    for window in range(len(later) // PROBE_MESSAGES):
        messages = later[window * PROBE_MESSAGES : (window + 1) * PROBE_MESSAGES]
        sent = sum(TAG_BYTES + len(codec.encode(message)[1]) for message in messages)
        reduction = 100 - 100 * sent / sum(map(len, messages))
        if window == 0:
            promised = reduction
        elif promised - reduction >= abs(promised) * WORSE_SHARE:
            return float((window + 1) * PROBE_MESSAGES), promised, False
    return float(len(later) // PROBE_MESSAGES * PROBE_MESSAGES), promised, True


def error_doublings(predicted: float, right: float) -> float:
    """How far a prediction is off: in doublings, as MC is doubled and halved."""
    return abs(log2(max(predicted, 1.0) / max(right, 1.0)))


def fitted_plane(rows: Sequence[Observation]) -> tuple[float, float, float]:
    """Ordinary least squares of the right MC on the two features: intercept and coefficients."""
    matrix = np.array([(1.0, row.mean_deviation, row.mean_score) for row in rows])
    solution, *_ = np.linalg.lstsq(matrix, np.array([row.messages for row in rows]), rcond=None)
    return float(solution[0]), float(solution[1]), float(solution[2])
