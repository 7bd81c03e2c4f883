"""Sessions that outlive connections, brokers and coordinators: nothing is lost, QoS 2 stays once, one broker serves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.mqtt.codec import encode_packet
from lexicast.actors.mqtt.codec.packets import (
    QUOTA_EXCEEDED,
    SESSION_TAKEN_OVER,
    V5,
    V311,
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Will,
)
from lexicast.actors.mqtt.owning import owned_sessions as mqtt_sessions
from lexicast.cluster.positions import topic_group

from ...support.harness import GROUPS, Cluster, Shifted, eventually, silence
from ...support.mqtt_harness import Message, Raw, close_clients, unique

WAIT: dict[str, Any] = {"_17": 600}


class Two:
    """Two brokers of one coordinator."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def broker(self, index: int) -> BrokerServer:
        node = self.cluster.nodes[f"broker-{index}"]
        assert isinstance(node, BrokerServer)
        return node

    def port(self, index: int = 0) -> int:
        return self.broker(index).mqtt.port

    async def crash_broker(self, index: int) -> None:
        """As if its process had been killed: sockets break, nothing is said or saved any more."""
        broker = self.broker(index)
        del self.cluster.nodes[broker.name]
        await crash(broker)


async def crash(broker: BrokerServer) -> None:
    """See `Two.crash_broker`."""
    for pipeline in broker.engine.coordinators.pipelines.values():
        pipeline._task.cancel()
        if pipeline.link is not None:
            silence(pipeline.link)
            pipeline.link.abort()
    for task in [*broker._loops, *broker.mqtt._periodic]:
        if task is not None:
            task.cancel()
    broker.mqtt.doors.shut()
    for server in broker.sockets._servers:
        if server is not None:
            server.close()
    broker.mqtt.sessions.let_go = lambda session, will=None: None  # type: ignore[method-assign]  # nor saves that
    for connection in list(broker.mqtt.connections):
        connection.transport.abort()
    await eventually(lambda: not broker.mqtt.connections)
    broker.mqtt.doors.tcp.close()


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    async with Cluster(tmp_path, clock=Shifted()) as cluster:
        await cluster.start_coordinator()
        await cluster.start_broker("broker-0")
        await cluster.start_broker("broker-1")
        yield Two(cluster)
        await close_clients()


# -- away and back


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("back_on", [0, 1])
@pytest.mark.mqtt("MQTT-3.1.2-5", "MQTT-3.1.2-6", "MQTT-3.1.2-23", "MQTT-3.2.2-3", "MQTT-4.5.0-1", "MQTT-4.6.0-6")
async def test_what_came_meanwhile_arrives_in_order(two: Two, version: int, back_on: int) -> None:
    name, root = unique(), unique()
    more = WAIT if version == V5 else {}
    client = await Raw.connect(two.port(), name, version, clean=False, **more)
    assert not client.connack.session_present
    await client.subscribe(f"{root}/+", qos=2)
    publisher = await Raw.connect(two.port(1))
    await publisher.publish(f"{root}/a", b"before", 1)
    await client.messages(1)
    await client.disconnect()
    for number in range(50):
        await publisher.publish(f"{root}/a", b"%d" % number, number % 3)
    client = await Raw.connect(two.port(back_on), name, version, clean=False, **more)
    assert client.connack.session_present
    got = await client.messages(50)
    assert [(m.payload, m.qos) for m in got] == [(b"%d" % n, n % 3) for n in range(50)]
    assert not any(m.dup for m in got)
    await publisher.publish(f"{root}/a", b"after", 1)
    assert [m.payload for m in await client.messages(1)] == [b"after"]


@pytest.mark.parametrize("taken_over", [False, True])
@pytest.mark.parametrize("back_on", [0, 1])
async def test_what_is_retained_comes_on_the_next_connection_where_the_first_has_not_got_all(
    two: Two, back_on: int, taken_over: bool
) -> None:
    name, root = unique(), unique()
    publisher = await Raw.connect(two.port(1))
    for number in range(10):
        await publisher.publish(f"{root}/{number}", b"%d" % number, 1, retain=True)
    client = await Raw.connect(two.port(), name, clean=False, _33=2, **WAIT)
    client.answers = False
    await client.subscribe(f"{root}/+", qos=1)
    await client.messages(2)  # of which it acknowledges none
    if not taken_over:
        client.abort()
        await eventually(lambda: not two.broker(0).mqtt.sessions.owners)
    again = await Raw.connect(two.port(back_on), name, clean=False, **WAIT)
    assert again.connack.session_present
    got = {m.payload for m in await again.messages(12)}  # two of them are sent again
    assert got == {b"%d" % number for number in range(10)}
    await again.disconnect()
    third = await Raw.connect(two.port(), name, clean=False, **WAIT)
    await third.nothing(publisher, f"{root}/0")


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("back_on", [0, 1])
@pytest.mark.mqtt("MQTT-3.3.1-1", "MQTT-4.3.2-3", "MQTT-4.3.3-3", "MQTT-4.3.3-5", "MQTT-4.4.0-1")
async def test_what_is_in_flight_is_sent_again_with_its_packet_id(two: Two, version: int, back_on: int) -> None:
    name, topic = unique(), unique()
    more = WAIT if version == V5 else {}
    client = await Raw.connect(two.port(), name, version, clean=False, **more)
    await client.subscribe(topic, qos=2)
    publisher = await Raw.connect(two.port(1))
    client.answers = False
    for number in range(6):
        await publisher.publish(topic, b"%d" % number, 1 + number % 2)
    first = await client.messages(6)
    client.send(PubAck(first[0].packet_id))
    client.send(PubRec(first[1].packet_id))
    await client.expect(PubRel)
    client.send(PubRec(first[3].packet_id))
    await client.expect(PubRel)
    client.send(PubComp(first[3].packet_id))
    await client.ping()
    client.abort()
    await publisher.publish(topic, b"new", 2)
    client = await Raw.connect(two.port(back_on), name, version, clean=False, **more)
    client.answers = False
    assert await client.packet() == PubRel(first[1].packet_id)
    again = await client.messages(4)
    expected = [first[2], first[4], first[5]]
    assert [(m.payload, m.qos, m.packet_id, m.dup) for m in again[:3]] == [
        (m.payload, m.qos, m.packet_id, True) for m in expected
    ]
    assert (again[3].payload, again[3].dup) == (b"new", False)
    assert again[3].packet_id not in {m.packet_id for m in [*expected, first[1]]}


async def test_a_large_window_is_sent_again_as_the_client_takes_it(two: Two) -> None:
    name, topic = unique(), unique()
    client = await Raw.connect(two.port(), name, clean=False, **WAIT)
    await client.subscribe(topic, qos=1)
    client.answers = False
    publisher = await Raw.connect(two.port())
    for number in range(300):
        publisher.send(Publish(topic.encode(), b"%d" % number, 1, packet_id=number + 1))
    first = await client.messages(300)
    client.abort()
    client = await Raw.connect(two.port(), name, clean=False, _33=7, **WAIT)
    client.answers = False
    again: list[Message] = []
    while len(again) < 300:
        window = await client.messages(min(7, 300 - len(again)))
        assert await client.ping() == []
        again += window
        for message in window:
            client.send(PubAck(message.packet_id))
    assert [(m.payload, m.packet_id) for m in again] == [(m.payload, m.packet_id) for m in first]
    await publisher.publish(topic, b"live", 1)
    assert [m.payload for m in await client.messages(1)] == [b"live"]


@pytest.mark.mqtt("MQTT-3.1.2-4", "MQTT-3.1.4-4", "MQTT-3.2.2-2", "MQTT-3.2.2-3", "MQTT-4.1.0-2")
async def test_sessions_end_when_they_expire_and_with_a_clean_start(two: Two) -> None:
    name, topic = unique(), unique()
    client = await Raw.connect(two.port(), name, clean=False)  # expiry 0
    await client.subscribe(topic)
    await client.disconnect()
    client = await Raw.connect(two.port(), name, clean=False, **WAIT)
    assert not client.connack.session_present
    await client.subscribe(topic, qos=1)
    client.send(Disconnect(0, {17: 0}))  # shorter now
    await client.closed()
    client = await Raw.connect(two.port(), name, clean=False, _17=1)
    assert not client.connack.session_present
    await client.disconnect()
    assert isinstance(two.cluster.clock, Shifted)
    two.cluster.clock.ahead_s = 2
    client = await Raw.connect(two.port(), name, clean=False, **WAIT)
    assert not client.connack.session_present
    await client.subscribe(topic, qos=1)
    await client.disconnect()
    client = await Raw.connect(two.port(1), name, clean=True, **WAIT)
    assert not client.connack.session_present
    publisher = await Raw.connect(two.port())
    await publisher.publish(topic, b"nobody's", 1)
    await client.subscribe("other", qos=1)
    await client.nothing(publisher, "other")


# -- one broker serves


async def test_takeover_by_the_other_broker(two: Two) -> None:
    name, topic, wills = unique(), unique(), unique()
    watcher = await Raw.connect(two.port())
    await watcher.subscribe(wills)
    old = await Raw.connect(two.port(0), name, clean=False, will=Will(wills.encode(), b"old"), **WAIT)
    await old.subscribe(topic, qos=1)
    old.answers = False
    publisher = await Raw.connect(two.port())
    await publisher.publish(topic, b"1", 1)
    (first,) = await old.messages(1)
    new = await Raw.connect(two.port(1), name, clean=False, **WAIT)
    assert new.connack.session_present
    assert (await old.expect(Disconnect)).reason_code == 0x8E
    (again,) = await new.messages(1)
    assert (again.packet_id, again.dup) == (first.packet_id, True)
    assert (await watcher.messages(1))[0].payload == b"old"
    await publisher.publish(topic, b"2", 1)
    assert [m.payload for m in await new.messages(1)] == [b"2"]
    assert name not in two.broker(0).mqtt.sessions.owners


async def test_connections_to_both_brokers_at_once(two: Two) -> None:
    """However they race, one is served in the end, and the session's home knows which."""
    name = unique()
    for _ in range(10):
        clients = [await Raw.open(two.port(i % 2)) for i in range(8)]
        for client in clients:
            client.send(Connect(V5, name, False, properties={17: 600}))
        codes = [(await client.expect(ConnAck)).reason_code for client in clients]
        assert set(codes) <= {0, 0x89}  # CONNACK has no 0x8E
        await eventually(lambda: len(owners(two, name)) == 1, "one owner")
        (broker,) = owners(two, name)
        sessions = two.cluster.coordinators["coordinator-0"].server.sessions
        home = sessions.get(topic_group(name.encode(), GROUPS), name)
        assert home is not None
        assert (home.owner, home.generation) == (
            broker.name,
            broker.mqtt.sessions.owners[name].session.generation,
        )


def owners(two: Two, name: str) -> list[BrokerServer]:
    """The brokers that serve the session."""
    return [two.broker(i) for i in (0, 1) if name in two.broker(i).mqtt.sessions.owners]


async def test_an_owner_that_the_home_has_forgotten_lets_go(two: Two) -> None:
    """A broker cut off for a while finds at its next save that the session was taken over."""
    name = unique()
    old = await Raw.connect(two.port(0), name, clean=False, **WAIT)
    for pipeline in two.broker(0).engine.coordinators.pipelines.values():
        assert pipeline.link is not None
        pipeline.link.abort()
    new = await Raw.connect(two.port(1), name, clean=False, **WAIT)
    assert new.connack.session_present
    await old.closed()
    assert await new.ping() == []


# -- crashes


async def test_of_a_session_that_was_handed_over_nothing_is_said_while_its_home_may_not_have_written_it(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await Raw.connect(two.port(), unique("yield"), clean=False, **WAIT)
    sessions = two.broker(0).mqtt.sessions
    ((client_id, owner),) = sessions.owners.items()
    told: list[int] = []

    async def tell(below: int, unknown: Callable[[], Iterable[int]]) -> None:
        told.extend(unknown())

    monkeypatch.setattr(sessions._telling, "tell", tell)
    await sessions.round()
    assert told == []
    assert await sessions.requests["session_yield"](client_id, owner.session.generation, False)
    await sessions.round()
    assert told == [owner.session.connection]
    assert (await client.closed())[-1].reason_code == SESSION_TAKEN_OVER
    await close_clients()


async def test_a_broker_dies_and_its_sessions_go_on_elsewhere(two: Two) -> None:
    name, topic, wills = unique(), unique(), unique()
    publisher, watcher = await Raw.connect(two.port(1)), await Raw.connect(two.port(1))
    await watcher.subscribe(wills)
    client = await Raw.connect(two.port(0), name, clean=False, will=Will(wills.encode(), b"died"), **WAIT)
    await client.subscribe(topic, qos=1)
    await two.crash_broker(0)
    await publisher.publish(topic, b"meanwhile", 1)
    client = await Raw.connect(two.port(1), name, clean=False, **WAIT)
    assert client.connack.session_present
    assert [m.payload for m in await client.messages(1)] == [b"meanwhile"]
    assert (await watcher.messages(1))[0].payload == b"died"


async def test_a_broker_that_comes_back_publishes_the_wills_it_owed(two: Two) -> None:
    wills, kept = unique(), unique()
    watcher = await Raw.connect(two.port(1))
    await watcher.subscribe(wills)
    await Raw.connect(two.port(0), will=Will(wills.encode(), b"ended"))
    await Raw.connect(two.port(0), kept, clean=False, will=Will(wills.encode(), b"kept"), **WAIT)
    await two.crash_broker(0)
    await two.cluster.start_broker("broker-0")
    assert {m.payload for m in await watcher.messages(2)} == {b"ended", b"kept"}
    client = await Raw.connect(two.port(0), kept, clean=False, **WAIT)
    assert client.connack.session_present
    await watcher.nothing(client, wills)


async def test_qos_2_from_a_client_is_once_across_broker_and_coordinator_crashes(two: Two) -> None:
    name, topic = unique(), unique()
    watcher = await Raw.connect(two.port(1))
    await watcher.subscribe(topic, qos=2)
    client = await Raw.connect(two.port(0), name, clean=False, **WAIT)
    client.answers = False
    publish = Publish(topic.encode(), b"once", 2, packet_id=11)
    client.send(publish)
    await client.expect(PubRec)
    # Before its PUBREC arrived, as far as the client knows: it sends again, wherever it lands.
    await two.crash_broker(0)
    client = await Raw.connect(two.port(1), name, clean=False, **WAIT)
    assert client.connack.session_present
    client.answers = False
    client.send(Publish(topic.encode(), b"once", 2, False, True, 11))
    assert await client.expect(PubRec) == PubRec(11)
    await two.cluster.restart_coordinator()
    client.send(Publish(topic.encode(), b"once", 2, False, True, 11))
    assert await client.expect(PubRec) == PubRec(11)
    client.send(PubRel(11))
    await client.expect(PubComp)
    client.send(Publish(topic.encode(), b"next", 2, packet_id=11))
    await client.expect(PubRec)
    assert [m.payload for m in await watcher.messages(2)] == [b"once", b"next"]
    await watcher.nothing(await Raw.connect(two.port(1)), topic)


@pytest.mark.mqtt("MQTT-4.3.3-12")
async def test_a_packet_id_that_was_released_before_its_broker_died_is_free(two: Two) -> None:
    """[MQTT-4.3.3-12]: after PUBCOMP a PUBLISH with that id is a new publication, whatever was saved before."""
    name, topic = unique(), unique()
    watcher = await Raw.connect(two.port(1))
    await watcher.subscribe(topic, qos=2)
    client = await Raw.connect(two.port(0), name, V311, clean=False)
    client.answers = False
    await client.subscribe("any", qos=1)
    client.send(Publish(topic.encode(), b"first", 2, packet_id=5))
    await client.expect(PubRec)
    await client.subscribe("another", qos=1)  # saves the session, with 5 received
    client.send(PubRel(5))
    await client.expect(PubComp)
    await two.crash_broker(0)
    client = await Raw.connect(two.port(1), name, V311, clean=False)
    assert client.connack.session_present
    client.answers = False
    client.send(Publish(topic.encode(), b"second", 2, packet_id=5))
    await client.expect(PubRec)
    client.send(PubRel(5))
    await client.expect(PubComp)
    assert [m.payload for m in await watcher.messages(2)] == [b"first", b"second"]


async def test_a_packet_id_that_may_be_held_is_not_given_again_after_its_broker_died(two: Two) -> None:
    """[MQTT-4.3.3-4]: a client that holds an id would take another publication with it for a repeat."""
    name, topic = unique(), unique()
    client = await Raw.connect(two.port(0), name, clean=False, **WAIT)
    client.answers = False
    await client.subscribe(topic, qos=2)
    publisher = await Raw.connect(two.port(1))
    for number in range(3):
        await publisher.publish(topic, b"%d" % number, 2)
    held = [m.packet_id for m in await client.messages(3)]
    await two.crash_broker(0)
    await publisher.publish(topic, b"more", 2)
    client = await Raw.connect(two.port(1), name, clean=False, **WAIT)
    client.answers = False
    again = await client.messages(4)
    assert {m.payload for m in again} == {b"0", b"1", b"2", b"more"}
    assert all(m.packet_id not in held for m in again if not m.dup)


async def test_what_was_acknowledged_is_not_sent_again_though_nothing_of_it_was_saved(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home knows how far all sessions of the broker had got; what one of them had in flight comes again."""
    monkeypatch.setattr(mqtt_sessions, "SAVES_A_ROUND", 0)
    done, slow, topic = unique(), unique(), unique()
    publisher = await Raw.connect(two.port(1))
    clients = [await Raw.connect(two.port(0), name, clean=False, **WAIT) for name in (done, slow)]
    for client in clients:
        await client.subscribe(topic, "other/#", qos=1)
    clients[1].answers = False
    for number in range(20):
        await publisher.publish(topic, b"%d" % number, 1)
        for client in clients:
            await client.messages(1)
    group = topic_group(topic.encode(), GROUPS)
    head = two.broker(0).engine.live.heads[group]
    homes = two.cluster.coordinators["coordinator-0"].server.sessions
    standing = homes._standings._told

    def passed() -> bool:
        told = standing.get(("broker-0", 1))
        return told is not None and told.floor.get(group, 0) >= head

    await eventually(passed, "the floor")
    await two.crash_broker(0)
    await publisher.publish(topic, b"new", 1)
    back = await Raw.connect(two.port(1), done, clean=False, **WAIT)
    assert [m.payload for m in await back.messages(1)] == [b"new"]
    behind = await Raw.connect(two.port(1), slow, clean=False, **WAIT)
    assert [m.payload for m in await behind.messages(21)] == [*[b"%d" % n for n in range(20)], b"new"]


async def test_a_release_lost_with_its_broker_frees_the_packet_id(two: Two) -> None:
    """PUBREL reaches another broker than PUBLISH did: whichever group remembers the id forgets it."""
    name, topic = unique(), unique()
    watcher = await Raw.connect(two.port(1))
    await watcher.subscribe(topic, qos=2)
    client = await Raw.connect(two.port(0), name, clean=False, **WAIT)
    client.answers = False
    client.send(Publish(topic.encode(), b"1", 2, packet_id=5))
    await client.expect(PubRec)
    await two.crash_broker(0)
    client = await Raw.connect(two.port(1), name, clean=False, **WAIT)
    client.answers = False
    client.send(PubRel(5))
    assert await client.expect(PubComp) == PubComp(5)
    client.send(Publish(topic.encode(), b"2", 2, packet_id=5))
    await client.expect(PubRec)
    assert [m.payload for m in await watcher.messages(2)] == [b"1", b"2"]


@pytest.mark.mqtt("MQTT-4.3.3-9")
async def test_a_packet_id_is_free_once_a_repeat_is_refused_and_a_full_store_answers_what_it_has(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[MQTT-4.3.3-9]: what bears the id of a refused publication is another one, though an earlier connection had the
    refused one stored."""
    name, topic = unique(), unique()
    watcher = await Raw.connect(two.port(1))
    await watcher.subscribe(topic, qos=2)
    client = await Raw.connect(two.port(0), name, clean=False, **WAIT)
    client.answers = False
    for packet_id in (5, 6):
        client.send(Publish(topic.encode(), b"%d" % packet_id, 2, packet_id=packet_id))
        await client.expect(PubRec)
    await two.crash_broker(0)
    store = two.cluster.coordinators["coordinator-0"].server.store
    client = await Raw.connect(two.port(1), name, clean=False, **WAIT)
    client.answers = False
    with monkeypatch.context() as patch:
        patch.setattr(store, "room", lambda: False)
        client.send(Publish(topic.encode(), b"5", 2, False, True, 5))
        assert await client.expect(PubRec) == PubRec(5)  # it is stored
        again, new = Publish(topic.encode(), b"6", 2, False, True, 6), Publish(topic.encode(), b"7", 2, packet_id=7)
        client.send(encode_packet(again, V5) + encode_packet(new, V5))  # one entry
        assert [await client.expect(PubRec) for _ in range(2)] == [PubRec(i, QUOTA_EXCEEDED) for i in (6, 7)]
    for packet_id in (6, 7):
        client.send(Publish(topic.encode(), b"other %d" % packet_id, 2, packet_id=packet_id))
        assert await client.expect(PubRec) == PubRec(packet_id)
    assert [m.payload for m in await watcher.messages(4)] == [b"5", b"6", b"other 6", b"other 7"]


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_subscriber_across_a_coordinator_crash(two: Two, qos: int) -> None:
    name, topic = unique(), unique()
    client = await Raw.connect(two.port(0), name, clean=False, **WAIT)
    await client.subscribe(topic, qos=qos)
    publisher = await Raw.connect(two.port(1))
    for number in range(20):
        await publisher.publish(topic, b"%d" % number, qos)
        if number == 10:
            await two.cluster.restart_coordinator()
    got = [m.payload for m in await client.messages(20)]
    assert got == [b"%d" % n for n in range(20)]
    await client.nothing(publisher, topic)


async def test_sessions_survive_the_whole_cluster(tmp_path: Path) -> None:
    name, topic = unique(), unique()
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        client = await Raw.connect(broker.mqtt.port, name, clean=False, **WAIT)
        await client.subscribe(topic, qos=1)
        publisher = await Raw.connect(broker.mqtt.port)
        await publisher.publish(topic, b"retained", 1, retain=True)
        await client.messages(1)
        await client.disconnect()
        await publisher.publish(topic, b"away", 1)
        await close_clients()
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        client = await Raw.connect(broker.mqtt.port, name, clean=False, **WAIT)
        assert client.connack.session_present
        assert [m.payload for m in await client.messages(1)] == [b"away"]
        late = await Raw.connect(broker.mqtt.port)
        await late.subscribe(topic)
        assert [m.payload for m in await late.messages(1)] == [b"retained"]
        await close_clients()


async def test_rounds_know_who_has_something_in_flight_and_forget_who_has_left(two: Two) -> None:
    name, topic = unique(), unique()
    unsettled = two.broker(0).mqtt.sessions._unsettled
    publisher = await Raw.connect(two.port(1))
    client = await Raw.connect(two.port(0), name, clean=False, **WAIT)
    await client.subscribe(topic, qos=1)
    client.answers = False
    await publisher.publish(topic, b"1", 1)
    await client.messages(1)
    assert list(unsettled.in_flight) == [name]
    again = await Raw.connect(two.port(0), name, clean=False, **WAIT)  # the first connection is ended
    again.answers = False
    (message,) = await again.messages(1)
    assert list(unsettled.in_flight) == [name]
    again.send(PubAck(message.packet_id))
    await eventually(lambda: not unsettled.in_flight, "the acknowledgement")
    await publisher.publish(topic, b"2", 1)
    await again.messages(1)
    assert list(unsettled.in_flight) == [name]
    await again.disconnect()
    await eventually(lambda: not two.broker(0).mqtt.sessions.owners, "the end")
    assert [unsettled.in_flight, unsettled.lagging, unsettled.sent_to] == [{}, {}, {}]
