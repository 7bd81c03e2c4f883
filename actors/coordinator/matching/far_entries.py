"""The matchers over which others are asked: which question went where, which of these ways seems to be blocked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lexicast.cluster.protocol.messages import ROUTE, pack_message

from ...link.link import Link

# An entry over which something was not answered in time is not used for so long, where there are others.
AVOIDED_S: Final = 1.0


class HopsTaken:
    """Answers that came over the overlay, and how many hops between matchers their questions took."""

    __slots__ = ("answers", "hops", "hops_max")

    def __init__(self) -> None:
        self.answers = self.hops = self.hops_max = 0

    def add(self, hops: int) -> None:
        """One more answer."""
        self.answers += 1
        self.hops += hops
        self.hops_max = max(self.hops_max, hops)


class _FarQuestion:
    """A question that is under way."""

    __slots__ = ("entry", "name", "since_s")

    def __init__(self, entry: Link, name: str, since_s: float) -> None:
        self.entry = entry
        self.name = name
        self.since_s = since_s


class FarEntries:
    """See the module's docstring. False as long as there are none."""

    def __init__(self) -> None:
        self.count = HopsTaken()
        self.asked = self.lost = 0
        # Until when they are avoided.
        self._entries: dict[Link, float] = {}
        # In the order in which they were asked.
        self._questions: dict[int, _FarQuestion] = {}

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def under_way(self) -> bool:
        """Whether something may still be answered."""
        return bool(self._questions)

    def told(self, link: Link, routes: bool) -> None:
        """A matcher says whether it routes."""
        if routes:
            self._entries[link] = 0.0
        else:
            self._entries.pop(link, None)

    def ask(self, number: int, name: str, question: tuple[Any, ...], now_s: float) -> Link:
        """Have a question routed to the matcher of that name; gathered on the link that is returned."""
        entries = list(self._entries)
        entry = entries[number % len(entries)]
        if self._entries[entry] > now_s:
            entry = min(entries, key=lambda each: self._entries[each])
        self.asked += 1
        self._questions[number] = _FarQuestion(entry, name, now_s)
        no_path: tuple[str, ...] = ()
        entry.gather((ROUTE, number, name, no_path, pack_message(question)))
        return entry

    def returned(self, entry: Link, number: int) -> str:
        """Whom a question was for that has come back by an entry; "": nobody waits for it any more."""
        if entry in self._entries:
            self._entries[entry] = 0.0
        question = self._questions.pop(number, None)
        return question.name if question is not None else ""

    def gone(self, link: Link) -> Sequence[tuple[int, str]]:
        """A link has ended: the questions that went over it, with the names of whom they were for."""
        self._entries.pop(link, None)
        lost = [(number, question.name) for number, question in self._questions.items() if question.entry is link]
        for number, _ in lost:
            del self._questions[number]
        return lost

    def late(self, before_s: float) -> list[str]:
        """The matchers that have not answered questions which were asked before that time, and which are forgotten."""
        names: dict[str, None] = {}
        for number, question in list(self._questions.items()):
            if question.since_s >= before_s:
                break
            names[question.name] = None
            self._avoid(question.entry, question.since_s)
            del self._questions[number]
        return list(names)

    def _avoid(self, entry: Link, since_s: float) -> None:
        if entry in self._entries:
            self._entries[entry] = since_s + AVOIDED_S

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        count = self.count
        return {
            "entries": len(self._entries),
            "routed": self.asked,
            "lost": self.lost,
            "hops_mean": round(count.hops / count.answers, 3) if count.answers else 0.0,
            "hops_max": count.hops_max,
        }
