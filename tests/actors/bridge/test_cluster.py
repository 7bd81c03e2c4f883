"""Bridges of a whole cluster under Ray: started by `lexicast up`, told by `lexicast status`, started again when their
process is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import lexicast
from lexicast.bench.stage.clusters import cluster_status, data_dir, start_lexicast
from lexicast.bench.stage.servers import Target

from ...support.bridge_harness import EXECUTABLE, mosquitto
from ...support.mqtt_harness import HOST, Message, Raw

pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="mosquitto is not installed")


async def until(target: Target, true: Any) -> dict[str, Any]:
    """What the cluster says of its bridge, once `true` of it."""
    for _ in range(300):
        said = (await asyncio.to_thread(cluster_status, target))["bridges"].get("bridge-site", {})
        if "connected" in said and true(said):
            return dict(said)
        await asyncio.sleep(0.1)
    raise AssertionError(f"the bridge says {json.dumps(said)}")


async def test_a_bridge_is_part_of_the_cluster(tmp_path: Path) -> None:
    async with mosquitto(tmp_path / "there") as there:
        bridges = tmp_path / "bridges.toml"
        bridges.write_text(
            f"[site]\naddress = 'mqtt://{HOST}:{there.port}'\nreconnect_s = [0.05, 0.5]\n[[site.topic]]\n"
            "direction = 'both'\n"
        )
        config = f"[bridge]\nfile = '{bridges}'\n"
        (tmp_path / "here").mkdir()
        here = await asyncio.to_thread(start_lexicast, tmp_path / "here", config)
        try:
            await _both_ways_and_again(here, there.port)
            await there.stop()
            await until(here, lambda said: not said["connected"])
            status = await asyncio.to_thread(cluster_status, here)
            assert [line for line in status["warnings"] if line.startswith("bridge-site is not connected to mqtt://")]
        finally:
            await asyncio.to_thread(here.stop)


async def _both_ways_and_again(here: Target, port: int) -> None:
    first = await until(here, lambda said: said["connected"])
    reader = await Raw.connect(port)
    await reader.subscribe("a/#", qos=1)
    async with lexicast.connect(data_dir=data_dir(here)) as bus, bus.subscribe("b/#") as local:
        await bus.publish("a/1", b"out")
        assert (await reader.expect(Message)).payload == b"out"
        await reader.publish("b/1", b"in", 1)
        assert (await anext(local)).payload == b"in"
        said = await until(here, lambda said: said["sent"] == said["received"] == 1 and said["lag_records"] == 0)
        assert (said["errors"], said["looped_in"]) == (0, 0)
        run = json.loads((here.log.parent / "lexicast.json").read_text())
        os.kill(run["pids"]["bridges"][0], signal.SIGKILL)
        # Nobody is there to take it: it goes out when somebody is again.
        await bus.publish("a/2", b"out again")
        await reader.publish("b/2", b"in again", 1)
        assert (await reader.expect(Message)).payload == b"out again"
        assert (await anext(local)).payload == b"in again"
    again = await until(here, lambda said: said["connected"])
    assert again["client_id"] == first["client_id"]
    reader.abort()
