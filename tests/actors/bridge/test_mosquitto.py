"""Bridges to a real Mosquitto: both ways, through cuts and restarts, without losses and loops."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lexicast.actors.broker.server import BrokerServer
from lexicast.bench.stage.proxy import Proxy

from ...support.bridge_harness import EXECUTABLE, Mosquitto, bridge, client_of, definition, mosquitto
from ...support.harness import Cluster, eventually
from ...support.mqtt_harness import HOST, Message, Raw, unique

pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="mosquitto is not installed")

OUT = "[{ filter = 'out/#' }]"
IN = "[{ filter = 'in/#', direction = 'in' }]"
BOTH = "[{ filter = '#', direction = 'both' }]"
VERSIONS = pytest.mark.parametrize("version", ["5", "3.1.1"])


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Mosquitto]:
    async with mosquitto(tmp_path / "there") as running:
        yield running


async def collected(client: Raw, count: int) -> list[Message]:
    """The next ones, of which each payload came once."""
    found = await client.messages(count)
    repeated = [payload for payload, times in Counter(each.payload for each in found).items() if times > 1]
    assert not repeated
    return found


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_is_published_here_goes_there_in_order(
    here: tuple[Cluster, BrokerServer], there: Mosquitto, version: str, qos: int
) -> None:
    cluster, broker = here
    reader = await Raw.connect(there.port)
    await reader.subscribe("far/#", qos=2, retain_as_published=True)
    topics = f"[{{ filter = '+/state', qos = {qos}, local = 'plant/', remote = 'far/' }}]"
    found = definition(there.port, topics, f"protocol = '{version}'")
    async with bridge(cluster, broker, found) as server, client_of(cluster, broker) as bus:
        await eventually(lambda: server.status()["connected"])
        await eventually(lambda: len(broker.engine.shares) == 1)
        await bus.publish_many([(f"plant/{n % 3}/state", b"%d" % n) for n in range(300)], qos=qos)
        await bus.publish("plant/9/other", b"not bridged")
        await bus.publish("plant/9/state", b"kept", qos=qos, retain=True)
        got = await collected(reader, 301)
        for n in range(3):
            mine = [int(each.payload) for each in got if each.topic == f"far/{n}/state"]
            assert mine == list(range(n, 300, 3))
        assert {each.qos for each in got} == {qos}
        assert [(each.topic, each.payload) for each in got if each.retain] == [("far/9/state", b"kept")]
        await eventually(lambda: server.status()["unacknowledged"] == 0)
        assert server.status()["sent"] == 301


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_is_published_there_comes_here_in_order(
    here: tuple[Cluster, BrokerServer], there: Mosquitto, version: str, qos: int
) -> None:
    cluster, broker = here
    topics = f"[{{ filter = '+/set', direction = 'in', qos = {qos}, local = 'plant/', remote = 'far/' }}]"
    found = definition(there.port, topics, f"protocol = '{version}'")
    async with bridge(cluster, broker, found) as server, client_of(cluster, broker) as bus:
        await eventually(lambda: server.status()["connected"])
        writer = await Raw.connect(there.port)
        async with bus.subscribe("plant/#") as local:
            for n in range(100):
                await writer.publish(f"far/{n % 3}/set", b"%d" % n, qos)
            got = [await anext(local) for _ in range(100)]
            for n in range(3):
                assert [int(m.payload) for m in got if m.topic == f"plant/{n}/set"] == list(range(n, 100, 3))
            assert {each.qos for each in got} == {qos}


@VERSIONS
async def test_nothing_is_lost_on_its_way_out_through_cuts_and_restarts(
    here: tuple[Cluster, BrokerServer], there: Mosquitto, version: str
) -> None:
    cluster, broker = here
    reader = await Raw.connect(there.port, "reader", clean=False, _17=3600)
    await reader.subscribe("out/#", qos=1)
    count = 3_000
    async with Proxy(HOST, there.port) as relay, client_of(cluster, broker) as bus:
        found = definition(relay.port, OUT, f"protocol = '{version}'\ninflight_max = 50")
        got: set[int] = set()

        async def read() -> None:
            nonlocal reader
            while len(got) < count:
                got.add(int((await reader.expect(Message)).payload))

        async def publish() -> None:
            for at in range(0, count, 100):
                await bus.publish_many([(f"out/{n % 7}", b"%d" % n) for n in range(at, at + 100)])
                await asyncio.sleep(0.01)
                relay.cut()

        async with bridge(cluster, broker, found) as server:
            await eventually(lambda: len(broker.engine.shares) == 1)
            reading = asyncio.create_task(read())
            await publish()
            await eventually(lambda: server.status()["sent"] > count // 3)
            await cluster.restart_coordinator()
        # Its process is gone, and another one goes on.
        async with bridge(cluster, broker, found):
            await reading
    assert got == set(range(count))


async def test_what_is_published_while_the_other_broker_is_away_goes_there_when_it_is_back(
    here: tuple[Cluster, BrokerServer], there: Mosquitto
) -> None:
    cluster, broker = here
    reader = await Raw.connect(there.port, "reader", clean=False, _17=3600)
    await reader.subscribe("out/#", qos=1)
    async with bridge(cluster, broker, definition(there.port, OUT)) as server, client_of(cluster, broker) as bus:
        await eventually(lambda: server.status()["connected"])
        await eventually(lambda: len(broker.engine.shares) == 1)
        await there.stop()
        await bus.publish_many([("out/x", b"%d" % n) for n in range(500)])
        await there.start()
        reader = await Raw.connect(there.port, "reader", clean=False, _17=3600)
        assert {int(each.payload) for each in await reader.messages(500)} == set(range(500))
        assert server.status()["connects"] == 2


@VERSIONS
async def test_what_is_published_there_while_the_bridge_is_away_comes_when_it_is_back(
    here: tuple[Cluster, BrokerServer], there: Mosquitto, version: str
) -> None:
    cluster, broker = here
    found = definition(there.port, IN, f"protocol = '{version}'")
    async with bridge(cluster, broker, found) as server:
        await eventually(lambda: server.status()["connected"])
    writer = await Raw.connect(there.port)
    for n in range(200):
        await writer.publish("in/x", b"%d" % n, 1)
    await there.restart()
    async with client_of(cluster, broker) as bus, bus.subscribe("in/#") as local, bridge(cluster, broker, found):
        assert [int((await anext(local)).payload) for _ in range(200)] == list(range(200))


@pytest.mark.parametrize(("version", "tells"), [("5", True), ("3.1.1", True), ("3.1.1", False)])
async def test_the_same_topics_both_ways_do_not_loop(
    here: tuple[Cluster, BrokerServer], there: Mosquitto, version: str, tells: bool
) -> None:
    cluster, broker = here
    fields = f"protocol = '{version}'\ntells_bridge = {str(tells).lower()}"
    root = unique("both")
    far, near = await Raw.connect(there.port), await Raw.connect(broker.mqtt.port)
    await far.subscribe(f"{root}/#", qos=1)
    await near.subscribe(f"{root}/#", qos=1)
    async with bridge(cluster, broker, definition(there.port, BOTH, fields)) as server:
        await eventually(lambda: server.status()["connected"])
        await eventually(lambda: len(broker.engine.shares) == 1)
        for n in range(50):
            await far.publish(f"{root}/far", b"far %d" % n, 1)
            await near.publish(f"{root}/near", b"near %d" % n, 1)
        # The same message from both sides: each side gets both.
        await far.publish(f"{root}/same", b"on", 1)
        await near.publish(f"{root}/same", b"on", 1)
        wanted = Counter([b"far %d" % n for n in range(50)] + [b"near %d" % n for n in range(50)] + [b"on"] * 2)
        for client in (far, near):
            assert Counter(each.payload for each in await client.messages(102)) == wanted
        await eventually(lambda: server.status()["unacknowledged"] == 0)
        # Nothing else is there: what comes next is what is published next.
        await far.publish(f"{root}/last", b"far", 1)
        assert [(await client.expect(Message)).payload for client in (far, near)] == [b"far"] * 2
        await near.publish(f"{root}/last", b"near", 1)
        assert [(await client.expect(Message)).payload for client in (far, near)] == [b"near"] * 2


async def test_a_receive_maximum_of_one_is_kept(here: tuple[Cluster, BrokerServer], tmp_path: Path) -> None:
    cluster, broker = here
    async with mosquitto(tmp_path / "slow", "max_inflight_messages 1") as slow:
        reader = await Raw.connect(slow.port)
        await reader.subscribe("out/#", qos=0)
        async with bridge(cluster, broker, definition(slow.port, OUT)) as server, client_of(cluster, broker) as bus:
            await eventually(lambda: len(broker.engine.shares) == 1)
            await bus.publish_many([("out/x", b"%d" % n) for n in range(300)])
            assert [int(each.payload) for each in await reader.messages(300)] == list(range(300))
            assert server.status()["connects"] == 1
