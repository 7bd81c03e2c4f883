"""Whether what nodes said of themselves in a drill was true, by the drill's own record. Pure: no I/O, no clock.

The record: what was struck, when, and when that was over; when the driver found the cluster whole; which messages were
late; and, of each node, rounds of publications to its broker (`prober`). All times are of one clock. What is true:

A node *cannot serve* from the sending of a round that is not acknowledged (or takes longer than SERVED_S) until one is.

    ready       /health/ready says so `Limits.ready_s` after the node could not serve any more, and still cannot: what
                is published then is not answered within SERVED_S. (Who is silent is not ready, to balancers.)
    not ready   for longer than `Limits.unready_s` it does not say so, or says nothing, of a node that can serve, and
                has served again for as long; at all, before anything struck. It may while the node is drained; and say
                nothing while the console itself is down or starts, where the whole node was struck
    dead        /health/live does not answer, likewise
    all well    the page says that nothing is wrong, or does not name what is lost (a node, a process, as long as it was
                kept away; a disk), `Limits.page_s` after it was struck. The page of what is struck itself need not name
                it, but may not say that all is well. Nor may any while a message between clients that are connected
                elsewhere is on its way for longer than `Limits.page_s`
    alarm       the page says that something is wrong before anything struck, or `Limits.page_s` after all was whole,
                and the driver's own question of that moment does not
    untold      of a process that was killed the page's events never tell
    unasked     for GAP_S nobody asked the node: then nothing is known

Each is a lie. How long the longest one of a kind lasted is measured also where it stays within its limit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

# Slower than any acknowledgement without a fault, on a machine that is busy.
SERVED_S: Final = 1.0
OK: Final = 200
# Longer than any answer is waited for.
GAP_S: Final = 8.0
_NUMBER: Final = re.compile(r"\d[\d,.]*")

READY, UNREADY, DEAD, WELL, ALARM, UNTOLD = "ready", "not ready", "dead", "all well", "alarm", "untold"
UNASKED = "unasked"
LIES: Final = (READY, UNREADY, DEAD, WELL, ALARM, UNTOLD, UNASKED)


class Limits(NamedTuple):
    """For how long each may be wrong, s; see the module's docstring."""

    ready_s: float
    unready_s: float
    page_s: float


class TimeSpan(NamedTuple):
    """From when till when."""

    from_s: float
    to_s: float


class HealthAnswer(NamedTuple):
    """One about health. `status`: of HTTP, 0: none came."""

    asked_s: float
    answered_s: float
    status: int


class PageAnswer(NamedTuple):
    """`wrong`: what is, in the page's words; `off`: what it does not show as serving. None, (): no answer came."""

    asked_s: float
    answered_s: float
    wrong: tuple[str, ...] | None
    off: tuple[str, ...] = ()

    def names(self, names: Collection[str], known: Collection[str]) -> bool:
        """Whether it tells of one of these, beside what is known."""
        told = (*self.wrong_beside(known), *self.off)
        return any(name in text for text in told for name in names)

    def is_well(self, known: Collection[str]) -> bool:
        """Whether it says that nothing is wrong but what is known."""
        return self.wrong is not None and not self.off and not self.wrong_beside(known)

    def wrong_beside(self, known: Collection[str]) -> tuple[str, ...]:
        """What is wrong but for what is known, whatever the numbers in it."""
        return tuple(text for text in self.wrong or () if without_numbers(text) not in known)


class CanaryRound(NamedTuple):
    """Publications to the node's broker. `served`: all were acknowledged, at `answered_s`."""

    asked_s: float
    answered_s: float
    served: bool


class PageEvents(NamedTuple):
    """What the page's list of events has got."""

    answered_s: float
    texts: tuple[str, ...]


@dataclass(slots=True)
class NodeAnswers:
    """All that a node's prober has noted, in order."""

    live: list[HealthAnswer] = field(default_factory=list)
    ready: list[HealthAnswer] = field(default_factory=list)
    pages: list[PageAnswer] = field(default_factory=list)
    rounds: list[CanaryRound] = field(default_factory=list)
    events: list[PageEvents] = field(default_factory=list)

    def note(self, line: Sequence[Any]) -> None:
        """One of the prober's lines."""
        what, asked_s, answered_s, told = line
        if what in ("live", "ready"):
            (self.live if what == "live" else self.ready).append(HealthAnswer(asked_s, answered_s, told))
        elif what == "page":
            said = (None, ()) if told is None else (tuple(told["wrong"]), tuple(told["off"]))
            self.pages.append(PageAnswer(asked_s, answered_s, *said))
        elif what == "events":
            self.events.append(PageEvents(answered_s, tuple(told)))
        else:
            self.rounds.append(CanaryRound(asked_s, answered_s, told))


@dataclass(frozen=True, slots=True)
class DrillRecord:
    """One drill, as its driver has it.

    `node`: where it struck; `names`: what the page has to name one of, (): nothing; `whole_node`: what struck concerns
    all of that node, its console too; `drains`: it was drained; `killed`: a process was, which Ray starts again.
    Nothing was amiss from `quiet_s` to `hit_s`; the fault was there at `struck_s`, and what it struck was kept away
    until `over_s`; `whole_s`: the driver found everything whole; `until_s`: the next drill is prepared from here on.
    `known`: warnings of the driver's own questions before the drill and at its end, without their numbers. `late`: when
    messages were late. `restarted`: everything was, on the way.
    """

    kind: str
    node: str
    names: tuple[str, ...]
    quiet_s: float
    hit_s: float
    struck_s: float
    over_s: float
    whole_s: float = math.inf
    until_s: float = math.inf
    whole_node: bool = False
    drains: bool = False
    killed: bool = False
    restarted: bool = False
    known: frozenset[str] = frozenset()
    late: tuple[TimeSpan, ...] = ()


class Lie(NamedTuple):
    """`what`: one of LIES; `at_s`: when it ended, after the fault; `lasted_s`: for how long; `told`: what was said."""

    what: str
    kind: str
    node: str
    at_s: float
    lasted_s: float
    told: str = ""

    def __str__(self) -> str:
        told = f": {self.told}" if self.told else ""
        return f"{self.kind}: {self.node} {self.what}, {self.lasted_s:.2f} s, till {self.at_s:+.2f} s{told}"


@dataclass(slots=True)
class Judgement:
    """Of one drill, over all nodes: how long the longest untruth of each kind lasted, s; those beyond the limits."""

    kind: str
    ready_false_s: float = 0.0
    unready_false_s: float = 0.0
    page_false_s: float = 0.0
    page_stale_s: float = 0.0
    lies: list[Lie] = field(default_factory=list)


def without_numbers(text: str) -> str:
    """What stays the same of a sentence while its numbers change."""
    return _NUMBER.sub("#", text)


def outages(rounds: Iterable[CanaryRound]) -> list[TimeSpan]:
    """When a node could not serve, by its rounds, in order."""
    found: list[TimeSpan] = []
    since_s: float | None = None
    for each in rounds:
        if each.served and each.answered_s - each.asked_s <= SERVED_S:
            if since_s is not None:
                found.append(TimeSpan(since_s, each.answered_s))
            since_s = None
        elif each.served:
            found.append(TimeSpan(each.asked_s if since_s is None else since_s, each.answered_s))
            since_s = None
        elif since_s is None:
            since_s = each.asked_s
        last_s = each.answered_s
    if since_s is not None:
        found.append(TimeSpan(since_s, last_s))
    return found


class _Told(NamedTuple):
    """One answer in an outage: whether it tells of that."""

    asked_s: float
    answered_s: float
    is_true: bool


def untrue_until(told: Iterable[_Told], span: TimeSpan) -> float:
    """Till when, within the span, whoever asks all the time believes what is not so: what was told last holds until the
    next answer comes, and at the beginning it is what was so before."""
    until_s, holds = span.to_s, False
    for each in told:
        if span.from_s < each.answered_s < span.to_s:
            if not holds:
                until_s = each.answered_s if each.is_true else span.to_s
            elif not each.is_true:
                until_s = span.to_s
            holds = each.is_true
    return until_s


def _words(pages: Sequence[PageAnswer]) -> str:
    """What a page says, on one line."""
    for page in pages:
        return "no answer" if page.wrong is None else "; ".join((*page.wrong, *page.off)) or "nothing is wrong"
    return "no answer"


def judge(record: DrillRecord, nodes: Mapping[str, NodeAnswers], limits: Limits) -> Judgement:
    """See the module's docstring."""
    found = Judgement(record.kind)
    for node, said in nodes.items():
        _NodeJudge(record, node, said, limits, found).judge()
    return found


class _NodeJudge:
    """One node in one drill."""

    def __init__(self, record: DrillRecord, node: str, said: NodeAnswers, limits: Limits, found: Judgement) -> None:
        self._record = record
        self._node = node
        self._said = said
        self._limits = limits
        self._found = found
        self._outages = [
            each for each in outages(said.rounds) if each.to_s > record.quiet_s and each.from_s < record.until_s
        ]

    def judge(self) -> None:
        """All that it said."""
        self._says_ready()
        self._says_unready()
        self._is_dead()
        self._page_is_well()
        self._page_alarms()
        self._tells()
        self._is_asked()

    def _lie(self, what: str, until_s: float, lasted_s: float, told: str = "") -> None:
        record = self._record
        self._found.lies.append(Lie(what, record.kind, self._node, until_s - record.hit_s, lasted_s, told))

    @property
    def _is_struck(self) -> bool:
        return self._record.whole_node and self._node == self._record.node

    def _says_ready(self) -> None:
        told = [_Told(each.asked_s, each.answered_s, each.status != OK) for each in self._said.ready]
        for outage in self._outages:
            # What is published a moment before its end is answered in time.
            until_s = untrue_until(told, TimeSpan(outage.from_s, max(outage.from_s, outage.to_s - SERVED_S)))
            self._found.ready_false_s = max(self._found.ready_false_s, until_s - outage.from_s)
            if until_s - outage.from_s > self._limits.ready_s:
                self._lie(READY, until_s, until_s - outage.from_s)

    def _may_be_unready(self, moment_s: float, status: int) -> bool:
        """Whether it is no wonder."""
        record, grace_s = self._record, self._limits.unready_s
        if any(each.from_s <= moment_s <= each.to_s + grace_s for each in self._outages):
            return True
        if record.drains and self._node == record.node and record.hit_s <= moment_s <= record.over_s + grace_s:
            return True
        return status == 0 and self._may_be_silent(moment_s)

    def _may_be_silent(self, moment_s: float) -> bool:
        record = self._record
        is_down = self._is_struck or record.restarted
        return is_down and record.hit_s <= moment_s <= record.whole_s + self._limits.unready_s

    def _says_unready(self) -> None:
        for span in self._wrong_spans(self._said.ready, self._may_be_unready):
            self._found.unready_false_s = max(self._found.unready_false_s, span.to_s - span.from_s)
            if self._is_too_long(span):
                self._lie(UNREADY, span.to_s, span.to_s - span.from_s)

    def _is_dead(self) -> None:
        for span in self._wrong_spans(self._said.live, lambda moment_s, _: self._may_be_silent(moment_s)):
            if self._is_too_long(span):
                self._lie(DEAD, span.to_s, span.to_s - span.from_s)

    def _is_too_long(self, span: TimeSpan) -> bool:
        """Before anything struck any time is."""
        return span.from_s < self._record.hit_s or span.to_s - span.from_s > self._limits.unready_s

    def _wrong_spans(self, answers: Iterable[HealthAnswer], may: Any) -> list[TimeSpan]:
        """From the first to the last of answers in a row that are not 200, and may not be so."""
        found: list[TimeSpan] = []
        row = False
        for each in answers:
            within = self._record.quiet_s <= each.asked_s and each.answered_s < self._record.until_s
            wrong = within and each.status != OK and not may(each.answered_s, each.status)
            if wrong and row:
                found[-1] = TimeSpan(found[-1].from_s, each.answered_s)
            elif wrong:
                found.append(TimeSpan(each.asked_s, each.answered_s))
            row = wrong
        return found

    def _page_is_well(self) -> None:
        record, grace_s = self._record, self._limits.page_s
        if self._is_struck:
            for page in self._said.pages:
                is_late = record.struck_s + grace_s < page.asked_s and page.answered_s < record.over_s
                if is_late and page.is_well(record.known):
                    self._lie(WELL, page.asked_s, page.asked_s - record.struck_s, _words([page]))
        elif record.names and record.over_s > record.struck_s:
            told = [
                _Told(each.asked_s, each.answered_s, each.names(record.names, record.known))
                for each in self._said.pages
            ]
            until_s = untrue_until(told, TimeSpan(record.struck_s, record.over_s))
            self._found.page_false_s = max(self._found.page_false_s, until_s - record.struck_s)
            if until_s - record.struck_s > grace_s:
                within = [each for each in self._said.pages if record.struck_s < each.answered_s < until_s]
                self._lie(WELL, until_s, until_s - record.struck_s, _words(within[-1:]))
        for late in record.late:
            for page in self._said.pages:
                is_late = late.from_s + grace_s < page.asked_s and page.answered_s < late.to_s
                if is_late and not self._is_struck and page.is_well(record.known):
                    self._lie(WELL, page.asked_s, page.asked_s - late.from_s, "a message is late")

    def _page_alarms(self) -> None:
        record = self._record
        for page in self._said.pages:
            told = page.wrong_beside(record.known)
            if record.quiet_s <= page.asked_s and page.answered_s < record.hit_s:
                if told or page.wrong is None:
                    self._lie(ALARM, page.answered_s, 0.0, "; ".join(told) or "no answer")
            elif record.whole_s < page.asked_s and page.answered_s < record.until_s and (told or page.wrong is None):
                lasted_s = page.asked_s - record.whole_s
                self._found.page_stale_s = max(self._found.page_stale_s, lasted_s)
                if lasted_s > self._limits.page_s:
                    self._lie(ALARM, page.asked_s, lasted_s, "; ".join(told) or "no answer")

    def _tells(self) -> None:
        record = self._record
        if not record.killed or not record.names or record.restarted:
            return
        texts = [text for each in self._said.events if each.answered_s > record.hit_s for text in each.texts]
        if not any(name in text for text in texts for name in record.names):
            self._lie(UNTOLD, record.until_s, record.until_s - record.hit_s)

    def _is_asked(self) -> None:
        record = self._record
        for answers in (self._said.ready, self._said.live, self._said.pages):
            times = [each.answered_s for each in answers if record.quiet_s < each.answered_s < record.until_s]
            for before_s, after_s in pairwise([record.quiet_s, *times, record.until_s]):
                if after_s - before_s > GAP_S:
                    self._lie(UNASKED, after_s, after_s - before_s)
