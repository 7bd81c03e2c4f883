"""Pages of the past: parts of groups' logs that a broker has fetched, kept a while for whoever comes by the same place.

A page holds the blocks of one group between two offsets. What it leaves out decides whom it serves: one that leaves
nothing out serves everybody; one of what the broker was interested in, those whose filters were all registered by then;
one of some filters, those who have no others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lexicast.cluster.blocks import Block
from lexicast.cluster.selection import Parts
from lexicast.cluster.topics.names import TopicIndex

if TYPE_CHECKING:
    from ..subscriber import Subscriber

PAGE_BYTES = 400

Places = list[tuple[int, int]]


class Page:
    """See the module's docstring. `filters`: None when it was made for the broker's interest as of `version`."""

    __slots__ = ("_index", "_parts", "blocks", "end", "filters", "first_kept", "group", "start", "version", "whole")

    def __init__(
        self,
        group: int,
        start: int,
        end: int,
        blocks: list[Block],
        *,
        whole: bool = False,
        version: int = 0,
        filters: frozenset[bytes] | None = None,
        first_kept: int = 0,
    ) -> None:
        self.group = group
        self.start = start
        self.end = end
        self.blocks = blocks
        self.whole = whole
        self.version = version
        self.filters = filters
        self.first_kept = first_kept
        self._index: TopicIndex[Places] | None = None
        self._parts: dict[int, Parts] = {}

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return PAGE_BYTES + sum([block.memory_bytes for block in self.blocks])

    def serves(self, version: int, members: Iterable[Subscriber]) -> bool:
        """Whether it lacks nothing that these want, whose filters were all registered as of `version`."""
        if self.whole:
            return True
        filters = self.filters
        if filters is None:
            return self.version >= version
        return all([member.subscriptions.keys() <= filters for member in members])

    @property
    def index(self) -> TopicIndex[Places]:
        """Topic -> where its records are: (block, topic), both by number."""
        if self._index is None:
            self._index = TopicIndex()
            for number, block in enumerate(self.blocks):
                # A part of a block may name topics of which it holds nothing.
                for at in sorted({run.topic for run in block.meta.runs}):
                    self._index.setdefault(block.meta.topics[at], []).append((number, at))
        return self._index

    def places(self, topics: Iterable[bytes]) -> dict[int, list[int]]:
        """Block -> which of its topics these are, both by number; in ascending order for a single topic."""
        found: dict[int, list[int]] = {}
        index = self.index
        for topic in topics:
            for number, at in index[topic]:
                found.setdefault(number, []).append(at)
        return found

    def part(self, number: int, topics: tuple[int, ...]) -> Block:
        """The records of a block's topics, given by number in ascending order."""
        block = self.blocks[number]
        if len(topics) == len(block.meta.topics):
            return block
        parts = self._parts.get(number)
        if parts is None:
            parts = self._parts[number] = Parts(block)
        return parts.of(topics)


class PageCache:
    """The pages fetched most recently, at most `bytes_max` of them."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._order: deque[tuple[Page, int]] = deque()
        self._pages: dict[int, deque[Page]] = {}

    def add(self, page: Page) -> None:
        """Keep a page; the oldest go."""
        size = page.size_bytes
        self._order.append((page, size))
        self._pages.setdefault(page.group, deque()).append(page)
        self._bytes += size
        while self._bytes > self._bytes_max and len(self._order) > 1:
            oldest, size = self._order.popleft()
            self._pages[oldest.group].popleft()
            self._bytes -= size

    def find(self, group: int, offset: int, version: int, members: Iterable[Subscriber]) -> Page | None:
        """A page that holds `offset` and serves these."""
        for page in reversed(self._pages.get(group, ())):
            if page.start <= offset < page.end and page.serves(version, members):
                return page
        return None
