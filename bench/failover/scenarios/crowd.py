"""A process of sessions (started by the scenarios' driver): they live until all has come that was published to them.

`go` tells when the fault struck. At `finish` it reads what was published from a file, and tells in another one what
became of each session.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from lexicast.cluster.errors import UnavailableError

from ...peers.session_opening import raise_open_files
from ...stage.parts import Orders, run_part, tell_driver
from .plans import CrowdPlan, CrowdTold, Expected, is_shared, own_topic, qos_of, shared_filter
from .session_client import ERRORS, CrowdClient

OPENING_AT_ONCE: Final = 100
OPENING_TRIES: Final = 5
LOOK_S: Final = 0.1
TELL_S: Final = 0.1
SETTLE_S: Final = 30.0
SPARE_FILES: Final = 100


class SessionCrowd:
    """All of this process."""

    def __init__(self, plan: CrowdPlan) -> None:
        self._plan = plan
        ways_s = dict.fromkeys(plan.far, plan.far_s)
        chance = random.Random(plan.seed)
        self.clients = [
            CrowdClient(
                f"{plan.run}-{number}", qos_of(number), self._filters(number), hosts, ways_s, plan.open_s, chance
            )
            for number, hosts in enumerate(plan.hosts, plan.first)
        ]
        self._opening = asyncio.Semaphore(OPENING_AT_ONCE)
        self._tasks: list[asyncio.Task[None]] = []

    def _filters(self, number: int) -> list[str]:
        plan = self._plan
        return [own_topic(plan.run, number)] * plan.own + [shared_filter(plan.run)] * plan.shared

    async def open(self) -> None:
        """All connect. Raises UnavailableError."""
        await asyncio.gather(*[self._open(client) for client in self.clients])
        self._tasks = [asyncio.create_task(client.live()) for client in self.clients]
        if self._plan.silence_s:
            self._tasks.append(asyncio.create_task(self._look_for_silence()))

    async def _open(self, client: CrowdClient) -> None:
        async with self._opening:
            for _ in range(OPENING_TRIES):
                try:
                    return await client.begin()
                except ERRORS as error:
                    why = error
            raise UnavailableError(f"{client.name} is not served: {why}")

    async def _look_for_silence(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            for client in self.clients:
                if client.connection is not None:
                    client.connection.look_for_silence(now_s, self._plan.silence_s)

    def strike(self, hit_ns: int) -> None:
        """The fault has struck."""
        for client in self.clients:
            client.hit_ns = hit_ns

    def counted(self) -> dict[str, int]:
        """For the driver: how many are back, how many have had a message since."""
        fates = [client.fate for client in self.clients]
        return {
            "lost": sum([bool(fate.lost_ns) for fate in fates]),
            "accepted": sum([bool(fate.accepted_ns) for fate in fates]),
            "served": sum([bool(fate.first_ns) for fate in fates]),
        }

    async def settle(self, expected: Expected) -> None:
        """Return when all has come, or SETTLE_S later."""
        plan, counts = self._plan, expected.counts
        shared = {topic: count for topic, count in counts.items() if plan.shared and is_shared(topic)}

        def missing(number: int, client: CrowdClient) -> int:
            own = own_topic(plan.run, number)
            wanted = {**shared, own: counts[own]} if plan.own and own in counts else shared
            return client.audit.missing(wanted, expected.unanswered)

        until_s, numbered = time.monotonic() + SETTLE_S, list(enumerate(self.clients, plan.first))
        lacking = numbered
        while lacking and time.monotonic() < until_s:
            lacking = [each for each in lacking if missing(*each)]
            await asyncio.sleep(TELL_S)
        for number, client in numbered:
            client.fate.counts["lost"] = missing(number, client)

    def told(self) -> CrowdTold:
        """What became of all."""
        fates = [asdict(client.told()) for client in self.clients]
        delays = [each for client in self.clients for each in client.audit.delays()] if self._plan.delays else []
        return CrowdTold(fates, delays)

    async def end(self) -> None:
        """All leave, a few at a time."""

        async def end(client: CrowdClient) -> None:
            async with self._opening:
                await client.end()

        await asyncio.gather(*[end(client) for client in self.clients])
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def run(options: argparse.Namespace) -> None:
    """The whole of it."""
    plan = CrowdPlan.read(options.plan)
    os.nice(plan.nice)
    raise_open_files(len(plan.hosts) + SPARE_FILES)
    gc.disable()  # a full collection would be a pause of every client
    loop, crowd, finished = asyncio.get_running_loop(), SessionCrowd(plan), asyncio.Event()
    orders = Orders(lambda: loop.call_soon_threadsafe(finished.set))
    await crowd.open()
    tell_driver(ready=True)
    telling = asyncio.create_task(_tell(crowd, orders))
    await finished.wait()
    await crowd.settle(Expected.read(options.expected))
    crowd.told().write(options.told)
    tell_driver(settled=True)
    telling.cancel()
    await crowd.end()
    tell_driver(gone=True)
    await asyncio.Event().wait()  # until the driver closes this process's input


async def _tell(crowd: SessionCrowd, orders: Orders) -> None:
    crowd.strike(await asyncio.to_thread(orders.wait_go))
    while True:
        tell_driver(**crowd.counted())
        await asyncio.sleep(TELL_S)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, all from the driver."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("plan", "expected", "told"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.failover.scenarios.crowd`; returns the exit code."""
    return run_part(run(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
