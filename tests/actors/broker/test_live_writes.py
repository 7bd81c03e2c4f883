"""What one message of a coordinator brings a connection is one write, in order, whatever became of others meanwhile."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast

import msgpack
import pytest

from lexicast.actors.broker.catching_up.block_cache import BlockCache
from lexicast.actors.broker.content.content_fanout import ContentFanout
from lexicast.actors.broker.content.predicate_table import PredicateTable
from lexicast.actors.broker.coordinator_events import CoordinatorEvents
from lexicast.actors.broker.coordinators import Coordinators
from lexicast.actors.broker.dictionaries.keeper import DictionaryKeeper
from lexicast.actors.broker.encoding import BlockView, Encoder, Grant, Kind
from lexicast.actors.broker.fanout import Fanout
from lexicast.actors.broker.live_delivery import LiveDelivery
from lexicast.actors.broker.pipelines.stored_compression import StoredCompression
from lexicast.actors.broker.python_clients.group_streams import GroupStream
from lexicast.actors.broker.python_clients.streams import ClientStreams, LinkStream
from lexicast.actors.broker.security.rights import Rights
from lexicast.actors.broker.shares.dealt_blocks import DealtBlock, DealtPart
from lexicast.actors.broker.shares.shared_members import SharedMembers, ShareKey, _Joined
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.actors.link.gathered_writes import GatheredWrites
from lexicast.actors.mqtt import subscriber as mqtt_subscriber
from lexicast.actors.mqtt.codec import PacketReader
from lexicast.actors.mqtt.codec.packets import PublishRun
from lexicast.actors.mqtt.session import Session
from lexicast.actors.mqtt.subscriber import MqttSubscriber
from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, ProducerRun, Run, pack_meta
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.selection import offsets_of
from lexicast.compression.wire import AliasTable, Recoder


class Engine:
    """What delivers."""

    def __init__(self) -> None:
        recoder, self.aliases, self.rights = Recoder(), AliasTable(), Rights()
        dictionaries = DictionaryKeeper(recoder, SystemClock(), [])
        self.encoder = Encoder(recoder, self.aliases, dictionaries.newest)
        self.fanout = Fanout(100)
        compression = StoredCompression(recoder, dictionaries.newest, 0)
        cache = BlockCache(1 << 20)
        parts = (self.aliases, compression, cache, self.fanout, ContentFanout(PredicateTable(), 100), self.encoder)
        self.live = LiveDelivery(SystemClock(), dictionaries, self._fetch, *parts)
        self.subscriptions = self
        self.shares = SharedMembers(Coordinators(100, 100, 1.0), 1.0, self.view, cache.same)
        self.now_us = 0

    def _fetch(self, dictionary: int) -> Awaitable[object]:
        raise AssertionError("there are none")

    def lagged(self, subscriber: Subscriber) -> None:
        raise AssertionError("nobody lags")

    def view(self, block: Block) -> BlockView:
        return BlockView(block, self.now_us)

    def subscriber(self, qos: int, topic_filter: bytes = b"#") -> tuple[MqttSubscriber, list[bytes]]:
        """A session's connection, and what is written to it."""
        written: list[bytes] = []
        session = Session("me", b"uid", 1)
        session.connected(4, 100)
        subscriber = MqttSubscriber(cast(Any, self), session, Kind(4), written.append, False)
        self.fanout.insert({topic_filter: Grant(qos)}, subscriber)
        return subscriber, written


def wire(group: int, payload: bytes, qos: int = 0) -> tuple[Any, ...]:
    run = Run(0, 0, qos, 0, 0, None, -1, 1)
    meta = pack_meta(Meta((b"t/%d" % group,), (run,), (), (), (), ()))
    return Block(group, 1, 0, 0, 0, PUBLICATIONS, meta, array("I", [len(payload)]).tobytes(), payload).to_wire()


def payloads(written: list[bytes]) -> list[list[bytes]]:
    """Write by write."""
    reader = PacketReader(1 << 20, version=4)
    return [[p for run in reader.feed(data) for p in cast(PublishRun, run).payloads] for data in written]


@pytest.mark.parametrize("qos", [0, 1])
async def test_the_blocks_of_one_message_are_one_write_a_connection(qos: int) -> None:
    engine = Engine()
    _, everything = engine.subscriber(qos)
    _, some = engine.subscriber(qos, b"t/1")
    engine.live.on_blocks([wire(group, b"%d" % group, qos) for group in range(3)])
    engine.live.on_blocks([wire(3, b"3", qos)])
    assert payloads(everything) == [[b"0", b"1", b"2"], [b"3"]]
    assert payloads(some) == [[b"1"]]


class LinkOfClient:
    """A Python client's; `written`: write by write."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed, self.writable = False, True
        self._gathered = GatheredWrites(self.send_packed)
        self.gather_packed, self.flush = self._gathered.hold, self._gathered.flush

    def send_packed(self, data: bytes) -> None:
        self.written.append(data)

    def blocks(self) -> list[list[int]]:
        """The groups of the blocks, write by write."""
        found = []
        for data in self.written:
            unpacker = msgpack.Unpacker(use_list=False)
            unpacker.feed(data)
            found.append([Block.from_wire(wire).group for _, _, wires in unpacker for wire in wires])
        return found


async def test_the_blocks_of_one_message_are_one_write_to_a_python_client() -> None:
    engine, link = Engine(), LinkOfClient()
    client = ClientStreams(cast(Any, engine), cast(Any, link))
    streams = [LinkStream(cast(Any, engine), client, number, False, False) for number in (1, 2)]
    engine.fanout.insert({b"#": Grant()}, streams[0])
    engine.fanout.insert({b"t/1": Grant()}, streams[1])
    engine.live.on_blocks([wire(group, b"%d" % group, 1) for group in range(3)])
    engine.live.on_blocks([wire(3, b"3", 1)])
    assert link.blocks() == [[0, 1, 1, 2], [3]]


async def test_what_a_share_deals_is_one_write_to_a_python_client() -> None:
    engine, link = Engine(), LinkOfClient()
    client = ClientStreams(cast(Any, engine), cast(Any, link))
    stream = client.members[1] = GroupStream(cast(Any, engine), client, 1, "s", b"#", Grant())
    engine.shares._members[ShareKey("s", b"#", "me")] = _Joined(stream, 10, False)
    others = dict.fromkeys(("stored_compression", "dictionaries", "coordinators", "event_columns"))
    subscriptions = SimpleNamespace(filters=None, choosing=None)
    known = SimpleNamespace(live=engine.live, shares=engine.shares, subscriptions=subscriptions, **others)
    events = CoordinatorEvents(cast(Any, known), {}, cast(Any, None), cast(Any, None))

    def deal(groups: range) -> None:
        events.on_deal("s", b"#", tuple([(wire(group, b"%d" % group, 1), (("me", None),)) for group in groups]))

    deal(range(3))
    assert link.blocks() == [[0, 1, 2]]
    link.writable = False  # what comes now waits, but for the first, which shows that it is full
    deal(range(3, 6))
    assert link.blocks() == [[0, 1, 2], [3]]
    link.writable = True
    client.drained()
    assert [group for part in link.blocks() for group in part] == list(range(6))


@pytest.mark.parametrize(("skip", "expiry_ms", "sent"), [(0, 0, [4, 5]), (3, 0, [4, 8]), (0, 1, [4]), (3, 1, [4])])
async def test_a_member_is_sent_what_has_not_expired_and_holds_that(skip: int, expiry_ms: int, sent: list[int]) -> None:
    engine, link = Engine(), LinkOfClient()
    engine.now_us = 10_000
    client = ClientStreams(cast(Any, engine), cast(Any, link))
    stream = GroupStream(cast(Any, engine), client, 1, "s", b"#", Grant())
    runs = (Run(0, 0, 1, 0, 0, None, -1, 1), Run(skip, 0, 1, 0, expiry_ms, None, -1, 1))
    meta = pack_meta(Meta((b"t",), runs, (ProducerRun(b"p", 1, 1, 2),), (), (), ()))
    dealt = Block(3, 1, 4, 5 + skip, 0, PUBLICATIONS, meta, array("I", [1, 1]).tobytes(), b"ab")
    stream.take_dealt([DealtPart(DealtBlock(dealt, engine.view), range(2))])
    assert {group: sorted(offsets) for group, offsets in stream.held().items()} == {3: sent}
    unpacker = msgpack.Unpacker(use_list=False)
    unpacker.feed(b"".join(link.written))
    ((_, _, (wire_,)),) = unpacker
    got = Block.from_wire(wire_)
    assert offsets_of(got) == sent
    assert got.meta.producers == ()
    stream.done([(3, 0, 4)])
    assert stream.held() == ({3: sent[1:]} if sent[1:] else {})


async def test_no_write_grows_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt_subscriber, "WRITE_BYTES", 1_000)
    engine = Engine()
    _, written = engine.subscriber(0)
    engine.live.on_blocks([wire(group, bytes([group]) * 300) for group in range(10)])
    assert [len(each) for each in payloads(written)] == [4, 4, 2]


async def test_a_block_that_cannot_be_delivered_keeps_none_back(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    _, written = engine.subscriber(0)
    broken = (*wire(1, b"1")[:-1], b"")
    engine.live.on_blocks([wire(0, b"0"), broken, wire(2, b"2")])
    engine.live.on_blocks([wire(3, b"3")])
    assert payloads(written) == [[b"0", b"2"], [b"3"]]


async def test_who_has_gone_meanwhile_is_written_nothing() -> None:
    engine = Engine()
    gone, written = engine.subscriber(0)
    engine.live.writes.begin()
    gone.write(b"x")
    gone.closed = True
    engine.live.writes.end()
    assert not written
