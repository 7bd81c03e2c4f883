"""Clients of a node that is being drained: told where to go, their publications answered first, their wills kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.mqtt.codec.packets import USE_ANOTHER_SERVER, V5, V311, Disconnect, PubAck, Publish, Will
from lexicast.actors.mqtt.codec.properties import SERVER_REFERENCE

from ...support.harness import Cluster, eventually
from ...support.mqtt_harness import Raw, close_clients


@asynccontextmanager
async def two_nodes(folder: Path) -> AsyncIterator[tuple[Cluster, BrokerServer, BrokerServer]]:
    """Brokers on nodes a and b; a has the coordinator."""
    async with Cluster(folder) as cluster:
        await cluster.start_coordinator(node="a")
        brokers = [await cluster.start_broker(f"broker-{i}", node="ab"[i]) for i in range(2)]
        try:
            yield cluster, brokers[0], brokers[1]
        finally:
            await close_clients()


async def test_they_are_sent_to_brokers_whose_clients_want_the_same_first(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator(node="a")
        brokers = [await cluster.start_broker(f"broker-{i}", node="abc"[i]) for i in range(3)]
        clients = [await Raw.connect(broker.mqtt.port) for broker in brokers]
        for client, wants in zip(clients, ("t/#", "other", "t/#"), strict=True):
            await client.subscribe(wants)
        for broker in brokers:
            await broker._reports().report()
        cluster.coordination.assign_backups()
        members = await cluster.coordination.members(-1, 0.0)
        assert members.backups["broker-0"] == ("broker-2",)
        hosts = {name: f"10.0.0.{name[-1]}" for name in members.brokers}
        found = {n: replace(m, addresses=(f"tcp:{hosts[n]}:1",)) for n, m in members.brokers.items()}
        leaving = replace(members, brokers=found, leaving=frozenset("a"))
        assert brokers[0]._elsewhere(leaving) == [hosts["broker-2"], hosts["broker-1"]]
        await close_clients()


async def test_clients_are_told_where_to_go_after_their_publications_are_answered(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (cluster, stays, goes):
        new = await Raw.connect(goes.mqtt.port, "new", V5, _17=600)
        old = await Raw.connect(goes.mqtt.port, "old", V311)
        await new.subscribe("t/#", qos=1)
        disk = cluster.coordinators["coordinator-0"].disk
        disk.hold()
        new.send(Publish(b"t/1", b"under way", 1, False, False, 7))
        await eventually(lambda: goes.engine.coordinators.published_records == 1)
        await cluster.coordination.drain_node("b", True)
        assert await old.closed() == []
        assert [client["id"] for client in goes.list_clients(9)] == ["new"]
        disk.release()
        *answers, farewell = await new.closed()
        assert PubAck(7) in answers
        tcp = next(a for a in stays.sockets.addresses if a.startswith("tcp:"))
        reference = f"{tcp.split(':')[1]}:{goes.mqtt.port}"
        assert farewell == Disconnect(USE_ANOTHER_SERVER, {SERVER_REFERENCE: reference})
        with pytest.raises(ConnectionError):
            await Raw.open(goes.mqtt.port)
        # Its session is where it goes.
        again = await Raw.connect(stays.mqtt.port, "new", V5, clean=False, _17=600)
        assert again.connack.session_present
        assert goes.status()["leaving"]

        await cluster.coordination.drain_node("b", False)
        await eventually(lambda: not goes.status()["leaving"])
        async with asyncio.timeout(10):
            while True:
                try:
                    await Raw.connect(goes.mqtt.port, "back")
                    break
                except ConnectionError:
                    await asyncio.sleep(0.01)


async def test_the_will_of_who_is_sent_away_waits_for_it_as_long_as_its_session_is_kept(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (cluster, stays, goes):
        watcher = await Raw.connect(stays.mqtt.port, "watcher")
        await watcher.subscribe("wills/#")
        kept = await Raw.connect(goes.mqtt.port, "kept", V5, will=Will(b"wills/kept", b"gone"), _17=600)
        ends = await Raw.connect(goes.mqtt.port, "ends", V5, will=Will(b"wills/ends", b"gone"))
        await cluster.coordination.drain_node("b", True)
        await kept.closed()
        await ends.closed()
        again = await Raw.connect(stays.mqtt.port, "kept", V5, clean=False, _17=600)
        assert again.connack.session_present
        (will,) = await watcher.messages(1)
        assert will.topic == "wills/ends"  # a session without expiry has ended with its connection
        await watcher.nothing(again, "wills/marker")


async def test_a_broker_that_starts_on_a_node_that_is_drained_lets_nobody_in(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (cluster, _, goes):
        await cluster.coordination.drain_node("b", True)
        await eventually(lambda: goes.status()["leaving"])
        await cluster.stop_broker("broker-1")
        again = await cluster.start_broker("broker-1", node="b")
        with pytest.raises(ConnectionError):
            await Raw.open(again.mqtt.port)
