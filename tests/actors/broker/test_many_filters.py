"""Sessions of very many filters: what is done for them is done in steps, others' publications come between, and nothing
is lost or doubled between two steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lexicast.actors.broker import placing, subscriptions
from lexicast.actors.broker.encoding import Grant
from lexicast.actors.broker.fanout import Fanout
from lexicast.actors.broker.granted_filters import FILTERS_TRIED, GrantedFilters
from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.mqtt import session_state
from lexicast.actors.mqtt.codec.packets import V5, Connect

from ...support.harness import GROUPS, Cluster, Stream, eventually
from ...support.mqtt_harness import Raw, close_clients, unique

STEP = 3
# More than one step of each kind; exact ones among them.
NAMES = [*[f"wild/{n}/#" for n in range(10)], "wild/+/x", *[f"exact/{n}" for n in range(4)]]
TOPICS = [*[f"wild/{n}/x" for n in range(10)], *[f"exact/{n}" for n in range(4)]]


class LongTurns:
    """Each step is a turn, and something happens between two."""

    between: ClassVar[list[Callable[[], Awaitable[None]]]] = []

    async def give_way(self) -> None:
        for work in self.between:
            await work()


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], Awaitable[None]]]]:
    """What is to be done between two steps."""
    for module in (placing, subscriptions):
        monkeypatch.setattr(module, "FILTERS_AT_ONCE", STEP)
    monkeypatch.setattr(session_state, "STEP", STEP)
    monkeypatch.setattr(placing, "Turns", LongTurns)
    yield LongTurns.between
    LongTurns.between.clear()


@pytest.fixture(params=[1, 2])
async def broker(tmp_path: Path, request: Any) -> AsyncIterator[BrokerServer]:
    names = [f"coordinator-{number}" for number in range(request.param)]
    async with Cluster(tmp_path, coordinators=names) as cluster:
        for name in names:
            await cluster.start_coordinator(name)
        yield await cluster.start_broker("broker-0")
        await close_clients()


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many filters entered the fan-out, or left it, in each step."""
    counts: list[int] = []
    insert, remove = Fanout.insert, Fanout.remove

    def counted(self: Fanout, wanted: Mapping[bytes, Any], subscriber: Any) -> None:
        counts.append(len(wanted))
        insert(self, wanted, subscriber)

    def removed(self: Fanout, filters: Any, subscriber: Any) -> None:
        counts.append(len(filters))
        remove(self, filters, subscriber)

    monkeypatch.setattr(Fanout, "insert", counted)
    monkeypatch.setattr(Fanout, "remove", removed)
    return counts


async def test_a_session_of_many_filters_misses_nothing_while_they_enter_again(
    broker: BrokerServer, entered: list[int], steps: list[Callable[[], Awaitable[None]]]
) -> None:
    name, port = unique(), broker.mqtt.port
    client = await Raw.connect(port, name, clean=False, _17=600)
    assert await client.subscribe(*NAMES, qos=1) == [1] * len(NAMES)
    publisher = await Raw.connect(port)
    count, got = 0, {topic: list[int]() for topic in TOPICS}

    async def publish() -> None:
        nonlocal count
        for topic in TOPICS:
            await publisher.publish(topic, b"%d" % count, 1)
        count += 1

    steps.append(publish)
    for _ in range(2):
        await client.disconnect()
        client = await Raw.connect(port, name, clean=False, _17=600)
        assert client.connack.session_present
        for message in await client.messages(count * len(TOPICS) - sum(map(len, got.values()))):
            got[message.topic].append(int(message.payload))
    assert count > 2 * len(NAMES) // STEP
    assert got == {topic: list(range(count)) for topic in TOPICS}
    await client.nothing(publisher, TOPICS[0])
    await client.disconnect()
    await eventually(lambda: not [name for name in NAMES if name.encode() in broker.engine.subscriptions.filters])
    assert max(entered) == STEP


async def test_who_takes_everything_at_any_time_gets_nothing_while_its_filters_enter(
    tmp_path: Path, steps: list[Callable[[], Awaitable[None]]]
) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        node = await cluster.start_engine("broker-0")
        stream, count = Stream(node.engine), 0

        async def publish() -> None:
            nonlocal count
            await asyncio.gather(*[node.publish(topic.encode(), [b"%d" % count]) for topic in TOPICS])
            count += 1

        await publish()
        steps.append(publish)
        wanted = {name.encode(): Grant() for name in NAMES}
        await node.engine.subscriptions.subscribe(stream, wanted, start=dict.fromkeys(range(GROUPS), 0))
        await publish()
        await stream.arrived(count * len(TOPICS))
        assert {topic: stream.payloads(topic.encode()) for topic in TOPICS} == {
            topic: [b"%d" % number for number in range(count)] for topic in TOPICS
        }
        assert len(stream.received) == count * len(TOPICS)


async def test_many_filters_are_unsubscribed_in_steps(broker: BrokerServer, entered: list[int]) -> None:
    client, publisher = [await Raw.connect(broker.mqtt.port) for _ in range(2)]
    await client.subscribe(*NAMES, qos=1)
    assert await client.unsubscribe(*NAMES, "none") == [0] * len(NAMES) + [0x11]
    assert not [name for name in NAMES if name.encode() in broker.engine.subscriptions.filters]
    assert max(entered) == STEP
    await publisher.publish(TOPICS[0], b"nobody's", 1)
    assert await client.subscribe(TOPICS[0]) == [0]
    await client.nothing(publisher, TOPICS[0])


async def test_who_leaves_while_its_filters_enter_leaves_nothing_behind(
    broker: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, port = unique(), broker.mqtt.port
    client = await Raw.connect(port, name, clean=False, _17=600)
    await client.subscribe(*NAMES, qos=1)
    publisher = await Raw.connect(port)
    await client.disconnect()
    await publisher.publish(TOPICS[0], b"missed", 1)
    steps = list[int]()
    insert = Fanout.insert

    def and_leave(self: Fanout, wanted: Mapping[bytes, Any], subscriber: Any) -> None:
        insert(self, wanted, subscriber)
        steps.append(len(wanted))
        if len(steps) == 2:
            for connection in list(broker.mqtt.connections):
                if connection.client_id != publisher_id:
                    connection.transport.abort()

    publisher_id = next(c.client_id for c in broker.mqtt.connections)
    monkeypatch.setattr(Fanout, "insert", and_leave)
    gone = await Raw.open(port)
    gone.send(Connect(V5, name, False, properties={17: 600}))
    await gone.closed()
    monkeypatch.setattr(Fanout, "insert", insert)
    await eventually(lambda: not [each for each in NAMES if each.encode() in broker.engine.subscriptions.filters])
    client = await Raw.connect(port, name, clean=False, _17=600)
    assert [m.payload for m in await client.messages(1)] == [b"missed"]


@pytest.mark.parametrize("count", [FILTERS_TRIED, FILTERS_TRIED + 1])
def test_a_topic_is_granted_by_all_filters_however_many_there_are(count: int) -> None:
    filters = GrantedFilters()
    fill = {b"other/%d/#" % n: Grant(0) for n in range(count - 2)}
    filters.set_filters({b"a/+": Grant(1, ids=(1,)), b"a/b": Grant(2, ids=(2,)), **fill})
    granted = filters.grant(b"a/b")
    assert granted is not None
    assert (granted.qos, {*granted.ids}) == (2, {1, 2})
    assert filters.drop_filter(b"a/b")
    assert filters.grant(b"a/b") == Grant(1, ids=(1,))
    assert filters.drop_filter(b"a/+")
    assert filters.grant(b"a/b") is None
