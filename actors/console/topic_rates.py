"""How much is published to topics, about: a sample of everything, looked at while somebody wants to know.

The sample is divided fairly among topic families, so what few messages are published to is counted nearly whole, and of
what is much as many as the rest leaves. Where less was published than the sample holds the rates are exact.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from lexicast.cluster.errors import LexicastError

from ..client.client import Client

SAMPLED_PER_S: Final = 100
WINDOW_S: Final = 10.0
SLICE_S: Final = 1.0
# Nobody has asked for so long: the sample ends.
WANTED_S: Final = 15.0
RETRY_S: Final = 1.0
TOPICS_MAX: Final = 20_000


class TopicRates:
    """See the module's docstring."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._slices: deque[tuple[float, Counter[str]]] = deque()
        self._wanted_s = 0.0
        self._looking: asyncio.Task[None] | None = None

    def per_s(self, names: list[str], may_read: Callable[[bytes], bool]) -> list[float | None]:
        """Messages a second, sampled, of each topic, or of all that a name ending in "/" begins, as far as whoever asks
        `may_read` them; None: not known yet. It is looked from now on, for a while."""
        found = self._total(may_read)
        if found is None:
            return [None] * len(names)
        total, seconds = found
        return [round(_of(name, total) / seconds, 1) for name in names]

    def busiest(self, count: int) -> list[tuple[str, float]] | None:
        """The topics that most is published to, with messages a second as `per_s` tells them, for who may read all;
        None: not known yet."""
        found = self._total(lambda _: True)
        if found is None:
            return None
        total, seconds = found
        return [(name, round(seen / seconds, 1)) for name, seen in total.most_common(count)]

    def _total(self, may_read: Callable[[bytes], bool]) -> tuple[Counter[str], float] | None:
        """What was sampled of each topic, in how many seconds; None: nothing yet."""
        now_s = asyncio.get_running_loop().time()
        self._wanted_s = now_s + WANTED_S
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        if not self._slices:
            return None
        total: Counter[str] = Counter()
        for _, counts in self._slices:
            total.update({topic: count for topic, count in counts.items() if may_read(topic.encode())})
        return total, max(SLICE_S, now_s - self._slices[0][0])

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while loop.time() < self._wanted_s:
                with suppress(LexicastError):
                    await self._count()
                await asyncio.sleep(RETRY_S)
        finally:
            self._looking = None
            self._slices.clear()

    async def _count(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._client.subscribe("#", sample_records_per_s=SAMPLED_PER_S) as sample:
            self._slices.append((loop.time(), Counter()))
            while loop.time() < self._wanted_s:
                with suppress(TimeoutError):
                    async with asyncio.timeout(SLICE_S):
                        self._add([message.topic for message in await sample.next_batch()])
                self._turn(loop.time())

    def _add(self, topics: list[str]) -> None:
        counts = self._slices[-1][1]
        if len(counts) < TOPICS_MAX:
            counts.update(topics)

    def _turn(self, now_s: float) -> None:
        if now_s - self._slices[-1][0] >= SLICE_S:
            self._slices.append((now_s, Counter()))
        while len(self._slices) > 1 and now_s - self._slices[1][0] > WINDOW_S:
            self._slices.popleft()

    def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()


def _of(name: str, counts: Counter[str]) -> int:
    if not name.endswith("/"):
        return counts[name]
    return sum([count for topic, count in counts.items() if topic.startswith(name)])
