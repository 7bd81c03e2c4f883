"""A block that becomes more than there is room for at once is delivered in parts: in order, once, nothing left out."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.broker.catching_up.asked_pages import AskedPages
from lexicast.actors.broker.catching_up.block_cache import BlockCache
from lexicast.actors.broker.catching_up.delivery import PageDelivery
from lexicast.actors.broker.catching_up.packets import PacketsCache
from lexicast.actors.broker.catching_up.pages import Page
from lexicast.actors.broker.content.content_fanout import ContentFanout
from lexicast.actors.broker.content.predicate_table import PredicateTable
from lexicast.actors.broker.dictionaries.keeper import DictionaryKeeper
from lexicast.actors.broker.dictionaries.link_blocks import recoded
from lexicast.actors.broker.encoding import BlockView, Encoder, Grant, Kind
from lexicast.actors.broker.fanout import Fanout
from lexicast.actors.broker.live_delivery import LiveDelivery
from lexicast.actors.broker.pipelines.stored_compression import StoredCompression
from lexicast.actors.broker.security.rights import Rights
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.actors.mqtt.codec import PacketReader
from lexicast.actors.mqtt.codec.packets import PublishRun
from lexicast.actors.mqtt.session import Session
from lexicast.actors.mqtt.subscriber import MqttSubscriber
from lexicast.cluster.blocks import DEFLATE, FIRST_DICTIONARY, PUBLICATIONS, RAW, Block, Meta, Run, pack_meta
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.content.parsed import predicate
from lexicast.cluster.selection import cut_in_two, offsets_of
from lexicast.compression.codecs import ZSTD
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.link_dictionaries import NONE
from lexicast.compression.opening import AT_ONCE_BYTES_MAX
from lexicast.compression.wire import AliasTable, Recoder

COUNT = 40
LARGE = 4 * 1024 * 1024
FIRST = 7


def deflated(payload: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    return packer.compress(payload) + packer.flush()


ZEROS = deflated(bytes(LARGE))
SMALL = b'{"t":1}'


def much(runs: int = 1, qos: int = 1) -> Block:
    """40 payloads of 4 MiB of zeros, and a small one behind each ten of them."""
    stored = ([ZEROS] * (COUNT // 4) + [deflated(SMALL)]) * 4
    each = Run(0, 0, qos, DEFLATE, 0, None, -1, len(stored) // runs)
    meta = Meta((b"t",), (each,) * runs, (), (), (), ())
    lengths = array("I", map(len, stored)).tobytes()
    last = FIRST + len(stored) - 1
    return Block(0, 1, FIRST, last, 0, PUBLICATIONS, pack_meta(meta), lengths, b"".join(stored), meta)


WHOLE = ([(LARGE, 0)] * (COUNT // 4) + [(len(SMALL), SMALL[0])]) * 4
SMALLS = [(len(SMALL), SMALL[0])] * 4


class Engine:
    """What delivers."""

    def __init__(self) -> None:
        self.recoder, self.aliases, self.rights, self.now_us = Recoder(), AliasTable(), Rights(), 0
        dictionaries = DictionaryKeeper(self.recoder, ManualClock(), [])
        self.encoder = Encoder(self.recoder, self.aliases, dictionaries.newest)
        self.fanout, self.predicates = Fanout(100), PredicateTable()
        self.content = ContentFanout(self.predicates, 100)
        compression = StoredCompression(self.recoder, dictionaries.newest, 0)
        parts = (self.aliases, compression, BlockCache(1 << 20), self.fanout, self.content, self.encoder)
        self.live = LiveDelivery(ManualClock(), dictionaries, cast(Any, None), *parts)
        self.subscriptions = self

    def lagged(self, subscriber: Subscriber) -> None:
        """The test goes on with it."""

    def view(self, block: Block) -> BlockView:
        return BlockView(block, self.now_us)


class Client:
    """A session's connection that keeps how long what came was, and how it began; `largest`: of its writes."""

    def __init__(self, engine: Engine, qos: int, where: str = "", window: int = 100, drops: bool = False) -> None:
        self.got: list[tuple[int, int]] = []
        self.ids: list[int] = []
        self.largest = 0
        self._reader = PacketReader(8 << 20, version=4)
        self.session = Session("me", b"uid", 1)
        self.session.connected(4, window)
        self.subscriber = MqttSubscriber(cast(Any, engine), self.session, Kind(4), self._write, drops)
        self.subscriber.start()
        wanted = {b"#": Grant(qos, where=predicate(where) if where else None)}
        self.subscriber.set_filters(wanted)
        (engine.content if where else engine.fanout).insert(wanted, self.subscriber)

    def _write(self, data: bytes) -> None:
        self.largest = max(self.largest, len(data))
        for run in self._reader.feed(data):
            found = cast(PublishRun, run)
            self.got += [(len(payload), payload[0]) for payload in found.payloads]
            self.ids += found.packet_ids or ()

    def drain(self) -> None:
        """It has acknowledged everything, and takes more."""
        self.session.on_pubacks(self.ids)
        self.ids = []
        self.subscriber.acknowledged()

    def catch_up(self, engine: Engine, page: Page) -> None:
        """Page by page, acknowledging in between."""
        packets, asked = PacketsCache(engine, 1 << 20), AskedPages(engine, 1 << 20)
        for _ in range(100):
            making = PageDelivery(engine, page, packets, asked)
            if making.give(self.subscriber, {b"t": None}):
                return
            self.drain()
        raise AssertionError("it is never through")


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.predicates.close()


WHERES = ["", "t = 1"]


@pytest.mark.parametrize("runs", [1, 4])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("where", WHERES)
async def test_live(engine: Engine, runs: int, qos: int, where: str) -> None:
    client = Client(engine, qos, where)
    engine.live.on_blocks([much(runs).to_wire()])
    assert client.got == (SMALLS if where else WHOLE)
    assert client.largest < AT_ONCE_BYTES_MAX + LARGE
    assert not client.subscriber.lagging


async def test_a_condition_that_holds_for_what_has_no_fields(engine: Engine) -> None:
    client = Client(engine, 1, "t IS NULL")
    engine.live.on_blocks([much().to_wire()])
    assert client.got == [(LARGE, 0)] * COUNT


# Where a window takes few, all of a part is opened again for the next few: with 3 of them that took 10 s.
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize(
    ("where", "window"), [("", 100), ("", 3), ("t = 1", 100), ("t = 1", 3), ("t IS NULL", 100), ("t IS NULL", 12)]
)
async def test_caught_up_with(engine: Engine, qos: int, where: str, window: int) -> None:
    block = much()
    client = Client(engine, qos, where, window)
    client.subscriber.lag(0, FIRST, live=False)
    client.catch_up(engine, Page(0, FIRST, block.last + 1, [block]))
    assert client.got == {"": WHOLE, "t = 1": SMALLS, "t IS NULL": [(LARGE, 0)] * COUNT}[where]
    assert client.largest < AT_ONCE_BYTES_MAX + LARGE


@pytest.mark.parametrize("qos", [0, 1])
async def test_out_of_the_cache(engine: Engine, qos: int) -> None:
    client = Client(engine, qos)
    client.subscriber.lag(0, FIRST + 1, live=True)
    assert client.subscriber.take(much())
    assert client.got == WHOLE[1:]
    assert client.subscriber.lagging == {0: FIRST + len(WHOLE)}


async def test_whose_window_is_used_up_goes_on_there(engine: Engine) -> None:
    block = much()
    client = Client(engine, 1, window=3)
    engine.live.on_blocks([block.to_wire()])
    assert client.subscriber.lagging == {0: FIRST + 3}
    client.drain()
    client.catch_up(engine, Page(0, FIRST, block.last + 1, [block]))
    assert client.got == WHOLE


@pytest.mark.parametrize("drops", [False, True])
async def test_whose_socket_is_full_behind_a_part_goes_on_there(engine: Engine, drops: bool) -> None:
    """Also where slow subscribers drop what comes meanwhile: nobody takes 64 MiB in a moment."""
    block = much(qos=0)
    client = Client(engine, 0, drops=drops)
    write = client.subscriber.send

    def full(data: bytes) -> None:
        write(data)
        client.subscriber.socket_full()

    client.subscriber.send = full
    engine.live.on_blocks([block.to_wire()])
    assert 0 < len(client.got) < len(WHOLE)
    assert client.subscriber.lagging == {0: FIRST + len(client.got)}
    client.subscriber.send = write
    client.subscriber.socket_drained()
    client.catch_up(engine, Page(0, FIRST, block.last + 1, [block]))
    assert client.got == WHOLE


def test_a_link_that_lacks_the_dictionary_of_what_has_no_room_gets_it_as_it_is(engine: Engine) -> None:
    """Its client asks for the dictionary; it got empty payloads."""
    held = Dictionary(b"f", ZSTD, b"reading " * 5)
    engine.recoder.add(held)
    stored = [held.build().compress(bytes(LARGE))] * COUNT
    meta = Meta((b"t",), (Run(0, 0, 1, FIRST_DICTIONARY, 0, None, -1, COUNT),), (), (), (), (held.id,))
    lengths = array("I", map(len, stored)).tobytes()
    block = Block(0, 1, 0, COUNT - 1, 0, PUBLICATIONS, pack_meta(meta), lengths, b"".join(stored), meta)
    made = recoded(BlockView(block, 0), ((held.id, NONE),), engine.encoder._tagging)
    assert made.payloads() == stored
    assert made.meta.runs[0].encoding == FIRST_DICTIONARY
    assert made.meta.dictionaries[0] == held.id


def test_a_block_that_is_known_to_fit_is_not_looked_at() -> None:
    recoder, block = Recoder(), much()
    raw: list[bytes | None] = [b""] * block.count
    assert BlockView(block, 0, raw).cut(recoder) is None
    few = cut_in_two(block, 16)[0]
    view = BlockView(few, 0)
    assert view.cut(recoder) is None
    assert view._raw is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=2, max_size=5), st.data())
def test_a_block_cut_in_two_is_the_block(shapes: list[tuple[int, int]], data: st.DataObject) -> None:
    runs = tuple([Run(skip, 0, 1, RAW, 0, None, -1, count) for skip, count in shapes])
    stored = [b"%d" % number for number in range(sum(run.count for run in runs))]
    meta = Meta((b"t",), runs, (), (), (), ())
    lengths, last = array("I", map(len, stored)).tobytes(), sum(map(sum, shapes)) + 1
    block = Block(0, 1, 0, last, 0, PUBLICATIONS, pack_meta(meta), lengths, b"".join(stored), meta)
    at = data.draw(st.integers(1, len(stored) - 1))
    before, behind = cut_in_two(block, at)
    assert before.payloads() + behind.payloads() == stored
    assert offsets_of(before) + offsets_of(behind) == offsets_of(block)
    assert (before.first, before.last + 1, behind.last) == (0, behind.first, last)
    assert behind.first == offsets_of(block)[at]
    for part in (before, behind):
        assert Block.from_wire(part.to_wire()).meta == part.meta
