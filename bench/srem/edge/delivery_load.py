"""A broker's engine for content subscriptions with nothing around it: subscribers that count, blocks of JSON events.

Subscriptions and events are those of a `population`: a box is a condition `a BETWEEN ... AND ... AND b BETWEEN ...`, a
point the fields a, b, ... of a JSON map that has others too, some 250 B in all, as flights have.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final

from lexicast.actors.broker.content.content_fanout import ContentFanout
from lexicast.actors.broker.content.predicate_table import PredicateTable
from lexicast.actors.broker.encoding import BlockView, Encoder, Grant, Kind
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.actors.mqtt.codec.packets import V5
from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, pack_meta
from lexicast.cluster.content.predicate import Predicate
from lexicast.compression.wire import AliasTable, Recoder

from ..population import BoxPopulation, Floats

TOPIC: Final = b"plant/hall/line/events"
FILTER: Final = b"plant/#"
TOPICS_MAX: Final = 1_000
MQTT: Final = Kind(V5)
# Subscriptions that are entered before the index' upkeep has its turn.
_ENTERED_AT_ONCE: Final = 256
_UPKEEP_S: Final = 0.002
_NAMES: Final = "abcdefgh"
_OTHER_FIELDS: Final[dict[str, Any]] = {
    "machine": "press-17",
    "state": "running",
    "operator": None,
    "order": "2024-118-07",
    "shift": 2,
    "temperature": 71.25,
    "vibration": 0.0183,
    "firmware": "4.18.2",
    "alarm": False,
    "recorded": "2024-03-01T08:15:30Z",
}


def no_dictionaries() -> Encoder:
    """A broker's encoder, of publications that are not compressed."""
    return Encoder(Recoder(), AliasTable(), lambda topic: None)


class Around:
    """What a subscriber needs of its broker (`SubscriberBroker`) while nothing is in its way."""

    def __init__(self) -> None:
        self.encoder = no_dictionaries()

    def lagged(self, subscriber: Subscriber) -> None:
        """Nobody lags."""

    def view(self, block: Block) -> BlockView:
        """A view of a block."""
        return BlockView(block, 0)


class CountingSession(Subscriber):
    """A session that counts the writes and bytes that it gets."""

    __slots__ = ("bytes", "writes")

    def __init__(self, around: Around, kind: Kind = MQTT) -> None:
        super().__init__(around, kind)
        self.bytes = 0
        self.writes = 0

    def write(self, data: bytes) -> None:
        """Take them."""
        self.bytes += len(data)
        self.writes += 1


class Edge:
    """Content subscriptions, one a subscriber, at one broker's engine."""

    def __init__(self, held: Sequence[Predicate], kind: Kind = MQTT) -> None:
        self.predicates = PredicateTable()
        self.fanout = ContentFanout(self.predicates, TOPICS_MAX)
        self.encoder = no_dictionaries()
        around = Around()
        self.subscribers = [CountingSession(around, kind) for _ in held]
        asyncio.run(self._enter(held))

    async def _enter(self, held: Sequence[Predicate]) -> None:
        for number, predicate in enumerate(held):
            self.fanout.insert({FILTER: Grant(where=predicate)}, self.subscribers[number])
            if number % _ENTERED_AT_ONCE == 0:
                await asyncio.sleep(0)
        while self.predicates.waiting:  # noqa: ASYNC110 - upkeep has no event, and nobody else waits for it
            await asyncio.sleep(_UPKEEP_S)
        self.predicates.close()

    def deliver(self, wire: Any) -> int:
        """A block off the link, to whoever is to get of it; the number of publications sent."""
        return self.fanout.deliver(BlockView(Block.from_wire(wire), 0), self.encoder)


def conditions(population: BoxPopulation) -> Iterator[str]:
    """The boxes as users write them."""
    names = _NAMES[: population.setting.dimensions]
    for low, high in zip(population.low.tolist(), population.high.tolist(), strict=True):
        yield " AND ".join([f"{n} BETWEEN {a!r} AND {b!r}" for n, a, b in zip(names, low, high, strict=True)])


def payloads(points: Floats) -> list[bytes]:
    """JSON of these points."""
    names = _NAMES[: points.shape[1]]
    first, second = (dict([*_OTHER_FIELDS.items()][half::2]) for half in range(2))
    made = [first | dict(zip(names, point, strict=True)) | second for point in points.tolist()]
    return [json.dumps(each).encode() for each in made]


def wires(events: list[bytes], batch: int) -> list[Any]:
    """Blocks of QoS 0 publications of one publisher, as they come off a link."""
    made = []
    for first in range(0, len(events), batch):
        some = events[first : first + batch]
        meta = Meta((TOPIC,), (Run(0, 0, 0, 0, 0, None, 0, len(some)),), (), (), ("press-17",), ())
        lengths = array("I", map(len, some)).tobytes()
        last = first + len(some) - 1
        made.append(Block(0, 1, first, last, 0, PUBLICATIONS, pack_meta(meta), lengths, b"".join(some)).to_wire())
    return made
