"""Matchers under Ray that form an overlay: questions are routed, matchers are killed, nothing is missing."""

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

MATCHERS, LEVELS = 6, 2
# One contact a part: most questions go over another matcher.
CONFIG = f"""
[node]
matchers = {MATCHERS}
[content]
overlay_beyond = 0
overlay_base = 2
overlay_levels = {LEVELS}
overlay_contacts = 1
"""
PUBLISHED = 100
KILLED = 2


def routed(now: dict[str, Any]) -> dict[str, Any]:
    """What the coordinator says of the overlay."""
    said: dict[str, Any] = now["coordinators"]["coordinator-0"]["matching"]["overlay"] or {}
    return said


def was_routed(now: dict[str, Any]) -> bool:
    """Whether something was: a question, where who is to answer is none of the coordinator's entries, or what matchers
    say to each other."""
    said = [routed(now), *[actor["overlay"] for actor in now["matchers"].values()]]
    return any(each.get("routed", 0) > 0 and each["hops_max"] >= 1 for each in said)


def told(now: dict[str, Any]) -> bool:
    """Whether all matchers have a place in the overlay, and know the condition, most of them without a link."""
    broker, matchers = now["brokers"]["broker-0"]["overlay"], now["matchers"].values()
    known = [actor.get("conditions") == 1 and actor["overlay"]["neighbours"] > 0 for actor in matchers]
    return known == [True] * MATCHERS and 0 < broker["entries"] < MATCHERS == broker["entries"] + broker["circuits"]


async def published(bus: Client, first: int) -> None:
    """Some, of which each tenth is wanted."""
    for number in range(first, first + PUBLISHED):
        await bus.publish("flights/UA", json.dumps({"number": number, "delay": number % 10}), qos=number % 2)


async def kill_and_go_on(data_dir: Path) -> None:
    async with lexicast.connect(data_dir=data_dir) as bus, bus.subscribe("flights/#", where="delay = 7") as stream:
        await status_when(data_dir, told, "all are told")
        await published(bus, 0)
        now = await status_when(data_dir, was_routed, "something was routed")
        assert now["coordinators"]["coordinator-0"]["matching"]["withheld_records"] > 0
        hops_max = max(each["overlay"]["hops_max"] for each in (*now["matchers"].values(), {"overlay": routed(now)}))
        # Views may not be right yet: each detour may have another way of LEVELS + 1 hops behind it.
        assert hops_max <= 2 * LEVELS + 3
        members = list(now["coordination"]["members"]["matcher"].values())
        for member in members[:KILLED]:
            os.kill(member["pid"], signal.SIGKILL)
        await published(bus, PUBLISHED)

        def again(now: dict[str, Any]) -> bool:
            members = now["coordination"]["members"]["matcher"].values()
            return sum([member["incarnation"] == 2 for member in members]) == KILLED and told(now)

        await status_when(data_dir, again, "matchers are there again")
        await published(bus, 2 * PUBLISHED)
        numbers = []
        async with asyncio.timeout(60):
            async for message in stream:
                numbers.append(json.loads(message.payload)["number"])
                if len(numbers) == 3 * PUBLISHED // 10:
                    break
        assert numbers == list(range(7, 3 * PUBLISHED, 10))


def test_matchers_of_an_overlay_are_killed_and_nothing_is_missing(tmp_path: Path) -> None:
    with lexicast_up(tmp_path, "--mqtt-port", "0", config=CONFIG):
        asyncio.run(kill_and_go_on(tmp_path / "data"))
