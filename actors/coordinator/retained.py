"""Retained publications, as brokers ask a coordinator for them: in pages, found by their topics' names.

A broker asks after its cut, with the place where the last page ended. What is answered is current at some time since
the first question, so that whoever leaves out what stands at or after the cut, which comes live, has all that was
retained at the cut, or what replaced it. Nothing is dropped for its number: there is another page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from lexicast.cluster.blocks import Block
from lexicast.cluster.positions import topic_group
from lexicast.cluster.topics.name_tree import path_of
from lexicast.cluster.topics.names import is_wildcard

from ..loop import turns as turns_of
from ..loop.turns import Turns
from .led_groups import LedGroups
from .peers import BrokerPeer

PAGE_BYTES_MAX = 4 * 1024 * 1024
# A page that finds little ends after so much time all the same, for others to have their turn.
PAGE_S = 0.05
# Steps of a scan, and so names at most, between two looks at the clock.
STEPS = 64

# Where to go on: the filter by number, and the path of the last topic looked at.
Place = tuple[int, Any]


class RetainedRequests:
    """See the module's docstring. One page is made at a time: two would take a turn each in one pass of the loop."""

    def __init__(self, led: LedGroups) -> None:
        self._led = led
        self._making = asyncio.Lock()

    async def retained(
        self, peer: BrokerPeer, filters: Sequence[bytes], groups: Sequence[int], after: Place | None, bytes_max: int
    ) -> dict[str, Any]:
        """Retained records of topics that match, in these groups, beyond `after` (None: from the start), about
        `bytes_max` bytes.

        Returns "blocks": (the filter by number, a block of one record) each; "after": where to go on, None at the end.
        Raises LedElsewhereError when one of the groups is not led here, from the question to the answer.
        """
        self._led.check_served(*groups)
        if after is None:
            await self._settled(filters, groups)
        async with self._making:
            turns = Turns()
            if any(map(is_wildcard, filters)):
                while not self._led.store.retained.load_names():
                    await turns.give_way()
            page = _Page(min(bytes_max, PAGE_BYTES_MAX), frozenset(groups))
            place: Place | None = after or (0, None)
            while place is not None and not page.full:
                await turns.give_way()
                place = self._step(filters, place, page)
        self._led.check_served(*groups)
        return {"blocks": page.blocks, "after": place}

    async def _settled(self, filters: Iterable[bytes], groups: Iterable[int]) -> None:
        """What was delivered before the question is in the store, where its topic's record is then looked for."""
        wanted = set(groups)
        if not any(map(is_wildcard, filters)):
            wanted.intersection_update([topic_group(name, self._led.store.groups) for name in filters])
        await self._led.settled(wanted)

    def _step(self, filters: Sequence[bytes], place: Place, page: _Page) -> Place | None:
        """Some more for the page; where to go on."""
        number, path = place
        if number >= len(filters):
            return None
        topic_filter = filters[number]
        if not is_wildcard(topic_filter):
            block = self._record(topic_filter, page)
            if block is not None:
                page.add(number, block)
            return (number + 1, None)
        names, store = self._led.store.retained.names, self._led.store
        topics, after, token = names.scan(topic_filter, None if path is None else tuple(path), STEPS)
        gone: list[bytes] = []
        for at, topic in enumerate(topics):
            block = self._record(topic, page)
            if block is not None:
                page.add(number, block)
                if page.full and at + 1 < len(topics):
                    return (number, path_of(topic))
            elif topic_group(topic, store.groups) in page.groups:
                gone.append(topic)
        if gone:
            names.missing(gone, token)
        return (number + 1, None) if after is None else (number, after)

    def _record(self, topic: bytes, page: _Page) -> Block | None:
        group = topic_group(topic, self._led.store.groups)
        if group not in page.groups:
            return None
        return self._led.store.retained.record(group, topic)


class _Page:
    """What gathers for one answer."""

    def __init__(self, bytes_max: int, groups: frozenset[int]) -> None:
        self.groups = groups
        self._left = bytes_max
        self._until_s = turns_of.now_s() + PAGE_S
        self.blocks: list[tuple[int, Any]] = []

    def add(self, number: int, block: Block) -> None:
        """One more."""
        self.blocks.append((number, block.to_wire()))
        self._left -= block.size_bytes

    @property
    def full(self) -> bool:
        """Whether it goes out now."""
        return self._left <= 0 or turns_of.now_s() >= self._until_s
