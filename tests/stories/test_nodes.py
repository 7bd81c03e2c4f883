"""Nodes join a cluster under load, are drained, die, come back, and are removed: no publication fails, none is lost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import lexicast

from ..support.harness import eventually
from ..support.up import lexicast_up

TIMEOUT_S = 240.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
# Three Rays share this machine with other tests: one that is slow is not gone, and what is full is not lexicast's.
PATIENT = {
    "RAY_health_check_timeout_ms": "60000",
    "RAY_worker_register_timeout_seconds": "240",
    "RAY_memory_monitor_refresh_ms": "0",
}
# A Ray whose nodes come and go as its standard input says.
NODES = """
import sys
from ray.cluster_utils import Cluster

def of(name):
    return {"num_cpus": 1, "labels": {"lexicast-node": name}}

cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **of("a")})
nodes = {}
print(cluster.address, flush=True)
for line in sys.stdin:
    what, name = line.split()
    if what == "add":
        nodes[name] = cluster.add_node(**of(name), node_ip_address="127.0.0.%d" % (ord(name) - 96), wait=False)
    else:
        cluster.remove_node(nodes.pop(name), allow_graceful=False)
    print("done", flush=True)
cluster.shutdown()
"""


class Nodes:
    """The Ray, a on it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _tell(self, what: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        assert self._line() == "done"

    def add(self, name: str) -> None:
        """Start a node."""
        self._tell(f"add {name}")

    def kill(self, name: str) -> None:
        """End a node's Ray, with all that runs there."""
        self._tell(f"kill {name}")


@contextmanager
def a_ray() -> Iterator[Nodes]:
    process = subprocess.Popen(
        [sys.executable, "-c", NODES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**ENVIRONMENT, **PATIENT},
    )
    try:
        yield Nodes(process)
    finally:
        below = psutil.Process(process.pid).children(recursive=True)
        process.communicate(timeout=TIMEOUT_S)
        for left in psutil.wait_procs(below, timeout=5)[1]:
            left.kill()


def up(folder: Path, address: str, nodes: int) -> AbstractContextManager[dict[str, Any]]:
    """`lexicast up` in that Ray."""
    return lexicast_up(folder, "--address", address, "--nodes", str(nodes), "--mqtt-port", "0")


async def cli(run: dict[str, Any], *arguments: str) -> tuple[int, str]:
    """A command: its exit code, what it said."""
    command = [sys.executable, "-m", "lexicast.actors.cli", *arguments, "--data-dir", run["data_dir"]]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=ENVIRONMENT
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def until(run: dict[str, Any], **wanted: str) -> dict[str, Any]:
    """Wait for nodes to be in these states, all that serve with copies, and for every group to have two copies unless a
    node is away; what `lexicast node list` says then."""
    seen: Any = None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                code, said = await cli(run, "node", "list", "--json")
                if code == 0:
                    seen = json.loads(said)
                    states = {name: node["state"] for name, node in seen.items()}
                    copies = {name: node["copies"] for name, node in seen.items()}
                    hold = all((copies[name] > 0) == (state == "serves") for name, state in states.items())
                    if states == wanted and hold and (sum(copies.values()) == 200 or "away" in states.values()):
                        return dict(seen)
                await asyncio.sleep(2)  # a command takes a core for a second, which the nodes that are awaited need
    except TimeoutError:
        _, said = await cli(run, "status")
        raise AssertionError(f"nodes are {seen}, not {wanted}\n{said}") from None


class Load:
    """A Python client that publishes, and one that reads."""

    def __init__(self) -> None:
        self.sent = 0
        self.got: Counter[bytes] = Counter()
        self.acknowledged: set[bytes] = set()
        self._stop = False

    @asynccontextmanager
    async def running(self, data_dir: str) -> AsyncIterator[None]:
        async with (
            lexicast.connect(data_dir=data_dir) as bus,
            lexicast.connect(data_dir=data_dir) as reader,
            reader.subscribe("load/#") as messages,
        ):

            async def take() -> None:
                async for message in messages:
                    self.got[message.payload] += 1

            taking = asyncio.create_task(take())
            publishing = asyncio.create_task(self._publish(bus))
            yield
            self._stop = True
            await publishing
            await eventually(lambda: self.got.keys() >= self.acknowledged, "what was acknowledged", TIMEOUT_S, 0.05)
            taking.cancel()

    async def _publish(self, bus: lexicast.Client) -> None:
        while not self._stop:
            payload = b"%d" % self.sent
            self.sent += 1
            await bus.publish(f"load/{self.sent % 50}", payload, qos=1)  # an error of it ends the test
            self.acknowledged.add(payload)
            await asyncio.sleep(0.01)


@pytest.mark.timeout(900)
async def test_nodes_come_and_go_and_no_publication_fails(tmp_path: Path) -> None:
    with a_ray() as ray:
        ray.add("b")
        with up(tmp_path, ray.address, 2) as run:
            load = Load()
            async with load.running(run["data_dir"]):
                await until(run, a="serves", b="serves")
                ray.add("c")
                joined = await until(run, a="serves", b="serves", c="serves")
                assert joined["c"]["coordinators"] == ["coordinator-2"]

                assert await cli(run, "node", "drain", "b") == (0, "b is drained: it may be stopped\n")
                drained = await until(run, a="serves", b="drained", c="serves")
                assert (drained["b"]["leads"], drained["b"]["copies"], drained["b"]["clients"]) == (0, 0, 0)
                ray.kill("b")
                ray.add("b")
                back = await until(run, a="serves", b="serves", c="serves")
                assert back["b"]["coordinators"] == ["coordinator-1"]

                ray.kill("c")
                gone = await until(run, a="serves", b="serves", c="away")
                assert gone["c"]["copies"] == 0
                assert await cli(run, "node", "remove", "c") == (0, "c is none of the cluster's any more\n")
                await until(run, a="serves", b="serves")
            # Ray takes its time; a start that found the node alive would wait for actors there.
            log, told = tmp_path / "up.log", "c is away: others go on with what it had"
            await eventually(lambda: told in log.read_text(), told, TIMEOUT_S, every_s=0.1)
            assert set(load.got) == load.acknowledged
            assert set(load.got.values()) == {1}
            code, said = await cli(run, "node", "drain", "nowhere")
            assert (code, said) == (2, "lexicast: there is no node 'nowhere': `lexicast node list` shows a, b\n")

        # Every store is found again where it lies.
        with up(tmp_path, ray.address, 2) as run:
            found = await until(run, a="serves", b="serves")
            assert [found[name]["coordinators"] for name in "ab"] == [["coordinator-0"], ["coordinator-1"]]
            async with lexicast.connect(data_dir=run["data_dir"]) as bus:
                assert await bus.count("load/#") == load.sent
