"""Topic streams from the fan-out to decoders: whatever comes in between, every receiver has exactly what was published.

The broker's side is real (fan-out, encoder, streamer, MQTT and link subscribers), and so are both decoders; blocks come
from a list instead of coordinators.
"""

from __future__ import annotations

import asyncio
import random
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lexicast.actors.broker import streaming
from lexicast.actors.broker.dictionaries.link_choice import BINDING_BYTES, ConnectionDictionaries, DictionaryLinks
from lexicast.actors.broker.dictionaries.tagging import Instead
from lexicast.actors.broker.encoding import LINK, BlockView, EncodedBlock, Encoder, Grant, Kind
from lexicast.actors.broker.fanout import Fanout
from lexicast.actors.broker.live_delivery import LiveWrites
from lexicast.actors.broker.security.rights import ClientRights, Rights
from lexicast.actors.broker.streaming import BURST_S, UNIT_BYTES, Pace, Streamer
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.actors.client.decoder import Decoder, Frames
from lexicast.actors.client.dictionaries import Dictionaries
from lexicast.actors.mqtt.codec import PacketReader
from lexicast.actors.mqtt.codec.packets import V5, PublishRun
from lexicast.actors.mqtt.session import Session
from lexicast.actors.mqtt.subscriber import MqttSubscriber
from lexicast.cluster.blocks import FIRST_DICTIONARY, PUBLICATIONS, STREAMED, Block, Meta, ProducerRun, Run, pack_meta
from lexicast.cluster.errors import DictionaryError
from lexicast.compression.codecs import DEFLATE_PRESET, FIELDS, ZSTD, ZSTD_DENSE
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.opted_out_topics import OptedOut
from lexicast.compression.session import ClientSession, Deliver
from lexicast.compression.streams import topic_stream, topic_streams
from lexicast.compression.streams.frames import is_frame
from lexicast.compression.streams.topic_stream import KEY_INTERVAL
from lexicast.compression.streams.topic_streams import TopicStreams
from lexicast.compression.training import train
from lexicast.compression.wire import LAST_BROKER_ALIAS, AliasTable, Recoder

FAMILY = b"line/+"
TOPICS = [b"line/a", b"line/b", b"line/c"]
SECRET = b"line/secret"
ADMITTED = TopicStreams.ADMITTED_AFTER
ALWAYS = 1_000_000
WINDOW = 40


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

    def _newest(self, topic: bytes) -> Dictionary | None:
        return None if self.opted_out(topic) else self.newest

    def publish(self, runs: list[tuple[bytes, int, int]], compressed: bool = False) -> Block:
        """A block with these runs of (topic, count, qos), delivered live."""
        names = tuple(dict.fromkeys([topic for topic, _, _ in runs]))
        payloads = [text(self.head + n) for n in range(sum([count for _, count, _ in runs]))]
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
        assert decoded.error is None
        self.got += [(message.topic.encode(), message.payload) for message in decoded.messages]


Receiver = MqttReceiver | LinkReceiver
COUNTS = st.integers(1, ADMITTED) | st.integers(1, WINDOW) | st.integers(1, 2 * KEY_INTERVAL)
RUNS = st.lists(st.tuples(st.sampled_from(TOPICS), COUNTS, st.integers(0, 2)), min_size=1, max_size=4)


class Streams(RuleBasedStateMachine):
    """Receivers of all kinds that join, stop and go on, while dictionaries change."""

    @initialize()
    def begin(self) -> None:
        self.broker = Broker()
        self.receivers: list[tuple[Receiver, int]] = []
        self.version = 0
        self.join(0, False)

    @rule(kind=st.integers(0, 3), drops=st.booleans())
    def join(self, kind: int, drops: bool) -> None:
        if len(self.receivers) < 6:
            receiver: Receiver = LinkReceiver(self.broker, drops)
            if kind != 3:
                receiver = MqttReceiver(self.broker, kind, drops, window=WINDOW)
            receiver.subscriber.reads_zstd = kind != 1
            self.broker.subscribe(receiver.subscriber, FAMILY, Grant(qos=receiver.qos))
            self.receivers.append((receiver, self.broker.head))

    @rule(runs=RUNS, compressed=st.booleans())
    def publish(self, runs: list[tuple[bytes, int, int]], compressed: bool) -> None:
        self.broker.publish(runs, compressed)

    @rule()
    def learn(self) -> None:
        self.version += 1
        self.broker.learn(self.version)

    @rule(who=st.integers(0, 5))
    def stop(self, who: int) -> None:
        if who < len(self.receivers) and not self.receivers[who][0].subscriber.drops:
            self.receivers[who][0].subscriber.block()

    @rule(who=st.integers(0, 5))
    def go_on(self, who: int) -> None:
        if who < len(self.receivers):
            self.broker.catch_up(self.receivers[who][0].subscriber)

    @precondition(lambda self: len(self.receivers) > 1)
    @rule(who=st.integers(0, 5), topic=st.sampled_from(TOPICS))
    def leave_a_topic_for_a_while(self, who: int, topic: bytes) -> None:
        """A filter that misses one topic, and gets it back: holes in one stream alone."""
        receiver, _ = self.receivers[who % len(self.receivers)]
        subscriber = receiver.subscriber
        if subscriber.lagging or subscriber.blocked:
            return
        subscriber.drop_filter(FAMILY)
        self.broker.fanout.remove([FAMILY], subscriber)
        others = [each for each in TOPICS if each != topic]
        for each in others:
            self.broker.subscribe(subscriber, each, Grant(qos=receiver.qos))
        block = self.broker.publish([(each, 30, 0) for each in TOPICS])
        for each in others:
            subscriber.drop_filter(each)
            self.broker.fanout.remove([each], subscriber)
        self.broker.subscribe(subscriber, FAMILY, Grant(qos=receiver.qos))
        # as if it had got them from elsewhere
        missed = self.broker.sent[block.first :]
        assert receiver.got[-60:] == [each for each in missed if each[0] != topic]
        receiver.got[-60:] = missed

    @invariant()
    def everybody_has_exactly_what_was_published(self) -> None:
        for receiver, since in getattr(self, "receivers", ()):
            wanted = self.broker.sent[since:]
            if receiver.subscriber.lagging:
                assert receiver.got == wanted[: len(receiver.got)]
            else:
                assert receiver.got == wanted

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.broker.loop.close()


TestStreams = Streams.TestCase
TestStreams.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


class StreamsThatGoOver(Streams):
    """The same where streams go over from DEFLATE to zstd and back as often as they can, and begin anew soon."""

    @initialize()
    def begin(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(topic_stream._OtherTrial, "pays", True)
        self.patch.setattr(topic_stream, "ZSTD_TRIED_BYTES", 0)
        self.patch.setattr(topic_stream, "KEY_INTERVAL", 5)
        self.patch.setattr(topic_streams, "ASKED_EVERY", 2)
        super().begin()

    def teardown(self) -> None:
        super().teardown()
        self.patch.undo()


TestStreamsThatGoOver = StreamsThatGoOver.TestCase
TestStreamsThatGoOver.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_streams_that_go_over_are_read_by_all_who_say_so(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_stream._OtherTrial, "pays", True)
    monkeypatch.setattr(topic_streams, "ASKED_EVERY", 2)
    receivers: list[Receiver] = [LinkReceiver(broker), *[MqttReceiver(broker, qos) for qos in (0, 1, 1)]]
    for receiver in receivers:
        receiver.subscriber.reads_zstd = receiver is not receivers[-1]
        broker.subscribe(receiver.subscriber, FAMILY, Grant(qos=receiver.qos))
    for _ in range(20):
        broker.publish([(b"line/a", 1, 1)])
    assert [receiver.got for receiver in receivers] == [broker.sent] * 4
    assert [receiver.frames for receiver in receivers[:3]] == [20] * 3
    assert 0 < receivers[3].frames < 20


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.loop.close()


@pytest.mark.parametrize("kind", ["qos 0", "qos 1", "link"])
def test_the_second_of_two_gets_frames_when_it_has_missed_as_much_as_the_past_takes(broker: Broker, kind: str) -> None:
    def receiver() -> Receiver:
        made = LinkReceiver(broker) if kind == "link" else MqttReceiver(broker, kind == "qos 1")
        broker.subscribe(made.subscriber, FAMILY, Grant(qos=made.qos))
        return made

    qos = 1 if kind == "qos 1" else 0
    first = receiver()
    broker.publish([(b"line/a", ADMITTED, qos)])
    assert first.frames == ADMITTED
    second = receiver()
    broker.publish([(b"line/a", 5, qos)])
    assert (first.frames, second.frames) == (ADMITTED + 5, 0)
    for _ in range(19):
        broker.publish([(b"line/a", 5, qos)])
    assert first.frames == ADMITTED + 100
    assert 50 < second.frames < 100
    assert [payload for _, payload in second.got] == [text(n) for n in range(ADMITTED, ADMITTED + 100)]


def test_a_window_that_was_used_up_within_a_batch_leaves_its_session_out_of_step(broker: Broker) -> None:
    receiver = MqttReceiver(broker, 1, window=WINDOW)
    broker.subscribe(receiver.subscriber, FAMILY, Grant(qos=1))
    broker.publish([(b"line/a", ADMITTED, 1)])
    broker.publish([(b"line/a", WINDOW + 5, 1)])
    assert receiver.frames == ADMITTED + WINDOW
    broker.catch_up(receiver.subscriber)
    broker.publish([(b"line/a", 3, 1)])
    assert receiver.frames == ADMITTED + WINDOW
    assert receiver.got == broker.sent


def test_frames_are_made_once_for_all_that_are_in_step(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    receivers = [MqttReceiver(broker, 0) for _ in range(20)]
    for receiver in receivers:
        broker.subscribe(receiver.subscriber, FAMILY, Grant())
    broker.publish([(b"line/a", ADMITTED, 0)])
    made: list[Any] = []
    shared = Encoder.shared

    def counting(*args: Any, **named: Any) -> Any:
        made.append(args)
        return shared(*args, **named)

    monkeypatch.setattr(Encoder, "shared", counting)
    broker.publish([(b"line/a", 3, 0), (b"line/b", 3, 0)])
    assert len(made) == 1
    assert {receiver.frames for receiver in receivers} == {ADMITTED + 6}


def test_past_the_most_variants_a_block_goes_standalone_and_leaves_out_of_step(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = MqttReceiver(broker, 0)
    broker.subscribe(receiver.subscriber, FAMILY, Grant())
    monkeypatch.setattr(streaming, "VARIANTS_MAX", 0)
    broker.publish([(b"line/a", ADMITTED, 0)])
    monkeypatch.undo()
    broker.publish([(b"line/a", 3, 0)])
    assert receiver.frames == 0
    broker.publish([(b"line/a", KEY_INTERVAL, 0)])
    broker.publish([(b"line/a", 3, 0)])
    assert receiver.frames == 3
    assert receiver.got == broker.sent


def test_who_did_not_ask_gets_no_frame(broker: Broker) -> None:
    old, new = MqttReceiver(broker, 1, streams=False), MqttReceiver(broker, 1)
    for receiver in (old, new):
        broker.subscribe(receiver.subscriber, FAMILY, Grant(qos=1))
    broker.publish([(b"line/a", 50, 1)])
    assert (old.frames, new.frames) == (0, 50)
    assert old.got == new.got


def test_secrets_dictionaries_and_qos_2_are_never_streamed(broker: Broker) -> None:
    receiver = MqttReceiver(broker, 2)
    broker.subscribe(receiver.subscriber, b"#", Grant(qos=2))
    broker.publish([(SECRET, 50, 0)])
    broker.publish([(b"line/a", 50, 2)])
    assert receiver.frames == 0
    broker.publish([(b"line/a", KEY_INTERVAL, 1)])
    broker.publish([(b"line/a", 50, 1)])
    assert receiver.frames in (50, KEY_INTERVAL + 50)
    assert receiver.got == broker.sent


def test_a_flood_goes_standalone_and_slow_topics_as_frames() -> None:
    broker = Broker(records_per_s=100)
    receiver = MqttReceiver(broker, 0)
    broker.subscribe(receiver.subscriber, FAMILY, Grant())
    for _ in range(3):
        broker.publish([(b"line/a", 100 * BURST_S + 1, 0), (b"line/b", ADMITTED, 0)])
    assert receiver.frames == 3 * ADMITTED
    broker.loop.close()


def test_the_pace_counts_kibibytes_and_never_saves_up_more_than_its_burst() -> None:
    pace = Pace(10)
    assert pace.allows(10 * BURST_S, 0)
    pace.charge([b"x" * (20 * UNIT_BYTES)])
    assert not pace.allows(1, 100_000)
    assert pace.allows(1, 200_000)
    assert pace.allows(10 * BURST_S, 3_600_000_000)
    assert not pace.allows(10 * BURST_S + 1, 7_200_000_000)


# -- what a broker should never send


def streamed_block(broker: Broker) -> Block:
    """A block of frames, as a Python client gets it; the first is a key frame."""
    sent: list[bytes] = []
    receiver = LinkReceiver(broker)
    receiver.subscriber._write = sent.append  # type: ignore[attr-defined]  # its own
    broker.subscribe(receiver.subscriber, FAMILY, Grant())
    broker.publish([(b"line/a", ADMITTED, 0)])
    return Block.from_wire(msgpack.unpackb(sent[0], use_list=False))


def decoder_of(broker: Broker) -> Decoder:
    async def fetch(id: int) -> bytes | None:
        return None

    return Decoder(Dictionaries(), fetch)


def test_a_python_client_refuses_frames_that_it_did_not_ask_for_or_cannot_read(broker: Broker) -> None:
    broker.learn(1)
    block, named = streamed_block(broker), dictionary(1)
    decoder = decoder_of(broker)

    def decode(frames: Frames | None, start: int = 0) -> Any:
        return broker.loop.run_until_complete(decoder.decode(block, start, frames=frames))

    assert isinstance(decode(None).error, DictionaryError)
    missing = decode(decoder.frames())
    assert (missing.messages, missing.resume) == ([], block.last + 1)
    assert f"dictionary {named.id:016x}" in str(missing.error)
    decoder._dictionaries.hold(named.pack())
    frames = decoder.frames()
    assert [message.payload for message in decode(frames, 7).messages] == [text(n) for n in range(7, ADMITTED)]
    again = decode(frames, 7)
    assert (again.messages, again.error) == ([], None), "what was read is not read twice"


def test_a_hole_in_the_blocks_is_an_error_and_the_subscription_is_to_begin_anew(broker: Broker) -> None:
    sent: list[bytes] = []
    receiver = LinkReceiver(broker)
    stream = SimpleNamespace(write=receiver.write)
    receiver.subscriber._write = lambda data: stream.write(data)  # type: ignore[attr-defined]  # its own
    broker.subscribe(receiver.subscriber, FAMILY, Grant())
    broker.publish([(b"line/a", ADMITTED, 0)])
    stream.write = sent.append
    broker.publish([(b"line/a", 3, 0)])  # lost
    stream.write = receiver.write
    with pytest.raises(AssertionError, match="does not follow"):
        broker.publish([(b"line/a", 3, 0)])
    assert receiver._frames.lost


def test_a_session_that_cannot_read_a_stream_says_so_and_gets_it_standalone_until_the_past_is_sent(
    broker: Broker,
) -> None:
    receiver = MqttReceiver(broker, 0)
    broker.subscribe(receiver.subscriber, FAMILY, Grant())
    broker.publish([(b"line/a", ADMITTED, 0)])
    broker.streamer.lost(receiver.subscriber, b"line/b")
    broker.publish([(b"line/a", 3, 0)])
    assert receiver.frames == ADMITTED + 3
    broker.streamer.lost(receiver.subscriber, b"line/a")
    broker.publish([(b"line/a", 3, 0)])
    assert receiver.frames == ADMITTED + 3
    for _ in range(30):
        broker.publish([(b"line/a", 5, 0)])
    assert receiver.frames > ADMITTED + 103
    assert receiver.got == broker.sent


def telling(number: int) -> bytes:
    """What fields are better at than bytes."""
    return b'{"number": %d, "speed": %d, "level": %d.%d}' % (number, number * 37 % 900, number % 71, number * 7 % 10)


def test_links_account_what_frames_take_and_get_the_model_that_their_stream_goes_over_to(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "text", telling)
    broker.dictionary_links = DictionaryLinks(
        SimpleNamespace(families=SimpleNamespace(newest=lambda family: broker.newest), crosses=lambda family: False),  # type: ignore[arg-type]  # all that is asked of it
        broker.recoder,
        broker.encoder.savings,
    )
    receivers = [MqttReceiver(broker, qos) for qos in (0, 1, 1)]
    for receiver in receivers:
        broker.subscribe(receiver.subscriber, FAMILY, Grant(qos=receiver.qos))
    broker.publish([(b"line/a", 60, 1)])
    links = [receiver.subscriber.dictionaries.link for receiver in receivers]  # type: ignore[attr-defined]  # MQTT subscribers'
    assert len({link.unclaimed_bytes for link in links}) == 1
    assert links[0].unclaimed_bytes > 60 * 5
    broker.newest = train([telling(n) for n in range(60)], 64 * 1024, FIELDS, family=FAMILY)
    broker.recoder.add(broker.newest)
    for _ in range(400):
        broker.publish([(b"line/a", 5, 1)])
    packed = len(broker.newest.pack())
    for receiver, link in zip(receivers, links, strict=True):
        assert receiver.got == broker.sent
        assert (link.taken, link.paid_bytes) == (1, packed + BINDING_BYTES)
        assert link.saved_bytes > 0
