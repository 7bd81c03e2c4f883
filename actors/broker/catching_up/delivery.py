"""The delivery of a page of the past to its members: as packets to those that take these (`packets`), else as blocks.

Python clients, dictionary-aware sessions and subscriptions with a window in time get parts of blocks, each distinct
part made once a turn. Who has conditions gets those parts for which they hold (`asked_pages`).
"""

from __future__ import annotations

import logging
from typing import Protocol

from lexicast.cluster.blocks import Block
from lexicast.cluster.selection import select_from

from ..content.choosing import Chosen
from ..encoding import BlockView, EncodedBlock, Grants, Kind
from ..subscriber import Subscriber, needs_ids
from .asked_pages import AskedPage, AskedPages, AskingBroker, Granted
from .packets import PacketsCache, PagePackets, ViewMaker
from .pages import Page

log = logging.getLogger(__name__)

# Parts of blocks that conditions have chosen, kept at once.
CHOSEN_MAX = 1_024

# The topics of a page that a member wants.
Wanted = dict[bytes, None]


class DeliveringBroker(ViewMaker, AskingBroker, Protocol):
    """The broker, as deliveries need it."""


class PageDelivery:
    """See the module's docstring. Of one turn, or one visit of all that stand there: what is in it is as of now."""

    def __init__(self, broker: ViewMaker, page: Page, packets: PacketsCache, asked: AskedPages) -> None:
        self._broker = broker
        self._page = page
        self._packets_cache = packets
        self._packets: PagePackets | None = None
        self._asked_pages = asked
        self._chosen: dict[tuple[int, tuple[Granted, ...]], Chosen] = {}
        self._views: dict[tuple[int, ...], list[BlockView]] = {}
        self._encoded: dict[tuple[BlockView, Kind, Grants], EncodedBlock] = {}

    def give(self, subscriber: Subscriber, wanted: Wanted) -> bool:
        """Send a subscriber what it wants; False when something came in its way (its cursor is there)."""
        if subscriber.takes_packets:
            if self._packets is None:
                self._packets = self._packets_cache.of(self._page)
            return subscriber.take_packets(self._page.group, self._packets.runs(subscriber, wanted))
        if subscriber.chooses:
            return self.give_chosen(subscriber, wanted, self._asked_pages.of(self._page))
        group = self._page.group
        for view in self._of(tuple(self._page.numbers(wanted, subscriber.lagging[group]))):
            start = subscriber.lagging[group]
            if view.block.first < start:
                part = select_from(view.block, start)
                if part is None:
                    continue
                view = self._broker.view(part)
            grants = tuple([subscriber.grant(topic) for topic in view.block.meta.topics])
            if not any(grants):
                continue  # unsubscribed meanwhile
            if not self._take(subscriber, view, grants):
                return False
        return True

    def give_chosen(self, subscriber: Subscriber, wanted: Wanted, asked: AskedPage) -> bool:
        """`give` what conditions hold for. `asked`: the page."""
        for block, granted in asked.granted(subscriber, wanted).items():
            key = block, tuple(granted)
            part = self._chosen.get(key)
            if part is None:
                if len(self._chosen) >= CHOSEN_MAX:
                    self._chosen.clear()
                    self._encoded.clear()
                part = self._chosen[key] = asked.chosen(block, granted)
            if not self._take(subscriber, part.view, part.grants):
                return False
        return True

    def _take(self, subscriber: Subscriber, view: BlockView, grants: Grants) -> bool:
        kind, encoder = subscriber.kind, self._broker.encoder
        for part in encoder.parts(view) if kind.is_plain else (view,):
            encoded = None
            if not needs_ids(part.highest_qos, grants):
                # Of a block that becomes much nothing is kept.
                encoded = self._shared(kind, view, grants) if part is view else encoder.shared(kind, part, grants)
            if not subscriber.take_view(part, grants, encoded):
                return False
        return True

    def _of(self, numbers: tuple[int, ...]) -> list[BlockView]:
        views = self._views.get(numbers)
        if views is None:
            views = self._views[numbers] = [self._broker.view(block) for block in self._page.blocks_of(numbers)]
        return views

    def _shared(self, kind: Kind, view: BlockView, grants: Grants) -> EncodedBlock:
        key = (view, kind, grants)
        encoded = self._encoded.get(key)
        if encoded is None:
            encoded = self._encoded[key] = self._broker.encoder.shared(kind, view, grants)
        return encoded


class Deliveries:
    """The deliveries of pages: what those who take packets share and what conditions hold for is kept between turns."""

    def __init__(self, broker: DeliveringBroker, bytes_max: int) -> None:
        """`bytes_max`: of what is kept for those who take packets, and twice as much for those with conditions."""
        self._broker = broker
        self._packets = PacketsCache(broker, bytes_max)
        self._asked = AskedPages(broker, 2 * bytes_max)
        self._of_turn: dict[Page, PageDelivery] = {}

    def gone(self, page: Page) -> None:
        """The page cache keeps it no longer."""
        self._asked.gone(page)

    def end_turn(self) -> None:
        """Time passes: what `in_turn` shares was as of before."""
        self._of_turn.clear()

    def in_turn(self, page: Page) -> PageDelivery:
        """The page's, the same as long as this turn goes."""
        making = self._of_turn.get(page)
        if making is None:
            making = self._of_turn[page] = self.of(page)
        return making

    def of(self, page: Page) -> PageDelivery:
        """A page's, for a visit."""
        return PageDelivery(self._broker, page, self._packets, self._asked)

    def give_block(self, block: Block, subscriber: Subscriber) -> bool:
        """A block of the broker's cache to a subscriber that only paused; False when something came in its way."""
        group = block.group
        if not subscriber.chooses:
            return subscriber.take(block)
        if subscriber.lagging[group] <= block.last and any(map(subscriber.grant, block.meta.topics)):
            asked = self._asked.of(block)
            making = PageDelivery(self._broker, asked.page, self._packets, self._asked)
            if not making.give_chosen(subscriber, dict.fromkeys(block.meta.topics), asked):
                return False
        subscriber.lagging[group] = max(subscriber.lagging[group], block.last + 1)
        return True


def given(making: PageDelivery, page: Page, subscriber: Subscriber, wanted: Wanted) -> bool:
    """`PageDelivery.give`. What cannot be delivered costs itself, as it does live: else nobody would pass it."""
    try:
        return making.give(subscriber, wanted)
    except Exception:
        log.exception(
            "group %d: offsets %d to %d cannot be delivered to %r", page.group, page.start, page.end, subscriber
        )
        return True
