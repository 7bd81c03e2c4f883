"""Processes are killed and stopped under a running cluster of two coordinators: nothing acknowledged is lost.

Nodes, networks and disks are drilled by `python -m lexicast.bench.failover`, whose clients and audit are used here.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import lexicast
from lexicast.bench.failover.load import DrillLoad

from ..support.harness import eventually
from ..support.up import lexicast_up

TIMEOUT_S = 120.0
CONFIG = """
[cluster]
copies = 2
[node]
coordinators = 2
"""


def up(folder: Path) -> AbstractContextManager[dict[str, Any]]:
    """`lexicast up` with two coordinators that copy each other's groups."""
    return lexicast_up(folder, "--mqtt-port", "0", config=CONFIG)


async def states(run: dict[str, Any]) -> list[list[Any]]:
    """[epoch, leader, in-sync set] of each group, as `lexicast status` says."""
    command = [sys.executable, "-m", "lexicast.actors.cli", "status", "--json", "--data-dir", run["data_dir"]]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    told, _ = await process.communicate()
    return list(json.loads(told)["coordination"]["group_states"].values())


async def copied(run: dict[str, Any]) -> None:
    """Return when every group has two copies."""
    async with asyncio.timeout(TIMEOUT_S):
        while {len(members) for _, _, members in await states(run)} != {2}:
            pass


@pytest.mark.timeout(300)
async def test_a_coordinator_that_is_killed_or_stopped_costs_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with up(tmp_path) as run:
        addresses = [a for a in run["brokers"]["broker-0"] if a.startswith("unix:")]
        key = (Path(run["data_dir"]) / "cluster.key").read_bytes()
        async with lexicast.connect(f"link:{addresses[0]}", key=key) as bus:
            got: list[bytes] = []
            acknowledged: list[bytes] = []

            async def read() -> None:
                async with bus.subscribe("d/#") as stream:
                    subscribed.set()
                    async for message in stream:
                        got.append(message.payload)

            async def publish(number: int) -> None:
                payload = b"%d" % number
                await bus.publish(f"d/{number % 40}", payload, qos=1)
                acknowledged.append(payload)

            subscribed = asyncio.Event()
            reader = asyncio.create_task(read())
            await subscribed.wait()
            await copied(run)
            number = 0
            for victim, ends in zip(run["pids"]["coordinators"], (signal.SIGKILL, signal.SIGSTOP), strict=True):
                sent = []
                for at in range(100):
                    sent.append(asyncio.create_task(publish(number)))
                    number += 1
                    if at == 30:
                        os.kill(victim, ends)
                    await asyncio.sleep(0.01)
                async with asyncio.timeout(TIMEOUT_S):
                    await asyncio.gather(*sent)
                if ends == signal.SIGSTOP:
                    assert len({leader for _, leader, _ in await states(run)}) == 1
                    os.kill(victim, signal.SIGCONT)
                await copied(run)
            await eventually(lambda: len(got) >= number, "what comes late too", TIMEOUT_S, every_s=0.05)
            assert len(acknowledged) == number
            assert sorted(got) == sorted(acknowledged)
            reader.cancel()


@pytest.mark.timeout(300)
async def test_clients_of_all_makes_lose_nothing_when_broker_and_coordination_server_are_killed(tmp_path: Path) -> None:
    with up(tmp_path) as run:
        await copied(run)
        load = DrillLoad(["127.0.0.1"], run["mqtt_port"], Path(run["data_dir"]), rate=20.0)
        try:
            await load.start()
            load.pace.on = True
            for role in ("coordination", "brokers"):
                await asyncio.sleep(0.5)
                victims = run["pids"][role]
                os.kill(victims if isinstance(victims, int) else victims[0], signal.SIGKILL)
            await asyncio.sleep(2.0)
            load.pace.on = False
            assert await load.settled(dict.fromkeys(load.publishers, 0)) == ""
        finally:
            await load.stop()
        assert load.audit.published > 100
        assert load.audit.lost() == 0
        assert load.audit.counts["disorder"] == 0
        assert load.audit.counts["doubled"] == 0
