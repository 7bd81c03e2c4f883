"""The last publications of each topic that filters match, as brokers ask a coordinator for them, in pages.

Topics come in the order of their names, each with its own last ones in order. Only the index says where they lie: a
scan of the logs would go through everything for the topic that has been silent longest, and for each page anew. So
while the index is being made anew whoever asks is told so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import IndexNotReadyError, UsageError
from lexicast.cluster.points_in_time import FOREVER_US
from lexicast.cluster.selection import for_readers
from lexicast.cluster.topics.names import TopicTrie, matches
from lexicast.storage.file.keys import name_key
from lexicast.storage.tables.matching_topics import FoundTopic
from lexicast.storage.tables.topics import group_of
from lexicast.storage.topic_reader import NAMES_A_STEP
from lexicast.storage.topic_tail import TopicTail

from ..loop import turns as turns_of
from ..loop.turns import Turns
from .led_groups import LedGroups
from .past import FETCH_BYTES_MAX, FETCH_S, Past
from .peers import BrokerPeer

# A topic of which some was given: its name, the offset from which on the rest lies, and that before which it does. By
# offsets, since between two pages topics come and go, and publications expire.
Begun: TypeAlias = tuple[bytes, int, int]
# Where to go on: the filter by number, the place behind the last topic of it that was looked at, and what is left of
# that one.
Place: TypeAlias = tuple[int, bytes | None, Begun | None]
BEGINNING: Final[Place] = (0, None, None)


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
        IndexNotReadyError; LedElsewhereError when one of the groups is not led here, from the question to the answer;
        UsageError when `after` is no place in these filters' answer.
        """
        if after is not None:
            _check_place(after, filters)
        self._led.check_served(*since)
        if after is None:
            await self._led.settled(since)
        async with self._past.reading:
            work = _Page(self._led, filters, count, since, ends or {}, until_us, min(bytes_max, FETCH_BYTES_MAX))
            await work.number_filters()
            place: Place | None = after or BEGINNING
            while place is not None and not work.full:
                await work.turns.give_way()
                place = await work.step(place)
        self._led.check_served(*since)
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
        self._numbers: TopicTrie[int, None] = TopicTrie()
        self._count = count
        self._since = since
        self._ends = ends
        self._until_us = until_us
        self._left = bytes_max
        self._before: dict[int, int] = {}
        self._until_s = turns_of.now_s() + FETCH_S
        self.turns = Turns()
        self.blocks: list[Block] = []

    async def number_filters(self) -> None:
        """So that which filter is the first to match a topic is one look-up, however many filters there are."""
        for number, topic_filter in enumerate(self._filters):
            self._numbers.insert(topic_filter, number, None)
            await self.turns.give_way()

    @property
    def full(self) -> bool:
        """Whether it goes out now."""
        return self._left <= 0 or turns_of.now_s() >= self._until_s

    async def step(self, place: Place) -> Place | None:
        """Some more for the page; where to go on."""
        number, after, begun = place
        if begun is not None:
            return number, name_key(begun[0]), await self._rest_of(*begun)
        if number == len(self._filters):
            return None
        found, following = self._find(self._filters[number], after)
        for topic in found:
            await self.turns.give_way()
            if self.full and after != place[1]:
                return number, after, None
            if self._concerns(number, topic):
                begun = await self._begin(topic)
            after = topic.key
            if begun is not None:
                return number, after, begun
        return (number + 1, None, None) if following is None else (number, following, None)

    def _find(self, topic_filter: bytes, after: bytes | None) -> tuple[list[FoundTopic], bytes | None]:
        found = self._led.store.by_topic.find(topic_filter, after, NAMES_A_STEP, pass_over=True)
        if found is None:
            raise _not_ready()
        return found

    def _concerns(self, number: int, topic: FoundTopic) -> bool:
        """Whether a topic is of one of these groups, and no earlier filter has given it."""
        if group_of(topic.topic_id) not in self._since:
            return False
        return min([first for first, _ in self._numbers.match(topic.name)]) == number

    def _before_of(self, group: int) -> int:
        """The offset before which a group's last publications are looked for."""
        before = self._before.get(group)
        if before is None:
            before = self._led.sequencer.applied_below(group)
            if self._until_us != FOREVER_US:
                before = min(before, self._led.store.offset_at(group, self._until_us))
            before = self._before[group] = min(before, self._ends.get(group, before))
        return before

    async def _begin(self, topic: FoundTopic) -> Begun | None:
        """As much of a topic as there is room for; where to go on with it."""
        group = group_of(topic.topic_id)
        before = self._before_of(group)
        tail = TopicTail(self._led.store.by_topic, topic, self._count, self._since[group], before)
        while not (looked := tail.look(self.turns.left_s)):
            if looked is None:
                raise _not_ready()
            await self.turns.give_way()
        while (offset := tail.next) is not None:
            self._add(tail.read(max(1, self._left), self.turns.left_s))
            if self.full and (offset := tail.next) is not None:
                return topic.name, offset, before
            await self.turns.give_way()
        return None

    async def _rest_of(self, name: bytes, offset: int, before: int) -> Begun | None:
        """What is left of a topic that an earlier page began: what it has from there on, as far as it was looked for
        then. Of a topic that is gone nothing is."""
        for topic in self._find(name, None)[0]:
            group = group_of(topic.topic_id)
            if group not in self._since:
                continue
            # Nothing beyond what this page would look for: the place may come from anywhere.
            offset, before = max(offset, self._since[group]), min(before, self._before_of(group))
            span = self._led.store.by_topic.span(group, [topic.topic_id], name.__eq__)
            while offset < before:
                looked = span.look(offset, before - 1, self.turns.left_s)
                if looked is None:
                    raise _not_ready()
                if looked:
                    result = span.read(offset, max(1, self._left), before - 1, self.turns.left_s)
                    self._add(result.blocks)
                    offset = result.next_offset
                    if self.full and offset < before:
                        return name, offset, before
                await self.turns.give_way()
        return None

    def _add(self, blocks: list[Block]) -> None:
        for block in blocks:
            self.blocks.append(for_readers(block))
            self._left -= block.size_bytes


def _check_place(place: Place, filters: Sequence[bytes]) -> None:
    number, _, begun = place
    if number > len(filters) or (begun and (number == len(filters) or not matches(filters[number], begun[0]))):
        raise UsageError("the place to go on from is none of these filters': ask again from the beginning")


def _not_ready() -> IndexNotReadyError:
    return IndexNotReadyError(
        "the index is being made anew, and only it knows the last messages of each topic: ask again in a while"
    )
