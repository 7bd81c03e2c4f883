"""Live blocks on their way from the coordinators to the subscribers, and how far each group has come.

`heads` says, group by group, up to where everything that concerns this broker has been delivered: the cursor of whoever
is live. Blocks go to the fan-out and into the cache; those that need a dictionary which the broker lacks wait for it.

What several blocks of one message bring a connection, or a Python client's link, goes out as one write (`LiveWrites`):
a fleet's turn is up to a hundred blocks, one a group, and uvloop's writes are calls of the kernel, some 10 us each. So
does what a share deals.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from lexicast.cluster.blocks import Block
from lexicast.cluster.clock import Clock
from lexicast.compression.wire import AliasTable

from .catching_up.block_cache import BlockCache
from .content.content_fanout import ContentFanout
from .dictionaries.keeper import DictionaryKeeper
from .dictionaries.waiting_blocks import WaitingBlocks
from .encoding import BlockView, Encoder
from .fanout import Fanout
from .pipelines.stored_compression import StoredCompression

log = logging.getLogger(__name__)


class Gathers(Protocol):
    """A subscriber whose writes can wait."""

    @property
    def closed(self) -> bool:
        """It takes no more."""
        ...

    def send_gathered(self) -> None:
        """Send what it was given to write since `LiveWrites.on`."""


class LiveWrites:
    """See the module's docstring. `on`: who is given something to write keeps it, and tells of itself once (`add`).
    `sent_bytes`: what subscribers were sent of publications, live or past, as it crosses their connections."""

    def __init__(self) -> None:
        self.on = False
        self.sent_bytes = 0
        self._waiting: list[Gathers] = []

    def begin(self) -> None:
        """More than one block comes."""
        self.on = True

    def add(self, subscriber: Gathers) -> None:
        """It has something to send."""
        self._waiting.append(subscriber)

    def end(self) -> None:
        """All have come: send."""
        self.on = False
        waiting, self._waiting = self._waiting, []
        for subscriber in waiting:
            if not subscriber.closed:
                subscriber.send_gathered()


class LiveDelivery:
    """See the module's docstring. `waiting`: the blocks that wait for a dictionary."""

    def __init__(
        self,
        clock: Clock,
        dictionaries: DictionaryKeeper,
        fetch_dictionary: Callable[[int], Awaitable[object]],
        aliases: AliasTable,
        stored_compression: StoredCompression,
        cache: BlockCache,
        fanout: Fanout,
        content: ContentFanout,
        encoder: Encoder,
    ) -> None:
        self.heads: dict[int, int] = {}
        self.delivered_records = 0
        # Blocks that a defect, here or in whoever made them, kept from some subscribers.
        self.undeliverable = 0
        self.waiting = WaitingBlocks(dictionaries, fetch_dictionary, self._deliver_late)
        self._clock = clock
        self._dictionaries = dictionaries
        self._aliases = aliases
        self._stored_compression = stored_compression
        self._cache = cache
        self._fanout = fanout
        self._content = content
        self._encoder = encoder
        self.writes = LiveWrites()

    def on_heads(self, heads: dict[int, tuple[int, int]]) -> None:
        """Everything before these offsets, by group (epoch, offset), has been delivered."""
        for group, (_, head) in heads.items():
            self.reached(group, head)

    def reached(self, group: int, head: int) -> None:
        """Everything before `head` has been delivered, or concerns nobody here."""
        if head > self.heads.get(group, -1) and group not in self.waiting:
            self.heads[group] = head
            self._cache.reached(group, head)

    def on_blocks(self, wires: Any) -> None:
        """Live blocks, in offset order within their group."""
        now_us = self._clock.time_us()
        self._aliases.next_turn()
        if len(wires) < 2:
            self._take(wires, now_us)
            return
        self.writes.begin()
        try:
            self._take(wires, now_us)
        finally:
            self.writes.end()

    def _take(self, wires: Any, now_us: int) -> None:
        for wire in wires:
            block = Block.from_wire(wire)
            try:
                if not self.waiting.takes(block):
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
            self._dictionaries.learn(block)
        view = self._live_view(block, now_us)
        if view.may_become_much(self._encoder.recoder.payload_bytes_max) and self._is_opened(view):
            for part in self._encoder.parts(view):
                self._deliver_view(part)
        else:
            self._deliver_view(view)

    def _is_opened(self, view: BlockView) -> bool:
        """Whether somebody gets it decompressed, or asks what it holds."""
        topics = view.block.meta.topics
        return self._fanout.plan(topics, view.highest_qos).opens or (
            bool(self._content) and any([self._content.of_filters(topic) for topic in topics])
        )

    def _deliver_view(self, view: BlockView) -> None:
        self.delivered_records += self._fanout.deliver(view, self._encoder)
        if self._content:
            self.delivered_records += self._content.deliver(view, self._encoder)

    def _deliver_late(self, block: Block) -> None:
        self._deliver(block, self._clock.time_us())

    def _live_view(self, block: Block, now_us: int) -> BlockView:
        raw = self._stored_compression.raw_of(block) if block.meta.dictionaries else None
        return BlockView(block, now_us, raw)
