"""Subscriptions with a condition: SUBSCRIBE's user property `where`, live and in the past, retained and resumed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from lexicast.actors.mqtt.codec.packets import SubAck, Subscribe, SubscriptionOptions
from lexicast.cluster.content.tokens import CHARACTERS_MAX

from ...support.mqtt_harness import Raw, Served, close_clients, served, unique

USER_PROPERTY = 38
REASON_STRING = 31
SUBSCRIPTION_ID = 11
QOS = pytest.mark.parametrize("qos", [0, 1, 2])


@pytest.fixture(scope="module", params=[0, 2], ids=["alone", "matchers"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Served]:
    """What subscribers see is the same with matchers and without."""
    with served(brokers=2, mqtt__inflight_max=10, node__matchers=request.param) as running:
        yield running


@pytest.fixture
async def port(cluster: Served) -> AsyncIterator[int]:
    yield cluster.port
    await close_clients()


async def subscribe(
    client: Raw, *filters: str, qos: int = 0, identifier: int | None = None, options: Any = None, **asked: str
) -> SubAck:
    wanted = [(name.encode(), options or SubscriptionOptions(qos)) for name in filters]
    client.send(Subscribe(client.next_id(), wanted, identifier, {USER_PROPERTY: list(asked.items())}))
    return await client.expect(SubAck)


def flight(delay: int, carrier: str = "UA") -> bytes:
    return json.dumps({"delay": delay, "carrier": carrier}).encode()


async def publish(client: Raw, topic: str, delays: range, **more: Any) -> None:
    for delay in delays:
        await client.publish(topic, flight(delay), qos=1, **more)


def delays(messages: list[Any]) -> list[int]:
    return [json.loads(message.payload)["delay"] for message in messages]


@QOS
async def test_only_what_holds_comes_live(port: int, qos: int) -> None:
    topic, publisher, client = unique(), await Raw.connect(port), await Raw.connect(port)
    assert (await subscribe(client, topic + "/#", qos=qos, where="delay > 30 AND carrier IN ('UA', 'AA')")).reason_codes
    await publish(publisher, topic + "/a", range(28, 50))
    await publisher.publish(topic + "/a", flight(99, "DL"), qos=1)
    await publisher.publish(topic + "/b", b"no map", qos=1)
    await publisher.publish(topic + "/b", flight(77, "AA"), qos=1)
    found = await client.messages(20)
    assert delays([m for m in found if m.topic == topic + "/a"]) == [*range(31, 50)]
    assert delays([m for m in found if m.topic == topic + "/b"]) == [77]
    assert {message.qos for message in found} == {min(qos, 1)}
    assert await client.ping() == []


@QOS
async def test_the_past_and_what_comes_then_are_one(port: int, qos: int) -> None:
    topic, publisher, client = unique(), await Raw.connect(port), await Raw.connect(port)
    await publish(publisher, topic, range(40))
    await subscribe(client, topic, qos=qos, since="beginning", where="delay BETWEEN 10 AND 30 OR delay >= 45")
    await publish(publisher, topic, range(40, 50))
    assert delays(await client.messages(26)) == [*range(10, 31), *range(45, 50)]
    assert await client.ping() == []


async def test_of_what_is_retained_only_what_holds_comes(port: int) -> None:
    topic, publisher, client = unique(), await Raw.connect(port), await Raw.connect(port)
    for delay in range(6):
        await publish(publisher, f"{topic}/{delay}", range(delay, delay + 1), retain=True)
    await subscribe(client, topic + "/+", qos=1, where="delay >= 4")
    assert sorted(delays(await client.messages(2))) == [4, 5]
    assert await client.ping() == []


async def test_the_last_of_each_topic_for_which_it_holds(port: int) -> None:
    topic, publisher, client = unique(), await Raw.connect(port), await Raw.connect(port)
    await publish(publisher, topic, range(10))
    await subscribe(client, topic, last="4", where="delay <> 8")
    assert delays(await client.messages(3)) == [6, 7, 9]


@QOS
async def test_a_session_takes_its_conditions_to_another_broker(cluster: Served, port: int, qos: int) -> None:
    topic, publisher = unique(), await Raw.connect(port)
    client = await Raw.connect(port, client_id=topic, _17=100)
    await subscribe(client, topic, qos=qos, where="delay >= 5")
    await client.disconnect()
    await publish(publisher, topic, range(8))
    after = await Raw.connect(cluster.broker(1).mqtt.port, client_id=topic, clean=False, _17=100)
    await publish(publisher, topic, range(4, 6))
    assert delays(await after.messages(4)) == [5, 6, 7, 5]
    assert await after.ping() == []


async def test_overlapping_subscriptions_give_a_publication_once_with_all_that_hold(port: int) -> None:
    topic, publisher, client = unique(), await Raw.connect(port), await Raw.connect(port)
    await subscribe(client, topic + "/#", qos=0, identifier=1)
    await subscribe(client, topic + "/a", qos=1, identifier=2, where="delay > 5")
    await subscribe(client, topic + "/+", qos=1, identifier=3, where="delay > 7")
    for delay in (5, 6, 8):
        await publish(publisher, topic + "/a", range(delay, delay + 1))
    await publish(publisher, topic + "/b", range(6, 7))
    found = await client.messages(4)
    told = [(m.topic[-1], *delays([m]), m.qos, sorted(m.properties[SUBSCRIPTION_ID])) for m in found]
    assert sorted(told) == [("a", 5, 0, [1]), ("a", 6, 1, [1, 2]), ("a", 8, 1, [1, 2, 3]), ("b", 6, 0, [1])]
    assert await client.ping() == []


async def test_another_condition_replaces_the_one_before_and_unsubscribing_ends_it(port: int) -> None:
    topic, publisher, client = unique(), await Raw.connect(port), await Raw.connect(port)
    await subscribe(client, topic, where="delay > 5")
    await subscribe(client, topic, where="delay < 3")
    await publish(publisher, topic, range(10))
    assert delays(await client.messages(3)) == [0, 1, 2]
    await subscribe(client, topic)
    await publish(publisher, topic, range(4, 6))
    assert delays(await client.messages(2)) == [4, 5]
    await subscribe(client, topic, where="delay > 5")
    assert await client.unsubscribe(topic) == [0]
    await publish(publisher, topic, range(10))
    assert await client.ping() == []


async def test_what_the_client_published_itself_is_left_out_with_no_local(port: int) -> None:
    topic, publisher, client = unique(), await Raw.connect(port), await Raw.connect(port)
    await subscribe(client, topic, options=SubscriptionOptions(1, no_local=True), where="delay > 5")
    await client.publish(topic, flight(9), qos=1)
    await publish(publisher, topic, range(4, 8))
    assert delays(await client.messages(2)) == [6, 7]


async def test_plain_subscribers_beside_get_everything(port: int) -> None:
    topic, publisher = unique(), await Raw.connect(port)
    plain, client = await Raw.connect(port), await Raw.connect(port)
    await plain.subscribe(topic)
    await subscribe(client, topic, where="topic = 'no' OR qos = 1 AND delay = 3")
    await publish(publisher, topic, range(5))
    assert delays(await plain.messages(5)) == [*range(5)]
    assert delays(await client.messages(1)) == [3]


@pytest.mark.parametrize(
    ("where", "word"),
    [("delay >", "column"), ("", "empty"), ("delay > 1" + " " * CHARACTERS_MAX, "characters")],
    ids=["cut off", "empty", "long"],
)
async def test_what_is_no_condition_is_refused_with_a_reason(port: int, where: str, word: str) -> None:
    client = await Raw.connect(port)
    answer = await subscribe(client, unique(), unique(), where=where)
    assert answer.reason_codes == [0x83, 0x83]
    assert answer.properties is not None
    assert word in answer.properties[REASON_STRING]


async def test_two_conditions_are_refused(port: int) -> None:
    client = await Raw.connect(port)
    asked = {USER_PROPERTY: [("where", "a > 1"), ("where", "b > 1")]}
    client.send(Subscribe(client.next_id(), [(unique().encode(), SubscriptionOptions(0))], None, asked))
    answer = await client.expect(SubAck)
    assert answer.reason_codes == [0x83]
    assert answer.properties is not None
    assert "AND or OR" in answer.properties[REASON_STRING]
