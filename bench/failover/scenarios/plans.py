"""What the driver tells the processes of its load, and what they tell at their end, as files of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Self

PORT: Final = 1883
PADDING: Final = b"." * 40


@dataclass(slots=True)
class _Plan:
    """Something that is handed over in a file."""

    def write(self, file: Path) -> None:
        """Have the other process find it whole or not at all."""
        part = file.with_suffix(".part")
        part.write_text(json.dumps(asdict(self)))
        part.replace(file)

    @classmethod
    def read(cls, file: Path) -> Self:
        """What was written."""
        told: dict[str, Any] = json.loads(file.read_text())
        return cls(**{each.name: told[each.name] for each in fields(cls)})


@dataclass(slots=True)
class CrowdPlan(_Plan):
    """A process of sessions. `hosts`: each one's list of brokers, the first being its own."""

    run: str
    first: int
    hosts: list[list[str]]
    shared: bool
    """Whether each is subscribed to what is published to all, beside what is published to it alone."""
    own: bool
    far: list[str] = field(default_factory=list)
    far_s: float = 0.0
    """How much longer the way to the hosts `far` takes, and as long the way back."""
    silence_s: float = 0.0
    """How long a connection is silent, in spite of a PINGREQ, until its client gives it up; 0: for ever."""
    open_s: float = 30.0
    """How long a client waits for CONNACK."""
    delays: bool = False
    """Whether how long each delivery took is of interest."""
    nice: int = 0
    seed: int = 1


@dataclass(slots=True)
class PublishingPlan(_Plan):
    """The process of the publishers: one on each of `hosts`, QoS 1 and 2 in turn; rates of all together, a second."""

    run: str
    hosts: list[str]
    subscribers: int
    shared_rate: float
    own_rate: float


@dataclass(slots=True)
class Expected(_Plan):
    """What was published on each topic, and which numbers of it were not acknowledged."""

    counts: dict[str, int]
    unanswered: dict[str, list[int]]
    reconnects: int


@dataclass(slots=True)
class Fate:
    """One session's. Times in ns of the monotonic clock, 0 where it did not happen."""

    qos: int
    lost_ns: int = 0
    """Its connection has ended: the client knows."""
    accepted_ns: int = 0
    """CONNACK."""
    living_ns: int = 0
    """When it began the try that was accepted."""
    first_ns: int = 0
    """Its first message that was published after the fault."""
    losses: int = 0
    refused: int = 0
    """Tries that failed, from `refused_ns` on."""
    refused_ns: int = 0
    anew: int = 0
    """CONNACKs that knew no session."""
    oldest_repeat_ns: int = 0
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class CrowdTold(_Plan):
    """What a process of sessions tells at its end. `delays`: (when published, how long it took) in ns."""

    fates: list[dict[str, Any]]
    delays: list[tuple[int, int]]

    def found(self) -> list[Fate]:
        """The same as what they are."""
        return [Fate(**told) for told in self.fates]


def shared_topic(run: str, publisher: int) -> str:
    """What all of a run's sessions get."""
    return f"{run}/all/{publisher}"


def is_shared(topic: str) -> bool:
    """Whether all get it."""
    return topic.split("/")[1] == "all"


def own_topic(run: str, number: int) -> str:
    """What one of them gets alone."""
    return f"{run}/own/{number}"


def shared_filter(run: str) -> str:
    """Of all that all get."""
    return f"{run}/all/#"


def qos_of(number: int) -> int:
    """Of the subscriptions of that session, or of the publications of that publisher."""
    return 1 + number % 2


def stamped(number: int, sent_ns: int) -> bytes:
    """The payload of a topic's publication of that number."""
    return b"%d %d " % (number, sent_ns) + PADDING


def stamp_of(payload: bytes) -> tuple[int, int]:
    """Number, and when it was published."""
    number, sent_ns, _ = payload.split(b" ", 2)
    return int(number), int(sent_ns)
