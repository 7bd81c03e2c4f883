"""Topic aliases towards clients: shared bytes with them say the same as without, whatever each connection knows."""

from __future__ import annotations

import queue
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.enums import CallbackAPIVersion

import lexicast.mqtt as ours
from lexicast.actors.mqtt.codec import PacketReader, encode_packet, encode_publish
from lexicast.actors.mqtt.codec.encode import encode_qos0_run
from lexicast.actors.mqtt.codec.packets import SUCCESS, V5, ConnAck, Publish, SubAck, Subscribe, SubscriptionOptions
from lexicast.actors.mqtt.codec.properties import TOPIC_ALIAS, USER_PROPERTY, write_properties
from lexicast.actors.mqtt.codec.received_aliases import ReceivedAliases
from lexicast.actors.mqtt.codec.topic_aliases import (
    JUDGED_OVER,
    TopicAliases,
    alias_class,
    encode_aliased_run,
    with_alias,
)

from ...support.mqtt_harness import HOST, WAIT_S, Message, Raw, Served, close_clients, flat, served, unique

some_properties = st.one_of(
    st.just(b""),
    st.fixed_dictionaries(
        {},
        optional={
            1: st.integers(0, 1),
            2: st.integers(0, 1 << 31),
            3: st.text("abc", max_size=9),
            8: st.text("abc", min_size=1, max_size=9),
            9: st.binary(max_size=150),
            11: st.lists(st.integers(1, 300_000), min_size=1, max_size=3),
            38: st.lists(st.tuples(st.text("xy", max_size=90), st.text("xy", max_size=9)), min_size=1, max_size=3),
        },
    ).map(write_properties),
)


@given(
    st.lists(st.binary(max_size=200), min_size=1, max_size=5), some_properties, st.booleans(), st.integers(1, 65_535)
)
def test_a_run_with_an_alias_is_the_run(payloads: list[bytes], properties: bytes, retain: bool, number: int) -> None:
    """Read by our reader, which resolves aliases, as without; told first, then known."""
    plain = PacketReader(1 << 20, from_client=False, version=V5)
    expected = list(flat(plain.feed(encode_qos0_run(V5, b"a/topic", payloads, retain, properties))))
    reader = PacketReader(1 << 20, topic_alias_max=65_535, from_client=False, version=V5)
    told = encode_aliased_run(b"a/topic", payloads, number, False, retain, properties)
    known = encode_aliased_run(b"a/topic", payloads, number, True, retain, properties)
    assert list(flat(reader.feed(told))) == expected
    assert list(flat(reader.feed(known))) == expected
    assert (plain.error, reader.error) == (None, None)


@given(some_properties, st.integers(0, 2), st.integers(1, 65_535), st.booleans(), st.binary(max_size=20))
def test_a_client_puts_topics_back(properties: bytes, qos: int, number: int, is_last: bool, payload: bytes) -> None:
    """Wherever among the properties the alias stands."""
    begins = 1 if not properties or properties[0] < 128 else 2
    aliased = with_alias(properties, number)
    if is_last and properties:
        head = 1 if aliased[0] < 128 else 2
        aliased = aliased[:head] + properties[begins:] + b"\x23" + number.to_bytes(2, "big")
    behind = (b"\0\7" if qos else b"") + aliased + payload
    aliases = ReceivedAliases()
    assert aliases.with_topic(bytearray(b"\0\0" + behind), qos > 0) is None
    named = bytearray(b"\0\3a/b" + behind)
    assert aliases.with_topic(named, qos > 0) == named
    assert aliases.with_topic(bytearray(b"\0\0" + behind), qos > 0) == named
    aliases.clear()
    assert aliases.with_topic(bytearray(b"\0\0" + behind), qos > 0) is None
    plain = bytearray(b"\0\3a/b" + (b"\0\7" if qos else b"") + (properties or b"\0") + payload)
    assert aliases.with_topic(plain, qos > 0) == plain


@given(st.binary(max_size=60), st.booleans())
def test_a_client_survives_any_bytes(packet: bytes, has_id: bool) -> None:
    aliases = ReceivedAliases()
    made = aliases.with_topic(bytearray(packet), has_id)
    assert made is None or bytes(made) == packet


def test_as_many_as_both_want() -> None:
    found = [alias_class(4_096, each) for each in (0, 1, 2, 3, 10, 4_095, 4_096, 65_535)]
    assert found == [0, 1, 2, 2, 8, 2_048, 4_096, 4_096]
    assert [alias_class(0, each) for each in (0, 1, 65_535)] == [0, 0, 0]
    assert [alias_class(100, each) for each in (99, 100, 101)] == [64, 100, 100]


def test_topics_that_are_used_get_the_numbers() -> None:
    aliases = TopicAliases(4)
    first = [b"old/%d" % number for number in range(4)]
    assert aliases.numbers_of(first, 4) == 0b11110
    assert aliases.numbers_of(first, 2) == 0b110
    assert [aliases.number_of(topic, 4) for topic in first] == [1, 2, 3, 4]
    assert aliases.number_of(first[3], 3) == 0
    assert aliases.numbers_of([b"new"], 4) == 0
    for _ in range(JUDGED_OVER * 4):  # those that have numbers keep them while they are used as much
        aliases.numbers_of([first[0], b"new"], 4)
    assert aliases.generation == 0
    for _ in range(JUDGED_OVER * 8):
        aliases.numbers_of([b"new"], 4)
    assert aliases.generation == 1
    assert aliases.number_of(b"new", 4) == 1


# -- brokers


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served(mqtt__topic_aliases_sent_max=64) as running:
        yield running


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    await close_clients()


async def subscriber(port: int, topic_filter: str, most: int, **more: Any) -> Raw:
    """A client that takes `most` aliases, and resolves them."""
    if most:
        more["_34"] = most
    client = await Raw.connect(port, **more)
    client._reader = PacketReader(1 << 20, topic_alias_max=most, from_client=False, version=V5)
    assert await client.subscribe(topic_filter) == [0]
    return client


@pytest.mark.mqtt("MQTT-3.1.2-26", "MQTT-3.1.2-27", "MQTT-3.3.2-11")
async def test_all_get_the_same_whatever_they_know(cluster: Served) -> None:
    """Who takes none, few, all; who comes later; and our own client."""
    root = unique("alias/")
    publisher = await Raw.connect(cluster.port)
    clients = [await subscriber(cluster.port, f"{root}/#", most) for most in (0, 1, 3, 64, 65_535)]
    expected = []
    for number in range(60):
        if number == 30:
            late = await subscriber(cluster.port, f"{root}/#", 64)
        topic, payload = f"{root}/{number % 6}", b"%d" % number
        await publisher.publish(topic, payload, qos=1)
        expected.append((topic, payload))
    for client in clients:
        assert sorted([each[:2] for each in await client.messages(60)]) == sorted(expected)
    assert sorted([each[:2] for each in await late.messages(30)]) == sorted(expected[30:])


async def test_bytes_are_spared_and_a_new_connection_begins_anew(cluster: Served) -> None:
    topic = unique("a/topic/that/is/rather/long/")
    publisher = await Raw.connect(cluster.port)
    name = unique()
    for _ in range(2):
        client = await subscriber(cluster.port, topic, 64, client_id=name)
        sizes = []
        for number in range(3):
            await publisher.publish(topic, b"%d" % number, qos=1)
            data = b""
            while not data:
                data = await client._stream.read(1_000)
            sizes.append(len(data))
            assert [item.payload for item in flat(client._reader.feed(data))] == [b"%d" % number]
        told, known, again = sizes
        assert (told - known, again) == (len(topic), known)
        assert known == 2 + 2 + 1 + 3 + 1
        client.abort()


async def test_each_knows_what_it_was_told(cluster: Served) -> None:
    """And its broker knows that of it."""
    topic = unique("told/")
    publisher = await Raw.connect(cluster.port)
    clients = [await subscriber(cluster.port, topic, 64) for _ in range(3)]
    await publisher.publish(topic, b"x", qos=1)
    for client in clients:
        await client.expect(Message)
    late = await subscriber(cluster.port, topic, 64, client_id="late")
    number = cluster.broker().engine.encoder.topic_aliases.number_of(topic.encode(), 64)
    assert number
    served = [each.served for each in cluster.broker().mqtt.connections]
    told = [each.subscriber.known_aliases >> number & 1 for each in served if each is not None]
    assert told.count(1) == 3
    await publisher.publish(topic, b"y", qos=1)
    for client in (*clients, late):
        assert (await client.expect(Message))[:2] == (topic, b"y")


async def test_no_alias_where_it_would_not_do(cluster: Served) -> None:
    """What is retained goes with its topic, and all to who limits packets."""
    topic = unique("plain/alias/")
    publisher = await Raw.connect(cluster.port)
    await publisher.publish(topic, b"kept", qos=1, retain=True)
    client, limited = await Raw.connect(cluster.port, _34=8), await Raw.connect(cluster.port, _34=8, _39=10_000)
    assert (await client.subscribe(topic, qos=1), await limited.subscribe(topic)) == ([1], [0])
    await publisher.publish(topic, b"live", qos=1)
    await publisher.publish(topic, b"live", qos=1)
    assert [(m.topic, m.properties) for m in await limited.messages(3)] == [(topic, {})] * 3
    kept = await client.expect(Message)
    assert (kept.topic, kept.retain, kept.properties) == (topic, True, {})


@pytest.mark.parametrize("qos", [1, 2])
async def test_with_packet_ids_and_what_is_sent_again(cluster: Served, qos: int) -> None:
    """QoS 1 and 2 have aliases too; on another connection what was not acknowledged has its topic again."""
    topic, name = unique("a/topic/with/ids/"), unique()
    publisher = await Raw.connect(cluster.port)
    client = await Raw.connect(cluster.port, name, clean=False, _34=64, _17=600)
    client._reader = PacketReader(1 << 20, topic_alias_max=64, from_client=False, version=V5)
    client.answers = False
    assert await client.subscribe(topic, qos=qos) == [qos]
    sizes = []
    for number in range(3):
        await publisher.publish(topic, b"%d" % number, qos=qos)
        data = b""
        while not data:
            data = await client._stream.read(1_000)
        sizes.append(len(data))
        (message,) = flat(client._reader.feed(data))
        assert (message.topic, message.payload, message.qos) == (topic, b"%d" % number, qos)
    assert (sizes[0] - sizes[1], sizes[2]) == (len(topic), sizes[1])
    client.abort()
    again = await Raw.connect(cluster.port, name, clean=False, _34=64, _17=600)
    assert again.connack.session_present
    found = [await again.expect(Message) for _ in range(3)]
    assert [(m.topic, m.payload, m.dup) for m in found] == [(topic, b"%d" % n, True) for n in range(3)]


async def test_runs_with_packet_ids_and_others_between(cluster: Served) -> None:
    """Many topics in a block, of all QoS, to who takes few aliases, and all."""
    root = unique("mixed/")
    publisher = await Raw.connect(cluster.port)
    clients = [await Raw.connect(cluster.port, **{"_34": most}) for most in (2, 64)]  # type: ignore[arg-type] # a number
    for client, most in zip(clients, (2, 64), strict=True):
        client._reader = PacketReader(1 << 20, topic_alias_max=most, from_client=False, version=V5)
        assert await client.subscribe(f"{root}/#", qos=2) == [2]
    expected = []
    for number in range(90):
        topic, payload = f"{root}/{number % 7}", b"%d" % number
        qos = number % 3
        publisher.send(Publish(topic.encode(), payload, qos, packet_id=number + 1 if qos else 0))
        expected.append((topic, payload, qos))
    for client in clients:
        got = [(m.topic, m.payload, m.qos) for m in await client.messages(90)]
        assert sorted(got) == sorted(expected)


async def test_numbers_given_anew_are_told_anew() -> None:
    """More topics than there are numbers, the first of which nobody uses any more."""
    with served(mqtt__topic_aliases_sent_max=8) as running:
        root = unique("many/")
        publisher = await Raw.connect(running.port)
        client = await subscriber(running.port, f"{root}/#", 8)
        expected = []
        for number in range(300):
            topic = f"{root}/{number if number < 20 else 20 + number % 3}"
            await publisher.publish(topic, b"%d" % number, qos=1)  # a block each
            expected.append((topic, b"%d" % number))
        got = [(each.topic, each.payload) for each in await client.messages(300)]
        assert sorted(got) == sorted(expected)  # between topics there is no order
        assert running.broker().engine.encoder.topic_aliases.generation > 0
        await close_clients()


async def test_numbers_given_anew_do_not_change_what_a_client_knows() -> None:
    """It was told a number, gets nothing while that becomes another topic's, and then what is retained there."""
    with served(mqtt__topic_aliases_sent_max=8) as running:
        root = unique("anew/")
        publisher = await Raw.connect(running.port)
        client, other = await subscriber(running.port, f"{root}/old", 8), await subscriber(running.port, f"{root}/+", 8)
        await publisher.publish(f"{root}/old", b"told", qos=1)
        assert (await client.expect(Message))[:2] == (f"{root}/old", b"told")
        aliases = running.broker().engine.encoder.topic_aliases
        assert aliases.number_of(f"{root}/old".encode(), 8) == 1
        count = 0
        while not (aliases.generation and aliases.number_of(f"{root}/kept".encode(), 8) == 1):
            count += 1
            assert count < 1_000
            name = f"{root}/{count}" if count < 8 else f"{root}/kept"
            await publisher.publish(name, b"x", qos=1, retain=count >= 8)
        assert await client.subscribe(f"{root}/kept") == [0]
        assert (await client.expect(Message))[:2] == (f"{root}/kept", b"x")
        await publisher.publish(f"{root}/old", b"again", qos=1)
        assert (await client.expect(Message))[:2] == (f"{root}/old", b"again")
        assert len(await other.messages(count + 2)) == count + 2
        await close_clients()


async def test_windows_and_shares_have_topics(cluster: Served) -> None:
    """Each is a subscriber of its own, and what the connection knows is the session's."""
    topic = unique("named/")
    publisher = await Raw.connect(cluster.port)
    window, member = [await Raw.connect(cluster.port, _34=64) for _ in range(2)]
    options = [(topic.encode(), SubscriptionOptions(1))]
    window.send(Subscribe(window.next_id(), options, None, {USER_PROPERTY: [("since", "beginning")]}))
    assert (await window.expect(SubAck)).reason_codes == [1]
    assert await member.subscribe(f"$share/g/{topic}", qos=1) == [1]
    for _ in range(2):
        await publisher.publish(topic, b"x", qos=1)
    for client in (window, member):
        assert [(each.topic, each.properties) for each in await client.messages(2)] == [(topic, {})] * 2


@pytest.mark.parametrize("streams", [True, False])
def test_our_client_shows_topics(cluster: Served, streams: bool) -> None:
    """With dictionaries and topic streams beside, and after it has connected again."""
    got: queue.Queue[tuple[str, bytes]] = queue.Queue()
    subscribed: queue.Queue[Any] = queue.Queue()
    root = unique("ours/")
    client = ours.Client(CallbackAPIVersion.VERSION2, sdc_streams=streams)
    client.on_message = lambda _client, _data, message: got.put((message.topic, bytes(message.payload)))
    client.on_subscribe = lambda *_: subscribed.put(1)

    def subscribe(*_: Any) -> None:
        client.subscribe(f"{root}/#", qos=0 if streams else 2)

    client.on_connect = subscribe
    client.connect(HOST, cluster.port)
    client.loop_start()
    try:
        for _ in range(2):
            subscribed.get(timeout=WAIT_S)
            for number in range(40):
                topic, payload = f"{root}/{number % 3}", b"{'number': %d}" % number
                said = client.publish(topic, payload, qos=number % 3)
                assert got.get(timeout=WAIT_S) == (topic, payload)
                said.wait_for_publish(WAIT_S)  # or it would be said again over the next connection
            (own,) = [
                each
                for each in cluster.broker().mqtt.connections
                if each.served is not None and each.served.subscriber.kind.aware
            ]
            assert own.served is not None
            assert own.served.subscriber.kind.topic_aliases == 64
            client.reconnect()
    finally:
        client.disconnect()
        client.loop_stop()


def test_an_alias_that_was_not_told_ends_the_connection_and_not_the_client() -> None:
    """It connects again, as paho does after what breaks the rules."""
    lost: queue.Queue[bool] = queue.Queue()
    client = ours.Client(CallbackAPIVersion.VERSION2)
    client.on_disconnect = lambda _client, _data, _flags, reason, _properties: lost.put(reason.is_failure)
    with socket.create_server((HOST, 0)) as broker:
        broker.settimeout(WAIT_S)
        client.connect(HOST, broker.getsockname()[1])
        client.loop_start()
        try:
            for _ in range(2):
                accepted, _ = broker.accept()
                with accepted:
                    accepted.settimeout(WAIT_S)
                    assert accepted.recv(1_000)[:1] == b"\x10"
                    accepted.sendall(encode_packet(ConnAck(False, SUCCESS), V5) + b"\x30\7\0\0\3\x23\0\4x")
                    assert lost.get(timeout=WAIT_S)
        finally:
            client.disconnect()
            client.loop_stop()


def test_what_nobody_has_told_has_no_topic() -> None:
    aliases = ReceivedAliases()
    packet = encode_publish(V5, b"t", b"x", 0, False, properties={TOPIC_ALIAS: 3})
    assert aliases.with_topic(bytearray(packet[2:]), False) == bytearray(packet[2:])
    assert aliases.with_topic(bytearray(b"\0\0\3\x23\0\4x"), False) is None
    assert encode_packet(Publish(b"t", b"x", properties={TOPIC_ALIAS: 3}), V5) == packet
