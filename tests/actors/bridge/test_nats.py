"""Bridges to nats-server, which speaks MQTT 3.1.1: both ways, in order, without loops, through a restart."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lexicast.actors.broker.server import BrokerServer
from lexicast.bench.stage.ports import free_port

from ...support.bridge_harness import OtherBroker, bridge, client_of, definition
from ...support.harness import Cluster, eventually
from ...support.mqtt_harness import Raw

EXECUTABLE = shutil.which("nats-server", path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="nats-server is not installed")

CONFIG = """
server_name: bridged
listen: "127.0.0.1:-1"
jetstream {{ store_dir: "{folder}" }}
mqtt {{ host: "127.0.0.1", port: {port} }}
"""
FIELDS = "protocol = '3.1.1'"


class Nats(OtherBroker):
    """One nats-server."""

    def __init__(self, folder: Path) -> None:
        assert EXECUTABLE is not None
        port = free_port()
        file = folder / "nats.conf"
        file.write_text(CONFIG.format(folder=folder / "jetstream", port=port))
        super().__init__([EXECUTABLE, "-c", str(file)], folder / "nats.log", port)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Nats]:
    running = Nats(tmp_path)
    await running.start()
    yield running
    await running.stop()


async def test_both_ways_in_order_and_what_comes_back_is_recognised(
    here: tuple[Cluster, BrokerServer], there: Nats
) -> None:
    cluster, broker = here
    topics = "[{ filter = 'shared/#', direction = 'both' }]"
    far = await Raw.connect(there.port, version=4)
    await far.subscribe("shared/#", qos=1)
    async with bridge(cluster, broker, definition(there.port, topics, FIELDS)) as server:
        await eventually(lambda: server.status()["connected"])
        await eventually(lambda: len(broker.engine.shares) == 1)
        async with client_of(cluster, broker) as bus, bus.subscribe("shared/#") as local:
            for n in range(100):
                await bus.publish("shared/near", b"near %d" % n)
                await far.publish("shared/far", b"far %d" % n, 1)
            near = [(await anext(local)).payload for _ in range(200)]
            distant = [each.payload for each in await far.messages(200)]
            for got in (near, distant):
                assert [each for each in got if each.startswith(b"near")] == [b"near %d" % n for n in range(100)]
                assert [each for each in got if each.startswith(b"far")] == [b"far %d" % n for n in range(100)]
            # All of its own have come back by now, or would come before this.
            await far.publish("shared/end", b"", 1)
            assert (await anext(local)).topic == "shared/end"
            await eventually(lambda: server.status()["looped_in"] == 100)
            assert [each.topic for each in await far.messages(1)] == ["shared/end"]


async def test_nothing_is_lost_through_a_restart_of_it(here: tuple[Cluster, BrokerServer], there: Nats) -> None:
    cluster, broker = here
    reader = await Raw.connect(there.port, "reader", version=4, clean=False)
    await reader.subscribe("out/#", qos=1)
    await reader.disconnect()  # its session stays, and nothing is on its way to it when nats-server stops
    async with (
        bridge(cluster, broker, definition(there.port, "[{ filter = 'out/#' }]", FIELDS)) as server,
        client_of(cluster, broker) as bus,
    ):
        await eventually(lambda: server.status()["connected"])
        await eventually(lambda: len(broker.engine.shares) == 1)
        await bus.publish_many([("out/x", b"%d" % n) for n in range(100)])
        await there.stop()
        await bus.publish_many([("out/x", b"%d" % n) for n in range(100, 300)])
        await there.start()
        await eventually(lambda: server.status()["sent"] == 300)
        reader = await Raw.connect(there.port, "reader", version=4, clean=False)
        got: Counter[int] = Counter()
        while len(got) < 300:
            got[int((await reader.messages(1))[0].payload)] += 1
        assert set(got) == set(range(300))
