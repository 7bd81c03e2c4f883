"""MQTT 3.1.1 and 5 against the real broker, packet by packet: publications, subscriptions, retained, wills, limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from lexicast.actors.mqtt.codec import encode_packet
from lexicast.actors.mqtt.codec.packets import (
    PROTOCOL_ERROR,
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
    SubAck,
    Subscribe,
    SubscriptionOptions,
    UnsubAck,
    Unsubscribe,
    Will,
)

from ...support.mqtt_harness import Closed, Message, Raw, Served, close_clients, served, unique

RECEIVE_MAX = 20
PACKET_MAX = 100_000
VERSIONS = pytest.mark.parametrize("version", [V311, V5])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served(
        mqtt__receive_max=RECEIVE_MAX,
        mqtt__packet_bytes_max=PACKET_MAX,
        mqtt__keep_alive_s_max=60,
        mqtt__session_expiry_s_max=600,
        mqtt__subscriptions_per_session_max=5,
        mqtt__connect_timeout_s=2.0,
        mqtt__sys_interval_s=0,
    ) as running:
        yield running


@pytest.fixture
async def port(cluster: Served) -> AsyncIterator[int]:
    yield cluster.port
    await close_clients()


# -- publications


@VERSIONS
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.mqtt(
    "MQTT-3.3.4-1",
    "MQTT-3.8.4-8",
    "MQTT-4.3.1-1",
    "MQTT-4.3.2-2",
    "MQTT-4.3.3-2",
    "MQTT-4.6.0-5",
    "MQTT-4.3.3-1",
    "MQTT-4.3.2-1",
    "MQTT-3.3.2-3",
)
async def test_qos_is_the_lower_of_both(port: int, version: int, published: int, granted: int) -> None:
    topic = unique()
    subscriber, publisher = await Raw.connect(port, version=version), await Raw.connect(port, version=version)
    assert await subscriber.subscribe(topic, qos=granted) == [granted]
    for number in range(3):
        assert await publisher.publish(topic, b"%d" % number, qos=published) == 0
    got = await subscriber.messages(3)
    assert [(m.payload, m.qos, m.dup) for m in got] == [(b"%d" % i, min(published, granted), False) for i in range(3)]
    if min(published, granted):
        assert len({m.packet_id for m in got}) == 3
    await publisher.disconnect()
    await subscriber.disconnect()


@pytest.mark.mqtt("MQTT-3.3.2-4", "MQTT-3.3.2-15", "MQTT-3.3.2-16", "MQTT-3.3.2-17", "MQTT-3.3.2-18", "MQTT-3.3.2-20")
async def test_properties_are_carried_unaltered(port: int) -> None:
    topic = unique()
    subscriber, publisher = await Raw.connect(port), await Raw.connect(port)
    await subscriber.subscribe(topic)
    user = [("b", "2"), ("a", "1"), ("b", "2")]
    await publisher.publish(topic, "ä".encode(), 1, _1=1, _3="text/plain", _8="reply/to", _9=b"\0\1", _38=user)
    (message,) = await subscriber.messages(1)
    carried = {k: [tuple(pair) for pair in v] if k == 38 else v for k, v in message.properties.items()}
    assert carried == {1: 1, 3: "text/plain", 8: "reply/to", 9: b"\0\1", 38: user}


@pytest.mark.mqtt("MQTT-3.3.2-5", "MQTT-3.3.2-6")
async def test_expiry_is_counted_down_and_what_expired_is_not_delivered(port: int) -> None:
    topic, client_id = unique(), unique()
    subscriber, publisher = await Raw.connect(port, client_id, _17=60), await Raw.connect(port)
    await subscriber.subscribe(topic, qos=1)
    await subscriber.disconnect()
    await publisher.publish(topic, b"short", 1, _2=1)
    await publisher.publish(topic, b"long", 1, _2=100)
    await asyncio.sleep(1.1)  # the broker's clock is the system's
    subscriber = await Raw.connect(port, client_id, clean=False, _17=60)
    (message,) = await subscriber.messages(1)
    assert message.payload == b"long"
    assert 90 <= message.properties[2] <= 99
    await subscriber.nothing(publisher, topic)


async def test_expiry_0_reaches_who_is_there_with_the_interval_and_nobody_later(port: int) -> None:
    """[MQTT-3.3.2-5], [MQTT-3.3.2-6]; of a will too."""
    topic, client_id = unique(), unique()
    present, publisher = await Raw.connect(port), await Raw.connect(port)
    away = await Raw.connect(port, client_id, _17=60)
    for client in (present, away):
        await client.subscribe(topic, qos=1)
    await away.disconnect()
    await publisher.publish(topic, b"now", 1, retain=True, _2=0)
    await (await Raw.connect(port, will=Will(topic.encode(), b"gone", 1, True, {2: 0}))).disconnect(4)
    assert [(m.payload, m.properties[2]) for m in await present.messages(2)] == [(b"now", 0), (b"gone", 0)]
    await asyncio.sleep(1.1)  # the broker's clock is the system's
    away, late = await Raw.connect(port, client_id, clean=False, _17=60), await Raw.connect(port)
    await late.subscribe(topic)
    await publisher.publish(topic, b"later", 1)
    assert [(await client.messages(1))[0].payload for client in (away, late)] == [b"later", b"later"]


@pytest.mark.mqtt("MQTT-3.1.2-26", "MQTT-3.1.2-27", "MQTT-3.3.2-11")
async def test_topic_aliases_of_the_client(port: int) -> None:
    topic, other = unique(), unique()
    subscriber, publisher = await Raw.connect(port), await Raw.connect(port)
    assert publisher.connack.properties is not None
    assert publisher.connack.properties[34] == 16
    await subscriber.subscribe(topic, other)
    for name, payload in ((topic, b"1"), ("", b"2"), (other, b"3"), ("", b"4")):
        await publisher.publish(name, payload, 1, _35=3)
    got = await subscriber.messages(4)
    assert [(m.topic, m.payload) for m in got] == [(topic, b"1"), (topic, b"2"), (other, b"3"), (other, b"4")]
    assert all(35 not in m.properties for m in got)
    publisher.send(Publish(b"", b"", properties={35: 4}))
    assert (await publisher.expect(Disconnect)).reason_code == 0x82


@pytest.mark.mqtt("MQTT-2.2.1-5", "MQTT-4.3.2-4", "MQTT-4.3.3-8", "MQTT-4.6.0-2", "MQTT-4.6.0-3")
async def test_acknowledgements_come_in_the_order_of_the_publications(port: int) -> None:
    publisher = await Raw.connect(port, version=V311)
    publisher.answers = False
    for packet_id in range(1, 200):  # to many groups
        publisher.send(Publish(f"{unique()}".encode(), b"", 1 + packet_id % 2, packet_id=packet_id))
    got = [await publisher.packet() for _ in range(199)]
    assert [p.packet_id for p in got] == list(range(1, 200))
    assert all(isinstance(p, PubRec if p.packet_id % 2 else PubAck) for p in got)


@pytest.mark.mqtt("MQTT-4.3.3-10", "MQTT-4.3.3-11", "MQTT-4.3.3-12", "MQTT-3.7.2-1")
async def test_qos_2_is_published_once_however_often_it_is_sent(port: int) -> None:
    topic = unique()
    subscriber, publisher = await Raw.connect(port), await Raw.connect(port)
    await subscriber.subscribe(topic, qos=2)
    publisher.answers = False
    for _ in range(3):
        publisher.send(Publish(topic.encode(), b"once", 2, packet_id=7))
        assert (await publisher.expect(PubRec)).packet_id == 7
    for _ in range(2):
        publisher.send(PubRel(7))
    answers = [await publisher.expect(PubComp) for _ in range(2)]
    assert [a.reason_code for a in answers] == [0, 0x92]
    publisher.send(Publish(topic.encode(), b"new", 2, packet_id=7))
    assert [m.payload for m in await subscriber.messages(2)] == [b"once", b"new"]


@pytest.mark.mqtt("MQTT-3.3.4-7", "MQTT-4.13.2-1")
async def test_receive_maximum_is_enforced(port: int) -> None:
    publisher = await Raw.connect(port)
    publisher.answers = False
    assert publisher.connack.properties is not None
    assert publisher.connack.properties[33] == RECEIVE_MAX
    for packet_id in range(1, RECEIVE_MAX + 2):
        publisher.send(Publish(b"rm", b"", 2, packet_id=packet_id))
    assert (await publisher.expect(Disconnect)).reason_code == 0x93
    await publisher.closed()


@pytest.mark.mqtt("MQTT-3.3.4-9", "MQTT-3.3.4-10", "MQTT-4.9.0-1", "MQTT-4.9.0-2", "MQTT-4.9.0-3")
async def test_receive_maximum_of_the_client_is_obeyed(port: int) -> None:
    topic = unique()
    subscriber, publisher = await Raw.connect(port, _33=3), await Raw.connect(port)
    await subscriber.subscribe(topic, qos=2)
    subscriber.answers = False
    for number in range(10):
        await publisher.publish(topic, b"%d" % number, 1 + number % 2)
    first = [p for p in await subscriber.ping() if isinstance(p, Message)]
    assert [m.payload for m in first] == [b"0", b"1", b"2"]
    subscriber.answers = True
    for message in first:
        subscriber.send(PubAck(message.packet_id) if message.qos == 1 else PubRec(message.packet_id))
    assert [m.payload for m in await subscriber.messages(7)] == [b"%d" % n for n in range(3, 10)]


@pytest.mark.parametrize("window", [1, 2, 3, 4, 10, 20])
@pytest.mark.parametrize("kept", ["live", "stored", "retained"])
async def test_one_acknowledgement_is_one_publication(port: int, window: int, kept: str) -> None:
    """However few of the window are free: a client may keep the others for as long as it likes."""
    root, client_id, count = unique(), unique(), window + 5
    publisher, subscriber = await Raw.connect(port), await Raw.connect(port, client_id, _17=60, _33=window)
    if kept != "retained":
        await subscriber.subscribe(f"{root}/#", qos=1)
    if kept == "stored":
        await subscriber.disconnect()
    for number in range(count):
        await publisher.publish(f"{root}/{number}", b"x", 1, retain=kept == "retained")
    if kept == "stored":
        subscriber = await Raw.connect(port, client_id, clean=False, _17=60, _33=window)
    subscriber.answers = False
    if kept == "retained":
        await subscriber.subscribe(f"{root}/#", qos=1)
    first = await subscriber.messages(window)
    assert await subscriber.ping() == []
    for _ in range(5):
        subscriber.send(PubAck(first[-1].packet_id))
        first += await subscriber.messages(1)
        assert await subscriber.ping() == []
    for number in range(count):
        await publisher.publish(f"{root}/{number}", b"", 0, retain=True)
    await publisher.ping()


@pytest.mark.mqtt("MQTT-3.1.2-24", "MQTT-3.1.2-25")
async def test_packets_larger_than_the_client_takes_are_left_out(port: int) -> None:
    topic = unique()
    subscriber, publisher = await Raw.connect(port, _39=200, _33=2), await Raw.connect(port)
    await subscriber.subscribe(topic, qos=1)
    # More of them than the window holds: none may keep a place in it.
    for number in range(10):
        await publisher.publish(topic, bytes(300), number % 2)
        await publisher.publish(topic, b"%d" % number, number % 2)
    assert [m.payload for m in await subscriber.messages(10)] == [b"%d" % n for n in range(10)]


@pytest.mark.mqtt("MQTT-3.2.2-15")
async def test_packets_larger_than_the_broker_takes(port: int) -> None:
    publisher = await Raw.connect(port)
    assert publisher.connack.properties is not None
    assert publisher.connack.properties[39] == PACKET_MAX
    topic = unique()
    overhead = 1 + 3 + 2 + len(topic) + 2 + 1
    assert await publisher.publish(topic, bytes(PACKET_MAX - overhead), 1) == 0
    publisher.send(Publish(topic.encode(), bytes(PACKET_MAX - overhead + 1), 1, packet_id=1))
    assert (await publisher.expect(Disconnect)).reason_code == 0x95


@pytest.mark.mqtt("MQTT-4.7.3-3")
async def test_the_longest_topic_works(port: int) -> None:
    topic = "t" * 65_535
    subscriber, publisher = await Raw.connect(port), await Raw.connect(port)
    assert await subscriber.subscribe(topic, qos=1) == [1]
    assert await publisher.publish(topic, b"x", 1, retain=True) == 0
    assert [(m.topic, m.payload) for m in await subscriber.messages(1)] == [(topic, b"x")]
    late = await Raw.connect(port)
    await late.subscribe(topic)
    assert (await late.messages(1))[0].retain
    await publisher.publish(topic, b"", 1, retain=True)


@VERSIONS
@pytest.mark.mqtt("MQTT-3.4.2-1", "MQTT-3.5.2-1")
async def test_topics_below_dollar_are_not_for_clients(port: int, version: int) -> None:
    publisher, subscriber = await Raw.connect(port, version=version), await Raw.connect(port, version=version)
    await subscriber.subscribe("$x/y", "#")
    for qos in (0, 1, 2):
        # 3.1.1 has no negative acknowledgement.
        assert await publisher.publish("$x/y", b"", qos) == (0x87 if qos and version == V5 else 0)
    await subscriber.nothing(publisher, unique())


@VERSIONS
async def test_what_is_published_below_sys_is_dropped_and_counted(cluster: Served, port: int, version: int) -> None:
    topic, before = "$SYS/broker/connection/site.bridge/state", cluster.broker().mqtt.status()["dropped_dollar"]
    will = Will(topic.encode(), b"0", 1, True)
    bridge, watcher = await Raw.connect(port, version=version, will=will), await Raw.connect(port)
    await watcher.subscribe("$SYS/#", "#")
    for qos in (0, 1, 2):
        assert await bridge.publish(topic, b"1", qos, retain=True) == (0x10 if qos and version == V5 else 0)
    bridge.abort()
    await watcher.nothing(watcher, unique())
    assert cluster.broker().mqtt.status()["dropped_dollar"] == before + 4


@pytest.mark.mqtt("MQTT-4.6.0-2", "MQTT-4.6.0-3", "MQTT-4.3.2-4", "MQTT-4.3.3-8")
async def test_acknowledgements_of_what_is_dropped_or_repeated_keep_the_order(cluster: Served, port: int) -> None:
    """[MQTT-4.6.0-2], [MQTT-4.6.0-3]."""
    client, topic = await Raw.connect(port), unique()
    client.answers = False
    client.send(Publish(topic.encode(), b"", 2, packet_id=1))
    await client.expect(PubRec)
    disk = cluster.cluster.coordinators["coordinator-0"].disk
    disk.hold()
    try:
        for number, (name, qos) in enumerate([(topic, 1), ("$x", 1), ("$SYS/x", 2), (topic, 2)], 2):
            client.send(Publish(name.encode(), b"", qos, packet_id=number))
        client.send(Publish(topic.encode(), b"", 2, dup=True, packet_id=1))
        assert await client.ping() == []
    finally:
        disk.release()
    got = [await client.packet() for _ in range(5)]
    assert [(p.packet_id, p.reason_code) for p in got] == [(2, 0), (3, 0x87), (4, 0x10), (5, 0), (1, 0)]


async def test_a_bridge_gets_nothing_of_its_own_back_and_retain_as_published(port: int) -> None:
    """Bit 7 of the protocol level, as Mosquitto's bridges set it: No Local and Retain As Published."""
    topic = unique()
    bridge, other = await Raw.open(port, V311), await Raw.connect(port)
    hello = bytearray(encode_packet(Connect(V311, unique()), V311))
    hello[8] |= 0x80
    bridge.send(bytes(hello))
    assert (await bridge.expect(ConnAck)).reason_code == 0
    await bridge.subscribe(topic, qos=1)
    await bridge.publish(topic, b"own", 1)
    await other.publish(topic, b"kept", 1, retain=True)
    assert [(m.payload, m.retain) for m in await bridge.messages(1)] == [(b"kept", True)]
    await bridge.nothing(other, topic)


# -- subscriptions


@pytest.mark.mqtt("MQTT-3.3.2-3", "MQTT-4.7.1-1", "MQTT-4.7.1-2")
async def test_wildcards_and_dollar_topics(port: int) -> None:
    root = unique()
    publisher = await Raw.connect(port)
    wanted = {
        f"{root}/#": {"", "/", "/a", "/a/b"},
        f"{root}/+": {"/", "/a"},
        f"{root}/+/b": {"/a/b"},
        f"{root}": {""},
    }
    clients = {}
    for topic_filter in wanted:
        clients[topic_filter] = await Raw.connect(port)
        assert await clients[topic_filter].subscribe(topic_filter) == [0]
    for rest in ("", "/", "/a", "/a/b"):
        await publisher.publish(root + rest, b"", 1)
    for topic_filter, topics in wanted.items():
        client = clients[topic_filter]
        got = {m.topic for m in [p for p in await client.ping() if isinstance(p, Message)]}
        assert got == {root + rest for rest in topics}


@pytest.mark.mqtt("MQTT-3.3.4-2", "MQTT-3.3.4-3", "MQTT-3.3.4-4", "MQTT-3.8.4-3")
async def test_overlapping_subscriptions_are_one_delivery_with_all_identifiers(port: int) -> None:
    root = unique()
    subscriber, publisher = await Raw.connect(port), await Raw.connect(port)
    await subscriber.subscribe(f"{root}/#", qos=0, identifier=1)
    await subscriber.subscribe(f"{root}/+", qos=2, identifier=268_435_455)
    await publisher.publish(f"{root}/a", b"", 2)
    (message,) = await subscriber.messages(1)
    assert (message.qos, sorted(message.properties[11])) == (2, [1, 268_435_455])
    await subscriber.nothing(publisher, f"{root}/a")
    # A subscription made again replaces the first, identifier included.
    await subscriber.subscribe(f"{root}/+", qos=1)
    await publisher.publish(f"{root}/a", b"", 2)
    (message,) = await subscriber.messages(1)
    assert (message.qos, message.properties[11]) == (1, [1])


@pytest.mark.mqtt("MQTT-3.8.3-3")
async def test_no_local_beside_an_ordinary_subscription(port: int) -> None:
    root = unique()
    client, other = await Raw.connect(port), await Raw.connect(port)
    await client.subscribe(f"{root}/#", qos=2, identifier=1, no_local=True)
    await client.publish(f"{root}/own", b"own", 1)
    await client.publish(f"{root}/own", b"kept", 1, retain=True)
    await client.nothing(other, f"{root}/x")
    await client.subscribe(f"{root}/+", qos=1, identifier=2, retain_handling=2)
    client.send(Publish(f"{root}/own".encode(), b"own", 2, packet_id=99))
    (own,) = await client.messages(1)
    assert (own.payload, own.qos, own.properties[11]) == (b"own", 1, [2])
    await other.publish(f"{root}/own", b"other", 2)
    (message,) = await client.messages(1)
    assert (message.payload, message.qos, sorted(message.properties[11])) == (b"other", 2, [1, 2])
    # Nor does a new subscription get what the client itself retained [MQTT-3.8.3-3].
    await client.subscribe(f"{root}/own/#", no_local=True)
    await client.nothing(other, f"{root}/y")


@pytest.mark.mqtt(
    "MQTT-3.8.4-6",
    "MQTT-3.8.4-7",
    "MQTT-3.9.3-1",
    "MQTT-3.9.3-2",
    "MQTT-3.10.4-1",
    "MQTT-3.10.4-5",
    "MQTT-3.11.3-1",
    "MQTT-3.11.3-2",
)
async def test_unsubscribe_codes_and_subscriptions_refused(port: int) -> None:
    root = unique()
    client = await Raw.connect(port)
    too_deep = "+/" * 200 + "#"
    assert await client.subscribe(f"{root}/a", too_deep, f"{root}/b", qos=2) == [2, 0x8F, 2]
    assert await client.unsubscribe(f"{root}/a", f"{root}/a", f"{root}/never") == [0, 0x11, 0x11]
    assert client.connack.properties is not None
    assert 42 not in client.connack.properties  # shared subscriptions are there
    names = [f"{root}/many/{i}" for i in range(6)]
    assert await client.subscribe(*names) == [0, 0, 0, 0, 0x97, 0x97]  # 5 a session, one is there
    old = await Raw.connect(port, version=V311)
    shared_too_deep = f"$share/group/{too_deep}"
    assert await old.subscribe(shared_too_deep, "$share", too_deep, root, qos=1) == [0x80, 0x80, 0x80, 1]


@pytest.mark.mqtt("MQTT-2.2.1-6", "MQTT-3.8.4-1", "MQTT-3.8.4-2", "MQTT-3.10.4-2", "MQTT-3.10.4-4", "MQTT-3.10.4-5")
async def test_subscribe_and_unsubscribe_take_effect_in_their_order(port: int) -> None:
    topic = unique()
    client, publisher = await Raw.connect(port), await Raw.connect(port)
    for packet_id in range(1, 41, 2):
        client.send(Subscribe(packet_id, [(topic.encode(), SubscriptionOptions())]))
        client.send(Unsubscribe(packet_id + 1, [topic.encode()]))
    answers = [await client.packet() for _ in range(40)]
    assert [a.packet_id for a in answers] == list(range(1, 41))
    assert [a.reason_codes for a in answers] == [[0]] * 40
    await publisher.publish(topic, b"unwanted", 1)
    await client.subscribe(f"{topic}/2")
    await client.nothing(publisher, f"{topic}/2")


async def test_unsuback_of_version_311_has_no_codes(port: int) -> None:
    client = await Raw.connect(port, version=V311)
    client.send(Unsubscribe(9, [b"a", b"b"]))
    assert await client.expect(UnsubAck) == UnsubAck(9, [])


# -- retained


@pytest.mark.mqtt("MQTT-3.3.1-5", "MQTT-3.3.1-6", "MQTT-3.3.1-7", "MQTT-3.3.1-8", "MQTT-3.3.1-9", "MQTT-3.3.1-12")
@pytest.mark.mqtt311("MQTT-3.3.1-8")
async def test_retained_set_replaced_cleared(port: int) -> None:
    root = unique()
    publisher = await Raw.connect(port)
    await publisher.publish(f"{root}/a", b"1", 1, retain=True)
    await publisher.publish(f"{root}/a", b"2", 0, retain=True)
    await publisher.publish(f"{root}/b", b"3", 2, retain=True)
    await publisher.publish(f"{root}/b", b"not retained", 2)
    live = await Raw.connect(port)
    await live.subscribe(f"{root}/+", qos=2, identifier=5)
    got = {m.topic: m for m in await live.messages(2)}
    assert {t: (m.payload, m.qos, m.retain) for t, m in got.items()} == {
        f"{root}/a": (b"2", 0, True),
        f"{root}/b": (b"3", 2, True),
    }
    assert all(m.properties[11] == [5] for m in got.values())
    await publisher.publish(f"{root}/a", b"", 1, retain=True)
    (clearing,) = await live.messages(1)
    assert (clearing.payload, clearing.retain) == (b"", False)
    late = await Raw.connect(port)
    await late.subscribe(f"{root}/a")
    await late.nothing(publisher, f"{root}/a")


@pytest.mark.mqtt("MQTT-3.3.1-9", "MQTT-3.3.1-10", "MQTT-3.3.1-11", "MQTT-3.3.1-13")
async def test_retain_handling_and_retain_as_published(port: int) -> None:
    topic = unique()
    client, publisher = await Raw.connect(port), await Raw.connect(port)
    await publisher.publish(topic, b"kept", 1, retain=True)
    await client.subscribe(topic, retain_handling=2)
    await client.subscribe(topic, retain_handling=1)  # it was there
    await client.nothing(publisher, topic)
    await client.subscribe(topic, retain_handling=0, retain_as_published=True)
    assert [(m.payload, m.retain) for m in await client.messages(1)] == [(b"kept", True)]
    await publisher.publish(topic, b"new", 1, retain=True)
    await publisher.publish(topic, b"plain", 1)
    assert [(m.payload, m.retain) for m in await client.messages(2)] == [(b"new", True), (b"plain", False)]
    await client.unsubscribe(topic)
    await client.subscribe(topic, retain_handling=1)
    assert [(m.payload, m.retain) for m in await client.messages(1)] == [(b"new", True)]


async def test_more_retained_than_the_window_takes(port: int) -> None:
    root = unique()
    publisher, client = await Raw.connect(port), await Raw.connect(port, _33=5)
    for number in range(30):
        await publisher.publish(f"{root}/{number}", b"", 0, retain=False)
        await publisher.publish(f"{root}/{number}", b"x", 1, retain=True)
    await client.subscribe(f"{root}/#", qos=1)
    assert len({m.topic for m in await client.messages(30)}) == 30


# -- wills


@pytest.mark.mqtt("MQTT-3.1.2-7", "MQTT-3.1.2-8", "MQTT-3.1.2-10", "MQTT-3.14.4-3")
async def test_will_after_a_broken_connection_and_none_after_disconnect(port: int) -> None:
    topic = unique()
    watcher = await Raw.connect(port)
    await watcher.subscribe(topic, qos=2)
    will = Will(topic.encode(), b"gone", 1, False, {3: "text/plain", 2: 50})
    for version in (V311, V5):
        polite = await Raw.connect(port, version=version, will=will)
        await polite.disconnect()
        rude = await Raw.connect(port, version=version, will=will)
        rude.abort()
        (message,) = await watcher.messages(1)
        assert (message.payload, message.qos) == (b"gone", 1)
    assert message.properties[3] == "text/plain"
    assert 48 <= message.properties[2] <= 50
    for reason_code in (0x04, 0x80, 0x81, 0x82, 0x93, 0x97, 0x99):  # only 0x00 takes the will back [MQTT-3.14.4-3]
        asked = await Raw.connect(port, will=will)
        await asked.disconnect(reason_code)
        assert (await watcher.messages(1))[0].payload == b"gone"
    wrong = await Raw.connect(port, will=will)
    wrong.send(Auth())
    assert (await wrong.expect(Disconnect)).reason_code == PROTOCOL_ERROR
    assert (await watcher.messages(1))[0].payload == b"gone"


@pytest.mark.mqtt("MQTT-3.1.2-15")
async def test_retained_will(port: int) -> None:
    topic = unique()
    rude = await Raw.connect(port, version=V311, will=Will(topic.encode(), b"gone", 0, True))
    watcher = await Raw.connect(port)
    await watcher.subscribe(topic)
    rude.abort()
    assert not (await watcher.messages(1))[0].retain
    late = await Raw.connect(port)
    await late.subscribe(topic)
    assert [(m.payload, m.retain) for m in await late.messages(1)] == [(b"gone", True)]
    await late.publish(topic, b"", 1, retain=True)


@pytest.mark.mqtt("MQTT-3.1.2-8", "MQTT-3.1.3-9")
async def test_will_delay(port: int) -> None:
    topic = unique()
    watcher, name = await Raw.connect(port), unique()
    await watcher.subscribe(topic)

    def will(payload: bytes, delay_s: int) -> Will:
        return Will(topic.encode(), payload, 0, False, {24: delay_s})

    client = await Raw.connect(port, name, clean=False, will=will(b"back in time", 60), _17=60)
    client.abort()
    client = await Raw.connect(port, name, clean=False, will=will(b"session begun anew", 60), _17=60)
    assert client.connack.session_present
    client.abort()
    client = await Raw.connect(port, name, clean=True, will=will(b"taken over", 0), _17=60)
    taker = await Raw.connect(port, name, clean=False, will=will(b"taken over, delayed", 60), _17=60)
    taker = await Raw.connect(port, name, clean=False, will=will(b"taken over, clean", 60), _17=60)
    taker = await Raw.connect(port, name, clean=True, will=will(b"after its delay", 1), _17=60)
    taker.abort()
    other = await Raw.connect(port, will=will(b"session ended", 60))
    other.abort()
    got = [m.payload for m in await watcher.messages(5)]
    assert got[-1] == b"after its delay"
    assert set(got[:4]) == {b"session begun anew", b"taken over", b"taken over, clean", b"session ended"}


# -- connections


@pytest.mark.mqtt("MQTT-3.1.3-2", "MQTT-3.1.4-3", "MQTT-3.14.4-1", "MQTT-3.14.4-2")
async def test_takeover_of_a_live_connection(port: int) -> None:
    name = unique()
    first = await Raw.connect(port, name, clean=False)
    second = await Raw.connect(port, name, clean=False)
    assert (await first.expect(Disconnect)).reason_code == 0x8E
    await first.closed()
    old = await Raw.connect(port, name, version=V311, clean=False)
    assert (await second.expect(Disconnect)).reason_code == 0x8E
    assert await old.ping() == []


async def test_many_connections_with_one_name_leave_one_standing(port: int) -> None:
    name = unique()
    clients = [await Raw.open(port) for _ in range(20)]
    for client in clients:
        client.send(Connect(V5, name, clean_start=False, properties={17: 60}))

    answers = [(await client.expect(ConnAck)).reason_code for client in clients]
    assert set(answers) <= {0, 0x89}  # CONNACK has no 0x8E

    async def is_served(client: Raw) -> bool:
        try:
            await client.ping()
        except Closed:
            return False
        return True

    assert [await is_served(client) for client in clients].count(True) == 1


@pytest.mark.mqtt("MQTT-3.1.3-6", "MQTT-3.1.3-7", "MQTT-3.2.2-16")
@pytest.mark.mqtt311("MQTT-3.1.3-7", "MQTT-3.1.3-8")
async def test_assigned_client_id(port: int) -> None:
    first, second = await Raw.connect(port, ""), await Raw.connect(port, "")
    names = {c.connack.properties[18] for c in (first, second) if c.connack.properties}
    assert len(names) == 2
    assert (await Raw.connect(port, "", version=V311)).connack.reason_code == 0
    assert (await Raw.connect(port, "", version=V311, clean=False)).connack.reason_code == 0x85


async def test_server_keep_alive_and_session_expiry_are_told_where_they_differ(port: int) -> None:
    for asked, told in ((120, 60), (60, None), (30, None), (0, 60)):
        properties = (await Raw.connect(port, keep_alive_s=asked)).connack.properties or {}
        assert properties.get(19) == told
    for asked, told in ((1_000, 600), (600, None), (0xFFFFFFFF, 600)):
        assert ((await Raw.connect(port, _17=asked)).connack.properties or {}).get(17) == told


@VERSIONS
@pytest.mark.mqtt("MQTT-3.1.2-22", "MQTT-3.2.2-22")
async def test_silence_beyond_the_keep_alive(port: int, version: int) -> None:
    topic = unique()
    watcher = await Raw.connect(port)
    await watcher.subscribe(topic)
    silent = await Raw.connect(port, version=version, keep_alive_s=1, will=Will(topic.encode(), b"silent"))
    rest = await silent.closed()
    assert [p.reason_code for p in rest] == ([0x8D] if version == V5 else [])
    assert (await watcher.messages(1))[0].payload == b"silent"


async def test_a_connect_that_never_comes_whole(port: int) -> None:
    slow = await Raw.open(port)
    slow.send(b"\x10\x20\x00\x04MQ")

    async def drip() -> None:
        while True:
            await asyncio.sleep(0.3)
            slow.send(b"\0")

    task = asyncio.create_task(drip())
    assert await slow.closed() == []  # within WAIT_S: dripping bytes buy no time
    task.cancel()


@pytest.mark.mqtt("MQTT-3.1.4-5")
async def test_everything_in_one_packet_of_the_network(port: int) -> None:
    topic = unique()
    watcher, hasty = await Raw.connect(port), await Raw.open(port)
    await watcher.subscribe(topic)
    hasty.send(Connect(V5, unique()))
    hasty.send(Publish(topic.encode(), b"hasty", 1, packet_id=1))
    hasty.send(Disconnect())
    assert isinstance(await hasty.packet(), ConnAck)
    assert (await watcher.messages(1))[0].payload == b"hasty"


@pytest.mark.mqtt("MQTT-3.1.0-2", "MQTT-3.2.0-2", "MQTT-3.14.2-1", "MQTT-4.13.1-1", "MQTT-4.13.2-1")
async def test_what_is_against_the_protocol_once_connected(port: int) -> None:
    cases: list[tuple[object, int]] = [
        (Connect(V5, "again"), 0x82),
        (Disconnect(0, {17: 60}), 0x82),  # the session was to end with its connection [MQTT-3.14.2-2]
        (ConnAck(), 0x82),
        (Subscribe(1, [(b"$share/g/a", SubscriptionOptions(no_local=True))]), 0x82),
        (b"\x00\x00", 0x81),
        (b"\x30\x04\x00\x02\xff\xff", 0x81),
        (b"\x30\x05\x00\x01+\x00\x00", 0x81),
        (Subscribe(1, [(b"$share/g", SubscriptionOptions())]), 0x81),
        (Subscribe(1, [(b"", SubscriptionOptions())]), 0x81),
        (Unsubscribe(1, [b"a#"]), 0x81),
        (b"\x30\x05\x00\x01\x00\x00\x00", 0x81),
        (b"\x36\x06\x00\x01a\x00\x01\x00", 0x81),
        (b"\x32\x06\x00\x01a\x00\x00\x00", 0x82),
    ]
    for packet, code in cases:
        client = await Raw.connect(port)
        client.send(packet)
        assert (await client.expect(Disconnect)).reason_code == code, packet
        assert await client.closed() == []


@pytest.mark.mqtt("MQTT-3.1.2-1", "MQTT-3.1.2-2", "MQTT-3.1.0-1")
@pytest.mark.mqtt311("MQTT-3.2.2-6")
async def test_unknown_versions_and_other_protocols(port: int) -> None:
    for level, answer in ((3, b"\x20\x02\x00\x01"), (6, b"\x20\x03\x00\x84\x00")):
        client = await Raw.open(port)
        client.send(b"\x10\x0d\x00\x04MQTT" + bytes((level,)) + b"\x02\x00\x00\x00\x01a")
        assert await client.rest() == answer
    for other in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"\xc0\x00",
        b"\x10\x0b\x00\x02hj\x04\x02\0\0\0\1a",
    ):
        client = await Raw.open(port)
        client.send(other)
        assert await client.rest() == b""


@pytest.mark.mqtt("MQTT-4.12.0-1", "MQTT-3.2.2-8")
async def test_enhanced_authentication_is_refused(port: int) -> None:
    assert (await Raw.connect(port, _21="SCRAM-SHA-256")).connack.reason_code == 0x8C


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.mqtt("MQTT-3.1.4-2", "MQTT-3.2.2-7", "MQTT-4.13.2-1")
async def test_user_names_and_passwords_are_refused_because_nobody_checks_them(port: int, version: int) -> None:
    client = await Raw.open(port, version)
    client.send(Connect(version, unique(), True, 0, user_name="me", password=b"wrong"))
    assert (await client.expect(ConnAck)).reason_code == 0x86  # 3.1.1: return code 4
    assert await client.rest() == b""


@pytest.mark.mqtt("MQTT-3.8.4-3", "MQTT-3.8.4-5")
async def test_suback_for_the_wire_in_one_packet(port: int) -> None:
    """One SUBSCRIBE with one filter many times is one subscription."""
    topic = unique()
    client, publisher = await Raw.connect(port), await Raw.connect(port)
    client.send(Subscribe(1, [(topic.encode(), SubscriptionOptions(qos)) for qos in (0, 2, 1)]))
    assert (await client.expect(SubAck)).reason_codes == [0, 2, 1]
    await publisher.publish(topic, b"x", 2)
    assert [m.qos for m in await client.messages(1)] == [1]
    assert await client.unsubscribe(topic) == [0]
    await publisher.publish(topic, b"x", 2)
    assert await client.ping() == []
