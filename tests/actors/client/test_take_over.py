"""Brokers die under Python clients: they go on at the backups, with everything once and in order both ways."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

import lexicast
from lexicast import sync
from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.client import connection
from lexicast.actors.client.client import Client
from lexicast.actors.loop.background import stop_loops
from lexicast.cluster.protocol.broker_list import BrokerList

from ...support.harness import Cluster, eventually
from ...support.mqtt_harness import served

MESSAGES = 150


async def kill(broker: BrokerServer) -> None:
    """As if its process had been killed: its links end, nobody listens, nobody is told anything."""
    await stop_loops(*broker._loops)
    broker._loops.clear()
    broker.sockets.close()
    for session in list(broker.clients.sessions):
        session._link.abort()
    await broker.engine.close()


@asynccontextmanager
async def three_brokers(folder: Path) -> AsyncIterator[tuple[Cluster, list[BrokerServer]]]:
    """The local backup of the first is the second, its remote one the third."""
    async with Cluster(folder) as cluster:
        await cluster.start_coordinator()
        brokers = [await cluster.start_broker(f"broker-{i}", node="aab"[i]) for i in range(3)]
        for broker in brokers:
            await broker._reports().report()
        cluster.coordination.assign_backups()
        await eventually(lambda: brokers[0]._brokers.backups == ("broker-1", "broker-2"), "backups are known")
        yield cluster, brokers


async def client_of(cluster: Cluster, broker: BrokerServer, give_up_s: float = 30.0) -> Client:
    """A client that was given one broker's address, and nothing else."""
    info = await cluster.coordination.cluster()
    address = next(a for a in broker.sockets.addresses if a.startswith("tcp:"))
    return lexicast.connect(f"link:{address}", key=info.key, give_up_s=give_up_s)


def backups_known(clients: Iterable[Client], backups: tuple[str, ...]) -> bool:
    return all(bus.internals.connection._brokers.backups == backups for bus in clients)


def links(brokers: Iterable[BrokerServer]) -> list[int]:
    return [len(broker.clients.sessions) for broker in brokers]


def in_order(got: list[bytes], clients: int) -> bool:
    """Whether every message of each publisher is there once, in its order."""
    of_each = [[int(m.partition(b" ")[2]) for m in got if m.startswith(b"%d " % i)] for i in range(clients)]
    return of_each == [list(range(MESSAGES))] * clients


async def test_clients_of_a_killed_broker_go_on_at_its_backups_exactly_once_and_in_order(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as (cluster, brokers), AsyncExitStack() as stack, asyncio.timeout(60):
        clients = [await stack.enter_async_context(await client_of(cluster, brokers[0])) for _ in range(6)]
        await eventually(partial(backups_known, clients, ("broker-1", "broker-2")), "clients know the backups")
        feeds = [await stack.enter_async_context(bus.subscribe("t/#")) for bus in clients]
        got: list[list[bytes]] = [[] for _ in clients]
        positions: list[lexicast.Position] = []

        async def publish(number: int, bus: Client) -> None:
            for at in range(0, MESSAGES, 3):  # each waits for the last one: they go on all the while
                batch = [(f"t/{number}", b"%d %d" % (number, k)) for k in range(at, at + 3)]
                positions.extend(await bus.publish_many(batch, qos=2))

        async def read(feed: lexicast.Subscription, into: list[bytes]) -> None:
            while len(into) < MESSAGES * len(clients):
                into += [message.payload for message in await feed.next_batch()]

        work = [asyncio.ensure_future(publish(i, bus)) for i, bus in enumerate(clients)]
        work += [asyncio.ensure_future(read(feed, into)) for feed, into in zip(feeds, got, strict=True)]
        await eventually(lambda: len(positions) > MESSAGES, "a sixth is published")
        await kill(brokers[0])
        await eventually(lambda: links(brokers) == [0, 6, 0], "all are at the local backup")
        await eventually(lambda: all(len(bus.internals.connection._brokers.endpoints) == 3 for bus in clients))
        await kill(brokers[1])
        await eventually(lambda: links(brokers) == [0, 0, 6], "all are at the only one that is left")
        await asyncio.gather(*work)
        assert [in_order(each, len(clients)) for each in got] == [True] * len(clients)
        assert len(set(positions)) == MESSAGES * len(clients)
        history = [message.payload async for message in clients[0].history("t/#")]
        assert len(history) == len(set(history)) == MESSAGES * len(clients)


async def test_the_remote_backup_is_next_where_the_local_one_is_gone_too(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as (cluster, brokers), asyncio.timeout(60):
        await cluster.start_broker("broker-3", node="c")  # which stands in for nobody
        await eventually(lambda: len(brokers[0]._brokers.addresses) == 4)
        async with await client_of(cluster, brokers[0]) as bus:
            await eventually(partial(backups_known, [bus], ("broker-1", "broker-2")))
            await kill(brokers[1])
            await kill(brokers[0])
            await bus.publish("t", b"at the remote one")
            assert bus.broker_name == "broker-2"
            assert "broker-1" in bus.internals.connection._choice._listed  # it has failed: it is blacklisted


async def test_brokers_that_come_later_are_told_while_a_client_is_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ASK_AGAIN_S", 0.02)
    async with Cluster(tmp_path) as cluster, asyncio.timeout(60):
        await cluster.start_coordinator()
        first = await cluster.start_broker("broker-0")
        async with await client_of(cluster, first) as bus:
            await bus.publish("t", b"1")
            await cluster.start_broker("broker-1", node="b")
            await eventually(lambda: "broker-1" in bus.internals.connection._brokers.endpoints)
            await kill(first)
            await bus.publish("t", b"2")
            assert bus.broker_name == "broker-1"
            assert [message.payload async for message in bus.history("t")] == [b"1", b"2"]


async def test_a_broker_that_tells_nonsense_serves_all_the_same(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as (cluster, brokers), asyncio.timeout(60):
        brokers[0]._brokers = BrokerList({"broker-1": ("unix:/somewhere",)}, ("broker-1",))
        async with await client_of(cluster, brokers[0]) as bus:
            await bus.publish("t", b"1")
            assert list(bus.internals.connection._brokers.endpoints) == [bus.broker_name]


async def test_a_client_that_finds_nobody_says_so_when_it_gives_up(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as (cluster, brokers), await client_of(cluster, brokers[0], 0.5) as bus:
        await eventually(partial(backups_known, [bus], ("broker-1", "broker-2")))
        for broker in reversed(brokers):
            await kill(broker)
        with pytest.raises(lexicast.UnavailableError, match=r"no broker for 0\.[5-9] s: .*[Cc]onnect"):
            await bus.publish("t", b"")


def test_the_blocking_client_goes_on_too() -> None:
    with served(brokers=2) as running:
        info = running.run(running.cluster.coordination.cluster())
        address = f"link:{running.broker(0).sockets.addresses[0]}"
        with sync.connect(address, key=info.key, give_up_s=60.0) as bus, bus.subscribe("t") as feed:
            got: list[bytes] = []
            reader = threading.Thread(target=lambda: got.extend([next(feed).payload for _ in range(MESSAGES)]))
            reader.start()
            for number in range(MESSAGES):
                bus.publish("t", b"%d" % number)
                if number == MESSAGES // 2:
                    running.run(kill(running.broker(0)))
            reader.join(60)
            assert bus.broker_name == "broker-1"
        assert got == [b"%d" % number for number in range(MESSAGES)]
