"""What a client sends is taken in the order of the wire: what stands behind a SUBSCRIBE is seen by it, and what came
before a DISCONNECT counts. Who waits, waits within bounds, and not for ever."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from lexicast.actors.mqtt import open_session
from lexicast.actors.mqtt.client_line import HELD, NO_ROOM, RELEASES, UNREAD
from lexicast.actors.mqtt.client_socket import OPEN, ClientSocket
from lexicast.actors.mqtt.codec import encode_packet
from lexicast.actors.mqtt.codec.packets import (
    V5,
    V311,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
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
from lexicast.actors.mqtt.connection import MqttConnection
from lexicast.actors.mqtt.window_subscriptions import WindowSubscriber
from lexicast.cluster.errors import StoreError
from lexicast.compression.wire import ALIAS_TOPIC, Binding

from ...support.harness import eventually
from ...support.mqtt_harness import Closed, Message, Raw, Served, close_clients, served, unique

VERSIONS = pytest.mark.parametrize("version", [V311, V5])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
async def port(cluster: Served) -> AsyncIterator[int]:
    yield cluster.port
    await close_clients()


def joined(version: int, *packets: Packet) -> bytes:
    """In one segment."""
    return b"".join([encode_packet(packet, version) for packet in packets])


def subscribe(topic: str, packet_id: int = 1, qos: int = 0) -> Subscribe:
    return Subscribe(packet_id, [(topic.encode(), SubscriptionOptions(qos))])


def publish(topic: str, payload: bytes, qos: int = 0, packet_id: int = 0) -> Publish:
    return Publish(topic.encode(), payload, qos, packet_id=packet_id)


# -- behind a SUBSCRIBE


@VERSIONS
@pytest.mark.parametrize("wildcard", [False, True])
@pytest.mark.parametrize("connects", [False, True])
async def test_what_stands_behind_a_subscribe_is_seen_by_it(
    port: int, version: int, wildcard: bool, connects: bool
) -> None:
    for _ in range(30):
        topic = unique()
        client = await Raw.open(port, version) if connects else await Raw.connect(port, version=version)
        data = joined(version, Connect(version, unique())) if connects else b""
        data += joined(version, subscribe(topic + "/#" if wildcard else topic), publish(topic, b"behind"))
        client.send(data)
        await client.expect(SubAck)
        assert (await client.messages(1))[0].payload == b"behind"


async def test_subscriptions_and_publications_in_turn(port: int) -> None:
    topics = [unique() for _ in range(20)]
    client = await Raw.connect(port)
    packets: list[Packet] = []
    for number, topic in enumerate(topics, 1):
        packets += [publish(topic, b"before or not"), subscribe(topic, number), publish(topic, b"behind"), PingReq()]
        packets += [Unsubscribe(1000 + number, [b"never"])]
    client.send(joined(V5, *packets))
    got: list[Any] = []
    while len([m for m in got if isinstance(m, Message) and m.payload == b"behind"]) < 20 or len(got) < 80:
        got.append(await client.packet())
    assert {m.topic for m in got if isinstance(m, Message) and m.payload == b"behind"} == set(topics)
    assert [p.packet_id for p in got if isinstance(p, SubAck)] == list(range(1, 21))
    assert [p.packet_id for p in got if isinstance(p, UnsubAck)] == list(range(1001, 1021))
    assert len([p for p in got if isinstance(p, PingResp)]) == 20


async def test_a_subscription_that_takes_long_holds_up_what_is_behind_it_and_no_ping(
    cluster: Served, port: int
) -> None:
    """The persistent session's SUBSCRIBE is acknowledged once it is durable."""
    topic, other = unique(), unique()
    client = await Raw.connect(port, _17=60, _33=1)
    await client.subscribe(other, qos=1)
    publisher = await Raw.connect(port)
    client.answers = False
    for number in range(2):
        await publisher.publish(other, b"%d" % number, qos=1)
    (first,) = await client.messages(1)
    disk = cluster.cluster.coordinators["coordinator-0"].disk
    disk.hold()
    try:
        client.send(joined(V5, subscribe(topic, 9)))
        client.send(joined(V5, publish(topic, b"behind"), PingReq(), PubAck(first.packet_id)))
        assert isinstance(await client.packet(), PingResp)
        assert (await client.messages(1))[0].payload == b"1"
    finally:
        disk.release()
    assert (await client.expect(SubAck)).packet_id == 9
    assert (await client.messages(1))[0].payload == b"behind"


async def test_a_flood_behind_a_subscribe_is_not_read(cluster: Served, port: int) -> None:
    topic, size, count = unique(), 64 * 1024, 640  # 40 MiB
    client, witness = await Raw.connect(port, unique(), _17=60), await Raw.connect(port)
    disk = cluster.cluster.coordinators["coordinator-0"].disk

    async def flood() -> None:
        for number in range(count):
            client.send(publish(topic, number.to_bytes(4, "big") + bytes(size)))
            await client.drain()

    disk.hold()
    try:
        client.send(subscribe(topic, 9))
        flooding = asyncio.create_task(flood())
        (connection,) = [c for c in cluster.broker().mqtt.connections if c.client_id == _id_of(cluster, client)]
        await eventually(lambda: connection.is_paused(HELD))
        for _ in range(20):
            await witness.ping()
        assert not connection.transport.is_reading()
        assert not flooding.done()
    finally:
        disk.release()
    got = [int.from_bytes(m.payload[:4], "big") for m in await client.messages(count)]
    assert got == list(range(count))
    await flooding


def _id_of(cluster: Served, client: Raw) -> str:
    (found,) = [
        c.client_id
        for c in cluster.broker().mqtt.connections
        if c.transport.get_extra_info("peername")[1] == client.local_port
    ]
    return found


# -- before a DISCONNECT


@VERSIONS
async def test_what_was_received_before_disconnect_counts(port: int, version: int) -> None:
    """[MQTT-3.14.4-1] ends the connection, not what was asked before."""
    topic, gone, name = unique(), unique(), unique()
    watcher = await Raw.connect(port)
    await watcher.subscribe(topic)
    expiry = {17: 60} if version == V5 else None
    hello = Connect(version, name, False, properties=expiry)
    first = await Raw.open(port, version)
    first.send(joined(version, hello, subscribe(gone, 1, 1), Disconnect()))
    await first.closed()
    again = await Raw.open(port, version)
    again.send(
        joined(
            version,
            hello,
            Unsubscribe(1, [gone.encode()]),
            subscribe(topic, 2, 1),
            publish(topic, b"own", 1, 3),
            publish(topic, b"last", 2, 4),
            Disconnect(),
        )
    )
    rest = [type(packet) for packet in await again.closed()]
    assert rest[:3] == [ConnAck, UnsubAck, SubAck]
    assert [m.payload for m in await watcher.messages(2)] == [b"own", b"last"]
    await watcher.publish(gone, b"unwanted", 1)
    back = await Raw.open(port, version)
    back.send(hello)
    assert (await back.expect(ConnAck)).session_present
    assert [m.payload for m in await back.messages(2)] == [b"own", b"last"]
    await back.nothing(watcher, topic)


async def test_a_release_before_disconnect_counts(port: int) -> None:
    """The packet id is free again: what is published with it later is not taken for a repeat."""
    topic, name = unique(), unique()
    watcher = await Raw.connect(port)
    await watcher.subscribe(topic)
    for payload in (b"1", b"2", b"3"):
        client = await Raw.connect(port, name, clean=False, _17=60)
        client.answers = False
        client.send(publish(topic, payload, 2, 7))
        await client.expect(PubRec)
        client.send(joined(V5, PubRel(7), Disconnect()))
        await client.closed()
    assert [m.payload for m in await watcher.messages(3)] == [b"1", b"2", b"3"]


async def test_what_came_before_what_is_ill_formed_counts(port: int) -> None:
    topic = unique()
    watcher, client = await Raw.connect(port), await Raw.connect(port)
    await watcher.subscribe(topic)
    client.send(joined(V5, subscribe(unique()), publish(topic, b"good")) + b"\0\0" + joined(V5, publish(topic, b"bad")))
    assert [p.reason_code for p in await client.closed() if isinstance(p, Disconnect)] == [0x81]
    assert (await watcher.messages(1))[0].payload == b"good"
    await watcher.nothing(watcher, topic)


async def test_a_disconnect_that_waits_has_taken_the_will_back(cluster: Served, port: int) -> None:
    """[MQTT-3.14.4-3], also when the session is taken over before its turn comes."""
    topic, name = unique(), unique()
    watcher = await Raw.connect(port)
    await watcher.subscribe(topic)
    client = await Raw.connect(port, name, clean=False, will=Will(topic.encode(), b"gone"), _17=60)
    disk = cluster.cluster.coordinators["coordinator-0"].disk
    disk.hold()
    try:
        client.send(joined(V5, subscribe(unique(), 9), Disconnect()))
        (connection,) = [c for c in cluster.broker().mqtt.connections if c.client_id == name]
        await eventually(lambda: connection.is_paused(HELD))
        taker = await Raw.open(port)
        taker.send(Connect(V5, name, False, properties={17: 60}))
        await eventually(lambda: connection.is_closed)
    finally:
        disk.release()
    await taker.expect(ConnAck)
    await watcher.nothing(watcher, topic)


# -- behind what is refused


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.mqtt311("MQTT-4.8.0-2")
async def test_what_follows_a_refused_publication_is_not_stored_before_that_is_sent_again(
    cluster: Served, port: int, qos: int
) -> None:
    """MQTT 3.1.1 tells it by closing the connection, once what was published before is answered."""
    waits, topic, name = unique(), unique(), unique()
    subscriber = await Raw.connect(port)
    await subscriber.subscribe(topic, qos=1)
    publisher = await Raw.connect(port, name, V311, clean=False)
    coordinator = cluster.cluster.coordinators["coordinator-0"]
    coordinator.disk.hold()
    try:
        publisher.send(publish(waits, b"1", qos, 1))
        await eventually(lambda: coordinator.disk.waiting == 1, "the first one at the disk")
        await refused(coordinator, publisher, publish(topic, b"2", qos, 2))
        publisher.send(publish(topic, b"3", qos, 3))
        await publisher.ping()
    finally:
        coordinator.disk.release()
    assert [p.packet_id for p in await publisher.closed()] == [1]
    publisher = await Raw.connect(port, name, V311, clean=False)
    publisher.send(publish(topic, b"2", qos, 2))
    publisher.send(publish(topic, b"3", qos, 3))
    assert [m.payload for m in await subscriber.messages(2)] == [b"2", b"3"]


async def test_a_refusal_is_told_at_last_whatever_waits_before_it(cluster: Served, port: int) -> None:
    waits, topic = unique(), unique()
    publisher = await Raw.connect(port, unique(), V311)
    coordinator = cluster.cluster.coordinators["coordinator-0"]
    coordinator.disk.hold()
    try:
        publisher.send(publish(waits, b"1", 1, 1))
        await eventually(lambda: coordinator.disk.waiting == 1, "the first one at the disk")
        await refused(coordinator, publisher, publish(topic, b"2", 1, 2))
        assert await publisher.closed() == []
    finally:
        coordinator.disk.release()


async def refused(coordinator: Any, publisher: Raw, packet: Publish) -> None:
    """This is published while there is no room."""
    groups = coordinator.server.led
    before = groups.refused.total()
    groups.store.room = lambda: False
    try:
        publisher.send(packet)
        await eventually(lambda: groups.refused.total() > before, "the refusal")
    finally:
        del groups.store.room


# -- nobody waits for ever


def test_a_socket_is_read_once_every_reason_not_to_has_passed() -> None:
    class Transport(asyncio.Transport):
        reading = True

        def pause_reading(self) -> None:
            self.reading = False

        def resume_reading(self) -> None:
            self.reading = True

    one = ClientSocket()
    one.transport = transport = Transport()
    one.state = OPEN
    reasons = [NO_ROOM, RELEASES, UNREAD, HELD]
    for reason in reasons:
        one.pause(reason)
        one.pause(reason)
    for reason in reasons:
        assert not transport.reading
        one.resume(reason)
    assert transport.reading


@pytest.mark.parametrize("error", [StoreError("a page is damaged"), TimeoutError(), RuntimeError("unforeseen")])
async def test_work_that_fails_ends_the_connection(
    port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """What nobody foresaw is logged with where it came from, by the broker's thread: it is waited for, so that it is
    not told between two tests."""

    async def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(open_session, "change_subscriptions", fails)
    client = await Raw.connect(port)
    client.send(joined(V5, subscribe(unique()), publish(unique(), b"x", 1, 3)))
    unforeseen = isinstance(error, RuntimeError)
    expected = 0x80 if unforeseen else 0x89
    assert [p.reason_code for p in await client.closed() if isinstance(p, Disconnect)] == [expected]
    await eventually(lambda: any(record.exc_info is not None for record in caplog.records) or not unforeseen)
    assert ("work for a connection failed" in caplog.text) == unforeseen


async def test_a_dictionary_that_cannot_be_read_stalls_nobody(
    cluster: Served, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(dictionary: int) -> None:
        raise StoreError("a page is damaged")

    monkeypatch.setattr(cluster.broker().engine.dictionary_fetching, "fetch", fails)
    topic = unique()
    client, watcher = await Raw.connect(port, _38=[("sdc", "1")]), await Raw.connect(port)
    await watcher.subscribe(topic)
    bound = Publish(ALIAS_TOPIC, Binding(1, 2, 0x1234567890ABCDEF).pack())
    client.send(joined(V5, bound, publish(topic, b"\0raw", 1, 3)))
    await client.expect(PubAck)
    assert (await watcher.messages(1))[0].payload == b"raw"


async def test_an_end_in_a_week_pins_no_connection(cluster: Served, port: int) -> None:
    def known() -> list[Any]:
        return [found for found in gc.get_objects() if type(found) in (MqttConnection, WindowSubscriber)]

    await eventually(lambda: not cluster.broker().mqtt.connections)  # those of other tests
    gc.collect()
    before = len(known())
    client = await Raw.connect(port)
    packet = subscribe(unique())
    for number in range(3):  # the later replace the earlier
        packet.properties = {38: [("until", f"+{7 + number}d")]}
        client.send(packet)
        assert (await client.expect(SubAck)).reason_codes == [0]
    await eventually(lambda: len(known()) == before + 2)
    gc.disable()
    try:
        client.abort()
        await eventually(lambda: len(known()) == before)
    finally:
        gc.enable()


async def test_a_connection_that_ends_while_something_waits_leaves_nothing(cluster: Served, port: int) -> None:
    name = unique()
    client = await Raw.connect(port, name, _17=60)
    disk = cluster.cluster.coordinators["coordinator-0"].disk
    disk.hold()
    try:
        client.send(joined(V5, subscribe(unique(), 9)))
        client.abort()
        await eventually(lambda: name not in cluster.broker().mqtt.sessions.owners)
    finally:
        disk.release()
    again = await Raw.connect(port, name, clean=False, _17=60)
    assert await again.ping() == []
    with pytest.raises(Closed):
        await client.packet()


async def test_subscriptions_of_a_client_that_has_left_are_not_placed(
    cluster: Served, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One filter again and again, so that each is placed alone; another connection takes the session meanwhile."""
    engine, name, topic, placed = cluster.broker().engine, unique(), unique(), 0
    client = await Raw.connect(port, name)
    (connection,) = [c for c in cluster.broker().mqtt.connections if c.client_id == name]
    subscribe_one = engine.subscriptions.subscribe

    async def slowly(*arguments: Any, **options: Any) -> Any:
        nonlocal placed
        placed += 1
        await eventually(lambda: connection.is_closed)
        return await subscribe_one(*arguments, **options)

    monkeypatch.setattr(engine.subscriptions, "subscribe", slowly)
    client.send(joined(V5, *[subscribe(topic, number) for number in range(1, 101)]))
    await eventually(lambda: placed > 0)
    await (await Raw.connect(port, name)).ping()
    assert placed == 1


async def test_pubcomps_come_after_a_wait_too(port: int) -> None:
    client = await Raw.connect(port)
    client.answers = False
    client.send(joined(V5, subscribe(unique(), 9), publish(unique(), b"", 2, 3)))
    await client.expect(PubRec)
    client.send(joined(V5, subscribe(unique(), 10), PubRel(3)))
    assert (await client.expect(PubComp)).reason_code == 0
