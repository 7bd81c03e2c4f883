"""Blocks of which matchers are asked who wants them: in parts, each put to one candidate, then to another, or none.

What is not answered is not vouched for, and goes to everybody whom its topic concerns: a matcher can save work and
nothing else. One that has not answered within ANSWER_S is asked no more until it says something.

Where matchers form an overlay, a coordinator has links to a few, its entries, and asks all others over these
(`far_entries`): what is lost on the way is as if the matcher had been silent.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from lexicast.cluster.blocks import U32, Block
from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import PeerError
from lexicast.cluster.protocol.messages import ASK, BACK, ENTRY, VERDICT, unpack_message

from ...link.link import Link
from .far_entries import FarEntries

ANSWER_S: Final = 0.05
LOOK_S: Final = 0.01
# Records under way to one matcher; what is more is not asked about.
RECORDS_UNDER_WAY_MAX: Final = 65_536
# A matcher that is asked over others and has not answered is asked again after so long: its answer may have been lost.
FAR_SILENT_S: Final = 1.0
# Of those that are remembered; the map of cells has no more.
FAR_MAX: Final = 4_096

# As in COLUMNS: (version of the cells' map, candidates, the records' numbers, rows).
WirePart = tuple[int, tuple[str, ...], bytes, bytes]


class BrokerVerdict(NamedTuple):
    """What a matcher says of one broker: see `cluster.protocol.messages`."""

    incarnation: int
    number: int
    records: bytes


class AskedPart:
    """Some records of a block. `numbers`: of its records; `verdicts`: by broker, None until it is answered."""

    __slots__ = ("block", "candidates", "numbers", "rows", "since_s", "verdicts", "version")

    def __init__(self, block: AskedBlock, wire: WirePart) -> None:
        version, candidates, numbers, rows = wire
        self.block = block
        self.version = version
        self.candidates = list(candidates)
        if len(numbers) % U32:
            raise PeerError("numbers of records are 4 bytes each")
        self.numbers = array("I", numbers)
        self.rows = rows
        self.since_s = 0.0
        self.verdicts: dict[str, BrokerVerdict] | None = None


class AskedBlock:
    """See the module's docstring. `open`: parts that may still be answered; `settled` is called when there is none."""

    __slots__ = ("block", "on_settled", "open", "parts")

    def __init__(self, block: Block, wires: Iterable[WirePart]) -> None:
        """Raises PeerError: they do not fit the block."""
        self.block = block
        self.parts = [AskedPart(self, wire) for wire in wires]
        for part in self.parts:
            if part.numbers and max(part.numbers) >= block.count:
                raise PeerError("columns of records that the entry does not have")
        self.open = len(self.parts)
        self.on_settled: list[Callable[[], None]] = []

    def part_done(self) -> None:
        """One part less is open."""
        self.open -= 1
        if not self.open:
            waiting, self.on_settled = self.on_settled, []
            for each in waiting:
                each()

    def unwanted(self, broker: str, incarnation: int, number: int) -> bool:
        """Whether matchers vouch for it that the broker wants nothing of the block."""
        told = 0
        for part in self.parts:
            verdict = None if part.verdicts is None else part.verdicts.get(broker)
            if verdict is None or verdict.incarnation != incarnation or verdict.number < number:
                return False
            told += len(part.numbers)
            if len(verdict.records) * 8 < len(part.numbers) or any(verdict.records):
                return False
        return told == self.block.count

    def wanted(self, broker: str, incarnation: int, number: int, chosen: Sequence[bool]) -> list[bool]:
        """The records that the broker is to get, a flag each. `number`: up to which its conditions have to be known;
        `chosen`: whether a record concerns it, by what chooses; of those it gets what nobody vouches for."""
        keep = list(chosen)
        for part in self.parts:
            verdict = None if part.verdicts is None else part.verdicts.get(broker)
            if verdict is None or verdict.incarnation != incarnation or verdict.number < number:
                continue
            bits = verdict.records
            if len(bits) * 8 < len(part.numbers):
                continue
            for at, record in enumerate(part.numbers):
                if not bits[at >> 3] >> (at & 7) & 1:
                    keep[record] = False
        return keep


class _Matcher:
    """One of them, and what is under way to it. `link`: None: it is asked over others (`far_asking`)."""

    __slots__ = ("link", "name", "records", "silent", "silent_s", "under_way")

    def __init__(self, name: str, link: Link | None) -> None:
        self.name = name
        self.link = link
        self.records = 0
        self.silent = False
        # Since when; who is far may be asked again after a while, since what it says may be lost.
        self.silent_s = 0.0
        # In the order in which they were asked.
        self.under_way: dict[int, AskedPart] = {}

    def fits(self, records: int, now_s: float) -> bool:
        """Whether it may be asked about so many records."""
        if self.silent and (self.link is not None or now_s - self.silent_s < FAR_SILENT_S):
            return False
        return self.records + records <= RECORDS_UNDER_WAY_MAX


class Matchers:
    """See the module's docstring: all matchers, those that have links and those that are reached over these."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._links: dict[str, _Matcher] = {}
        # Those that are asked over others, and of those that may be under way to them the question.
        self._far: dict[str, _Matcher] = {}
        self._entries = FarEntries()
        self._next = 0
        self._gathered: dict[Link, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.asked_records = 0
        # Parts that nobody answered.
        self.unanswered = 0

    def __len__(self) -> int:
        return len(self._links)

    # -- LinkUser

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """A matcher answers, or brings another one's answer."""
        matcher = self._links.get(link.name)
        if message[0] == VERDICT:
            if matcher is not None and matcher.link is link:
                self._answered(matcher, message[1], message[2])
        elif message[0] == ENTRY:
            self._entries.told(link, message[1])
        elif message[0] == BACK:
            self._returned(link, message[1], message[2], message[4])
        else:
            raise PeerError(f"a matcher sent a message of kind {message[0]}")

    def _answered(self, matcher: _Matcher, number: int, verdicts: Mapping[str, Any]) -> None:
        matcher.silent = False
        part = matcher.under_way.pop(number, None)
        if part is not None:
            matcher.records -= len(part.numbers)
            part.verdicts = {broker: BrokerVerdict(*verdict) for broker, verdict in verdicts.items()}
            part.block.part_done()

    def _returned(self, entry: Link, number: int, hops: int, data: bytes) -> None:
        """The answer of one that is far, or word that a question was lost."""
        name = self._entries.returned(entry, number)
        matcher = self._far.get(name)
        if matcher is None:
            return
        if data:
            message = unpack_message(data)
            if message[0] != VERDICT or message[1] != number:
                raise PeerError(f"question {number} is answered by a message of kind {message[0]}")
            self._entries.count.add(hops)
            self._answered(matcher, number, message[2])
        elif (part := matcher.under_way.pop(number, None)) is not None:
            matcher.records -= len(part.numbers)
            self._entries.lost += 1
            self._be_silent(matcher)
            self._ask(part)
            self.flush()

    def opened(self, link: Link) -> Matchers:
        """A matcher has dialled."""
        before = self._links.get(link.name)
        self._links[link.name] = _Matcher(link.name, link)
        if before is not None:
            assert before.link is not None
            before.link.abort()
            self._gone(before, before.link)
        return self

    def on_close(self, link: Link, error: Exception | None) -> None:
        """It dials again; what it was asked others are asked."""
        matcher = self._links.get(link.name)
        if matcher is not None and matcher.link is link:
            del self._links[link.name]
            self._gone(matcher, link)
            self.flush()

    def _gone(self, matcher: _Matcher, link: Link) -> None:
        """What was asked on a link, or over it, others are asked."""
        self._ask_others(matcher)
        for number, name in self._entries.gone(link):
            far = self._far.get(name)
            part = None if far is None else far.under_way.pop(number, None)
            if far is not None and part is not None:
                far.records -= len(part.numbers)
                part.candidates.append(name)  # it was not its fault
                self._ask(part)

    def on_writable(self, link: Link) -> None:
        """What is under way is bounded."""

    # -- asking

    def ask(self, block: AskedBlock) -> None:
        """Ask about all parts; `flush` sends."""
        for part in list(block.parts):
            self._ask(part)

    def _ask(self, part: AskedPart) -> None:
        now_s = self._clock.monotonic()
        found = [self._able(name, len(part.numbers), now_s) for name in part.candidates]
        able = [matcher for matcher in found if matcher is not None]
        if not able:
            self.unanswered += 1
            part.block.part_done()
            return
        matcher = min(able, key=lambda each: each.records)
        part.candidates.remove(matcher.name)
        part.since_s = now_s
        self._next += 1
        matcher.under_way[self._next] = part
        matcher.records += len(part.numbers)
        self.asked_records += len(part.numbers)
        question = ASK, self._next, part.version, part.block.block.time_us, part.rows
        link = matcher.link
        if link is None:
            link = self._entries.ask(self._next, matcher.name, question, now_s)
        else:
            link.gather(question)
        self._gathered[link] = None

    def _able(self, name: str, records: int, now_s: float) -> _Matcher | None:
        """The matcher of that name, if it may be asked."""
        matcher = self._links.get(name)
        if matcher is None and self._entries:
            matcher = self._far.get(name)
            if matcher is None:
                if len(self._far) >= FAR_MAX:
                    self._forget_far()
                matcher = self._far[name] = _Matcher(name, None)
        return matcher if matcher is not None and matcher.fits(records, now_s) else None

    def _forget_far(self) -> None:
        """Those to whom nothing is under way."""
        self._far = {name: matcher for name, matcher in self._far.items() if matcher.under_way}

    def flush(self) -> None:
        """Send what was asked in this turn."""
        if self._gathered:
            gathered, self._gathered = self._gathered, {}
            for link in gathered:
                link.flush()
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(ANSWER_S, self._look)

    def _look(self) -> None:
        """Answers are due."""
        self._timer = None
        self.tick()
        under_way = any([matcher.under_way for matcher in self._links.values()])
        if not self._is_timed() and (under_way or self._entries.under_way):
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _is_timed(self) -> bool:
        """Asked anew each time: compiled code takes what it has set an attribute to to be so still."""
        return self._timer is not None

    def _ask_others(self, matcher: _Matcher) -> None:
        parts, matcher.under_way = list(matcher.under_way.values()), {}
        matcher.records = 0
        for part in parts:
            self._ask(part)

    def tick(self) -> None:
        """Look whether somebody has been silent for too long."""
        late_s = self._clock.monotonic() - ANSWER_S
        far = [self._far[name] for name in self._entries.late(late_s) if name in self._far]
        for matcher in [*self._links.values(), *far]:
            first = next(iter(matcher.under_way.values()), None)
            if first is not None and first.since_s < late_s:
                self._be_silent(matcher)
                self._ask_others(matcher)
        self.flush()

    def _be_silent(self, matcher: _Matcher) -> None:
        matcher.silent, matcher.silent_s = True, self._clock.monotonic()

    def close(self) -> None:
        """End all links."""
        if self._timer is not None:
            self._timer.cancel()
        for matcher in list(self._links.values()):
            if matcher.link is not None:
                matcher.link.close()

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {
            "matchers": len(self._links),
            "silent": sum([matcher.silent for matcher in self._links.values()]),
            "asked_records": self.asked_records,
            "unanswered_parts": self.unanswered,
            "overlay": self._entries.status() if self._entries or self._far else None,
        }
