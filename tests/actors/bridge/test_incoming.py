"""What comes from the other broker is published by few calls, and acknowledged in the order in which it came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from lexicast.actors.bridge import incoming
from lexicast.actors.bridge.counters import BridgeCounters
from lexicast.actors.bridge.incoming import IncomingTopics
from lexicast.actors.client.awaited_positions import PublishManyRefusedError
from lexicast.actors.mqtt.codec import PacketReader
from lexicast.actors.mqtt.codec.packets import V5, PublishRun
from lexicast.actors.mqtt.codec.properties import USER_PROPERTY
from lexicast.cluster.bridges.echoes import Echoes
from lexicast.cluster.bridges.topic_map import LocalFilter, TopicMap
from lexicast.cluster.errors import UsageError
from lexicast.cluster.positions import Position

from ...support.harness import eventually
from ...support.mqtt_harness import flat


class Client:
    """Takes what it is not told to refuse. `calls`: how many messages each had."""

    def __init__(self) -> None:
        self.stored: list[tuple[str, bytes]] = []
        self.calls: list[int] = []
        self.wrong: set[bytes] = set()
        self.full: set[bytes] = set()

    async def publish_many(self, messages: list[tuple[str, bytes]], **_: Any) -> None:
        self.calls.append(len(messages))
        if self.wrong.intersection([payload for _, payload in messages]):
            raise UsageError("too long")
        await asyncio.sleep(0)
        taken = [pair for pair in messages if pair[1] not in self.full]
        self.stored += taken
        if len(taken) < len(messages):
            places = [None if payload in self.full else Position(0, 0, 0) for _, payload in messages]
            raise PublishManyRefusedError("full", places)


class Link:
    """What is acknowledged over it."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self._reader = PacketReader(1 << 20, version=V5)

    def send(self, data: bytes) -> None:
        self.acknowledged += [each.packet_id for each in flat(list(self._reader.feed(data)))]

    def pause(self, paused: bool) -> None:
        """It is a stub."""


@asynccontextmanager
async def taking(client: Client, link: Link) -> AsyncIterator[IncomingTopics]:
    topics = TopicMap([LocalFilter("#", "", "")])
    made = IncomingTopics(cast(Any, client), topics, "here", BridgeCounters(), Echoes())
    made.connected(cast(Any, link), "there", False, False)
    storing = asyncio.ensure_future(made.store())
    try:
        yield made
    finally:
        storing.cancel()


def run(number: int, qos: int = 1, via: str = "") -> PublishRun:
    properties = {USER_PROPERTY: [("lexicast-via", via)]} if via else None
    return PublishRun(b"t/%d" % (number % 5), qos, False, False, properties, [b"%d" % number], [number + 1])


async def test_many_topics_are_one_call_and_acknowledged_in_order() -> None:
    client, link = Client(), Link()
    async with taking(client, link) as made:
        for number in range(100):
            made.take(run(number), 0.0)
        await eventually(lambda: made.waiting == 0)
    assert client.calls == [100]
    assert client.stored == [(f"t/{number % 5}", b"%d" % number) for number in range(100)]
    assert link.acknowledged == list(range(1, 101))


async def test_what_is_of_another_kind_or_is_not_stored_keeps_its_place() -> None:
    client, link = Client(), Link()
    async with taking(client, link) as made:
        for number in range(40):
            via = "elsewhere" if number % 4 == 2 else "here" if number % 4 == 3 else ""
            made.take(run(number, via=via), 0.0)
        await eventually(lambda: made.waiting == 0)
    assert [int(payload) for _, payload in client.stored] == [number for number in range(40) if number % 4 != 3]
    assert link.acknowledged == list(range(1, 41))


async def test_no_call_is_larger_than_is_taken_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "CALL_RECORDS", 8)
    client, link = Client(), Link()
    async with taking(client, link) as made:
        made.take(PublishRun(b"t", 1, False, False, None, [b"x"] * 20, list(range(1, 21))), 0.0)
        await eventually(lambda: made.waiting == 0)
    assert client.calls == [8, 8, 4]
    assert link.acknowledged == list(range(1, 21))


async def test_what_this_cluster_will_never_take_is_found_among_the_others() -> None:
    client, link = Client(), Link()
    client.wrong = {b"17", b"18", b"900"}
    async with taking(client, link) as made:
        for number in range(1_000):
            made.take(run(number), 0.0)
        await eventually(lambda: made.waiting == 0)
        counters = made._counters
        assert (counters.received, counters.refused_in) == (997, 3)
        assert counters.last_error == "this cluster does not take it: too long"
    assert [int(payload) for _, payload in client.stored] == [n for n in range(1_000) if b"%d" % n not in client.wrong]
    assert len(client.calls) < 60
    assert link.acknowledged == list(range(1, 1_001))


async def test_what_there_is_no_room_for_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "RETRY_S", 0.01)
    client, link = Client(), Link()
    client.full = {b"3", b"4"}
    async with taking(client, link) as made:
        for number in range(10):
            made.take(run(number), 0.0)
        await eventually(lambda: made._counters.retried_in >= 4)
        assert made._counters.received == 8
        assert not link.acknowledged
        client.full = set()
        await eventually(lambda: made.waiting == 0)
    assert [int(payload) for _, payload in client.stored[-2:]] == [3, 4]
    assert link.acknowledged == list(range(1, 11))
