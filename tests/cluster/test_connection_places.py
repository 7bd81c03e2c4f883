"""How many connections a broker has, in all and of one address."""

from __future__ import annotations

import asyncio

import pytest

from lexicast.actors.mqtt.codec.packets import V5, ConnAck, Connect
from lexicast.cluster.config.tables import MqttConfig
from lexicast.cluster.security.connection_places import ConnectionPlaces

from ..support.harness import eventually
from ..support.mqtt_harness import HOST, Closed, Raw, close_clients, served, unique


def places(most: int, each: int = 0) -> ConnectionPlaces:
    return ConnectionPlaces(MqttConfig(connections_max=most, connections_per_address_max=each))


def taken(of: ConnectionPlaces, address: str, count: int) -> list[str]:
    """What so many more of an address are told."""
    return [of.take(object(), address) for _ in range(count)]


@pytest.mark.parametrize("address", ["192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1", ""])
def test_one_address_has_half_of_all(address: str) -> None:
    of = places(10)
    assert taken(of, address, 6) == [""] * 5 + ["connections_per_address_max"]
    assert taken(of, "192.0.2.8", 5) == [""] * 5
    assert taken(of, "192.0.2.9", 1) == ["connections_max"]


def test_a_network_of_ipv6_is_one_address() -> None:
    of = places(4)
    assert [of.take(object(), f"2001:db8::{number}") for number in range(3)] == ["", "", "connections_per_address_max"]
    assert of.take(object(), "2001:db8:0:1::1") == ""


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.7", "::1"])
def test_the_machine_itself_has_as_many_as_there_are_unless_it_is_said(address: str) -> None:
    assert taken(places(4), address, 5) == [""] * 4 + ["connections_max"]
    assert taken(places(4, 1), address, 2) == ["", "connections_per_address_max"]


def test_what_is_given_back_is_free_whoever_serves_it() -> None:
    of, link = places(2), object()
    assert of.take("a connection", "192.0.2.7") == ""
    of.hand_over("a connection", link)
    of.give_back("a connection")
    assert (len(of), of.left) == (1, 1)
    assert taken(of, "192.0.2.7", 1) == ["connections_per_address_max"]
    of.give_back(link)
    of.give_back(link)
    assert (len(of), of.left) == (0, 2)
    assert taken(of, "192.0.2.7", 1) == [""]
    assert len(of._of_address) == 1


def test_who_is_not_known_yet_counts_in_all_and_then_as_who_it_is() -> None:
    of = places(4, 1)
    assert [of.take(number, None) for number in range(5)] == [""] * 4 + ["connections_max"]
    assert [of.name(number, "192.0.2.7") for number in (0, 1)] == ["", "connections_per_address_max"]
    assert of.name(2, "192.0.2.8") == ""
    assert len(of) == 3
    for number in range(4):
        of.give_back(number)
    assert (len(of), dict(of._of_address)) == (0, {})


async def test_an_address_that_has_its_share_is_closed_and_others_are_not() -> None:
    with served(mqtt__connections_max=10, mqtt__connections_per_address_max=2) as running:
        first = await Raw.connect(running.port, unique())
        await Raw.connect(running.port, unique())
        with pytest.raises((Closed, ConnectionError)):
            await Raw.connect(running.port, unique())
        assert running.broker().mqtt.status()["refused"] == {"connections_per_address_max": 1}
        other = Raw(*await asyncio.open_connection(HOST, running.port, local_addr=("127.0.0.2", 0)), V5)
        other.send(Connect(V5, unique()))
        assert (await other.expect(ConnAck)).reason_code == 0
        first.abort()
        await eventually(lambda: len(running.broker().mqtt.connections) == 2)
        await Raw.connect(running.port, unique())
    await close_clients()
