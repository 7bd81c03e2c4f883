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


class TrustedTime:
    """The time by which things may be discarded for good: the wall clock's, unless that has jumped. Pure.

    A clock that is set forward by more than `jump_max_s` (a board without a battery that has found a time server, a
    mistyped year), seen against the monotonic clock, or at the start against `known_us`, the newest time that was
    stored, is not believed at once: time goes on from where it was, until the clock has run on without another jump for
    `confirm_s`. A clock that is set back is believed: nothing is discarded sooner for it.

    Not to be told from a jump: a suspended machine, and at the start a process that was down. Then things are kept
    `confirm_s` longer than they had to be.
    """

    __slots__ = ("_confirm_s", "_jump_max_us", "_monotonic", "_since", "_trusted_us", "_wall_us")

    def __init__(
        self, wall_us: int, monotonic: float, known_us: int, jump_max_s: float = 3_600.0, confirm_s: float = 86_400.0
    ) -> None:
        """`known_us` 0: nothing is known."""
        self._jump_max_us = round(jump_max_s * US_PER_S)
        self._confirm_s = confirm_s
        self._trusted_us = wall_us if known_us == 0 else min(wall_us, known_us)
        self._wall_us = wall_us
        self._monotonic = self._since = monotonic
        if wall_us <= self._trusted_us + self._jump_max_us:
            self._trusted_us = wall_us

    @property
    def held_s(self) -> float:
        """By how much the wall clock is ahead of what is believed."""
        return max(0, self._wall_us - self._trusted_us) / US_PER_S

    def left_s(self, monotonic: float) -> float:
        """For how long it has to run on until it is believed; 0 when it is."""
        return max(0.0, self._since + self._confirm_s - monotonic) if self.held_s else 0.0

    def us(self, wall_us: int, monotonic: float) -> int:
        """The time that may be believed now. To be asked every minute or so at least."""
        elapsed_us = round((monotonic - self._monotonic) * US_PER_S)
        if wall_us > self._wall_us + elapsed_us + self._jump_max_us:
            self._since = monotonic  # a jump
        self._trusted_us += elapsed_us
        self._wall_us, self._monotonic = wall_us, monotonic
        near = wall_us <= self._trusted_us + self._jump_max_us
        if near or monotonic - self._since >= self._confirm_s:
            self._trusted_us = wall_us
        return self._trusted_us


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
