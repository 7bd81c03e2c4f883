"""What a CONNECT asks of all that the server sends: Maximum Packet Size, Request Problem Information."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from lexicast.actors.mqtt.codec import encode_answer, encode_packet
from lexicast.actors.mqtt.codec.packets import (
    V5,
    V311,
    Answer,
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionOptions,
    Terms,
    UnsubAck,
    Unsubscribe,
)
from lexicast.compression.dictionary import PACKED_BYTES_MAX

from ...support.mqtt_harness import Raw, Served, close_clients, served, unique

REASON_STRING, MAXIMUM_PACKET_BYTES, REQUEST_PROBLEM, USER_PROPERTY = 31, 39, 23, 38
WORDS = {REASON_STRING: "because", USER_PROPERTY: [("a", "b")]}
ANSWERS: list[Answer] = [
    ConnAck(True, 0, {33: 20, **WORDS}),
    PubAck(1, 0x97, WORDS),
    PubRec(1, 0x97, WORDS),
    PubRel(1, 0x92, WORDS),
    PubComp(1, 0x92, WORDS),
    SubAck(1, [0, 0x80], WORDS),
    UnsubAck(1, [0, 0x11], WORDS),
    Disconnect(0x8B, WORDS),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
async def port(cluster: Served) -> AsyncIterator[int]:
    yield cluster.port
    await close_clients()


# -- what is written


def bare(packet: Answer) -> bytes:
    """Without its words."""
    kept = {33: 20} if isinstance(packet, ConnAck) else None
    fields = {name: getattr(packet, name) for name in packet.__slots__ if name != "properties"}
    return encode_packet(type(packet)(**fields, properties=kept), V5)


@pytest.mark.parametrize("packet", ANSWERS, ids=lambda packet: type(packet).__name__)
@pytest.mark.mqtt(
    "MQTT-3.1.2-24",
    "MQTT-3.2.2-19",
    "MQTT-3.2.2-20",
    "MQTT-3.4.2-2",
    "MQTT-3.4.2-3",
    "MQTT-3.5.2-2",
    "MQTT-3.5.2-3",
    "MQTT-3.6.2-2",
    "MQTT-3.6.2-3",
    "MQTT-3.7.2-2",
    "MQTT-3.7.2-3",
    "MQTT-3.9.2-1",
    "MQTT-3.9.2-2",
    "MQTT-3.11.2-1",
    "MQTT-3.11.2-2",
    "MQTT-3.14.2-3",
    "MQTT-3.14.2-4",
)
def test_words_are_left_out_where_there_is_no_room_and_the_packet_where_there_still_is_none(packet: Answer) -> None:
    """[MQTT-3.1.2-24], [MQTT-3.2.2-19], [MQTT-3.2.2-20], [MQTT-3.4.2-2], [MQTT-3.9.2-1], [MQTT-3.14.2-3], ..."""
    whole, least = encode_packet(packet, V5), bare(packet)
    assert encode_answer(packet, V5, Terms(len(whole))) == whole
    assert encode_answer(packet, V5, Terms(len(whole) - 1)) == least
    assert encode_answer(packet, V5, Terms(len(least))) == least
    assert encode_answer(packet, V5, Terms(len(least) - 1)) is None


@pytest.mark.parametrize("packet", ANSWERS, ids=lambda packet: type(packet).__name__)
@pytest.mark.mqtt("MQTT-3.1.2-29")
def test_no_words_where_problem_information_is_not_asked_for(packet: Answer) -> None:
    """[MQTT-3.1.2-29]: but for PUBLISH, CONNACK and DISCONNECT."""
    expected = encode_packet(packet, V5) if isinstance(packet, ConnAck | Disconnect) else bare(packet)
    assert encode_answer(packet, V5, Terms(terse=True)) == expected


# -- Maximum Packet Size


def connect(most: int) -> Connect:
    return Connect(V5, unique(), properties={MAXIMUM_PACKET_BYTES: most})


async def test_connack_is_no_larger_than_the_client_takes(port: int) -> None:
    size = len(encode_packet((await Raw.connect(port)).connack, V5))
    for most in range(1, size + 3):
        client = await Raw.open(port)
        client.send(connect(most))
        if most >= size:
            assert (await client.expect(ConnAck)).reason_code == 0
            assert await client.ping() == []
            continue
        # Without its properties the client would go wrong; below five bytes there are no words.
        answers = [encode_packet(packet, V5) for packet in await client.closed()]
        assert answers == ([b"\x20\x03\x00\x95\x00"] if most >= 5 else [])


async def test_an_assigned_client_id_that_does_not_fit_is_not_left_out(port: int) -> None:
    size = len(encode_packet((await Raw.connect(port)).connack, V5))
    client = await Raw.open(port)
    client.send(Connect(V5, "", properties={MAXIMUM_PACKET_BYTES: size}))
    assert (await client.expect(ConnAck)).reason_code == 0x95


@pytest.mark.parametrize("unsubscribe", [False, True])
async def test_suback_and_unsuback_are_no_larger_than_the_client_takes(port: int, unsubscribe: bool) -> None:
    most, fixed = 60, 5  # header, packet id, no properties
    for count in (most - fixed, most - fixed + 1):
        client = await Raw.connect(port, _39=most)
        names = [unique().encode() for _ in range(count)]
        if unsubscribe:
            client.send(Unsubscribe(1, names))
        else:
            client.send(Subscribe(1, [(name, SubscriptionOptions()) for name in names]))
        if count + fixed <= most:
            answer = await client.packet()
            assert isinstance(answer, SubAck | UnsubAck)
            assert len(answer.reason_codes) == count
            continue
        assert [p.reason_code for p in await client.closed() if isinstance(p, Disconnect)] == [0x95]


async def test_a_client_that_takes_no_dictionary_is_sent_none(port: int) -> None:
    sdc = ("sdc", "1")
    for most, aware in ((100_000, False), (2 * PACKED_BYTES_MAX, True), (0, True)):
        properties: dict[str, Any] = {"_38": [sdc], **({"_39": most} if most else {})}
        client = await Raw.connect(port, **properties)
        told = (client.connack.properties or {}).get(USER_PROPERTY, [])
        assert (sdc in [tuple(pair) for pair in told]) is aware


# -- Request Problem Information


@pytest.mark.parametrize("wanted", [None, 1, 0])
async def test_a_reason_is_told_in_words_only_where_it_is_wanted(port: int, wanted: int | None) -> None:
    asked: dict[str, Any] = {} if wanted is None else {"_23": wanted}
    client = await Raw.connect(port, **asked)
    client.send(Subscribe(1, [(b"t", SubscriptionOptions())], properties={USER_PROPERTY: [("until", "-10s")]}))
    answer = await client.expect(SubAck)
    assert answer.reason_codes == [0x83]
    assert (REASON_STRING in (answer.properties or {})) is (wanted != 0)


async def test_version_311_has_no_terms(port: int) -> None:
    client = await Raw.connect(port, version=V311)
    assert await client.subscribe(*[unique() for _ in range(300)]) == [0] * 300
