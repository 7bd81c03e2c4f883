"""Bridges between two lexicast clusters: compressed, in batches, in a ring, with a full store on either side."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lexicast.actors.broker.server import BrokerServer
from lexicast.bench.stage.proxy import Proxy

from ...support.bridge_harness import bridge, client_of, definition
from ...support.harness import Cluster, eventually
from ...support.mqtt_harness import HOST, Raw, close_clients

BOTH = "[{ filter = '#', direction = 'both' }]"
OUT = "[{ filter = '#' }]"

Site = tuple[Cluster, BrokerServer]


@pytest.fixture
async def sites(tmp_path: Path) -> AsyncIterator[list[Site]]:
    """Three clusters."""
    clusters = [Cluster(tmp_path / name) for name in "abc"]
    found: list[Site] = []
    try:
        for cluster in clusters:
            await cluster.start_coordinator()
            found.append((cluster, await cluster.start_broker("broker-0")))
        yield found
    finally:
        await close_clients()
        for cluster in clusters:
            await cluster.__aexit__(None, None, None)


def reading(number: int) -> bytes:
    """As a sensor sends it."""
    told = {"device": f"pump-{number % 7}", "pressure_kpa": 200 + number % 13, "temperature_c": 20.5, "ok": True}
    return json.dumps({**told, "sequence": number}).encode()


@pytest.mark.parametrize("batch_s", [0.0, 0.05])
async def test_what_crosses_is_compressed_and_comes_as_it_was(sites: list[Site], batch_s: float) -> None:
    (here, near), (there, far) = sites[:2]
    messages = [(f"plant/{n % 5}", reading(n)) for n in range(2_000)]
    async with (
        Proxy(HOST, far.mqtt.port) as relay,
        client_of(there, far) as reader,
        client_of(here, near) as bus,
        reader.subscribe("#") as remote,
        bridge(here, near, definition(relay.port, OUT, f"batch_s = {batch_s}")) as server,
    ):
        await eventually(lambda: server.status()["connected"])
        await eventually(lambda: len(near.engine.shares) == 1)
        assert server.status()["compressed"]
        await bus.publish_many(messages)
        got = [await anext(remote) for _ in messages]
        for name in {topic for topic, _ in messages}:
            assert [m.payload for m in got if m.topic == name] == [p for topic, p in messages if topic == name]
        own = (await here.coordination.cluster()).cluster_id[:12]
        assert {m.properties.user for m in got if m.properties} == {(("lexicast-via", own),)}
        plain = sum(len(topic) + len(payload) for topic, payload in messages)
        assert relay.counters.to_server < 0.5 * plain
        await eventually(lambda: server.status()["unacknowledged"] == 0)


async def test_nothing_is_lost_between_two_clusters_whose_link_is_cut(sites: list[Site]) -> None:
    (here, near), (there, far) = sites[:2]
    count = 2_000
    async with (
        Proxy(HOST, far.mqtt.port) as relay,
        client_of(there, far) as reader,
        client_of(here, near) as bus,
        reader.subscribe("#") as remote,
        bridge(here, near, definition(relay.port, OUT, "batch_s = 0.01\ninflight_max = 100")) as server,
    ):
        await eventually(lambda: server.status()["connected"])
        await eventually(lambda: len(near.engine.shares) == 1)
        got: set[int] = set()

        async def read() -> None:
            async for message in remote:
                got.add(json.loads(message.payload)["sequence"])

        reads = asyncio.create_task(read())
        for at in range(0, count, 100):
            await bus.publish_many([(f"plant/{n % 5}", reading(n)) for n in range(at, at + 100)])
            await asyncio.sleep(0.02)
            relay.cut()
        await eventually(lambda: len(got) == count)
        assert got == set(range(count))
        reads.cancel()


async def test_both_ways_between_two_clusters_nothing_loops(sites: list[Site]) -> None:
    (here, near), (there, far) = sites[:2]
    async with (
        client_of(here, near) as bus,
        client_of(there, far) as other,
        bus.subscribe("#") as local,
        other.subscribe("#") as remote,
        bridge(here, near, definition(far.mqtt.port, BOTH)) as server,
        bridge(there, far, definition(near.mqtt.port, BOTH)) as back,
    ):
        await eventually(lambda: server.status()["connected"] and back.status()["connected"])
        await eventually(lambda: len(near.engine.shares) == len(far.engine.shares) == 1)
        for n in range(20):
            await bus.publish("a", b"near %d" % n)
            await other.publish("a", b"far %d" % n)
        # Two bridges join the two: by each of them it comes once, and by neither back to where it was published.
        await asyncio.sleep(1.0)
        await bus.publish("end", b"")
        await other.publish("end", b"")
        for subscription, own, foreign in ((local, b"near", b"far"), (remote, b"far", b"near")):
            counted: Counter[bytes] = Counter()
            ends = 0
            while ends < 3:
                message = await anext(subscription)
                ends += message.topic == "end"
                counted[message.payload] += message.topic == "a"
            assert {counted[b"%b %d" % (own, n)] for n in range(20)} == {1}
            assert {counted[b"%b %d" % (foreign, n)] for n in range(20)} <= {1, 2}


async def test_a_ring_of_three_clusters_gives_each_message_once_to_each(sites: list[Site]) -> None:
    bridges, clients = [], []
    for number, (cluster, broker) in enumerate(sites):
        target = sites[(number + 1) % 3][1].mqtt.port
        entered = bridge(cluster, broker, definition(target, OUT))
        bridges.append((entered, await entered.__aenter__()))
        client = client_of(cluster, broker)
        clients.append((client, await client.__aenter__()))
    try:
        await eventually(lambda: all(server.status()["connected"] for _, server in bridges))
        await eventually(lambda: all(len(broker.engine.shares) == 1 for _, broker in sites))
        subscriptions = [bus.subscribe("#") for _, bus in clients]
        for subscription in subscriptions:
            await subscription.__aenter__()
        for number, (_, bus) in enumerate(clients):
            await bus.publish_many([(f"from/{number}", b"%d" % n) for n in range(50)])
        for subscription in subscriptions:
            counted = Counter([(m.topic, m.payload) for m in [await anext(subscription) for _ in range(150)]])
            assert set(counted.values()) == {1}
        await eventually(lambda: all(server.status()["unacknowledged"] == 0 for _, server in bridges))
        assert sum(server.status()["looped_out"] for _, server in bridges) == 150
        for subscription in subscriptions:
            await subscription.close()
    finally:
        for bus_entered, _ in clients:
            await bus_entered.__aexit__(None, None, None)
        for entered, _ in bridges:
            await entered.__aexit__(None, None, None)


async def test_no_mqtt_client_is_a_member_of_a_bridges_share(sites: list[Site]) -> None:
    _, near = sites[0]
    client = await Raw.connect(near.mqtt.port)
    assert await client.subscribe("$share/bridge:site/#") == [0x8F]
