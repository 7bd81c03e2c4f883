"""The clock, injected: cores never read one, shells hand it to them.

Two times, never mixed: *wall-clock* microseconds since 1970 (UTC) are stored and shown, and may jump; *monotonic*
seconds measure how long something took or may take, and mean nothing outside their process.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

US_PER_S: Final = 1_000_000


class Clock(Protocol):
    """What every shell takes instead of calling `time`."""

    def time_us(self) -> int:
        """Wall-clock microseconds since 1970-01-01T00:00:00Z. May go back when somebody sets the clock."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start. Never goes back."""
        ...


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def time_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to: for tests and for the simulator."""

    __slots__ = ("_monotonic", "_time_us")

    def __init__(self, time_us: int = 1_700_000_000 * US_PER_S, monotonic: float = 0.0) -> None:
        self._time_us = time_us
        self._monotonic = monotonic

    def time_us(self) -> int:
        return self._time_us

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on both times. Raises ValueError when negative: time that passes does not go back."""
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds} s: use jump() to set the wall clock back")
        self._monotonic += seconds
        self._time_us += round(seconds * US_PER_S)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back by `seconds`, as an operator or NTP would; the monotonic time stays."""
        self._time_us += round(seconds * US_PER_S)
