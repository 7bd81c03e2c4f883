"""The last publications of each topic that filters match, as brokers ask a coordinator for them, in pages.

Topics come in the order of their names, each with its own last ones in order. Only the index says where they lie: a
scan of the logs would go through everything for the topic that has been silent longest, and for each page anew. So
while the index is being made anew whoever asks is told so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import IndexNotReadyError
from lexicast.cluster.points_in_time import FOREVER_US
from lexicast.cluster.selection import for_readers
from lexicast.cluster.topics.names import matches
from lexicast.storage.tables.matching_topics import FoundTopic
from lexicast.storage.tables.topics import group_of
from lexicast.storage.topic_reader import NAMES_A_STEP
from lexicast.storage.topic_tail import TopicTail

from ..loop import turns as turns_of
from ..loop.turns import Turns
from .led_groups import LedGroups
from .past import FETCH_BYTES_MAX, FETCH_S, Past
from .peers import BrokerPeer
from .settling import settled

# Where to go on: the filter by number, the place behind the last topic that is done, and of the topic that follows, if
# some of it was given, how many publications are left, and the offset before which they lie.
Place: TypeAlias = tuple[int, bytes | None, int, int]
BEGINNING: Final[Place] = (0, None, 0, 0)


class LastPublications:
    """See the module's docstring."""

    def __init__(self, led: LedGroups, past: Past) -> None:
        self._led = led
        self._past = past

    async def last(
        self,
        peer: BrokerPeer,
        filters: Sequence[bytes],
        count: int,
        since: dict[int, int],
        ends: dict[int, int] | None,
        until_us: int,
        after: Place | None,
        bytes_max: int,
    ) -> dict[str, Any]:
        """The last `count` of each topic in the groups of `since`, not before its offset there, before the one in
        `ends`, and before the time `until_us`; beyond the place `after`, about `bytes_max` bytes.

        Returns "blocks", those of a topic one after the other, and "after": where to go on, None at the end. Raises
        IndexNotReadyError.
        """
        for group in since:
            self._led.sequencer.check_led(group)
        if after is None:
            await settled(self._led, since)
        async with self._past.reading:
            work = _Page(self._led, filters, count, since, ends or {}, until_us, min(bytes_max, FETCH_BYTES_MAX))
            place: Place | None = after or BEGINNING
            while place is not None and not work.full:
                await work.turns.give_way()
                place = await work.step(place)
        return {"blocks": [block.to_wire() for block in work.blocks], "after": place}


class _Page:
    """What gathers for one answer."""

    def __init__(
        self,
        led: LedGroups,
        filters: Sequence[bytes],
        count: int,
        since: dict[int, int],
        ends: dict[int, int],
        until_us: int,
        bytes_max: int,
    ) -> None:
        self._led = led
        self._filters = filters
        self._count = count
        self._since = since
        self._ends = ends
        self._until_us = until_us
        self._left = bytes_max
        self._before: dict[int, int] = {}
        self._until_s = turns_of.now_s() + FETCH_S
        self.turns = Turns()
        self.blocks: list[Block] = []

    @property
    def full(self) -> bool:
        """Whether it goes out now."""
        return self._left <= 0 or turns_of.now_s() >= self._until_s

    async def step(self, place: Place) -> Place | None:
        """Some more for the page; where to go on."""
        number, after, left, before = place
        if number >= len(self._filters):
            return None
        step = self._led.store.by_topic.find(self._filters[number], after, NAMES_A_STEP, pass_over=True)
        if step is None:
            raise _not_ready()
        for topic in step[0]:
            if self.full and self.blocks:
                return number, after, left, before
            if self._concerns(number, topic.name, group_of(topic.topic_id)):
                group = group_of(topic.topic_id)
                tail = self._tail(group, topic, left or self._count, before or self._before_of(group))
                await self._give(tail)
                if not tail.done:
                    return number, after, tail.left, tail.before
            after, left, before = topic.key, 0, 0
        return (number + 1, None, 0, 0) if step[1] is None else (number, step[1], 0, 0)

    def _concerns(self, number: int, topic: bytes, group: int) -> bool:
        """Whether a topic is one of these groups, and no earlier filter has given it."""
        return group in self._since and not any([matches(each, topic) for each in self._filters[:number]])

    def _tail(self, group: int, topic: FoundTopic, count: int, before: int) -> TopicTail:
        return TopicTail(self._led.store.by_topic, group, topic.name, topic.topic_id, count, self._since[group], before)

    def _before_of(self, group: int) -> int:
        """The offset before which a group's last publications are looked for."""
        before = self._before.get(group)
        if before is None:
            before = self._led.sequencer.groups[group].committed
            if self._until_us != FOREVER_US:
                before = min(before, self._led.store.offset_at(group, self._until_us))
            before = self._before[group] = min(before, self._ends.get(group, before))
        return before

    async def _give(self, tail: TopicTail) -> None:
        """As much of a topic as there is room for."""
        while not (looked := tail.look(self.turns.left_s)):
            if looked is None:
                raise _not_ready()
            await self.turns.give_way()
        while not tail.done:
            for block in tail.read(max(1, self._left), self.turns.left_s):
                self.blocks.append(for_readers(block))
                self._left -= block.size_bytes
            if self._left <= 0:
                break
            await self.turns.give_way()


def _not_ready() -> IndexNotReadyError:
    return IndexNotReadyError(
        "the index is being made anew, and only it knows the last messages of each topic: ask again in a while"
    )
