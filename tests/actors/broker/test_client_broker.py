"""The Python client against a real broker and coordinator (without Ray): what the broker in memory stands for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lexicast
from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.client.client import Client
from lexicast.actors.client.known_brokers import Endpoint
from lexicast.actors.client.publisher import QUEUE_RECORDS_MAX
from lexicast.actors.client.sent_window import WINDOW
from lexicast.actors.client.subscription_feed import SETTLE_S
from lexicast.cluster.errors import UsageError
from lexicast.cluster.positions import topic_group

from ...support.harness import GROUPS, Cluster, Coordinator, eventually


class Served:
    """One coordinator, some brokers."""

    def __init__(self, cluster: Cluster, coordinator: Coordinator, brokers: list[BrokerServer]) -> None:
        self.cluster = cluster
        self.coordinator = coordinator
        self.brokers = brokers

    def client(self, **options: Any) -> Client:
        """A client of all brokers that serve."""

        async def resolve() -> list[Endpoint]:
            members = await self.cluster.coordination.members(-1, 0)
            info = await self.cluster.coordination.cluster()
            return [Endpoint(m.name, m.addresses, info.cluster_id, info.key) for m in members.brokers.values()]

        return Client(resolve, **options)

    def cut(self) -> None:
        """Every client's link breaks."""
        for broker in self.brokers:
            for session in list(broker.clients.sessions):
                session._link.abort()


@asynccontextmanager
async def served(folder: Path, brokers: int = 1) -> AsyncIterator[Served]:
    async with Cluster(folder) as cluster:
        coordinator = await cluster.start_coordinator()
        yield Served(cluster, coordinator, [await cluster.start_broker(f"broker-{i}") for i in range(brokers)])


async def take(subscription: lexicast.Subscription, count: int) -> list[lexicast.Message]:
    async with asyncio.timeout(60):
        return [await anext(subscription) for _ in range(count)]


async def test_message_arrives_as_published_at_the_acknowledged_position(tmp_path: Path) -> None:
    properties = lexicast.Properties(user=(("unit", "km"),), content_type="text/plain", correlation_data=b"\0")
    async with served(tmp_path) as s, s.client(client_id="me") as bus, bus.subscribe("a/+") as subscription:
        position = await bus.publish("a/b", "hello", qos=2, properties=properties)
        (message,) = await take(subscription, 1)
        assert (message.topic, message.payload, message.qos) == ("a/b", b"hello", 2)
        assert (message.position, message.publisher, message.properties) == (position, "me", properties)
        assert abs(message.time.timestamp() - time.time()) < 60
        assert (await bus.status())["clients"] == 1


async def test_retained_then_live_then_resumed_by_cursor(tmp_path: Path) -> None:
    async with served(tmp_path) as s, s.client() as bus:
        await bus.publish("s/1", b"old", retain=True)
        await bus.publish("s/2", b"x")
        async with bus.subscribe("s/#") as subscription:
            await bus.publish("s/3", b"live")
            got = await take(subscription, 2)
            cursor = subscription.cursor
        assert [(m.payload, m.retain) for m in got] == [(b"old", True), (b"live", False)]
        await bus.publish_many([(f"s/{i}", b"away %d" % i) for i in range(10)])
        async with bus.subscribe("s/#", since=cursor) as subscription:
            assert {m.payload for m in await take(subscription, 10)} == {b"away %d" % i for i in range(10)}


async def test_since_position_time_and_beginning(tmp_path: Path) -> None:
    async with served(tmp_path) as s, s.client() as bus:
        positions = await bus.publish_many([("t", b"%d" % i) for i in range(5)])
        for since, expected in ((positions[2], 2), ("beginning", 5), ("1h", 5)):
            async with bus.subscribe("t", since=since) as subscription:
                got = await take(subscription, expected)
                assert [m.payload for m in got] == [b"%d" % i for i in range(5 - expected, 5)]


async def test_nothing_is_lost_or_doubled_when_links_break_under_way(tmp_path: Path) -> None:
    count = 20_000
    async with served(tmp_path, brokers=2) as s, s.client() as bus, bus.subscribe("t/#") as subscription:
        publishing = asyncio.ensure_future(bus.publish_many((f"t/{i % 3}", b"%d" % i) for i in range(count)))
        got: dict[str, list[int]] = {}
        seen, next_cut = 0, 3_000
        async with asyncio.timeout(60):
            while seen < count:
                for message in await subscription.next_batch():
                    got.setdefault(message.topic, []).append(int(message.payload))
                    seen += 1
                if seen >= next_cut:
                    next_cut += 5_000
                    s.cut()
        positions = await publishing
        assert bus.statistics["links"] > 1
        assert len(set(positions)) == count
        assert got == {f"t/{k}": list(range(k, count, 3)) for k in range(3)}
        assert len([m async for m in bus.history("t/#")]) == count


def _moved(bus: Client, first: str) -> bool:
    return bus.broker_name != first


async def test_client_moves_to_another_broker(tmp_path: Path) -> None:
    async with served(tmp_path, brokers=2) as s, s.client() as bus, bus.subscribe("t") as subscription:
        for i in range(3):
            first = bus.broker_name
            await bus.publish("t", b"%d" % i)
            s.cut()
            assert [m.payload for m in await take(subscription, 1)] == [b"%d" % i]
            await eventually(partial(_moved, bus, first), "a move to the other broker")


async def test_coordinator_that_dies_costs_nothing_acknowledged(tmp_path: Path) -> None:
    async with served(tmp_path) as s, s.client() as bus, bus.subscribe("t") as subscription:
        before = await bus.publish_many([("t", b"%d" % i) for i in range(100)])
        await s.cluster.crash_coordinator()
        publishing = asyncio.ensure_future(bus.publish_many([("t", b"%d" % i) for i in range(100, 200)]))
        await s.cluster.start_coordinator()
        after = await publishing
        got = await take(subscription, 200)
        assert [m.payload for m in got] == [b"%d" % i for i in range(200)]
        assert [m.position for m in got] == before + after
        assert before[-1].epoch < after[-1].epoch


async def test_slow_consumer_catches_up_from_storage(tmp_path: Path) -> None:
    async with served(tmp_path) as s, s.client() as bus, bus.subscribe("t", buffer_bytes=20_000) as slow:
        for start in range(0, 5_000, 500):
            await bus.publish_many([("t", b"%d" % i) for i in range(start, start + 500)])
        await eventually(lambda: slow.feed._stream == 0, "the client lets go of the stream")
        assert [m.payload for m in await take(slow, 5_000)] == [b"%d" % i for i in range(5_000)]
        await bus.publish("t", b"live again")
        assert (await take(slow, 1))[0].payload == b"live again"


WHERE = "delay > 30 AND carrier IN ('UA', 'AA')"


def flights(count: int) -> list[tuple[str, bytes]]:
    carriers = ("UA", "AA", "DL")
    return [(f"f/{i % 7}", b'{"delay":%d,"carrier":"%s"}' % (i, carriers[i % 3].encode())) for i in range(count)]


def expected(count: int, first: int = 31) -> list[int]:
    return [i for i in range(first, count) if i % 3 < 2]


def delays(messages: list[lexicast.Message]) -> list[int]:
    return sorted([int(m.payload.split(b":")[1].split(b",")[0]) for m in messages])


async def test_conditions_live_in_the_past_and_retained(tmp_path: Path) -> None:
    async with served(tmp_path) as s, s.client() as bus:
        async with bus.subscribe("f/#", where=WHERE) as live, bus.subscribe("f/#") as plain:
            await bus.publish_many(flights(300))
            assert delays(await take(live, len(expected(300)))) == expected(300)
            assert len(await take(plain, 300)) == 300
        async with bus.subscribe("f/#", since="beginning", where=WHERE) as both:
            await bus.publish_many(flights(100))
            all_of_them = sorted(expected(300) + expected(100))
            assert delays(await take(both, len(all_of_them))) == all_of_them
        assert delays([m async for m in bus.history("f/#", where=WHERE)]) == all_of_them
        assert len([m async for m in bus.history("f/#", where=WHERE, limit=5)]) == 5
        assert await bus.count("f/#", where=WHERE) == len(all_of_them)
        assert await bus.count("f/#") == 400
        last = [m async for m in bus.history("f/+", last=3, where="delay >= 90")]
        assert len(last) == len([i for i in range(79, 100) if i >= 90])
        await bus.publish("r/1", b'{"delay":1}', retain=True)
        await bus.publish("r/2", b'{"delay":50}', retain=True)
        async with bus.subscribe("r/#", where="delay > 30") as kept:
            assert [m.topic for m in await take(kept, 1)] == ["r/2"]
        for refused in ("delay >", ""):
            with pytest.raises(UsageError):
                bus.subscribe("a", where=refused)
        with pytest.raises(UsageError, match="column"):
            await bus.count("f/#", where="delay > 30 AND")


async def test_a_condition_outlives_a_broken_link(tmp_path: Path) -> None:
    async with served(tmp_path) as s, s.client() as bus, bus.subscribe("f/#", where=WHERE) as live:
        await bus.publish_many(flights(60))
        found = await take(live, 5)
        s.cut()
        await bus.publish_many(flights(120))
        found += await take(live, len(expected(60)) + len(expected(120)) - 5)
        assert delays(found) == sorted(expected(60) + expected(120))


async def test_until_and_history(tmp_path: Path) -> None:
    async with served(tmp_path) as s, s.client() as bus:
        await bus.publish_many([(f"t/{i % 7}", b"%d" % i) for i in range(3_000)])
        await asyncio.sleep(SETTLE_S)
        async with asyncio.timeout(60):
            got = [m async for m in bus.subscribe("t/#", since="beginning", until="now")]
        history = [m async for m in bus.history("t/#")]
        assert sorted(int(m.payload) for m in got) == list(range(3_000))
        assert {m.position for m in history} == {m.position for m in got}
        assert [m.payload async for m in bus.history("t/3", limit=2)] == [b"3", b"10"]
        assert [m async for m in bus.history("t/#", until="beginning")] == []
        last = [m.payload async for m in bus.history(["t/+", "t/3"], last=2)]
        of_each = [[i for i in range(3_000) if i % 7 == topic][-2:] for topic in range(7)]
        assert last == [b"%d" % i for own in of_each for i in own]
        assert [m.payload async for m in bus.history("t/3", last=2, limit=1)] == [last[6]]
        middle = history[len(history) // 2]
        for filters, since, until in (
            ("t/#", "beginning", None),
            ("t/3", "beginning", None),
            ("t/#", "1h", middle.time),
        ):
            expected = [m async for m in bus.history(filters, since=since, until=until)]
            assert await bus.count(filters, since=since, until=until) == len(expected)
        for wrong in (0, -1, 65_536, True):
            with pytest.raises(UsageError, match="1 to 65535"):
                await anext(bus.history("t/3", last=wrong))


async def test_refused_filter_and_closed_cluster(tmp_path: Path) -> None:
    async with served(tmp_path) as s, s.client(give_up_s=0.2) as bus:
        subscription = bus.subscribe("t")
        async with subscription:
            for name in list(s.cluster.nodes):
                await s.cluster.stop_broker(name)
            s.cut()
            with pytest.raises(lexicast.UnavailableError, match="no broker for"):
                await anext(subscription)


async def test_publications_to_a_group_without_a_coordinator_end_after_give_up_s(tmp_path: Path) -> None:
    """The link stands, so nobody looks for another broker; what goes to groups that are led goes on."""
    names = ("coordinator-0", "coordinator-1")
    async with Cluster(tmp_path, coordinators=names) as cluster:
        servers = [await cluster.start_coordinator(name) for name in names]
        s = Served(cluster, servers[0], [await cluster.start_broker("broker-0")])
        led = [set(server.server.sequencer.groups) for server in servers]
        kept, lost = (
            next(f"t/{i}" for i in range(100) if topic_group(b"t/%d" % i, GROUPS) in groups) for groups in led
        )
        async with s.client(give_up_s=0.5) as bus:
            await cluster.crash_coordinator("coordinator-1")
            with pytest.raises(lexicast.UnavailableError, match=r"not acknowledged for 0\.5 s.*status"):
                await bus.publish(lost, b"")
            with pytest.raises(lexicast.UnavailableError, match="not acknowledged"):
                await bus.publish_many([(lost, b"") for _ in range(3_000)])
            assert bus.statistics["given_up"] == 3_001
            await bus.publish(kept, b"goes on")
            with pytest.raises(lexicast.UnavailableError, match="has not answered"):
                await bus.subscribe(lost).__aenter__()
            with pytest.raises(lexicast.UnavailableError):
                [message async for message in bus.history(lost)]
        await cluster.start_coordinator("coordinator-1")
        async with s.client() as bus:
            await bus.publish(lost, b"is led again")


async def test_a_publisher_that_has_no_room_gives_up_too(tmp_path: Path) -> None:
    async with served(tmp_path) as s, s.client(give_up_s=0.5) as bus:
        await s.cluster.crash_coordinator()
        for i in range(QUEUE_RECORDS_MAX + WINDOW * 4_096 + 1):
            with suppress(lexicast.UnavailableError):
                bus.publish_nowait("t", b"%d" % i)
        with pytest.raises(lexicast.UnavailableError, match=r"no room|not acknowledged"):
            await bus.publish("t", b"one more")
        await s.cluster.start_coordinator()


async def test_connecting_ends_after_give_up_s() -> None:
    async def never() -> list[Endpoint]:
        await asyncio.get_running_loop().create_future()
        return []

    with pytest.raises(lexicast.UnavailableError, match="connecting has not come to an end"):
        await Client(never, give_up_s=0.05).open()
    with pytest.raises(UsageError, match="give_up_s"):
        Client(never, give_up_s=0)


async def _refused(call: Callable[[], Awaitable[Any]]) -> None:
    with pytest.raises(UsageError, match="belongs to the event loop"):
        await call()


async def test_a_client_belongs_to_the_event_loop_that_opened_it(tmp_path: Path) -> None:
    """Another event loop, or a thread without one: an error at once, where it would wait for ever."""

    async def elsewhere(bus: Client, subscription: lexicast.Subscription) -> None:
        await _refused(lambda: bus.publish("t", b""))
        await _refused(lambda: bus.publish_many([("t", b"")]))
        await _refused(lambda: anext(subscription))
        for call in (bus.flush, bus.status, bus.close, subscription.close):
            await _refused(call)
        with pytest.raises(UsageError, match="belongs to the event loop"):
            bus.subscribe("t")

    def in_thread(bus: Client) -> None:
        with pytest.raises(UsageError, match="belongs to the event loop"):
            bus.publish_nowait("t", b"")

    async with served(tmp_path) as s, s.client() as bus, bus.subscribe("t") as subscription:
        await asyncio.to_thread(in_thread, bus)
        await asyncio.to_thread(lambda: asyncio.run(elsewhere(bus, subscription)))
        await bus.publish("t", b"goes on")
        assert [m.payload for m in await take(subscription, 1)] == [b"goes on"]


async def test_several_filters_are_one_stream(tmp_path: Path) -> None:
    """What matches two of them comes once: retained, live, from the past, and over a broken link."""
    filters = ["a/+", "a/1", "b/#"]
    async with served(tmp_path) as s, s.client() as bus:
        for topic in ("a/1", "b/x", "c/1"):
            await bus.publish(topic, f"kept {topic}", retain=True)
        async with bus.subscribe(filters) as subscription:
            assert subscription.filters == tuple(filters)
            assert sorted([m.payload for m in await take(subscription, 2)]) == [b"kept a/1", b"kept b/x"]
            topics = ["a/1", "a/2", "b/x/y", "c/1", "b"]
            live = await bus.publish_many([(topic, topic) for topic in topics])
            wanted = {at for topic, at in zip(topics, live, strict=True) if topic != "c/1"}
            assert {m.position for m in await take(subscription, 4)} == wanted
            s.cut()
            after = await bus.publish_many([("a/1", "after"), ("c/1", "no"), ("b/z", "after")])
            assert {m.position for m in await take(subscription, 2)} == {after[0], after[2]}
        past = [m.position async for m in bus.history(filters)]
        assert len(past) == len(set(past)) == 8
        async with bus.subscribe(filters, since="beginning") as again:
            assert {m.position for m in await take(again, 8)} == set(past)
        for wrong in ([], ["a/#/b"], [f"t/{at}" for at in range(1_001)]):
            with pytest.raises(lexicast.UsageError):
                bus.subscribe(wrong)
