"""For tests of bridges: other brokers that can be ended and started again, a disk that is full, and a bridge of a
cluster without Ray."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import lexicast
from lexicast.actors.bridge.server import BridgeServer
from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.client.client import Client
from lexicast.bench.stage.ports import free_port
from lexicast.cluster.blocks import PUBLICATIONS
from lexicast.cluster.bridges.definitions import BridgeDefinition, BridgeSecrets, read_definitions
from lexicast.cluster.bridges.hops import short_id
from lexicast.cluster.errors import StoreFullError

from .harness import Cluster
from .mqtt_harness import HOST

EXECUTABLE = shutil.which("mosquitto", path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
CONFIG = """
listener {port} {host}
allow_anonymous true
persistence true
persistence_location {folder}/
max_queued_messages 0
{more}
"""


class OtherBroker:
    """A broker that is no lexicast, always at the same port; started by `command`, with `environment` besides."""

    def __init__(self, command: list[str], log: Path, port: int, environment: Mapping[str, str] | None = None) -> None:
        self.port = port
        self._command = command
        self._environment = {**os.environ, **(environment or {})}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Returns when it listens."""
        self._process = await asyncio.to_thread(self._started)
        for _ in range(3_000):
            try:
                _, writer = await asyncio.open_connection(HOST, self.port)
            except OSError:
                assert self._process.poll() is None, self._log.read_text()
                await asyncio.sleep(0.02)
            else:
                writer.close()
                await writer.wait_closed()
                return
        raise AssertionError(f"{self._command[0]} does not listen")

    def _started(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as told:
            return subprocess.Popen(self._command, stdout=told, stderr=told, env=self._environment)

    async def stop(self) -> None:
        """It is asked to end, and has."""
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait, 60)
            self._process = None

    async def restart(self) -> None:
        """Both."""
        await self.stop()
        await self.start()


class Mosquitto(OtherBroker):
    """One Mosquitto; what it has in sessions outlives `stop` and `start`."""

    def __init__(self, folder: Path, more: str = "") -> None:
        """`more`: lines of its configuration."""
        assert EXECUTABLE is not None
        port = free_port()
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)  # started as root it goes on as the user mosquitto
        text = CONFIG.format(port=port, host=HOST, folder=folder, more=more)
        if os.getuid() == 0:
            text += "user root\n"
        file = folder / "mosquitto.conf"
        file.write_text(text)
        super().__init__([EXECUTABLE, "-c", str(file)], folder / "log", port)


@asynccontextmanager
async def mosquitto(folder: Path, more: str = "") -> AsyncIterator[Mosquitto]:
    """One that serves."""
    running = Mosquitto(folder, more)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


class Room:
    """Whether a coordinator's disk takes publications."""

    def __init__(self, cluster: Cluster) -> None:
        disk = cluster.coordinators["coordinator-0"].disk
        self._write = disk.write
        self.is_full = False
        self.refused = 0
        disk.write = self.write

    def write(self, blocks: Sequence[Any], apply: Mapping[int, int] | None = None) -> None:
        """As a store does that has reached its quota."""
        if self.is_full and any(block.kind == PUBLICATIONS for block in blocks):
            self.refused += 1
            raise StoreFullError("full")
        self._write(blocks, apply)


@asynccontextmanager
async def client_of(cluster: Cluster, broker: BrokerServer, client_id: str | None = None) -> AsyncIterator[Client]:
    """A Python client of the cluster."""
    (address,) = [each for each in broker.sockets.addresses if each.startswith("unix")]
    key = (await cluster.coordination.cluster()).key
    async with lexicast.connect(f"link:{address}", key=key, client_id=client_id) as bus:
        yield bus


def definition(port: int, topics: str, fields: str = "", name: str = "site") -> BridgeDefinition:
    """A bridge to this port; `topics`: the value of its field `topic`."""
    text = f'[{name}]\naddress = "mqtt://{HOST}:{port}"\nreconnect_s = [0.02, 0.2]\n{fields}\ntopic = {topics}\n'
    (found,) = read_definitions(text)
    return found


@asynccontextmanager
async def bridge(
    cluster: Cluster, broker: BrokerServer, found: BridgeDefinition, secrets: BridgeSecrets | None = None
) -> AsyncIterator[BridgeServer]:
    """A bridge of the cluster, running; at the end it has gone as if its process had."""
    own_id = short_id((await cluster.coordination.cluster()).cluster_id)
    async with client_of(cluster, broker, f"bridge-{found.name}") as bus:
        server = BridgeServer(bus, found, secrets or BridgeSecrets(), own_id)
        server.start()
        try:
            yield server
        finally:
            await server.stop()
