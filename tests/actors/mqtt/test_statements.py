"""Statements of MQTT that no story elsewhere passes by: one after the other, against the real broker."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from lexicast.actors.mqtt.codec import encode_packet
from lexicast.actors.mqtt.codec.packets import (
    MALFORMED_PACKET,
    SUCCESS,
    V5,
    V311,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionOptions,
    UnsubAck,
    Unsubscribe,
    Will,
)
from lexicast.actors.mqtt.codec.properties import (
    AUTHENTICATION_METHOD,
    MESSAGE_EXPIRY_S,
    SESSION_EXPIRY_S,
    TOPIC_ALIAS,
    TOPIC_ALIAS_MAXIMUM,
    USER_PROPERTY,
)

from ...support.mqtt_harness import Message, Raw, Served, close_clients, served, unique

VERSIONS = pytest.mark.parametrize("version", [V311, V5])
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served(mqtt__sys_interval_s=0) as running:
        yield running


@pytest.fixture
async def port(cluster: Served) -> AsyncIterator[int]:
    yield cluster.port
    await close_clients()


def stored(version: int) -> dict[str, Any]:
    """The property with which a session outlives its connection; 3.1.1 has none, and needs none."""
    return {f"_{SESSION_EXPIRY_S}": 60} if version == V5 else {}


# -- texts


@pytest.mark.mqtt("MQTT-1.5.4-3")
@VERSIONS
async def test_a_byte_order_mark_is_a_letter_like_any_other(port: int, version: int) -> None:
    topic = f"\ufeff{unique()}\ufeff"
    client = await Raw.connect(port, version=version)
    await client.subscribe(topic)
    await client.publish(topic, b"x", 1)
    assert (await client.messages(1))[0].topic == topic


@pytest.mark.mqtt("MQTT-1.5.7-1", "MQTT-3.3.2-13", "MQTT-3.3.2-19")
@pytest.mark.parametrize(
    "properties",
    ["26 0001 ff 0001 61", "26 0001 61 0001 ff", "26 0003 eda080 0000", "08 0001 ff", "03 0001 ff", "03 0001 00"],
)
async def test_properties_that_are_no_texts(port: int, properties: str) -> None:
    client, found = await Raw.connect(port), bytes.fromhex(properties)
    client.send(b"\x30" + bytes((4 + len(found),)) + b"\0\1t" + bytes((len(found),)) + found)
    assert (await client.expect(Disconnect)).reason_code == MALFORMED_PACKET
    assert await client.closed() == []


@pytest.mark.mqtt("MQTT-4.7.3-4", "MQTT-3.10.4-1")
@VERSIONS
async def test_topics_are_matched_as_they_are(port: int, version: int) -> None:
    root = unique()
    composed, taken_apart = (unicodedata.normalize(form, "Å") for form in ("NFC", "NFD"))
    names = [f"{root}/{composed}", f"{root}/{taken_apart}", f"{root}/a", f"{root}/A", f"{root}/a ", f"{root}//a"]
    client, publisher = await Raw.connect(port, version=version), await Raw.connect(port)
    for name in names:
        await client.subscribe(name)
        for other in names:
            await publisher.publish(other, other.encode(), 1)
        assert [m.topic for m in await client.ping() if isinstance(m, Message)] == [name]
        await client.unsubscribe(*[other for other in names if other != name])
        await publisher.publish(name, b"", 1)
        assert [m.topic for m in await client.ping() if isinstance(m, Message)] == [name]
        await client.unsubscribe(name)


# -- CONNECT and CONNACK


@pytest.mark.mqtt("MQTT-3.1.3-5", "MQTT-3.1.3-4")
@VERSIONS
async def test_client_ids_of_1_to_23_letters(port: int, version: int) -> None:
    for name in (*LETTERS, *[LETTERS[at : at + 23] for at in range(0, len(LETTERS), 23)], LETTERS[:23]):
        client = await Raw.connect(port, name, version)
        assert client.connack.reason_code == SUCCESS
        await client.disconnect()


@pytest.mark.mqtt("MQTT-3.1.4-6", "MQTT-3.2.2-6", "MQTT-3.2.2-7")
@VERSIONS
async def test_what_follows_a_refused_connect_is_not_looked_at(port: int, version: int) -> None:
    topic, name = unique(), unique()
    watcher = await Raw.connect(port)
    await watcher.subscribe(topic)
    known = await Raw.connect(port, name, version, clean=False, **stored(version))
    await known.disconnect()
    client = await Raw.open(port, version)
    refused = Connect(version, name, False, 0, None, "me", b"wrong")
    publication = Publish(topic.encode(), b"unwanted", 1, packet_id=1)
    client.send(encode_packet(refused, version) + encode_packet(publication, version))
    connack = await client.expect(ConnAck)
    assert connack.reason_code != SUCCESS
    assert not connack.session_present  # although there is one
    assert await client.rest() == b""
    await watcher.nothing(watcher, topic)


@pytest.mark.mqtt("MQTT-3.2.0-1", "MQTT-3.2.2-1", "MQTT-3.2.2-3", "MQTT-4.12.0-6")
@VERSIONS
async def test_connack_comes_first_whatever_waits(port: int, version: int) -> None:
    topic, name = unique(), unique()
    client = await Raw.connect(port, name, version, clean=False, **stored(version))
    await client.subscribe(topic, qos=1)
    await client.disconnect()
    publisher = await Raw.connect(port)
    for number in range(20):
        await publisher.publish(topic, b"%d" % number, 1)
    client = await Raw.open(port, version)
    properties = {SESSION_EXPIRY_S: 60} if version == V5 else None
    client.send(Connect(version, name, False, 0, None, None, None, properties))
    first = await client.packet()
    assert isinstance(first, ConnAck)
    assert first.session_present
    assert AUTHENTICATION_METHOD not in (first.properties or {})
    rest = [await client.packet() for _ in range(20)]
    assert {type(each) for each in rest} == {Message}  # nor an AUTH, nor another CONNACK
    # The flags beside Session Present, on the wire.
    bare = await Raw.open(port, version)
    bare.send(Connect(version, name, False, 0, None, None, None, properties))
    data = await bare.take(4)
    at = 3 if data[1] & 0x80 else 2
    assert data[at] == 1


# -- wills


@pytest.mark.mqtt("MQTT-3.1.2-14", "MQTT-3.1.3-10")
@pytest.mark.mqtt311("MQTT-3.1.2-12")
@VERSIONS
async def test_a_will_that_is_not_to_be_retained_leaves_nothing(port: int, version: int) -> None:
    topic = unique()
    watcher = await Raw.connect(port)
    await watcher.subscribe(topic)
    pairs = [("b", "2"), ("a", "1"), ("b", "1")]
    properties = {USER_PROPERTY: pairs} if version == V5 else None
    client = await Raw.connect(port, version=version, will=Will(topic.encode(), b"gone", 1, False, properties))
    client.abort()
    (said,) = await watcher.messages(1)
    assert not said.retain
    assert [tuple(pair) for pair in said.properties.get(USER_PROPERTY, [])] == (pairs if version == V5 else [])
    late = await Raw.connect(port)
    await late.subscribe(topic)
    (await Raw.connect(port, version=version)).abort()  # who has none leaves none
    await late.nothing(watcher, topic)


# -- publications


@pytest.mark.mqtt("MQTT-3.3.1-3", "MQTT-3.3.1-1")
@pytest.mark.parametrize("qos", [1, 2])
@VERSIONS
async def test_dup_of_the_publisher_is_not_dup_of_the_broker(port: int, version: int, qos: int) -> None:
    topic = unique()
    client, publisher = await Raw.connect(port, version=version), await Raw.connect(port, version=version)
    await client.subscribe(topic, qos=qos)
    publisher.send(Publish(topic.encode(), b"x", qos, dup=True, packet_id=7))
    assert not (await client.messages(1))[0].dup


@pytest.mark.mqtt("MQTT-4.3.2-5", "MQTT-4.3.2-4")
@VERSIONS
async def test_after_puback_a_packet_id_means_another_publication(port: int, version: int) -> None:
    topic = unique()
    client, publisher = await Raw.connect(port, version=version), await Raw.connect(port, version=version)
    await client.subscribe(topic, qos=1)
    for dup in (False, True):
        publisher.send(Publish(topic.encode(), b"x", 1, dup=dup, packet_id=7))
        assert (await publisher.expect(PubAck)).packet_id == 7
    assert len(await client.messages(2)) == 2


@pytest.mark.mqtt("MQTT-3.3.2-7", "MQTT-3.3.2-12")
async def test_all_aliases_are_taken_and_end_with_the_connection(port: int) -> None:
    root, name = unique(), unique()
    watcher = await Raw.connect(port)
    await watcher.subscribe(f"{root}/+")
    publisher = await Raw.connect(port, name, clean=False, **stored(V5))
    most = (publisher.connack.properties or {})[TOPIC_ALIAS_MAXIMUM]
    for alias in range(1, most + 1):
        publisher.send(Publish(f"{root}/{alias}".encode(), b"", properties={TOPIC_ALIAS: alias}))
    for alias in range(1, most + 1):
        publisher.send(Publish(b"", b"again", properties={TOPIC_ALIAS: alias}))
    got = [m.topic for m in await watcher.messages(2 * most)]  # in the order of each topic alone
    assert sorted(got) == sorted([f"{root}/{alias}" for alias in range(1, most + 1)] * 2)
    await publisher.disconnect()
    publisher = await Raw.connect(port, name, clean=False, **stored(V5))
    assert publisher.connack.session_present
    publisher.send(Publish(b"", b"", properties={TOPIC_ALIAS: 1}))
    assert (await publisher.expect(Disconnect)).reason_code == 0x82


@pytest.mark.mqtt("MQTT-4.3.3-13", "MQTT-4.3.3-7")
async def test_an_exchange_that_has_begun_ends_although_its_publication_has_expired(port: int) -> None:
    topic, name = unique(), unique()
    client, publisher = await Raw.connect(port, name, clean=False, **stored(V5)), await Raw.connect(port)
    await client.subscribe(topic, qos=2)
    client.answers = publisher.answers = False
    publisher.send(Publish(topic.encode(), b"x", 2, packet_id=3, properties={MESSAGE_EXPIRY_S: 1}))
    await publisher.expect(PubRec)
    (first,) = await client.messages(1)
    await asyncio.sleep(1.1)  # the broker's clock is the system's
    publisher.send(PubRel(3))
    assert (await publisher.expect(PubComp)).reason_code == SUCCESS
    # What has been sent is sent again, expired or not.
    client.abort()
    client = await Raw.connect(port, name, clean=False, **stored(V5))
    (again,) = await client.messages(1)
    assert (again.packet_id, again.dup, again.payload) == (first.packet_id, True, b"x")


# -- subscriptions


@pytest.mark.mqtt("MQTT-3.8.4-4", "MQTT-3.8.4-3")
@VERSIONS
async def test_nothing_is_lost_while_a_subscription_is_replaced(port: int, version: int) -> None:
    topic = unique()
    client, publisher = await Raw.connect(port, version=version), await Raw.connect(port)
    await publisher.publish(topic, b"kept", 1, retain=True)
    await client.subscribe(topic, qos=1)
    for number in range(200):
        publisher.send(Publish(topic.encode(), b"%d" % number, 1, packet_id=number + 1))
        if not number % 20:
            client.send(Subscribe(client.next_id(), [(topic.encode(), SubscriptionOptions(1))]))
            await asyncio.sleep(0.002)
    got: list[bytes] = []
    kept = 0
    while len(got) < 200 or kept < 11:
        said = await client.expect(Message)
        if said.retain:
            assert said.payload == b"kept"
            kept += 1
        else:
            got.append(said.payload)
    assert got == [b"%d" % number for number in range(200)]


@pytest.mark.mqtt("MQTT-3.10.4-3", "MQTT-3.10.4-2")
@pytest.mark.parametrize("qos", [1, 2])
@VERSIONS
async def test_what_was_begun_is_completed_after_unsubscribe(port: int, version: int, qos: int) -> None:
    topic, name = unique(), unique()
    client, publisher = await Raw.connect(port, name, version, clean=False, **stored(version)), await Raw.connect(port)
    await client.subscribe(topic, qos=qos)
    client.answers = False
    await publisher.publish(topic, b"begun", qos)
    (first,) = await client.messages(1)
    await client.unsubscribe(topic)
    await publisher.publish(topic, b"unwanted", qos)
    client.abort()
    client = await Raw.connect(port, name, version, clean=False, **stored(version))
    (again,) = await client.messages(1)
    assert (again.payload, again.packet_id, again.dup) == (b"begun", first.packet_id, True)
    assert [each for each in await client.ping() if isinstance(each, Message)] == []


@pytest.mark.mqtt("MQTT-3.10.4-6", "MQTT-3.11.3-1")
async def test_several_filters_of_an_unsubscribe_are_as_several_packets(port: int) -> None:
    root = unique()
    client, publisher = await Raw.connect(port), await Raw.connect(port)
    await client.subscribe(f"{root}/a", f"{root}/b", f"{root}/c")
    client.send(Unsubscribe(9, [name.encode() for name in (f"{root}/a", f"{root}/x", f"{root}/a", f"{root}/b")]))
    assert await client.expect(UnsubAck) == UnsubAck(9, [0, 0x11, 0x11, 0])
    for name in "abc":
        await publisher.publish(f"{root}/{name}", b"", 1)
    assert [m.topic for m in await client.ping() if isinstance(m, Message)] == [f"{root}/c"]


# -- sessions


@pytest.mark.mqtt("MQTT-4.1.0-1", "MQTT-4.1.0-2")
async def test_a_session_lasts_as_long_as_its_connection(port: int) -> None:
    """However short it is to outlive it."""
    topic = unique()
    brief = await Raw.connect(port, clean=False, _17=1)
    none = await Raw.connect(port)
    for client in (brief, none):
        await client.subscribe(topic, qos=1)
    await asyncio.sleep(2.5)  # the broker's clock is the system's
    publisher = await Raw.connect(port)
    await publisher.publish(topic, b"x", 1)
    for client in (brief, none):
        assert (await client.messages(1))[0].payload == b"x"


@pytest.mark.mqtt("MQTT-4.1.0-1")
@pytest.mark.mqtt311("MQTT-3.1.2-7")
@VERSIONS
async def test_what_is_retained_is_nobodys_session(port: int, version: int) -> None:
    topic, name = unique(), unique()
    client = await Raw.connect(port, name, version, clean=False, **stored(version))
    await client.publish(topic, b"kept", 1, retain=True)
    await client.disconnect()
    client = await Raw.connect(port, name, version, clean=True)  # its session ends
    await client.subscribe(topic)
    assert (await client.messages(1))[0].payload == b"kept"
    await client.publish(topic, b"", 1, retain=True)


@pytest.mark.mqtt("MQTT-3.14.2-2", "MQTT-3.14.4-1", "MQTT-4.12.0-6")
async def test_what_the_server_says_when_it_ends_a_connection(port: int) -> None:
    for wrong in (Auth(), b"\x00\x00"):
        client = await Raw.connect(port, clean=False, **stored(V5))
        client.send(wrong)
        said = await client.expect(Disconnect)
        assert SESSION_EXPIRY_S not in (said.properties or {})
        assert await client.closed() == []
