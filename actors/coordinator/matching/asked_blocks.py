"""Blocks of which matchers are asked who wants them: in parts, each put to one candidate, then to another, or none.

What is not answered is not vouched for, and goes to everybody whom its topic concerns: a matcher can save work and
nothing else. One that has not answered within ANSWER_S is asked no more until it says something.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from lexicast.cluster.blocks import U32, Block
from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import PeerError
from lexicast.cluster.protocol.messages import ASK, VERDICT

from ...link.link import Link

ANSWER_S: Final = 0.05
LOOK_S: Final = 0.01
# Records under way to one matcher; what is more is not asked about.
RECORDS_UNDER_WAY_MAX: Final = 65_536

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
    """One link, and what is under way on it."""

    __slots__ = ("link", "records", "silent", "under_way")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.records = 0
        self.silent = False
        # In the order in which they were asked.
        self.under_way: dict[int, AskedPart] = {}


class Matchers:
    """See the module's docstring: the links to all matchers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._links: dict[str, _Matcher] = {}
        self._next = 0
        self._gathered: dict[_Matcher, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.asked_records = 0
        # Parts that nobody answered.
        self.unanswered = 0

    def __len__(self) -> int:
        return len(self._links)

    # -- LinkUser

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """A matcher answers."""
        if message[0] != VERDICT:
            raise PeerError(f"a matcher sent a message of kind {message[0]}")
        matcher = self._links.get(link.name)
        if matcher is None or matcher.link is not link:
            return
        matcher.silent = False
        part = matcher.under_way.pop(message[1], None)
        if part is not None:
            matcher.records -= len(part.numbers)
            part.verdicts = {broker: BrokerVerdict(*verdict) for broker, verdict in message[2].items()}
            part.block.part_done()

    def opened(self, link: Link) -> Matchers:
        """A matcher has dialled."""
        before = self._links.get(link.name)
        self._links[link.name] = _Matcher(link)
        if before is not None:
            before.link.abort()
            self._ask_others(before)
        return self

    def on_close(self, link: Link, error: Exception | None) -> None:
        """It dials again; what it was asked others are asked."""
        matcher = self._links.get(link.name)
        if matcher is not None and matcher.link is link:
            del self._links[link.name]
            self._ask_others(matcher)
            self.flush()

    def on_writable(self, link: Link) -> None:
        """What is under way is bounded."""

    # -- asking

    def ask(self, block: AskedBlock) -> None:
        """Ask about all parts; `flush` sends."""
        for part in list(block.parts):
            self._ask(part)

    def _ask(self, part: AskedPart) -> None:
        able = [self._links[name] for name in part.candidates if name in self._links]
        able = [m for m in able if not m.silent and m.records + len(part.numbers) <= RECORDS_UNDER_WAY_MAX]
        if not able:
            self.unanswered += 1
            part.block.part_done()
            return
        matcher = min(able, key=lambda each: each.records)
        part.candidates.remove(matcher.link.name)
        part.since_s = self._clock.monotonic()
        self._next += 1
        matcher.under_way[self._next] = part
        matcher.records += len(part.numbers)
        self.asked_records += len(part.numbers)
        matcher.link.gather((ASK, self._next, part.version, part.block.block.time_us, part.rows))
        self._gathered[matcher] = None

    def flush(self) -> None:
        """Send what was asked in this turn."""
        if self._gathered:
            gathered, self._gathered = self._gathered, {}
            for matcher in gathered:
                matcher.link.flush()
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(ANSWER_S, self._look)

    def _look(self) -> None:
        """Answers are due."""
        self._timer = None
        self.tick()
        if self._timer is None and any([matcher.under_way for matcher in self._links.values()]):
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _ask_others(self, matcher: _Matcher) -> None:
        parts, matcher.under_way = list(matcher.under_way.values()), {}
        matcher.records = 0
        for part in parts:
            self._ask(part)

    def tick(self) -> None:
        """Look whether somebody has been silent for too long."""
        late_s = self._clock.monotonic() - ANSWER_S
        for matcher in list(self._links.values()):
            first = next(iter(matcher.under_way.values()), None)
            if first is not None and first.since_s < late_s:
                matcher.silent = True
                self._ask_others(matcher)
        self.flush()

    def close(self) -> None:
        """End all links."""
        if self._timer is not None:
            self._timer.cancel()
        for matcher in list(self._links.values()):
            matcher.link.close()

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {
            "matchers": len(self._links),
            "silent": sum([matcher.silent for matcher in self._links.values()]),
            "asked_records": self.asked_records,
            "unanswered_parts": self.unanswered,
        }
