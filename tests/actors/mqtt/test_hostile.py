"""Hostile input over real sockets: whoever sends it gets an error or a disconnect, and that is all that happens.

After each blow a healthy client's publication goes round, nothing is logged as an error, and the process has not
grown beyond a stated limit.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lexicast.actors.mqtt.codec import encode_packet
from lexicast.actors.mqtt.codec.packets import (
    V5,
    V311,
    Auth,
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
from lexicast.storage.environment.options import StoreOptions

from ...support.attacks import KIB, MIB, Growth, healthy, round_trip, strike
from ...support.harness import eventually
from ...support.mqtt_harness import Message, Raw, Served, close_clients, served, unique

EXAMPLES = 255
ATTACKS_AN_EXAMPLE = 40
OUTPUT_MAX = 256 * KIB
QUEUE_MAX = MIB


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served(
        options=StoreOptions(map_bytes=1024 * MIB, quota_bytes=900 * MIB, reserve_bytes=MIB),
        mqtt__packet_bytes_max=128 * KIB,
        mqtt__output_bytes_max=OUTPUT_MAX,
        mqtt__connect_timeout_s=3.0,
        link__queue_bytes_max=QUEUE_MAX,
        link__batch_bytes_max=128 * KIB,
        broker__cache_bytes_max=MIB,
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_goes_wrong_in_the_broker(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [r.getMessage() for r in caplog.get_records("call") if r.levelno >= logging.ERROR] == []


@pytest.fixture
async def port(cluster: Served) -> AsyncIterator[int]:
    yield cluster.port
    await close_clients()


# -- random and mutated packets

TOPIC = b"hostile/topic"
OPTIONS = SubscriptionOptions(1)
PROPERTIES: dict[int, Any] = {2: 7, 3: "text", 8: "reply", 9: b"\1\2", 38: [("a", "b")]}
WILL = Will(TOPIC, b"will", 1, False, {24: 0, **PROPERTIES})


def packets(version: int) -> list[bytes]:
    """One of each kind, with everything in it."""
    more = PROPERTIES if version == V5 else None
    user = {38: [("a", "b")]} if version == V5 else None
    every: list[Packet] = [
        Connect(version, "hostile", True, 10, WILL, "user", b"secret", {17: 5, 33: 9, 39: 500} if more else None),
        ConnAck(True, 0, user),
        Publish(TOPIC, b"payload", properties=more),
        Publish(TOPIC, b"payload", 1, True, False, 3, more),
        Publish(TOPIC, b"payload", 2, False, True, 4, more),
        PubAck(3, 0x10 if more else 0, user),
        PubRec(3, 0x80 if more else 0, user),
        PubRel(4),
        PubComp(4),
        Subscribe(5, [(b"hostile/+", OPTIONS), (b"x/#", OPTIONS)], 9 if more else None, user),
        SubAck(5, [1, 1], user),
        Unsubscribe(6, [b"hostile/+"], user),
        UnsubAck(6, [0] if more else [], user),
        PingReq(),
        PingResp(),
        Disconnect(0, {17: 3} if more else None),
    ]
    return [encode_packet(packet, version) for packet in (*every, *([Auth(0x18, {21: "x"})] if more else ()))]


VALID = {version: packets(version) for version in (V311, V5)}
HELLO = {version: encode_packet(Connect(version, "", True), version) for version in (V311, V5)}


def mutated(data: bytes, kind: int, at: int, value: int) -> bytes:
    """One change of a packet."""
    at %= len(data)
    if kind == 0:  # another byte
        return data[:at] + bytes((value,)) + data[at + 1 :]
    if kind == 1:  # a bit
        return data[:at] + bytes((data[at] ^ 1 << value % 8,)) + data[at + 1 :]
    if kind == 2:  # bytes too many
        return data[:at] + bytes((value,)) * (1 + value % 3) + data[at:]
    if kind == 3:  # a hole, the length as it was
        return data[:at] + data[at + 1 + value % 4 :]
    if kind == 4:  # cut off, the length made right
        body = data[2:at] if at > 2 else b""
        return bytes((data[0], len(body))) + body if len(body) < 128 else data[:at]
    if kind == 5:  # the body of one with the head of another
        return bytes((value,)) + data[1:]
    return data + data[at:]


attack = st.tuples(
    st.sampled_from([V311, V5]),
    st.integers(0, 16),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 200), st.integers(0, 255)), max_size=3),
    st.binary(max_size=24),
    st.integers(0, 9),
)


def attack_bytes(version: int, which: int, changes: list[tuple[int, int, int]], noise: bytes, form: int) -> bytes:
    """What one hostile connection sends."""
    if form == 0:
        return noise
    data = VALID[version][which % len(VALID[version])]
    for change in changes:
        data = mutated(data, *change) or b"\0"
    return (data if form == 1 else HELLO[version] + data) + (noise if form == 2 else b"")


def test_random_and_mutated_packets(cluster: Served) -> None:
    growth = Growth(64 * MIB)
    struck = 0
    with asyncio.Runner() as runner:
        witness = runner.run(healthy(cluster.port))

        async def all_of(attacks: list[bytes]) -> None:
            await asyncio.gather(*[strike(cluster.port, data) for data in attacks])
            await round_trip(witness)

        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
        @given(st.lists(attack, min_size=ATTACKS_AN_EXAMPLE, max_size=ATTACKS_AN_EXAMPLE))
        def strike_all(attacks: list[Any]) -> None:
            nonlocal struck
            runner.run(all_of([attack_bytes(*one) for one in attacks]))
            struck += len(attacks)

        strike_all()
        assert struck >= 10_000
        runner.run(close_clients())
    growth.check()


@pytest.mark.parametrize("version", [V311, V5])
async def test_every_packet_in_halves(port: int, version: int) -> None:
    """Cut anywhere and never finished; and byte by byte, which is whole in the end."""
    witness = await healthy(port)
    for packet in VALID[version]:
        await asyncio.gather(*[strike(port, HELLO[version] + packet[:cut]) for cut in range(1, len(packet))])
    await round_trip(witness)
    topic = unique()
    watcher, slow = await Raw.connect(port), await Raw.connect(port, version=version)
    await watcher.subscribe(topic)
    for byte in encode_packet(Publish(topic.encode(), b"slow", 1, packet_id=1), version):
        slow.send(bytes((byte,)))
        await asyncio.sleep(0)
    await slow.expect(PubAck)
    assert (await watcher.messages(1))[0].payload == b"slow"


async def test_packets_that_announce_too_much(port: int) -> None:
    growth = Growth(16 * MIB)
    witness = await healthy(port)
    for first in (b"\x10", b"\x30", b"\x32", b"\x82", b"\xf0"):
        for length in (b"\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x01", b"\xff\xff\xff\xff"):
            client = await Raw.connect(port)
            client.send(first + length + bytes(1000))
            assert (await client.expect(Disconnect)).reason_code in (0x81, 0x82, 0x95)
            await strike(port, first + length + bytes(1000))
    await round_trip(witness)
    growth.check()


# -- clients that do not read


async def stalled(port: int, topic: str, qos: int = 0) -> Raw:
    """A subscriber that does not read, with little room in its socket."""
    client = await Raw.connect(port, receive_bytes=16 * KIB)
    await client.subscribe(topic, qos=qos)
    client.stop_reading()
    return client


async def flood(publisher: Raw, topic: str, count: int, size: int, qos: int = 0, first: int = 0) -> None:
    """Publications numbered from `first` on, as fast as they are taken."""
    for number in range(first, first + count):
        payload = number.to_bytes(4, "big") + bytes(size)
        publisher.send(Publish(topic.encode(), payload, qos, packet_id=publisher.next_id() if qos else 0))
        await publisher.drain()


async def read_all(client: Raw, last: int) -> list[int]:
    """The numbers up to `last`."""
    got: list[int] = []
    while not got or got[-1] != last:
        got.append(int.from_bytes((await client.expect(Message)).payload[:4], "big"))
    return got


SIZE = 8 * KIB
# What is sequenced may wait for the disk up to this (coordinator.UNCOMMITTED_BYTES_MAX, storage.commit_bytes_max): not
# the subscriber's doing.
UNCOMMITTED_MAX = (64 + 16) * MIB
# Nor is what is on its way meanwhile: a commit as values and as LMDB's pages, what a link holds back
# (peers.LINK_BACKLOG_BYTES_MAX), what the coordinator remembers of its log, and what the broker keeps and has queued.
UNDER_WAY_MAX = (16 + 16 + 32 + 8 + 8) * MIB


def numbers(messages: list[Any]) -> list[int]:
    """Of publications of `flood`."""
    return [int.from_bytes(m.payload[:4], "big") for m in messages if isinstance(m, Message)]


async def test_a_subscriber_that_never_reads_is_caught_up_later(cluster: Served, port: int) -> None:
    """Also while the disk stands still, and as it goes on with all that has gathered."""
    topic, count = unique(), 20_000  # 156 MiB
    witness, reader = await healthy(port), await Raw.connect(port)
    publisher, coordinator = await Raw.connect(port), cluster.cluster.coordinators["coordinator-0"]
    growth = Growth(UNCOMMITTED_MAX + UNDER_WAY_MAX)
    coordinator.disk.hold()
    try:
        # Their subscriptions' record waits for the disk as well, and all that is published behind it for the record:
        # delivered at once when the disk goes on.
        blocked = await stalled(port, topic)
        await reader.subscribe(topic)
        reading = asyncio.create_task(read_all(reader, count - 1))
        flooding = asyncio.create_task(flood(publisher, topic, count, SIZE))
        await eventually(lambda: coordinator.server.led._slow)
    finally:
        coordinator.disk.release()
    while not flooding.done():
        growth.check()
        await asyncio.wait([flooding], timeout=0.005)
    await flooding
    assert await reading == list(range(count))
    await round_trip(witness)
    growth.check()
    blocked.start_reading()
    assert await read_all(blocked, count - 1) == list(range(count))


async def test_a_subscriber_that_never_reads_misses_some_where_the_policy_says_so() -> None:
    with served(mqtt__slow_qos0="drop", mqtt__output_bytes_max=OUTPUT_MAX, mqtt__packet_bytes_max=64 * KIB) as dropping:
        port, topic, count = dropping.port, unique(), 4_000
        reader, publisher, blocked = await Raw.connect(port), await Raw.connect(port), await stalled(port, topic)
        await reader.subscribe(topic)
        together = OUTPUT_MAX // SIZE // 2  # what a reader may be behind without missing any
        for first in range(0, count, together):
            await flood(publisher, topic, together, SIZE, first=first)
            assert await read_all(reader, first + together - 1) == list(range(first, first + together))
        blocked.start_reading()
        got = numbers(await blocked.ping())
        assert got == sorted(set(got))
        assert 0 < len(got) < count
        await flood(publisher, topic, 1, 0)
        assert await read_all(blocked, 0) == [0]  # it is live again
        await close_clients()


async def test_a_client_that_never_reads_does_not_hold_up_the_stop() -> None:
    with served(mqtt__output_bytes_max=OUTPUT_MAX, mqtt__packet_bytes_max=64 * KIB) as stopping:
        mqtt, topic = stopping.broker().mqtt, unique()
        publisher = await Raw.connect(stopping.port)
        await stalled(stopping.port, topic)
        await flood(publisher, topic, 2_000, SIZE)
        await eventually(lambda: any(c.served and c.served.subscriber.is_socket_full for c in list(mqtt.connections)))
    assert not mqtt.connections
    await close_clients()


async def test_a_qos_1_subscriber_that_acknowledges_nothing(port: int) -> None:
    topic, count = unique(), 6_000
    witness, publisher, mute = await healthy(port), await Raw.connect(port, version=V311), await Raw.connect(port)
    mute.answers = False
    await mute.subscribe(topic, qos=1)
    await flood(publisher, topic, count, 100, qos=1)
    for _ in range(count):
        await publisher.expect(PubAck)
    got = await mute.messages(4_000)  # mqtt.inflight_max
    assert await mute.ping() == []
    await round_trip(witness)
    mute.answers = True
    for message in got:
        mute.send(PubAck(message.packet_id))
    got += await mute.messages(count - 4_000)
    assert numbers(got) == list(range(count))


@pytest.mark.parametrize(
    ("version", "packet"),
    [
        (V311, Publish(b"$x", b"", 1, packet_id=1)),  # a v5 client would be over the receive maximum
        (V5, PubRel(9)),
        (V5, Subscribe(9, [(b"$share/g/a", OPTIONS)] * 20)),
    ],
    ids=["publish", "pubrel", "subscribe"],
)
async def test_a_client_that_asks_and_never_reads_the_answers(port: int, version: int, packet: Packet) -> None:
    """It is not read any more, so that its answers do not pile up."""
    request_ = encode_packet(packet, version)
    witness, asking = await healthy(port), await Raw.connect(port, version=version, receive_bytes=16 * KIB)
    asking.stop_reading()
    growth = Growth(24 * MIB)
    requests = request_ * (256 * KIB // len(request_))
    sent = 0
    for _ in range(400):  # 100 MiB
        asking.send(requests)
        try:
            async with asyncio.timeout(0.5):
                await asking.drain()
        except TimeoutError:
            break
        sent += 1
    assert sent < 400
    await round_trip(witness)
    growth.check()


# -- clients that send too much


async def test_a_publisher_that_floods_is_not_read(cluster: Served, port: int) -> None:
    """While the disk is slower than the flood its socket fills; others are served; nothing is lost in the end."""
    witness, flooding, topic = await healthy(port), await Raw.connect(port, version=V311), unique()
    await witness.subscribe(topic)
    growth = Growth(48 * MIB)
    cluster.cluster.coordinators["coordinator-0"].disk.hold()
    try:
        task = asyncio.create_task(flood(flooding, topic, 1_000, 16 * KIB, qos=1))
        await eventually(lambda: cluster.broker().mqtt.status()["paused_publishers"] > 0)
        assert not task.done()
        for _ in range(20):
            await witness.ping()
        growth.check()
        assert cluster.broker().status()["unanswered_bytes"] < 2 * QUEUE_MAX
    finally:
        cluster.cluster.coordinators["coordinator-0"].disk.release()
    await task
    assert [(await flooding.expect(PubAck)).packet_id for _ in range(1_000)] == list(range(1, 1_001))
    assert await read_all(witness, 999) == list(range(1_000))
    growth.check()


async def test_closed_connections_leave_nothing_to_the_garbage_collector(cluster: Served, port: int) -> None:
    """Full collections are rare (actors/ray/serving.py): what they had to find would pile up."""

    def known() -> int:
        return sum(type(found) is MqttConnection for found in gc.get_objects())

    async def arrived(records: int) -> None:
        await eventually(lambda: coordinators.published_records == records)

    coordinators = cluster.broker().engine.coordinators
    disk = cluster.cluster.coordinators["coordinator-0"].disk
    await eventually(lambda: not cluster.broker().mqtt.connections)  # those of other tests
    gc.collect()
    before = known()
    gc.disable()
    try:
        for version in (V311, V5):
            clients = [await Raw.connect(port, version=version) for _ in range(20)]
            for client in clients:
                await client.subscribe("many/#", qos=1)
                await client.publish("many/x", b"x", qos=1)
            assert known() == before + 20
            published = coordinators.published_records
            disk.hold()  # what they publish last is answered when they are gone
            for client in clients:
                client.send(Publish(b"many/x", b"y", 1, packet_id=9))
            await arrived(published + 20)
            for client in clients:
                client.abort()
            await eventually(lambda: not cluster.broker().mqtt.connections)
            disk.release()
            await eventually(lambda: known() == before)
    finally:
        disk.release()
        gc.enable()


async def test_connects_that_never_finish(cluster: Served, port: int) -> None:
    witness = await healthy(port)
    growth = Growth(32 * MIB)
    half = HELLO[V5][:-1]
    clients = [await Raw.open(port) for _ in range(1_500)]
    for client in clients:
        client.send(half)
    await round_trip(witness)
    growth.check()
    for client in clients:
        assert await client.closed() == []
    assert cluster.broker().mqtt.status()["connections"] == 1
    await round_trip(witness)


async def test_more_connections_than_may_be() -> None:
    with served(mqtt__connections_max=10) as small:
        clients = [await Raw.connect(small.port) for _ in range(10)]
        assert await (await Raw.open(small.port)).closed() == []
        await clients[0].disconnect()
        await eventually(lambda: small.broker().mqtt.status()["connections"] < 10)
        assert (await Raw.connect(small.port)).connack.reason_code == 0
        assert await clients[1].ping() == []
        await close_clients()
