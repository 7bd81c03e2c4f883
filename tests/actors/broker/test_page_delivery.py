"""What plain MQTT sessions get of a page at once is what they would get block by block; it is made once for all."""

from __future__ import annotations

import zlib
from array import array
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.actors.broker.catching_up import packets as page_packets
from lexicast.actors.broker.catching_up.asked_pages import AskedPages
from lexicast.actors.broker.catching_up.delivery import PageDelivery, Wanted
from lexicast.actors.broker.catching_up.packets import PacketsCache, PagePackets
from lexicast.actors.broker.catching_up.pages import Page
from lexicast.actors.broker.content.predicate_table import PredicateTable
from lexicast.actors.broker.encoding import BlockView, Encoder, Grant, Kind
from lexicast.actors.broker.live_delivery import LiveWrites
from lexicast.actors.broker.security.rights import Rights
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.actors.mqtt import subscriber as mqtt_subscriber
from lexicast.actors.mqtt.session import Session
from lexicast.actors.mqtt.subscriber import MqttSubscriber
from lexicast.cluster.blocks import DEFLATE, FIRST_DICTIONARY, PUBLICATIONS, RAW, Block, Meta, Run, pack_meta
from lexicast.compression.opening import Room
from lexicast.compression.wire import AliasTable, Recoder

TOPICS = (b"a", b"b", b"c/d")
FILTERS = (b"a", b"#", b"c/+", b"+")
GROUP = 3
NOW_US = 10_000_000


class Engine:
    """What subscribers and pages need of one."""

    def __init__(self) -> None:
        self.recoder = Recoder()
        self.aliases = AliasTable()
        self.rights = Rights()
        self.encoder = Encoder(self.recoder, self.aliases, lambda topic: None)
        self.now_us = NOW_US
        self.subscriptions = self
        self.live = SimpleNamespace(writes=LiveWrites())
        self.predicates = PredicateTable()

    def lagged(self, subscriber: Subscriber) -> None:
        """The test goes on with it."""

    def view(self, block: Block) -> BlockView:
        return BlockView(block, self.now_us)


class BlockByBlock(MqttSubscriber):
    """A session that gets parts of blocks."""

    @property
    def takes_packets(self) -> bool:
        return False


def deflated(payload: bytes) -> bytes:
    """As stored without a dictionary."""
    made = zlib.compressobj(wbits=-15)
    return made.compress(payload) + made.flush()


def block(first: int, runs: list[Run], after: int) -> Block:
    """A block whose payloads are told by their offsets; of those with an unknown dictionary nothing can be read."""
    payloads: list[bytes] = []
    offset = first
    for run in runs:
        offset += run.skip
        for number in range(offset, offset + run.count):
            payload = b"%d" % number * (number % 4 * 10)
            payloads.append(deflated(payload) if run.encoding == DEFLATE else payload)
        offset += run.count
    meta = Meta(TOPICS, tuple(runs), (), (), ("me", "other"), (77,))
    lengths = array("I", map(len, payloads)).tobytes()
    body = b"".join(payloads)
    # A second's expiry is over, two seconds' is not.
    time_us = NOW_US - 1_500_000
    return Block(GROUP, 1, first, offset - 1 + after, time_us, PUBLICATIONS, pack_meta(meta), lengths, body)


@st.composite
def pages(draw: st.DrawFn) -> Page:
    """A page of up to five blocks."""
    run = st.builds(
        Run,
        skip=st.integers(0, 2),
        topic=st.integers(0, len(TOPICS) - 1),
        flags=st.sampled_from([0, 1, 2, 4, 5]),
        encoding=st.sampled_from([RAW, RAW, DEFLATE, FIRST_DICTIONARY]),
        expiry_ms=st.sampled_from([0, 0, 1_000, 2_000]),
        properties=st.sampled_from([None, {1: 1}]),
        origin=st.integers(-1, 1),
        count=st.integers(1, 4),
    )
    first = start = draw(st.integers(0, 9))
    blocks = []
    for runs in draw(st.lists(st.lists(run, min_size=1, max_size=5), min_size=1, max_size=5)):
        blocks.append(block(first, runs, draw(st.integers(0, 2))))
        first = blocks[-1].last + 1 + draw(st.integers(0, 2))
    return Page(GROUP, start, first + draw(st.integers(0, 3)), blocks)


GRANTS = st.builds(
    Grant,
    qos=st.integers(0, 2),
    retain_as_published=st.booleans(),
    no_local=st.booleans(),
    ids=st.sampled_from([(), (), (7,)]),
    own=st.none(),
)


class Member:
    """A session that is given a page, as often as it has room again; `wire`: what it got."""

    def __init__(self, kind: Kind, filters: dict[bytes, Grant], window: int, socket: int, at_once: bool) -> None:
        self.wire = b""
        self.stops: list[int] = []
        self._socket = socket
        self._left = socket
        session = Session("me", b"uid", 1)
        session.connected(kind.version, window)
        made = MqttSubscriber if at_once else BlockByBlock
        self.subscriber = made(cast(Any, Engine()), session, kind, self._write, False)
        self.subscriber.set_filters(filters)

    def _write(self, data: bytes) -> None:
        self.wire += data
        self._left -= len(data)
        if self._left <= 0:
            self.subscriber.socket_full()

    def take(self, page: Page, packets: PacketsCache, start: int) -> None:
        """All of a page from an offset on."""
        subscriber, broker = self.subscriber, cast(Any, self.subscriber.broker)
        subscriber.lagging[GROUP] = start
        wanted: Wanted = {topic: None for topic in page.index if subscriber.grant(topic) is not None}
        asked = AskedPages(broker, 1 << 20)
        while not PageDelivery(broker, page, packets, asked).give(subscriber, wanted):
            self.stops.append(subscriber.lagging[GROUP])
            session = subscriber.session
            session.on_pubrecs([i for i, entry in session.unacknowledged.items() if entry[2] == 2])
            session.on_pubcomps(list(session.released))
            session.on_pubacks(list(session.unacknowledged))
            subscriber.acknowledged()
            self._left = self._socket
            subscriber.socket_drained()
            assert not subscriber.blocked


@settings(max_examples=100, deadline=None)
@given(pages(), st.data())
def test_a_page_at_once_is_the_page_block_by_block(page: Page, data: st.DataObject) -> None:
    cache = PacketsCache(cast(Any, Engine()), 1 << 20)
    socket = data.draw(st.sampled_from([1, 100, 1 << 30]), "socket")
    with patch.object(page_packets, "JOINED_RUNS", data.draw(st.sampled_from([1, 2, 3, 64]), "joined")):
        members_get_the_same(page, cache, socket, data)


def members_get_the_same(page: Page, cache: PacketsCache, socket: int, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3), "members")):
        kind = Kind(data.draw(st.sampled_from([4, 5])), False, data.draw(st.sampled_from([0, 20])))
        filters = data.draw(st.dictionaries(st.sampled_from(FILTERS), GRANTS, min_size=1))
        window = data.draw(st.sampled_from([1, 3, 1_000]), "window")
        start = data.draw(st.integers(page.start, page.end), "start")
        quick, slow = [Member(kind, filters, window, socket, at_once) for at_once in (True, False)]
        for member in (quick, slow):
            member.take(page, cache, start)
        assert quick.wire == slow.wire
        assert quick.subscriber.session.sent == slow.subscriber.session.sent
        if socket > 100:  # else the one looks at the socket more often than the other, and is acknowledged in between
            assert quick.subscriber.session.unacknowledged == slow.subscriber.session.unacknowledged
            assert quick.stops == slow.stops


def run(topic: int, count: int, qos: int = 1, expiry_ms: int = 0) -> Run:
    return Run(0, topic, qos, RAW, expiry_ms, None, -1, count)


def test_where_the_window_is_used_up_the_cursor_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for write_bytes in (1, 1 << 20):
        monkeypatch.setattr(mqtt_subscriber, "WRITE_BYTES", write_bytes)
        page = Page(GROUP, 0, 20, [block(0, [run(0, 4), run(1, 3), run(0, 3)], 0), block(10, [run(0, 5)], 5)])
        member = Member(Kind(4), {b"a": Grant(1)}, 3, 1 << 30, True)
        member.take(page, PacketsCache(cast(Any, Engine()), 1 << 20), 0)
        # 0 1 2 | 3 7 8 | 9 10 11 | 12 13 14
        assert member.stops == [3, 9, 12]


def test_a_full_socket_is_noticed_within_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt_subscriber, "WRITE_BYTES", 100)
    monkeypatch.setattr(page_packets, "JOINED_BYTES_MAX", 100)
    page = Page(GROUP, 0, 100, [block(at, [run(0, 10)], 0) for at in range(0, 100, 10)])
    member = Member(Kind(5), {b"a": Grant(1)}, 1_000, 1, True)
    member.take(page, PacketsCache(cast(Any, Engine()), 1 << 20), 0)
    assert member.stops[:3] == [10, 20, 30]


def test_what_is_gathered_goes_out_in_one_write_as_long_as_it_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [Page(GROUP, at, at + 10, [block(at, [run(0, 10)], 0)]) for at in range(0, 100, 10)]
    wires: list[list[bytes]] = []
    for gather, write_bytes in ((False, 1 << 20), (True, 1 << 20), (True, 300)):
        monkeypatch.setattr(mqtt_subscriber, "WRITE_BYTES", write_bytes)
        member = Member(Kind(4), {b"a": Grant(1)}, 1_000, 1 << 30, True)
        written: list[bytes] = []
        member.subscriber.send = written.append  # each write by itself
        if gather:
            member.subscriber.gather()
        for page in pages:
            member.take(page, PacketsCache(cast(Any, Engine()), 1 << 20), page.start)
        member.subscriber.send_gathered()
        wires.append(written)
    assert len({b"".join(written) for written in wires}) == 1
    assert len(wires[0]) == len(pages)
    assert len(wires[1]) == 1
    assert 1 < len(wires[2]) < len(pages)


def test_members_share_what_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Grant] = []
    encode = PagePackets._encode

    def counted(self: PagePackets, kind: Kind, grant: Grant, *rest: Any) -> Any:
        made.append(grant)
        return encode(self, kind, grant, *rest)

    monkeypatch.setattr(PagePackets, "_encode", counted)
    monkeypatch.setattr(page_packets, "JOINED_RUNS", 1)
    page = Page(GROUP, 0, 30, [block(at, [run(0, 10)], 0) for at in (0, 10, 20)])
    cache = PacketsCache(cast(Any, Engine()), 1 << 20)
    for _ in range(10):
        Member(Kind(4), {b"a": Grant(1)}, 1_000, 1 << 30, True).take(page, cache, 0)
    assert len(made) == 3
    for _ in range(2):
        Member(Kind(4), {b"a": Grant(1, ids=(7,))}, 1_000, 1 << 30, True).take(page, cache, 0)
    assert len(made) == 9  # identifiers are not shared between visits


def test_members_share_the_runs_of_a_topic_that_were_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = 0
    join = PagePackets._join

    def counted(self: PagePackets, *runs: Any) -> Any:
        nonlocal joined
        joined += 1
        return join(self, *runs)

    monkeypatch.setattr(PagePackets, "_join", counted)
    page = Page(GROUP, 0, 30, [block(at, [run(0, 1)], 0) for at in range(30)])
    cache = PacketsCache(cast(Any, Engine()), 1 << 20)
    for window in (1_000, 1_000, 7):
        member = Member(Kind(4), {b"a": Grant(1)}, window, 1 << 30, True)
        member.take(page, cache, 0)
        assert member.subscriber.session.sent == 30
    assert joined == 1


def test_single_messages_of_a_topic_are_decompressed_together() -> None:
    engine = cast(Any, Engine())
    decompressed, calls = engine.encoder.decompressed, list[int]()

    def counted(
        encoding: int, dictionary: int | None, stored: list[bytes | None], room: Room | None = None
    ) -> list[bytes | None]:
        calls.append(len(stored))
        found: list[bytes | None] = decompressed(encoding, dictionary, stored, room)
        return found

    engine.encoder.decompressed = counted
    runs = [run(0, 1)._replace(encoding=DEFLATE if at % 3 else RAW) for at in range(30)]
    page = Page(GROUP, 0, 30, [block(at, [each], 0) for at, each in enumerate(runs)])
    member = Member(Kind(4), {b"a": Grant(1)}, 1_000, 1 << 30, True)
    member.take(page, PacketsCache(engine, 1 << 20), 0)
    assert calls == [20]
    plain = Member(Kind(4), {b"a": Grant(1)}, 1_000, 1 << 30, False)
    plain.take(page, PacketsCache(engine, 1 << 20), 0)
    assert member.wire == plain.wire


def test_what_expires_between_two_visits_is_not_sent_in_the_second() -> None:
    engine = Engine()
    page = Page(GROUP, 0, 4, [block(0, [run(0, 2, expiry_ms=2_000), run(0, 2)], 0)])
    cache = PacketsCache(cast(Any, engine), 1 << 20)
    for now_us, count in ((NOW_US, 4), (NOW_US + 1_000_000, 2)):
        engine.now_us = now_us
        member = Member(Kind(5), {b"a": Grant(1)}, 1_000, 1 << 30, True)
        member.take(page, cache, 0)
        assert len(member.subscriber.session.unacknowledged) == count


def test_what_is_kept_of_pages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [Page(GROUP, at, at + 10, [block(at, [run(0, 10)], 0)]) for at in range(0, 1_000, 10)]
    cache = PacketsCache(cast(Any, Engine()), 50_000)
    for page in pages:
        Member(Kind(4), {b"a": Grant(1)}, 1_000, 1 << 30, True).take(page, cache, page.start)
    assert 1 < len(cache._made) < 20
    # Nor does it grow with members that have nothing in common.
    monkeypatch.setattr(page_packets, "MADE_BYTES_MAX", 10_000)
    for limit in range(1_000, 1_100):
        Member(Kind(5, False, limit), {b"a": Grant(1)}, 1_000, 1 << 30, True).take(pages[0], cache, 0)
    assert cache.of(pages[0]).size_bytes < 30_000
