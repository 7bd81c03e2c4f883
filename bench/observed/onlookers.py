"""Who looks at a cluster, as a process of its own: what the open page asks, when it asks it, and Prometheus.

    python -m lexicast.bench.observed.onlookers URL

A line on its standard input says who looks from then on: "page", the page as it opens and Prometheus; "all", its tree
of topics and a stream of everything too, at once; "rest", nobody. To each it answers with what it has done so far:
{"answers": count, "errors": count}.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Final

import aiohttp

# Path and seconds between two questions, as Prometheus and actors/console/page ask.
PAGE: Final = (
    ("metrics", 1.0),
    ("api/v1/status", 2.0),
    ("api/v1/events?limit=15", 2.0),
    ("api/v1/rates", 10.0),
)
TREE: Final = ("api/v1/topics", 3.0)
STREAM: Final = "api/v1/stream?filter=%23"


class Onlookers:
    """See the module's docstring."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._looking: list[asyncio.Task[None]] = []
        self.answers = 0
        self.errors = 0

    async def run(self) -> None:
        """Until standard input ends."""
        async with aiohttp.ClientSession() as session:
            while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
                for task in self._looking:
                    task.cancel()
                self._looking = [asyncio.create_task(self._kept(work)) for work in self._works(session, line)]
                print(json.dumps({"answers": self.answers, "errors": self.errors}), flush=True)

    def _works(self, session: aiohttp.ClientSession, who: str) -> list[Awaitable[None]]:
        asked = {"page": PAGE, "all": (*PAGE, TREE)}.get(who, ())
        works: list[Awaitable[None]] = [self._ask(session, *each) for each in asked]
        return [*works, self._follow(session)] if who == "all" else works

    async def _kept(self, work: Awaitable[None]) -> None:
        try:
            await work
        except (aiohttp.ClientError, TimeoutError):
            self.errors += 1

    async def _ask(self, session: aiohttp.ClientSession, path: str, every_s: float) -> None:
        while True:
            async with session.get(self._url + path) as answer:
                await answer.read()
                self.errors += answer.status != 200
                self.answers += 1
            await asyncio.sleep(every_s)

    async def _follow(self, session: aiohttp.ClientSession) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with session.get(self._url + STREAM, timeout=timeout) as answer:
            async for _ in answer.content.iter_any():
                self.answers += 1


if __name__ == "__main__":
    asyncio.run(Onlookers(sys.argv[1]).run())
