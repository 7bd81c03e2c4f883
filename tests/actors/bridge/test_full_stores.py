"""A full disk on either side of a bridge: what there is no room for goes on when there is room again, in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lexicast.actors.broker.server import BrokerServer

from ...support.bridge_harness import EXECUTABLE, Room, bridge, client_of, definition, mosquitto
from ...support.harness import Cluster, eventually
from ...support.mqtt_harness import Raw, close_clients


@pytest.fixture
async def sites(tmp_path: Path) -> AsyncIterator[list[tuple[Cluster, BrokerServer]]]:
    async with Cluster(tmp_path / "a") as here, Cluster(tmp_path / "b") as there:
        found = []
        for cluster in (here, there):
            await cluster.start_coordinator()
            found.append((cluster, await cluster.start_broker("broker-0")))
        yield found
        await close_clients()


@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_what_the_other_cluster_has_no_room_for_goes_when_it_has(
    sites: list[tuple[Cluster, BrokerServer]], version: str
) -> None:
    (here, near), (there, far) = sites
    room = Room(there)
    async with (
        client_of(here, near) as bus,
        client_of(there, far) as reader,
        reader.subscribe("out/#") as remote,
        bridge(here, near, definition(far.mqtt.port, "[{ filter = '#' }]", f"protocol = '{version}'")) as server,
    ):
        await eventually(lambda: server.status()["connected"])
        await eventually(lambda: len(near.engine.shares) == 1)
        room.is_full = True
        await bus.publish_many([("out/x", b"%d" % n) for n in range(200)])
        await eventually(lambda: room.refused > 1)
        assert server.status()["sent"] == 0
        room.is_full = False
        got = [int((await anext(remote)).payload) for _ in range(200)]
        assert list(dict.fromkeys(got)) == list(range(200))
        await eventually(lambda: server.status()["unacknowledged"] == 0)


@pytest.mark.skipif(EXECUTABLE is None, reason="mosquitto is not installed")
async def test_what_there_is_no_room_for_here_is_not_acknowledged_there(
    sites: list[tuple[Cluster, BrokerServer]], tmp_path: Path
) -> None:
    here, near = sites[0]
    room = Room(here)
    async with mosquitto(tmp_path / "there") as there:
        found = definition(there.port, "[{ filter = 'in/#', direction = 'in' }]")
        writer = await Raw.connect(there.port)
        async with client_of(here, near) as bus, bus.subscribe("in/#") as local:
            async with bridge(here, near, found) as server:
                await eventually(lambda: server.status()["connected"])
                room.is_full = True
                for n in range(100):
                    await writer.publish("in/x", b"%d" % n, 1)
                await eventually(lambda: server.status()["retried_in"] > 0)
                assert server.status()["received"] == 0
            # Nothing of it was acknowledged: who comes after it gets all of it.
            async with bridge(here, near, found) as server:
                await eventually(lambda: server.status()["retried_in"] > 0)
                room.is_full = False
                assert [int((await anext(local)).payload) for _ in range(100)] == list(range(100))
