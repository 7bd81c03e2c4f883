"""The delivery of a page of the past to its members: as packets to those that take these (`packets`), else as blocks.

Python clients, dictionary-aware sessions and subscriptions with a window in time get parts of blocks, each distinct
part made once.
"""

from __future__ import annotations

import logging

from lexicast.cluster.selection import select_from

from ..content.choosing import chosen
from ..encoding import BlockView, EncodedBlock, Grants, Kind
from ..subscriber import Subscriber, needs_ids
from .packets import PagePackets, ViewMaker
from .pages import Page

log = logging.getLogger(__name__)

# The topics of a page that a member wants.
Wanted = dict[bytes, None]


class PageDelivery:
    """See the module's docstring."""

    def __init__(self, broker: ViewMaker, page: Page, packets: PagePackets) -> None:
        self._broker = broker
        self._page = page
        self._packets = packets
        self._views: dict[tuple[int, ...], list[BlockView]] = {}
        self._encoded: dict[tuple[BlockView, Kind, Grants], EncodedBlock] = {}

    def give(self, subscriber: Subscriber, wanted: Wanted) -> bool:
        """Send a subscriber what it wants; False when something came in its way (its cursor is there)."""
        if subscriber.takes_packets:
            return subscriber.take_packets(self._page.group, self._packets.runs(subscriber, wanted))
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
            part_of = chosen(view, grants, self._broker.encoder)
            if part_of is None:
                continue
            view, grants = part_of
            encoded = None if needs_ids(view.highest_qos, grants) else self._shared(subscriber.kind, view, grants)
            if not subscriber.take_view(view, grants, encoded):
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


def given(making: PageDelivery, page: Page, subscriber: Subscriber, wanted: Wanted) -> bool:
    """`PageDelivery.give`. What cannot be delivered costs itself, as it does live: else nobody would pass it."""
    try:
        return making.give(subscriber, wanted)
    except Exception:
        log.exception(
            "group %d: offsets %d to %d cannot be delivered to %r", page.group, page.start, page.end, subscriber
        )
        return True
