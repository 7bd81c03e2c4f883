"""Blocks that brokers with conditions may not want wait for matchers, in order, and never hold anybody else up."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from lexicast.actors.coordinator.peers import BrokerPeer, Routing
from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, pack_meta
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.protocol.messages import ASK, DELIVER, VERDICT

COUNT = 4


class FakeLink:
    """A link: what was sent on it."""

    closed = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent: list[tuple[Any, ...]] = []

    def gather(self, message: tuple[Any, ...]) -> None:
        """One message."""
        self.sent.append(message)

    def flush(self) -> None:
        """Nothing waits."""

    def write_buffer_bytes(self) -> int:
        """Nothing does."""
        return 0


class Scene:
    """Two brokers: one chooses of `a/#`, the other has everything; and a matcher."""

    def __init__(self) -> None:
        self.routing = Routing(ManualClock(0))
        self.some, self.every = self._peer("some", b"a/#"), self._peer("every", b"#")
        self.routing.choosers.choose(self.some, [b"a/#"], [], 1, False)
        matcher: Any = FakeLink("m")
        self.matcher = matcher
        self.routing.choosers.matchers.opened(matcher)

    def _peer(self, name: str, topic_filter: bytes) -> BrokerPeer:
        link: Any = FakeLink(name)
        peer = self.routing.peers[name] = BrokerPeer(name, 1, link, registering=False)
        self.routing.insert(peer, [topic_filter])
        return peer

    def publish(self, first: int, topic: bytes = b"a/1", numbers: bytes | None = None) -> None:
        """A block from offset `first` on, of which columns are told unless `numbers` is empty."""
        meta = Meta((topic,), (Run(0, 0, 0, 0, 0, None, -1, COUNT),), (), (), (), ())
        lengths = array("I", [1] * COUNT).tobytes()
        block = Block(0, 1, first, first + COUNT - 1, 0, PUBLICATIONS, pack_meta(meta), lengths, b"abcd", meta)
        told = array("I", range(COUNT)).tobytes() if numbers is None else numbers
        if told:
            self.routing.choosers.ask(block, [(0, ("m",), told, b"rows")])
        self.routing.offer(block)

    def answer(self, number: int, records: int) -> None:
        """The matcher answers one of its asks: a bit a record that is wanted."""
        asks = [message[1] for message in self.matcher.sent if message[0] == ASK]
        verdict = {"some": (1, 1, records.to_bytes(1, "little"))}
        self.routing.choosers.matchers.on_message(self.matcher, (VERDICT, asks[number], verdict))

    def got(self, peer: BrokerPeer) -> list[tuple[int, bytes]]:
        """The blocks that a broker has, by their first offset and payloads."""
        self.routing.gather()
        link: Any = peer.link
        blocks = [Block.from_wire(wire) for message in link.sent if message[0] == DELIVER for wire in message[2]]
        return [(block.first, block.body) for block in blocks]


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def test_a_broker_gets_the_records_that_it_may_want(scene: Scene) -> None:
    for first in (0, 10, 20):
        scene.publish(first)
    assert [first for first, _ in scene.got(scene.every)] == [0, 10, 20]
    assert scene.got(scene.some) == []
    assert scene.routing.choosers.first_waiting(scene.some, 0) == 0
    scene.answer(1, 0b1111)
    assert scene.got(scene.some) == [], "in order"
    scene.answer(0, 0b0101)
    assert scene.got(scene.some) == [(0, b"ac"), (10, b"abcd")]
    scene.answer(2, 0)
    assert scene.got(scene.some) == [(0, b"ac"), (10, b"abcd")]
    assert scene.routing.choosers.first_waiting(scene.some, 0) is None


async def test_nothing_waits_longer_than_until_something_later_has_to_go(scene: Scene) -> None:
    scene.routing.insert(scene.some, [b"b"])
    scene.publish(0)
    scene.publish(10, b"b", b"")
    assert scene.got(scene.some) == [(0, b"abcd"), (10, b"abcd")]
    scene.answer(0, 0)
    assert len(scene.got(scene.some)) == 2


@pytest.mark.parametrize("numbers", [array("I", [COUNT]).tobytes(), b"\0\0\0"])
async def test_columns_that_do_not_fit_cost_what_they_would_have_saved(scene: Scene, numbers: bytes) -> None:
    """The block has its place by then: it is not refused."""
    scene.publish(0, numbers=numbers)
    assert scene.got(scene.some) == [(0, b"abcd")]
    assert not scene.matcher.sent


async def test_what_was_asked_for_brokers_that_are_gone_is_not_kept(scene: Scene) -> None:
    meta = Meta((b"a/1",), (Run(0, 0, 1, 0, 0, None, -1, 1),), (), (), (), ())
    block = Block(0, 1, 0, 0, 0, PUBLICATIONS, pack_meta(meta), array("I", [1]).tobytes(), b"x", meta)
    choosers = scene.routing.choosers
    choosers.ask(block, [(0, ("m",), array("I", [0]).tobytes(), b"rows")])
    assert choosers._asked
    choosers.gone(scene.some)
    assert not choosers._asked
    assert not choosers
