"""What was published, acknowledged and received, and what of it must not be. Pure: no I/O, no clock.

Each publisher counts its publications, which it spreads over topics of its own; a payload names both. A subscriber is
owed those for which its condition is true, where it has one. For every subscriber and every publisher:

    lost            acknowledged with QoS 1 or 2, and never delivered
    disorder        delivered for the first time after a later one of the same topic was
    doubled         delivered again where that is promised not to happen
    repeated        delivered again, as MQTT permits it: the broker says so (DUP), the publisher has sent it again, or
                    the subscriber's session has gone on at another broker since
    repeated_qos2   QoS 2 on its whole way, after the subscriber's session has gone on at another broker: where its own
                    is lost, it goes on from where that told its home that it was (ARCHITECTURE.md, "Sessions")
    unexplained     delivered again without any of that
    unwanted        delivered, and its condition is not true
    unreadable      delivered, and nothing that a publisher has said

    sent_anew       (publications) QoS 2 that its client has published once more after its PUBREL, against the protocol:
                    paho 2.2.0 does so when its first try to connect again has failed. That is `repeated`.

Never again comes what a Python client or QoS 2 has published to a Python client, and what is QoS 2 on its whole way
while the subscriber stays connected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .messages import DrillMessages, PlainMessages

TOPICS_A_PUBLISHER: Final = 5
ROOT: Final = "drill"
PYTHON: Final = "python"
NOTE_BYTES: Final = 80


@dataclass(frozen=True, slots=True)
class Party:
    """A publisher or subscriber. `make`: which client; `qos` of its publications, or of its subscription; `where`: its
    subscription's condition."""

    name: str
    make: str
    qos: int
    where: str = ""


@dataclass(slots=True)
class _Published:
    """One publisher's."""

    party: Party
    sent_s: list[float] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    resent: set[int] = field(default_factory=set)
    anew: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Received:
    """One subscriber's. {(publisher, number): ...}, and the last first delivery of each topic."""

    party: Party
    first_s: dict[tuple[str, int], float] = field(default_factory=dict)
    under: dict[tuple[str, int], int] = field(default_factory=dict)
    last: dict[tuple[str, int], int] = field(default_factory=dict)
    connections: int = 0


class Delay(NamedTuple):
    """One delivery's, in seconds."""

    sent_s: float
    took_s: float
    publisher: str
    subscriber: str


class Audit:
    """See the module's docstring. Each publisher and subscriber is told of by one thread alone."""

    def __init__(
        self, publishers: Iterable[Party], subscribers: Iterable[Party], messages: DrillMessages | None = None
    ) -> None:
        """`messages`: what is said; default: a name and a number."""
        self.messages = PlainMessages() if messages is None else messages
        self._published = {party.name: _Published(party) for party in publishers}
        self._received = {party.name: _Received(party) for party in subscribers}
        self.counts: Counter[str] = Counter()
        self.notes: list[str] = []

    # -- told by publishers

    def publish(self, publisher: str, now_s: float) -> tuple[int, str, bytes]:
        """The next publication: its number, topic and payload."""
        sent = self._published[publisher].sent_s
        number = len(sent)
        sent.append(now_s)
        return number, topic(publisher, number), self.messages.payload(publisher, number)

    def refused(self, publisher: str, number: int) -> None:
        """It was refused."""
        self._published[publisher].refused.add(number)
        self.counts["refused"] += 1

    def acknowledged(self, publisher: str, number: int) -> None:
        """It was acknowledged."""
        self._published[publisher].acknowledged.add(number)

    def resent(self, publisher: str, numbers: Iterable[int]) -> None:
        """These are sent again."""
        self._published[publisher].resent.update(numbers)

    def anew(self, publisher: str, number: int) -> None:
        """A QoS 2 publication goes out as PUBLISH again after its PUBREL: that is a new one (MQTT-4.3.3)."""
        self._published[publisher].anew.add(number)
        self.counts["sent_anew"] += 1

    def unanswered(self, publisher: str) -> list[int]:
        """What was sent with QoS 1 or 2 and is neither acknowledged nor refused."""
        told = self._published[publisher]
        if told.party.qos == 0:
            return []
        return sorted(set(range(len(told.sent_s))) - told.acknowledged - told.refused)

    # -- told by subscribers

    def connected(self, subscriber: str) -> None:
        """It connects again: its session may give again what was not acknowledged."""
        self._received[subscriber].connections += 1

    def arrived(self, subscriber: str, payload: bytes, now_s: float, *, dup: bool = False) -> None:
        """One delivery."""
        key, got = self.messages.read(payload), self._received[subscriber]
        if key is None or key[0] not in self._published or not self._owed(got, key):
            what = "unreadable" if key is None or key[0] not in self._published else "unwanted"
            self.counts[what] += 1
            self.notes.append(f"{what}: {subscriber} got {payload[:NOTE_BYTES]!r}")
            return
        if key in got.first_s:
            self._again(got, key, dup)
            return
        got.first_s[key], got.under[key] = now_s, got.connections
        line = key[0], key[1] % TOPICS_A_PUBLISHER
        before = got.last.get(line, -1)
        if key[1] < before:
            self.counts["disorder"] += 1
            self.notes.append(f"disorder: {subscriber} got {key[0]} {key[1]} after {before}")
        got.last[line] = max(before, key[1])

    def _owed(self, got: _Received, key: tuple[str, int]) -> bool:
        return self.messages.wanted(got.party.where, *key)

    def _again(self, got: _Received, key: tuple[str, int], dup: bool) -> None:
        told, moved = self._published[key[0]], got.connections > got.under[key]
        has_identity = (told.party.make == PYTHON or told.party.qos == 2) and key[1] not in told.anew
        to_once = has_identity and told.party.qos == got.party.qos == 2
        if has_identity and got.party.make == PYTHON:
            what = "doubled"
        elif to_once:
            what = "repeated_qos2" if moved else "doubled"
        else:
            is_told = dup or moved or key[1] in told.resent or key[1] in told.anew
            what = "repeated" if is_told else "unexplained"
        self.counts[what] += 1
        if what != "repeated":
            self.notes.append(f"{what}: {got.party.name} got {key[0]} {key[1]} again")

    # -- asked

    def marks(self) -> dict[str, int]:
        """How many each publisher has published so far."""
        return {name: len(told.sent_s) for name, told in self._published.items()}

    def missing(self, since: dict[str, int]) -> dict[str, list[tuple[str, int]]]:
        """What was acknowledged, numbered from `since` on, and has not arrived: by subscriber."""
        due = [
            (name, number)
            for name, told in self._published.items()
            if told.party.qos > 0
            for number in list(told.acknowledged)  # others go on adding
            if number >= since[name]
        ]
        found = {
            name: [key for key in due if key not in got.first_s and self._owed(got, key)]
            for name, got in self._received.items()
        }
        return {name: keys for name, keys in found.items() if keys}

    def lost(self) -> int:
        """How many deliveries of what was acknowledged are missing."""
        return sum([len(keys) for keys in self.missing(dict.fromkeys(self._published, 0)).values()])

    def fleeting_lost(self) -> int:
        """How many deliveries of QoS 0 are missing: they are promised to nobody."""
        sent = [
            (name, number)
            for name, told in self._published.items()
            if told.party.qos == 0
            for number in range(len(told.sent_s))
        ]
        every = self._received.values()
        return sum([key not in got.first_s and self._owed(got, key) for got in every for key in sent])

    def delays(
        self, since: dict[str, int], until: dict[str, int], publishers: Iterable[str], subscribers: Iterable[str]
    ) -> list[Delay]:
        """Of first deliveries, numbered in [since, until), between these."""
        return [
            Delay(told.sent_s[number], got.first_s[name, number] - told.sent_s[number], name, subscriber)
            for name in publishers
            for told in (self._published[name],)
            for number in range(since[name], until[name])
            for subscriber in subscribers
            for got in (self._received[subscriber],)
            if (name, number) in got.first_s
        ]

    def first_after(self, subscriber: str, since_s: float) -> float | None:
        """When it got the first message that was published after `since_s`; None: none yet."""
        got = self._received[subscriber]
        times = [
            at_s
            for (name, number), at_s in list(got.first_s.items())
            if at_s > since_s and self._published[name].sent_s[number] > since_s
        ]
        return min(times, default=None)

    @property
    def published(self) -> int:
        """How many were published."""
        return sum(self.marks().values())

    @property
    def delivered(self) -> int:
        """How many first deliveries there were."""
        return sum([len(got.first_s) for got in self._received.values()])


def topic(publisher: str, number: int) -> str:
    """Where a publisher's publication of that number goes."""
    return f"{ROOT}/{publisher}/{number % TOPICS_A_PUBLISHER}"
