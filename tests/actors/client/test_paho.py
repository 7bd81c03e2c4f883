"""`lexicast.mqtt` over real sockets: with a small scripted dictionary-aware broker, and with Mosquitto (plain)."""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import lexicast.mqtt as mqtt
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.topics.names import dictionary_topic
from lexicast.compression.codecs import ZSTD
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.wire import ALIAS_TOPIC, AliasTable, Bindings, Recoder

WAIT_S = 60.0
FAMILY = b"cars/+/speed"
TOPIC = "cars/1234/speed"
SHARED = Dictionary(FAMILY, ZSTD, b'{"speed": 120, "unit": "km/h"}' * 10, created_us=1)
CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PING, DISCONNECT = (
    1,
    2,
    3,
    4,
    8,
    9,
    10,
    11,
    12,
    14,
)


def message(n: int) -> bytes:
    return b'{"speed": %d, "unit": "km/h"}' % n


class Packet(NamedTuple):
    kind: int
    flags: int
    body: bytes


class Published(NamedTuple):
    topic: bytes
    payload: bytes
    qos: int
    packet_id: int


class ScriptedBroker:
    """Accepts connections one after another and does what the test says; packets are waited for, never slept for."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WAIT_S)
        self.port: int = self._listener.getsockname()[1]
        self._socket: socket.socket | None = None

    def accept(self) -> Packet:
        """The CONNECT of the next connection, not answered yet."""
        if self._socket:
            self._socket.close()
        self._socket, _ = self._listener.accept()
        self._socket.settimeout(WAIT_S)
        return self.expect(CONNECT)

    def connack(self, aware: bool) -> None:
        properties = b"\x26\x00\x03sdc\x00\x011" if aware else b""
        self._send(CONNACK << 4, b"\0\0" + bytes([len(properties)]) + properties)

    def publish(self, topic: str | bytes, payload: bytes, retain: bool = False) -> None:
        name = topic.encode() if isinstance(topic, str) else topic
        self._send(PUBLISH << 4 | retain, struct.pack(">H", len(name)) + name + b"\0" + payload)

    def expect(self, kind: int) -> Packet:
        while True:
            head = self._exactly(1)[0]
            length = shift = 0
            while True:
                byte = self._exactly(1)[0]
                length |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            packet = Packet(head >> 4, head & 15, self._exactly(length))
            if packet.kind == kind:
                return packet
            assert packet.kind in (PING, PUBACK), packet

    def published(self) -> Published:
        packet = self.expect(PUBLISH)
        (length,) = struct.unpack_from(">H", packet.body)
        at, qos = 2 + length, packet.flags >> 1 & 3
        packet_id = int.from_bytes(packet.body[at : at + 2], "big") if qos else 0
        at += 2 if qos else 0
        assert packet.body[at] == 0, "no properties were published"
        return Published(packet.body[2 : 2 + length], packet.body[at + 1 :], qos, packet_id)

    def puback(self, packet_id: int) -> None:
        self._send(PUBACK << 4, packet_id.to_bytes(2, "big"))

    def subscribed(self, kind: int = SUBSCRIBE) -> bytes:
        """The one filter of a SUBSCRIBE or UNSUBSCRIBE, which is granted."""
        body = self.expect(kind).body
        (length,) = struct.unpack_from(">H", body, 3)
        self._send((kind + 1) << 4, body[:2] + b"\0\0")
        return body[5 : 5 + length]

    def drop(self) -> None:
        assert self._socket
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._socket:
            self._socket.close()
        self._listener.close()

    def _send(self, head: int, body: bytes) -> None:
        assert self._socket
        length, encoded = len(body), bytearray()
        while True:
            length, byte = length >> 7, length & 127
            encoded.append(byte | (128 if length else 0))
            if not length:
                break
        self._socket.sendall(bytes([head]) + encoded + body)

    def _exactly(self, count: int) -> bytes:
        assert self._socket
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            assert more, "the client closed the connection"
            data += more
        return data


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with contextlib.closing(ScriptedBroker()) as one:
        yield one


@pytest.fixture
def new_client() -> Iterator[Callable[..., mqtt.Client]]:
    clients: list[mqtt.Client] = []

    def make(**arguments: Any) -> mqtt.Client:
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="tester", **arguments)
        client.reconnect_delay_set(1, 1)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.disconnect()
        client.loop_stop()


def start(client: mqtt.Client, broker: ScriptedBroker, aware: bool = True) -> Queue[Any]:
    """Connect; the queue gets (topic, payload) of every message the program sees."""
    seen: Queue[Any] = Queue()
    client.on_message = lambda _client, _userdata, m: seen.put((m.topic, m.payload))
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    assert b"\x26\x00\x03sdc\x00\x011" in broker.accept().body
    broker.connack(aware)
    assert connected.wait(WAIT_S)
    return seen


def test_a_plain_broker_sees_plain_payloads(broker: ScriptedBroker, new_client: Callable[..., mqtt.Client]) -> None:
    client = new_client()
    seen = start(client, broker, aware=False)
    client.publish(TOPIC, b"\x05hello")
    assert broker.published() == (TOPIC.encode(), b"\x05hello", 0, 0)
    broker.publish(TOPIC, b"\x05world")
    broker.publish("$sdc/x", b"shown")
    assert [seen.get(timeout=WAIT_S) for _ in range(2)] == [(TOPIC, b"\x05world"), ("$sdc/x", b"shown")]
    assert not client.sdc_aware
    assert client.sdc_stats().sent == {}


def test_the_program_sees_raw_payloads_and_no_dictionaries(
    broker: ScriptedBroker, new_client: Callable[..., mqtt.Client]
) -> None:
    client = new_client()
    seen = start(client, broker)
    filtered: Queue[Any] = Queue()
    client.message_callback_add("special/#", lambda _client, _userdata, m: filtered.put(m.payload))
    recoder, aliases = Recoder(), AliasTable()
    broker.publish(TOPIC, b"\x00raw")
    broker.publish(dictionary_topic(FAMILY), SHARED.pack(), retain=True)
    tag, data = recoder.to_aware(*recoder.encode(message(7), SHARED), aliases)
    broker.publish(ALIAS_TOPIC, aliases.binding(tag).pack())
    broker.publish(TOPIC, bytes((tag,)) + data)
    broker.publish("special/one", bytes((tag,)) + data)
    assert [seen.get(timeout=WAIT_S) for _ in range(2)] == [(TOPIC, b"raw"), (TOPIC, message(7))]
    assert filtered.get(timeout=WAIT_S) == message(7)
    assert seen.empty()
    received = client.sdc_stats().received[FAMILY.decode()]
    assert (received.messages, received.dictionary_bytes) == (3, len(SHARED.pack()))


def test_publishing_binds_an_alias_once_and_compresses(
    broker: ScriptedBroker, new_client: Callable[..., mqtt.Client]
) -> None:
    client = new_client()
    seen = start(client, broker)
    client.publish(TOPIC, message(1) * 4)
    first = broker.published()
    assert (first.topic, first.payload[0]) == (TOPIC.encode(), 1)
    broker.publish(dictionary_topic(FAMILY), SHARED.pack(), retain=True)
    broker.publish(TOPIC, b"\x00seen")
    assert seen.get(timeout=WAIT_S) == (TOPIC, b"seen")  # so the dictionary before it was too
    recoder, bindings = Recoder(), Bindings()
    recoder.add(SHARED)
    done: Queue[int] = Queue()
    client.on_publish = lambda _client, _userdata, mid, *_: done.put(mid)
    mids = [client.publish(TOPIC, message(2)).mid, client.publish(TOPIC, message(3).decode()).mid]
    binding = broker.published()
    assert binding.topic == ALIAS_TOPIC
    bindings.bind(binding.payload)
    for n in (2, 3):
        published = broker.published()
        assert len(published.payload) < len(message(n)) / 2
        assert recoder.to_raw(*recoder.from_aware(published.payload, bindings)) == message(n)
    assert [done.get(timeout=WAIT_S) for _ in mids] == mids  # the binding's is not shown
    sent = client.sdc_stats().sent[FAMILY.decode()]
    assert (sent.messages, sent.raw_bytes) == (3, len(message(1) * 4) + len(message(2)) + len(message(3)))
    assert sent.dictionary_bytes == len(binding.payload)


@pytest.mark.parametrize("aware", [True, False])
def test_what_is_published_before_connack_waits_for_it(
    broker: ScriptedBroker, new_client: Callable[..., mqtt.Client], aware: bool
) -> None:
    client = new_client(held_max=2)
    client.connect("127.0.0.1", broker.port)
    infos = [client.publish(TOPIC, b"one", qos=0), client.publish(TOPIC, b"two", qos=1)]
    assert client.publish(TOPIC, b"three").rc == mqtt.MQTT_ERR_QUEUE_SIZE
    broker.accept()
    client.loop_start()
    broker.connack(aware)
    tag = b"\x00" if aware else b""
    assert broker.published().payload == tag + b"one"
    second = broker.published()
    assert (second.payload, second.qos) == (tag + b"two", 1)
    broker.puback(second.packet_id)
    for info in infos:
        info.wait_for_publish(WAIT_S)
        assert info.is_published()


def test_a_connection_lost_before_connack_sends_nothing_twice(
    broker: ScriptedBroker, new_client: Callable[..., mqtt.Client]
) -> None:
    client = new_client()
    client.connect("127.0.0.1", broker.port)
    client.publish(TOPIC, b"one", qos=0)
    client.publish(TOPIC, b"two", qos=1)
    broker.accept()
    client.loop_start()
    broker.drop()
    broker.accept()
    broker.connack(aware=True)
    assert [broker.published().payload for _ in range(2)] == [b"\x00one", b"\x00two"]
    client.publish(TOPIC, b"three")
    assert broker.published().payload == b"\x00three"


@pytest.mark.parametrize("during", ["_create_socket", "_handle_connack"])
def test_a_disconnect_while_it_connects_again_holds(
    broker: ScriptedBroker, new_client: Callable[..., mqtt.Client], during: str
) -> None:
    """While the network thread dialled, or as it took the CONNACK, a program's disconnect() was forgotten."""
    client = new_client()
    start(client, broker)
    thread, ended = client._thread, threading.Event()
    client.on_disconnect = lambda *_: ended.set()
    goes_on = getattr(client, during)

    def parting() -> Any:
        client.disconnect()
        return goes_on()

    setattr(client, during, parting)
    broker.drop()
    broker.accept()
    if during == "_handle_connack":
        broker.connack(aware=True)
    broker.expect(DISCONNECT)
    assert thread is not None
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert ended.is_set()


def test_a_resend_is_encoded_for_the_connection_that_carries_it(
    broker: ScriptedBroker, new_client: Callable[..., mqtt.Client]
) -> None:
    client = new_client()
    seen = start(client, broker)
    broker.publish(dictionary_topic(FAMILY), SHARED.pack(), retain=True)
    broker.publish(TOPIC, b"\x00seen")
    seen.get(timeout=WAIT_S)
    info = client.publish(TOPIC, message(4), qos=1)
    assert broker.published().topic == ALIAS_TOPIC
    assert broker.published().payload[0] >= 2
    broker.drop()
    broker.accept()
    broker.connack(aware=True)
    assert broker.published().topic == ALIAS_TOPIC  # bound anew
    assert broker.published().payload[0] >= 2
    broker.drop()
    broker.accept()
    broker.connack(aware=False)
    plain = broker.published()
    assert (plain.topic, plain.payload) == (TOPIC.encode(), message(4))
    broker.puback(plain.packet_id)
    info.wait_for_publish(WAIT_S)
    assert info.is_published()


def test_a_missing_dictionary_is_fetched(broker: ScriptedBroker, new_client: Callable[..., mqtt.Client]) -> None:
    client = new_client()
    seen = start(client, broker)
    recoder, aliases = Recoder(), AliasTable()
    tag, data = recoder.to_aware(*recoder.encode(message(7), SHARED), aliases)
    broker.publish(ALIAS_TOPIC, aliases.binding(tag).pack())
    broker.publish(TOPIC, bytes((tag,)) + data)
    broker.publish(TOPIC, b"\x00later")
    assert broker.subscribed() == dictionary_topic(FAMILY)
    assert client.sdc_stats().waiting > 0
    broker.publish(dictionary_topic(FAMILY), SHARED.pack(), retain=True)
    assert [seen.get(timeout=WAIT_S) for _ in range(2)] == [(TOPIC, message(7)), (TOPIC, b"later")]
    assert broker.subscribed(UNSUBSCRIBE) == dictionary_topic(FAMILY)


def test_a_dictionary_that_never_comes_is_a_clear_error(
    broker: ScriptedBroker, new_client: Callable[..., mqtt.Client]
) -> None:
    clock = ManualClock()
    client = new_client(clock=clock)
    seen = start(client, broker)
    errors: Queue[Any] = Queue()
    client.on_sdc_error = lambda _client, _userdata, m, error: errors.put((m and m.topic, error))
    recoder, aliases = Recoder(), AliasTable()
    tag, data = recoder.to_aware(*recoder.encode(message(7), SHARED), aliases)
    broker.publish(TOPIC, b"\x63unbound")
    topic, error = errors.get(timeout=WAIT_S)
    assert topic == TOPIC
    assert "alias 99" in str(error)
    broker.publish(ALIAS_TOPIC, aliases.binding(tag).pack())
    broker.publish(TOPIC, bytes((tag,)) + data)
    broker.publish(TOPIC, b"\x00later")
    assert broker.subscribed() == dictionary_topic(FAMILY)
    clock.advance(60)
    topic, error = errors.get(timeout=WAIT_S)
    assert topic == TOPIC
    assert isinstance(error, mqtt.DictionaryError)
    assert f"{SHARED.id:016x}" in str(error)
    assert seen.get(timeout=WAIT_S) == (TOPIC, b"later")
    assert seen.empty()


def test_without_handler_errors_go_to_the_log(broker: ScriptedBroker, new_client: Callable[..., mqtt.Client]) -> None:
    client = new_client()
    logged: Queue[str] = Queue()
    client.on_log = lambda _client, _userdata, level, text: logged.put(text) if level == mqtt.MQTT_LOG_ERR else None
    start(client, broker)
    broker.publish(TOPIC, b"\x63unbound")
    assert "alias 99" in logged.get(timeout=WAIT_S)


def test_the_programs_connect_properties_are_kept_and_not_changed(
    broker: ScriptedBroker, new_client: Callable[..., mqtt.Client]
) -> None:
    untyped: Any = Properties  # paho does not annotate its constructor
    properties = untyped(PacketTypes.CONNECT)
    properties.UserProperty = ("mine", "yes")
    properties.SessionExpiryInterval = 60
    client = new_client()
    client.connect("127.0.0.1", broker.port, properties=properties)
    connect = broker.accept().body
    assert b"\x26\x00\x04mine\x00\x03yes" in connect
    assert b"\x26\x00\x03sdc\x00\x011" in connect
    assert properties.UserProperty == [("mine", "yes")]


@pytest.mark.parametrize("arguments", [{"sdc": False}, {"protocol": mqtt.MQTTv311}])
def test_a_client_that_does_not_ask_is_plain(
    broker: ScriptedBroker, new_client: Callable[..., mqtt.Client], arguments: dict[str, Any]
) -> None:
    client = new_client(**arguments)
    client.connect("127.0.0.1", broker.port)
    client.publish(TOPIC, b"before connack")
    assert b"sdc" not in broker.accept().body
    assert broker.expect(PUBLISH).body.endswith(b"before connack")


def test_every_other_name_is_pahos() -> None:
    assert mqtt.MQTT_CLEAN_START_FIRST_ONLY == 3
    with pytest.raises(AttributeError):
        getattr(mqtt, "no_such_name")  # noqa: B009  # type checkers refuse mqtt.no_such_name


@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not installed")
def test_against_mosquitto_it_is_paho(tmp_path: Path, new_client: Callable[..., mqtt.Client]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = tmp_path / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nuser {Path.home().owner()}\n")
    process = subprocess.Popen(
        [shutil.which("mosquitto") or "mosquitto", "-c", str(config), "-v"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr
        assert any(" running" in line for line in process.stderr)
        client, seen, ready = new_client(), Queue[Any](), threading.Event()
        client.on_connect = lambda c, *_: c.subscribe("cars/#", 1)
        client.on_subscribe = lambda *_: ready.set()
        client.on_message = lambda _client, _userdata, m: seen.put((m.topic, m.payload, m.qos))
        client.connect("127.0.0.1", port)
        client.loop_start()
        assert ready.wait(WAIT_S)
        for qos in (0, 1, 2):
            client.publish(TOPIC, message(qos), qos).wait_for_publish(WAIT_S)
        assert sorted(seen.get(timeout=WAIT_S) for _ in range(3)) == [(TOPIC, message(n), min(n, 1)) for n in range(3)]
        assert not client.sdc_aware
    finally:
        process.terminate()
        process.wait(WAIT_S)
        if process.stderr:
            process.stderr.close()
