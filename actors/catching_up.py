"""Bringing lagging subscribers up: from the broker's cache of recent blocks, else from the coordinators' stores.

The cache holds what was delivered to this broker most recently, so a subscriber that only paused (a full socket, a
used-up window) is brought up within one turn and without asking anybody. A longer absence is fetched. Both end with
the group live again in the very turn in which its last missing block was taken, so nothing falls between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import LexicastError, UnavailableError

from .pipeline import Pipeline
from .stalled import Stalled
from .subscriber import Subscriber

RETRY_S = 0.05


class BlockCache:
    """The blocks delivered most recently, of all groups together at most `bytes_max` of memory."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._order: deque[Block] = deque()
        self._blocks: dict[int, deque[Block]] = {}
        self._complete_from: dict[int, int] = {}
        self._complete_to: dict[int, int] = {}

    def add(self, block: Block, head_before: int) -> None:
        """A block was delivered; until now the group's head was `head_before`."""
        self._complete_from.setdefault(block.group, head_before)
        self._complete_to[block.group] = block.last + 1
        self._blocks.setdefault(block.group, deque()).append(block)
        self._order.append(block)
        self._bytes += block.memory_bytes
        while self._bytes > self._bytes_max:
            oldest = self._order.popleft()
            self._blocks[oldest.group].popleft()
            self._complete_from[oldest.group] = oldest.last + 1
            self._bytes -= oldest.memory_bytes

    def since(self, group: int, offset: int) -> list[Block] | None:
        """All blocks delivered that hold something at or after `offset`.

        None when older ones are gone, and when none was delivered up to there: a subscriber that was brought up from
        the store may be ahead of a broker that is itself being brought up, and would get again what still comes.
        """
        if not self._complete_from.get(group, 1 << 63) <= offset <= self._complete_to.get(group, -1):
            return None
        found: list[Block] = []
        for block in reversed(self._blocks.get(group, ())):
            if block.last < offset:
                break
            found.append(block)
        found.reverse()
        return found


class CatchingUp:
    """All subscribers of a broker that lag."""

    def __init__(
        self,
        cache: BlockCache,
        pipeline_of: Callable[[int], Pipeline | None],
        stalled: Stalled,
    ) -> None:
        self._cache = cache
        self._pipeline_of = pipeline_of
        self._stalled = stalled
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """Subscribers that are being brought up from the store."""
        return len(self._tasks)

    def start(self, subscriber: Subscriber) -> None:
        """The subscriber lags and nothing is in its way: bring it up."""
        if subscriber.catching_up or subscriber.closed:
            return
        self._from_cache(subscriber)
        if subscriber.lagging and not subscriber.blocked:
            subscriber.catching_up = True
            task = asyncio.get_running_loop().create_task(self._bring_up(subscriber))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _from_cache(self, subscriber: Subscriber) -> None:
        for group, start in list(subscriber.lagging.items()):
            blocks = self._cache.since(group, start) if group in subscriber.missed_live else None
            if blocks is None:
                continue
            for block in blocks:
                if not subscriber.take(block):
                    subscriber.yield_turn(group)
                    return
            subscriber.caught_up(group)

    def close(self) -> None:
        """Bring nobody up any more."""
        for task in list(self._tasks):
            task.cancel()

    async def _bring_up(self, subscriber: Subscriber) -> None:
        try:
            while subscriber.lagging and not (subscriber.blocked or subscriber.closed):
                try:
                    await self._fetch(subscriber)
                except LexicastError:
                    await asyncio.sleep(RETRY_S)
                if subscriber.lagging and not subscriber.blocked:
                    self._from_cache(subscriber)
        finally:
            subscriber.catching_up = False

    async def _fetch(self, subscriber: Subscriber) -> None:
        """One round: from each coordinator concerned what fits into one answer."""
        cursors: dict[Pipeline, dict[int, int]] = {}
        for group, offset in subscriber.lagging.items():
            pipeline = self._pipeline_of(group)
            if pipeline is None:
                raise UnavailableError(f"no coordinator leads group {group} now")
            cursors.setdefault(pipeline, {})[group] = offset
        filters = list(subscriber.subscriptions)
        for pipeline, cursor in cursors.items():
            if subscriber.blocked or subscriber.closed:
                return
            await self._fetch_from(subscriber, pipeline, cursor, filters)

    async def _fetch_from(
        self, subscriber: Subscriber, pipeline: Pipeline, cursor: dict[int, int], filters: list[bytes]
    ) -> None:
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None, result: Any) -> None:
            try:
                if error is None:
                    if not subscriber.subscriptions.keys() <= set(filters):
                        raise UnavailableError("subscribed to more meanwhile: what was read may lack it")
                    self._take(subscriber, result)
            except LexicastError as bad:
                error = bad
            except Exception as bad:
                error = UnavailableError(f"an answer could not be taken: {bad!r}")
                raise
            finally:
                # Whatever happens: nobody else would ever bring this subscriber up.
                if not answered.done():
                    answered.set_result(None) if error is None else answered.set_exception(error)

        pipeline.call(done, "fetch", cursor, filters, subscriber.fetch_bytes)
        await answered

    def _take(self, subscriber: Subscriber, result: dict[str, Any]) -> None:
        """An answer to `fetch`, while it is taken off the link. Raises UnavailableError when it must be asked again."""
        blocks = [Block.from_wire(wire) for wire in result["blocks"]]
        if self._stalled.missing(blocks):
            raise UnavailableError("a dictionary has to be fetched first")
        for group, first in result["first"].items():
            subscriber.discarded(group, first)
        for block in blocks:
            if not subscriber.take(block):
                subscriber.yield_turn(block.group)
                return
        for group, offset in result["cursor"].items():
            if group in subscriber.lagging:
                subscriber.lagging[group] = max(subscriber.lagging[group], offset)
        waits = [group for group in result["live"] if group in self._stalled]
        for group in result["live"]:
            if group not in waits:
                subscriber.caught_up(group)
        if waits:
            raise UnavailableError("live blocks wait for a dictionary")
