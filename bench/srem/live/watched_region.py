"""The load of the live part: subscribers at each broker who want a region of their own, and publications everywhere.

All conditions of a broker's subscribers lie in one region of the dimension x, so the share of what is published that a
broker can want at all is known; inside they are boxes of two dimensions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Final

import lexicast
from lexicast.actors.client.client import Client
from lexicast.actors.client.subscription import Subscription

FILTER: Final = "region/#"
TOPICS: Final = 8
PADDING: Final = "." * 200
CLIENTS_A_BROKER: Final = 4
SUBSCRIPTIONS_A_CLIENT: Final = 100
WIDTH: Final = 0.05
TURN_S: Final = 0.01
ARRIVED_S: Final = 20.0


def condition(dice: random.Random, low: float, share: float) -> str:
    """One within the region of x from `low` on."""
    width = min(WIDTH, share)
    x, y = low + dice.random() * (share - width), dice.random() * (1 - WIDTH)
    return f"x BETWEEN {x:.6f} AND {x + width:.6f} AND y BETWEEN {y:.6f} AND {y + WIDTH:.6f}"


def event(dice: random.Random) -> bytes:
    """A publication."""
    fields = {"x": round(dice.random(), 6), "y": round(dice.random(), 6), "z": dice.randrange(1_000), "note": PADDING}
    return json.dumps(fields).encode()


class Watchers:
    """Subscribers at every broker. `received`: how much has come to them."""

    def __init__(self, clients: Sequence[Client], dice: random.Random, share: float) -> None:
        """`clients`: CLIENTS_A_BROKER of each broker, one broker's after the other's."""
        self._clients = clients
        self._dice = dice
        self._share = share
        self._tasks: list[asyncio.Task[None]] = []
        self.received = 0

    async def begin(self) -> None:
        """Subscribe."""
        brokers = max(1, len(self._clients) // CLIENTS_A_BROKER)
        for number, client in enumerate(self._clients):
            low = (number // CLIENTS_A_BROKER) * (1 - self._share) / max(1, brokers - 1)
            for _ in range(SUBSCRIPTIONS_A_CLIENT):
                subscription = client.subscribe(FILTER, where=condition(self._dice, low, self._share), qos=0)
                begun = asyncio.Event()
                self._tasks.append(asyncio.create_task(self._take(subscription, begun)))
                await begun.wait()

    async def _take(self, subscription: Subscription, begun: asyncio.Event) -> None:
        async with subscription as stream:
            begun.set()
            async for _ in stream:
                self.received += 1

    async def end(self) -> None:
        """Unsubscribe."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def settled(self) -> None:
        """Return when nothing has come for a while."""
        before = -1
        async with asyncio.timeout(ARRIVED_S):
            while before != self.received:
                before = self.received
                await asyncio.sleep(0.3)


async def publish(client: Client, dice: random.Random, rate: float, seconds: float) -> int:
    """A steady stream; how many it were."""
    loop = asyncio.get_running_loop()
    began_s, sent = loop.time(), 0
    while (now_s := loop.time() - began_s) < seconds:
        due = int(now_s * rate) - sent
        for _ in range(due):
            client.publish_nowait(f"region/{dice.randrange(TOPICS)}", event(dice))
        sent += due
        await asyncio.sleep(TURN_S)
    return sent


@contextlib.asynccontextmanager
async def clients_of(data_dir: Path, brokers: dict[str, list[str]], each: int) -> AsyncIterator[list[Client]]:
    """So many clients of each broker, `brokers`: by name their addresses."""
    key = (data_dir / "cluster.key").read_bytes()
    async with contextlib.AsyncExitStack() as stack:
        found = [
            await stack.enter_async_context(lexicast.connect(f"link:{address}", key=key))
            for address in _addresses(brokers)
            for _ in range(each)
        ]
        yield found


def _addresses(brokers: dict[str, list[str]]) -> Iterator[str]:
    for _, addresses in sorted(brokers.items()):
        yield addresses[0]
