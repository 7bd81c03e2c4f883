"""Topic streams from the fan-out to decoders: who gets frames, and when; what a client refuses."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import msgpack
import pytest

from lexicast.actors.broker import streaming
from lexicast.actors.broker.dictionaries.keeper import DictionaryKeeper
from lexicast.actors.broker.dictionaries.link_choice import BINDING_BYTES, DictionaryLinks
from lexicast.actors.broker.encoding import Encoder, Grant
from lexicast.actors.broker.streaming import BURST_S, UNIT_BYTES, Pace
from lexicast.actors.client.decoder import Decoder, Frames
from lexicast.actors.client.dictionaries import Dictionaries
from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import DictionaryError
from lexicast.compression.codecs import FIELDS
from lexicast.compression.streams import topic_stream, topic_streams
from lexicast.compression.streams.topic_stream import KEY_INTERVAL
from lexicast.compression.training import train

from ...support.stream_receivers import (
    ADMITTED,
    FAMILY,
    SECRET,
    Broker,
    LinkReceiver,
    MqttReceiver,
    Receiver,
    dictionary,
    text,
)

WINDOW = 40


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
    broker: Broker,
) -> None:
    broker.text = telling
    broker.dictionary_links = DictionaryLinks(
        cast(
            DictionaryKeeper,
            SimpleNamespace(
                families=SimpleNamespace(newest=lambda family: broker.newest), crosses=lambda family: False
            ),
        ),
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
