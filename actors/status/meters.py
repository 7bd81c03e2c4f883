"""The meters of an actor, which measures itself so that whoever asks need not ask twice. Pure: times are given.

`Meter` turns counters into rates over the last seconds; `Durations` is a histogram; `Trend` says when a level that
grows reaches its limit; `Since` remembers how long something has been so, looked at now and then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Any, Final

RATE_SAMPLES: Final = 5
TREND_SAMPLES: Final = 60
TREND_PERIOD_S: Final = 10.0
# A trend over less than this says nothing.
TREND_S_MIN: Final = 60.0


class Meter:
    """The rates of some counters, over the last RATE_SAMPLES samples."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, int]]] = deque(maxlen=RATE_SAMPLES + 1)

    def sample(self, now_s: float, counters: dict[str, int]) -> None:
        """The counters as they stand; to be called about once a second."""
        self._samples.append((now_s, counters))

    def rates(self) -> dict[str, float]:
        """Name -> growth a second; 0 where there are fewer than two samples."""
        if not self._samples:
            return {}
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        seconds = max(last_s - first_s, 1e-3)
        return {name: round(max(0, count - first.get(name, 0)) / seconds, 1) for name, count in last.items()}


class Durations:
    """How long something took, counted by limits: a histogram."""

    LIMITS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

    def __init__(self) -> None:
        self.counts = [0] * (len(self.LIMITS_S) + 1)
        self.sum_s = 0.0

    def note(self, seconds: float) -> None:
        """It took so long."""
        self.counts[bisect_left(self.LIMITS_S, seconds)] += 1
        self.sum_s += seconds

    def status(self) -> dict[str, Any]:
        """{"limits_s", "counts": at or below each limit and above the one before, then the rest, "sum_s"}."""
        return {"limits_s": list(self.LIMITS_S), "counts": list(self.counts), "sum_s": round(self.sum_s, 6)}


class Trend:
    """How fast a level grows, over the last ten minutes."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=TREND_SAMPLES + 1)

    def due(self, now_s: float) -> bool:
        """Whether another sample is due."""
        return not self._samples or now_s - self._samples[-1][0] >= TREND_PERIOD_S

    def sample(self, now_s: float, level: int) -> None:
        """The level as it stands."""
        self._samples.append((now_s, level))

    def seconds_left(self, room: int) -> float | None:
        """Seconds until `room` more are used at the present pace; None: it does not grow, or nobody can tell yet."""
        if not self._samples:
            return None
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        if last_s - first_s < TREND_S_MIN or last <= first:
            return None
        return room * (last_s - first_s) / (last - first)


class Since:
    """Of each key that is so: since when, as far as was looked."""

    def __init__(self) -> None:
        self._since: dict[object, float] = {}

    def look(self, now_s: float, true: set[object]) -> None:
        """These are so now; the others are not any more."""
        since = self._since
        self._since = {key: since.get(key, now_s) for key in true}

    def longer_than(self, seconds: float, now_s: float) -> list[object]:
        """Those that have been so for longer."""
        return [key for key, since_s in self._since.items() if now_s - since_s > seconds]
