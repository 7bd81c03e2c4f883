"""Bringing lagging subscribers up: from the broker's cache of recent blocks, else from the coordinators' stores.

The cache holds what was delivered to this broker most recently, so a subscriber that only paused (a full socket, a
used-up window) is brought up within one turn and without asking anybody.

A longer absence is fetched, once for all. In each group the laggards stand at offsets (`Stand`); whoever comes joins
those that stand where it left. One reader a group takes the lowest stand, finds or fetches the page of the past that
begins there (`pages`), gives each member what it wants of it, and moves the whole stand to the page's end, where it
meets others. A member whose socket or window is full stays where it is, with a cursor of its own, and joins again
later. So a page costs by the messages that members get and by its topics, never members times topics; a group in which
nothing was missed costs a member nothing but its place.

Both ways end with the group live again in the very turn in which its last missing block was taken, so nothing falls
between. Nothing takes longer than a few ms: the event loop goes on after each TURN_S.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import LexicastError, UnavailableError

from ...loop.turns import Turns
from ..dictionaries.waiting_blocks import WaitingBlocks
from ..encoding import BlockView, Encoder
from ..pipelines.pipeline import Pipeline
from ..subscriber import Subscriber
from .delivery import PageDelivery, Wanted
from .packets import PacketsCache
from .pages import Page, PageCache

if TYPE_CHECKING:
    from ..fanout import Fan

log = logging.getLogger(__name__)

FETCH_BYTES = 256 * 1024
RETRY_S = 0.05
# With so many filters among them laggards are fetched for by name; for more, by all that the broker is subscribed to.
NARROW_FILTERS = 64
LIVE_AT_ONCE = 1_000


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

    def reached(self, group: int, head: int) -> None:
        """Everything of the group before `head` that concerns this broker has been delivered."""
        self._complete_from.setdefault(group, head)
        self._complete_to[group] = max(head, self._complete_to.get(group, head))

    def end(self, group: int) -> int:
        """Up to where `since` is complete."""
        return self._complete_to.get(group, 0)

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


class Stand:
    """Laggards that stand at one offset of a group.

    `past`: from where on the cache will do for all of them; `version`: by which all their filters were registered.
    """

    __slots__ = ("members", "offset", "past", "version")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.members: set[Subscriber] = set()
        self.past = 0
        self.version = 0


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

    def view(self, block: Block) -> BlockView:
        """A view of a block, now."""


class CatchingUp:
    """All subscribers of a broker that lag."""

    def __init__(self, broker: CatchUpBroker, cache: BlockCache, stalled: WaitingBlocks, bytes_max: int) -> None:
        """`bytes_max`: of the pages kept, and as much of what was made of them."""
        self._broker = broker
        self._cache = cache
        self._stalled = stalled
        self._pages = PageCache(bytes_max)
        self._packets = PacketsCache(broker, bytes_max)
        self._stands: dict[int, dict[int, Stand]] = {}
        # Groups whose reader can go on; those whose page has to be fetched, by coordinator.
        self._due: dict[int, None] = {}
        self._needed: dict[Pipeline, dict[int, Stand]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._fetching: dict[Pipeline, asyncio.Task[None]] = {}
        self._closed = False

    @property
    def running(self) -> int:
        """Subscribers that are being brought up from the store."""
        stands = [stand for of_group in self._stands.values() for stand in of_group.values()]
        return len(set().union(*[stand.members for stand in stands]))

    # -- laggards come and go

    def start(self, subscriber: Subscriber) -> None:
        """The subscriber lags and nothing is in its way: bring it up."""
        if subscriber.closed or self._closed:
            return
        self._from_cache(subscriber)
        if subscriber.lagging and not subscriber.blocked:
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
                if not subscriber.take(block):
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
        for group, stand in subscriber.riding.items():
            subscriber.lagging[group] = max(stand.offset, subscriber.lagging.get(group, 0))
            stand.members.discard(subscriber)
        subscriber.riding.clear()

    def close(self) -> None:
        """Bring nobody up any more."""
        self._closed = True
        for task in [self._reading, *self._fetching.values()]:
            if task is not None:
                task.cancel()

    # -- one reader a group

    def _wake(self, group: int) -> None:
        self._due[group] = None
        if self._reading is None and not self._closed:
            self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        turns = Turns()
        try:
            while self._due:
                group = next(iter(self._due))
                del self._due[group]
                try:
                    if await self._step(group, turns):
                        self._due[group] = None
                except Exception:  # the other groups go on, and this one is tried again
                    log.exception("group %d: who lags there cannot be brought up now", group)
                    self._wake_later(group)
                await turns.give_way()
        finally:
            self._reading = None

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
            self._need(group, lacking)
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
        making = PageDelivery(self._broker, page, self._packets.of(page))
        for subscriber, wanted in wanting.items():
            # Unless it has left meanwhile, or subscribed to something else.
            if subscriber.riding.get(group) is apart:
                del subscriber.riding[group]
                if subscriber.blocked:
                    continue
                if self._given(making, page, subscriber, wanted):
                    subscriber.lagging[group] = page.end
                    self._join(subscriber, group, version)
                else:
                    subscriber.yield_turn(group)
                await turns.give_way()

    @staticmethod
    def _given(making: PageDelivery, page: Page, subscriber: Subscriber, wanted: Wanted) -> bool:
        """`PageDelivery.give`. What cannot be delivered costs itself, as it does live: else nobody would pass it."""
        try:
            return making.give(subscriber, wanted)
        except Exception:
            log.exception(
                "group %d: offsets %d to %d cannot be delivered to %r", page.group, page.start, page.end, subscriber
            )
            return True

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
        index, members, blocks, offset = page.index, stand.members, page.blocks, stand.offset
        found: dict[Subscriber, Wanted] = {}
        if not len(index):
            return found

        def add(subscriber: Subscriber, topic: bytes) -> None:
            number, _ = index[topic][-1]
            if blocks[number].last >= offset:
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

    # -- fetching pages

    def _need(self, group: int, stand: Stand) -> None:
        pipeline = self._broker.pipeline_of(group)
        if pipeline is None:
            self._wake_later(group)
            return
        self._needed.setdefault(pipeline, {})[group] = stand
        if pipeline not in self._fetching:
            self._fetching[pipeline] = asyncio.get_running_loop().create_task(self._fetch_all(pipeline))

    def _wake_later(self, group: int) -> None:
        if not self._closed:
            asyncio.get_running_loop().call_later(RETRY_S, self._wake, group)

    async def _fetch_all(self, pipeline: Pipeline) -> None:
        try:
            await asyncio.sleep(0)  # the other groups of this turn
            while needed := self._needed.pop(pipeline, None):
                try:
                    await self._fetch(pipeline, needed)
                except Exception as error:
                    if not isinstance(error, LexicastError):
                        log.exception("a page of %s could not be taken", pipeline.member.name)
                    for group in needed:
                        self._wake_later(group)
                if not self._closed:
                    await asyncio.sleep(0)
        finally:
            del self._fetching[pipeline]

    async def _fetch(self, pipeline: Pipeline, needed: dict[int, Stand]) -> None:
        """One page of each group, as far as they fit into one answer."""
        cursor = {group: stand.offset for group, stand in needed.items() if stand.members}
        filters, version = self._narrow(needed), self._broker.version
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None, result: Any) -> None:
            try:
                if error is None:
                    self._take(cursor, filters, version, result)
            except LexicastError as bad:
                error = bad
            except Exception as bad:
                error = UnavailableError(f"an answer could not be taken: {bad!r}")
                raise
            finally:
                # Whatever happens: nobody else would ever go on with these groups.
                if not answered.done():
                    answered.set_result(None) if error is None else answered.set_exception(error)

        pipeline.call(done, "fetch", cursor, None if filters is None else sorted(filters), FETCH_BYTES)
        await answered

    @staticmethod
    def _narrow(needed: dict[int, Stand]) -> frozenset[bytes] | None:
        """The filters of all that wait, where these are few."""
        filters: set[bytes] = set()
        seen: set[Subscriber] = set()
        for stand in needed.values():
            for subscriber in stand.members:
                if subscriber not in seen:
                    seen.add(subscriber)
                    filters.update(subscriber.subscriptions)
                    if len(filters) > NARROW_FILTERS:
                        return None
        return frozenset(filters)

    def _take(
        self, cursor: dict[int, int], filters: frozenset[bytes] | None, version: int, result: dict[str, Any]
    ) -> None:
        """An answer to `fetch`, while it is taken off the link. Raises UnavailableError when it must be asked again."""
        blocks: dict[int, list[Block]] = {}
        for wire in result["blocks"]:
            block = Block.from_wire(wire)
            blocks.setdefault(block.group, []).append(block)
        if self._stalled.missing([block for found in blocks.values() for block in found]):
            raise UnavailableError("a dictionary has to be fetched first")
        whole, live, first = set(result["whole"]), set(result["live"]), result["first"]
        for group, start in cursor.items():
            end = result["cursor"].get(group)
            if end is None:
                self._wake(group)  # it did not fit in
                continue
            if end > start:
                page = Page(
                    group,
                    start,
                    end,
                    blocks.get(group, []),
                    whole=group in whole,
                    version=version,
                    filters=filters,
                    first_kept=first.get(group, 0),
                )
                self._pages.add(page)
            if group in live and group not in self._stalled:
                self._broker.reached(group, end)
            if end > start or (group in live and group not in self._stalled):
                self._wake(group)
            else:
                self._wake_later(group)  # the broker itself is being brought up there, or waits for a dictionary
