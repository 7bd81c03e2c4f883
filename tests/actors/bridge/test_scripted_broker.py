"""Bridges to a broker that does what a test says: whether it lets them in, how many it takes, what it refuses."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from lexicast.actors.bridge.bridge_bit import LOYAL_MAX
from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.mqtt.codec.packets import UNSUPPORTED_VERSION, ConnAck, Connect, PubAck, Publish, PubRec
from lexicast.actors.mqtt.codec.properties import MAXIMUM_PACKET_BYTES, MESSAGE_EXPIRY_S, RECEIVE_MAXIMUM, USER_PROPERTY

from ...support.bridge_harness import bridge, client_of, definition
from ...support.harness import Cluster, eventually
from ...support.mqtt_harness import HOST, Message
from ...support.scripted_broker import scripted

OUT = "[{ filter = 'out/#' }]"


async def test_no_more_is_under_way_than_the_other_broker_takes(here: tuple[Cluster, BrokerServer]) -> None:
    cluster, broker = here
    async with scripted() as there:
        there.connack = lambda _: ConnAck(properties={RECEIVE_MAXIMUM: 1})
        there.on_publish = lambda _: None  # answered below, one by one
        async with bridge(cluster, broker, definition(there.port, OUT)), client_of(cluster, broker) as bus:
            await eventually(lambda: len(broker.engine.shares) == 1)
            await bus.publish_many([("out/x", b"%d" % n) for n in range(5)])
            answered: list[int] = []
            for n in range(5):
                await eventually(lambda: len(there.published) > len(answered))
                await asyncio.sleep(0.02)
                assert len(there.published) == n + 1, "a second one is under way"
                if n == 2:  # sent again on the next connection, and nothing before it is answered
                    there.cut()
                    await eventually(lambda: len(there.published) == 4)
                    assert there.published.pop().payload == b"2"
                answered.append(there.published[n].packet_id)
                there.send(PubAck(answered[-1]))
            assert [each.payload for each in there.published] == [b"%d" % n for n in range(5)]


async def test_what_there_is_no_room_for_is_sent_again_in_order(here: tuple[Cluster, BrokerServer]) -> None:
    cluster, broker = here
    async with scripted() as there:
        taken: list[bytes] = []
        is_full = True

        def answer(message: Message) -> PubAck:
            if is_full:
                return PubAck(message.packet_id, 0x97)
            taken.append(message.payload)
            return PubAck(message.packet_id)

        there.on_publish = answer
        async with bridge(cluster, broker, definition(there.port, OUT)) as server, client_of(cluster, broker) as bus:
            await eventually(lambda: len(broker.engine.shares) == 1)
            await bus.publish_many([("out/x", b"%d" % n) for n in range(100)])
            await eventually(lambda: server.status()["retried_out"] > 100)
            await eventually(lambda: server.status()["refused_waiting"] == 100)
            is_full = False
            await eventually(lambda: len(taken) == 100)
            assert taken == [b"%d" % n for n in range(100)]
            await eventually(lambda: server.status()["unacknowledged"] == 0)
            assert (server.status()["sent"], server.status()["refused_out"]) == (100, 0)
            assert "0x97" in server.status()["last_error"]
            assert server.status()["refused_waiting"] == 0


async def test_what_it_will_never_take_is_told_and_passed_over(here: tuple[Cluster, BrokerServer]) -> None:
    cluster, broker = here
    async with scripted() as there:
        there.connack = lambda _: ConnAck(properties={MAXIMUM_PACKET_BYTES: 200})
        there.on_publish = lambda m: PubAck(m.packet_id, 0x87 if m.topic == "out/secret" else 0)
        async with bridge(cluster, broker, definition(there.port, OUT)) as server, client_of(cluster, broker) as bus:
            await eventually(lambda: len(broker.engine.shares) == 1)
            await bus.publish("out/secret", b"1")
            await bus.publish("out/long", b"2" * 300)
            await bus.publish("out/x", b"3")
            await eventually(lambda: server.status()["sent"] == 1)
            assert server.status()["refused_out"] == 2
            assert [each.topic for each in there.published] == ["out/secret", "out/x"]
            await eventually(lambda: server.status()["unacknowledged"] == 0)


@pytest.mark.cve("CVE-2024-3935")
async def test_what_has_no_name_on_the_other_side_is_told_and_passed_over(here: tuple[Cluster, BrokerServer]) -> None:
    """Else it would end the connection each time that it is sent, or be told as if it were the cluster's own."""
    cluster, broker = here
    topics = "[{ filter = '#', local = 'plant/' }, { filter = '#', direction = 'in', remote = 'site/' }]"
    async with (
        scripted() as there,
        client_of(cluster, broker) as bus,
        bus.subscribe("#", since="beginning") as local,
        bridge(cluster, broker, definition(there.port, topics)) as server,
    ):
        await eventually(lambda: len(broker.engine.shares) == 1 and server.status()["connected"])
        for topic in ("plant", "plant/$SYS/x", "plant/a"):
            await bus.publish(topic, b"out")
        await eventually(lambda: server.status()["sent"] == 1 and server.status()["unacknowledged"] == 0)
        for packet_id, name in enumerate((b"site", b"site/$sdc/a", b"site/x"), 1):
            there.send(Publish(name, b"in", 1, packet_id=packet_id))
        await eventually(lambda: there.acknowledged == [1, 2, 3])
        assert [each.topic for each in there.published] == ["a"]
        status = server.status()
        assert (status["refused_out"], status["refused_in"], status["connects"]) == (2, 2, 1)
        assert "has no name here" in status["last_error"]
        seen = sorted([(await anext(local)).topic for _ in range(4)])
        assert seen == ["plant", "plant/$SYS/x", "plant/a", "x"]


async def test_the_bridge_bit_is_left_out_where_it_is_refused(here: tuple[Cluster, BrokerServer]) -> None:
    cluster, broker = here
    fields, topics = "protocol = '3.1.1'", "[{ filter = '#', direction = 'both' }]"
    for refusal in (None, ConnAck(False, UNSUPPORTED_VERSION)):
        async with scripted() as there:
            there.connack = partial(_refusing_bridges, refusal)
            async with (
                bridge(cluster, broker, definition(there.port, topics, fields, f"b{refusal is None}")) as server,
                client_of(cluster, broker) as bus,
            ):
                await eventually(lambda: server.status()["connected"])
                assert [each.bridge for each in there.connects] == [True, False]
                await bus.publish("a", b"mine", qos=1)
                await eventually(lambda: bool(there.published))
                # It comes back, as it does where nobody knows of bridges, and something else with it.
                async with bus.subscribe("#") as local:
                    there.send(Publish(b"a", b"mine", 1, packet_id=1))
                    there.send(Publish(b"a", b"theirs", 1, packet_id=2))
                    assert (await anext(local)).payload == b"theirs"
                await eventually(lambda: there.acknowledged == [1, 2])
                assert server.status()["looped_in"] == 1


async def test_a_broker_that_knew_bridges_is_told_of_one_again_whatever_has_closed_the_connection(
    here: tuple[Cluster, BrokerServer],
) -> None:
    """Else nothing would come back, what others publish alike would be taken for what has, and be lost."""
    cluster, broker = here
    fields, topics = "protocol = '3.1.1'", "[{ filter = '#', direction = 'both' }]"
    async with scripted() as there:
        there.connack = lambda _: None if len(there.connects) in (2, 3) else ConnAck(len(there.connects) > 1)
        async with bridge(cluster, broker, definition(there.port, topics, fields)) as server:
            await eventually(lambda: server.status()["connected"])
            there.cut()
            await eventually(lambda: server.status()["connects"] == 2 and server.status()["connected"])
            assert [each.bridge for each in there.connects] == [True] * 4


async def test_a_broker_that_knows_bridges_no_more_is_reached_without_the_bit(
    here: tuple[Cluster, BrokerServer],
) -> None:
    """It was asked with the bit for ever."""
    cluster, broker = here
    fields, topics = "protocol = '3.1.1'", "[{ filter = '#', direction = 'both' }]"
    async with scripted() as there, bridge(cluster, broker, definition(there.port, topics, fields)) as server:
        await eventually(lambda: server.status()["connected"])
        there.connack = partial(_refusing_bridges, None)
        there.cut()
        await eventually(lambda: server.status()["connects"] == 2 and server.status()["connected"])
        assert [each.bridge for each in there.connects] == [True] * (1 + LOYAL_MAX) + [False]
        there.connack = lambda _: ConnAck(session_present=True)
        there.cut()
        await eventually(lambda: server.status()["connects"] == 3 and server.status()["connected"])
        assert there.connects[-1].bridge


async def test_a_bridge_that_begins_anew_releases_what_it_may_have_had_under_way(
    here: tuple[Cluster, BrokerServer],
) -> None:
    """Else an id of QoS 2 that the other broker still holds would be taken for a repeat, and the publication lost."""
    cluster, broker = here
    async with scripted() as there:
        there.connack = lambda _: ConnAck(session_present=True)
        there.on_publish = lambda m: PubRec(m.packet_id)
        topics = "[{ filter = 'out/#', qos = 2 }]"
        found = definition(there.port, topics, "inflight_max = 10")
        async with bridge(cluster, broker, found) as server, client_of(cluster, broker) as bus:
            await eventually(lambda: there.released == list(range(1, 11)))
            await eventually(lambda: len(broker.engine.shares) == 1)
            await bus.publish("out/x", b"once", qos=2)
            await eventually(lambda: server.status()["sent"] == 1)
            assert [(each.qos, each.packet_id) for each in there.published] == [(2, 1)]


async def test_why_it_does_not_connect_is_told(here: tuple[Cluster, BrokerServer]) -> None:
    cluster, broker = here
    async with scripted() as there:
        there.connack = lambda _: ConnAck(False, 0x86)
        async with bridge(cluster, broker, definition(there.port, OUT)) as server:
            await eventually(lambda: server.status()["errors"] > 1)
            status = server.status()
            assert not status["connected"]
            assert status["last_error"] == "it refuses the connection, 0x86: user or password are wrong"
        port = there.port
    async with bridge(cluster, broker, definition(port, OUT)) as server:
        await eventually(lambda: server.status()["errors"] > 0)
        assert f"{HOST}:{port} cannot be reached" in server.status()["last_error"]


async def test_what_is_left_until_it_expires_goes_along_and_what_has_expired_does_not_go(
    here: tuple[Cluster, BrokerServer],
) -> None:
    cluster, broker = here
    async with scripted() as there:
        there.connack = lambda _: None  # not yet
        async with bridge(cluster, broker, definition(there.port, OUT)) as server, client_of(cluster, broker) as bus:
            await eventually(lambda: len(broker.engine.shares) == 1)
            await bus.publish("out/x", b"too late", expiry_s=0.5)
            await bus.publish("out/x", b"in time", expiry_s=3_600, properties={"unit": "K"})
            await bus.publish("out/x", b"for ever")
            await eventually(lambda: server.status()["unacknowledged"] > 0)
            await asyncio.sleep(0.6)
            there.connack = lambda _: ConnAck()
            await eventually(lambda: server.status()["sent"] == 2)
            assert [each.payload for each in there.published] == [b"in time", b"for ever"]
            assert 3_500 < there.published[0].properties[MESSAGE_EXPIRY_S] <= 3_600
            assert MESSAGE_EXPIRY_S not in there.published[1].properties
            assert ("unit", "K") in [tuple(pair) for pair in there.published[0].properties[USER_PROPERTY]]
            await eventually(lambda: server.status()["unacknowledged"] == 0)


async def test_what_is_sent_again_is_not_counted_twice_as_coming_back(here: tuple[Cluster, BrokerServer]) -> None:
    """Else the next of somebody else's with the same topic and payload would be taken for it, and lost."""
    cluster, broker = here
    async with scripted() as there:
        there.keeps_session()
        there.on_publish = lambda m: PubAck(m.packet_id) if m.dup else None
        topics = "[{ filter = '#', direction = 'both' }]"
        fields = "protocol = '3.1.1'\ntells_bridge = false"
        async with (
            bridge(cluster, broker, definition(there.port, topics, fields)) as server,
            client_of(cluster, broker) as bus,
        ):
            await eventually(lambda: len(broker.engine.shares) == 1 and server.status()["connected"])
            await bus.publish("a", b"on")
            await eventually(lambda: len(there.published) == 1)
            there.cut()
            await eventually(lambda: server.status()["sent"] == 1)
            async with bus.subscribe("#") as local:
                there.send(Publish(b"a", b"on", 1, packet_id=1))
                there.send(Publish(b"a", b"on", 1, packet_id=2))
                assert (await anext(local)).payload == b"on"
            assert server.status()["looped_in"] == 1


def _refusing_bridges(refusal: ConnAck | None, connect: Connect) -> ConnAck | None:
    return refusal if connect.bridge else ConnAck()
