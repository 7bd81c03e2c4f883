"""The coordination server is killed, stopped and robbed of its registry under a running cluster, and under a stopped
one: data flows meanwhile, and everything acknowledged is there afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import lexicast
from lexicast.actors.client.client import Client

from ..support.harness import eventually
from ..support.up import lexicast_up

TIMEOUT_S = 120.0
CONFIG = """
[cluster]
copies = 2
groups = 20
[node]
coordinators = 2
[compression]
enabled = false
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def cli(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself, on the data folder of that test."""
    command = [sys.executable, "-m", "lexicast.actors.cli", *arguments, "--data-dir", str(folder / "data")]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=ENVIRONMENT, check=False)


def up(folder: Path) -> AbstractContextManager[dict[str, Any]]:
    """`lexicast up` with two coordinators that copy each other's groups."""
    return lexicast_up(folder, "--mqtt-port", "0", config=CONFIG)


async def coordination(folder: Path) -> dict[str, Any]:
    """What the coordination server says, once it answers."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            told = await asyncio.to_thread(cli, folder, "status", "--json")
            if told.returncode == 0 and "error" not in (said := json.loads(told.stdout)["coordination"]):
                return dict(said)


async def settled(folder: Path, copies: int = 2) -> dict[str, Any]:
    """The same, once every group has a leader and its copies."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            said = await coordination(folder)
            states = leaders(said)  # of one that has just begun there are none
            if states and all(leader and len(members) == copies for _, leader, members in states):
                return said


def connect(folder: Path, run: dict[str, Any]) -> Client:
    """A client of the cluster's broker."""
    address = next(a for a in run["brokers"]["broker-0"] if a.startswith("unix:"))
    return lexicast.connect(f"link:{address}", key=(folder / "data" / "cluster.key").read_bytes(), give_up_s=TIMEOUT_S)


class Publisher:
    """Publishes all the time, and counts what was acknowledged."""

    def __init__(self, bus: Client) -> None:
        self.bus = bus
        self.acknowledged: list[bytes] = []
        self._number = 0

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self.publish())
                await asyncio.sleep(0.01)

    async def publish(self) -> None:
        """One message."""
        payload = b"%d" % self._number
        self._number += 1
        await self.bus.publish(f"d/{self._number % 40}", payload, qos=1)
        self.acknowledged.append(payload)

    async def flows(self, seconds: float) -> None:
        """It goes on for so long: something is acknowledged all the time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await self._another()
            await asyncio.sleep(0.1)

    async def _another(self) -> None:
        before = len(self.acknowledged)
        await eventually(lambda: len(self.acknowledged) > before, "an acknowledgement", TIMEOUT_S, every_s=0.01)


@asynccontextmanager
async def publishing(bus: Client) -> AsyncIterator[Publisher]:
    """A publisher at work; at the end what it has under way is acknowledged."""
    publisher = Publisher(bus)
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def history(bus: Client) -> list[bytes]:
    """All payloads that are stored."""
    return [message.payload async for message in bus.history("d/#")]


def end(pid: int) -> None:
    """Kill a process, and see it gone."""
    process = psutil.Process(pid)
    process.kill()
    process.wait(TIMEOUT_S)


def leaders(said: dict[str, Any]) -> list[list[Any]]:
    return list(said["group_states"].values())


# The kinds of members that every cluster has.
KINDS = {"coordinator", "broker", "sampler"}


@pytest.mark.timeout(400)
async def test_data_flows_while_the_coordination_server_is_away_also_without_its_registry(tmp_path: Path) -> None:
    with up(tmp_path) as run:
        async with connect(tmp_path, run) as bus:
            first = await settled(tmp_path)
            async with publishing(bus) as publisher:
                end(first["pid"])
                await publisher.flows(2.0)
                killed = await coordination(tmp_path)
                assert killed["pid"] != first["pid"]
                assert leaders(killed) == leaders(first)

                os.kill(killed["pid"], signal.SIGSTOP)
                await publisher.flows(3.0)
                # A broker that starts meanwhile waits, and says for what.
                end(run["pids"]["brokers"][0])
                await asyncio.sleep(2.0)
                os.kill(killed["pid"], signal.SIGCONT)
                await publisher.flows(0.5)
                assert leaders(await coordination(tmp_path)) == leaders(first)

                (tmp_path / "data/coordination/registry.mdb").rename(tmp_path / "registry.mdb")
                end(killed["pid"])
                await publisher.flows(2.0)
                robbed = await settled(tmp_path)
                assert robbed["pid"] != killed["pid"]
                assert robbed["cluster_id"] == first["cluster_id"]
                assert leaders(robbed) == leaders(first)
                async with asyncio.timeout(TIMEOUT_S):
                    while not {k for k, found in (await coordination(tmp_path))["members"].items() if found} >= KINDS:
                        pass
                # The new one is in charge.
                end(robbed["members"]["coordinator"]["coordinator-0"]["pid"])
                await publisher.flows(2.0)
                assert {leader for _, leader, _ in leaders(await settled(tmp_path))} == {"coordinator-1"}
            found = await history(bus)
            assert len(found) == len({*found})
            assert {*publisher.acknowledged} <= {*found}


@pytest.mark.timeout(400)
async def test_a_stopped_cluster_is_recovered_and_what_is_uncertain_is_decided_by_the_operator(tmp_path: Path) -> None:
    registry, store = tmp_path / "data/coordination/registry.mdb", tmp_path / "data/coordinator-1"
    with up(tmp_path) as run:
        async with connect(tmp_path, run) as bus:
            await settled(tmp_path)
            async with publishing(bus) as publisher:
                await publisher.flows(1.0)
            acknowledged = [*publisher.acknowledged]
    registry.unlink()
    # One of two copies is away: it may have what the other one has not.
    store.rename(tmp_path / "away")
    told = cli(tmp_path, "recover", "--coordinators", "2")
    assert told.returncode == 0, told.stderr
    assert "0 of 20 topic groups have a leader" in told.stdout
    assert "20 topic groups wait for coordinator-1, which may have what nobody else has" in told.stdout
    shutil.copytree(tmp_path / "data", tmp_path / "copy")

    (tmp_path / "away").rename(store)
    told = cli(tmp_path, "recover")
    assert "20 of 20 topic groups have a leader" in told.stdout
    with up(tmp_path) as run:
        async with connect(tmp_path, run) as bus:
            assert {*acknowledged} <= {*await history(bus)}
            await bus.publish("d/0", b"on", qos=1)

    # The other ending: it does not come back, and the one that is left has everything, since both had it.
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "copy").rename(tmp_path / "data")
    told = cli(tmp_path, "recover", "--accept-loss")
    assert "20 of 20 topic groups have a leader" in told.stdout
    with up(tmp_path) as run:
        async with connect(tmp_path, run) as bus:
            assert {*acknowledged} <= {*await history(bus)}
            await bus.publish("d/0", b"on", qos=1)
            await settled(tmp_path)
