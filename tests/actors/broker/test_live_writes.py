"""What one message of a coordinator brings a connection is one write, in order, whatever became of others meanwhile."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable
from typing import Any, cast

import pytest

from lexicast.actors.broker.catching_up.block_cache import BlockCache
from lexicast.actors.broker.content.content_fanout import ContentFanout
from lexicast.actors.broker.content.predicate_table import PredicateTable
from lexicast.actors.broker.dictionaries.keeper import DictionaryKeeper
from lexicast.actors.broker.encoding import BlockView, Encoder, Grant, Kind
from lexicast.actors.broker.fanout import Fanout
from lexicast.actors.broker.live_delivery import LiveDelivery
from lexicast.actors.broker.pipelines.stored_compression import StoredCompression
from lexicast.actors.broker.security.rights import Rights
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.actors.mqtt import subscriber as mqtt_subscriber
from lexicast.actors.mqtt.codec import PacketReader
from lexicast.actors.mqtt.codec.packets import PublishRun
from lexicast.actors.mqtt.session import Session
from lexicast.actors.mqtt.subscriber import MqttSubscriber
from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, pack_meta
from lexicast.cluster.clock import SystemClock
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

    def _fetch(self, dictionary: int) -> Awaitable[object]:
        raise AssertionError("there are none")

    def lagged(self, subscriber: Subscriber) -> None:
        raise AssertionError("nobody lags")

    def view(self, block: Block) -> BlockView:
        return BlockView(block, 0)

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
