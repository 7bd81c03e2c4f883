"""MQTT over TLS with brokers that serve: other people's clients, certificates of clients, handshakes that go wrong."""

from __future__ import annotations

import asyncio
import gc
import queue
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

import lexicast.mqtt as ours
from lexicast.actors.mqtt.codec.packets import (
    SESSION_TAKEN_OVER,
    USE_ANOTHER_SERVER,
    V5,
    ConnAck,
    Connect,
    Disconnect,
    Publish,
)
from lexicast.actors.mqtt.codec.properties import SERVER_REFERENCE
from lexicast.actors.mqtt.connection import MqttConnection
from lexicast.actors.tls import handshake_line
from lexicast.actors.tls.development_certificates import DevelopmentAuthority

from ...support.certificates import authority, client_context, served_by_tls, tls_port
from ...support.harness import eventually
from ...support.mqtt_harness import (
    HOST,
    WAIT_S,
    Closed,
    Message,
    Raw,
    Served,
    check_slow_subscriber,
    close_clients,
    unique,
)

KIB = 1 << 10
mosquitto = pytest.mark.skipif(
    not shutil.which("mosquitto_sub"), reason="mosquitto_pub and mosquitto_sub are not installed (mosquitto-clients)"
)
NEWEST = pytest.mark.parametrize("newest", [True, False], ids=["1.3", "1.2"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> DevelopmentAuthority:
    found = authority(tmp_path_factory.mktemp("tls"), "sensor-17")
    found.issue_client("expired", days=-1)
    lost = found.issue_client("lost")
    found.revoke([lost])
    return found


@pytest.fixture(scope="module")
def cluster(made: DevelopmentAuthority) -> Iterator[Served]:
    """It shows its own certificate and asks for none."""
    with served_by_tls(made) as running:
        yield running


@pytest.fixture(scope="module")
def asking(made: DevelopmentAuthority) -> Iterator[Served]:
    """It wants clients' certificates, which name users."""
    crl = str(made.path("ca", "crl"))
    with served_by_tls(made, "required", tls__user_from="cn", tls__crl=crl) as running:
        yield running


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    await close_clients()


async def connect(
    port: int, context: ssl.SSLContext | None, client_id: str | None = None, local: str = "", **more: Any
) -> Raw:
    """A client that is connected. Raises what goes wrong in the handshake, or Closed."""
    bound = (local, 0) if local else None
    client = Raw(*await asyncio.open_connection(HOST, port, ssl=context, local_addr=bound), V5)
    client.send(Connect(V5, unique() if client_id is None else client_id, **more))
    client.connack = await client.expect(ConnAck)
    return client


async def refusal(port: int, context: ssl.SSLContext) -> str:
    """Why no connection comes about. (With TLS 1.3 the client believes in it before its certificate is looked at.)"""
    with pytest.raises((OSError, Closed)) as raised:
        await connect(port, context)
    return repr(raised.value)


def failed(running: Served) -> dict[str, int]:
    """The handshakes that have failed, by reason."""
    counts: dict[str, int] = running.broker().mqtt.status()["tls"]["failed"]
    return counts


# -- clients of others


@mosquitto
@pytest.mark.parametrize("version", ["311", "5"])
def test_mosquittos_tools(cluster: Served, made: DevelopmentAuthority, version: str) -> None:
    topic = unique("mosquitto/")
    own = ["-h", HOST, "-p", str(tls_port(cluster)), "--cafile", str(made.path("ca", "crt")), "-V", version]
    subscriber = subprocess.Popen(
        ["stdbuf", "-oL", "mosquitto_sub", *own, "-t", topic, "-C", "3", "-q", "2", "-d"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert subscriber.stdout is not None
    seen = []
    for line in subscriber.stdout:
        seen.append(line)
        if "Subscribed" in line:
            break
    for qos in ("0", "1", "2"):
        subprocess.run(["mosquitto_pub", *own, "-t", topic, "-m", f"by {qos}", "-q", qos], check=True, timeout=WAIT_S)
    rest, _ = subscriber.communicate(timeout=WAIT_S)
    assert [line for line in rest.splitlines() if line.startswith("by ")] == ["by 0", "by 1", "by 2"]
    assert subscriber.returncode == 0


@mosquitto
def test_a_client_that_does_not_trust_us_is_counted(cluster: Served, tmp_path: Path) -> None:
    other = authority(tmp_path)
    own = ["-h", HOST, "-p", str(tls_port(cluster)), "--cafile", str(other.path("ca", "crt"))]
    done = subprocess.run(["mosquitto_pub", *own, "-t", "t", "-m", "x"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    until = time.monotonic() + WAIT_S
    while "client distrusts our certificate" not in failed(cluster):
        assert time.monotonic() < until
        time.sleep(0.01)


@NEWEST
@pytest.mark.parametrize("kind", [paho.Client, ours.Client])
def test_paho_and_ours(cluster: Served, made: DevelopmentAuthority, kind: Any, newest: bool) -> None:
    """As their users expect it, `tls_set` and `tls_set_context`; ours speaks dictionaries over it too."""
    got: queue.Queue[bytes] = queue.Queue()
    topic = unique("paho/")
    client = kind(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    if newest:
        client.tls_set(str(made.path("ca", "crt")))
    else:
        client.tls_set_context(client_context(made, newest=False))
    client.on_message = lambda _client, _data, message: got.put(message.payload)
    subscribed: queue.Queue[Any] = queue.Queue()
    client.on_subscribe = lambda *_: subscribed.put(1)
    client.connect(HOST, tls_port(cluster))
    client.loop_start()
    try:
        client.subscribe(topic, qos=1)
        subscribed.get(timeout=WAIT_S)
        payloads = [b"%d " % number * 100 for number in range(200)]
        for payload in payloads:
            client.publish(topic, payload, qos=1)
        assert [got.get(timeout=WAIT_S) for _ in payloads] == payloads
        version = "TLSv1.3" if newest else "TLSv1.2"
        assert client.socket().version() == version
        assert not isinstance(client, ours.Client) or client.sdc_aware
    finally:
        client.disconnect()
        client.loop_stop()


@NEWEST
async def test_both_ways_and_large(cluster: Served, made: DevelopmentAuthority, newest: bool) -> None:
    """One side by TLS, the other without; packets of many records, one of them as large as allowed."""
    topic, context = unique("large/"), client_context(made, newest=newest)
    secret, plain = await connect(tls_port(cluster), context), await Raw.connect(cluster.port)
    for client in (secret, plain):
        await client.subscribe(topic, qos=1)
    sizes = [1, 16_383, 16_384, 16_385, 500 * KIB, (1 << 20) - 100]
    for size in sizes:
        publisher = secret if size % 2 else plain
        assert await publisher.publish(topic, bytes([size % 251]) * size, qos=1) in (0, 16)
    for client in (secret, plain):
        assert [len(message.payload) for message in await client.messages(len(sizes))] == sizes


async def test_the_options_of_plain_sockets_hold(cluster: Served, made: DevelopmentAuthority) -> None:
    """And what is not read is held by the kernel, not by us: 32 KiB, where uvloop would take 512."""
    await connect(tls_port(cluster), client_context(made), "options")
    await Raw.connect(cluster.port, "plain")

    async def look() -> list[tuple[int, int]]:
        found = []
        for name in ("options", "plain"):
            (own,) = [each for each in cluster.broker().mqtt.connections if each.client_id == name]
            raw = own.transport.get_extra_info("socket")
            found.append(
                (raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), own.transport.get_write_buffer_limits()[1])
            )
            if name == "options":
                assert own.transport.get_read_buffer_limits()[1] == 32 * KIB  # type: ignore[attr-defined] # uvloop's
        return found

    encrypted, plain = cluster.run(look())
    assert encrypted == plain
    assert plain[0] == 1


async def test_the_last_words_arrive(cluster: Served, made: DevelopmentAuthority) -> None:
    context, name = client_context(made), unique()
    first = await connect(tls_port(cluster), context, name)
    second = await connect(tls_port(cluster), context, name)
    assert [p.reason_code for p in await first.closed() if isinstance(p, Disconnect)] == [SESSION_TAKEN_OVER]
    second.send(b"\xf0\0" + bytes(200_000))  # a malformed packet, and more than is ever read
    assert [type(packet) for packet in await second.closed()] == [Disconnect]


async def test_a_client_that_takes_nothing_is_not_read_and_costs_no_memory(
    cluster: Served, made: DevelopmentAuthority
) -> None:
    """Its deliveries wait in the log, as without TLS."""
    await check_slow_subscriber(cluster, await connect(tls_port(cluster), client_context(made), "slow"), 600)


# -- clients' certificates


@NEWEST
async def test_the_certificate_names_the_user(asking: Served, made: DevelopmentAuthority, newest: bool) -> None:
    """Whatever CONNECT says: Mosquitto's use_identity_as_username."""
    context, name = client_context(made, "sensor-17", newest), unique()
    client = await connect(tls_port(asking), context, name, user_name="root", password=b"x")
    assert client.connack.reason_code == 0
    assert await client.publish("t", b"x", qos=1) in (0, 16)
    (own,) = [each for each in asking.broker().mqtt.connections if each.client_id == name]
    assert own.served is not None
    assert own.served.session.user == "sensor-17"


@NEWEST
@pytest.mark.parametrize(
    ("shown", "counted"),
    [
        ("", "no client certificate"),
        ("expired", "expired client certificate"),
        ("lost", "revoked client certificate"),
        ("stranger", "bad client certificate"),
    ],
)
async def test_who_shows_no_good_certificate_is_refused_in_the_handshake(
    asking: Served, made: DevelopmentAuthority, tmp_path: Path, shown: str, counted: str, newest: bool
) -> None:
    context = client_context(made, "" if shown == "stranger" else shown, newest)
    if shown == "stranger":
        other = authority(tmp_path, "sensor-17")
        context.load_cert_chain(other.path("sensor-17", "crt"), other.path("sensor-17", "key"))
    before = failed(asking).get(counted, 0)
    connections = len(asking.broker().mqtt.connections)
    await refusal(tls_port(asking), context)
    await eventually(lambda: failed(asking).get(counted, 0) == before + 1)
    assert len(asking.broker().mqtt.connections) == connections


async def test_the_port_without_tls_asks_for_no_certificate_but_for_users(asking: Served) -> None:
    """Where certificates name users there are users: who has none is nobody (mqtt.allow_anonymous = "auto")."""
    client = await Raw.connect(asking.port)
    assert client.connack.reason_code == 0x87


async def test_a_certificate_may_be_optional_and_the_whole_subject_a_user(made: DevelopmentAuthority) -> None:
    knobs: dict[str, Any] = {"tls__user_from": "subject", "mqtt__allow_anonymous": "loopback"}
    with served_by_tls(made, "optional", **knobs) as running:
        for shown, user in (("sensor-17", "CN=sensor-17"), ("", "")):
            name = unique()
            client = await connect(tls_port(running), client_context(made, shown), name)
            assert client.connack.reason_code == 0
            (own,) = [each for each in running.broker().mqtt.connections if each.client_id == name]
            assert own.served is not None
            assert own.served.session.user == user
        await refusal(tls_port(running), client_context(made, "expired"))
        await eventually(lambda: failed(running) == {"expired client certificate": 1})
        await close_clients()


async def test_a_certificate_that_cannot_be_read_costs_its_connection(made: DevelopmentAuthority) -> None:
    """Signed by the authority, with an alternative name that is no text: Python raises UnicodeDecodeError on it."""
    key = ec.generate_private_key(ec.SECP256R1())
    authority_key = serialization.load_pem_private_key(made.path("ca", "key").read_bytes(), None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(made.path("ca", "crt").read_bytes())
    names = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"\x30\x05\x82\x03\xff\xfe\xfd")
    builder = x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(issuer.subject)
    builder = builder.public_key(key.public_key()).serial_number(7).add_extension(names, False)
    builder = builder.not_valid_before(issuer.not_valid_before_utc).not_valid_after(issuer.not_valid_after_utc)
    certificate = builder.sign(authority_key, hashes.SHA256())
    pem, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    both = made.folder / "odd.pem"
    both.write_bytes(key.private_bytes(pem, private, serialization.NoEncryption()) + certificate.public_bytes(pem))
    context = client_context(made)
    context.load_cert_chain(both)
    with served_by_tls(made, "required", tls__user_from="cn") as running:
        await refusal(tls_port(running), context)
        await eventually(lambda: sum(failed(running).values()) == 1)
        assert running.broker().mqtt.status()["connections"] == 0
        client = await connect(tls_port(running), client_context(made, "sensor-17"))
        assert await client.ping() == []
        await close_clients()


async def test_who_is_sent_away_is_sent_to_the_port_by_which_it_came(made: DevelopmentAuthority) -> None:
    with served_by_tls(made) as running:
        listener = running.broker().mqtt
        came = {tls_port(running): client_context(made), running.port: None}
        clients = {port: await connect(port, context) for port, context in came.items()}
        running.run(listener.send_away(["one.example", "two.example"]))
        for port, client in clients.items():
            (told,) = [packet for packet in await client.closed() if isinstance(packet, Disconnect)]
            assert told.reason_code == USE_ANOTHER_SERVER
            assert told.properties == {SERVER_REFERENCE: f"one.example:{port} two.example:{port}"}
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HOST, tls_port(running))
        running.run(listener.admit())
        await connect(tls_port(running), client_context(made))
        await close_clients()


# -- what is no handshake


async def test_plain_text_to_the_port_for_tls_and_the_other_way_round(
    cluster: Served, made: DevelopmentAuthority
) -> None:
    before = failed(cluster).get("not TLS", 0)
    for blow in (b"GET / HTTP/1.1\r\n\r\n", b"\x10\x0c\0\4MQTT\4\2\0\0\0\0", bytes(300)):
        reader, writer = await asyncio.open_connection(HOST, tls_port(cluster))
        writer.write(blow)
        assert len(await asyncio.wait_for(reader.read(), WAIT_S)) < 100
        writer.close()
    await eventually(lambda: failed(cluster).get("not TLS", 0) == before + 3)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection(HOST, cluster.port, ssl=client_context(made))


async def test_old_tls_is_refused(cluster: Served, made: DevelopmentAuthority) -> None:
    context = client_context(made)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    await refusal(tls_port(cluster), context)
    await eventually(lambda: failed(cluster).get("old TLS", 0) >= 1)


async def test_stalled_handshakes_keep_nobody_out(made: DevelopmentAuthority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one address 4 may be under way, 6 in all. 20 stall from one address: clients without TLS, and with TLS from
    another address, do not notice; one from the same address comes in when a stalled one has made way."""
    monkeypatch.setattr(handshake_line, "HURRY_S", 0.5)  # it is waited for four times
    knobs: dict[str, Any] = {"tls__handshakes_max": 6, "tls__handshakes_per_address_max": 4}
    knobs["mqtt__connect_timeout_s"] = 30.0
    with served_by_tls(made, **knobs) as running:
        port, context = tls_port(running), client_context(made)
        stalled = [socket.create_connection((HOST, port)) for _ in range(20)]
        status = running.broker().mqtt.status
        await eventually(lambda: status()["tls"]["handshakes"] == 20)
        plain = await Raw.connect(running.port)
        assert await plain.ping() == []
        other = await connect(port, context, local="127.0.0.2")
        assert other.connack.reason_code == 0
        assert status()["tls"]["failed"] == {}
        stalled[10].close()  # one that waits has left: it costs a turn, no more
        same = await connect(port, context)
        assert same.connack.reason_code == 0
        assert status()["tls"]["failed"]["made way for others"] >= 1
        assert status()["connections"] == 3
        for sock in stalled:
            sock.close()
        await eventually(lambda: status()["tls"]["handshakes"] == 0)
        await close_clients()


async def test_a_handshake_has_as_long_as_a_connect(made: DevelopmentAuthority) -> None:
    with served_by_tls(made, mqtt__connect_timeout_s=0.5) as running:
        reader, writer = await asyncio.open_connection(HOST, tls_port(running))
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        await eventually(lambda: failed(running) == {"too slow": 1})
        writer.close()
        # Nor does who has shaken hands and says nothing stay.
        reader, writer = await asyncio.open_connection(HOST, tls_port(running), ssl=client_context(made))
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()


async def test_connections_max_counts_those_by_tls(made: DevelopmentAuthority) -> None:
    with served_by_tls(made, mqtt__connections_max=2) as running:
        first = [await connect(tls_port(running), client_context(made)) for _ in range(2)]
        await refusal(tls_port(running), client_context(made))
        assert failed(running) == {"connections_max": 1}
        await first[0].disconnect()
        await eventually(lambda: running.broker().mqtt.status()["connections"] == 1)
        await connect(tls_port(running), client_context(made))
        await close_clients()


# -- new files


async def test_new_certificates_are_for_new_handshakes(tmp_path: Path) -> None:
    made = authority(tmp_path / "first", "sensor-17")
    with served_by_tls(made) as running:
        door = running.broker().mqtt.doors.tls
        assert door is not None

        async def reload() -> str:
            return door.reload()

        before = await connect(tls_port(running), client_context(made))
        other = authority(tmp_path / "second")
        for kind in ("crt", "key"):
            other.path("server", kind).replace(made.path("server", kind))
        assert running.run(reload()) == ""
        after = await connect(tls_port(running), client_context(other))
        assert "CERTIFICATE_VERIFY_FAILED" in await refusal(tls_port(running), client_context(made))
        topic = unique()
        await before.subscribe(topic, qos=1)
        await after.publish(topic, b"x", qos=1)
        assert (await before.expect(Message)).payload == b"x"
        made.path("server", "crt").write_bytes(b"rubbish")
        assert "no certificate in PEM form" in running.run(reload())
        await connect(tls_port(running), client_context(other))
        assert running.broker().mqtt.status()["tls"]["taken"] == 2
        await close_clients()


async def test_who_was_revoked_is_closed_and_nobody_else(tmp_path: Path) -> None:
    made = authority(tmp_path, "stays")
    lost = made.issue_client("goes")
    crl = str(made.revoke([]))
    with served_by_tls(made, "required", tls__user_from="cn", tls__crl=crl) as running:
        port, door = tls_port(running), running.broker().mqtt.doors.tls
        assert door is not None
        stays, goes = [await connect(port, client_context(made, name)) for name in ("stays", "goes")]

        async def reload() -> str:
            return door.reload()

        made.revoke([lost])
        assert running.run(reload()) == ""
        assert await goes.closed() == []
        assert await stays.ping() == []
        await refusal(port, client_context(made, "goes"))
        await eventually(lambda: failed(running) == {"revoked since it connected": 1, "revoked client certificate": 1})
        await close_clients()


async def test_where_the_files_cannot_be_used_all_else_serves_until_they_can(tmp_path: Path) -> None:
    made = authority(tmp_path)
    key, away = made.path("server", "key"), tmp_path / "away"
    with served_by_tls(made) as running:
        running.run(running.cluster.stop_broker("broker-0"))
        key.replace(away)
        running.run(running.cluster.start_broker("broker-0"))
        assert (await Raw.connect(running.port)).connack.reason_code == 0
        (said,) = running.broker().mqtt.status()["tls"]["warnings"]
        assert said.startswith(f"tls.key = '{key}' cannot be read")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HOST, tls_port(running))
        away.replace(key)
        door = running.broker().mqtt.doors.tls
        assert door is not None

        async def reload() -> str:
            return door.reload()

        assert running.run(reload()) == ""
        await connect(tls_port(running), client_context(made))
        await close_clients()


# -- many


async def test_a_thousand_connects_leave_nothing(cluster: Served, made: DevelopmentAuthority) -> None:
    context, port = client_context(made), tls_port(cluster)
    places = asyncio.Semaphore(50)

    async def come_and_go(number: int) -> None:
        async with places:
            client = await connect(port, context)
            if number % 3:
                await client.disconnect()
            else:
                client.abort()

    def left() -> int:
        gc.collect()
        kinds = (MqttConnection, ssl.SSLObject)
        return len([each for each in gc.get_objects() if isinstance(each, kinds)])

    await asyncio.gather(*[come_and_go(number) for number in range(20)])
    await close_clients()
    await eventually(lambda: cluster.broker().mqtt.status()["connections"] == 0)
    before = left()  # other tests' among them
    await asyncio.gather(*[come_and_go(number) for number in range(1_000)])
    await close_clients()
    await eventually(lambda: cluster.broker().mqtt.status()["connections"] == 0)
    await eventually(lambda: left() <= before + 2)
    assert cluster.broker().mqtt.status()["tls"]["handshakes"] == 0
    door = cluster.broker().mqtt.doors.tls
    assert door is not None
    assert door.material.context is not None
    assert door.material.context.session_stats()["number"] <= 1_100  # of TLS 1.2 without tickets; 1.3 keeps none


async def test_a_publication_through_all_kinds(cluster: Served, made: DevelopmentAuthority) -> None:
    """QoS 2 and retained, to who comes later by TLS."""
    topic = unique("kept/")
    publisher = await connect(tls_port(cluster), client_context(made))
    assert await publisher.publish(topic, b"kept", qos=2, retain=True) == 0
    publisher.send(Publish(topic.encode(), b"dropped", 0, False, False, 0))
    later = await connect(tls_port(cluster), client_context(made))
    await later.subscribe(topic, qos=2)
    assert (await later.expect(Message)).payload == b"kept"
