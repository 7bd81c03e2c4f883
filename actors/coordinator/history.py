"""The history as brokers ask a coordinator for it, for their clients: what filters match, cut to that, in pages.

Filters whose topics are few are answered by the index, others by a scan of the logs (`topic_filters`). A page is made
in turns (`loop.turns`), by the one who holds `Past.reading`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import LedElsewhereError
from lexicast.cluster.points_in_time import FOREVER_US
from lexicast.cluster.selection import for_readers
from lexicast.storage.log.block_cuts import cut

from ..loop import turns as turns_of
from ..loop.turns import Turns
from .led_groups import LedGroups
from .past import FETCH_BYTES_MAX, FETCH_S, Past
from .peers import BrokerPeer
from .topic_filters import TopicFilters


class HistoryRequests:
    """See the module's docstring."""

    def __init__(self, led: LedGroups, past: Past) -> None:
        self._led = led
        self._past = past

    async def history(
        self, peer: BrokerPeer, cursor: dict[int, int], filters: Iterable[bytes], until_us: int, bytes_max: int
    ) -> dict[str, Any]:
        """What filters match from `cursor` on and before the time `until_us`, about `bytes_max` bytes of it.

        Returns "blocks"; "cursor": where each group was left; "done": the groups of which there is no more.
        """
        page = _Page(min(bytes_max, FETCH_BYTES_MAX), until_us)
        wanted = TopicFilters(self._led, list(filters), self._past.wide)
        left: dict[int, int] = {}
        done: list[int] = []
        async with self._past.reading:
            turns = Turns()
            for group, offset in cursor.items():
                if group not in self._led.sequencer.groups:
                    raise LedElsewhereError(f"group {group} is not led here")
                if left and page.full:
                    break
                left[group], ended = await self._read(group, offset, wanted, page, turns)
                if ended:
                    done.append(group)
                await turns.give_way()
        self._led.check_served(*left)
        return {"blocks": [block.to_wire() for block in page.blocks], "cursor": left, "done": done}

    async def count(
        self, peer: BrokerPeer, cursor: dict[int, int], filters: Iterable[bytes], until_us: int
    ) -> dict[str, Any]:
        """How many publications filters match from `cursor` on and before the time `until_us`, as far as a page goes.

        Returns "count"; "cursor" and "done" as `history`.
        """
        for group in cursor:
            self._led.sequencer.check_led(group)
        await self._led.settled(cursor)
        page = _Page(1, until_us)
        wanted = TopicFilters(self._led, list(filters), self._past.wide)
        found = 0
        left: dict[int, int] = {}
        done: list[int] = []
        async with self._past.reading:
            turns = Turns()
            for group, offset in cursor.items():
                if left and page.full:
                    break
                end = self._end(group, until_us)
                if end is None:
                    end = self._led.sequencer.applied_below(group)
                while offset < end and not page.full:
                    await turns.give_way()
                    some, offset = await self._count(group, offset, end - 1, wanted, turns)
                    found += some
                left[group] = offset
                if offset >= end:
                    done.append(group)
        self._led.check_served(*left)
        return {"count": found, "cursor": left, "done": done}

    async def _count(self, group: int, offset: int, last: int, wanted: TopicFilters, turns: Turns) -> tuple[int, int]:
        """About a turn's worth of counting, by the index or in a scan; and where to go on."""
        found = await self._past.looked_up(group, offset, wanted, last, turns)
        if found is None:
            return self._led.store.count(group, offset, last, wanted, turns.left_s)
        span, upto = found
        return span.count(offset, upto, turns.left_s)

    async def _read(self, group: int, offset: int, wanted: TopicFilters, page: _Page, turns: Turns) -> tuple[int, bool]:
        """A group's part of a page; where it was left, and whether that is the end."""
        end = self._end(group, page.until_us)
        while True:
            if end is not None and offset >= end:
                return offset, True
            span = await self._past.step(group, offset, wanted, max(1, page.left), turns)
            offset = span.next
            for block in span.blocks:
                if block.time_us >= page.until_us:
                    return offset, True
                page.add(block, wanted)
            if span.live or page.full:
                return offset, span.live
            await turns.give_way()

    def _end(self, group: int, until_us: int) -> int | None:
        """Where what is asked for ends in a group's log; None: not yet."""
        if until_us == FOREVER_US:
            return None
        end = self._led.store.offset_at(group, until_us)
        return end if end < self._led.sequencer.applied_below(group) else None


class _Page:
    """What gathers for one answer."""

    def __init__(self, bytes_max: int, until_us: int) -> None:
        self.left = bytes_max
        self.until_us = until_us
        self.blocks: list[Block] = []
        self._until_s = turns_of.now_s() + FETCH_S

    def add(self, block: Block, wanted: TopicFilters) -> None:
        """A block with something that is wanted in it."""
        # Of a block with one topic that is all: it would not be here.
        part = block if len(block.meta.topics) == 1 else cut(block, topics=wanted)
        if part is not None:
            self.blocks.append(for_readers(part))
            self.left -= part.size_bytes

    @property
    def full(self) -> bool:
        """Whether it goes out now."""
        return self.left <= 0 or turns_of.now_s() >= self._until_s
