"""Sessions of very many filters: what is done for them is done in steps, others' publications come between, and nothing
is lost or doubled between two steps."""

from __future__ import annotations

import asyncio
from collections import Counter
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
from lexicast.cluster.errors import UnavailableError

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


async def test_two_sessions_of_the_same_filters_return_at_once(
    broker: BrokerServer, steps: list[Callable[[], Awaitable[None]]]
) -> None:
    """Each finds some filters placed by the other, later than its own first cut: what was published between those two
    moments had come to nobody here, and both are to get it."""
    port, exact, names = broker.mqtt.port, [f"exact/{n}" for n in range(9)], [unique(), unique()]
    for name in names:
        client = await Raw.connect(port, name, clean=False, _17=600)
        await client.subscribe(*exact, qos=1)
        await client.disconnect()
    await eventually(lambda: not [each for each in exact if each.encode() in broker.engine.subscriptions.filters])
    publisher, sent, one_at_a_time = await Raw.connect(port), list[tuple[str, bytes]](), asyncio.Lock()

    async def publish() -> None:
        async with one_at_a_time:
            for topic in exact:
                sent.append((topic, b"%d" % len(sent)))
                await publisher.publish(*sent[-1], 1)

    steps.append(publish)
    back = await asyncio.gather(*[Raw.connect(port, name, clean=False, _17=600) for name in names])
    steps.clear()
    await publish()
    for client in back:
        got = [(m.topic, m.payload) for m in await client.messages(len(sent))]
        assert sorted(got) == sorted(sent)
        for topic in exact:
            assert [each for each in got if each[0] == topic] == [each for each in sent if each[0] == topic]


async def test_placing_that_fails_is_undone_step_by_step_and_what_is_wanted_again_stays(
    broker: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 filters were undone in one turn, with a request for each; and what ends little by little must not take
    along what the subscriber has again."""
    subscriptions_of, stream = broker.engine.subscriptions, Stream(broker.engine)
    wanted = {name.encode(): Grant(0) for name in NAMES}
    place, left = subscriptions_of.filters.place, [len(NAMES) // STEP - 1]

    async def fail_at_last(*how: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise UnavailableError("gone")
        return await place(*how)

    # Filters ended, of each turn of the loop.
    ended, turn, loop = Counter[int](), 0, asyncio.get_running_loop()
    release = subscriptions_of.filters.release

    def next_turn() -> None:
        nonlocal turn
        turn += 1

    def count(filters: Any) -> Any:
        ended[turn] += len(filters)
        loop.call_soon(next_turn)
        return release(filters)

    monkeypatch.setattr(subscriptions_of.filters, "place", fail_at_last)
    monkeypatch.setattr(subscriptions_of.filters, "release", count)
    with pytest.raises(UnavailableError):
        await subscriptions_of.subscribe(stream, wanted)
    left[0] = len(NAMES)
    await subscriptions_of.subscribe(stream, wanted)
    await eventually(lambda: ended.total() == len(NAMES) and not subscriptions_of._leaving)
    assert max(ended.values()) <= 2 * STEP  # What was at hand when it failed, and a step.
    publisher = await Raw.connect(broker.mqtt.port)
    for topic in TOPICS:
        await publisher.publish(topic, topic.encode(), 1)
    assert {record.payload for record in await stream.arrived(len(TOPICS))} == {topic.encode() for topic in TOPICS}


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
