"""Topic streams from the fan-out to decoders, without a network: a broker's parts that deliver, and who receives.

The broker's side is real (fan-out, encoder, streamer, MQTT and link subscribers), and so are both decoders; blocks come
from a list instead of coordinators.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Callable, Iterable
from functools import cache
from types import SimpleNamespace
from typing import Any

import msgpack

from lexicast.actors.broker.dictionaries.link_choice import ConnectionDictionaries, DictionaryLinks
from lexicast.actors.broker.dictionaries.tagging import Instead
from lexicast.actors.broker.encoding import LINK, BlockView, EncodedBlock, Encoder, Grant, Kind
from lexicast.actors.broker.fanout import Fanout
from lexicast.actors.broker.live_delivery import LiveWrites
from lexicast.actors.broker.security.rights import ClientRights, Rights
from lexicast.actors.broker.streaming import Streamer
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.actors.client.decoder import Decoder
from lexicast.actors.client.dictionaries import Dictionaries
from lexicast.actors.mqtt.codec import PacketReader
from lexicast.actors.mqtt.codec.packets import V5, PublishRun
from lexicast.actors.mqtt.session import Session
from lexicast.actors.mqtt.subscriber import MqttSubscriber
from lexicast.cluster.blocks import FIRST_DICTIONARY, PUBLICATIONS, STREAMED, Block, Meta, ProducerRun, Run, pack_meta
from lexicast.compression.codecs import DEFLATE_PRESET, ZSTD, ZSTD_DENSE
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.opted_out_topics import OptedOut
from lexicast.compression.session import ClientSession, Deliver
from lexicast.compression.streams.frames import is_frame
from lexicast.compression.streams.topic_streams import TopicStreams
from lexicast.compression.wire import LAST_BROKER_ALIAS, AliasTable, Recoder

FAMILY = b"line/+"
SECRET = b"line/secret"
ADMITTED = TopicStreams.ADMITTED_AFTER
ALWAYS = 1_000_000


@cache
def text(number: int) -> bytes:
    """Nothing that a dictionary knows, but much that the message before said too."""
    return b"%s %d" % (random.Random(number // 50).randbytes(24).hex().encode(), number)


def dictionary(version: int) -> Dictionary:
    codec = (ZSTD, DEFLATE_PRESET, ZSTD_DENSE)[version % 3]
    return Dictionary(FAMILY, codec, b"line %d " % version * 20, created_us=version)


class AllAtOnce(DictionaryLinks):
    """Every link gets every dictionary when it is needed first."""

    def __init__(self) -> None:
        """Nothing is accounted."""

    def connection(
        self, client_id: str, send: Callable[[Dictionary], None], rights: ClientRights | None = None
    ) -> ConnectionDictionaries:
        return EveryDictionary(self, client_id, send)


class EveryDictionary(ConnectionDictionaries):
    def form(self, first: EncodedBlock) -> EncodedBlock:
        return first

    def instead(self, lacking: Iterable[int], measure: Callable[[Instead], int]) -> Instead:
        return ()

    def gets(self, dictionary: Dictionary, instead_of_bytes: bool = False) -> bool:
        return True


class Broker:
    """The parts of an engine that deliver."""

    def __init__(self, records_per_s: int = ALWAYS) -> None:
        self.recoder, self.aliases = Recoder(), AliasTable(LAST_BROKER_ALIAS)
        self.newest: Dictionary | None = None
        self.opted_out = OptedOut([SECRET])
        self.encoder = Encoder(self.recoder, self.aliases, self._newest, self.opted_out)
        self.dictionary_links: DictionaryLinks = AllAtOnce()
        self.rights = Rights()
        self.streamer = Streamer(self.recoder, self._newest, self.opted_out, records_per_s)
        self.subscriptions = self
        self.live = SimpleNamespace(writes=LiveWrites())
        self.fanout = Fanout(100, self.streamer)
        self.log: list[Block] = []
        self.sent: list[tuple[bytes, bytes]] = []
        self.head = 0
        self.now_us = 0
        self.loop = asyncio.new_event_loop()
        self.text: Callable[[int], bytes] = text

    def _newest(self, topic: bytes) -> Dictionary | None:
        return None if self.opted_out(topic) else self.newest

    def publish(self, runs: list[tuple[bytes, int, int]], compressed: bool = False) -> Block:
        """A block with these runs of (topic, count, qos), delivered live."""
        names = tuple(dict.fromkeys([topic for topic, _, _ in runs]))
        payloads = [self.text(self.head + n) for n in range(sum([count for _, count, _ in runs]))]
        topics = [topic for topic, count, _ in runs for _ in range(count)]
        self.sent += zip(topics, payloads, strict=True)
        encoding, dictionaries = 0, tuple[int, ...]()
        if compressed and self.newest is not None:
            codec = self.newest.build()
            payloads = [codec.compress(payload) for payload in payloads]
            encoding, dictionaries = FIRST_DICTIONARY, (self.newest.id,)
        made = tuple([Run(0, names.index(topic), qos, encoding, 0, None, -1, count) for topic, count, qos in runs])
        meta = Meta(names, made, (ProducerRun(b"p", 1, 1, len(payloads)),), (), (), dictionaries)
        lengths = array("I", map(len, payloads)).tobytes()
        last = self.head + len(payloads) - 1
        packed = pack_meta(meta)
        block = Block(0, 1, self.head, last, 0, PUBLICATIONS, packed, lengths, b"".join(payloads))
        self.log.append(block)
        self.head = last + 1
        self.now_us += 1_000_000
        self.aliases.next_turn()
        self.fanout.deliver(self.view(block), self.encoder)
        return block

    def learn(self, version: int) -> None:
        self.newest = dictionary(version)
        self.recoder.add(self.newest)

    def view(self, block: Block) -> BlockView:
        return BlockView(block, self.now_us)

    def lagged(self, subscriber: Subscriber) -> None:
        """Nobody is brought up by itself here."""

    def subscribe(self, subscriber: Subscriber, topic_filter: bytes, grant: Grant) -> None:
        subscriber.set_filters({topic_filter: grant})
        self.fanout.insert({topic_filter: grant}, subscriber)

    def catch_up(self, subscriber: Subscriber) -> None:
        subscriber.unblock()
        start = subscriber.lagging.get(0)
        if start is None:
            return
        for block in [block for block in self.log if block.last >= start]:
            if not subscriber.take(block):
                return
        subscriber.caught_up(0)


class MqttReceiver:
    """A dictionary-aware MQTT session and its client."""

    def __init__(
        self, broker: Broker, qos: int, drops: bool = False, streams: bool = True, window: int = 1_000
    ) -> None:
        engine: Any = broker
        session = Session("client", b"", 0, V5, window, 1_000, 10)
        session.connected(V5)
        self.subscriber: Subscriber = MqttSubscriber(engine, session, Kind(V5, True, 0, streams), self.write, drops)
        self.session = session
        self.qos = qos
        self.got: list[tuple[bytes, bytes]] = []
        self.frames = 0
        self._reader = PacketReader(1 << 24, from_client=False, version=V5)
        self._client: ClientSession[None] = ClientSession()
        self._client.connected(True, streams=streams)

    def write(self, data: bytes) -> None:
        for run in self._reader.feed(data):
            assert isinstance(run, PublishRun)
            for payload in run.payloads:
                self.frames += is_frame(payload) and not run.topic.startswith(b"$sdc/")
                steps = self._client.incoming(None, run.topic, payload, 0.0)
                self.got += [(run.topic, step.payload) for step in steps if isinstance(step, Deliver)]
                assert run.topic.startswith(b"$sdc/") or len(steps) == 1, steps
            if run.qos == 1:
                self.session.on_pubacks(run.packet_ids or ())
            elif run.qos == 2:
                self.session.on_pubrecs(run.packet_ids or ())
                self.session.on_pubcomps(run.packet_ids or ())


class LinkReceiver:
    """A Python client's subscription."""

    class _Stream(Subscriber):
        def __init__(self, broker: Broker, write: Any, drops: bool) -> None:
            super().__init__(broker, Kind(LINK, streams=True), drops)
            self._write = write

        def write(self, data: bytes) -> None:
            self._write(data)

    def __init__(self, broker: Broker, drops: bool = False) -> None:
        self.subscriber: Subscriber = self._Stream(broker, self.write, drops)
        self.qos = 0
        self.got: list[tuple[bytes, bytes]] = []
        self.frames = 0
        self._loop = broker.loop
        held = Dictionaries()

        async def fetch(id: int) -> bytes | None:
            known = broker.recoder.get(id)
            return known.pack() if known is not None else None

        self._decoder = Decoder(held, fetch)
        self._frames = self._decoder.frames()

    def write(self, data: bytes) -> None:
        block = Block.from_wire(msgpack.unpackb(data, use_list=False))
        meta = block.meta
        if STREAMED in meta.dictionaries:
            streamed = FIRST_DICTIONARY + meta.dictionaries.index(STREAMED)
            self.frames += sum([run.count for run in meta.runs if run.encoding == streamed])
        decoded = self._loop.run_until_complete(self._decoder.decode(block, block.first, frames=self._frames))
        assert decoded.error is None, decoded.error
        self.got += [(message.topic.encode(), message.payload) for message in decoded.messages]


Receiver = MqttReceiver | LinkReceiver
