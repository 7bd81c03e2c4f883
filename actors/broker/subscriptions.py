"""The subscriptions of a broker: placed with the coordinators, put into the fan-out, brought up, and ended.

Subscriptions of many subscribers to one filter are one back-end subscription (`filters`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from lexicast.cluster.blocks import Block
from lexicast.cluster.clock import Clock

from .beginnings import Beginning, Beginnings
from .catching_up.block_cache import BlockCache
from .catching_up.readers import CatchingUp
from .content.content_fanout import ContentFanout
from .content.predicate_table import PredicateTable
from .coordinators import Coordinators
from .dictionaries.keeper import DICTIONARIES_FILTER
from .encoding import BlockView, Encoder, Grant
from .fanout import Fan, Fanout
from .feeds.retained_feed import RetainedFeed
from .filters import Filters
from .live_delivery import LiveDelivery
from .matching.choosing_filters import ChoosingFilters
from .matching.event_columns import EventColumns
from .matching.told_conditions import ToldConditions
from .pipelines.pipeline import Pipeline
from .placing import FILTERS_AT_ONCE, Cuts, Placing
from .subscriber import Subscriber


# More than 25 methods: seven are what those ask of it who place, bring up and give.
class Subscriptions:
    """See the module's docstring."""

    def __init__(
        self,
        clock: Clock,
        coordinators: Coordinators,
        live: LiveDelivery,
        cache: BlockCache,
        fanout: Fanout,
        content: ContentFanout,
        encoder: Encoder,
        past_bytes_max: int,
        event_columns: EventColumns | None = None,
    ) -> None:
        """`past_bytes_max`: of the past that is kept for whoever is brought up; `event_columns`: None where there are
        no matchers."""
        self.coordinators = coordinators
        self.live = live
        self.encoder = encoder
        self.beginnings = Beginnings(live.heads)
        self.filters = Filters([DICTIONARIES_FILTER], coordinators.pipelines_of, coordinators.ask, coordinators)
        self._catching_up = CatchingUp(self, cache, live.waiting, past_bytes_max)
        self._clock = clock
        self._fanout = fanout
        self._content = content
        # What matchers and coordinators are told of conditions.
        self.told_conditions = ToldConditions(event_columns) if event_columns is not None else None
        self.choosing = self._choosing()
        self._leaving: set[asyncio.Task[None]] = set()
        self._held_back: set[Subscriber] = set()

    def _choosing(self) -> ChoosingFilters | None:
        told, pipelines = self.told_conditions, self.coordinators.pipelines
        return None if told is None else ChoosingFilters(told, self.filters, pipelines.values)

    # -- what subscribers that lag need (`SubscriberBroker`), and who brings them up

    @property
    def version(self) -> int:
        """The version of the broker's interest."""
        return self.filters.version

    def version_of(self, subscriber: Subscriber) -> int:
        """By which version of the interest all its filters were registered."""
        return self.filters.version_of(subscriber.subscriptions)

    def fan(self, topic: bytes) -> Fan:
        """The subscribers of a topic."""
        fan = self._fanout.fan(topic)
        return (*fan, *self._content.subscribers(topic)) if self._content else fan

    def view(self, block: Block) -> BlockView:
        """A view of a block, now."""
        return BlockView(block, self._clock.time_us())

    @property
    def now_us(self) -> int:
        """The wall clock's time."""
        return self._clock.time_us()

    @property
    def predicates(self) -> PredicateTable:
        """The conditions of all subscriptions."""
        return self._content.predicates

    def lagged(self, subscriber: Subscriber) -> None:
        """Bring a subscriber up."""
        if subscriber not in self._held_back:
            self._catching_up.start(subscriber)

    def pipeline_of(self, group: int) -> Pipeline | None:
        """The pipeline to the leader of `group`."""
        return self.coordinators.pipeline_of(group)

    def reached(self, group: int, offset: int) -> None:
        """What the group holds from `offset` on comes live."""
        self.live.reached(group, offset)

    def head(self, group: int) -> int | None:
        """Up to where the group has been delivered here; None where that is not known yet."""
        return self.live.heads.get(group)

    @property
    def catching_up(self) -> int:
        """Subscribers that are being brought up from the store."""
        return self._catching_up.running

    # -- placed and ended

    async def subscribe(
        self, subscriber: Subscriber, wanted: Mapping[bytes, Grant], *, start: dict[int, int] | None = None
    ) -> Cuts:
        """Subscribe from now on, or from `start` (group -> offset) on. Returns the cut of each filter: what is retained
        from before it is to be asked for with `retained`.

        Raises UnavailableError when a coordinator cannot be reached within `link.request_timeout_s`.
        """
        return await Placing(self, subscriber, start).run(wanted)

    def insert(self, subscriber: Subscriber, wanted: Mapping[bytes, Grant], beginning: Beginning) -> None:
        """Put filters into the fan-out: they begin."""
        if subscriber.closed:
            return
        self._catching_up.leave(subscriber)
        if not subscriber.samples:
            self._lag(subscriber, beginning)
        subscriber.refresh()
        self.enter(subscriber, wanted)
        if subscriber.lagging and not subscriber.blocked:
            self.lagged(subscriber)

    def _lag(self, subscriber: Subscriber, beginning: Beginning) -> None:
        if not subscriber.lagging:
            subscriber.lagging, subscriber.past, subscriber.missed_live = self.beginnings.lagging(beginning)
            return
        begin, past, behind = beginning
        heads = self.live.heads
        lagging, pasts, missed_live = subscriber.lagging, subscriber.past, subscriber.missed_live
        for group, offset in begin.items():
            at = lagging.get(group, offset)
            if at > offset:
                at = offset
            if at != heads.get(group, 0) or group in behind:
                lagging[group] = at
                # The cache may lack what these filters add.
                if at < past.get(group, 0):
                    missed_live.discard(group)
                    pasts[group] = past[group]
                elif group not in pasts:
                    missed_live.add(group)

    def enter(self, subscriber: Subscriber, wanted: Mapping[bytes, Grant]) -> None:
        """Put filters into the fan-out, as they are."""
        subscriber.set_filters(wanted)
        if self.choosing is not None:
            self.choosing.entered(subscriber, wanted)
        if subscriber in self._content:
            self._content.insert(wanted, subscriber)
        elif any([grant.where is not None for grant in wanted.values()]):
            # All that it has: what overlaps is delivered once.
            self._fanout.remove(subscriber.subscriptions, subscriber)
            self._content.insert(subscriber.subscriptions, subscriber)
        else:
            self._fanout.insert(wanted, subscriber)

    def _remove(self, filters: Collection[bytes], subscriber: Subscriber) -> None:
        if subscriber in self._content:
            self._content.remove(filters, subscriber)
        else:
            self._fanout.remove(filters, subscriber)

    @contextmanager
    def held_back(self, subscriber: Subscriber, begin: Mapping[int, int]) -> Iterator[None]:
        """While filters of a subscriber `enter` in several turns: in all groups that they concern it stands where they
        begin, gets nothing and is not brought up, or it would miss what the others match. `insert` follows in the turn
        in which this ends."""
        self._catching_up.leave(subscriber)
        lagging = subscriber.lagging
        stood = {group: lagging[group] for group in begin if group in lagging}
        for group, offset in begin.items():
            lagging[group] = min(offset, stood.get(group, offset))
        subscriber.refresh()
        self._held_back.add(subscriber)
        try:
            yield
        finally:
            self._held_back.discard(subscriber)
            for group in begin:
                subscriber.lagging.pop(group, None)
            subscriber.lagging.update(stood)

    def unsubscribe(self, subscriber: Subscriber, topic_filter: bytes) -> bool:
        """End a subscription; False when there was none."""
        if not subscriber.drop_filter(topic_filter):
            return False
        self._remove([topic_filter], subscriber)
        self.release(subscriber, [topic_filter])
        return True

    def release(self, subscriber: Subscriber, filters: Collection[bytes]) -> list[asyncio.Future[None]]:
        """The subscriber has these no more, in the fan-out or anywhere: see `Filters.release`."""
        answers = self.filters.release(filters)
        if self.choosing is not None:
            self.choosing.released(subscriber, filters)
        return answers

    async def unsubscribe_all(self, subscriber: Subscriber, filters: Sequence[bytes]) -> None:
        """The same of many, little by little: as many at a time as make a turn here and at the coordinators."""
        for at in range(0, len(filters), FILTERS_AT_ONCE):
            dropped = [name for name in filters[at : at + FILTERS_AT_ONCE] if subscriber.drop_filter(name)]
            answers = self._end(subscriber, dropped)
            if at + FILTERS_AT_ONCE < len(filters):
                await _taken(answers)

    def _end(self, subscriber: Subscriber, filters: Collection[bytes]) -> list[asyncio.Future[None]]:
        # Some it may have again by now, where they end little by little.
        again = subscriber.subscriptions
        self._remove([name for name in filters if name not in again], subscriber)
        return self.release(subscriber, filters)

    def leave(self, subscriber: Subscriber) -> None:
        """The subscriber is gone: all its subscriptions end, many of them little by little."""
        subscriber.closed = True
        subscriber.refresh()
        self._catching_up.leave(subscriber)
        self._end_soon(subscriber, list(subscriber.drop_filters()))

    def give_up(self, subscriber: Subscriber, filters: Collection[bytes]) -> None:
        """End subscriptions that could not all be placed, many of them little by little."""
        self._end_soon(subscriber, [name for name in filters if subscriber.drop_filter(name)])

    def _end_soon(self, subscriber: Subscriber, gone: list[bytes]) -> None:
        if len(gone) <= FILTERS_AT_ONCE:
            self._end(subscriber, gone)
            return
        task = asyncio.get_running_loop().create_task(self._end_slowly(subscriber, gone))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _end_slowly(self, subscriber: Subscriber, filters: list[bytes]) -> None:
        for at in range(0, len(filters), FILTERS_AT_ONCE):
            await _taken(self._end(subscriber, filters[at : at + FILTERS_AT_ONCE]))

    def cursor_of(self, subscriber: Subscriber) -> dict[int, int]:
        """Where the subscriber stands in each group that its subscriptions concern."""
        heads = self.live.heads
        cursor = {group: heads.get(group, 0) for group in self.coordinators.groups_of_all(subscriber.subscriptions)}
        for group in subscriber.lagging.keys() & cursor.keys():
            cursor[group] = subscriber.stands_at(group, cursor[group])
        return cursor

    def retained(self, cuts: Cuts) -> RetainedFeed:
        """What is retained of new subscriptions' topics from before their cuts."""
        return RetainedFeed(self.coordinators, cuts)

    def close(self) -> None:
        """Place nothing more, bring nobody up any more."""
        self.filters.close()
        if self.choosing is not None:
            self.choosing.close()
        for task in self._leaving:
            task.cancel()
        self._catching_up.close()


async def _taken(answers: list[asyncio.Future[None]]) -> None:
    """Wait for these, and give way."""
    if answers:
        await asyncio.wait(answers)
    await asyncio.sleep(0)
