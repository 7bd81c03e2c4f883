"""Publications on their way to another broker: what a reader of MQTT makes of the bytes is what went in, in order."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.bridge.link_encoder import HEADS_BYTES_MAX, LinkEncoder, Session
from lexicast.actors.bridge.sent_publications import Form, Outbound
from lexicast.actors.mqtt.codec import PacketReader, write_properties
from lexicast.actors.mqtt.codec.packets import V5, V311
from lexicast.cluster.properties import USER_PROPERTY
from lexicast.compression.session import ClientSession
from lexicast.compression.streams.batches import BATCH_TAG, split_batch
from lexicast.compression.wire import split_tag

from ...support.mqtt_harness import flat

VIA = [("lexicast-via", "a")]
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"a/b", b"x" * 200]),
        st.sampled_from([b"", b"on", b"payload" * 40, b"long" * 5_000]),
        st.integers(0, 2),
        st.booleans(),
        st.booleans(),
    ),
    max_size=20,
)


@pytest.mark.parametrize("version", [V5, V311])
@given(MESSAGES, st.booleans())
def test_packets_are_what_went_in(version: int, given_: list[tuple[bytes, bytes, int, bool, bool]], dup: bool) -> None:
    sent = []
    for number, (topic, payload, qos, retain, via) in enumerate(given_):
        properties = write_properties({USER_PROPERTY: VIA}) if via else b""
        sent.append(
            (number + 1 if qos else 0, Outbound(Form(topic, qos, retain, properties, True), payload, (0, 0, number)))
        )
    reader = PacketReader(1 << 20, version=version)
    encoder = LinkEncoder(version, None, False, 0, 0.0)
    found = list(flat(list(reader.feed(encoder.encode(sent, 0.0, 0, dup)))))
    assert reader.error is None
    assert [(m.topic.encode(), m.payload, m.qos, m.retain, m.packet_id) for m in found] == [
        (m.form.topic, m.payload, m.form.qos, m.form.retain, packet_id) for packet_id, m in sent
    ]
    assert [m.dup for m in found] == [dup and m.qos > 0 for m in found]
    told = [m.properties.get(USER_PROPERTY) for m in found]
    assert told == [VIA if via and version == V5 else None for *_, via in given_]


def batching(batch_s: float) -> LinkEncoder:
    session: Session = ClientSession()
    session.connected(True, batches=True)
    return LinkEncoder(V5, session, True, 1_000, batch_s)


def test_what_is_remembered_of_packets_is_bounded_however_long_their_topics_are() -> None:
    encoder, most = LinkEncoder(V5, None, False, 0, 0.0), 0
    for topic in range(12):
        form = Form(b"%d/" % topic + b"x" * 60_000, 1, False, b"", True)
        for size in range(40):
            sent = encoder.encode([(1, Outbound(form, b"1" * size, (0, 0, 0)))], 0.0, 0)
            assert len(sent) > 60_000 + size
        heads = [head for packets in encoder._packets.values() for head in packets.heads.values()]
        most = max(most, sum(map(len, heads)))
    assert 40 * 60_000 < most <= HEADS_BYTES_MAX


def contents(data: bytes) -> list[tuple[str, list[int]]]:
    """Of each packet the topic and the packet ids in it."""
    reader, found = PacketReader(1 << 20, version=V5), []
    for message in flat(list(reader.feed(data))):
        ids = [message.packet_id]
        if message.payload[0] == BATCH_TAG:
            tag, content = split_tag(message.payload[2:])
            assert tag == 0, "the test's payloads are too short to be compressed"
            ids = [each.packet_id for each in split_batch(content)]
        found.append((message.topic, ids))
    return found


def message(number: int, topic: bytes = b"a", plain: bool = True, properties: bytes = b"") -> tuple[int, Outbound]:
    return number, Outbound(Form(topic, 1, False, properties, plain), b"%d" % number, (0, 0, number))


def test_what_is_at_hand_of_a_topic_is_one_batch_and_keeps_its_order() -> None:
    via = write_properties({USER_PROPERTY: VIA})
    sent = [message(1), message(2, b"b"), message(3), message(4, properties=via), message(5, plain=False), message(6)]
    found = contents(batching(0.0).encode(sent, 0.0, 0))
    assert [ids for topic, ids in found if topic == "a"] == [[1, 3], [4], [5], [6]]
    assert [ids for topic, ids in found if topic == "b"] == [[2]]


def test_with_a_wait_more_joins_until_it_is_due() -> None:
    encoder = batching(0.5)
    assert encoder.encode([message(1)], 10.0, 0) == b""
    assert encoder.encode([message(2)], 10.2, 0) == b""
    assert encoder.due_s == 10.5
    assert contents(encoder.flush(0)) == [("a", [1, 2])]
    assert encoder.due_s is None
    assert encoder.flush(0) == b""


def test_what_is_sent_again_waits_for_nothing() -> None:
    assert contents(batching(0.5).encode([message(1), message(2)], 0.0, 0, dup=True)) == [("a", [1]), ("a", [2])]


@given(st.lists(st.integers(20, 300), min_size=2, max_size=40))
def test_no_packet_is_larger_than_the_other_side_takes(sizes: list[int]) -> None:
    session: Session = ClientSession()
    session.connected(True, batches=True)
    most = 400
    encoder = LinkEncoder(V5, session, True, 64 * 1024, 0.0, most)
    random = Random(7)
    sent = [
        (
            number + 1,
            Outbound(
                Form(b"a", 1, False, write_properties({USER_PROPERTY: VIA}), True), random.randbytes(size), (0, 0, 0)
            ),
        )
        for number, size in enumerate(sizes)
    ]
    data = encoder.encode(sent, 0.0, 0)
    assert sorted(number for _, numbers in contents(data) for number in numbers) == list(range(1, len(sizes) + 1))
    reader = PacketReader(most, version=V5)
    list(reader.feed(data))
    assert reader.error is None
