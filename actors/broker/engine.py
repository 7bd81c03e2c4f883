"""The engine of a broker: between its listeners (MQTT, Python clients) and its pipelines to the coordinators.

Inwards `publish` routes publications to the pipeline of their topic's group. Outwards `on_blocks` gives each block to
the fan-out and the cache. Subscriptions of many subscribers to one filter are one back-end subscription. `heads`
says, group by group, up to where everything that concerns this broker has been delivered: the cursor of whoever is
live.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any

from lexicast.cluster.blocks import Block
from lexicast.cluster.clock import Clock
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import DictionaryError, UnavailableError
from lexicast.cluster.membership import Member
from lexicast.cluster.positions import topic_group
from lexicast.cluster.protocol.requests import BROKER
from lexicast.cluster.protocol.shapes import check_request
from lexicast.cluster.topics.names import is_wildcard
from lexicast.compression.codecs import payload_bytes_max
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.wire import AliasTable, Recoder

from ..link.link import Link
from ..loop.turns import Turns
from .catching_up.readers import BlockCache, CatchingUp
from .dictionary_keeper import DICTIONARIES_FILTER, DictionaryKeeper
from .encoding import BlockView, Encoder, Grant
from .entries import Done, SealedEntry
from .fanout import Fan, Fanout
from .filters import Filters, concerns_all, gathered
from .pipeline import Pipeline
from .placing import Cuts, Placing
from .retained_feed import RetainedFeed
from .storing import Storing
from .streaming import Streamer
from .subscriber import Subscriber
from .waiting_for_dictionaries import WaitingBlocks

log = logging.getLogger(__name__)

# Subscriptions of one subscriber that end in one step.
FILTERS_AT_ONCE = 100
OFFSET_END = 1 << 63


class BrokerEngine:
    """See the module's docstring. `requests`: what coordinators may ask of this broker, by method name."""

    def __init__(self, name: str, incarnation: int, groups: int, config: Config, clock: Clock) -> None:
        self.name = name
        self.incarnation = incarnation
        self.groups = groups
        self.config = config
        self.clock = clock
        self.heads: dict[int, int] = {}
        self.pipelines: dict[str, Pipeline] = {}
        self.requests: dict[str, Callable[..., Awaitable[Any]]] = {}
        # Told when a link stands (again).
        self.resumed: Callable[[Pipeline], None] = lambda pipeline: None
        self.room: Callable[[], None] = lambda: None
        self.published_records = 0
        self.delivered_records = 0
        # Blocks that a defect, here or in whoever made them, kept from some subscribers.
        self.undeliverable = 0
        self.recoder = Recoder(payload_bytes_max=payload_bytes_max(config.mqtt.packet_bytes_max))
        self.aliases = AliasTable()
        opted_out = [name.encode() for name in config.compression.optout]
        self.dictionaries = DictionaryKeeper(self.recoder, clock, opted_out)
        self.encoder = Encoder(self.recoder, self.aliases, self.dictionaries.newest, self.dictionaries.opted_out)
        self.storing = self._storing(config)
        self.streamer = self._streamer(config)
        self.fanout = Fanout(config.broker.routes_max, self.streamer)
        self._cache = BlockCache(config.broker.cache_bytes_max)
        self._stalled = WaitingBlocks(
            self.dictionaries, self.fetch_dictionary, lambda block: self._deliver(block, self.clock.time_us())
        )
        self.catching_up = CatchingUp(self, self._cache, self._stalled, config.broker.cache_bytes_max)
        self.filters = Filters([DICTIONARIES_FILTER], self.pipelines_of, self.ask)
        self._leaving: set[asyncio.Task[None]] = set()
        self._by_group: dict[int, Pipeline] = {}
        self._routes: dict[bytes, tuple[int, Pipeline]] = {}

    def _storing(self, config: Config) -> Storing:
        """What compresses publications of plain clients for the log."""
        compression = config.compression
        cpu_percent = compression.stored_cpu_percent if compression.enabled else 0
        return Storing(self.recoder, self.dictionaries.newest, cpu_percent)

    def _streamer(self, config: Config) -> Streamer | None:
        """What makes topic streams; None: they are turned off."""
        compression = config.compression
        if not (compression.enabled and compression.stream_records_per_s):
            return None
        newest, opted_out = self.dictionaries.newest, self.dictionaries.opted_out
        return Streamer(self.recoder, newest, opted_out, compression.stream_records_per_s)

    # -- coordinators

    def set_coordinators(self, members: Iterable[Member], make: Callable[[Member], Pipeline]) -> None:
        """The coordinators that there are now, and the groups they lead."""
        for member in members:
            pipeline = self.pipelines.get(member.name)
            if pipeline is None:
                pipeline = self.pipelines[member.name] = make(member)
            pipeline.member = member
            for group in member.groups:
                self._by_group[group] = pipeline
        self._routes.clear()

    @property
    def complete(self) -> bool:
        """Whether every group has a coordinator."""
        return len(self._by_group) == self.groups

    def pipeline_of(self, group: int) -> Pipeline | None:
        """The pipeline to the leader of `group`."""
        return self._by_group.get(group)

    def pipelines_of(self, topic_filter: bytes) -> list[Pipeline]:
        """The pipelines that a filter concerns."""
        if is_wildcard(topic_filter):
            return list(self.pipelines.values())
        group = topic_group(topic_filter, self.groups)
        if group not in self._by_group:
            raise UnavailableError(f"no coordinator leads group {group} now")
        return [self._by_group[group]]

    def groups_of(self, topic_filter: bytes) -> range | list[int]:
        """The groups that a filter concerns."""
        return range(self.groups) if is_wildcard(topic_filter) else [topic_group(topic_filter, self.groups)]

    def groups_of_all(self, filters: Iterable[bytes]) -> Collection[int]:
        """The groups that some of these filters concern."""
        filters = list(filters)
        if concerns_all(filters):
            return range(self.groups)
        return {topic_group(name, self.groups) for name in filters}

    # -- publishing

    def publish(
        self,
        topic: bytes,
        flags: int,
        payloads: list[bytes],
        origin: str,
        done: Done | None = None,
        mark: tuple[bytes, list[int]] | None = None,
        **run: Any,
    ) -> Pipeline:
        """Publications that differ only in payload; `done` gets the result of the entry that holds them.

        Returns the pipeline: the caller stops reading its publisher while that is `full`.
        """
        route = self._routes.get(topic)
        if route is None:
            route = self._route(topic)
        group, pipeline = route
        builder = pipeline.builder(group, sum(map(len, payloads)) if len(payloads) > 1 else len(payloads[0]))
        size = builder.add(topic, flags, payloads, origin, **run)
        if mark is not None:
            builder.mark(*mark)
        if done is not None:
            builder.when_done(done)
        self.published_records += len(payloads)
        pipeline.added(size)
        return pipeline

    def _route(self, topic: bytes) -> tuple[int, Pipeline]:
        group = topic_group(topic, self.groups)
        pipeline = self._by_group.get(group)
        if pipeline is None:
            raise UnavailableError(f"no coordinator leads group {group} now")
        if len(self._routes) >= self.config.broker.routes_max:
            self._routes.clear()
        route = self._routes[topic] = (group, pipeline)
        return route

    def group_of(self, topic: bytes) -> int:
        """The group of a topic. Raises UnavailableError when nobody leads it."""
        return (self._routes.get(topic) or self._route(topic))[0]

    def forward(self, entry: SealedEntry, count: int) -> Pipeline:
        """An entry that a Python client made. Raises UnavailableError."""
        pipeline = self._by_group.get(entry.wire[0])
        if pipeline is None:
            raise UnavailableError(f"no coordinator leads group {entry.wire[0]} now")
        self.published_records += count
        pipeline.forward(entry)
        return pipeline

    @property
    def full(self) -> bool:
        """Whether some pipeline is full: publishers are not read then."""
        return any([pipeline.full for pipeline in self.pipelines.values()])

    # -- PipelineUser

    async def register(self, pipeline: Pipeline, link: Link) -> None:
        """Tell a coordinator that was dialled of all back-end subscriptions that concern it."""
        await self.filters.register(pipeline, link)

    def on_room(self) -> None:
        """A pipeline has room again."""
        if not self.full:
            self.room()

    def on_heads(self, heads: dict[int, tuple[int, int]]) -> None:
        """Everything before these offsets has been delivered."""
        for group, (_, head) in heads.items():
            self.reached(group, head)

    def reached(self, group: int, head: int) -> None:
        """Everything before `head` has been delivered, or concerns nobody here."""
        if head > self.heads.get(group, -1) and group not in self._stalled:
            self.heads[group] = head
            self._cache.reached(group, head)

    def is_stalled(self, group: int) -> bool:
        """Whether blocks of the group have come and wait for a dictionary."""
        return group in self._stalled

    def on_resumed(self, pipeline: Pipeline) -> None:
        """A link stands (again)."""
        self.filters.registered(pipeline)
        self.resumed(pipeline)

    def dictionary_content(self, dictionary: int) -> tuple[str, bytes] | None:
        """(family, packed) of a dictionary that is held."""
        held = self.recoder.get(dictionary)
        return None if held is None else (held.family.decode(), held.pack())

    async def on_request(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """A coordinator asks."""
        work = self.requests.get(method)
        if work is None:
            raise UnavailableError(f"this broker does not answer {method}")
        check_request(BROKER, method, arguments)
        return await work(*arguments)

    def on_blocks(self, wires: Any) -> None:
        """Live blocks, in offset order within their group."""
        now_us = self.clock.time_us()
        self.aliases.next_turn()
        for wire in wires:
            block = Block.from_wire(wire)
            try:
                if not self._stalled.takes(block):
                    self._deliver(block, now_us)
            except Exception:  # asked for again it would come again, and nobody here would get anything else
                self.undeliverable += 1
                log.exception("group %d offset %d: a block could not be delivered", block.group, block.first)

    def _deliver(self, block: Block, now_us: int) -> None:
        group = block.group
        head = self.heads.get(group, 0)
        if block.last < head:
            return  # delivered before: the link was resumed from an older head
        self._cache.add(block, head)
        self.heads[group] = block.last + 1
        if any([topic.startswith(b"$sdc/") for topic in block.meta.topics]):
            self.dictionaries.learn(block)
        self.delivered_records += self.fanout.deliver(self._live_view(block, now_us), self.encoder)

    def _live_view(self, block: Block, now_us: int) -> BlockView:
        raw = self.storing.recall(block) if block.meta.dictionaries else None
        return BlockView(block, now_us, raw)

    # -- CatchUp (for subscribers), and what catching up needs

    @property
    def version(self) -> int:
        """The version of the broker's interest."""
        return self.filters.version

    def version_of(self, subscriber: Subscriber) -> int:
        """By which version of the interest all its filters were registered."""
        return self.filters.version_of(subscriber.subscriptions)

    def fan(self, topic: bytes) -> Fan:
        """The subscribers of a topic."""
        return self.fanout.fan(topic)

    def view(self, block: Block) -> BlockView:
        """A view of a block, now."""
        return BlockView(block, self.clock.time_us())

    def lagged(self, subscriber: Subscriber) -> None:
        """Bring a subscriber up."""
        self.catching_up.start(subscriber)

    # -- subscriptions

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
        self.catching_up.leave(subscriber)
        if not subscriber.samples:
            for group, offset in begin.items():
                at = min(offset, subscriber.lagging.get(group, offset))
                if at != self.heads.get(group, 0) or group in behind:
                    subscriber.lagging[group] = at
                    # The cache may lack what these filters add.
                    if at < past.get(group, 0):
                        subscriber.missed_live.discard(group)
                        subscriber.past[group] = past[group]
                    elif group not in subscriber.past:
                        subscriber.missed_live.add(group)
        subscriber.refresh()
        subscriber.set_filters(wanted)
        self.fanout.insert(wanted, subscriber)
        if subscriber.lagging and not subscriber.blocked:
            self.lagged(subscriber)

    async def ask_all(self, topic_filter: bytes, take: Callable[[Any], None], method: str, *arguments: Any) -> None:
        """`ask` each coordinator that the filter concerns; when one fails, none is taken any more."""
        await gathered([self.ask(p, take, method, *arguments) for p in self.pipelines_of(topic_filter)])

    async def ask(self, pipeline: Pipeline, take: Callable[[Any], None], method: str, *arguments: Any) -> None:
        """Ask until it is answered; `take(result)` runs while the answer is taken off the link.

        Raises UnavailableError when that takes longer than `link.request_timeout_s`.
        """
        wait_s = self.config.link.request_timeout_s
        try:
            async with asyncio.timeout(wait_s):
                await self._ask_again(pipeline, take, method, *arguments)
        except TimeoutError:
            raise UnavailableError(f"{pipeline.member.name} has not answered {method} for {wait_s:.0f} s") from None

    async def _ask_again(self, pipeline: Pipeline, take: Callable[[Any], None], method: str, *arguments: Any) -> None:
        while True:
            await pipeline.wait_linked()
            answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def done(error: Exception | None, result: Any, answered: asyncio.Future[None] = answered) -> None:
                if not answered.done():
                    if error is None:
                        take(result)
                    answered.set_result(None) if error is None else answered.set_exception(error)

            pipeline.call(done, method, *arguments)
            try:
                await answered
            except UnavailableError:
                await asyncio.sleep(0.01)
            else:
                return

    def unsubscribe(self, subscriber: Subscriber, topic_filter: bytes) -> bool:
        """End a subscription; False when there was none."""
        if not subscriber.drop_filter(topic_filter):
            return False
        self.fanout.remove([topic_filter], subscriber)
        self.filters.release([topic_filter])
        return True

    def leave(self, subscriber: Subscriber) -> None:
        """The subscriber is gone: all its subscriptions end, many of them little by little."""
        subscriber.closed = True
        subscriber.refresh()
        self.catching_up.leave(subscriber)
        gone = list(subscriber.drop_filters())
        if len(gone) <= FILTERS_AT_ONCE:
            self._end(subscriber, gone)
            return
        task = asyncio.get_running_loop().create_task(self._end_slowly(subscriber, gone))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _end(self, subscriber: Subscriber, filters: list[bytes]) -> None:
        self.fanout.remove(filters, subscriber)
        self.filters.release(filters)

    async def _end_slowly(self, subscriber: Subscriber, filters: list[bytes]) -> None:
        turns = Turns()
        for at in range(0, len(filters), FILTERS_AT_ONCE):
            self._end(subscriber, filters[at : at + FILTERS_AT_ONCE])
            await turns.give_way()

    def cursor_of(self, subscriber: Subscriber) -> dict[int, int]:
        """Where the subscriber stands in each group that its subscriptions concern."""
        heads = self.heads
        cursor = {group: heads.get(group, 0) for group in self.groups_of_all(subscriber.subscriptions)}
        for group in subscriber.lagging.keys() & cursor.keys():
            cursor[group] = subscriber.stands_at(group, cursor[group])
        return cursor

    def retained(self, cuts: Cuts) -> RetainedFeed:
        """What is retained of new subscriptions' topics from before their cuts. Raises UnavailableError."""
        return RetainedFeed(self, cuts)

    async def offsets_at(self, topic_filter: bytes, time_us: int) -> dict[int, int]:
        """The first offset at or after a time in each group that a filter concerns."""
        groups = None if is_wildcard(topic_filter) else self.groups_of(topic_filter)
        found: dict[int, int] = {}
        await self.ask_all(topic_filter, found.update, "offsets_at", groups, time_us)
        return found

    # -- dictionaries

    async def learn_dictionaries(self) -> None:
        """Take the newest dictionary of every family, as retained, from all coordinators: a broker's start.

        Raises UnavailableError as `subscribe`.
        """

        everything = dict.fromkeys(range(self.groups), OFFSET_END)
        for block in await self.retained({DICTIONARIES_FILTER: everything}).all():
            self.dictionaries.learn(block)

    async def fetch_dictionary(self, dictionary: int) -> Dictionary:
        """A dictionary by id, held or asked of the coordinators. Raises DictionaryError when none has it."""
        held = self.recoder.get(dictionary)
        found: list[bytes] = []
        # Those that can be reached first: whoever sent a record that needs it has it.
        for pipeline in () if held is not None else sorted(self.pipelines.values(), key=lambda p: p.link is None):

            def take(result: bytes | None) -> None:
                if result is not None:
                    found.append(result)

            await self.ask(pipeline, take, "dictionary", dictionary)
            if found:
                held = self.dictionaries.hold(found[0])
                break
        if held is None:
            raise DictionaryError(f"dictionary {dictionary:016x} is in no coordinator's log")
        return held

    async def close(self) -> None:
        """End all links."""
        self._stalled.close()
        self.filters.close()
        for task in self._leaving:
            task.cancel()
        self.catching_up.close()
        await asyncio.gather(*[pipeline.close() for pipeline in self.pipelines.values()])
