"""CVEs of other brokers that took a story of several packets, or connections: what is promised holds, and it costs no
memory."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest

from lexicast.actors.mqtt.codec import encode_packet
from lexicast.actors.mqtt.codec.packets import (
    V5,
    V311,
    Connect,
    Disconnect,
    Packet,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionOptions,
    Unsubscribe,
    Will,
)

from ..support.attacks import MIB, Growth, healthy, round_trip, strike
from ..support.harness import eventually
from ..support.mqtt_harness import Closed, Raw, Served, close_clients, served, unique

CONNECT_TIMEOUT_S = 1.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served(mqtt__connect_timeout_s=CONNECT_TIMEOUT_S) as running:
        yield running


@pytest.fixture
async def port(cluster: Served, caplog: pytest.LogCaptureFixture) -> AsyncIterator[int]:
    """The broker's. Beside each attack somebody else is served, and nothing is logged as a defect."""
    witness = await healthy(cluster.port)
    yield cluster.port
    await round_trip(witness)
    await close_clients()
    assert [r.getMessage() for r in caplog.get_records("call") if r.levelno >= logging.ERROR] == []


@pytest.mark.cve("CVE-2023-28366")
async def test_one_packet_id_again_and_again(port: int) -> None:
    """QoS 2, PUBREC after PUBREC, and never a PUBREL: one publication, and nothing that grows."""
    topic = unique()
    watcher, client = await Raw.connect(port), await Raw.connect(port)
    await watcher.subscribe(topic)
    client.answers = False
    growth = Growth(16 * MIB)
    for number in range(2_000):
        client.send(Publish(topic.encode(), b"x" * 1_000, 2, dup=number > 0, packet_id=7))
        await client.drain()
    answers = [await client.expect(PubRec)]  # once the first is stored; of the others it may wait for the next turn
    answers += [packet for packet in await client.ping() if isinstance(packet, PubRec)]
    assert {packet.packet_id for packet in answers} == {7}
    growth.check()
    client.send(PubRel(7))
    await client.expect(PubComp)
    await watcher.messages(1)
    await watcher.nothing(client, topic)


@pytest.mark.cve("CVE-2026-8741")
async def test_a_publication_that_is_sent_again_after_the_connection_was_lost(port: int) -> None:
    """QoS 2: its place is remembered with it, in one transaction, and not a moment later."""
    topic, client_id = unique(), unique()
    watcher = await Raw.connect(port)
    await watcher.subscribe(topic)
    for attempt in range(10):
        client = await Raw.connect(port, client_id, clean=False, _17=60)
        client.answers = False
        client.send(Publish(topic.encode(), b"once", 2, dup=attempt > 0, packet_id=9))
        if attempt % 2:
            await client.expect(PubRec)
        client.abort()
    client = await Raw.connect(port, client_id, clean=False, _17=60)
    client.send(Publish(topic.encode(), b"once", 2, dup=True, packet_id=9))
    await client.expect(PubComp)
    assert (await watcher.messages(1))[0].payload == b"once"
    await watcher.nothing(client, topic)


@pytest.mark.cve("CVE-2019-11778")
async def test_a_will_that_is_delayed_for_longer_than_its_session_lives(port: int) -> None:
    """It goes out when the session ends [MQTT-3.1.3-9]."""
    topic = unique()
    watcher = await Raw.connect(port)
    await watcher.subscribe(topic)
    client = await Raw.connect(port, unique(), will=Will(topic.encode(), b"gone", 0, False, {24: 3_600}), _17=1)
    client.abort()
    assert (await watcher.messages(1))[0].payload == b"gone"
    await watcher.nothing(await Raw.connect(port), topic)


@pytest.mark.cve("CVE-2023-5632", "CVE-2020-13849")
async def test_who_says_nothing_is_closed(cluster: Served, port: int) -> None:
    """Who has opened a connection and says nothing, or begins and never ends, has `mqtt.connect_timeout_s`."""
    mqtt = cluster.broker().mqtt
    silent = [await Raw.open(port) for _ in range(100)]
    for client in silent[:50]:
        client.send(b"\x10\x20\x00")
    await asyncio.gather(*[client.closed() for client in silent])
    await eventually(lambda: len(mqtt.connections) == 1)


@pytest.mark.cve("CVE-2020-13849")
async def test_who_asks_for_the_longest_keep_alive_is_told_of_a_shorter_one() -> None:
    """`mqtt.keep_alive_s_max`: MQTT 5 can be told of it."""
    with served(mqtt__keep_alive_s_max=60) as short:
        for asked in (0, 65_535):
            client = await Raw.connect(short.port, keep_alive_s=asked)
            assert client.connack.properties is not None
            assert client.connack.properties[19] == 60
        await close_clients()


@pytest.mark.cve("CVE-2026-22040", "CVE-2025-59946")
async def test_one_client_id_from_everywhere_while_it_subscribes_and_others_publish(port: int) -> None:
    root, client_id = unique(), unique()
    publisher = await Raw.connect(port)
    filters = [(f"{root}/{number}/#".encode(), SubscriptionOptions(1)) for number in range(50)]

    async def one(number: int) -> None:
        client = await Raw.open(port)
        client.send(Connect(V5, client_id, number % 3 == 0, properties={17: 60}))
        client.send(Subscribe(1, filters))
        client.send(Unsubscribe(2, [name for name, _ in filters[::2]]))
        if number % 2:
            client.send(Disconnect())
        await client.closed()

    async def publish() -> None:
        for number in range(2_000):
            publisher.send(Publish(f"{root}/{number % 50}/x".encode(), b"x" * 100))
            await publisher.drain()

    everywhere = [asyncio.create_task(one(number)) for number in range(60)]
    await publish()
    last = await settled(port, client_id)
    await asyncio.gather(*everywhere)
    await last.nothing(publisher, f"{root}/0/last")


async def settled(port: int, client_id: str) -> Raw:
    """Who has the session when all others have had their turn."""
    while True:
        client = await Raw.connect(port, client_id)
        with suppress(Closed):
            await client.subscribe("#", qos=1)
            await client.unsubscribe("#")
            await client.subscribe("+/0/last", qos=1)
            return client


@pytest.mark.cve("CVE-2024-8376")
async def test_packets_in_every_order(port: int) -> None:
    """A second CONNECT, packets behind DISCONNECT, answers that nobody asked for; a few hundred stories."""
    rng = random.Random(8376)
    root, options = unique().encode(), SubscriptionOptions(1)

    def packet(version: int) -> bytes:
        kinds: list[Packet] = [
            Connect(version, rng.choice(["", "a", "b"]), rng.random() < 0.5, will=Will(root, b"w", 1, True, None)),
            Disconnect(),
            Subscribe(rng.randint(1, 9), [(root + rng.choice([b"", b"/#", b"/+"]), options)] * rng.randint(1, 3)),
            Unsubscribe(rng.randint(1, 9), [root + rng.choice([b"", b"/#"])]),
            Publish(
                root, b"x" * rng.randint(0, 50), rng.randint(1, 2), rng.random() < 0.5, packet_id=rng.randint(1, 9)
            ),
            PubRel(rng.randint(1, 9)),
            PubRec(rng.randint(1, 9)),
        ]
        return encode_packet(rng.choice(kinds), version)

    growth = Growth(32 * MIB)
    for _ in range(30):
        stories = []
        for _ in range(20):
            version = rng.choice([V311, V5])
            begin = encode_packet(Connect(version, rng.choice(["", "a", "b"]), True), version)
            stories.append(begin + b"".join([packet(version) for _ in range(rng.randint(1, 12))]))
        await asyncio.gather(*[strike(port, story) for story in stories])
    growth.check()


@pytest.mark.cve("CVE-2025-62723")
async def test_sessions_that_expire_with_messages_that_wait_leave_nothing(cluster: Served, port: int) -> None:
    """What waits for a session is a place in the log, not a copy; when it ends that is forgotten."""
    topic, mqtt = unique(), cluster.broker().mqtt
    clients = [await Raw.connect(port, unique(), clean=False, _17=1) for _ in range(50)]
    for client in clients:
        await client.subscribe(topic, qos=1)
    publisher = await Raw.connect(port)
    growth, store = Growth(24 * MIB), cluster.cluster.coordinators["coordinator-0"].server.store
    before = store.stats().sessions - len(clients)
    for client in clients:
        client.abort()
    await eventually(lambda: len(mqtt.connections) == 2)
    for _ in range(200):
        await publisher.publish(topic, b"x" * 10_000, qos=1)
    await eventually(lambda: store.stats().sessions <= before)
    growth.check()
