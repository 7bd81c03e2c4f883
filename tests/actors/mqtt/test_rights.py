"""Rules enforced over a whole cluster: publishing, wills, subscribing, delivery live and late, retained, the past."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from lexicast.actors.mqtt import releases
from lexicast.actors.mqtt.codec.packets import (
    NOT_AUTHORIZED,
    V5,
    V311,
    PubAck,
    Publish,
    PubRec,
    SubAck,
    Subscribe,
    SubscriptionOptions,
    Will,
)
from lexicast.actors.mqtt.releases import forget_ids

from ...support.harness import eventually
from ...support.mqtt_harness import Raw, Served, close_clients, served, unique

USER_PROPERTY = 38
LASTING: dict[str, Any] = {"_17": 600}
VERSIONS = pytest.mark.parametrize("version", [V311, V5])
QOS = pytest.mark.parametrize("qos", [0, 1, 2])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served(mqtt__inflight_max=10) as running:
        yield running


class Door:
    """The broker's port, and its rules."""

    def __init__(self, cluster: Served) -> None:
        self._cluster = cluster
        self._version = 0
        self.port = cluster.port

    def rules(self, *lines: str) -> None:
        """These are the rules from now on."""
        self._take("\n".join(lines))

    def open(self) -> None:
        """There are none."""
        self._take(None)

    def _take(self, text: str | None) -> None:
        self._version += 1

        async def take() -> None:
            self._cluster.broker().engine.rights.update(text, self._version)

        self._cluster.run(take())

    def refused(self, what: str) -> int:
        """How often something was refused."""
        return self._cluster.broker().engine.rights.refused[what]


@pytest.fixture
async def door(cluster: Served) -> AsyncIterator[Door]:
    found = Door(cluster)
    yield found
    await close_clients()
    found.open()


async def subscribe(client: Raw, name: str, qos: int = 0, **asked: str) -> int:
    options = [(name.encode(), SubscriptionOptions(qos))]
    client.send(Subscribe(client.next_id(), options, properties={USER_PROPERTY: list(asked.items())}))
    (code,) = (await client.expect(SubAck)).reason_codes
    return code


def told(messages: list[Any]) -> list[tuple[str, bytes]]:
    return [(m.topic, m.payload) for m in messages]


@VERSIONS
@QOS
@pytest.mark.mqtt311("MQTT-3.3.5-2")
async def test_what_may_not_be_published_is_dropped_and_said(door: Door, version: int, qos: int) -> None:
    door.rules("topic read #", "topic write ok/#")
    publisher, reader = await Raw.connect(door.port, version=version), await Raw.connect(door.port)
    assert await reader.subscribe("#") == [0]
    before = door.refused("publish")
    code = await publisher.publish("no/a", b"1", qos=qos)
    assert code == (NOT_AUTHORIZED if version == V5 and qos else 0)
    # The id is free again, and what follows is taken.
    assert await publisher.publish("no/a", b"2", qos=qos, retain=True) == code
    assert await publisher.publish("ok/a", b"3", qos=qos) == 0
    assert told(await reader.messages(1)) == [("ok/a", b"3")]
    assert door.refused("publish") == before + 2


async def test_acknowledgements_stay_in_the_order_of_the_wire(door: Door) -> None:
    door.rules("topic write ok")
    client = await Raw.connect(door.port)
    for packet_id, topic in enumerate([b"ok", b"no", b"ok", b"no", b"no", b"ok"], 1):
        client.send(Publish(topic, b"m", 1, packet_id=packet_id))
    answers = [await client.expect(PubAck) for _ in range(6)]
    assert [(a.packet_id, a.reason_code) for a in answers] == [
        (1, 0), (2, 0x87), (3, 0), (4, 0x87), (5, 0x87), (6, 0),
    ]  # fmt: skip


async def test_a_refused_qos_2_publication_is_completed_by_its_refusal(door: Door) -> None:
    door.rules("topic write ok")
    client = await Raw.connect(door.port)
    for _ in range(2):  # the same packet id, which a refusal frees
        client.send(Publish(b"no", b"m", 2, packet_id=7))
        assert (await client.expect(PubRec)).reason_code == NOT_AUTHORIZED


@VERSIONS
async def test_a_subscription_that_can_bring_nothing_is_refused(door: Door, version: int) -> None:
    door.rules("topic read a/+", "topic deny a/x", "topic write w/#")
    client = await Raw.connect(door.port, version=version)
    no = NOT_AUTHORIZED if version == V5 else 0x80
    assert await client.subscribe("a/b", "a/x", "a/#", "#", "w/#", "b/#", "$sdc/a", "$x/#") == [
        0, no, 0, 0, no, no, no, no,
    ]  # fmt: skip


@QOS
@pytest.mark.parametrize("where", [{}, {"where": "retain IS NOT NULL OR 1 = 1"}], ids=["all", "conditions"])
async def test_a_wildcard_brings_what_may_be_read(door: Door, qos: int, where: dict[str, str]) -> None:
    name, base = unique("c"), unique()
    door.rules(f"topic write {base}/#", f"pattern read {base}/%c/#", f"topic read {base}/all", f"topic deny {base}/x/+")
    publisher, client, other = (
        await Raw.connect(door.port),
        await Raw.connect(door.port, name),
        await Raw.connect(door.port),
    )
    condition = {"where": "x = 1"} if where else {}
    assert await subscribe(client, "#", qos, **condition) == qos
    assert await subscribe(other, base + "/#", qos, **condition) == qos
    for topic in [f"{name}/a", "all", "elsewhere", f"{name}", "x/a"]:
        await publisher.publish(f"{base}/{topic}", b'{"x": 1}', qos=1)
        await publisher.publish(f"{base}/{topic}", b'{"x": 2}', qos=1)
    await publisher.publish(f"{base}/all", b'{"x": 1}', qos=1)
    each = 1 if condition else 2
    topics = [f"{name}/a"] * each + ["all"] * each + [name] * each + ["all"]
    assert [m.topic for m in await client.messages(len(topics))] == [f"{base}/{topic}" for topic in topics]
    assert [m.topic for m in await other.messages(each + 1)] == [f"{base}/all"] * (each + 1)
    assert await client.ping() == [] == await other.ping()


@QOS
async def test_a_right_that_is_taken_away_ends_what_is_delivered_and_one_that_is_given_begins_it(
    door: Door, qos: int
) -> None:
    base = unique()
    publisher, client = await Raw.connect(door.port), await Raw.connect(door.port)
    assert await subscribe(client, base + "/#", qos) == qos
    expected = []
    for number, readable in enumerate(["", "a", "", "b", "a"]):
        door.rules(f"topic write {base}/#", f"topic read {base}/{readable}" if readable else "topic read other")
        for topic in "ab":
            await publisher.publish(f"{base}/{topic}", b"%d" % number, qos=1)
            if topic == readable:
                expected.append((f"{base}/{topic}", b"%d" % number))
    assert told(await client.messages(len(expected))) == expected
    assert await client.ping() == []


async def test_a_right_to_publish_that_is_taken_away_counts_at_once(door: Door) -> None:
    client = await Raw.connect(door.port)
    assert await client.publish("a", qos=1) == 0
    door.rules("topic write b")
    assert [await client.publish(topic, qos=1) for topic in "abab"] == [NOT_AUTHORIZED, 0, NOT_AUTHORIZED, 0]
    door.open()
    assert await client.publish("a", qos=1) == 0


@pytest.mark.parametrize("qos", [1, 2])
async def test_who_was_away_gets_what_it_may_read_when_it_returns(door: Door, qos: int) -> None:
    base, name = unique(), unique("s")
    client = await Raw.connect(door.port, name, **LASTING)
    await client.subscribe(base + "/#", qos=qos)
    await client.disconnect()
    publisher = await Raw.connect(door.port)
    for number in range(25):
        await publisher.publish(f"{base}/{number % 2}", b"%d" % number, qos=1)
    door.rules(f"topic read {base}/1")
    again = await Raw.connect(door.port, name, clean=False, **LASTING)
    assert again.connack.session_present
    assert [m.payload for m in await again.messages(12)] == [b"%d" % number for number in range(1, 25, 2)]
    assert await again.ping() == []


async def test_what_is_in_flight_is_not_sent_again_to_who_may_not_read_it_any_more(door: Door) -> None:
    base, name = unique(), unique("s")
    client = await Raw.connect(door.port, name, **LASTING)
    client.answers = False
    await client.subscribe(base + "/#", qos=1)
    publisher = await Raw.connect(door.port)
    for number in range(6):
        await publisher.publish(f"{base}/{number % 2}", b"%d" % number, qos=1)
    await client.messages(6)
    client.abort()
    door.rules(f"topic read {base}/0", f"topic write {base}/#")
    again = await Raw.connect(door.port, name, clean=False, **LASTING)
    assert [(m.payload, m.dup) for m in await again.messages(3)] == [(b"0", True), (b"2", True), (b"4", True)]
    # The window is free again for what follows.
    for number in range(20):
        await publisher.publish(f"{base}/0", b"%d" % number, qos=1)
    assert len(await again.messages(20)) == 20


async def test_retained_messages_are_for_those_who_may_read_them(door: Door) -> None:
    base = unique()
    publisher = await Raw.connect(door.port)
    for topic in "abc":
        await publisher.publish(f"{base}/{topic}", b"kept", qos=1, retain=True)
    door.rules(f"topic read {base}/b", "topic write done")
    client = await Raw.connect(door.port)
    await client.subscribe(base + "/#")
    assert told(await client.messages(1)) == [(f"{base}/b", b"kept")]
    assert await client.ping() == []


@VERSIONS
async def test_retained_messages_of_who_may_not_write_there_any_more_stay_away(door: Door, version: int) -> None:
    base, names = unique(), [unique("p"), unique("p")]
    before = await Raw.connect(door.port)
    await before.publish(f"{base}/before", b"nobody knows whose", qos=1, retain=True)
    door.rules("topic read #", f"pattern write {base}/%c/#")
    for name in names:
        publisher = await Raw.connect(door.port, name, version=version)
        await publisher.publish(f"{base}/{name}/x", b"kept", qos=1, retain=True)
    door.rules("topic read #", f"topic write {base}/{names[1]}/#")
    for _ in range(2):
        client = await Raw.connect(door.port)
        await client.subscribe(base + "/#")
        found = told(await client.messages(2))
        assert sorted(found) == sorted([(f"{base}/before", b"nobody knows whose"), (f"{base}/{names[1]}/x", b"kept")])
        assert await client.ping() == []


async def test_no_local_knows_its_own_retained_publications_under_rules(door: Door) -> None:
    topic = unique()
    door.rules("topic #")
    client, other = await Raw.connect(door.port), await Raw.connect(door.port)
    await client.subscribe(topic, no_local=True)
    await client.publish(topic, b"own", qos=1, retain=True)
    await other.publish(topic, b"other", qos=1, retain=True)
    assert told(await client.messages(1)) == [(topic, b"other")]


@QOS
@pytest.mark.parametrize("asked", [{"since": "10m"}, {"last": "5"}], ids=["since", "last"])
async def test_the_past_takes_a_right_of_its_own(door: Door, qos: int, asked: dict[str, str]) -> None:
    base = unique()
    publisher = await Raw.connect(door.port)
    for topic in ["a", "now/b", "no/c"]:
        await publisher.publish(f"{base}/{topic}", b"past", qos=1)
    door.rules("topic #", f"topic nohistory {base}/now/#", f"topic deny {base}/no/#")
    client, live = await Raw.connect(door.port), await Raw.connect(door.port)
    assert await subscribe(client, base + "/#", qos, **asked) == qos
    assert await subscribe(live, base + "/now/#", qos, until="+1h") == qos
    for topic in ["now/b", "a"]:
        await publisher.publish(f"{base}/{topic}", b"live", qos=1)
    expected = [(f"{base}/a", b"past"), (f"{base}/now/b", b"live"), (f"{base}/a", b"live")]
    assert told(await client.messages(3)) == expected
    assert await client.ping() == []
    assert told(await live.messages(1)) == [(f"{base}/now/b", b"live")]
    assert await subscribe(client, base + "/now/b", qos, **asked) == NOT_AUTHORIZED
    assert await subscribe(client, base + "/now/+", qos, **asked) == NOT_AUTHORIZED
    assert await subscribe(client, base + "/now/b", qos) == qos


@VERSIONS
async def test_a_will_that_may_not_be_published_is_refused_at_connect(door: Door, version: int) -> None:
    door.rules("topic write ok/#")
    will = Will(b"no/gone", b"gone", 1)
    client = await Raw.connect(door.port, version=version, will=will)
    assert client.connack.reason_code == NOT_AUTHORIZED
    allowed = await Raw.connect(door.port, version=version, will=Will(b"ok/gone", b"gone", 1))
    assert allowed.connack.reason_code == 0


@pytest.mark.parametrize("delay_s", [0, 1])
async def test_a_will_is_asked_about_again_when_it_is_due(door: Door, delay_s: int) -> None:
    base = unique()
    watcher = await Raw.connect(door.port)
    await watcher.subscribe(base + "/#")
    for topic in "ab":
        will = Will(f"{base}/{topic}".encode(), b"gone", 1, properties={24: delay_s})
        client = await Raw.connect(door.port, unique(), will=will, **LASTING)
        door.rules("topic read #", f"topic write {base}/b")
        before = door.refused("will")
        client.abort()
        if topic == "a":
            await eventually(lambda before=before: door.refused("will") == before + 1)  # type: ignore[misc]  # bound now
        else:
            assert told(await watcher.messages(1)) == [(f"{base}/b", b"gone")]
            assert door.refused("will") == before
        door.open()
    assert await watcher.ping() == []


@pytest.mark.mqtt("MQTT-4.3.3-9")
async def test_a_refusal_in_a_session_that_goes_on_asks_the_topic_s_group_once(
    door: Door, cluster: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All groups were asked, at each refusal: a client without rights had a hundred requests made by each packet."""
    asked: list[dict[int | None, list[int]]] = []

    async def forget(engine: Any, uid: bytes, generation: int, wanted: dict[int | None, list[int]]) -> None:
        asked.append({group: list(ids) for group, ids in wanted.items()})
        await forget_ids(engine, uid, generation, wanted)

    monkeypatch.setattr(releases, "forget_ids", forget)
    door.rules("topic write ok")
    name, group_of = unique(), cluster.broker().engine.coordinators.group_of
    for clean in (True, False):
        client = await Raw.connect(door.port, name, clean=clean, **LASTING)
        client.answers = False
        for topic in (b"no/a", b"no/a", b"$x/no"):
            for packet_id in (7, 8):
                client.send(Publish(topic, b"m", 2, packet_id=packet_id))
            assert [await client.expect(PubRec) for _ in (7, 8)] == [PubRec(i, NOT_AUTHORIZED) for i in (7, 8)]
        client.send(Publish(b"no/b", b"m", 2, packet_id=9))
        assert await client.expect(PubRec) == PubRec(9, NOT_AUTHORIZED)
        client.send(Publish(b"$x/no", b"m", 2, packet_id=10))
        assert await client.expect(PubRec) == PubRec(10, NOT_AUTHORIZED)
        await client.disconnect()
    # Of the session that goes on alone: that of the new one has no earlier connection.
    flat = sorted((group, i) for each in asked for group, ids in each.items() for i in ids)
    assert flat == sorted([(group_of(b"no/a"), 7), (group_of(b"no/a"), 8), (group_of(b"no/b"), 9)])
