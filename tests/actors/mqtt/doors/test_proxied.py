"""Clients behind a proxy: whose connections they are, at every door."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from lexicast.actors.mqtt.codec import encode_packet
from lexicast.actors.mqtt.codec.packets import NOT_AUTHORIZED, SUCCESS, V5, ConnAck, Connect
from lexicast.actors.tls.development_certificates import DevelopmentAuthority
from lexicast.actors.tls.failures import NO_HEADER, TIMED_OUT
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import ConfigError
from lexicast.cluster.security.networks import Networks

from ....support.certificates import authority, client_context, served_by_tls, tls_port
from ....support.harness import eventually
from ....support.mqtt_harness import HOST, WAIT_S, Closed, Raw, Served, close_clients, unique

SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
LINE = b"PROXY TCP4 203.0.113.7 192.0.2.1 40000 1883\r\n"
BINARY = SIGNATURE + b"\x21\x11\x00\x0c" + bytes((203, 0, 113, 7, 192, 0, 2, 1)) + b"\x9c\x40\x07\x5b"
OWN = SIGNATURE + b"\x20\x00\x00\x00"  # the proxy asks how things are
HEADERS = pytest.mark.parametrize("header", [LINE, BINARY], ids=["1", "2"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> DevelopmentAuthority:
    return authority(tmp_path_factory.mktemp("tls"), "sensor-17")


@pytest.fixture(scope="module")
def cluster(made: DevelopmentAuthority) -> Iterator[Served]:
    with served_by_tls(made, mqtt__proxies=("127.0.0.1",), mqtt__allow_anonymous="always") as running:
        yield running


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    await close_clients()


async def connected(port: int, header: bytes, client_id: str, local: str = HOST, by_byte: bool = False) -> Raw:
    """A client whose connection begins so. Raises Closed."""
    client = Raw(*await asyncio.open_connection(HOST, port, local_addr=(local, 0)), V5)
    for piece in [header[at : at + 1] for at in range(len(header))] if by_byte else [header]:
        client.send(piece)
        if by_byte:
            await asyncio.sleep(0.001)
    client.send(Connect(V5, client_id))
    client.connack = await client.expect(ConnAck)
    return client


def address_of(cluster: Served, client_id: str) -> str:
    """Of a client, as the list of clients has it."""
    found = {each["id"]: each["address"] for each in cluster.broker().list_clients(100)}
    address: str = found[client_id]
    return address


@HEADERS
@pytest.mark.parametrize("by_byte", [False, True])
async def test_a_connection_is_the_clients(cluster: Served, header: bytes, by_byte: bool) -> None:
    name = unique()
    client = await connected(cluster.port, header, name, by_byte=by_byte)
    assert address_of(cluster, name) == "203.0.113.7:40000"
    await client.subscribe(name)
    assert await client.publish(name, b"x" * 100_000, 1) == SUCCESS
    assert [len(each.payload) for each in await client.messages(1)] == [100_000]


async def test_the_proxys_own_connection_is_its_own(cluster: Served) -> None:
    name = unique()
    client = await connected(cluster.port, OWN, name)
    assert address_of(cluster, name) == f"{HOST}:{client.local_port}"


async def test_who_is_no_proxy_says_nothing_of_whose_he_is(cluster: Served) -> None:
    name = unique()
    await connected(cluster.port, b"", name, local="127.0.0.2")
    assert address_of(cluster, name).startswith("127.0.0.2:")
    with pytest.raises(Closed):
        await connected(cluster.port, LINE, unique(), local="127.0.0.2")


async def test_a_proxy_that_says_nothing_is_not_served(cluster: Served) -> None:
    with pytest.raises(Closed):
        await connected(cluster.port, b"", unique())


@HEADERS
async def test_the_header_comes_before_the_handshake(
    cluster: Served, made: DevelopmentAuthority, header: bytes
) -> None:
    name = unique()
    client = await shaken(cluster, made, header)
    client.send(Connect(V5, name))
    assert (await client.expect(ConnAck)).reason_code == SUCCESS
    assert address_of(cluster, name) == "203.0.113.7:40000"
    await client.subscribe(name)
    assert await client.publish(name, b"x", 1) == SUCCESS
    assert len(await client.messages(1)) == 1


async def test_a_handshake_without_a_header_fails(cluster: Served, made: DevelopmentAuthority) -> None:
    with pytest.raises((OSError, Closed)):
        (await shaken(cluster, made, b"")).send(encode_packet(Connect(V5, unique()), V5))


async def test_a_header_that_ends_in_between_ends_the_connection(cluster: Served) -> None:
    """It is not waited for until the handshake would be over: the proxy says no more."""
    failed = cluster.broker().mqtt.status()["tls"]["failed"]
    reader, writer = await asyncio.open_connection(HOST, tls_port(cluster), local_addr=(HOST, 0))
    writer.write(LINE[:20])
    writer.write_eof()
    async with asyncio.timeout(WAIT_S):
        assert await reader.read() == b""
    writer.close()

    def count(why: str) -> int:
        told: dict[str, int] = cluster.broker().mqtt.status()["tls"]["failed"]
        return told.get(why, 0)

    await eventually(lambda: count(NO_HEADER) > failed.get(NO_HEADER, 0))
    assert count(TIMED_OUT) == failed.get(TIMED_OUT, 0)


@pytest.mark.parametrize("encrypted", [False, True])
async def test_limits_of_one_address_are_the_clients(made: DevelopmentAuthority, encrypted: bool) -> None:
    """Not the proxy's, with whom all would share them."""
    knobs: dict[str, Any] = {"mqtt__proxies": ("127.0.0.1",), "mqtt__connections_per_address_max": 2}
    with served_by_tls(made, mqtt__allow_anonymous="always", **knobs) as running:

        async def come(address: bytes) -> Raw:
            header = LINE.replace(b"203.0.113.7", address)
            if not encrypted:
                return await connected(running.port, header, unique())
            client = await shaken(running, made, header)
            client.send(Connect(V5, unique()))
            client.connack = await client.expect(ConnAck)
            return client

        first, _, _, _ = [await come(address) for address in (b"192.0.2.1", b"192.0.2.1", b"192.0.2.2", b"192.0.2.3")]
        with pytest.raises((Closed, OSError)):
            await come(b"192.0.2.1")
        status = running.broker().mqtt.status()
        assert (status["refused"], status["connections"]) == ({"connections_per_address_max": 1}, 4)
        first.abort()
        await eventually(lambda: running.broker().mqtt.status()["connections"] == 3)
        await come(b"192.0.2.1")
        await close_clients()


async def shaken(cluster: Served, made: DevelopmentAuthority, header: bytes) -> Raw:
    """A client by TLS whose connection begins so."""
    reader, writer = await asyncio.open_connection(HOST, tls_port(cluster), local_addr=(HOST, 0))
    writer.write(header)
    context: ssl.SSLContext = client_context(made)
    await writer.start_tls(context, server_hostname=HOST)
    return Raw(reader, writer, V5)


async def test_loopback_is_who_comes_from_there_not_who_is_passed_on_from_there(made: DevelopmentAuthority) -> None:
    with served_by_tls(made, mqtt__proxies=("127.0.0.0/8", "::1"), mqtt__allow_anonymous="loopback") as running:
        client = await connected(running.port, LINE, unique())
        assert client.connack.reason_code == NOT_AUTHORIZED
        near = await connected(running.port, LINE.replace(b"203.0.113.7", b"127.0.0.9"), unique())
        assert near.connack.reason_code == SUCCESS


def test_networks() -> None:
    known = Networks(["10.0.0.7", "192.168.0.0/16", "fd00::/8"])
    for address in ("10.0.0.7", "192.168.3.4", "::ffff:10.0.0.7", "fd12::1"):
        assert address in known
    for address in ("10.0.0.8", "::1", "fe80::1%lo"):
        assert address not in known
    assert not Networks([])


def test_what_is_no_network_is_told() -> None:
    with pytest.raises(ConfigError, match=r"mqtt.proxies.*10\.0\.0\.0/8"):
        Config().replaced(mqtt__proxies=("haproxy",))
