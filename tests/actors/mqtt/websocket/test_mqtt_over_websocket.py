"""MQTT over WebSocket with brokers that serve: other people's clients, frames of all kinds, who is let in, the end."""

from __future__ import annotations

import asyncio
import queue
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

import lexicast.mqtt as ours
from lexicast.actors.mqtt.codec import encode_packet
from lexicast.actors.mqtt.codec.packets import (
    NOT_AUTHORIZED,
    SESSION_TAKEN_OVER,
    USE_ANOTHER_SERVER,
    V5,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    Publish,
    Will,
)
from lexicast.actors.mqtt.codec.properties import SERVER_REFERENCE
from lexicast.actors.mqtt.websocket.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    NORMAL_CLOSURE,
    PING,
    PONG,
    PROTOCOL_ERROR,
    TEXT,
    UNSUPPORTED_DATA,
)
from lexicast.actors.tls.development_certificates import DevelopmentAuthority
from lexicast.cluster.security.passwords import hash_password

from ....support.certificates import authority, client_context
from ....support.harness import eventually
from ....support.mqtt_harness import (
    HOST,
    WAIT_S,
    Message,
    Raw,
    Served,
    check_slow_subscriber,
    close_clients,
    unique,
)
from ....support.websockets import (
    WebSocketRaw,
    client_frame,
    request,
    served_by_both,
    served_by_websocket,
    ws_port,
    wss_port,
)

KIB = 1 << 10


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> DevelopmentAuthority:
    return authority(tmp_path_factory.mktemp("tls"), "sensor-17")


@pytest.fixture(scope="module")
def cluster(made: DevelopmentAuthority) -> Iterator[Served]:
    """With TLS and without; who has a certificate is the user that it names."""
    with served_by_both(
        made,
        "optional",
        tls__user_from="cn",
        mqtt__allow_anonymous="loopback",
        mqtt__ws_origins=("https://page.example",),
    ) as running:
        yield running


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    await close_clients()


def refused(running: Served, why: str) -> int:
    """How many have been refused for this reason."""
    counts: dict[str, int] = running.broker().mqtt.status()["refused"]
    return counts.get(f"WebSocket: {why}", 0)


# -- clients of others


@pytest.mark.parametrize("kind", [paho.Client, ours.Client])
@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311])
@pytest.mark.parametrize("encrypted", [False, True], ids=["ws", "wss"])
def test_paho_and_ours(cluster: Served, made: DevelopmentAuthority, kind: Any, version: Any, encrypted: bool) -> None:
    """As their users expect it; ours speaks dictionaries over it too."""
    got: queue.Queue[tuple[bytes, int]] = queue.Queue()
    subscribed: queue.Queue[Any] = queue.Queue()
    topic = unique("paho/")
    client = kind(CallbackAPIVersion.VERSION2, protocol=version, transport="websockets")
    if encrypted:
        client.tls_set(str(made.path("ca", "crt")))
    client.on_message = lambda _client, _data, message: got.put((message.payload, message.qos))
    client.on_subscribe = lambda *_: subscribed.put(1)
    client.connect(HOST, wss_port(cluster) if encrypted else ws_port(cluster))
    client.loop_start()
    try:
        client.subscribe(topic, qos=2)
        subscribed.get(timeout=WAIT_S)
        for qos in (0, 1, 2):
            payloads = [b"%d " % number * (number * 7) for number in range(1, 60)]
            for payload in payloads:
                client.publish(topic, payload, qos=qos)
            assert [got.get(timeout=WAIT_S) for _ in payloads] == [(payload, qos) for payload in payloads]
        assert not isinstance(client, ours.Client) or client.sdc_aware == (version == MQTTProtocolVersion.MQTTv5)
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.mark.parametrize("encrypted", [False, True], ids=["ws", "wss"])
async def test_both_ways_and_large(cluster: Served, made: DevelopmentAuthority, encrypted: bool) -> None:
    """One side by WebSocket, the other by TCP; up to the largest packet that is allowed."""
    topic, context = unique("large/"), client_context(made) if encrypted else None
    web = await WebSocketRaw.connected(wss_port(cluster) if encrypted else ws_port(cluster), context)
    plain = await Raw.connect(cluster.port)
    for client in (web, plain):
        await client.subscribe(topic, qos=1)
    sizes = [0, 1, 100, 125, 126, 65_500, 65_536, 300 * KIB, (1 << 20) - 100]
    for size in sizes:
        publisher = web if size % 2 else plain
        assert await publisher.publish(topic, bytes([size % 251]) * size, qos=1) in (0, 16)
    for client in (web, plain):
        assert [len(message.payload) for message in await client.messages(len(sizes))] == sizes


# -- frames


@pytest.mark.mqtt("MQTT-6.0.0-2")
@pytest.mark.parametrize("size", [1, 7, 64])
async def test_packets_lie_across_frames(cluster: Served, size: int) -> None:
    """[MQTT-6.0.0-2], CONNECT's too."""
    topic = unique("cut/")
    client = await WebSocketRaw.upgraded(ws_port(cluster))
    client.frame_bytes = size
    client.send(Connect(V5, unique()))
    await client.expect(ConnAck)
    await client.subscribe(topic)
    payloads = [bytes([number]) * number for number in range(1, 40)]
    for payload in payloads:
        await client.publish(topic, payload, qos=1)
    assert [message.payload for message in await client.messages(len(payloads))] == payloads


async def test_many_packets_lie_in_one_frame(cluster: Served) -> None:
    """More than are taken at once, and a message in pieces with PINGs between them."""
    topic = unique("joined/")
    client = await WebSocketRaw.connected(ws_port(cluster))
    await client.subscribe(topic)
    packets = [encode_packet(Publish(topic.encode(), b"%d" % number), V5) for number in range(5_000)]
    whole = b"".join(packets)
    client.send_frame(client_frame(whole[:1_001], BINARY, final=False) + client_frame(b"one", PING))
    client.send_frame(client_frame(b"", CONTINUATION, final=False) + client_frame(b"two", PING))
    client.send_frame(client_frame(whole[1_001:], CONTINUATION))
    assert [int(message.payload) for message in await client.messages(5_000)] == list(range(5_000))
    assert (PONG, b"two") in client.controls


async def test_a_read_of_many_tiny_frames_is_taken_in_order(cluster: Served) -> None:
    topic = unique("tiny/")
    client = await WebSocketRaw.connected(ws_port(cluster))
    await client.subscribe(topic)
    packets = b"".join([encode_packet(Publish(topic.encode(), b"%d" % number), V5) for number in range(2_000)])
    client.send_frame(b"".join([client_frame(packets[at : at + 1], key=b"1234") for at in range(len(packets))]))
    assert [int(message.payload) for message in await client.messages(2_000)] == list(range(2_000))


HOSTILE = {
    "text": (client_frame(b"hi", TEXT), UNSUPPORTED_DATA),  # [MQTT-6.0.0-1]
    "unmasked": (b"\x82\x02hi", PROTOCOL_ERROR),
    "reserved bits": (b"\xc2\x80abcd", PROTOCOL_ERROR),
    "fragmented control": (client_frame(b"", PING, final=False), PROTOCOL_ERROR),
}


@pytest.mark.mqtt("MQTT-6.0.0-1")
@pytest.mark.parametrize("name", HOSTILE)
async def test_what_breaks_the_rules_ends_the_connection(cluster: Served, name: str) -> None:
    """With its code, and the will goes out."""
    wills, before = unique("wills/"), refused(cluster, "bad frames")
    watcher = await Raw.connect(cluster.port)
    await watcher.subscribe(wills)
    frame, code = HOSTILE[name]
    client = await WebSocketRaw.connected(ws_port(cluster), will=Will(wills.encode(), b"gone"))
    client.send_frame(frame)
    assert await client.close_code() == code
    assert (await watcher.expect(Message)).payload == b"gone"
    assert refused(cluster, "bad frames") == before + 1


@pytest.mark.parametrize("name", HOSTILE)
async def test_nor_does_it_begin_one(cluster: Served, name: str) -> None:
    frame, code = HOSTILE[name]
    client = await WebSocketRaw.upgraded(ws_port(cluster))
    client.send_frame(frame)
    assert await client.close_code() == code


async def test_pings_are_answered_and_are_no_keep_alive(cluster: Served) -> None:
    client = await WebSocketRaw.connected(ws_port(cluster), keep_alive_s=1)
    began = time.monotonic()
    client.send_frame(client_frame(b"hello", PING))
    await client.ping()
    assert client.controls == [(PONG, b"hello")]
    sending = asyncio.create_task(_keep_pinging(client))
    try:
        assert await client.close_code() == NORMAL_CLOSURE
    finally:
        sending.cancel()
    assert time.monotonic() - began < WAIT_S / 2


async def _keep_pinging(client: WebSocketRaw) -> None:
    while True:
        client.send_frame(client_frame(b"", PING))
        await asyncio.sleep(0.1)


async def test_who_takes_no_answers_to_pings_costs_no_memory(cluster: Served) -> None:
    client = await WebSocketRaw.connected(ws_port(cluster), client_id="pings")
    (own,) = [each for each in cluster.broker().mqtt.connections if each.client_id == "pings"]
    client.socket_writer.transport.pause_reading()  # type: ignore[attr-defined] # a transport of both kinds
    for _ in range(40):
        client.send_frame(client_frame(bytes(125), PING) * 2_000)
        await asyncio.wait_for(client.socket_writer.drain(), WAIT_S)
    assert own.transport.get_write_buffer_size() <= cluster.broker().config.mqtt.output_bytes_max + 64 * KIB


# -- the upgrade


async def answer_of(port: int, asked: bytes) -> bytes:
    """All that is answered, until the broker closes."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(asked)
    answer = await asyncio.wait_for(reader.read(), WAIT_S)
    writer.close()
    return answer


async def test_what_gets_no_websocket_is_answered_and_counted(cluster: Served) -> None:
    port = ws_port(cluster)
    for asked, status, why in (
        (request("/other"), b"404", "no such path"),
        (request(sec_websocket_protocol=None), b"400", "bad request"),
        (request(origin="http://evil.example"), b"403", "origin"),
        (b"\x10\x0c\0\4MQTT\4\2\0\0\0\0\r\n\r\n", b"400", "no HTTP"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 9_000, b"431", "too long a request"),
    ):
        before = refused(cluster, why)
        assert (await answer_of(port, asked)).startswith(b"HTTP/1.1 " + status + b" ")
        assert refused(cluster, why) == before + 1
    await WebSocketRaw.upgraded(port, asked=request(origin="https://page.example"))
    await WebSocketRaw.upgraded(port, asked=request("/"))


async def test_what_follows_the_request_at_once_is_taken(cluster: Served) -> None:
    connect = client_frame(encode_packet(Connect(V5, unique()), V5))
    client = await WebSocketRaw.upgraded(ws_port(cluster), asked=request() + connect)
    assert (await client.expect(ConnAck)).reason_code == 0


async def test_a_request_may_come_byte_by_byte(cluster: Served) -> None:
    reader, writer = await asyncio.open_connection(HOST, ws_port(cluster))
    for byte in request():
        writer.write(bytes((byte,)))
        await writer.drain()
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)).startswith(b"HTTP/1.1 101 ")
    writer.close()


async def test_a_slow_upgrade_has_as_long_as_a_connect_and_counts() -> None:
    with served_by_websocket(mqtt__connect_timeout_s=1.0, mqtt__connections_max=2) as running:
        slow = [await asyncio.open_connection(HOST, ws_port(running)) for _ in range(2)]
        slow[0][1].write(request()[:-2])
        slow[1][1].write(request())
        await eventually(lambda: running.broker().mqtt.status()["connections"] == 2)
        assert await answer_of(ws_port(running), b"") == b""
        assert running.broker().mqtt.status()["refused"]["connections_max"] == 1
        first, second = [await asyncio.wait_for(reader.read(), WAIT_S) for reader, _ in slow]
        assert first == b""
        assert second.startswith(b"HTTP/1.1 101 ")
        for _, writer in slow:
            writer.close()
        await eventually(lambda: running.broker().mqtt.status()["connections"] == 0)
        assert (await WebSocketRaw.connected(ws_port(running))).connack.reason_code == 0
        await close_clients()


# -- as for TCP


async def test_the_last_words_arrive_and_then_close(cluster: Served) -> None:
    name = unique()
    first = await WebSocketRaw.connected(ws_port(cluster), client_id=name)
    second = await WebSocketRaw.connected(ws_port(cluster), client_id=name)
    assert [p.reason_code for p in await first.closed() if isinstance(p, Disconnect)] == [SESSION_TAKEN_OVER]
    assert first.controls == [(CLOSE, NORMAL_CLOSURE.to_bytes(2, "big"))]
    second.send(b"\xf0\0" + bytes(200_000))  # a malformed packet, and more than is ever read
    assert [type(packet) for packet in await second.closed()] == [Disconnect]
    assert second.controls == [(CLOSE, NORMAL_CLOSURE.to_bytes(2, "big"))]


@pytest.mark.parametrize("encrypted", [False, True], ids=["ws", "wss"])
async def test_who_is_heard_out_says_close_and_it_is_over(
    cluster: Served, made: DevelopmentAuthority, encrypted: bool
) -> None:
    """At once, not when the broker's patience ends."""
    context, port = (client_context(made), wss_port(cluster)) if encrypted else (None, ws_port(cluster))
    name = unique()
    first = await WebSocketRaw.connected(port, context, client_id=name)
    await WebSocketRaw.connected(port, context, client_id=name)
    await first.expect(Disconnect)
    while not first.controls:
        first._left += await first.socket_reader.read(100)
        await asyncio.wait_for(first.read(), WAIT_S) if len(first._left) > 3 else None
    first.send_frame(client_frame(NORMAL_CLOSURE.to_bytes(2, "big"), CLOSE))
    assert await first.closed() == []


async def test_a_client_that_says_close_is_answered_and_has_its_will(cluster: Served) -> None:
    wills = unique("wills/")
    watcher = await Raw.connect(cluster.port)
    await watcher.subscribe(wills)
    client = await WebSocketRaw.connected(ws_port(cluster), will=Will(wills.encode(), b"gone"))
    client.send_frame(client_frame((1001).to_bytes(2, "big") + b"the page is left", CLOSE))
    assert await client.close_code() == 1001
    assert (await watcher.expect(Message)).payload == b"gone"
    other = await WebSocketRaw.connected(ws_port(cluster), will=Will(wills.encode(), b"never"))
    other.send(Disconnect(0))
    assert await other.close_code() == NORMAL_CLOSURE
    await watcher.nothing(watcher, wills)


async def test_a_client_that_takes_nothing_costs_no_memory(cluster: Served) -> None:
    """Its deliveries wait in the log, as by TCP."""
    await check_slow_subscriber(cluster, await WebSocketRaw.connected(ws_port(cluster), client_id="slow"), 300)


async def test_a_fan_out_is_the_same_bytes_for_all(cluster: Served) -> None:
    """Of one write to many, the frame is made once."""
    topic = unique("shared/")
    clients = [await WebSocketRaw.connected(ws_port(cluster)) for _ in range(5)]
    for client in clients:
        await client.subscribe(topic)
        client.data_frames.clear()
    publisher = await Raw.connect(cluster.port)
    await publisher.publish(topic, b"x" * 1_000, qos=1)
    for client in clients:
        assert (await client.expect(Message)).payload == b"x" * 1_000
    assert all(client.data_frames == clients[0].data_frames for client in clients)
    assert len(clients[0].data_frames) == 1


async def test_a_certificate_names_the_user(cluster: Served, made: DevelopmentAuthority) -> None:
    name = unique()
    client = await WebSocketRaw.connected(wss_port(cluster), client_context(made, "sensor-17"), client_id=name)
    assert client.connack.reason_code == 0
    (own,) = [each for each in cluster.broker().mqtt.connections if each.client_id == name]
    assert own.served is not None
    assert own.served.session.user == "sensor-17"


async def test_passwords_and_rules_hold() -> None:
    passwords = b"ada:" + hash_password(b"right", b"salt" * 4).text().encode() + b"\n"
    rules = b"user ada\ntopic readwrite hers/#\n"
    with served_by_websocket(passwords=passwords, rules=rules) as running:
        wrong = await WebSocketRaw.connected(ws_port(running), user_name="ada", password=b"wrong")
        assert wrong.connack.reason_code >= 0x80
        assert (await WebSocketRaw.connected(ws_port(running))).connack.reason_code == NOT_AUTHORIZED
        ada = await WebSocketRaw.connected(ws_port(running), user_name="ada", password=b"right")
        assert ada.connack.reason_code == 0
        assert await ada.subscribe("hers/x", qos=1) == [1]
        assert await ada.publish("others", b"x", qos=1) == NOT_AUTHORIZED
        assert await ada.publish("hers/x", b"x", qos=1) == 0
        await close_clients()


async def test_who_is_sent_away_is_told_of_a_port_for_websocket(made: DevelopmentAuthority) -> None:
    with served_by_both(made) as running:
        ports = [(ws_port(running), None), (wss_port(running), client_context(made))]
        clients = [await WebSocketRaw.connected(port, context) for port, context in ports]
        running.run(running.broker().mqtt.send_away(["192.0.2.1"]))
        for client, (port, _) in zip(clients, ports, strict=True):
            (told,) = [packet for packet in await client.closed() if isinstance(packet, Disconnect)]
            assert told.reason_code == USE_ANOTHER_SERVER
            assert told.properties == {SERVER_REFERENCE: f"192.0.2.1:{port}"}
        for port, _ in ports:
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(HOST, port)
        running.run(running.broker().mqtt.admit())
        for port, context in ports:
            assert (await WebSocketRaw.connected(port, context)).connack.reason_code == 0
        await close_clients()


async def test_status_and_lists_say_who_comes_by_websocket(cluster: Served, made: DevelopmentAuthority) -> None:
    await WebSocketRaw.connected(ws_port(cluster), client_id="by ws")
    await WebSocketRaw.connected(wss_port(cluster), client_context(made), client_id="by wss")
    mqtt = cluster.broker().mqtt
    status = mqtt.status()
    assert (status["ws_port"], status["wss"]["port"]) == (ws_port(cluster), wss_port(cluster))
    assert status["websockets"] >= 2
    kinds = {each["id"]: each["kind"] for each in mqtt.clients(1_000)}
    assert (kinds["by ws"], kinds["by wss"]) == ("MQTT 5 WebSocket", "MQTT 5 WebSocket TLS")


async def test_the_ports_are_kept_from_other_clusters(cluster: Served) -> None:
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind((HOST, ws_port(cluster)))


async def test_a_broker_that_stops_says_close() -> None:
    with served_by_websocket() as running:
        client = await WebSocketRaw.connected(ws_port(running))
        client.send(PingReq())
        await client.packet()
    assert await client.close_code() == NORMAL_CLOSURE
