"""What drills took, as percentiles. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

AT_ONCE_S: Final = 0.5


def percentile(values: Sequence[float], percent: int) -> float | None:
    """The least value that is at least as large as `percent` of them; None of none."""
    ordered = sorted(values)
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)] if ordered else None


def in_ms(seconds: float | None) -> float | None:
    """The same in ms."""
    return None if seconds is None else 1e3 * seconds


@dataclass(frozen=True, slots=True)
class Drilled:
    """One drill. `elsewhere_s`: the longest delay of a message that was under way or sent after the fault, between
    clients that were connected elsewhere; `returned_s`: of each subscriber that was connected there, till its first
    message that was published after the fault."""

    kind: str
    elsewhere_s: float
    returned_s: tuple[float, ...] = ()
    longest: str = ""  # whose the longest delay was
    quiet_s: float = 0.0  # the longest one before the fault
    at_once_s: float = 0.0  # of what was under way when it struck, or sent AT_ONCE_S later at most
    control_s: float = 0.0  # the longest one to subscribers that are not measured


@dataclass(slots=True)
class Spell:
    """Delays of the messages of one time span, and where the clients were at its end."""

    name: str
    delays_s: list[float] = field(default_factory=list)
    spread: tuple[int, ...] = ()

    def row(self) -> list[float | None]:
        """Table 2's columns in ms: median, mean, deviation, p90, p95, p99; and the longest."""
        values = [1e3 * value for value in self.delays_s]
        if not values:
            return [None] * 7
        middle = (statistics.median(values), statistics.fmean(values), statistics.pstdev(values))
        return [*middle, *(percentile(values, percent) for percent in (90, 95, 99)), max(values)]
