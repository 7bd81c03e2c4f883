"""CVEs of other brokers that a malformed packet was enough for: here its sender is turned away, and nobody notices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from lexicast.actors.mqtt.codec import PacketReader, encode_packet
from lexicast.actors.mqtt.codec.packets import (
    MALFORMED_PACKET,
    NOT_AUTHORIZED,
    PACKET_TOO_LARGE,
    PROTOCOL_ERROR,
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
    TOPIC_FILTER_INVALID,
    TOPIC_NAME_INVALID,
    V5,
    V311,
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionOptions,
    Will,
)
from lexicast.actors.mqtt.codec.wire import encode_binary

from ..support.attacks import MIB, Growth, healthy, round_trip, strike
from ..support.mqtt_harness import Message, Raw, Served, close_clients, served, unique

PLAIN = SubscriptionOptions(0)
# A remaining length of five bytes: no such number is written in MQTT [MQTT-1.5.5-1].
FIVE_BYTES = b"\xff\xff\xff\xff\x7f"
LARGEST = b"\xff\xff\xff\x7f"
HELLO = {version: encode_packet(Connect(version, "", True), version) for version in (V311, V5)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
async def port(cluster: Served, caplog: pytest.LogCaptureFixture) -> AsyncIterator[int]:
    """The broker's. Beside each attack somebody else is served, and nothing is logged as a defect."""
    witness = await healthy(cluster.port)
    yield cluster.port
    await round_trip(witness)
    await close_clients()
    assert [r.getMessage() for r in caplog.get_records("call") if r.levelno >= logging.ERROR] == []


async def refusal(port: int, data: bytes, version: int = V5) -> int:
    """The reason code with which a client that is connected is closed when it sends this."""
    client = await Raw.connect(port, version=version)
    client.send(data)
    if version == V5:
        return int((await client.expect(Disconnect)).reason_code)
    assert await client.closed() == []
    return MALFORMED_PACKET


def frame(first: int, body: bytes) -> bytes:
    """A packet of less than 128 bytes."""
    return bytes((first, len(body))) + body


# -- lengths


@pytest.mark.cve("CVE-2017-7651", "CVE-2023-0809", "CVE-2019-0222", "CVE-2021-33175", "CVE-2021-33176")
async def test_what_is_announced_takes_no_memory(port: int) -> None:
    """Neither by who has not connected nor by who has: what is too large is refused when its length is known."""
    growth = Growth(16 * MIB)
    for first in (b"\x10", b"\x30", b"\x32", b"\x82", b"\xc0", b"\x00", b"\xf0"):
        await asyncio.gather(*[strike(port, first + LARGEST + b"x" * 1_000) for _ in range(20)])
        assert await refusal(port, first + LARGEST) in (MALFORMED_PACKET, PROTOCOL_ERROR, PACKET_TOO_LARGE)
    growth.check()


@pytest.mark.cve("CVE-2017-7651", "CVE-2023-0809")
async def test_who_has_not_connected_holds_no_more_than_a_connect_needs(port: int) -> None:
    """A CONNECT that is large by its will's payload is read, one that is larger than any needs to be is not."""
    large = Will(b"w", b"x" * 65_535, 0, False, None)
    assert (await Raw.connect(port, unique(), will=large)).connack.reason_code == 0
    growth = Growth(8 * MIB)
    strangers = [await Raw.open(port) for _ in range(40)]
    for stranger in strangers:
        stranger.send(b"\x10\x80\x80\x30" + b"\0\4MQTT\5\2\0\0" + bytes(700_000))  # of 768 KiB
    for stranger in strangers:
        await stranger.closed()
    growth.check()


@pytest.mark.cve("CVE-2026-21888", "CVE-2024-31040", "CVE-2025-66168", "CVE-2026-40046", "CVE-2019-19307")
@pytest.mark.parametrize("version", [V311, V5])
async def test_a_length_of_five_bytes_is_none(port: int, version: int) -> None:
    """Nothing behind it is taken for a packet of its own."""
    topic = unique()
    watcher = await Raw.connect(port)
    await watcher.subscribe(topic)
    hidden = encode_packet(Publish(topic.encode(), b"smuggled"), version)
    assert await refusal(port, b"\x30" + FIVE_BYTES + hidden, version) == MALFORMED_PACKET
    await strike(port, b"\x10" + FIVE_BYTES + hidden)
    await watcher.nothing(await Raw.connect(port), topic)


@pytest.mark.cve("CVE-2026-21888", "CVE-2024-31040")
async def test_properties_longer_than_their_packet_are_none(port: int) -> None:
    connect = b"\0\4MQTT\5\2\0\0"
    for length in (b"\xff\xff\xff\xff\x01", b"\xff\xff\xff\x7f", b"\x7f", b"\x80\x00"):
        stranger = await Raw.open(port)
        stranger.send(frame(0x10, connect + length + b"\0\0"))
        assert (await stranger.expect(ConnAck)).reason_code == MALFORMED_PACKET
    for length in (b"\xff\xff\xff\xff\x01", b"\x7f"):
        assert await refusal(port, frame(0x30, b"\0\1a" + length)) == MALFORMED_PACKET


@pytest.mark.cve("CVE-2026-25627")
async def test_a_packet_that_ends_before_its_length_is_not_read_beyond(port: int) -> None:
    topic = unique()
    watcher = await Raw.connect(port)
    await watcher.subscribe(topic)
    cut = await Raw.connect(port)
    cut.send(b"\x30\x80\x20" + encode_binary(topic.encode()) + b"\0")  # of 4,096 bytes
    cut.abort()
    await watcher.nothing(await Raw.connect(port), topic)


# -- fields that are cut short


@pytest.mark.cve("CVE-2023-29994", "CVE-2023-29995", "CVE-2023-34488", "CVE-2023-33660", "CVE-2016-10523")
@pytest.mark.mqtt("MQTT-3.1.4-1")
async def test_a_connect_that_is_cut_short_anywhere(port: int) -> None:
    for version in (V311, V5):
        will = Will(b"w/t", b"bye", 1, True, {24: 5} if version == V5 else None)
        whole = encode_packet(Connect(version, "cut", True, 9, will, "user", b"pass"), version)
        bodies = [whole[2:at] for at in range(2, len(whole))]
        await asyncio.gather(*[strike(port, frame(0x10, body)) for body in bodies])


@pytest.mark.cve("CVE-2023-33658", "CVE-2023-33657")
@pytest.mark.parametrize("version", [V311, V5])
async def test_a_publication_that_is_cut_short_anywhere(port: int, version: int) -> None:
    more = {8: "reply", 9: b"c", 35: 1} if version == V5 else None
    whole = encode_packet(Publish(b"a/b", b"", 1, packet_id=7, properties=more), version)[2:]
    for at in range(len(whole)):
        assert await refusal(port, frame(0x32, whole[:at]), version) >= 0x80


@pytest.mark.cve("CVE-2023-33659")
@pytest.mark.parametrize("version", [V311, V5])
async def test_a_subscribe_that_is_cut_short_anywhere(port: int, version: int) -> None:
    whole = encode_packet(Subscribe(7, [(b"a/b", PLAIN)]), version)[2:]
    for at in range(len(whole)):
        assert await refusal(port, frame(0x82, whole[:at]), version) >= 0x80


@pytest.mark.cve("CVE-2023-3592", "CVE-2017-7654", "CVE-2021-34431")
async def test_connects_that_are_refused_leave_nothing_behind(port: int) -> None:
    """With all that they bring: wills, names, properties that may not stand there, or stand there twice."""
    bodies = [
        b"\0\4MQTT\5\x06\0\0\0\0\1c" + properties + b"\0\1w\0\1x"
        for properties in (b"\2\x23\1", b"\5\x11\0\0\0\1", b"\x0a\x18\0\0\0\1\x18\0\0\0\1", b"\3\x7f\0\0")
    ]
    bodies += [b"\0\4MQTT\4\xc6\0\0\0\1c\0\1w\0\1x\0\1u", b"\0\4MQTT\5\xc2\0\0\x0a\x11\0\0\0\1\x11\0\0\0\1\0\1c"]
    for body in bodies:
        await strike(port, frame(0x10, body))
    growth = Growth(16 * MIB)
    for _ in range(20):
        await asyncio.gather(*[strike(port, frame(0x10, body) + bytes(10_000)) for body in bodies * 10])
    growth.check()


# -- packets that a client may not send


@pytest.mark.cve("CVE-2021-28166")
async def test_a_client_that_sends_what_only_servers_do(port: int) -> None:
    for packet in (ConnAck(True, 0), ConnAck(), SubAck(1, [0])):
        assert await refusal(port, encode_packet(packet, V5)) in (MALFORMED_PACKET, PROTOCOL_ERROR)
    assert await refusal(port, b"\x20\x00") in (MALFORMED_PACKET, PROTOCOL_ERROR)
    assert await refusal(port, b"\xd0\x00") in (MALFORMED_PACKET, PROTOCOL_ERROR)


@pytest.mark.cve("CVE-2024-10525")
def test_a_server_that_answers_a_subscription_with_nothing() -> None:
    """The reader that clients have."""
    for packet in (b"\x90\x02\0\1", b"\x90\x03\0\1\0", b"\xb0\x03\0\1\0"):
        reader = PacketReader(1_000, from_client=False, version=V5)
        assert reader.feed(packet) == []
        assert reader.error is not None


@pytest.mark.cve("CVE-2025-56352")
@pytest.mark.mqtt("MQTT-3.1.3-8")
async def test_who_is_refused_is_closed(port: int) -> None:
    """An empty client id without a clean session: told, and hung up."""
    stranger = await Raw.open(port, V311)
    stranger.send(Connect(V311, "", False))
    assert (await stranger.expect(ConnAck)).reason_code == 0x85
    assert await stranger.closed() == []


# -- topics


@pytest.mark.cve("CVE-2021-34432")
@pytest.mark.parametrize("version", [V311, V5])
async def test_a_publication_without_a_topic(port: int, version: int) -> None:
    for qos in (0, 1, 2):
        body = b"\0\0" + b"\0\1" * bool(qos) + b"\0" * (version == V5) + b"x"
        assert await refusal(port, frame(0x30 | qos << 1, body), version) in (MALFORMED_PACKET, PROTOCOL_ERROR)


@pytest.mark.cve("CVE-2017-7653")
@pytest.mark.parametrize("version", [V311, V5])
async def test_a_topic_that_is_no_text_reaches_nobody(port: int, version: int) -> None:
    """Else others' clients would close, as they have to."""
    root = unique()
    watcher = await Raw.connect(port, version=version)
    await watcher.subscribe(f"{root}/#")
    for bad in (b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\0"):
        name = encode_binary(f"{root}/".encode() + bad)
        assert await refusal(port, frame(0x30, name + b"\0" * (version == V5)), version) == MALFORMED_PACKET
        will = Will(f"{root}/".encode() + bad, b"x", 0, False, None)
        stranger = await Raw.open(port, version)
        stranger.send(encode_packet(Connect(version, "", True, 0, will), version))
        assert [answer.reason_code for answer in await stranger.closed()] in ([MALFORMED_PACKET], [])
    await watcher.nothing(await Raw.connect(port), f"{root}/x")


@pytest.mark.cve("CVE-2018-12543")
async def test_topics_that_begin_with_a_dollar(port: int) -> None:
    """They are the broker's: dropped, or refused."""
    for topic in ("$", "$x", "$SYS", "$SYSTEM/x", "$share", "$share/g", "$CONTROL/dynamic-security/v1"):
        client = await Raw.connect(port)
        assert await client.publish(topic, b"x", qos=1) in (0, NOT_AUTHORIZED)
        client.send(Subscribe(1, [(topic.encode(), PLAIN)]))  # $share and $share/g are no filters: closed
        client.send(Disconnect())
        assert not any(isinstance(answer, Message) for answer in await client.closed())


@pytest.mark.cve("CVE-2025-68699")
@pytest.mark.parametrize("topic_filter", [b"$share/g", b"$share/g/", b"$share//a"])
async def test_a_share_without_a_name_or_a_filter_is_none(port: int, topic_filter: bytes) -> None:
    client = await Raw.connect(port)
    client.send(Subscribe(1, [(topic_filter, PLAIN)]))
    (answer,) = await client.closed()
    assert isinstance(answer, Disconnect)
    assert answer.reason_code in (MALFORMED_PACKET, PROTOCOL_ERROR)


@pytest.mark.cve("CVE-2019-11779")
async def test_a_topic_of_65000_levels(port: int) -> None:
    client = await Raw.connect(port)
    deep = "/" * 65_000
    for topic_filter in (deep, deep + "#", deep + "+", "+/" * 32_000 + "#", "$share/g/" + deep):
        (code,) = await client.subscribe(topic_filter)
        assert code in (0, TOPIC_FILTER_INVALID, SHARED_SUBSCRIPTIONS_NOT_SUPPORTED)
    assert await client.publish(deep, b"x", qos=1) in (0, TOPIC_NAME_INVALID)
    await client.unsubscribe(deep, deep + "#")


@pytest.mark.cve("CVE-2024-31041")
async def test_filters_of_every_odd_form(port: int) -> None:
    for odd in ("", "#/a", "a#", "+a", "a/+b/#", "$share", "$share/", "$share//a", "$share/g/", "$share/+/a", "##"):
        client = await Raw.connect(port)
        client.send(Subscribe(1, [(odd.encode(), PLAIN)]))
        answer = (await client.closed() or [Disconnect(MALFORMED_PACKET)])[0] if odd != "$share" else None
        assert answer is None or isinstance(answer, Disconnect | SubAck)


@pytest.mark.cve("CVE-2021-41039")
async def test_a_connect_with_very_many_user_properties(port: int) -> None:
    """More than a thousand are refused, not counted."""
    stranger = await Raw.open(port)
    stranger.send(Connect(V5, "", True, properties={38: [("", "")] * 20_000}))
    assert (await stranger.expect(ConnAck)).reason_code == PROTOCOL_ERROR
    assert (await Raw.connect(port, _38=[("a", "b")] * 900)).connack.reason_code == 0


@pytest.mark.cve("CVE-2024-42644", "CVE-2024-42645", "CVE-2026-42209")
async def test_retained_publications_of_every_quality_raced_by_their_readers(port: int) -> None:
    root = unique()
    publisher = await Raw.connect(port)
    for number in range(30):
        publisher.send(
            Publish(f"{root}/{number % 3}".encode(), b"x" * (number % 2), number % 2, True, packet_id=number + 1)
        )
        reader = await Raw.connect(port)
        await reader.subscribe(f"{root}/#", qos=2)
        await reader.disconnect()
    for _ in range(15):
        await publisher.expect(PubAck)
