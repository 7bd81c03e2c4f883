"""Subscriptions with a window in time: SUBSCRIBE's user properties `since` and `until`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from lexicast.actors.mqtt.codec.packets import SubAck, Subscribe, SubscriptionOptions
from lexicast.actors.mqtt.retained_sending import RETRY_S
from lexicast.actors.mqtt.window_subscriptions import SETTLE_S
from lexicast.storage.topic_reader import TopicReader

from ...support.mqtt_harness import Raw, Served, close_clients, served, unique

USER_PROPERTY = 38
REASON_STRING = 31


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served(mqtt__inflight_max=10) as running:
        yield running


@pytest.fixture
async def port(cluster: Served) -> AsyncIterator[int]:
    yield cluster.port
    await close_clients()


async def subscribe(client: Raw, name: str, qos: int = 0, **window: str) -> SubAck:
    properties = {USER_PROPERTY: list(window.items())}
    client.send(Subscribe(client.next_id(), [(name.encode(), SubscriptionOptions(qos))], properties=properties))
    return await client.expect(SubAck)


async def publish(client: Raw, topic: str, numbers: range) -> None:
    for number in numbers:
        await client.publish(topic, b"%d" % number, qos=1)


def payloads(numbers: range) -> list[bytes]:
    return [b"%d" % number for number in numbers]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("wildcard", [False, True])
async def test_past_and_future_come_in_one_order_once(port: int, qos: int, wildcard: bool) -> None:
    topic, publisher, late = unique(), await Raw.connect(port), await Raw.connect(port)
    await publish(publisher, topic, range(25))  # more than the window of 10
    assert (await subscribe(late, topic + "/#" if wildcard else topic, qos, since="10m")).reason_codes == [qos]
    await publish(publisher, topic, range(25, 40))
    assert [m.payload for m in await late.messages(40)] == payloads(range(40))
    await late.nothing(publisher, topic)


async def test_the_sessions_own_subscriptions_are_not_sent_the_past(port: int) -> None:
    own, asked, publisher, client = unique(), unique(), await Raw.connect(port), await Raw.connect(port)
    await publish(publisher, own, range(3))
    await publish(publisher, asked, range(3))
    await client.subscribe("#")
    await subscribe(client, asked, since="beginning")
    assert [(m.topic, m.payload) for m in await client.messages(3)] == [(asked, p) for p in payloads(range(3))]
    await publish(publisher, own, range(3, 4))
    assert [(m.topic, m.payload) for m in await client.messages(1)] == [(own, b"3")]


async def test_it_ends_by_itself_and_what_comes_later_is_not_sent(port: int) -> None:
    topic, publisher, client = unique(), await Raw.connect(port), await Raw.connect(port)
    await publish(publisher, topic, range(2))
    await subscribe(client, topic, 1, since="-10m", until="+1s")
    await publish(publisher, topic, range(2, 4))
    assert [m.payload for m in await client.messages(4)] == payloads(range(4))
    await asyncio.sleep(1.0)  # the window's own time
    await publish(publisher, topic, range(4, 6))
    assert await client.ping() == []
    await asyncio.sleep(2 * SETTLE_S)
    assert await client.unsubscribe(topic) == [0x11]


async def test_unsubscribe_ends_it(port: int) -> None:
    topic, publisher, client = unique(), await Raw.connect(port), await Raw.connect(port)
    await subscribe(client, topic, since="beginning")
    await publish(publisher, topic, range(1))
    assert [m.payload for m in await client.messages(1)] == [b"0"]
    assert await client.unsubscribe(topic) == [0]
    await publish(publisher, topic, range(1, 2))
    assert await client.ping() == []


@pytest.mark.parametrize("window", [{"since": "soon"}, {"until": "-10s"}, {"since": "+5s", "until": "+2s"}])
async def test_what_names_no_window_is_refused_with_a_reason(port: int, window: dict[str, Any]) -> None:
    client = await Raw.connect(port)
    answer = await subscribe(client, unique(), **window)
    assert answer.reason_codes == [0x83]
    assert answer.properties is not None
    assert any(word in answer.properties[REASON_STRING] for word in ("point in time", "not after"))


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_the_last_of_each_topic_come_before_what_is_live(port: int, qos: int) -> None:
    topic, publisher, client = unique(), await Raw.connect(port), await Raw.connect(port)
    for name in (topic + "/a", topic + "/b"):
        await publish(publisher, name, range(20))
    assert (await subscribe(client, topic + "/+", qos, last="15")).reason_codes == [qos]
    await publish(publisher, topic + "/a", range(20, 23))
    found = await client.messages(33)
    for name, numbers in ((topic + "/a", range(5, 23)), (topic + "/b", range(5, 20))):
        assert [m.payload for m in found if m.topic == name] == payloads(numbers)
    assert [m.payload for m in found[30:]] == payloads(range(20, 23))
    await client.nothing(publisher, topic + "/a")


async def test_the_last_wait_for_an_index_that_is_being_made(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, publisher, client = unique(), await Raw.connect(port), await Raw.connect(port)
    await publish(publisher, topic, range(4))
    find, refused = TopicReader.find, [True, True]
    monkeypatch.setattr(TopicReader, "find", lambda *a, **more: None if refused and refused.pop() else find(*a, **more))
    start_s = time.monotonic()
    assert (await subscribe(client, topic, 1, last="2")).reason_codes == [1]
    await publish(publisher, topic, range(4, 6))
    assert [m.payload for m in await client.messages(4)] == payloads(range(2, 6))
    assert not refused
    assert time.monotonic() - start_s >= 2 * RETRY_S


async def test_last_and_since_give_no_more_than_both_allow(port: int) -> None:
    topic, publisher, client = unique(), await Raw.connect(port), await Raw.connect(port)
    await publish(publisher, topic, range(4))
    await subscribe(client, topic, since="10m", last="2")
    assert [m.payload for m in await client.messages(2)] == payloads(range(2, 4))
    await subscribe(client, topic, since="-0ms", last="2")
    await publish(publisher, topic, range(4, 5))
    assert [m.payload for m in await client.messages(1)] == payloads(range(4, 5))


@pytest.mark.parametrize("last", ["0", "-1", "1.5", "all", "", "65536", "9" * 5_000])
async def test_a_number_of_last_publications_that_is_none_is_refused(port: int, last: str) -> None:
    client = await Raw.connect(port)
    answer = await subscribe(client, unique(), last=last)
    assert answer.reason_codes == [0x83]
    assert answer.properties is not None
    assert "1 to 65535" in answer.properties[REASON_STRING]
