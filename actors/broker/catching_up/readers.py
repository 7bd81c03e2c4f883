"""Bringing lagging subscribers up: from the broker's cache of recent blocks, else from the coordinators' stores.

The cache holds what was delivered to this broker most recently, so a subscriber that only paused (a full socket, a
used-up window) is brought up within one turn and without asking anybody.

A longer absence is fetched, once for all. What is not too long is had at hand, indexed by topic, and given at once to
each that returns (`returning`). What is too long for that is read page by page. In each group the laggards stand at
offsets (`Stand`); whoever comes joins those that stand where it left. One reader a group takes the lowest stand, finds
or fetches the page of the past that begins there (`pages`), gives each member what it wants of it, and moves the whole
stand to the page's end, where it meets others. A member whose socket or window is full stays where it is, with a cursor
of its own, and joins again later. So a page costs by the messages that members get and by its topics, never members
times topics.

All ways end with the group live again in the very turn in which its last missing block was taken, so nothing falls
between. Nothing takes longer than a few ms: the event loop goes on after each TURN_S.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from lexicast.cluster.blocks import Block

from ...loop.turns import Turns
from ..content.predicate_table import PredicateTable
from ..dictionaries.waiting_blocks import WaitingBlocks
from ..encoding import BlockView, Encoder
from ..pipelines.pipeline import Pipeline
from ..subscriber import Subscriber
from .at_hand import AtHand
from .block_cache import BlockCache
from .delivery import Deliveries, Wanted, given
from .fetching import PageFetching
from .pages import Page, PageCache, Stand
from .returning import ReturningSubscribers

if TYPE_CHECKING:
    from ..fanout import Fan

log = logging.getLogger(__name__)

RETRY_S = 0.05
LIVE_AT_ONCE = 1_000
# What is fetched for those that are given all at once is at most this part of the pages that may be kept.
AT_ONCE_SHARE = 2


class CatchUpBroker(Protocol):
    """The broker, as catching up needs it."""

    encoder: Encoder

    def pipeline_of(self, group: int) -> Pipeline | None:
        """The pipeline to the leader of `group`."""

    def fan(self, topic: bytes) -> Fan:
        """The subscribers of a topic."""

    def version_of(self, subscriber: Subscriber) -> int:
        """By which version of the broker's interest all its filters were registered."""

    @property
    def version(self) -> int:
        """The version of the broker's interest."""

    def reached(self, group: int, offset: int) -> None:
        """What the group holds from `offset` on comes live."""

    def head(self, group: int) -> int | None:
        """Up to where the group has been delivered here; None where that is not known yet."""

    def view(self, block: Block) -> BlockView:
        """A view of a block, now."""

    @property
    def now_us(self) -> int:
        """The wall clock's time."""

    @property
    def predicates(self) -> PredicateTable:
        """The conditions of all subscriptions."""


class CatchingUp:
    """All subscribers of a broker that lag."""

    def __init__(self, broker: CatchUpBroker, cache: BlockCache, waiting: WaitingBlocks, bytes_max: int) -> None:
        """`bytes_max`: of the pages kept, and three times as much of what was made of them."""
        self._broker = broker
        self._cache = cache
        self._pages = PageCache(bytes_max)
        self._deliveries = Deliveries(broker, bytes_max)
        self._stands: dict[int, dict[int, Stand]] = {}
        # Groups whose reader can go on.
        self._due: dict[int, None] = {}
        self._reading: asyncio.Task[None] | None = None
        self._closed = False
        self._fetching = PageFetching(broker, waiting, self._took, self._go_on, self._not_now)
        self._at_hand = at_hand = AtHand(cache, self._pages)
        self._pages.gone = self._gone
        self._returning = ReturningSubscribers(
            broker, at_hand, self._deliveries, self._fetching.need, self._join_all, bytes_max // AT_ONCE_SHARE
        )

    @property
    def running(self) -> int:
        """Subscribers that are being brought up from the store."""
        stands = [stand for of_group in self._stands.values() for stand in of_group.values()]
        return len(self._returning.waiting.union(*[stand.members for stand in stands]))

    # -- laggards come and go

    def start(self, subscriber: Subscriber) -> None:
        """The subscriber lags and nothing is in its way: bring it up."""
        if subscriber.closed or self._closed:
            return
        if subscriber.missed_live:
            self._from_cache(subscriber)
        if subscriber.lagging and not subscriber.blocked:
            if subscriber.riding:
                self._join_all(subscriber)
            else:
                self._returning.add(subscriber)
                self._wake_reader()

    def _join_all(self, subscriber: Subscriber) -> None:
        if subscriber.closed or subscriber.blocked:
            return
        version = self._broker.version_of(subscriber)
        for group in subscriber.lagging:
            if group not in subscriber.riding:
                self._join(subscriber, group, version)

    def _from_cache(self, subscriber: Subscriber) -> None:
        for group in [g for g in subscriber.lagging if g in subscriber.missed_live and g not in subscriber.riding]:
            blocks = self._cache.since(group, subscriber.lagging[group])
            if blocks is None:
                continue
            for block in blocks:
                if not self._deliveries.give_block(block, subscriber):
                    subscriber.yield_turn(group)
                    return
            subscriber.caught_up(group)

    def _join(self, subscriber: Subscriber, group: int, version: int) -> None:
        stands = self._stands.setdefault(group, {})
        offset = subscriber.lagging[group]
        stand = stands.get(offset)
        if stand is None:
            stand = stands[offset] = Stand(offset)
        stand.members.add(subscriber)
        stand.past = max(stand.past, subscriber.past.get(group, 0))
        stand.version = max(stand.version, version)
        subscriber.riding[group] = stand
        self._wake(group)

    def leave(self, subscriber: Subscriber) -> None:
        """The subscriber is gone, or wants something else: it stands nowhere, with cursors of its own."""
        self._returning.leave(subscriber)
        for group, stand in subscriber.riding.items():
            subscriber.lagging[group] = max(stand.offset, subscriber.lagging.get(group, 0))
            stand.members.discard(subscriber)
        subscriber.riding.clear()

    def close(self) -> None:
        """Bring nobody up any more."""
        self._closed = True
        self._fetching.close()
        if self._reading is not None:
            self._reading.cancel()

    # -- one reader a group

    def _wake(self, group: int) -> None:
        self._due[group] = None
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._reading is None and not self._closed:
            self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        turns = Turns()
        try:
            while self._due or self._returning.due:
                self._returning.step(turns)
                if self._due:
                    await self._go_on_with(next(iter(self._due)), turns)
                await turns.give_way()
        finally:
            self._reading = None

    async def _go_on_with(self, group: int, turns: Turns) -> None:
        del self._due[group]
        try:
            if await self._step(group, turns):
                self._due[group] = None
        except Exception:  # the other groups go on, and this one is tried again
            log.exception("group %d: who lags there cannot be brought up now", group)
            self._wake_later(group)

    async def _step(self, group: int, turns: Turns) -> bool:
        """One page for the lowest stand that can have one. False when there is none now."""
        stands = self._stands.get(group, {})
        lacking: Stand | None = None
        for offset in sorted(stands):
            stand = stands[offset]
            if not stand.members:
                del stands[offset]
                continue
            page = self._page(group, stand)
            if page is not None and page.end == offset:
                self._live(stand, stands, group)
                return True
            if page is not None:
                await self._serve(page, stand, stands, turns)
                return True
            lacking = lacking or stand
        if lacking is not None:
            self._fetching.need(group, lacking)
        return False

    def _page(self, group: int, stand: Stand) -> Page | None:
        """What comes next, if it is at hand; a page without extent when that is nothing."""
        if stand.offset >= stand.past:
            recent = self._cache.since(group, stand.offset)
            if recent is not None:
                end = self._cache.end(group) if recent else stand.offset
                return Page(group, stand.offset, end, recent)
        return self._pages.find(group, stand.offset, stand.version, stand.members)

    @staticmethod
    def _live(stand: Stand, stands: dict[int, Stand], group: int) -> None:
        """Nothing came after where these stand: they are live."""
        members = stand.members
        some = members if len(members) <= LIVE_AT_ONCE else set(islice(members, LIVE_AT_ONCE))
        stand.members = members - some
        for subscriber in some:
            subscriber.riding.pop(group, None)
            subscriber.caught_up(group)
        if not stand.members:
            del stands[stand.offset]

    async def _serve(self, page: Page, stand: Stand, stands: dict[int, Stand], turns: Turns) -> None:
        group, offset = page.group, stand.offset
        if page.first_kept > offset:
            for subscriber in stand.members:
                subscriber.lagging[group] = offset
                subscriber.discarded(group, page.first_kept)
        wanting = self._wanting(page, stand)
        apart = Stand(offset)
        for subscriber in wanting:
            stand.members.discard(subscriber)
            subscriber.riding[group] = apart
            subscriber.lagging[group] = offset
        version = stand.version
        self._advance(stand, stands, page.end, group)
        making = self._deliveries.of(page)
        for subscriber, wanted in wanting.items():
            # Unless it has left meanwhile, or subscribed to something else.
            if subscriber.riding.get(group) is apart:
                del subscriber.riding[group]
                if subscriber.blocked:
                    continue
                if given(making, page, subscriber, wanted):
                    subscriber.lagging[group] = page.end
                    self._join(subscriber, group, version)
                else:
                    subscriber.yield_turn(group)
                await turns.give_way()

    @staticmethod
    def _advance(stand: Stand, stands: dict[int, Stand], end: int, group: int) -> None:
        """Move all that stand there to `end`."""
        del stands[stand.offset]
        if not stand.members:
            return
        other = stands.get(end)
        stand.offset = end
        if other is not None:
            if len(other.members) > len(stand.members):
                stand, other = other, stand
            for subscriber in other.members:
                subscriber.riding[group] = stand
            stand.members |= other.members
            stand.past, stand.version = max(stand.past, other.past), max(stand.version, other.version)
        stands[end] = stand

    def _wanting(self, page: Page, stand: Stand) -> dict[Subscriber, Wanted]:
        """Who wants something of the page: looked up by filter or by topic, whichever there are fewer of."""
        index, members, offset = page.index, stand.members, stand.offset
        found: dict[Subscriber, Wanted] = {}
        if not len(index):
            return found

        def add(subscriber: Subscriber, topic: bytes) -> None:
            if page.reaches(topic, offset):
                found.setdefault(subscriber, {})[topic] = None

        filters = 0
        for subscriber in members:
            filters += len(subscriber.subscriptions)
            if filters > len(index):
                break
        if filters <= len(index):
            for subscriber in members:
                for topic_filter in subscriber.subscriptions:
                    for topic in index.match(topic_filter):
                        add(subscriber, topic)
        else:
            for topic in index:
                for subscriber, _ in self._broker.fan(topic):
                    if subscriber in members:
                        add(subscriber, topic)
        return found

    # -- pages come

    def _gone(self, page: Page) -> None:
        self._at_hand.gone(page)
        self._deliveries.gone(page)

    def _took(self, page: Page) -> None:
        if page.end > page.start:
            self._pages.add(page)
        self._at_hand.add(page)
        self._returning.took(page)

    def _go_on(self, group: int) -> None:
        self._returning.go_on(group)
        self._wake(group)

    def _not_now(self, group: int) -> None:
        self._returning.failed(group)
        self._wake_reader()
        self._wake_later(group)

    def _wake_later(self, group: int) -> None:
        if not self._closed:
            asyncio.get_running_loop().call_later(RETRY_S, self._wake, group)
