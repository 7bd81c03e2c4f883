"""What befalls a running cluster: a full disk, Ray's control gone, `up` itself killed, damage on the disk, no patience.

The tests share one cluster and follow each other: the last ones kill it and start it again.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import psutil
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

import lexicast
from lexicast.actors.client.client import Client
from lexicast.cluster.errors import PublishRefusedError, UnavailableError

MIB = 1 << 20
DISK_MIB, QUOTA_MIB, RESERVE_MIB = 192, 16, 4
PAYLOAD = bytes(256 * 1024)
EXPIRY_S = 3.0
TIMEOUT_S = 120.0
QUOTA_EXCEEDED = 0x97
CLI = [sys.executable, "-m", "lexicast.actors.cli"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "COLUMNS": "160"}
KNOBS = {"quota_bytes": QUOTA_MIB * MIB, "reserve_bytes": RESERVE_MIB * MIB, "retention_bytes": 0}


class Cluster:
    """`lexicast up` on one folder, again and again."""

    def __init__(self, disk: Path, folder: Path) -> None:
        self.disk = disk
        self.data = disk / "data"
        self._ready = folder / "ready.json"
        self._log = folder / "up.log"
        self.start()

    def start(self) -> None:
        """Start it; returns when it serves."""
        self._ready.unlink(missing_ok=True)
        knobs = [word for key, value in KNOBS.items() for word in ("--set", f"storage.{key}={value}")]
        files = ["--data-dir", str(self.data), "--ready-file", str(self._ready)]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*CLI, "up", "--mqtt-port", "0", *files, *knobs],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=ENVIRONMENT,
            )
        within(lambda: self._ready.exists() or self.process.poll() is not None, self.log)
        assert self.process.poll() is None, self.log()
        self.run: dict[str, Any] = json.loads(self._ready.read_text())

    def log(self) -> str:
        """What `up` has printed."""
        return self._log.read_text()

    def below(self) -> list[psutil.Process]:
        """The processes below `up`."""
        return [p for p in psutil.Process(self.process.pid).children(recursive=True) if p.status() != "zombie"]

    def named(self, name: str) -> psutil.Process:
        """One of them."""
        (found,) = [p for p in self.below() if p.name().startswith(name)]
        return found

    def connect(self) -> Client:
        """A Python client."""
        return lexicast.connect(data_dir=self.data)

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command on this cluster."""
        return subprocess.run(
            [*CLI, *arguments, "--data-dir", str(self.data)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=ENVIRONMENT,
            check=False,
        )


def within(condition: Callable[[], object], said: Callable[[], str] = str) -> None:
    """Return once `condition` holds."""
    until = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < until, said()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small disk of its own where we may have one (root), else a folder."""
    folder = tmp_path_factory.mktemp("disk")
    options = ["-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs"]
    mounted = subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False).returncode == 0
    yield folder
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def cluster(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(disk, tmp_path_factory.mktemp("cluster"))
    yield running
    if running.process.poll() is None:
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(TIMEOUT_S) == 0


async def eventually_published(bus: Client, topic: str, payload: bytes) -> None:
    """Publish, again while it is refused or nobody serves."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await bus.publish(topic, payload)
                return
            except UnavailableError:
                await asyncio.sleep(0.1)


async def for_ever(work: Callable[[], Awaitable[object]]) -> None:
    """Until it raises."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            await work()


async def history(bus: Client, topic_filter: str) -> list[bytes]:
    return [message.payload async for message in bus.history(topic_filter)]


@asynccontextmanager
async def mqtt5(port: int) -> AsyncIterator[Callable[[str, bytes], Any]]:
    """What publishes with QoS 1 and returns PUBACK's reason code."""
    loop, codes = asyncio.get_running_loop(), asyncio.Queue[int]()
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)

    def acknowledged(_client: Any, _data: Any, _id: int, code: Any, _properties: Any) -> None:
        loop.call_soon_threadsafe(codes.put_nowait, code.value)

    client.on_publish = acknowledged
    client.connect("127.0.0.1", port)
    client.loop_start()

    async def publish(topic: str, payload: bytes) -> int:
        client.publish(topic, payload, qos=1)
        async with asyncio.timeout(TIMEOUT_S):
            return await codes.get()

    try:
        yield publish
    finally:
        client.disconnect()
        client.loop_stop()


# -- room


async def test_a_full_disk_refuses_publications_and_serves_readers(cluster: Cluster, disk: Path) -> None:
    if shutil.disk_usage(disk).total > 2 * DISK_MIB * MIB:
        pytest.skip("only root may mount a small disk")
    async with cluster.connect() as bus, mqtt5(cluster.run["mqtt_port"]) as publish:
        await bus.publish("full/before", b"before")
        assert await publish("full/mqtt", b"before") == 0
        free = shutil.disk_usage(disk).free
        filler = disk / "filler"
        filler.write_bytes(bytes(free - RESERVE_MIB * MIB // 2))
        try:
            with pytest.raises(PublishRefusedError, match="reserve"):
                await for_ever(lambda: bus.publish("full/while", b"while"))
            assert await publish("full/mqtt", b"while") == QUOTA_EXCEEDED
            assert await history(bus, "full/before") == [b"before"]
            status = cluster.cli("status")
            assert status.returncode == 0
            assert "publishing is refused" in status.stdout
        finally:
            filler.unlink()
        await eventually_published(bus, "full/after", b"after")
        assert await publish("full/mqtt", b"after") == 0
        assert await history(bus, "full/mqtt") == [b"before", b"after"]


async def test_publishing_goes_on_when_expiry_has_made_room(cluster: Cluster) -> None:
    async with cluster.connect() as bus:
        with pytest.raises(PublishRefusedError):
            await for_ever(lambda: bus.publish("quota/t", PAYLOAD, expiry_s=EXPIRY_S))
        with pytest.raises(PublishRefusedError):
            await bus.publish("quota/t", PAYLOAD)
        await eventually_published(bus, "quota/after", PAYLOAD)
        assert await history(bus, "quota/after") == [PAYLOAD]


# -- Ray's control


async def test_a_killed_gcs_costs_nothing_and_comes_back(cluster: Cluster) -> None:
    gcs = cluster.named("gcs_server")
    async with cluster.connect() as bus:
        gcs.send_signal(signal.SIGSTOP)  # the window in which there is none, as long as we look
        await bus.publish("gcs/t", b"without control")
        gcs.kill()
        await bus.publish("gcs/t", b"just after")
        within(lambda: "has ended: starting it again" in cluster.log(), cluster.log)
        within(lambda: any(p.name() == "gcs_server" for p in cluster.below()))
        os.kill(cluster.run["pids"]["brokers"][0], signal.SIGKILL)  # only a GCS has it started again
        await eventually_published(bus, "gcs/t", b"a new broker")
        # At least once: what the broker had under way may be told twice.
        assert list(dict.fromkeys(await history(bus, "gcs/t"))) == [b"without control", b"just after", b"a new broker"]
    status = cluster.cli("status", "--json")  # a new driver
    assert status.returncode == 0, status.stderr
    assert "error" not in json.loads(status.stdout)["brokers"]["broker-0"]


# -- up itself


async def test_a_killed_up_leaves_nothing_that_the_next_one_does_not_end(cluster: Cluster) -> None:
    async with cluster.connect() as bus:
        await bus.publish_many([("killed/up", b"%d" % i) for i in range(3)])
        await bus.publish("killed/up", b"ROTTEN" * 8)
        await bus.publish("killed/up", b"last")
        await bus.publish("killed/other", b"sound")
    left = cluster.below()
    cluster.process.kill()
    cluster.process.wait()
    survivors = [p for p in left if p.is_running() and p.name().startswith("ray::")]
    assert survivors, "nothing outlived `up`: this test proves nothing"
    cluster.start()
    assert [p for p in left if p.is_running() and p.status() != "zombie"] == []
    async with cluster.connect() as bus:
        assert await history(bus, "killed/other") == [b"sound"]


async def test_a_damaged_record_is_named_and_the_rest_is_served(cluster: Cluster) -> None:
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.process.wait(TIMEOUT_S) == 0
    data = cluster.data / "coordinator-0" / "data.mdb"
    content = data.read_bytes()
    with data.open("r+b") as file:
        at = content.find(b"ROTTEN" * 8)
        while at >= 0:
            file.seek(at)
            file.write(b"GOTTEN")
            at = content.find(b"ROTTEN" * 8, at + 1)
    cluster.start()
    async with cluster.connect() as bus:
        before = await history(bus, "killed/up")
        assert not [payload for payload in before if b"OTTEN" in payload]
        assert await history(bus, "killed/other") == [b"sound"]
        position = await bus.publish("killed/up", b"beyond the damage")
        await bus.publish("killed/up", b"new")
        assert [m.payload async for m in bus.history("killed/up", since=position)] == [b"new"]
    warned = json.loads(cluster.cli("status", "--json").stdout)["warnings"]
    assert ["damaged places" in warning for warning in warned] == [True]


def test_a_second_interrupt_kills(cluster: Cluster) -> None:
    """Last: it ends the cluster."""
    below = cluster.below()
    assert len(below) >= 6  # GCS, raylet, four actors
    held = [p for p in below if p.name().startswith("ray::")]
    assert held, [p.name() for p in below]
    for process in held:  # a stop that takes its time
        process.suspend()
    cluster.process.send_signal(signal.SIGINT)
    within(lambda: "stopping" in cluster.log(), cluster.log)
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.process.wait(TIMEOUT_S) == 130
    assert "Traceback" not in cluster.log()
    psutil.wait_procs(below, timeout=10)
    assert [p for p in below if p.is_running() and p.status() != "zombie"] == []
    assert not (cluster.data / "run.json").exists()
