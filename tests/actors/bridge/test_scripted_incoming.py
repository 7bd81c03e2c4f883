"""Bridges, inwards, to a broker that does what a test says: what it sends is stored once and acknowledged once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lexicast.actors.bridge.server import BridgeServer
from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.client.client import Client
from lexicast.actors.client.subscription import Subscription
from lexicast.actors.mqtt.codec.packets import PUBREL, AckRun, ConnAck, Publish
from lexicast.actors.mqtt.codec.properties import MESSAGE_EXPIRY_S, USER_PROPERTY
from lexicast.compression.wire import ALIAS_TOPIC, AliasTable
from lexicast.compression.wire import USER_PROPERTY as DICTIONARIES

from ...support.bridge_harness import Room, bridge, client_of, definition
from ...support.harness import Cluster, eventually
from ...support.mqtt_harness import HOST
from ...support.scripted_broker import Scripted, scripted


@asynccontextmanager
async def coming_in(
    here: tuple[Cluster, BrokerServer], there: Scripted, qos: int = 1
) -> AsyncIterator[tuple[Client, Subscription, BridgeServer]]:
    """A bridge of what comes on `in/#`; a client here, and its subscription to that."""
    cluster, broker = here
    topics = f"[{{ filter = 'in/#', direction = 'in', qos = {qos} }}]"
    async with (
        client_of(cluster, broker) as bus,
        bus.subscribe("in/#") as local,
        bridge(cluster, broker, definition(there.port, topics)) as server,
    ):
        yield bus, local, server


async def test_qos_2_comes_in_once_over_several_connections(here: tuple[Cluster, BrokerServer]) -> None:
    async with scripted() as there:
        there.keeps_session()
        async with coming_in(here, there, qos=2) as (_, local, server):
            await eventually(lambda: server.status()["connected"])
            there.send(Publish(b"in/x", b"once", 2, packet_id=7))
            assert (await anext(local)).payload == b"once"
            there.cut()
            await eventually(lambda: server.status()["connects"] == 2 and server.status()["connected"])
            there.send(Publish(b"in/x", b"once", 2, dup=True, packet_id=7))
            there.send(AckRun(PUBREL, [7]))
            there.send(Publish(b"in/x", b"another", 2, packet_id=7))
            assert (await anext(local)).payload == b"another"
            await eventually(lambda: server.status()["received"] == 2)


async def test_a_filter_that_it_does_not_let_in_is_told(here: tuple[Cluster, BrokerServer]) -> None:
    async with scripted() as there:
        there.suback = 0x87
        async with coming_in(here, there) as (_, _, server):
            await eventually(lambda: server.status()["connected"])
            assert server.status()["last_error"] == "the other broker does not let it subscribe to 'in/#'"
            assert server.status()["filters_refused"] == 1


@pytest.mark.parametrize("lost", ["connack", "suback"])
async def test_a_session_that_was_begun_anew_without_its_subscriptions_gets_them(
    here: tuple[Cluster, BrokerServer], lost: str
) -> None:
    """The other broker had lost the session and begun another one, of which the bridge got no answer. From then on
    nothing came in: it took the session for the one with its subscriptions."""
    cluster, broker = here
    topics, fields = "[{ filter = 'in/#', direction = 'in' }]", "protocol = '3.1.1'"
    async with scripted() as there, bridge(cluster, broker, definition(there.port, topics, fields)) as server:
        await eventually(lambda: server.status()["connected"])
        answers = iter([None] if lost == "connack" else [ConnAck()])
        there.connack = lambda _: next(answers, ConnAck(session_present=True))
        there.subacks = int(lost == "connack")
        there.cut()
        await eventually(lambda: len(there.connects) == 2)
        await eventually(lambda: lost == "connack" or 2 in there.subscribes)
        there.subacks = 1
        await eventually(lambda: len(there.connects) > 2 and server.status()["connected"])
        assert there.subscribes[-1] == len(there.connects)
        before = len(there.connects)
        there.cut()
        await eventually(lambda: len(there.connects) > before and server.status()["connected"])
        assert there.subscribes[-1] < len(there.connects)


async def test_a_suback_with_more_codes_than_filters_ends_the_connection_alone(
    here: tuple[Cluster, BrokerServer],
) -> None:
    async with scripted() as there:
        there.subacks = 2
        async with coming_in(here, there) as (_, _, server):
            await eventually(lambda: server.status()["errors"] > 1)
            assert server.status()["last_error"] == "it answers 1 filters with 2 codes"
            there.subacks = 1
            await eventually(lambda: server.status()["connected"])


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_comes_in_one_read_with_the_connack_is_of_that_connection(
    here: tuple[Cluster, BrokerServer], qos: int
) -> None:
    async with scripted() as there:
        there.connack = lambda _: ConnAck(session_present=True)
        there.behind = [Publish(b"in/x", b"kept", qos, packet_id=7), AckRun(PUBREL, [8])]
        async with coming_in(here, there, qos) as (bus, local, server):
            message = await anext(local)
            assert message.properties is not None
            assert message.properties.user == (("lexicast-via", f"{HOST}:{there.port}"),)
            await eventually(lambda: there.acknowledged == [7])
            assert there.completed == [8]
            # Its acknowledgement is lost: what has been stored is acknowledged again, not stored again.
            there.behind = [Publish(b"in/x", b"kept", qos, dup=True, packet_id=7)]
            if qos == 2:
                there.cut()
                await eventually(lambda: there.acknowledged == [7, 7])
            await bus.publish("in/x", b"end")
            assert (await anext(local)).payload == b"end"
            assert server.status()["received"] == 1


async def test_what_is_stored_while_the_connection_is_lost_is_acknowledged_when_it_comes_again(
    here: tuple[Cluster, BrokerServer],
) -> None:
    """Once, over the new connection: a second acknowledgement would be taken for that of the id's next one."""
    async with scripted() as there:
        there.keeps_session()
        async with coming_in(here, there) as (_, local, server):
            await eventually(lambda: server.status()["connected"])
            room = Room(here[0])
            room.is_full = True
            there.send(Publish(b"in/x", b"once", 1, packet_id=7))
            await eventually(lambda: server.status()["waiting_in"] == 1)
            there.cut()
            await eventually(lambda: server.status()["connects"] == 2 and server.status()["connected"])
            room.is_full = False
            assert (await anext(local)).payload == b"once"
            await eventually(lambda: server.status()["waiting_in"] == 0)
            there.send(Publish(b"in/x", b"once", 1, dup=True, packet_id=7))
            await eventually(lambda: bool(there.acknowledged))
            there.send(Publish(b"in/x", b"another", 1, packet_id=7))
            assert (await anext(local)).payload == b"another"
            await eventually(lambda: there.acknowledged == [7, 7])


async def test_what_waits_for_a_dictionary_over_a_cut_is_acknowledged_once(
    here: tuple[Cluster, BrokerServer],
) -> None:
    async with scripted() as there:
        asked = {USER_PROPERTY: [DICTIONARIES]}
        there.connack = lambda _: ConnAck(session_present=len(there.connects) > 1, properties=asked)
        aliases = AliasTable()
        alias = aliases.alias_for(123_456)
        binding = Publish(ALIAS_TOPIC, aliases.binding(alias).pack())
        async with coming_in(here, there) as (_, _, server):
            server._session._fetch_s = 0.3
            await eventually(lambda: server.status()["connected"])
            there.send(binding, Publish(b"in/x", bytes((alias,)) + b"unreadable", 1, packet_id=7))
            await eventually(lambda: server._session.waiting == 1)
            there.cut()
            await eventually(lambda: server.status()["connects"] == 2 and server.status()["connected"])
            there.send(binding, Publish(b"in/x", bytes((alias,)) + b"unreadable", 1, dup=True, packet_id=7))
            await eventually(lambda: server.status()["damaged"] == 2)
            there.send(Publish(b"in/x", b"\0plain", 1, packet_id=8))
            await eventually(lambda: 8 in there.acknowledged)
            assert there.acknowledged == [7, 8]


@pytest.mark.parametrize("expiry_s", [0xFFFF_FFFF, 60, 0])
async def test_every_expiry_of_mqtt_is_taken(here: tuple[Cluster, BrokerServer], expiry_s: int) -> None:
    async with scripted() as there, coming_in(here, there) as (_, local, server):
        await eventually(lambda: server.status()["connected"])
        there.send(Publish(b"in/x", b"1", 1, packet_id=1, properties={MESSAGE_EXPIRY_S: expiry_s}))
        assert (await anext(local)).payload == b"1"
        await eventually(lambda: there.acknowledged == [1])
        assert (server.status()["received"], server.status()["refused_in"]) == (1, 0)
