"""`$SYS/broker/...`: what a broker tells its MQTT clients of itself."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator

import pytest

from lexicast.actors.mqtt.codec.properties import SUBSCRIPTION_ID, USER_PROPERTY
from lexicast.actors.status.sys_statistics import SysCounts, SysStatistics

from ...support.mqtt_harness import Message, Raw, Served, close_clients, served, unique

NOTHING = SysCounts(0, 0, 0, 0, 0, 0)
STILL = "$SYS/broker/version"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served(mqtt__sys_interval_s=1) as running:
        yield running


@pytest.fixture
async def port(cluster: Served) -> AsyncIterator[int]:
    yield cluster.port
    await close_clients()


async def at_once(client: Raw) -> dict[str, Message]:
    """What comes before the answer to a PINGREQ, by topic."""
    return {each.topic: each for each in await client.ping() if isinstance(each, Message)}


@pytest.mark.parametrize("version", [4, 5])
async def test_who_subscribes_is_told_how_things_stand_and_then_what_changes(port: int, version: int) -> None:
    client = await Raw.connect(port, version=version)
    assert await client.subscribe("$SYS/#", qos=2) == [2]
    told = await at_once(client)
    assert told["$SYS/broker/version"].payload.startswith(b"lexicast version ")
    assert told["$SYS/broker/uptime"].payload.endswith(b" seconds")
    assert len(told) == 17
    assert all(each.retain and each.qos == 0 for each in told.values())
    later = [await client.expect(Message) for _ in range(3)]
    assert not any(each.retain for each in later)
    assert STILL not in {each.topic for each in later}


async def test_what_it_counts(port: int) -> None:
    client = await Raw.connect(port)
    await client.subscribe("counted/#")
    await client.subscribe("$SYS/broker/publish/messages/+")
    before = {topic: int(each.payload) for topic, each in (await at_once(client)).items()}
    for _ in range(5):
        await client.publish("counted/x", b"x", qos=1)
    last = dict(before)
    while any(last[topic] < count + 5 for topic, count in before.items()):
        said = await client.expect(Message)
        if said.topic in before:
            last[said.topic] = int(said.payload)


async def test_subscriptions_are_counted(port: int) -> None:
    client, name = await Raw.connect(port), unique()
    await client.subscribe(f"a/{name}", f"b/{name}", f"$share/g/{name}")
    topics = "$SYS/broker/subscriptions/count", "$SYS/broker/shared_subscriptions/count"
    await client.subscribe(*topics)
    wanted = {topics[0]: b"4", topics[1]: b"1"}
    while wanted:
        said = await client.expect(Message)
        if wanted.get(said.topic) == said.payload:
            del wanted[said.topic]


async def test_options_of_the_subscription_hold(port: int) -> None:
    client = await Raw.connect(port)
    assert await client.subscribe("$SYS/broker/uptime", identifier=7, retain_handling=2, retain_as_published=True) == [
        0
    ]
    assert not await at_once(client)
    said = await client.expect(Message)
    assert said.topic == "$SYS/broker/uptime"
    assert said.retain
    assert said.properties[SUBSCRIPTION_ID] == [7]


async def test_who_takes_nothing_for_a_moment_misses_no_change(cluster: Served, port: int) -> None:
    """Of a value that then stays as it is."""
    slow, other = await Raw.connect(port, "slow"), await Raw.connect(port)
    await slow.subscribe("$SYS/broker/clients/maximum")
    (before,) = (await at_once(slow)).values()
    (own,) = [each.served for each in cluster.broker().mqtt.connections if each.client_id == "slow"]

    async def take(is_blocked: bool) -> None:
        assert own is not None
        if is_blocked:
            own.subscriber.block()
        else:
            own.subscriber.unblock()

    cluster.run(take(True))
    crowd = [await Raw.connect(port) for _ in range(int(before.payload) + 1)]
    await other.subscribe("$SYS/broker/uptime")
    for _ in range(3):
        await other.expect(Message)  # two rounds have passed
    cluster.run(take(False))
    later = await slow.expect(Message)
    assert later.topic == before.topic
    assert not later.retain
    assert int(later.payload) >= len(crowd) + 2


@pytest.mark.mqtt("MQTT-4.7.2-1")
async def test_a_wildcard_that_does_not_name_it_gets_none(port: int) -> None:
    client = await Raw.connect(port)
    await client.subscribe("#", "+/broker/#")
    await client.subscribe("$SYS/broker/uptime")
    for _ in range(2):
        await client.expect(Message)  # a round has passed
    assert {each.topic for each in (await at_once(client)).values()} <= {"$SYS/broker/uptime"}
    assert await client.unsubscribe("$SYS/broker/uptime") == [0]
    await client.nothing(client, unique())


async def test_conditions_and_compressing_clients(port: int) -> None:
    client = await Raw.connect(port, _38=[("sdc", "1")])
    assert dict(client.connack.properties or {})[USER_PROPERTY]
    await client.subscribe("$SYS/broker/version")
    (said,) = (await at_once(client)).values()
    assert said.payload[1:].startswith(b"lexicast ")  # behind the tag that says how it is compressed: not at all
    assert said.payload[0] == 0


async def test_who_may_not_read_a_value_does_not_get_it() -> None:
    rules = b"topic read $SYS/broker/+\ntopic deny $SYS/broker/version\n"
    with served(mqtt__sys_interval_s=1, rules=rules) as running:
        client = await Raw.connect(running.port)
        await client.subscribe("$SYS/#")
        assert (await at_once(client)).keys() == {"$SYS/broker/uptime"}
        await close_clients()


def test_averages_of_a_minute() -> None:
    statistics = SysStatistics("1.2", 0.0, NOTHING)
    for second in range(10, 601, 10):
        statistics.round(float(second), NOTHING._replace(published=second * 2, connected=second))
    values = statistics.values()
    for minutes in (1, 5, 15):
        expected = 120 * (1 - math.exp(-10 / minutes))
        assert float(values[b"$SYS/broker/load/publish/received/%dmin" % minutes]) == pytest.approx(expected, abs=0.01)
    statistics.round(610.0, NOTHING._replace(published=1_200))
    assert statistics.values()[b"$SYS/broker/clients/maximum"] == b"600"
    assert statistics.values()[b"$SYS/broker/clients/connected"] == b"0"
    assert statistics.values()[b"$SYS/broker/uptime"] == b"610 seconds"
