"""A broker that was suspected wrongly: its link was gone for a while. It keeps its sessions, and the log says so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.broker.pipelines import pipeline
from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.coordinator.session_owners import ORPHANED_S
from lexicast.actors.link.sockets import dial_any
from lexicast.actors.mqtt.codec.packets import V5, Disconnect, Will
from lexicast.cluster.positions import topic_group

from ...support.harness import GROUPS, Cluster, Coordinator, Shifted, eventually
from ...support.mqtt_harness import Raw, close_clients


class Road:
    """Between a broker and its coordinators: while it is closed, what is dialled waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = asyncio.Event()
        self.open.set()

        async def dial(*arguments: Any, **more: Any) -> Any:
            await self.open.wait()
            return await dial_any(*arguments, **more)

        monkeypatch.setattr(pipeline, "dial_any", dial)


async def cut_off(coordinator: Coordinator, broker: BrokerServer, road: Road) -> None:
    """The broker's link ends, and the coordinator has noticed; it cannot come back yet."""
    road.open.clear()
    coordinator.server.routing.peers[broker.name].link.abort()
    await eventually(lambda: broker.name in coordinator.server.sessions.owners._gone, "it is suspected")


async def test_it_keeps_its_sessions_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, road = Shifted(), Road(monkeypatch)
    async with Cluster(tmp_path, clock=clock) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        watcher = await Raw.connect(broker.mqtt.port)
        await watcher.subscribe("wills/#")
        client = await Raw.connect(broker.mqtt.port, "kept", V5, will=Will(b"wills/kept", b"gone"), _17=600)
        await client.subscribe("t/#", qos=1)
        generation = broker.mqtt.sessions.owners["kept"].session.generation

        await cut_off(coordinator, broker, road)
        clock.ahead_s += ORPHANED_S - 1
        coordinator.server.sessions.sweep(range(GROUPS))
        road.open.set()

        await client.publish("t/1", b"still here", qos=1)
        assert [message.payload for message in await client.messages(1)] == [b"still here"]
        assert broker.mqtt.sessions.owners["kept"].session.generation == generation
        await watcher.nothing(client, "wills/marker")  # it is alive: its will is not due
        (said,) = [record.message for record in caplog.records if "has come back" in record.message]
        assert said.endswith("s without a link: it keeps its sessions")
        await close_clients()


async def test_without_a_link_for_too_long_it_finds_them_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, road = Shifted(), Road(monkeypatch)
    async with Cluster(tmp_path, clock=clock) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        client = await Raw.connect(broker.mqtt.port, "taken", V5, _17=600)
        home = coordinator.server.sessions
        await cut_off(coordinator, broker, road)
        clock.ahead_s += ORPHANED_S
        home.sweep(range(GROUPS))

        def is_nobodys() -> bool:
            session = home.get(topic_group(b"taken", GROUPS), "taken")
            return session is not None and not session.owner

        await eventually(is_nobodys, "it is nobody's")
        road.open.set()
        assert isinstance((await client.closed())[-1], Disconnect)
        (said,) = [record.message for record in caplog.records if "has come back" in record.message]
        assert said.endswith("others may have its sessions by now")
        again = await Raw.connect(broker.mqtt.port, "taken", V5, clean=False, _17=600)
        assert again.connack.session_present
        await close_clients()
