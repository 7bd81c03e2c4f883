"""The budget of sampling: shares of a stream for each family, and CPU for training. Pure: the caller tells the time.

**Shares.** A unit is a record of up to UNIT_BYTES bytes. Each period of PERIOD_S brings `units_per_s * PERIOD_S` of
them; unused ones are kept, up to BURST_PERIODS periods' worth. In a period no family gets more than what there is
divided by one more than the number of families of the period before. So a flood is *sampled* and costs no more than
the rest leaves, a family below its share is *followed* (all of its messages are looked at, whatever the others do),
and one that begins finds its share free.

**CPU.** A token bucket of CPU seconds, filled at a share of one core. Trainings are charged what they took; the next
one waits until the bucket is no longer empty. A full bucket (BURST_S) pays for the first dictionaries of a new cluster
at once, when they are worth most.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from lexicast.compression.families import looks_like_id

PERIOD_S: Final = 0.25
BURST_PERIODS: Final = 20
UNIT_BYTES: Final = 1_024
BURST_S: Final = 20.0
KEYS_MAX: Final = 10_000


class Shares:
    """Divides a stream's budget among its families; see the module's docstring."""

    def __init__(self, units_per_s: float) -> None:
        """Raises ValueError unless `units_per_s` is positive."""
        if units_per_s <= 0:
            raise ValueError(f"a budget of {units_per_s} records/s: it must be positive")
        self._units = max(1, int(units_per_s * PERIOD_S))
        self._left = self._most = BURST_PERIODS * self._units
        self._share = 0
        self._ends_at = float("-inf")
        self._taken: dict[bytes, int] = {}
        self._patterns: OrderedDict[bytes, bytes] = OrderedDict()

    def spent(self, now_s: float) -> bool:
        """Whether nothing may be taken until the period ends; the cheap question before `take`."""
        return self._left <= 0 and now_s < self._ends_at

    def take(self, topic: bytes, records: int, record_bytes: int, now_s: float) -> int:
        """How many of `records` messages of a topic, each of about `record_bytes`, may be looked at; they are taken."""
        if now_s >= self._ends_at:
            self._begin(now_s)
        pattern = self._pattern(topic)
        taken = self._taken.get(pattern, 0)
        cost = 1 + max(0, record_bytes - 1) // UNIT_BYTES
        room = min(self._share - taken, self._left)
        # A message is taken whole; what it takes too much, later periods have less.
        count = min(records, -(-room // cost)) if room > 0 else 0
        if len(self._taken) < KEYS_MAX:
            self._taken[pattern] = taken + count * cost
        self._left -= count * cost
        return count

    def _begin(self, now_s: float) -> None:
        self._left = min(self._most, self._left + self._units)
        self._share = max(1, self._left // max(2, 1 + len(self._taken)))
        self._taken.clear()
        self._ends_at = now_s + PERIOD_S

    def _pattern(self, topic: bytes) -> bytes:
        """The topic with `+` for what looks like an id: what can be said of its family without learning."""
        pattern = self._patterns.get(topic)
        if pattern is None:
            pattern = b"/".join([b"+" if looks_like_id(level) else level for level in topic.split(b"/")])
            self._patterns[topic] = pattern
            if len(self._patterns) > KEYS_MAX:
                self._patterns.popitem(last=False)
        return pattern


class CpuBudget:
    """CPU seconds for training; see the module's docstring."""

    def __init__(self, percent: float, now_s: float, burst_s: float = BURST_S) -> None:
        """`percent` of one core. Raises ValueError unless both are positive."""
        if percent <= 0 or burst_s <= 0:
            raise ValueError(f"{percent}% of a core with a burst of {burst_s} s: both must be positive")
        self._rate = percent / 100
        self._burst_s = burst_s
        self._left_s = burst_s
        self._at_s = now_s

    def charge(self, cpu_s: float, now_s: float) -> None:
        """`cpu_s` were used."""
        self._fill(now_s)
        self._left_s -= cpu_s

    def wait_s(self, now_s: float) -> float:
        """How long until something may be begun; 0: now."""
        self._fill(now_s)
        return max(0.0, -self._left_s / self._rate)

    def _fill(self, now_s: float) -> None:
        self._left_s = min(self._burst_s, self._left_s + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
