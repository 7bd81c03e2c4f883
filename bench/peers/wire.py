"""The two protocols the load generator speaks, reduced to what a load needs.

A session is opened by a list of *steps* (bytes to send, the answer to wait for), so one state machine opens MQTT and
NATS sessions alike. After that a load of equal messages makes equal packets: `Layout` says how long one is and where
its sequence number stands, and the generator counts by dividing lengths instead of parsing (see loadgen.py).

The broker under test decides how a delivery looks (packet ids, NATS subject and sid), so a layout is taken from one
delivered packet rather than predicted.

MQTT: OASIS 3.1.1 and 5.0, section numbers at the code. NATS: https://docs.nats.io/reference/reference-protocols/nats-protocol
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from lexicast.cluster.errors import PeerError, UsageError

SEQUENCE_BYTES = 8
"""Each payload starts with its sequence number, unsigned and big-endian."""


class RefusedError(PeerError):
    """The broker answered a handshake with a refusal or with something that is no answer to it."""


@dataclass(frozen=True)
class HandshakeStep:
    """One exchange of a handshake: send `data`, then wait until `answer` takes a positive number of bytes.

    `answer` gets what has been received and not consumed yet; it returns how many bytes belong to the answer (0: not
    complete yet) and raises `RefusedError` for a refusal. Without an `answer` nothing is waited for. An `idle` step
    waits for a timer of the broker's: it costs the broker nothing, so any number of sessions may be in one.
    """

    data: bytes
    answer: Callable[[bytes], int] | None = None
    idle: bool = False


@dataclass(frozen=True)
class Packet:
    """One packet in received bytes: its length, whether it is a delivered message, and what has to be answered."""

    length: int
    is_message: bool
    reply: bytes = b""


@dataclass(frozen=True)
class Layout:
    """How the packets of one load look on a connection; offsets and lengths in bytes."""

    length: int
    sequence_offset: int
    prefix: bytes
    packet_id_offset: int | None = None


class Wire(Protocol):
    """What the generator needs to know of a protocol."""

    name: str
    trailer_bytes: int
    """What stands behind the payload in a publication and in a delivery."""

    def opening(self, client_id: str, topic: str | None, qos: int) -> list[HandshakeStep]:
        """The steps that open a session and, with a `topic`, subscribe it."""
        ...

    def publish(self, topic: str, payload: bytes, qos: int, packet_id: int = 0) -> bytes:
        """One publication as bytes."""
        ...

    def delivery(self, topic: str, payload: bytes) -> bytes:
        """How a QoS 0 delivery to a subscriber of `opening` looks that adds nothing to the publication."""
        ...

    def next_packet(self, data: bytes | bytearray) -> Packet | None:
        """The packet at the start of `data`, or None while it is incomplete."""
        ...

    def delivery_layout(self, packet: bytes, payload_size: int) -> Layout:
        """The layout of deliveries, from one delivered `packet`."""
        ...

    def publish_layout(self, topic: str, payload_size: int, qos: int) -> Layout:
        """The layout of what `publish` makes."""
        ...

    def goodbye(self) -> bytes:
        """What a client sends before it closes its connection."""
        ...


def _varint(value: int) -> bytes:
    """A variable byte integer (MQTT 3.1.1, 2.2.3)."""
    out = bytearray()
    while True:
        value, digit = divmod(value, 128)
        out.append(digit | (128 if value else 0))
        if not value:
            return bytes(out)


def mqtt_frame(first: int, body: bytes) -> bytes:
    return bytes([first]) + _varint(len(body)) + body


def mqtt_header(data: bytes | bytearray) -> tuple[int, int] | None:
    """(header length, packet length) of the packet that starts `data`; None while the header is incomplete."""
    value = 0
    for index in range(1, 5):
        if len(data) <= index:
            return None
        value |= (data[index] & 127) << (7 * (index - 1))
        if data[index] < 128:
            return index + 1, index + 1 + value
    raise PeerError(f"broken MQTT length {bytes(data[1:5]).hex()}: the broker's packets and ours are out of step")


class MqttWire:
    """MQTT 3.1.1 (version 4) or 5."""

    trailer_bytes = 0

    def __init__(self, version: int = 4) -> None:
        if version not in (4, 5):
            raise UsageError(f"MQTT version {version} is unknown; use 4 (which is 3.1.1) or 5")
        self.version = version
        self.name = "MQTT 5" if version == 5 else "MQTT 3.1.1"
        self._properties = b"\0" if version == 5 else b""

    def opening(self, client_id: str, topic: str | None, qos: int) -> list[HandshakeStep]:
        """CONNECT with a clean session and no keep-alive (a keep-alive would put PINGRESPs between deliveries)."""
        encoded = client_id.encode()
        body = b"\0\4MQTT" + bytes([self.version, 2, 0, 0]) + self._properties
        steps = [HandshakeStep(mqtt_frame(0x10, body + len(encoded).to_bytes(2, "big") + encoded), self._connack)]
        if topic is not None:
            encoded = topic.encode()
            body = b"\0\1" + self._properties + len(encoded).to_bytes(2, "big") + encoded + bytes([qos])
            steps.append(HandshakeStep(mqtt_frame(0x82, body), self._suback))
        return steps

    def _connack(self, data: bytes) -> int:
        length = self._answer(data, 0x20, "CONNACK")
        if length and data[3] != 0:
            raise RefusedError(f"the broker refused CONNECT with code {data[3]:#04x}; does it allow anonymous clients?")
        return length

    def _suback(self, data: bytes) -> int:
        length = self._answer(data, 0x90, "SUBACK")
        if length and data[length - 1] > 2:
            raise RefusedError(f"the broker refused SUBSCRIBE with code {data[length - 1]:#04x}")
        return length

    @staticmethod
    def _answer(data: bytes, first: int, name: str) -> int:
        if not data:
            return 0
        if data[0] != first:
            raise RefusedError(f"expected {name}, got a packet that starts with {data[0]:#04x}")
        header = mqtt_header(data)
        return header[1] if header is not None and len(data) >= header[1] else 0

    def publish(self, topic: str, payload: bytes, qos: int, packet_id: int = 0) -> bytes:
        """PUBLISH (3.3); a packet id, needed for QoS 1, goes after the topic."""
        encoded = topic.encode()
        identifier = packet_id.to_bytes(2, "big") if qos else b""
        body = len(encoded).to_bytes(2, "big") + encoded + identifier + self._properties + payload
        return mqtt_frame(0x30 | qos << 1, body)

    def delivery(self, topic: str, payload: bytes) -> bytes:
        """The same packet as the publication."""
        return self.publish(topic, payload, 0)

    def next_packet(self, data: bytes | bytearray) -> Packet | None:
        """The packet at the start of `data`; a QoS 1 delivery asks for its PUBACK."""
        header = mqtt_header(data)
        if header is None or len(data) < header[1]:
            return None
        start, length = header
        if data[0] & 0xF0 != 0x30:
            return Packet(length, False)
        if not data[0] & 0x06:
            return Packet(length, True)
        at = start + 2 + int.from_bytes(data[start : start + 2], "big")
        return Packet(length, True, b"\x40\x02" + bytes(data[at : at + 2]))

    def delivery_layout(self, packet: bytes, payload_size: int) -> Layout:
        """The payload ends the packet; the type byte and the first length byte are the same in each packet."""
        header = mqtt_header(packet)
        if header is None:
            raise PeerError(f"a delivery of {len(packet)} bytes is too short for MQTT")
        at = header[0] + 2 + int.from_bytes(packet[header[0] : header[0] + 2], "big")
        return Layout(len(packet), len(packet) - payload_size, packet[:2], at if packet[0] & 0x06 else None)

    def publish_layout(self, topic: str, payload_size: int, qos: int) -> Layout:
        """The same for what this client sends."""
        return self.delivery_layout(self.publish(topic, bytes(payload_size), qos, 1), payload_size)

    def goodbye(self) -> bytes:
        """DISCONNECT (3.14): without it a broker has to treat the close as a failure."""
        return b"\xe0\0"


class NatsWire:
    """Core NATS: at most once, no acknowledgements."""

    name = "NATS"
    trailer_bytes = 2

    _CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"lang":"bench","version":"1","protocol":1}\r\n'

    def opening(self, client_id: str, topic: str | None, qos: int) -> list[HandshakeStep]:
        """INFO, CONNECT, SUB, each confirmed, then the server's own PING.

        About 2 s after a client came, the server measures its round trip with a PING; answering it here keeps it and
        later ones (`ping_interval`) out of the measured stream.
        """
        if qos:
            raise UsageError("core NATS has no acknowledged delivery; measure it with QoS 0")
        subscribe = b"" if topic is None else b"SUB " + self.subject(topic) + b" 1\r\n"
        return [
            HandshakeStep(b"", self._info),
            HandshakeStep(self._CONNECT + subscribe + b"PING\r\n", self._exactly(b"PONG\r\n")),
            HandshakeStep(b"", self._exactly(b"PING\r\n"), idle=True),
            HandshakeStep(b"PONG\r\n"),
        ]

    @staticmethod
    def subject(topic: str) -> bytes:
        """An MQTT topic name, or a filter without `#`, as a NATS subject: levels are separated by dots."""
        return topic.replace("/", ".").replace("+", "*").encode()

    @staticmethod
    def _info(data: bytes) -> int:
        if data and not b"INFO ".startswith(data[:5]):
            raise RefusedError(f"expected INFO from a NATS server, got {data[:40]!r}")
        return data.find(b"\r\n") + 2 if b"\r\n" in data else 0

    @staticmethod
    def _exactly(wanted: bytes) -> Callable[[bytes], int]:
        def answer(data: bytes) -> int:
            if not wanted.startswith(data[: len(wanted)]):
                raise RefusedError(f"expected {wanted!r} from a NATS server, got {data[:80]!r}")
            return len(wanted) if len(data) >= len(wanted) else 0

        return answer

    def publish(self, topic: str, payload: bytes, qos: int, packet_id: int = 0) -> bytes:
        """PUB without a reply subject."""
        return b"PUB %b %d\r\n%b\r\n" % (self.subject(topic), len(payload), payload)

    def delivery(self, topic: str, payload: bytes) -> bytes:
        """MSG to the one subscription of `opening`."""
        return b"MSG %b 1 %d\r\n%b\r\n" % (self.subject(topic), len(payload), payload)

    def next_packet(self, data: bytes | bytearray) -> Packet | None:
        """The line (and payload, of MSG) at the start of `data`; a PING asks for its PONG."""
        end = data.find(b"\r\n")
        if end < 0:
            return None
        if not data.startswith(b"MSG "):
            return Packet(end + 2, False, b"PONG\r\n" if data.startswith(b"PING") else b"")
        length = end + 2 + int(bytes(data[:end]).rsplit(b" ", 1)[1]) + 2
        return Packet(length, True) if len(data) >= length else None

    def delivery_layout(self, packet: bytes, payload_size: int) -> Layout:
        """The payload stands before the last line end."""
        return Layout(len(packet), len(packet) - payload_size - self.trailer_bytes, packet[:2])

    def publish_layout(self, topic: str, payload_size: int, qos: int) -> Layout:
        """The same for what this client sends."""
        return self.delivery_layout(self.publish(topic, bytes(payload_size), qos), payload_size)

    def goodbye(self) -> bytes:
        """NATS has no farewell; the connection is just closed."""
        return b""


def wire_of(protocol: str, mqtt_version: int = 4) -> Wire:
    """What a broker is loaded with that speaks "mqtt" or "nats"."""
    return NatsWire() if protocol == "nats" else MqttWire(mqtt_version)
