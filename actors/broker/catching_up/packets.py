"""The packets that plain MQTT sessions get of a page of the past: each run encoded, all but packet ids, once for all.

A page is opened block by block and run by run, as far as its members want it: payloads are decompressed once, packets
encoded once for all members of a version, Maximum Packet Size and grant. One member then costs a look at each run, its
packet ids and one joined write (`MqttSubscriber.take_packets`).

Pages are visited again and again while sessions return, so what was made is kept for the pages used last; not so what
depends on the time (expiry, payloads that lack a dictionary) or mostly belongs to one member (subscription
identifiers): that serves one visit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from lexicast.cluster.blocks import QOS_MASK, RETAIN, Block

from ...mqtt.codec.encode import encode_qos0_run, split_qos_run
from ...mqtt.session import InFlight
from ..encoding import BlockView, Encoder, Grant, Kind, run_properties
from .pages import Page
from .run_packets import RunPackets

if TYPE_CHECKING:
    from ..subscriber import Subscriber

# About what a record takes here beside its payload: head, tail, entry, and their places in lists.
RECORD_BYTES = 250
MADE_BYTES_MAX = 4 * 1024 * 1024


class ViewMaker(Protocol):
    """The broker, as pages need it."""

    encoder: Encoder

    def view(self, block: Block) -> BlockView:
        """A view of a block, now."""


class _Place(NamedTuple):
    """Where a run is in its block: which one, its first record, that record's offset."""

    run: int
    record: int
    offset: int


# Version, Maximum Packet Size and grant of members; block and run by number; records of the run left out.
_Key = tuple[int, int, Grant, int, int, int]


class _Made:
    """Packets that were made; all go when there are more than MADE_BYTES_MAX: members then have little in common."""

    def __init__(self) -> None:
        self._packets: dict[_Key, RunPackets] = {}
        self.size_bytes = 0

    def get(self, key: _Key) -> RunPackets | None:
        """The packets, if they are there."""
        return self._packets.get(key)

    def add(self, key: _Key, packets: RunPackets) -> None:
        """Keep them."""
        size = packets.size_bytes + RECORD_BYTES * (1 + len(packets.sent))
        if self.size_bytes + size > MADE_BYTES_MAX:
            self.clear()
        self._packets[key] = packets
        self.size_bytes += size

    def clear(self) -> None:
        """Keep nothing."""
        self._packets.clear()
        self.size_bytes = 0


class PagePackets:
    """See the module's docstring."""

    def __init__(self, broker: ViewMaker, page: Page) -> None:
        self._broker = broker
        self._page = page
        self._opened_bytes = page.size_bytes
        self._views: dict[int, BlockView] = {}
        self._places: dict[int, dict[int, list[_Place]]] = {}
        self._raw: dict[tuple[int, int], list[bytes | None]] = {}
        self._kept = _Made()
        # Of this visit.
        self._passing = _Made()
        self._views_now: dict[int, BlockView] = {}

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory between visits, the page included."""
        return self._opened_bytes + self._kept.size_bytes

    def visit(self) -> None:
        """Time has passed since the last visit."""
        self._passing.clear()
        self._views_now.clear()

    def runs(self, subscriber: Subscriber, topics: Iterable[bytes]) -> Iterator[RunPackets]:
        """What a member gets of these topics from its cursor on, in order of offsets."""
        start = subscriber.lagging[self._page.group]
        places = self._page.places(topics)
        for number in sorted(places):
            if self._page.blocks[number].last >= start:
                yield from self._of_block(subscriber, number, places[number], start)

    def _of_block(self, subscriber: Subscriber, number: int, topics: list[int], start: int) -> Iterator[RunPackets]:
        view = self._view(number)
        meta, of_topic = view.block.meta, self._places[number]
        places = of_topic.get(topics[0], [])
        if len(topics) > 1:
            places = sorted([place for topic in topics for place in of_topic.get(topic, ())])
        for place in places:
            run = meta.runs[place.run]
            left_out = max(0, start - place.offset)
            if left_out >= run.count:
                continue
            grant = subscriber.grant(meta.topics[run.topic])
            if grant is not None and grant.no_local:
                grant = subscriber.granting(view, run, grant)
            if grant is not None:
                packets = self._packets(subscriber.kind, grant, number, place, left_out)
                if packets is not None:
                    yield packets

    def _view(self, number: int) -> BlockView:
        """The block, its runs found by topic."""
        view = self._views.get(number)
        if view is None:
            block = self._page.blocks[number]
            view = self._views[number] = self._broker.view(block)
            places = self._places[number] = {}
            record, offset = 0, block.first
            for index, run in enumerate(block.meta.runs):
                offset += run.skip
                places.setdefault(run.topic, []).append(_Place(index, record, offset))
                record, offset = record + run.count, offset + run.count
            self._opened_bytes += RECORD_BYTES * (1 + len(block.meta.runs))
        return view

    def _packets(self, kind: Kind, grant: Grant, number: int, place: _Place, left_out: int) -> RunPackets | None:
        """None when the run has expired."""
        key = (kind.version, kind.packet_bytes_max, grant, number, place.run, left_out)
        packets = self._kept.get(key) or self._passing.get(key)
        if packets is not None:
            return packets
        view, payloads = self._views[number], self._payloads(number, place)
        run = view.block.meta.runs[place.run]
        passing = run.expiry_ms > 0 or bool(grant.ids) or None in payloads
        if passing:
            view = self._view_now(number)
            if view.expired(run):
                return None
        packets = self._encode(kind, grant, view, place, payloads[left_out:])
        (self._passing if passing else self._kept).add(key, packets)
        return packets

    def _view_now(self, number: int) -> BlockView:
        view = self._views_now.get(number)
        if view is None:
            view = self._views_now[number] = self._broker.view(self._page.blocks[number])
        return view

    def _encode(
        self, kind: Kind, grant: Grant, view: BlockView, place: _Place, payloads: list[bytes | None]
    ) -> RunPackets:
        """Of the last records of a run."""
        run, group = view.block.meta.runs[place.run], self._page.group
        topic = view.block.meta.topics[run.topic]
        properties = run_properties(kind, view, run, grant)
        qos = min(grant.qos, run.flags & QOS_MASK)
        retain = grant.retain_as_published and bool(run.flags & RETAIN)
        fitting = self._broker.encoder.fitting
        fit = fitting(kind, topic, payloads, qos, properties)
        end = place.offset + run.count
        if not fit:
            return RunPackets([], [], [], 0, end)
        if qos == 0:
            data = encode_qos0_run(kind.version, topic, fit, retain, properties)
            return RunPackets([data], [None], [b""], len(data), end)
        offsets: Iterable[int] = range(end - len(payloads), end)
        if len(fit) < len(payloads):
            offsets = [o for o, p in zip(offsets, payloads, strict=True) if fitting(kind, topic, [p], qos, properties)]
        heads, tails = split_qos_run(kind.version, topic, fit, qos, retain, properties)
        sent: list[InFlight | None] = [(group, offset, qos, False) for offset in offsets]
        return RunPackets(heads, sent, tails, sum(map(len, heads)) + sum(map(len, tails)) + 2 * len(heads), end)

    def _payloads(self, number: int, place: _Place) -> list[bytes | None]:
        raw = self._raw.get((number, place.run))
        if raw is None:
            raw = self._broker.encoder.raw_run(self._views[number], place.run, place.record)
            if None in raw:
                return raw  # a dictionary may come yet
            self._raw[number, place.run] = raw
            self._opened_bytes += sum([len(payload or b"") for payload in raw]) + RECORD_BYTES
        return raw


class PacketsCache:
    """What was made of the pages visited last, at most `bytes_max` of it."""

    def __init__(self, broker: ViewMaker, bytes_max: int) -> None:
        self._broker = broker
        self._bytes_max = bytes_max
        self._bytes = 0
        # In the order of their last visits; with what each took as counted last.
        self._made: dict[Page, tuple[PagePackets, int]] = {}
        self._visited: Page | None = None

    def of(self, page: Page) -> PagePackets:
        """A visit to a page."""
        self._count()
        packets, size = self._made.pop(page, (None, 0))
        if packets is None:
            packets = PagePackets(self._broker, page)
        self._made[page] = packets, size
        self._visited = page
        packets.visit()
        return packets

    def _count(self) -> None:
        """What the last visit has made."""
        if self._visited is None:
            return
        packets, before = self._made[self._visited]
        packets.visit()
        self._made[self._visited] = packets, packets.size_bytes
        self._bytes += packets.size_bytes - before
        while self._bytes > self._bytes_max:
            oldest = next(iter(self._made))
            self._bytes -= self._made.pop(oldest)[1]
        self._visited = None
