"""Shared subscriptions (MQTT 5, 4.8.2) against the real broker, packet by packet: who gets what, and what becomes of it
where a member goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from lexicast.actors.broker.shares.dealt_blocks import DealtPart
from lexicast.actors.mqtt import subscribing
from lexicast.actors.mqtt.codec.packets import V5, V311, PubAck, PubRec, SubAck, Subscribe, SubscriptionOptions
from lexicast.actors.mqtt.codec.properties import USER_PROPERTY
from lexicast.actors.mqtt.share_subscriptions import ShareSubscriber

from ...support.harness import eventually
from ...support.mqtt_harness import Message, Raw, Served, close_clients, served, unique

VERSIONS = pytest.mark.parametrize("version", [V311, V5])
# Properties: 17 session expiry, 33 receive maximum.


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served(brokers=2) as running:
        yield running


@pytest.fixture(scope="module")
def free_cluster() -> Iterator[Served]:
    with served(mqtt__share_strategy="free") as running:
        yield running


@pytest.fixture
async def ports(cluster: Served) -> AsyncIterator[list[int]]:
    yield [cluster.broker(0).mqtt.port, cluster.broker(1).mqtt.port]
    await close_clients()


@pytest.fixture
async def free_port(free_cluster: Served) -> AsyncIterator[int]:
    yield free_cluster.port
    await close_clients()


async def all_of(count: int, *members: Raw) -> list[list[Message]]:
    """`count` publications, whichever member gets them, each by each."""
    found: list[list[Message]] = [[] for _ in members]

    async def gather(at: int) -> None:
        while True:
            found[at].append(await members[at].expect(Message))

    tasks = [asyncio.ensure_future(gather(at)) for at in range(len(members))]
    try:
        await eventually(lambda: sum(map(len, found)) >= count, f"{count} publications")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found


def payloads(messages: list[Message]) -> list[bytes]:
    return [message.payload for message in messages]


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.mqtt("MQTT-4.8.2-3")
async def test_each_publication_goes_to_one_member_on_whichever_broker(
    ports: list[int], version: int, qos: int
) -> None:
    root = unique()
    members = [await Raw.connect(port, version=version) for port in (*ports, *ports)]
    publisher = await Raw.connect(ports[0])
    for member in members:
        assert await member.subscribe(f"$share/g/{root}/#", qos=qos) == [qos]
    other = await Raw.connect(ports[1])
    await other.subscribe(f"$share/other/{root}/+", qos=qos)
    sent = [b"%d" % number for number in range(200)]
    for number, payload in enumerate(sent):
        await publisher.publish(f"{root}/{number % 20}", payload, qos=2)
    *shared, others = await all_of(400, *members, other)
    assert sorted(payloads([m for messages in shared for m in messages])) == sorted(sent)
    assert sorted(payloads(others)) == sorted(sent)
    assert {message.qos for messages in shared for message in messages} == {qos}
    # All of a topic goes to one member, in order.
    for topic in range(20):
        getting = [found for found in shared if any(message.topic == f"{root}/{topic}" for message in found)]
        assert len(getting) == 1
        numbers = [int(m.payload) for m in getting[0] if m.topic == f"{root}/{topic}"]
        assert numbers == sorted(numbers)


async def test_what_a_member_has_not_acknowledged_goes_to_another_one(ports: list[int]) -> None:
    topic = unique()
    first, publisher = await Raw.connect(ports[0], _33=3), await Raw.connect(ports[0])
    first.answers = False
    await first.subscribe(f"$share/g/{topic}", qos=1)
    for number in range(6):
        await publisher.publish(topic, b"%d" % number, qos=1)
    got = await first.messages(3)
    assert payloads(got) == [b"0", b"1", b"2"]
    first.send(PubAck(got[1].packet_id))
    await first.messages(1)
    second = await Raw.connect(ports[1])
    await second.subscribe(f"$share/g/{topic}", qos=1)
    first.abort()
    assert sorted(payloads(await second.messages(5))) == [b"0", b"2", b"3", b"4", b"5"]
    await second.nothing(publisher, topic)


async def test_with_nobody_there_the_share_waits_and_repeats_nothing(ports: list[int]) -> None:
    topic = unique()
    first, publisher = await Raw.connect(ports[0], _33=2), await Raw.connect(ports[0])
    first.answers = False
    await first.subscribe(f"$share/g/{topic}", qos=1)
    for number in range(4):
        await publisher.publish(topic, b"%d" % number, qos=1)
    got = await first.messages(2)
    first.send(PubAck(got[1].packet_id))
    await first.messages(1)
    await first.disconnect()
    await publisher.publish(topic, b"4", qos=1)
    second = await Raw.connect(ports[1])
    await second.subscribe(f"$share/g/{topic}", qos=1)
    assert payloads(await second.messages(4)) == [b"0", b"2", b"3", b"4"]
    await second.nothing(publisher, topic)


async def test_a_member_with_a_full_window_does_not_hold_up_the_others(free_port: int) -> None:
    topic = unique()
    slow, fast = await Raw.connect(free_port, _33=1), await Raw.connect(free_port)
    publisher = await Raw.connect(free_port)
    slow.answers = False
    for member in (slow, fast):
        await member.subscribe(f"$share/g/{topic}", qos=1)
    for number in range(50):
        await publisher.publish(topic, b"%d" % number, qos=1)
    held, rest = await all_of(50, slow, fast)
    assert len(held) == 1
    assert len(rest) == 49
    slow.abort()
    assert payloads(await fast.messages(1)) == payloads(held)


@pytest.mark.mqtt("MQTT-4.8.2-4")
async def test_qos_2_stays_with_its_member(ports: list[int]) -> None:
    """[MQTT-4.8.2-4]"""
    topic = unique()
    publisher, name = await Raw.connect(ports[0]), unique()
    first = await Raw.connect(ports[0], name, _17=600)
    first.answers = False
    await first.subscribe(f"$share/g/{topic}", qos=2)
    await publisher.publish(topic, b"once", qos=2)
    (before,) = await first.messages(1)
    second = await Raw.connect(ports[0])
    await second.subscribe(f"$share/g/{topic}", qos=2)
    first.abort()
    await second.nothing(publisher, topic)
    again = await Raw.connect(ports[1], name, clean=False, _17=600)
    (after,) = await again.messages(1)
    assert (after.payload, after.packet_id, after.dup, after.qos) == (b"once", before.packet_id, True, 2)
    await again.disconnect(_17=0)
    await second.nothing(publisher, topic)


@pytest.mark.mqtt("MQTT-4.8.2-5")
async def test_qos_2_is_gone_with_its_members_session(ports: list[int]) -> None:
    """[MQTT-4.8.2-5]"""
    topic = unique()
    publisher, first = await Raw.connect(ports[0]), await Raw.connect(ports[0])
    first.answers = False
    await first.subscribe(f"$share/g/{topic}", qos=2)
    await publisher.publish(topic, b"once", qos=2)
    await first.messages(1)
    first.abort()
    second = await Raw.connect(ports[1])
    await second.subscribe(f"$share/g/{topic}", qos=2)
    await second.nothing(publisher, topic)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.mqtt("MQTT-4.8.2-6")
async def test_what_a_member_refuses_is_discarded(ports: list[int], qos: int) -> None:
    """[MQTT-4.8.2-6]"""
    topic = unique()
    publisher, first = await Raw.connect(ports[0]), await Raw.connect(ports[0])
    first.answers = False
    await first.subscribe(f"$share/g/{topic}", qos=qos)
    await publisher.publish(topic, b"unwanted", qos=2)
    (got,) = await first.messages(1)
    first.send(PubAck(got.packet_id, 0x83) if qos == 1 else PubRec(got.packet_id, 0x83))
    await first.ping()
    second = await Raw.connect(ports[0])
    await second.subscribe(f"$share/g/{topic}", qos=qos)
    first.abort()
    await second.nothing(publisher, topic)


async def test_nothing_retained_comes_at_subscribing(ports: list[int]) -> None:
    topic = unique()
    publisher, member = await Raw.connect(ports[0]), await Raw.connect(ports[0])
    await publisher.publish(topic, b"kept", qos=1, retain=True)
    assert await member.subscribe(f"$share/g/{topic}", qos=1, identifier=7) == [1]
    await publisher.publish(topic, b"live", qos=1, retain=True)
    (message,) = await member.messages(1)
    assert (message.payload, message.retain, message.properties[11]) == (b"live", False, [7])


async def test_after_unsubscribe_nothing_comes_and_what_was_sent_is_completed(ports: list[int]) -> None:
    topic = unique()
    first, publisher = await Raw.connect(ports[0], _33=1), await Raw.connect(ports[0])
    first.answers = False
    await first.subscribe(f"$share/g/{topic}", qos=1)
    for payload in (b"sent", b"waits"):
        await publisher.publish(topic, payload, qos=1)
    (got,) = await first.messages(1)
    assert await first.unsubscribe(f"$share/g/{topic}", f"$share/g/{topic}") == [0, 0x11]
    second = await Raw.connect(ports[1])
    await second.subscribe(f"$share/g/{topic}", qos=1)
    assert payloads(await second.messages(1)) == [b"waits"]
    first.send(PubAck(got.packet_id))
    await second.nothing(publisher, topic)
    assert [packet for packet in await first.ping() if isinstance(packet, Message)] == []


async def test_a_member_that_returns_is_one_again(ports: list[int]) -> None:
    topic, name = unique(), unique()
    publisher = await Raw.connect(ports[0])
    first = await Raw.connect(ports[0], name, _17=600)
    await first.subscribe(f"$share/g/{topic}", topic, qos=1)
    await first.disconnect()
    await publisher.publish(topic, b"missed", qos=1)
    again = await Raw.connect(ports[1], name, clean=False, _17=600)
    assert again.connack.session_present
    assert payloads(await again.messages(2)) == [b"missed", b"missed"]  # as a member, and as a subscriber
    await publisher.publish(topic, b"live", qos=1)
    assert payloads(await again.messages(2)) == [b"live", b"live"]
    await again.disconnect(_17=0)


async def test_a_new_share_begins_in_the_past_where_it_is_asked_to(ports: list[int]) -> None:
    topic = unique()
    publisher, member = await Raw.connect(ports[0]), await Raw.connect(ports[0])
    await publisher.publish(topic, b"past", qos=1)
    packet_id, asked = member.next_id(), {USER_PROPERTY: [("since", "beginning")]}
    member.send(Subscribe(packet_id, [(f"$share/g/{topic}".encode(), SubscriptionOptions(1))], properties=asked))
    assert (await member.expect(SubAck)).reason_codes == [1]
    assert payloads(await member.messages(1)) == [b"past"]


async def test_conditions_hold_for_members(ports: list[int]) -> None:
    topic = unique()
    publisher, member = await Raw.connect(ports[0]), await Raw.connect(ports[0])
    packet_id, asked = member.next_id(), {USER_PROPERTY: [("where", "level > 5")]}
    member.send(Subscribe(packet_id, [(f"$share/g/{topic}".encode(), SubscriptionOptions(1))], properties=asked))
    assert (await member.expect(SubAck)).reason_codes == [1]
    for level in (1, 7, 3, 9):
        await publisher.publish(topic, b'{"level": %d}' % level, qos=1)
    assert payloads(await member.messages(2)) == [b'{"level": 7}', b'{"level": 9}']


async def test_what_comes_while_as_much_is_open_as_may_be_is_read_from_the_log(free_port: int) -> None:
    """More than a share keeps in memory, and than members acknowledge meanwhile."""
    topic, count = unique(), 20_000
    members = [await Raw.connect(free_port, _33=10) for _ in range(2)]
    publisher = await Raw.connect(free_port)
    for member in members:
        await member.subscribe(f"$share/g/{topic}", qos=1)
    for number in range(count):
        await publisher.publish(topic, b"%d" % number, qos=0)
    await publisher.publish(topic, b"end", qos=1)
    found = await all_of(count + 1, *members)
    got = payloads([message for messages in found for message in messages])
    assert sorted(got) == sorted([*(b"%d" % number for number in range(count)), b"end"])


@pytest.mark.parametrize("filter", ["$share/g", "$share/g+/a", "$share//a"])
@pytest.mark.mqtt("MQTT-4.8.2-1", "MQTT-4.8.2-2")
async def test_a_share_without_a_filter_or_a_good_name_is_malformed(ports: list[int], filter: str) -> None:
    client = await Raw.connect(ports[0])
    client.send(Subscribe(1, [(filter.encode(), SubscriptionOptions())]))
    (farewell,) = await client.closed()
    assert farewell.reason_code == 0x81


async def test_one_shared_subscription_more_than_a_client_may_have_is_refused(
    ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribing, "CLIENT_SHARES_MAX", 2)
    topic, client = unique(), await Raw.connect(ports[0])
    shares = [f"$share/{name}/{topic}" for name in "abc"]
    assert await client.subscribe(*shares, qos=1) == [1, 1, 0x97]
    assert await client.subscribe(shares[0], topic, qos=0) == [0, 0]  # what it has may change, others go on
    await client.unsubscribe(shares[0])
    assert await client.subscribe(shares[2], qos=1) == [1]


async def test_a_block_that_cannot_be_delivered_is_not_dealt_for_ever(
    ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique()
    publisher, member = await Raw.connect(ports[0]), await Raw.connect(ports[0])
    await member.subscribe(f"$share/g/{topic}", qos=1)
    send, failing = ShareSubscriber._send_part, [True]

    def send_part(self: ShareSubscriber, part: DealtPart) -> DealtPart | None:
        if failing:
            failing.clear()
            raise RuntimeError("a defect")
        return send(self, part)

    monkeypatch.setattr(ShareSubscriber, "_send_part", send_part)
    await publisher.publish(topic, b"broken", qos=1)
    await eventually(lambda: not failing)
    await member.nothing(publisher, topic)


async def test_what_a_member_may_not_read_is_withheld(cluster: Served, ports: list[int]) -> None:
    root = unique()

    async def rules(text: str | None, version: int) -> None:
        cluster.broker(0).engine.rights.update(text, version)

    allowed = f"topic write {root}/#\ntopic read {root}/open/#\n"
    await asyncio.to_thread(cluster.run, rules(allowed, 1))
    try:
        publisher, member = await Raw.connect(ports[0]), await Raw.connect(ports[0])
        assert await member.subscribe(f"$share/g/{root}/secret", qos=1) == [0x87]
        assert await member.subscribe(f"$share/g/{root}/#", qos=1) == [1]
        for topic in ("secret", "open/a", "secret/b", "open/c"):
            await publisher.publish(f"{root}/{topic}", topic.encode(), qos=1)
        assert payloads(await member.messages(2)) == [b"open/a", b"open/c"]
    finally:
        await asyncio.to_thread(cluster.run, rules(None, 2))
