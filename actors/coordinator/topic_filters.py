"""The filters of one look into the past: which topics they match, and, where these are few, their past by the index.

The measure: the topics that all filters match, in all groups led here, are TOPICS_FEW or fewer, or at most one in
TOPICS_SHARE of all that the store knows (and TOPICS_MAX). What these have published is then read by the index, a block
at a time, and nothing else is touched; whatever concerns more is found by a scan of the groups' logs, which passes over
the rest. Reading by the index costs a look-up a topic more than the scan and the blocks that it need not pass less, so
where many topics turn out to lie in most of the blocks it costs little more than the scan.

A topic that is new since the topics were found has nothing before `below`, where the group's log ended then: from
there on the log is scanned. So the index gives what the scan gives.
"""

from __future__ import annotations

from typing import Final

from lexicast.cluster.topics.names import TopicTrie
from lexicast.storage.tables.topics import group_of
from lexicast.storage.topic_reader import NAMES_A_STEP, TopicSpan

from ..loop import turns as turns_of
from ..loop.turns import Turns
from .led_groups import LedGroups

TOPICS_FEW: Final = 64
TOPICS_SHARE: Final = 8
TOPICS_MAX: Final = 4_096
# Names looked at for each topic that may be found, beyond which the filters count as wide.
LOOKS_A_TOPIC: Final = 4
# Filters that matched too much are not looked at again for so long, and so many of them are remembered.
WIDE_S: Final = 10.0
WIDE_MAX: Final = 1_000
# Topics whose match is remembered for the length of one request.
TOPICS_REMEMBERED: Final = 10_000


class WideFilters:
    """Filters that matched too much a moment ago."""

    def __init__(self) -> None:
        self._until_s: dict[frozenset[bytes], float] = {}

    def __contains__(self, filters: frozenset[bytes]) -> bool:
        return self._until_s.get(filters, 0.0) > turns_of.now_s()

    def add(self, filters: frozenset[bytes]) -> None:
        """These do."""
        if len(self._until_s) >= WIDE_MAX:
            self._until_s.clear()
        self._until_s[filters] = turns_of.now_s() + WIDE_S


class TopicFilters:
    """Called with a topic: whether one of the filters matches it. `span`: how to read it by the index, if that pays."""

    def __init__(self, led: LedGroups, filters: list[bytes], wide: WideFilters) -> None:
        self._led = led
        self._filters = filters
        self._wide = wide
        self._trie: TopicTrie[None, None] = TopicTrie()
        for topic_filter in filters:
            self._trie.insert(topic_filter, None, None)
        self._known: dict[bytes, bool] = {}
        self._decided = False
        self._ids: dict[int, list[int]] | None = None
        self._spans: dict[int, TopicSpan] = {}
        self._below: dict[int, int] = {}

    def __call__(self, topic: bytes) -> bool:
        found = self._known.get(topic)
        if found is None:
            if len(self._known) >= TOPICS_REMEMBERED:
                self._known.clear()
            found = self._known[topic] = bool(self._trie.match(topic))
        return found

    def below(self, group: int) -> int:
        """The offset up to which the index may answer in a group."""
        return self._below.get(group, 0)

    async def span(self, group: int, offset: int, turns: Turns) -> TopicSpan | None:
        """The topics' past in a group; None where the log is to be scanned from `offset` on."""
        if not self._decided:
            self._decided = True
            await self._decide(turns)
        if self._ids is None or offset >= self.below(group):
            return None
        span = self._spans.get(group)
        if span is None:
            span = self._spans[group] = self._led.store.by_topic.span(group, self._ids.get(group, ()), self)
        return span

    def give_up(self) -> None:
        """The index cannot tell: the log is scanned from now on."""
        self._ids = None

    async def _decide(self, turns: Turns) -> None:
        filters = frozenset(self._filters)
        if filters in self._wide:
            return
        reader = self._led.store.by_topic
        self._below = {number: group.applied for number, group in self._led.sequencer.groups.items()}
        most = min(TOPICS_MAX, max(TOPICS_FEW, reader.known() // TOPICS_SHARE))
        looks = LOOKS_A_TOPIC * most
        ids: set[int] = set()
        for topic_filter in self._filters:
            after: bytes | None = None
            while True:
                await turns.give_way()
                step = reader.find(topic_filter, after)
                if step is None:
                    return
                found, after = step
                ids.update([topic.topic_id for topic in found])
                looks -= NAMES_A_STEP if after is not None else len(found)
                if len(ids) > most or looks < 0:
                    self._wide.add(filters)
                    return
                if after is None:
                    break
        self._ids = {}
        for topic_id in ids:
            self._ids.setdefault(group_of(topic_id), []).append(topic_id)
