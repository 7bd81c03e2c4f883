"""The subscriptions of a broker: placed with the coordinators, put into the fan-out, brought up, and ended.

Subscriptions of many subscribers to one filter are one back-end subscription (`filters`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from lexicast.cluster.blocks import Block
from lexicast.cluster.clock import Clock

from ..loop.turns import Turns
from .catching_up.block_cache import BlockCache
from .catching_up.readers import CatchingUp
from .coordinators import Coordinators
from .dictionaries.keeper import DICTIONARIES_FILTER
from .encoding import BlockView, Encoder, Grant
from .fanout import Fan, Fanout
from .filters import Filters
from .live_delivery import LiveDelivery
from .pipelines.pipeline import Pipeline
from .placing import Cuts, Placing
from .retained_feed import RetainedFeed
from .subscriber import Subscriber

# Subscriptions of one subscriber that end in one step.
FILTERS_AT_ONCE = 100


class Subscriptions:
    """See the module's docstring."""

    def __init__(
        self,
        clock: Clock,
        coordinators: Coordinators,
        live: LiveDelivery,
        cache: BlockCache,
        fanout: Fanout,
        encoder: Encoder,
        past_bytes_max: int,
    ) -> None:
        """`past_bytes_max`: of the past that is kept for whoever is brought up."""
        self.coordinators = coordinators
        self.live = live
        self.encoder = encoder
        self.filters = Filters([DICTIONARIES_FILTER], coordinators.pipelines_of, coordinators.ask)
        self._catching_up = CatchingUp(self, cache, live.waiting, past_bytes_max)
        self._clock = clock
        self._fanout = fanout
        self._leaving: set[asyncio.Task[None]] = set()

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
        return self._fanout.fan(topic)

    def view(self, block: Block) -> BlockView:
        """A view of a block, now."""
        return BlockView(block, self._clock.time_us())

    @property
    def now_us(self) -> int:
        """The wall clock's time."""
        return self._clock.time_us()

    def lagged(self, subscriber: Subscriber) -> None:
        """Bring a subscriber up."""
        self._catching_up.start(subscriber)

    def pipeline_of(self, group: int) -> Pipeline | None:
        """The pipeline to the leader of `group`."""
        return self.coordinators.pipeline_of(group)

    def reached(self, group: int, offset: int) -> None:
        """What the group holds from `offset` on comes live."""
        self.live.reached(group, offset)

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
        await self.filters.settled(wanted)
        if subscriber.closed:
            return {}
        fresh = self.filters.hold([name for name in wanted if name not in subscriber.subscriptions])
        placing = Placing(self, subscriber, wanted, fresh, start)
        try:
            return await placing.run()
        except BaseException:
            placing.undo()
            raise
        finally:
            self.filters.placed(fresh)
            if subscriber.closed:
                self.filters.release([name for name in placing.held if name not in placing.inserted])

    def insert(
        self,
        subscriber: Subscriber,
        wanted: Mapping[bytes, Grant],
        begin: Mapping[int, int],
        past: Mapping[int, int],
        behind: Collection[int],
    ) -> None:
        """Subscribe at the heads, or lagging from `begin` on. `past`: from where on it comes live, or came to this
        broker. `behind`: groups whose blocks before the cut are still to come, and may have been chosen before the
        filter was known."""
        if subscriber.closed:
            return
        self._catching_up.leave(subscriber)
        if not subscriber.samples:
            self._lag(subscriber, begin, past, behind)
        subscriber.refresh()
        subscriber.set_filters(wanted)
        self._fanout.insert(wanted, subscriber)
        if subscriber.lagging and not subscriber.blocked:
            self.lagged(subscriber)

    def _lag(
        self, subscriber: Subscriber, begin: Mapping[int, int], past: Mapping[int, int], behind: Collection[int]
    ) -> None:
        heads = self.live.heads
        lagging, pasts, missed_live = subscriber.lagging, subscriber.past, subscriber.missed_live
        if not lagging:
            subscriber.lagging = {g: at for g, at in begin.items() if at != heads.get(g, 0) or g in behind}
            subscriber.past = {g: past[g] for g, at in subscriber.lagging.items() if at < past.get(g, 0)}
            subscriber.missed_live = subscriber.lagging.keys() - subscriber.past.keys()
            return
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

    def unsubscribe(self, subscriber: Subscriber, topic_filter: bytes) -> bool:
        """End a subscription; False when there was none."""
        if not subscriber.drop_filter(topic_filter):
            return False
        self._fanout.remove([topic_filter], subscriber)
        self.filters.release([topic_filter])
        return True

    def leave(self, subscriber: Subscriber) -> None:
        """The subscriber is gone: all its subscriptions end, many of them little by little."""
        subscriber.closed = True
        subscriber.refresh()
        self._catching_up.leave(subscriber)
        gone = list(subscriber.drop_filters())
        if len(gone) <= FILTERS_AT_ONCE:
            self._end(subscriber, gone)
            return
        task = asyncio.get_running_loop().create_task(self._end_slowly(subscriber, gone))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _end(self, subscriber: Subscriber, filters: list[bytes]) -> None:
        self._fanout.remove(filters, subscriber)
        self.filters.release(filters)

    async def _end_slowly(self, subscriber: Subscriber, filters: list[bytes]) -> None:
        turns = Turns()
        for at in range(0, len(filters), FILTERS_AT_ONCE):
            self._end(subscriber, filters[at : at + FILTERS_AT_ONCE])
            await turns.give_way()

    def cursor_of(self, subscriber: Subscriber) -> dict[int, int]:
        """Where the subscriber stands in each group that its subscriptions concern."""
        heads = self.live.heads
        cursor = {group: heads.get(group, 0) for group in self.coordinators.groups_of_all(subscriber.subscriptions)}
        for group in subscriber.lagging.keys() & cursor.keys():
            cursor[group] = subscriber.stands_at(group, cursor[group])
        return cursor

    def retained(self, cuts: Cuts) -> RetainedFeed:
        """What is retained of new subscriptions' topics from before their cuts. Raises UnavailableError."""
        return RetainedFeed(self.coordinators, cuts)

    def close(self) -> None:
        """Place nothing more, bring nobody up any more."""
        self.filters.close()
        for task in self._leaving:
            task.cancel()
        self._catching_up.close()
