"""Bridges to nats-server, which speaks MQTT 3.1.1: both ways, in order, without loops, through a restart."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lexicast.actors.broker.server import BrokerServer

from ...support.bridge_harness import bridge, client_of, definition, free_port
from ...support.harness import Cluster, eventually
from ...support.mqtt_harness import HOST, Raw, close_clients

EXECUTABLE = shutil.which("nats-server", path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="nats-server is not installed")

CONFIG = """
server_name: bridged
listen: "127.0.0.1:-1"
jetstream {{ store_dir: "{folder}" }}
mqtt {{ host: "127.0.0.1", port: {port} }}
"""
FIELDS = "protocol = '3.1.1'"


class Nats:
    """One nats-server, always at the same port."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._file, self._log = folder / "nats.conf", folder / "nats.log"
        self._file.write_text(CONFIG.format(folder=folder / "jetstream", port=self.port))
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Returns when it listens."""
        self._process = await asyncio.to_thread(self._started)
        for _ in range(1_000):
            try:
                _, writer = await asyncio.open_connection(HOST, self.port)
            except OSError:
                assert self._process.poll() is None, self._log.read_text()
                await asyncio.sleep(0.02)
            else:
                writer.close()
                await writer.wait_closed()
                return
        raise AssertionError("nats-server does not listen")

    def _started(self) -> subprocess.Popen[bytes]:
        assert EXECUTABLE is not None
        with self._log.open("ab") as told:
            return subprocess.Popen([EXECUTABLE, "-c", str(self._file)], stdout=told, stderr=told)

    async def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait, 30)
            self._process = None


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Nats]:
    running = Nats(tmp_path)
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[tuple[Cluster, BrokerServer]]:
    async with Cluster(tmp_path / "here") as cluster:
        await cluster.start_coordinator()
        yield cluster, await cluster.start_broker("broker-0")
        await close_clients()


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
