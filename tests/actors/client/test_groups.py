"""Consumer groups of Python clients at the real broker: each message to one member, what was not done to others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import lexicast
import lexicast.sync
from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.client.client import Client
from lexicast.actors.coordinator.session_home import SessionHome
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import TopicError, UsageError
from lexicast.cluster.records import SessionSaved

from ...support.harness import Cluster, eventually
from ...support.mqtt_harness import HOST, Message, Raw, close_clients, served


@asynccontextmanager
async def connected(cluster: Cluster, broker: BrokerServer, kind: str = "unix") -> AsyncIterator[Client]:
    (address,) = [each for each in broker.sockets.addresses if each.startswith(kind)]
    key = (await cluster.coordination.cluster()).key
    async with asyncio.timeout(90), lexicast.connect(f"link:{address}", key=key, give_up_s=30) as bus:
        yield bus


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[Cluster, BrokerServer]]:
    async with Cluster(tmp_path, config=Config().replaced(mqtt__share_strategy="free")) as cluster:
        await cluster.start_coordinator()
        yield cluster, await cluster.start_broker("broker-0")
        await close_clients()


async def payloads(subscription: lexicast.Subscription, count: int) -> list[bytes]:
    return [(await anext(subscription)).payload for _ in range(count)]


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_each_message_goes_to_one_member_also_beside_mqtt_clients(
    running: tuple[Cluster, BrokerServer], kind: str
) -> None:
    cluster, broker = running
    got: list[bytes] = []

    async def work(bus: Client) -> None:
        async with bus.subscribe("jobs/#", group="workers") as jobs:
            async for message in jobs:
                got.append(message.payload)

    device = await Raw.connect(broker.mqtt.port)
    await device.subscribe("$share/workers/jobs/#", qos=1)
    async with connected(cluster, broker, kind) as one, connected(cluster, broker, kind) as other:
        tasks = [asyncio.ensure_future(work(bus)) for bus in (one, other)]
        await eventually(lambda: len(broker.engine.shares) == 3)
        sent = [b"%d" % number for number in range(300)]
        await one.publish_many([(f"jobs/{n % 7}", payload) for n, payload in enumerate(sent)])

        async def receive() -> None:
            while True:
                got.append((await device.expect(Message)).payload)

        tasks.append(asyncio.ensure_future(receive()))
        await eventually(lambda: len(got) == len(sent), "all messages")
        assert sorted(got) == sorted(sent)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_was_not_done_goes_to_another_member_and_what_was_does_not(
    running: tuple[Cluster, BrokerServer],
) -> None:
    cluster, broker = running
    async with connected(cluster, broker) as one:
        await one.publish_many([("jobs/1", b"%d" % number) for number in range(10)])
        with suppress(ZeroDivisionError):
            async with bus_group(one) as jobs:
                assert await payloads(jobs, 4) == [b"0", b"1", b"2", b"3"]
                raise ZeroDivisionError  # while it does the fourth
    async with connected(cluster, broker) as other:
        async with bus_group(other) as jobs:
            assert await payloads(jobs, 7) == [b"3", b"4", b"5", b"6", b"7", b"8", b"9"]
        # It ended without an error: all of that is done.
        async with bus_group(other) as jobs:
            await other.publish("jobs/1", b"more")
            assert await payloads(jobs, 1) == [b"more"]


async def test_a_batch_is_done_when_what_follows_is_asked_for(running: tuple[Cluster, BrokerServer]) -> None:
    cluster, broker = running
    async with connected(cluster, broker) as one:
        await one.publish_many([("jobs/1", b"%d" % number) for number in range(10)])
        with suppress(ZeroDivisionError):
            async with bus_group(one) as jobs:
                assert [job.payload for job in await jobs.next_batch(4)] == [b"0", b"1", b"2", b"3"]
                assert [job.payload for job in await jobs.next_batch(2)] == [b"4", b"5"]
                raise ZeroDivisionError  # while it does these
    async with connected(cluster, broker) as other:
        async with bus_group(other) as jobs:
            assert [job.payload for job in await jobs.next_batch()] == [b"4", b"5", b"6", b"7", b"8", b"9"]
        # It ended without an error: all of that is done.
        async with bus_group(other) as jobs:
            await other.publish("jobs/1", b"more")
            assert await payloads(jobs, 1) == [b"more"]


async def test_what_is_acknowledged_by_hand_is_done_and_nothing_else(running: tuple[Cluster, BrokerServer]) -> None:
    cluster, broker = running

    def by_hand(bus: Client) -> lexicast.Subscription:
        return bus.subscribe("jobs/#", group="workers", since="beginning", group_window=4, manual_ack=True)

    async with connected(cluster, broker) as bus:
        await bus.publish_many([("jobs/1", b"%d" % number) for number in range(8)])
        async with by_hand(bus) as jobs:
            first = await taken(jobs, 4)
            assert [job.payload for job in first] == [b"0", b"1", b"2", b"3"]
            assert await jobs.next_batch(timeout_s=0.05) == []  # its window is full
            jobs.ack(first[2])
            jobs.ack(first[:1])
            assert {job.payload for job in await taken(jobs, 2)} == {b"4", b"5"}
        async with by_hand(bus) as jobs:
            rest = await taken(jobs, 4)
            assert {job.payload for job in rest} == {b"1", b"3", b"4", b"5"}
            jobs.ack(rest)
            jobs.ack(await taken(jobs, 2))
        async with by_hand(bus) as jobs:
            await bus.publish("jobs/1", b"more")
            assert [job.payload for job in await taken(jobs, 1)] == [b"more"]


async def taken(subscription: lexicast.Subscription, count: int) -> list[lexicast.Message]:
    return [await anext(subscription) for _ in range(count)]


async def test_what_a_callback_fails_at_goes_to_another_member(running: tuple[Cluster, BrokerServer]) -> None:
    cluster, broker = running
    done: list[bytes] = []

    async def work(job: lexicast.Message) -> None:
        await asyncio.sleep(0)
        if job.payload == b"3":
            raise ZeroDivisionError
        done.append(job.payload)

    async with connected(cluster, broker) as bus:
        await bus.publish_many([("jobs/1", b"%d" % number) for number in range(5)])
        with pytest.raises(ZeroDivisionError):
            await bus_group(bus).call(work)
        assert done == [b"0", b"1", b"2"]
        async with bus_group(bus) as jobs:
            assert await payloads(jobs, 2) == [b"3", b"4"]


def test_blocking_members_are_done_as_others_are() -> None:
    with served() as running, lexicast.sync.connect(f"link:tcp:{HOST}:{running.port}") as bus:

        def group(by_hand: bool = False) -> lexicast.sync.SyncSubscription:
            return bus.subscribe("jobs/#", group="workers", since="beginning", manual_ack=by_hand)

        bus.publish_many([("jobs/1", b"%d" % number) for number in range(12)])
        with suppress(ZeroDivisionError), group() as jobs:
            assert [next(jobs).payload for _ in range(3)] == [b"0", b"1", b"2"]
            raise ZeroDivisionError  # while it does the third
        with group() as jobs:
            assert [next(jobs).payload for _ in range(2)] == [b"2", b"3"]
        with suppress(ZeroDivisionError), group() as jobs:
            assert [job.payload for job in jobs.next_batch(2)] == [b"4", b"5"]
            assert [job.payload for job in jobs.next_batch(2)] == [b"6", b"7"]
            raise ZeroDivisionError  # while it does these
        with group(by_hand=True) as jobs:
            first, *_ = [next(jobs) for _ in range(3)]
            assert first.payload == b"6"
            jobs.ack(first)
        failed = threading.Event()

        def work(job: lexicast.Message) -> None:
            if job.payload == b"9":
                failed.set()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError), group().start(work):
            assert failed.wait(60)
        with group() as jobs:
            assert {next(jobs).payload for _ in range(3)} == {b"9", b"10", b"11"}


async def test_what_is_done_while_a_share_that_was_left_is_saved_is_done(
    running: tuple[Cluster, BrokerServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was saved once, as it stood when the first member had gone, and forgotten then."""
    cluster, broker = running
    keep = SessionHome.keep

    async def slowly(home: SessionHome, group: int, session: SessionSaved) -> None:
        await asyncio.sleep(0.3)
        await keep(home, group, session)

    async with connected(cluster, broker) as bus:
        await bus.publish_many([("jobs/1", b"%d" % number) for number in range(3)])
        async with bus_group(bus) as jobs:
            assert await payloads(jobs, 1) == [b"0"]
        monkeypatch.setattr(SessionHome, "keep", slowly)
        async with bus_group(bus) as jobs:
            assert await payloads(jobs, 2) == [b"1", b"2"]
        await asyncio.sleep(1.0)
        async with bus_group(bus) as jobs:
            await bus.publish("jobs/1", b"more")
            assert await payloads(jobs, 1) == [b"more"]


def bus_group(bus: Client) -> lexicast.Subscription:
    return bus.subscribe("jobs/#", group="workers", since="beginning")


async def test_a_member_has_no_more_in_hand_than_its_window(running: tuple[Cluster, BrokerServer]) -> None:
    cluster, broker = running
    async with connected(cluster, broker) as one, connected(cluster, broker) as other:
        slow = one.subscribe("jobs/#", group="workers", group_window=1)
        fast = other.subscribe("jobs/#", group="workers")
        async with slow, fast:
            await one.publish_many([("jobs/1", b"%d" % number) for number in range(50)])
            (held,) = await payloads(slow, 1)
            rest = await payloads(fast, 49)
            assert sorted([held, *rest]) == sorted(b"%d" % number for number in range(50))


async def test_conditions_and_expired_messages_hold_nothing_up(running: tuple[Cluster, BrokerServer]) -> None:
    cluster, broker = running
    async with connected(cluster, broker) as bus:
        await bus.publish("jobs/1", b'{"level": 9}', expiry_s=0.001)
        await asyncio.sleep(0.01)
        await bus.publish_many([("jobs/1", b'{"level": %d}' % level) for level in (1, 7, 2, 8)])
        jobs = bus.subscribe("jobs/#", group="workers", since="beginning", where="level > 5", group_window=2)
        async with jobs:
            assert await payloads(jobs, 2) == [b'{"level": 7}', b'{"level": 8}']
        coordinator = cluster.coordinators["coordinator-0"].server
        await eventually(lambda: not coordinator.shares.status(), "the share to be left")


async def test_a_member_goes_on_after_its_link_broke(running: tuple[Cluster, BrokerServer]) -> None:
    cluster, broker = running
    async with connected(cluster, broker) as bus, bus.subscribe("jobs/#", group="workers") as jobs:
        await bus.publish("jobs/1", b"0")
        assert await payloads(jobs, 1) == [b"0"]
        for session in list(broker.clients.sessions):
            session._link.abort()
        await bus.publish("jobs/1", b"1")
        got = set(await payloads(jobs, 1))
        while b"1" not in got:  # the first was not done yet, it may come again
            got |= set(await payloads(jobs, 1))
        assert got <= {b"0", b"1"}


async def test_what_a_group_cannot_be_asked_for(running: tuple[Cluster, BrokerServer]) -> None:
    cluster, broker = running
    async with connected(cluster, broker) as bus:
        with pytest.raises(UsageError, match="one filter"):
            bus.subscribe(["a", "b"], group="g")
        with pytest.raises(UsageError, match="one filter"):
            bus.subscribe("a", group="g", slow="drop")
        with pytest.raises(UsageError, match="manual_ack"):
            bus.subscribe("a", manual_ack=True)
        async with bus_group(bus) as jobs:
            with pytest.raises(UsageError, match="manual_ack"):
                jobs.ack([])
        with pytest.raises(UsageError, match="group_window"):
            bus.subscribe("a", group="g", group_window=0)
        for name in ("", "a/b", "a+", "a#"):
            with pytest.raises(TopicError):
                bus.subscribe("a", group=name)
