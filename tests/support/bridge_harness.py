"""For tests of bridges: a Mosquitto that can be ended and started again, and a bridge of a cluster without Ray."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import lexicast
from lexicast.actors.bridge.server import BridgeServer
from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.client.client import Client
from lexicast.cluster.bridges.definitions import BridgeDefinition, BridgeSecrets, read_definitions
from lexicast.cluster.bridges.hops import short_id

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


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


class Mosquitto:
    """One Mosquitto, always at the same port; what it has in sessions outlives `stop` and `start`."""

    def __init__(self, folder: Path, more: str = "") -> None:
        """`more`: lines of its configuration."""
        self.port = free_port()
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)  # started as root it goes on as the user mosquitto
        self._file = folder / "mosquitto.conf"
        text = CONFIG.format(port=self.port, host=HOST, folder=folder, more=more)
        if os.getuid() == 0:
            text += "user root\n"
        self._file.write_text(text)
        self._log = folder / "log"
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
        raise AssertionError("mosquitto does not listen")

    def _started(self) -> subprocess.Popen[bytes]:
        assert EXECUTABLE is not None
        with self._log.open("ab") as told:
            return subprocess.Popen([EXECUTABLE, "-c", str(self._file)], stdout=told, stderr=told)

    async def stop(self) -> None:
        """It saves its sessions, and ends."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(self._process.wait, 30)
            self._process = None

    async def restart(self) -> None:
        """Both."""
        await self.stop()
        await self.start()


@asynccontextmanager
async def mosquitto(folder: Path, more: str = "") -> AsyncIterator[Mosquitto]:
    """One that serves."""
    running = Mosquitto(folder, more)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


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
