"""Matchers under Ray: killed while subscribers with conditions are served; Ray starts them again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import lexicast
from lexicast.actors.client.client import Client

from ...support.up import lexicast_up, status_when

CONFIG = "[node]\nbrokers = 2\nmatchers = 2\n"
WAIT_S = 60.0
PUBLISHED = 60


def matching(now: dict[str, Any]) -> dict[str, Any]:
    """What the coordinator says of it."""
    said: dict[str, Any] = now["coordinators"]["coordinator-0"]["matching"]
    return said


async def published(bus: Client, first: int) -> None:
    """Some, of which each tenth is wanted."""
    for number in range(first, first + PUBLISHED):
        await bus.publish("flights/UA", json.dumps({"number": number, "delay": number % 10}), qos=number % 2)


async def kill_and_go_on(data_dir: Path) -> None:
    async with lexicast.connect(data_dir=data_dir) as bus, bus.subscribe("flights/#", where="delay = 7") as stream:
        await status_when(data_dir, lambda now: matching(now)["matchers"] == 2 and matching(now)["filters"], "choosing")
        await published(bus, 0)
        now = await status_when(data_dir, lambda now: matching(now)["withheld_records"] > 0, "something is withheld")
        for member in now["coordination"]["members"]["matcher"].values():
            os.kill(member["pid"], signal.SIGKILL)
        await published(bus, PUBLISHED)

        def again(now: dict[str, Any]) -> bool:
            members = now["coordination"]["members"]["matcher"].values()
            return matching(now)["matchers"] == 2 and all(member["incarnation"] == 2 for member in members)

        await status_when(data_dir, again, "matchers are there again")
        await published(bus, 2 * PUBLISHED)
        numbers = []
        async with asyncio.timeout(WAIT_S):
            async for message in stream:
                numbers.append(json.loads(message.payload)["number"])
                if len(numbers) == 3 * PUBLISHED // 10:
                    break
        assert numbers == list(range(7, 3 * PUBLISHED, 10))


def test_matchers_are_killed_and_nothing_is_missing(tmp_path: Path) -> None:
    with lexicast_up(tmp_path, "--mqtt-port", "0", config=CONFIG):
        asyncio.run(kill_and_go_on(tmp_path / "data"))
