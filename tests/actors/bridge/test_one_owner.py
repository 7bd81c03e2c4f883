"""One process is the bridge: who was replaced does not connect to the other broker again, and ends."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from lexicast.actors.bridge.actor import BridgeActor
from lexicast.actors.bridge.server import BridgeServer
from lexicast.actors.coordination.server import LocalCoordination
from lexicast.cluster.bridges.definitions import BridgeSecrets
from lexicast.cluster.membership import BRIDGE, Member

from ...support.bridge_harness import client_of, definition
from ...support.harness import Cluster, eventually
from ...support.mqtt_harness import HOST

OUT = "[{ filter = 'out/#' }]"


async def test_it_connects_only_while_the_cluster_takes_it_for_the_bridge(tmp_path: Path) -> None:
    comes: list[str] = []
    is_known = False

    async def may_connect() -> bool:
        return is_known

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        comes.append("connected")
        writer.close()

    there = await asyncio.start_server(accept, HOST, 0)
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        async with client_of(cluster, broker) as bus:
            found = definition(there.sockets[0].getsockname()[1], OUT)
            server = BridgeServer(bus, found, BridgeSecrets(), "own", may_connect)
            server.start()
            await eventually(lambda: server.status()["errors"] > 2)
            assert "another one is this bridge by now" in server.status()["last_error"]
            assert not comes
            is_known = True
            await eventually(lambda: bool(comes))
            await server.stop()
    there.close()
    await there.wait_closed()


async def test_who_was_registered_later_is_the_bridge_and_the_other_one_ends(tmp_path: Path) -> None:
    ended: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: ended.append(context["message"]))
    with LocalCoordination(tmp_path) as coordination:
        first, second = (BridgeActor.__new__(BridgeActor) for _ in range(2))
        for actor in (first, second):
            actor.name = "bridge-site"
            actor._coordination = coordination  # type: ignore[assignment]  # it is called as a RayCoordination is
        first._incarnation = await coordination.register(BRIDGE, Member("bridge-site", 0, (), "a", os.getpid()))
        assert await first._is_this_one()
        first._follow(await coordination.members(-1, 0))
        assert not ended
        second._incarnation = await coordination.register(BRIDGE, Member("bridge-site", 0, (), "b", os.getpid()))
        assert await second._is_this_one()
        assert not await first._is_this_one()
        for actor in (first, second):
            actor._follow(await coordination.members(-1, 0))
        (told,) = ended
        assert told.startswith("bridge-site runs elsewhere by now: on b")
