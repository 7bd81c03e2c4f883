"""The MQTT codec against itself, against vectors made by hand from the standards, and against other codecs."""

from __future__ import annotations

from typing import Any, cast

import mqtt5
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from lexicast.actors.mqtt.codec import (
    PacketReader,
    decode,
    encode_acks,
    encode_packet,
    encode_publish,
    encode_qos0_run,
    encode_qos_run,
    farewell,
    publish_size,
    write_properties,
)
from lexicast.actors.mqtt.codec.packets import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    V5,
    V311,
    Ack,
    AckRun,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    MqttProtocolError,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PublishRun,
    PubRec,
    PubRel,
    Received,
    SubAck,
    Subscribe,
    SubscriptionOptions,
    UnsubAck,
    Unsubscribe,
    Will,
)
from lexicast.actors.mqtt.codec.properties import (
    MAXIMUM_PACKET_BYTES,
    PROPERTIES,
    SUBSCRIPTION_ID,
    TOPIC_ALIAS,
    USER_PROPERTY,
    WILL,
)
from lexicast.actors.mqtt.codec.wire import Body

LIMIT = 1 << 20
VERSIONS = (V311, V5)

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
topics = st.text(st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=20).map(
    str.encode
)
packet_ids = st.integers(1, 65_535)
qos_levels = st.integers(0, 2)
payloads = st.binary(max_size=200)


def _value(identifier: int) -> st.SearchStrategy[Any]:
    """Values that property `identifier` may have."""
    known = PROPERTIES[identifier]
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "u8": st.integers(0, 1),
        "u16": st.integers(max(known.minimum, 1), 65_535),
        "u32": st.integers(
            known.minimum, 2**28 - 1 if identifier == MAXIMUM_PACKET_BYTES else 2**32 - 1
        ),  # paho's limit
        "varint": st.integers(1, 268_435_455),
        "utf8": texts.map(lambda t: t.replace("+", "").replace("#", "") or "x"),
        "binary": payloads,
        "_read_pair": st.tuples(texts, texts),
    }
    value = kinds[known.read.__name__]
    return st.lists(value, min_size=1, max_size=3) if identifier == USER_PROPERTY else value


def properties(packet: int, *without: int) -> st.SearchStrategy[dict[int, Any] | None]:
    """Properties that may stand in `packet`."""
    rows = {i: _value(i) for i, known in PROPERTIES.items() if packet in known.packets and i not in without}
    found = st.fixed_dictionaries({}, optional=cast(dict[Any, Any], rows))
    # authentication data needs a method
    return found.map(lambda p: {k: v for k, v in p.items() if k != 22 or 21 in p} or None)


def maybe(version: int, packet: int, *without: int) -> st.SearchStrategy[dict[int, Any] | None]:
    """Properties in version 5, none in 3.1.1."""
    return properties(packet, *without) if version == V5 else st.none()


def _wills(version: int) -> st.SearchStrategy[Will]:
    return st.builds(Will, topics, payloads, qos_levels, st.booleans(), maybe(version, WILL))


def _connects(version: int) -> st.SearchStrategy[Connect]:
    made = st.builds(
        Connect,
        st.just(version),
        texts,
        st.booleans(),
        st.integers(0, 65_535),
        st.none() | _wills(version),
        st.none() | texts,
        st.none() | payloads,
        maybe(version, CONNECT),
    )
    if version == V5:
        return made
    return made.filter(lambda c: (c.client_id or c.clean_start) and (c.password is None or c.user_name is not None))


def _options(version: int) -> st.SearchStrategy[SubscriptionOptions]:
    if version == V311:
        return st.builds(SubscriptionOptions, qos_levels)
    return st.builds(SubscriptionOptions, qos_levels, st.booleans(), st.booleans(), st.integers(0, 2))


def from_clients(version: int) -> st.SearchStrategy[Packet]:
    """Packets that a client sends after CONNECT, PUBLISH and plain acknowledgements aside."""
    common: list[st.SearchStrategy[Packet]] = [
        st.builds(
            Subscribe,
            packet_ids,
            st.lists(st.tuples(topics.filter(lambda t: not t.startswith(b"$share/")), _options(version)), min_size=1),
            st.none() | st.integers(1, 268_435_455) if version == V5 else st.none(),
            maybe(version, SUBSCRIBE, SUBSCRIPTION_ID),
        ),
        st.builds(Unsubscribe, packet_ids, st.lists(topics, min_size=1), maybe(version, UNSUBSCRIBE)),
        st.just(PingReq()),
    ]
    if version == V311:
        return st.one_of(*common, st.just(Disconnect()))
    return st.one_of(
        *common,
        st.builds(PubAck, packet_ids, st.sampled_from([0x10, 0x80, 0x97]), properties(PUBACK)),
        st.builds(PubRec, packet_ids, st.sampled_from([0x10, 0x80, 0x91]), properties(PUBREC)),
        st.builds(PubRel, packet_ids, st.just(0x92), properties(PUBREL)),
        st.builds(PubComp, packet_ids, st.just(0x92), properties(PUBCOMP)),
        st.builds(Disconnect, st.sampled_from([0, 4, 0x81]), properties(DISCONNECT)),
        st.builds(Auth, st.sampled_from([0, 0x18, 0x19]), properties(AUTH)),
    )


def from_servers(version: int) -> st.SearchStrategy[Packet]:
    """Packets that a server sends, PUBLISH and plain acknowledgements aside."""
    if version == V311:
        return st.one_of(
            st.builds(ConnAck, st.booleans(), st.just(0)),
            st.builds(ConnAck, st.just(False), st.sampled_from([0x84, 0x85, 0x88, 0x86, 0x87]).map(int)),
            st.builds(SubAck, packet_ids, st.lists(st.sampled_from([0, 1, 2, 0x80]), min_size=1)),
            st.builds(UnsubAck, packet_ids),
            st.just(PingResp()),
        )
    return st.one_of(
        st.builds(ConnAck, st.booleans(), st.just(0), properties(CONNACK)),
        st.builds(ConnAck, st.just(False), st.sampled_from([0x81, 0x84, 0x9F]), properties(CONNACK)),
        st.builds(SubAck, packet_ids, st.lists(st.sampled_from([0, 2, 0x8F]), min_size=1), properties(SUBACK)),
        st.builds(UnsubAck, packet_ids, st.lists(st.sampled_from([0, 0x11]), min_size=1), properties(UNSUBACK)),
        st.just(PingResp()),
        st.builds(Disconnect, st.sampled_from([0, 0x8E, 0xA1]), properties(DISCONNECT)),
    )


def publishes(version: int, from_client: bool) -> st.SearchStrategy[Publish]:
    """PUBLISH packets; a server's may hold subscription identifiers."""
    found = maybe(version, PUBLISH, TOPIC_ALIAS, SUBSCRIPTION_ID)
    if version == V5 and not from_client:
        ids = st.lists(st.integers(1, 300_000), min_size=1, max_size=3)
        found |= st.builds(lambda p, i: {**(p or {}), SUBSCRIPTION_ID: i}, found, ids)
    made = st.builds(Publish, topics, payloads, qos_levels, st.booleans(), st.booleans(), packet_ids, found)
    return made.map(_without_id)


def _without_id(packet: Publish) -> Publish:
    if packet.qos:
        return packet
    return Publish(packet.topic, packet.payload, 0, packet.retain, False, 0, packet.properties)


def read(data: bytes, version: int = V5, *, from_client: bool = True, alias_max: int = 0) -> list[Received]:
    """Everything in `data`, which must be complete and right."""
    reader = PacketReader(LIMIT, topic_alias_max=alias_max, from_client=from_client, version=version)
    items = reader.feed(data)
    if reader.error is not None:
        raise reader.error
    assert reader.buffered_bytes == 0
    return items


def singles(items: list[Received]) -> list[Packet]:
    """Runs taken apart, so that they can be compared with what was encoded."""
    made: dict[int, type[Ack]] = {PUBACK: PubAck, PUBREC: PubRec, PUBREL: PubRel, PUBCOMP: PubComp}
    out: list[Packet] = []
    for item in items:
        if isinstance(item, PublishRun):
            ids = item.packet_ids if item.packet_ids is not None else [0] * len(item.payloads)
            out += [
                Publish(item.topic, payload, item.qos, item.retain, item.dup, packet_id, item.properties)
                for payload, packet_id in zip(item.payloads, ids, strict=True)
            ]
        elif isinstance(item, AckRun):
            out += [made[item.kind](packet_id) for packet_id in item.packet_ids]
        else:
            out.append(item)
    return out


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_connect_round_trips_and_sets_the_version(version: int, data: st.DataObject) -> None:
    packet = data.draw(_connects(version))
    reader = PacketReader(LIMIT)
    assert reader.feed(encode_packet(packet, version)) == [packet]
    assert (reader.error, reader.version) == (None, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("from_client", [True, False])
@given(data=st.data())
def test_packets_round_trip_in_order(version: int, from_client: bool, data: st.DataObject) -> None:
    kinds: tuple[type[Ack], ...] = (PubAck, PubRec, PubRel, PubComp)
    acks: st.SearchStrategy[Packet] = st.one_of([st.builds(kind, packet_ids) for kind in kinds])
    others = from_clients(version) if from_client else from_servers(version)
    packets = data.draw(st.lists(others | publishes(version, from_client) | acks, max_size=20))
    encoded = b"".join([encode_packet(packet, version) for packet in packets])
    assert singles(read(encoded, version, from_client=from_client)) == packets


@pytest.mark.parametrize("version", VERSIONS)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"a", b"a/b", b"b/a"]),
            qos_levels,
            st.booleans(),
            st.sampled_from([None, None, None, {1: 1}, {38: [("k", "v")]}]),
            st.lists(st.integers(0, 2) | st.just(130), min_size=1, max_size=60),
        ),
        max_size=8,
    )
)
def test_runs_are_what_packets_one_by_one_are(version: int, runs: list[tuple[Any, ...]]) -> None:
    """Long runs of few lengths, so that the block path is taken, entered and left everywhere."""
    packets = [
        Publish(topic, bytes([n & 255]) * n, qos, retain, False, 1 + n if qos else 0, found if version == V5 else None)
        for topic, qos, retain, found, lengths in runs
        for n in lengths
    ]
    items = read(b"".join([encode_packet(packet, version) for packet in packets]), version)
    assert singles(items) == packets


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_equal_publishes_become_one_run(version: int, qos: int) -> None:
    bodies = [bytes([i]) * 140 for i in range(200)]
    ids = list(range(1, 201))
    if qos:
        encoded = encode_qos_run(version, b"t", bodies, qos, ids, True)
    else:
        encoded = encode_qos0_run(version, b"t", bodies, True)
    assert read(encoded, version) == [PublishRun(b"t", qos, True, False, None, bodies, ids if qos else None)]


@pytest.mark.parametrize("at", [1, 7, 9, 16, 25, 26, 40])
def test_block_path_does_not_swallow_a_different_packet(at: int) -> None:
    """One packet of the same length differs in topic, id or property within what would be a block."""
    same = [encode_publish(V5, b"topic", b"x" * 20, 1, packet_id=i + 1) for i in range(64)]
    for odd, expected in (
        (encode_publish(V5, b"topiC", b"x" * 20, 1, packet_id=9), 3),
        (encode_publish(V5, b"topic", b"x" * 18, 1, packet_id=9, properties={1: 1}), 3),
    ):
        assert len(odd) == len(same[0])
        items = read(b"".join([*same[:at], odd, *same[at:]]))
        assert len(items) == expected
    bad = PacketReader(LIMIT, version=V5)
    items = bad.feed(b"".join([*same[:at], same[0].replace(b"topic\0\1", b"topic\0\0"), *same[at:]]))
    assert bad.error is not None
    assert bad.error.statement == "MQTT-2.2.1-3"
    assert len(cast(PublishRun, items[0]).payloads) == at


@pytest.mark.parametrize("version", VERSIONS)
@given(publishes(V5, False))
def test_publish_size_is_the_encoded_size(version: int, packet: Publish) -> None:
    encoded = write_properties(packet.properties)
    size = publish_size(version, len(packet.topic), len(packet.payload), packet.qos, encoded)
    assert size == len(encode_packet(packet, version))


@pytest.mark.parametrize("version", VERSIONS)
@given(publishes(V5, False), st.lists(payloads, max_size=20))
def test_runs_encode_as_their_packets(version: int, one: Publish, bodies: list[bytes]) -> None:
    encoded = write_properties(one.properties)
    ids = list(range(7, 7 + len(bodies)))
    if one.qos:
        run = encode_qos_run(version, one.topic, bodies, one.qos, ids, one.retain, one.dup, encoded)
    else:
        run = encode_qos0_run(version, one.topic, bodies, one.retain, encoded)
    assert run == b"".join(
        [
            encode_publish(version, one.topic, body, one.qos, one.retain, one.dup, i, one.properties)
            for i, body in zip(ids, bodies, strict=True)
        ]
    )


# Made by hand from the standards' tables and figures.
VECTORS: list[tuple[int, bool, str, Packet]] = [
    (4, True, "10 0f 0004 4d515454 04 02 003c 0003 616263", Connect(4, "abc", True, 60)),
    (
        4,
        True,
        "10 20 0004 4d515454 04 ee 000a 0001 63 0001 77 0003 627965 0001 75 0006 736563726574",
        Connect(4, "c", True, 10, Will(b"w", b"bye", 1, True), "u", b"secret"),
    ),
    (
        5,
        True,
        "10 1f 0004 4d515454 05 06 0000 05 11 0000000a 0001 63 05 18 00000005 0001 77 0001 78",
        Connect(5, "c", True, 0, Will(b"w", b"x", 0, False, {24: 5}), None, None, {17: 10}),
    ),
    (4, False, "20 02 01 00", ConnAck(True)),
    (4, False, "20 02 00 05", ConnAck(False, 0x87)),
    (5, False, "20 06 00 00 03 21 0014", ConnAck(False, 0, {33: 20})),
    (4, True, "31 05 0003 612f62", Publish(b"a/b", b"", 0, True)),
    (4, True, "3a 08 0003 612f62 000a 21", Publish(b"a/b", b"!", 1, False, True, 10)),
    (5, True, "34 09 0001 74 0007 02 0101 21", Publish(b"t", b"!", 2, False, False, 7, {1: 1})),
    (4, True, "40 02 1234", PubAck(0x1234)),
    (5, True, "50 03 0001 80", PubRec(1, 0x80)),
    (5, True, "62 04 0001 92 00", PubRel(1, 0x92)),
    (5, True, "70 02 ffff", PubComp(65_535)),
    (
        4,
        True,
        "82 0e 000a 0003 612f62 01 0003 632f64 02",
        Subscribe(10, [(b"a/b", SubscriptionOptions(1)), (b"c/d", SubscriptionOptions(2))]),
    ),
    (5, True, "82 0a 0001 03 0bff7f 0001 23 2d", Subscribe(1, [(b"#", SubscriptionOptions(1, True, True, 2))], 16383)),
    (4, False, "90 05 000a 00 02 80", SubAck(10, [0, 2, 0x80])),
    (5, False, "90 05 000a 00 02 8f", SubAck(10, [2, 0x8F])),
    (4, True, "a2 07 000a 0003 612f62", Unsubscribe(10, [b"a/b"])),
    (5, True, "a2 08 000a 00 0003 612f62", Unsubscribe(10, [b"a/b"])),
    (4, False, "b0 02 000a", UnsubAck(10)),
    (5, False, "b0 04 000a 00 11", UnsubAck(10, [0x11])),
    (4, True, "c0 00", PingReq()),
    (4, False, "d0 00", PingResp()),
    (4, True, "e0 00", Disconnect()),
    (5, True, "e0 01 04", Disconnect(4)),
    (5, False, "e0 09 8e 07 1f 0004 6d696e65", Disconnect(0x8E, {31: "mine"})),
    (5, True, "f0 06 18 04 15 0001 78", Auth(0x18, {21: "x"})),
]


@pytest.mark.parametrize(("version", "from_client", "text", "packet"), VECTORS, ids=[v[2][:40] for v in VECTORS])
@pytest.mark.mqtt("MQTT-2.2.1-2")
def test_vectors(version: int, from_client: bool, text: str, packet: Packet) -> None:
    data = bytes.fromhex(text)
    known = 0 if isinstance(packet, Connect) else version
    assert singles(read(data, known, from_client=from_client)) == [packet]
    if data != bytes.fromhex("6204 0001 92 00"):  # written shorter, without the empty properties
        assert encode_packet(packet, version) == data


# (version, whose packet, bytes, reason code, statement) of what must be refused.
REFUSED: list[tuple[int, bool, str, int, str]] = [
    (0, True, "c0 00", 0x82, "MQTT-3.1.0-1"),
    (0, True, "30 05 0003 612f62", 0x82, "MQTT-3.1.0-1"),
    (0, True, "40 02 0001", 0x82, "MQTT-3.1.0-1"),
    (0, True, "11 0f 0004 4d515454 04 02 003c 0003 616263", 0x81, "MQTT-2.1.3-1"),
    (0, True, "10 0f 0004 4d515454 03 02 003c 0003 616263", 0x84, "MQTT-3.1.2-2"),
    (0, True, "10 0f 0004 4d515454 06 02 003c 0003 616263", 0x84, "MQTT-3.1.2-2"),
    (0, True, "10 11 0006 4d5149736470 02 02 003c 0003 616263", 0x84, "MQTT-3.1.2-2"),
    (0, True, "10 0f 0004 48545450 04 02 003c 0003 616263", 0x84, "MQTT-3.1.2-1"),
    (0, True, "10 0f 0004 4d515454 04 03 003c 0003 616263", 0x81, "MQTT-3.1.2-3"),
    (0, True, "10 0f 0004 4d515454 04 1e 003c 0003 616263", 0x81, "MQTT-3.1.2-12"),
    (0, True, "10 0f 0004 4d515454 04 0a 003c 0003 616263", 0x81, "MQTT-3.1.2-11"),
    (0, True, "10 0f 0004 4d515454 04 22 003c 0003 616263", 0x81, "MQTT-3.1.2-13"),
    (0, True, "10 0f 0004 4d515454 04 42 003c 0003 616263", 0x81, "MQTT-3.1.2-22"),
    (0, True, "10 0f 0004 4d515454 04 82 003c 0003 616263", 0x81, "MQTT-4.13.1-1"),
    (0, True, "10 0c 0004 4d515454 04 00 003c 0000", 0x85, "MQTT-3.1.3-8"),
    (0, True, "10 10 0004 4d515454 04 02 003c 0003 616263 00", 0x81, "MQTT-4.13.1-1"),
    (0, True, "10 0f 0004 4d515454 04 02 003c 0003 61ff63", 0x81, "MQTT-1.5.4-1"),
    (0, True, "10 0f 0004 4d515454 04 02 003c 0003 eda080", 0x81, "MQTT-1.5.4-1"),
    (0, True, "10 0f 0004 4d515454 04 02 003c 0003 610063", 0x81, "MQTT-1.5.4-2"),
    (4, True, "10 0f 0004 4d515454 04 02 003c 0003 616263", 0x82, "MQTT-3.1.0-2"),
    (4, True, "00 00", 0x81, "MQTT 5.0 2.1.2"),
    (4, True, "f0 00", 0x82, "MQTT 3.1.1 2.2.1"),
    (4, True, "36 08 0003 612f62 000a 21", 0x81, "MQTT-3.3.1-4"),
    (4, True, "38 05 0003 612f62", 0x81, "MQTT-3.3.1-2"),
    (4, True, "32 07 0003 612f62 0000", 0x82, "MQTT-2.2.1-3"),
    (4, True, "32 06 0003 612f62 01", 0x81, "MQTT-2.2.1-3"),
    (4, True, "30 04 0003 612f", 0x81, "MQTT-3.3.2-1"),
    (4, True, "30 01 00", 0x81, "MQTT-3.3.2-1"),
    (4, True, "30 02 0000", 0x81, "MQTT-3.3.2-2"),
    (4, True, "30 05 0003 612f23", 0x81, "MQTT-3.3.2-2"),
    (4, True, "30 05 0003 2b2f62", 0x81, "MQTT-3.3.2-2"),
    (4, True, "30 05 0003 610062", 0x81, "MQTT-1.5.4-2"),
    (4, True, "30 05 0003 61ff62", 0x81, "MQTT-1.5.4-1"),
    (5, True, "30 03 0001 74", 0x81, "MQTT-4.13.1-1"),
    (5, True, "30 03 0000 00", 0x82, "MQTT 5.0 3.3.2.1"),
    (5, True, "30 07 0001 74 03 23 0000", 0x94, "MQTT-3.3.2-8"),
    (5, True, "30 07 0001 74 03 23 0005", 0x94, "MQTT-3.3.2-9"),
    (5, True, "30 06 0001 74 02 0b05", 0x82, "MQTT-3.3.4-6"),
    (5, True, "30 08 0001 74 04 0101 0101", 0x82, "MQTT 5.0 2.2.2.2"),
    (5, True, "30 06 0001 74 02 0102", 0x82, "MQTT 5.0 2.2.2.2"),
    (5, True, "30 06 0001 74 02 2101", 0x81, "MQTT 5.0 2.2.2.2"),
    (5, True, "30 06 0001 74 02 7f01", 0x81, "MQTT 5.0 2.2.2.2"),
    (5, True, "30 06 0001 74 03 0101", 0x81, "MQTT-2.2.2-1"),
    (5, True, "30 08 0001 74 04 08 0001 23", 0x82, "MQTT-3.3.2-14"),
    (4, True, "40 02 0000", 0x82, "MQTT-2.2.1-5"),
    (4, True, "40 03 0001 00", 0x81, "MQTT-4.13.1-1"),
    (5, True, "40 03 0001 55", 0x81, "MQTT 5.0 2.4"),
    (4, True, "60 02 0001", 0x81, "MQTT-2.1.3-1"),
    (4, True, "80 08 000a 0003 612f62 01", 0x81, "MQTT-2.1.3-1"),
    (4, True, "82 08 0000 0003 612f62 01", 0x82, "MQTT-2.2.1-3"),
    (4, True, "82 02 000a", 0x82, "MQTT-3.8.3-2"),
    (4, True, "82 08 000a 0003 612f62 03", 0x82, "MQTT 5.0 3.8.3.1"),
    (4, True, "82 08 000a 0003 612f62 05", 0x81, "MQTT-3.8.3-5"),
    (5, True, "82 09 000a 00 0003 612f62 41", 0x81, "MQTT-3.8.3-5"),
    (5, True, "82 09 000a 00 0003 612f62 31", 0x82, "MQTT 5.0 3.8.3.1"),
    (5, True, "82 10 000a 00 000a 2473686172652f672f61 05", 0x82, "MQTT-3.8.3-4"),
    (5, True, "82 0b 000a 02 0b00 0003 612f62 01", 0x82, "MQTT 5.0 2.2.2.2"),
    (4, True, "a2 02 000a", 0x82, "MQTT-3.10.3-2"),
    (4, True, "a0 07 000a 0003 612f62", 0x81, "MQTT-2.1.3-1"),
    (4, True, "20 02 00 00", 0x82, "MQTT-4.13.1-1"),
    (5, True, "d0 00", 0x82, "MQTT-4.13.1-1"),
    (4, True, "c0 01 00", 0x81, "MQTT-4.13.1-1"),
    (4, True, "e1 00", 0x81, "MQTT-2.1.3-1"),
    (5, True, "f1 00", 0x81, "MQTT-2.1.3-1"),
    (5, True, "e0 01 8e", 0x81, "MQTT 5.0 2.4"),
    (5, True, "f0 06 18 04 16 0001 78", 0x82, "MQTT 5.0 3.1.2.11.10"),
    (5, True, "c0 80 00", 0x81, "MQTT-1.5.5-1"),
    (4, True, "c0 80 80 80 80 01", 0x81, "MQTT-1.5.5-1"),
    (4, True, "30 ff ff ff ff", 0x81, "MQTT-1.5.5-1"),
    (4, True, "30 81 80 80 01", 0x95, "MQTT-3.2.2-15"),
    (4, False, "82 08 000a 0003 612f62 01", 0x82, "MQTT-4.13.1-1"),
    (4, False, "20 02 01 05", 0x82, "MQTT-3.2.2-6"),
    (4, False, "20 02 00 06", 0x81, "MQTT 3.1.1 3.2.2.3"),
]


@pytest.mark.parametrize(("version", "from_client", "text", "reason", "statement"), REFUSED)
@pytest.mark.mqtt("MQTT-3.6.1-1", "MQTT-3.8.1-1", "MQTT-3.10.1-1", "MQTT-3.14.1-1", "MQTT-3.15.1-1", "MQTT-4.7.0-1")
def test_refused(version: int, from_client: bool, text: str, reason: int, statement: str) -> None:
    data = bytes.fromhex(text)
    with pytest.raises(MqttProtocolError) as caught:
        read(data, version, from_client=from_client)
    assert (caught.value.reason_code, caught.value.statement) == (reason, statement)
    assert f"[{statement}]" in str(caught.value)


ILL_FORMED = ["", "a#", "#/a", "a/#/b", "a+", "+a/b", "a/++", "##", "a\0b"]
ILL_FORMED_SHARES = [
    "$share",
    "$share/",
    "$share/g",
    "$share/g/",
    "$share//a",
    "$share/+/a",
    "$share/g#/a",
    "$share/g/a#",
]


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("name", [*ILL_FORMED, *ILL_FORMED_SHARES])
@pytest.mark.mqtt("MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.7.3-1", "MQTT-4.7.3-2", "MQTT-4.8.2-1", "MQTT-4.8.2-2")
def test_ill_formed_filters_are_refused(version: int, name: str) -> None:
    """[MQTT-4.7.1-1], [MQTT-4.7.1-2], [MQTT-4.7.3-1], [MQTT-4.7.3-2], [MQTT-4.8.2-1], [MQTT-4.8.2-2]."""
    filters = [b"good/+", name.encode()]
    packets: list[Subscribe | Unsubscribe] = [
        Subscribe(1, [(each, SubscriptionOptions()) for each in filters]),
        Unsubscribe(1, filters),
    ]
    for packet in packets:
        if version == V311 and name in ILL_FORMED_SHARES[:-2]:  # filters like any others there
            assert read(encode_packet(packet, version), version) == [packet]
            continue
        with pytest.raises(MqttProtocolError) as caught:
            read(encode_packet(packet, version), version)
        assert caught.value.reason_code == 0x81


@pytest.mark.parametrize("name", [b"$share/g/a", b"$share/g/+/#", b"$sharer", b"+/" * 300 + b"#"])
def test_filters_that_are_not_served_are_well_formed(name: bytes) -> None:
    packet = Unsubscribe(1, [name])
    assert read(encode_packet(packet, V5)) == [packet]


def test_overlong_remaining_length_is_allowed_in_311() -> None:
    assert read(bytes.fromhex("c0 80 00"), V311) == [PingReq()]


def test_items_before_an_error_are_returned_and_none_after() -> None:
    reader = PacketReader(LIMIT, version=V5)
    good = encode_publish(V5, b"t", b"1")
    items = reader.feed(good + b"\x00\x00" + good)
    assert singles(items) == [Publish(b"t", b"1")]
    assert reader.error is not None
    assert reader.feed(good) == []


def test_oversize_packet_is_refused_before_it_arrives() -> None:
    reader = PacketReader(1000, version=V311)
    at_limit = encode_publish(V311, b"t", b"x" * 994)
    assert len(at_limit) == 1000
    assert len(singles(reader.feed(at_limit * 3))) == 3
    assert reader.feed(encode_publish(V311, b"t", b"x" * 995)[:4]) == []
    assert reader.error is not None
    assert reader.error.reason_code == 0x95
    assert reader.buffered_bytes == 0


def test_partial_packet_is_bounded() -> None:
    reader = PacketReader(1000, version=V311)
    data = encode_publish(V311, b"t", b"x" * 994)
    for byte in data[:-1]:
        assert reader.feed(bytes([byte])) == []
        assert reader.buffered_bytes <= 1000
    assert len(reader.feed(data[-1:])) == 1
    assert reader.buffered_bytes == 0


def test_topics_of_65535_bytes_pass_and_empty_payloads_too() -> None:
    topic = b"t" * 65_535
    assert singles(read(encode_publish(V5, topic, b"") * 2)) == [Publish(topic, b"")] * 2


def test_topic_aliases_are_resolved() -> None:
    encoded = [
        encode_publish(V5, b"t/1", b"a", properties={TOPIC_ALIAS: 1}),
        encode_publish(V5, b"", b"b", properties={TOPIC_ALIAS: 1}),
        encode_publish(V5, b"", b"c", properties={TOPIC_ALIAS: 1}),
        encode_publish(V5, b"t/2", b"d", 1, packet_id=4, properties={TOPIC_ALIAS: 1, 1: 1}),
        encode_publish(V5, b"", b"e", 1, packet_id=5, properties={TOPIC_ALIAS: 1}),
    ]
    assert singles(read(b"".join(encoded), alias_max=1)) == [
        Publish(b"t/1", b"a"),
        Publish(b"t/1", b"b"),
        Publish(b"t/1", b"c"),
        Publish(b"t/2", b"d", 1, False, False, 4, {1: 1}),
        Publish(b"t/2", b"e", 1, False, False, 5),
    ]
    with pytest.raises(MqttProtocolError, match="not set") as caught:
        read(encoded[1], alias_max=1)
    assert (caught.value.reason_code, caught.value.statement) == (0x82, "MQTT 5.0 3.3.2.3.4")


def test_too_many_user_properties_are_refused() -> None:
    with pytest.raises(MqttProtocolError, match="user property"):
        read(encode_publish(V5, b"t", b"", properties={USER_PROPERTY: [("", "")] * 1001}))


@pytest.mark.parametrize(
    ("text", "version", "bridge"),
    [
        ("10 0f 0004 4d515454 04 02 003c 0003 616263", V311, False),
        ("10 0f 0004 4d515454 84 02 003c 0003 616263", V311, True),
        ("10 10 0004 4d515454 05 02 003c 00 0003 616263", V5, False),
        ("10 10 0004 4d515454 85 02 003c 00 0003 616263", V5, True),
        ("10 11 0006 4d5149736470 03 02 003c 0003 616263", V311, False),
        ("10 11 0006 4d5149736470 83 02 003c 0003 616263", V311, True),
    ],
)
def test_versions_and_bridges(text: str, version: int, bridge: bool) -> None:
    assert read(bytes.fromhex(text), 0) == [Connect(version, "abc", True, 60, bridge=bridge)]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("10 11 0006 4d5149736470 04 02 003c 0003 616263", "20 02 00 01"),
        ("10 0f 0004 4d515454 03 02 003c 0003 616263", "20 02 00 01"),
        ("10 0f 0004 4d515454 83 02 003c 0003 616263", "20 02 00 01"),
        ("10 0f 0004 4d515454 86 02 003c 0003 616263", "20 03 00 84 00"),
        ("10 0f 0004 4d515454 06 02 003c 0003 616263", "20 03 00 84 00"),
        ("10 0f 0004 48545450 04 02 003c 0003 616263", ""),
        ("10 0c 0004 4d515454 04 00 003c 0000", "20 02 00 02"),
        ("47 45 54 20 2f", ""),
    ],
)
@pytest.mark.mqtt("MQTT-3.14.0-1")
def test_farewell_before_connack(text: str, answer: str) -> None:
    reader = PacketReader(LIMIT)
    reader.feed(bytes.fromhex(text))
    assert reader.error is not None
    assert farewell(reader.error, reader.version, connected=False) == bytes.fromhex(answer)


def test_farewell_of_a_connected_client() -> None:
    error = MqttProtocolError(0x82, "MQTT-3.1.0-2", "a second CONNECT")
    assert farewell(error, V5, connected=True) == bytes.fromhex("e0 01 82")
    assert farewell(error, V311, connected=True) == b""


def test_acks_of_one_kind_become_one_run_in_order() -> None:
    data = encode_acks(PUBACK, range(1, 101)) + encode_acks(PUBREC, [7]) + encode_acks(PUBACK, [101])
    assert read(data) == [AckRun(PUBACK, list(range(1, 101))), AckRun(PUBREC, [7]), AckRun(PUBACK, [101])]


@given(publishes(V5, True))
def test_mqtt5_reads_our_publish_and_we_read_its(packet: Publish) -> None:
    ours = encode_packet(packet, V5)
    theirs, _ = mqtt5.read(memoryview(ours))
    assert isinstance(theirs, mqtt5.PublishPacket)
    assert (theirs.topic.encode(), theirs.payload, theirs.qos) == (packet.topic, packet.payload, packet.qos)
    assert (theirs.retain, theirs.duplicate, theirs.packet_id or 0) == (packet.retain, packet.dup, packet.packet_id)
    found = packet.properties or {}
    assert theirs.user_properties == found.get(USER_PROPERTY, [])
    assert (theirs.content_type, theirs.message_expiry_interval) == (found.get(3), found.get(2))
    again = cast(Publish, singles(read(bytes(theirs.write())))[0])
    assert (again.topic, again.payload, again.packet_id) == (packet.topic, packet.payload, packet.packet_id)


@given(_connects(V5))
def test_mqtt5_reads_our_connect(packet: Connect) -> None:
    theirs, _ = mqtt5.read(memoryview(encode_packet(packet, V5)))
    assert isinstance(theirs, mqtt5.ConnectPacket)
    assert (theirs.client_id, theirs.clean_start, theirs.keep_alive, theirs.username, theirs.password) == (
        packet.client_id,
        packet.clean_start,
        packet.keep_alive_s,
        packet.user_name,
        packet.password,
    )
    assert (theirs.will.topic.encode() if theirs.will else None) == (packet.will.topic if packet.will else None)
    assert PacketReader(LIMIT).feed(bytes(theirs.write()))


@given(properties(CONNACK))
def test_paho_reads_our_properties(found: dict[int, Any] | None) -> None:
    make: Any = PahoProperties  # it has no annotations
    theirs = make(PacketTypes.CONNACK)
    encoded = write_properties(found)
    _, size = theirs.unpack(encoded)
    assert size == len(encoded)
    assert read(encode_packet(ConnAck(False, 0, found), V5), from_client=False) == [ConnAck(False, 0, found)]
    assert sorted(theirs.pack()) == sorted(encoded)


# -- many filters at once

filter_bytes = st.lists(
    st.sampled_from([b"a", b"/", b"+", b"#", b"\0", b"\xc3", b"\xa4", b"$share", b"/g/"]), max_size=4
).map(b"".join)
entries = st.lists(st.tuples(filter_bytes, st.integers(0, 255) | st.integers(0, 2)), max_size=4)


def body_of(version: int, entries: list[tuple[bytes, int]], options: bool, cut: int, more: bytes) -> Body:
    """A packet id and filters, `cut` bytes too short, with what else was read behind it."""
    parts = [len(name).to_bytes(2, "big") + name + (bytes([byte]) if options else b"") for name, byte in entries]
    data = b"\0\1" + b"\0" * (version == V5) + b"".join(parts)
    end = max(3, len(data) - cut)
    return Body(data[:end] + more, 0, end)


@pytest.mark.parametrize("kind", [SUBSCRIBE, UNSUBSCRIBE])
@pytest.mark.parametrize("version", [V311, V5])
@given(entries=entries, cut=st.sampled_from([0, 0, 0, 1, 2]), more=st.binary(max_size=3))
def test_filters_are_decoded_at_once_as_one_by_one(
    kind: int, version: int, entries: list[tuple[bytes, int]], cut: int, more: bytes
) -> None:
    found: list[object] = []
    for at_once in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not at_once:
                patch.setattr(decode, "_all_plain", lambda names: False)
            try:
                found.append(
                    decode.decode_packet(
                        kind | 2, body_of(version, entries, kind == SUBSCRIBE, cut, more), version, True
                    )
                )
            except MqttProtocolError as error:
                found.append((error.reason_code, str(error)))
    assert found[0] == found[1]


def test_thousands_of_filters_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    packet = Subscribe(1, [(b"gateway/%d/#" % n, SubscriptionOptions(1)) for n in range(1_000)])
    reader = PacketReader(1 << 20, version=V311, from_client=True)
    monkeypatch.setattr(decode, "_filter", None)
    assert reader.feed(encode_packet(packet, V311)) == [packet]
