"""What became of the sessions of a fault, as figures and curves. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..figures import percentile
from .cases import Case
from .plans import Fate
from .session_audit import WHATS

NS_PER_MS = 1e6


@dataclass(slots=True)
class TakeOver:
    """One fault, and what became of the sessions that it struck."""

    case: Case
    hit_ns: int
    fates: list[Fate]
    reconnects: int = 0
    """Of publishers, which are connected elsewhere."""
    load: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    """Of the brokers and coordinators that live on, from the fault till the last one was served."""
    problems: list[str] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        """`session_audit`'s, of all sessions."""
        found = Counter(dict.fromkeys(WHATS, 0))
        for fate in self.fates:
            found.update(fate.counts)
        return found

    @property
    def served(self) -> list[Fate]:
        """Those that went on: CONNACK that knew the session, and a message published since."""
        return [fate for fate in self.fates if fate.accepted_ns and fate.first_ns and not fate.anew]

    def after_detection_ms(self) -> list[float]:
        """Of each that is served: from the end of its connection till then."""
        return self._ms(lambda fate: max(fate.first_ns, fate.accepted_ns) - fate.lost_ns)

    def accepted_ms(self) -> list[float]:
        """The same till CONNACK."""
        return self._ms(lambda fate: fate.accepted_ns - fate.lost_ns)

    def living_ms(self) -> list[float]:
        """The same from the beginning of the try that was accepted: what came before is the client's list."""
        return self._ms(lambda fate: max(fate.first_ns, fate.accepted_ns) - fate.living_ns)

    def after_hit_ms(self) -> list[float]:
        """Of each that is served: from the fault till then."""
        return self._ms(lambda fate: max(fate.first_ns, fate.accepted_ns) - self.hit_ns)

    def detected_ms(self) -> list[float]:
        """Of each that is served: from the fault till the end of its connection."""
        return self._ms(lambda fate: fate.lost_ns - self.hit_ns)

    def migrated_ms(self) -> list[float]:
        """Of each that is served: from the fault till CONNACK, ascending: the paper's figure 3a."""
        return sorted(self._ms(lambda fate: fate.accepted_ns - self.hit_ns))

    def lasted_ms(self) -> float | None:
        """Till the last one is served: the paper's figure 3b. None: not all were."""
        return max(self.after_hit_ms()) if self.fates and len(self.served) == len(self.fates) else None

    def cpu_ms(self) -> float:
        """`cpu_s` for each session, all that is delivered meanwhile included."""
        return 1e3 * sum(self.cpu_s.values()) / max(1, len(self.fates))

    def repeats(self) -> list[int]:
        """Of each session."""
        return [fate.counts.get("repeated", 0) + fate.counts.get("repeated_qos2", 0) for fate in self.fates]

    def oldest_repeat_ms(self) -> float:
        """How long before the loss the oldest of what was repeated had been delivered."""
        return max([fate.oldest_repeat_ns for fate in self.fates], default=0) / NS_PER_MS

    def _ms(self, of: Callable[[Fate], int]) -> list[float]:
        return [of(fate) / NS_PER_MS for fate in self.served]

    def lacks(self) -> list[str]:
        """What is not as it must be, in words."""
        counts, told = self.counts, list(self.problems)
        told += [f"{counts[what]} {what}" for what in ("lost", "disorder", "doubled", "unexplained") if counts[what]]
        if anew := sum([fate.anew > 0 for fate in self.fates]):
            told.append(f"{anew} sessions were not there any more")
        if away := len(self.fates) - len(self.served) - anew:
            told.append(f"{away} sessions were not served again")
        return [f"{self.case.name}: {each}" for each in told]


@dataclass(slots=True)
class Storm:
    """All sessions of a broker that come back at once, and how others fared. `before_ms`, `meanwhile_ms`: delays of the
    others' deliveries."""

    hit_ns: int
    fates: list[Fate]
    before_ms: list[float]
    meanwhile: list[tuple[float, float]]
    """(when published, s after the fault; delay in ms)"""
    others_counts: Counter[str] = field(default_factory=Counter)
    load: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    """As of a `TakeOver`."""
    problems: list[str] = field(default_factory=list)

    def back_s(self) -> list[float]:
        """Till CONNACK, ascending, of those that are back."""
        return sorted([(fate.accepted_ns - self.hit_ns) / 1e9 for fate in self.fates if fate.accepted_ns])

    def took_s(self) -> float | None:
        """Till the last one is back; None: not all are."""
        back = self.back_s()
        return back[-1] if back and len(back) == len(self.fates) and not self.anew else None

    def cpu_ms(self) -> float:
        """`cpu_s` for each client."""
        return 1e3 * sum(self.cpu_s.values()) / max(1, len(self.fates))

    @property
    def anew(self) -> int:
        """How many sessions were not there any more."""
        return sum([fate.anew > 0 for fate in self.fates])

    def refused_s(self) -> list[float]:
        """Of each that was refused or kept waiting: from then till it was back."""
        return [(f.accepted_ns - f.refused_ns) / 1e9 for f in self.fates if f.refused_ns and f.accepted_ns]

    def others_p99_ms(self) -> float | None:
        """Of what others got meanwhile."""
        return percentile([delay_ms for _, delay_ms in self.meanwhile], 99)

    def lacks(self) -> list[str]:
        """What is not as it must be, in words."""
        told = list(self.problems)
        if self.anew:
            told.append(f"{self.anew} sessions were not there any more")
        if away := len(self.fates) - len(self.back_s()):
            told.append(f"{away} clients are not back")
        told += [f"{count} {what} at others" for what, count in self.others_counts.items() if count]
        return [f"storm: {each}" for each in told]


def middle(values: Sequence[float | None]) -> float | None:
    """The median of the rounds that have one: the lower one of two."""
    return percentile([value for value in values if value is not None], 50)
