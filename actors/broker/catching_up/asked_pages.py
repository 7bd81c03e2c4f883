"""What subscribers with conditions get of a page of the past, found out once for all who catch up with it.

So who returns with a condition costs by what it gets, as everybody does, and not by what it does not want. Records are
decoded once a page (`page_records`), and asked together by those who share a filter (`asked_topics`). What is found out
is kept for the pages asked last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from lexicast.cluster.blocks import Block

from ...loop import turns
from ..content.choosing import BlockChoice, Chosen, granted_by
from ..content.predicate_table import PredicateTable
from ..encoding import BlockView, Encoder, Grant
from ..granted_filters import FILTERS_TRIED
from .asked_topics import AskedTopics
from .page_records import PageRecords
from .pages import Page, block_of_rows

if TYPE_CHECKING:
    from ..subscriber import Subscriber

# How long what could not be read, for the lack of a dictionary, is taken to be so.
UNREAD_KEPT_S: Final = 1.0
# What takes memory: a page that is asked, a block made again.
PAGE_BYTES: Final = 1_000
BLOCK_BYTES: Final = 3_000

# A record by number, and how it is granted.
Granted = tuple[int, Grant]


class AskingBroker(Protocol):
    """The broker, as asked pages need it."""

    encoder: Encoder

    @property
    def predicates(self) -> PredicateTable:
        """The conditions of its subscriptions."""

    @property
    def now_us(self) -> int:
        """The wall clock's time."""


class AskedPage:
    """See the module's docstring."""

    def __init__(self, broker: AskingBroker, page: Page) -> None:
        self.page = page
        self._broker = broker
        self._records = PageRecords(broker.encoder, broker.predicates, page)
        self._block_rows = page.columns.block_rows()
        self._block_firsts = [self._records.firsts[row] for row in self._block_rows]
        self._topics: dict[bytes, AskedTopics] = {}
        self._choices: dict[int, BlockChoice] = {}
        self._choices_bytes = 0
        self._made_s = turns.now_s()

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory, the page included."""
        topics = sum([each.size_bytes for each in self._topics.values()])
        return PAGE_BYTES + self.page.size_bytes + self._records.size_bytes + self._choices_bytes + topics

    @property
    def stale(self) -> bool:
        """Whether it should be asked anew: what could not be read then may be readable now."""
        return self._records.unread and turns.now_s() > self._made_s + UNREAD_KEPT_S

    def granted(self, subscriber: Subscriber, wanted: Iterable[bytes]) -> dict[int, list[Granted]]:
        """What a subscriber gets of these topics from its cursor on: by number of the block, in order, its records."""
        parts: dict[int, tuple[Grant, ...]] = {}
        for name, grants in _sources(subscriber, wanted):
            topics = self._of(name)
            if topics is None:
                continue
            for grant in grants:
                for record in topics.records if grant.where is None else topics.holding(grant.where):
                    parts[record] = (*parts.get(record, ()), grant)
        first = self._records.at(subscriber.lagging[self.page.group])
        found: dict[int, list[Granted]] = {}
        for record in sorted(parts):
            if record >= first:
                block = bisect_right(self._block_firsts, record) - 1
                found.setdefault(block, []).append((record, granted_by(parts[record])))
        return found

    def _of(self, name: bytes) -> AskedTopics | None:
        """The records that a filter matches; None: there are none."""
        topics = self._topics.get(name)
        if topics is None:
            index = self.page.index
            rows = sorted([row for topic in index.match(name) for row in index[topic]])
            if not rows:
                return None
            records = self._records.of_rows(rows)
            topics = self._topics[name] = AskedTopics(self._records, self._broker.predicates, records)
        return topics

    def chosen(self, block: int, granted: Sequence[Granted]) -> Chosen:
        """Records of a block, one or more, as a block of their own, now."""
        choice = self._choices.get(block)
        if choice is None:
            choice = self._choices[block] = self._choice(block)
        first = self._block_firsts[block]
        choice.view.now_us = self._broker.now_us
        return choice.of_picks([(record - first, (grant,)) for record, grant in granted])

    def _choice(self, block: int) -> BlockChoice:
        columns, starts = self.page.columns, self._block_rows
        rows = range(starts[block], starts[block + 1] if block + 1 < len(starts) else len(columns))
        whole = block_of_rows(self.page.group, [columns.row(row) for row in rows])
        choice = BlockChoice(BlockView(whole, 0), self._broker.encoder)
        self._records.unread = self._records.unread or None in choice.payloads
        self._choices_bytes += BLOCK_BYTES + whole.size_bytes
        return choice


def _sources(subscriber: Subscriber, wanted: Iterable[bytes]) -> Iterable[tuple[bytes, tuple[Grant, ...]]]:
    """The filters of a subscriber with their grants: its own, or where it has many the topics themselves."""
    if len(subscriber.subscriptions) <= FILTERS_TRIED:
        return [(name, (grant,)) for name, grant in subscriber.subscriptions.items()]
    grants = [(topic, subscriber.grant(topic)) for topic in wanted]
    return [(topic, grant.any_of or (grant,)) for topic, grant in grants if grant is not None]


class AskedPages:
    """The pages asked last; see the module's docstring. `bytes_max`: of what is kept."""

    def __init__(self, broker: AskingBroker, bytes_max: int) -> None:
        self._broker = broker
        self._bytes_max = bytes_max
        self._bytes = 0
        # In the order in which they were asked last, with what each took as counted last.
        self._asked: dict[Page | Block, tuple[AskedPage, int]] = {}
        self._visited: Page | Block | None = None

    def of(self, page: Page | Block) -> AskedPage:
        """A page, or a block of the broker's cache as one, to be asked in this turn."""
        self._count()
        asked, size = self._asked.pop(page, (None, 0))
        if asked is None or asked.stale:
            self._bytes -= size
            whole = Page(page.group, page.first, page.last + 1, [page]) if isinstance(page, Block) else page
            asked, size = AskedPage(self._broker, whole), 0
        self._asked[page] = asked, size
        self._visited = page
        return asked

    def gone(self, page: Page) -> None:
        """A page is kept no longer."""
        if self._visited is page:
            self._count()
        if (asked := self._asked.pop(page, None)) is not None:
            self._bytes -= asked[1]

    def _count(self) -> None:
        """What the last visit has made."""
        if self._visited is None:
            return
        asked, before = self._asked[self._visited]
        size = asked.size_bytes
        self._asked[self._visited] = asked, size
        self._bytes += size - before
        while self._bytes > self._bytes_max:
            self._bytes -= self._asked.pop(next(iter(self._asked)))[1]
        self._visited = None
