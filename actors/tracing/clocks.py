"""The clocks of several machines, compared by asking for the time. Pure.

As NTP does it (RFC 5905, section 8): what the other clock said is held against the middle between question and answer,
and is at most half of the time between them off. Where that explains the difference the clocks count as the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class ClockOffset(NamedTuple):
    """How far another clock is ahead of ours, known up to `uncertain_us`."""

    ahead_us: int
    uncertain_us: int

    def ours(self, time_us: int) -> int:
        """What our clock said when the other one said `time_us`."""
        return time_us - self.ahead_us

    def beyond(self, other: ClockOffset) -> ClockOffset:
        """Of a clock that is this far ahead of one that is `other` ahead of ours."""
        return ClockOffset(self.ahead_us + other.ahead_us, self.uncertain_us + other.uncertain_us)


SAME_CLOCK = ClockOffset(0, 0)


def clock_offset(asked: Iterable[tuple[int, int, int]]) -> ClockOffset:
    """`asked`: of each question when it was asked, what the other clock said, and when that came, in microseconds. The
    quickest answer counts."""
    asked_us, said_us, came_us = min(asked, key=lambda each: each[2] - each[0])
    uncertain_us = -(-max(0, came_us - asked_us) // 2)
    ahead_us = said_us - (asked_us + came_us) // 2
    return ClockOffset(ahead_us if abs(ahead_us) > uncertain_us else 0, uncertain_us)
