"""The packets that plain MQTT sessions get of a page of the past: each run encoded, all but packet ids, once for all.

A page is opened row by row, as far as its members want it: payloads are decompressed once, packets
encoded once for all members of a version, Maximum Packet Size and grant. One member then costs a look at each run, its
packet ids and one joined write (`MqttSubscriber.take_packets`). Who wants one topic of the page, as most do who return,
gets its plain runs joined, JOINED_RUNS at a time: looked at once, not one by one.

Pages are visited again and again while sessions return, so what was made is kept for the pages used last; not so what
depends on the time (expiry, payloads that lack a dictionary) or mostly belongs to one member (subscription
identifiers): that serves one visit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from lexicast.cluster.blocks import FIRST_DICTIONARY, QOS_MASK, RAW, RETAIN, Block
from lexicast.compression.opening import Room

from ...mqtt.codec.encode import encode_qos0_run, split_qos_packet, split_qos_run
from ...mqtt.session import InFlight
from ..dictionaries.payload_opening import opened
from ..encoding import BlockView, Encoder, Grant, Kind, run_properties
from .pages import Page, PageRow
from .run_packets import RunPackets

if TYPE_CHECKING:
    from ..subscriber import Subscriber

# About what a record takes here beside its payload: head, tail, entry, and their places in lists.
RECORD_BYTES = 250
MADE_BYTES_MAX = 4 * 1024 * 1024
# Runs of one topic, counted from the page's first, and their payloads, that are made at once.
JOINED_RUNS = 64
JOINED_BYTES_MAX = 32 * 1024


class ViewMaker(Protocol):
    """The broker, as pages need it."""

    encoder: Encoder

    def view(self, block: Block) -> BlockView:
        """A view of a block, now."""

    @property
    def now_us(self) -> int:
        """The wall clock's time."""


# Version, Maximum Packet Size and grant of members; row by number; records of it left out, JOINED where it is the first
# of several.
_Key = tuple[int, int, Grant, int, int]
JOINED = -1


class _Made:
    """Packets that were made; all go when there are more than MADE_BYTES_MAX: members then have little in common. What
    is more by itself is not kept."""

    def __init__(self) -> None:
        self._packets: dict[_Key, RunPackets] = {}
        self.size_bytes = 0

    def get(self, key: _Key) -> RunPackets | None:
        """The packets, if they are there."""
        return self._packets.get(key)

    def add(self, key: _Key, packets: RunPackets) -> None:
        """Keep them."""
        size = packets.size_bytes + RECORD_BYTES * (1 + len(packets.sent))
        if size > MADE_BYTES_MAX:
            return
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
        self._raw: dict[int, list[bytes | None]] = {}
        # Rows that become so much that nothing of it is kept: each visit opens what it begins with.
        self._much: set[int] = set()
        self._kept = _Made()
        # Of this visit.
        self._passing = _Made()
        self._now_us = 0

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory between visits, the page included."""
        return self._opened_bytes + self._kept.size_bytes

    def visit(self) -> None:
        """Time has passed since the last visit."""
        if self._now_us:
            self._passing.clear()
            self._now_us = 0

    def runs(self, subscriber: Subscriber, topics: Collection[bytes]) -> Iterator[RunPackets]:
        """What a member gets of these topics from its cursor on, in order of offsets."""
        page, kind = self._page, subscriber.kind
        start, columns = subscriber.lagging[page.group], page.columns
        numbers = page.numbers(topics, start)
        joining = subscriber.grant(next(iter(topics))) if len(topics) == 1 and len(numbers) > 1 else None
        # The first of these is so far from the topic's first run in the page.
        passed = len(page.index[next(iter(topics))]) - len(numbers) if joining is not None else 0
        at = 0
        while at < len(numbers):
            number = numbers[at]
            if joining is not None and (passed + at) % JOINED_RUNS == 0 and columns.offsets[number] >= start:
                some = numbers[at : at + JOINED_RUNS]
                joined = self._joined(kind, joining, some)
                if joined is not None:
                    yield joined
                    at += len(some)
                    continue
            at += 1
            row = columns.row(number)
            grant = subscriber.grant(row.topic)
            if grant is not None and grant.no_local:
                grant = subscriber.granted(row.origin, grant)
            if grant is not None:
                left_out = max(0, start - row.offset)
                # Mostly once: a run that becomes much goes in parts.
                while left_out < row.run.count:
                    packets = self._packets(kind, grant, number, row, left_out)
                    if packets is None:
                        break
                    yield packets
                    left_out = packets.end - row.offset

    def _joined(self, kind: Kind, grant: Grant, numbers: Sequence[int]) -> RunPackets | None:
        """Runs of one topic as one; None where one is not like the others, or needs to be looked at by itself."""
        if len(numbers) == 1 or not grant.qos or grant.no_local or grant.ids or kind.packet_bytes_max:
            return None
        key = (kind.version, 0, grant, numbers[0], JOINED)
        packets = self._kept.get(key)
        if packets is None:
            packets = self._join(kind, grant, numbers)
            if packets is not None:
                self._kept.add(key, packets)
        return packets

    def _join(self, kind: Kind, grant: Grant, numbers: Sequence[int]) -> RunPackets | None:
        group, columns = self._page.group, self._page.columns
        runs = [columns.runs[number] for number in numbers]
        flags = runs[0].flags
        qos = min(grant.qos, flags & QOS_MASK)
        bodies = [columns.bodies[number] for number in numbers]
        if not qos or sum(map(len, bodies)) > JOINED_BYTES_MAX:
            return None
        single, packed, last = True, False, None
        for run in runs:
            if run is not last:  # those of a block that are alike are one object
                last = run
                if run.flags != flags or run.expiry_ms or run.properties:
                    return None
                single = single and run.count == 1
                packed = packed or run.encoding != RAW
        sent: list[InFlight | None] = [(group, columns.offsets[number], qos, False) for number in numbers]
        payloads: list[bytes | None] = [*bodies]
        if not single:
            payloads, sent = [], []
            for number in numbers:
                row = columns.row(number)
                found = self._payloads(number, row, 0)
                if len(found) < row.run.count:
                    return None
                payloads += found
                sent += [(group, offset, qos, False) for offset in range(row.offset, row.offset + len(found))]
        elif packed:
            payloads = self._unpacked(numbers, payloads)
        whole = [payload for payload in payloads if payload is not None]
        if len(whole) < len(payloads) or sum(map(len, whole)) > JOINED_BYTES_MAX:
            return None  # a dictionary may come yet, or it is much
        retain = grant.retain_as_published and bool(flags & RETAIN)
        topic = columns.row(numbers[0]).topic
        heads, tails = split_qos_run(kind.version, topic, whole, qos, retain)
        size = sum(map(len, heads)) + sum(map(len, tails)) + 2 * len(heads)
        return RunPackets(heads, sent, tails, size, columns.end(numbers[-1]))

    def _unpacked(self, numbers: Sequence[int], payloads: list[bytes | None]) -> list[bytes | None]:
        """The payloads of runs of one record: those of one encoding and dictionary are decompressed together."""
        columns = self._page.columns
        places: dict[tuple[int, int | None], list[int]] = {}
        for at, number in enumerate(numbers):
            encoding = columns.runs[number].encoding
            if encoding != RAW:
                dictionary = columns.row(number).dictionary if encoding >= FIRST_DICTIONARY else None
                places.setdefault((min(encoding, FIRST_DICTIONARY), dictionary), []).append(at)
        room = Room(JOINED_BYTES_MAX)  # what has none is looked at by itself
        for (encoding, dictionary), of in places.items():
            found = self._broker.encoder.decompressed(encoding, dictionary, [payloads[at] for at in of], room)
            for at, payload in zip(of, found, strict=True):
                payloads[at] = payload
        return payloads

    def _packets(self, kind: Kind, grant: Grant, number: int, row: PageRow, left_out: int) -> RunPackets | None:
        """None when the run has expired."""
        key = (kind.version, kind.packet_bytes_max, grant, number, left_out)
        packets = self._kept.get(key) or self._passing.get(key)
        if packets is not None:
            return packets
        payloads, run = self._payloads(number, row, left_out), row.run
        now_us = 0
        passing = run.expiry_ms > 0 or bool(grant.ids) or None in payloads
        if passing:
            now_us = self._now_us = self._now_us or self._broker.now_us
            if run.expiry_ms > 0 and row.time_us + run.expiry_ms * 1000 <= now_us:
                return None
        packets = self._encode(kind, grant, row, payloads, left_out, now_us)
        (self._passing if passing else self._kept).add(key, packets)
        return packets

    def _encode(
        self, kind: Kind, grant: Grant, row: PageRow, payloads: list[bytes | None], left_out: int, now_us: int
    ) -> RunPackets:
        """Of the records of a run from `left_out` on, as many as there are payloads."""
        run, group, topic = row.run, self._page.group, row.topic
        properties = run_properties(kind, run, grant, row.time_us, now_us)
        qos = min(grant.qos, run.flags & QOS_MASK)
        retain = grant.retain_as_published and bool(run.flags & RETAIN)
        if qos and len(payloads) == 1 and payloads[0] is not None and not kind.packet_bytes_max:
            # What most devices' blocks are.
            head, tail = split_qos_packet(kind.version, topic, payloads[0], qos, retain, properties)
            offset = row.offset + left_out
            return RunPackets([head], [(group, offset, qos, False)], [tail], len(head) + len(tail) + 2, offset + 1)
        fitting = self._broker.encoder.fitting
        fit = fitting(kind, topic, payloads, qos, properties)
        end = row.offset + left_out + len(payloads)
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

    def _payloads(self, number: int, row: PageRow, left_out: int) -> list[bytes | None]:
        """Of the records of a run from `left_out` on: all, or as many as there is room for."""
        if number not in self._much:
            raw = self._whole(number, row)
            if len(raw) == row.run.count:
                return raw[left_out:] if left_out else raw
        stored, recoder = row.payloads()[left_out:], self._broker.encoder.recoder
        return opened(recoder, row.run.encoding, row.dictionary, stored, MADE_BYTES_MAX)

    def _whole(self, number: int, row: PageRow) -> list[bytes | None]:
        raw = self._raw.get(number)
        if raw is None:
            stored: list[bytes | None] = [*row.payloads()]
            if row.run.encoding == RAW:
                return stored
            raw = opened(self._broker.encoder.recoder, row.run.encoding, row.dictionary, stored)
            if len(raw) < len(stored):
                self._much.add(number)
                return raw
            if None in raw:
                return raw  # a dictionary may come yet
            size = sum([len(payload or b"") for payload in raw]) + RECORD_BYTES
            if self._opened_bytes + size > self._page.size_bytes + MADE_BYTES_MAX:
                self._raw.clear()
                self._opened_bytes = self._page.size_bytes
            if size <= MADE_BYTES_MAX:
                self._raw[number] = raw
                self._opened_bytes += size
            else:
                self._much.add(number)
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
