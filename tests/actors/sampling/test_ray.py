"""A sampling broker under Ray, killed: the one that Ray starts in its place goes on (DESIGN.md, "Sampling broker")."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lexicast
from lexicast.actors.client.client import Client

TIMEOUT_S = 90.0


def run_of(ready: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What `up` tells once it serves."""
    deadline = time.monotonic() + TIMEOUT_S
    while not ready.exists():
        assert process.poll() is None, "the cluster does not start"
        assert time.monotonic() < deadline, "the cluster does not start in time"
        time.sleep(0.05)
    told: dict[str, Any] = json.loads(ready.read_text())
    return told


async def until(true: Callable[[], Any], what: str) -> None:
    """Return once `true()`, which may be a coroutine function."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found = true()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert time.monotonic() < deadline, f"{what} did not come"
        await asyncio.sleep(0.05)


def sampling_pid(ready: Path) -> int:
    return int(json.loads(ready.read_text())["pids"]["sampling"][0])


def readings(count: int, start: int = 0) -> list[tuple[str, bytes]]:
    return [
        (f"devices/{1_000_000 + n % 5}/telemetry", b'{"kind": "telemetry", "temperature": %d, "n": %d}' % (n % 9, n))
        for n in range(start, start + count)
    ]


async def kill_and_go_on(bus: Client, ready: Path) -> None:
    first = sampling_pid(ready)
    sent = 0

    async def begun() -> bool:
        # Again and again: what is published before the sampling broker has asked for its sample is never in it.
        nonlocal sent
        await bus.publish_many(readings(100, sent))
        sent += 100
        return bool(bus.dictionaries())

    await until(begun, "a first dictionary")

    async def saved() -> bool:
        return bool([m async for m in bus.history("$sampling/#") if m.topic.endswith("telemetry")])

    await until(saved, "a state")
    os.kill(first, signal.SIGKILL)
    await until(lambda: sampling_pid(ready) != first, "a successor")
    known = {dictionary.id for dictionary in bus.dictionaries()}
    await bus.publish_many(readings(60, sent))
    # A language that the old dictionary does not speak.
    other = [("other/1000001/x", b"<reading unit='celsius' n='%d'/><station>JFK</station>" % n) for n in range(200)]

    async def learned() -> bool:
        await bus.publish_many(other)
        return len({dictionary.family for dictionary in bus.dictionaries()}) == 2

    await until(learned, "the successor learns")
    kept = [d.id for d in bus.dictionaries() if d.family == b"devices/+/telemetry"]
    assert set(kept) <= known, "60 more messages of the same kind are no reason for a new dictionary"


def test_a_killed_sampling_broker_is_replaced_and_goes_on(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "lexicast.actors.cli", "up", "--data-dir", str(tmp_path / "data")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with (tmp_path / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--mqtt-port", "0", "--ready-file", str(ready)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    try:
        run_of(ready, process)

        async def work() -> None:
            async with lexicast.connect(data_dir=tmp_path / "data", compress=False) as bus:
                await kill_and_go_on(bus, ready)

        asyncio.run(work())
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
