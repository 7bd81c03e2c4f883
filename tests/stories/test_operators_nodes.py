"""`lexicast up --address` over a Ray of two nodes: each gets brokers and coordinators, and they are one cluster."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

import lexicast
from lexicast.actors.client.client import Client
from lexicast.actors.ray.address import is_open
from lexicast.cluster.positions import topic_group

from ..support.up import lexicast_up

TIMEOUT_S = 120.0
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}
# A Ray of two nodes that ends with its standard input; each node has an address of its own.
TWO_NODES = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1, node_ip_address="127.0.0.2")
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """A Ray of two nodes."""
    process = subprocess.Popen(
        [sys.executable, "-c", TWO_NODES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        below = psutil.Process(process.pid).children(recursive=True)
        process.communicate(timeout=TIMEOUT_S)
        for left in psutil.wait_procs(below, timeout=5)[1]:
            left.kill()


def up(folder: Path, address: str, port: int, end: int = signal.SIGINT) -> AbstractContextManager[dict[str, Any]]:
    """`lexicast up` in that Ray; at the end it gets the signal `end`."""
    options = ["--address", address, "--nodes", "2", "--mqtt-port", str(port)]
    return lexicast_up(folder, *options, environment=ENVIRONMENT, end=end)


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    command = [sys.executable, "-m", "lexicast.actors.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=ENVIRONMENT, check=False)


def connect(run: dict[str, Any], broker: str) -> Client:
    """A client of that broker alone, over TCP."""
    (address,) = [a for a in run["brokers"][broker] if a.startswith("tcp:")]
    return lexicast.connect(f"link:{address}", key=(Path(run["data_dir"]) / "cluster.key").read_bytes())


async def admitted(host: str, port: int) -> None:
    """A node lets in clients of its own machine, by whatever address it listens at."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01a")
    assert await reader.readexactly(4) == b"\x20\x02\x00\x00"
    writer.close()
    await writer.wait_closed()


async def test_two_nodes_are_one_cluster(ray_address: str, tmp_path: Path) -> None:
    assert not is_open(ray_address)
    with up(tmp_path, ray_address, 0, end=signal.SIGKILL) as run:
        assert run["mqtt_hosts"] == [ray_address.rpartition(":")[0], "127.0.0.2"]
        assert "MQTT clients of other machines are refused" in (tmp_path / "up.log").read_text()
        for host in run["mqtt_hosts"]:
            await admitted(host, run["mqtt_port"])
        assert set(run["brokers"]) == {"broker-0", "broker-1"}
        assert len(run["pids"]["coordinators"]) == 2
        assert {a.split(":")[1] for a in run["brokers"]["broker-1"] if a.startswith("tcp:")} == {"127.0.0.2"}
        topics = [f"nodes/{i}" for i in range(20)]
        # Groups alternate between the coordinators: both nodes' are concerned.
        assert {topic_group(topic.encode(), 100) % 2 for topic in topics} == {0, 1}
        async with connect(run, "broker-0") as here, connect(run, "broker-1") as there:
            async with there.subscribe("nodes/#") as messages:
                for topic in topics:
                    await here.publish(topic, topic)
                got = [(await anext(messages)).payload.decode() for _ in topics]
            assert sorted(got) == sorted(topics)
            assert sorted([m.topic async for m in there.history("nodes/#")]) == sorted(topics)

    # Its actors are detached: they serve on in that Ray, and are nobody else's.
    down = cli("down", "--data-dir", run["data_dir"])
    assert down.returncode == 1
    assert f"run `lexicast up --address {ray_address}` again" in down.stderr
    other = cli("up", "--address", ray_address, "--mqtt-port", "0", "--data-dir", str(tmp_path / "other"))
    assert other.returncode == 1
    assert "a lexicast cluster runs in this Ray already" in other.stderr
    with up(tmp_path, ray_address, run["mqtt_port"]) as again:
        assert again["cluster_id"] == run["cluster_id"]
        assert not {*run["pids"]["brokers"]} & {*again["pids"]["brokers"]}
        async with connect(again, "broker-1") as bus:
            assert sorted([m.topic async for m in bus.history("nodes/#")]) == sorted(topics)
