"""For tests of MQTT over WebSocket: the client's side, frame by frame, which sends what it is told to and shows what it
gets; and brokers that have ports for it."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, cast

from lexicast.actors.mqtt.codec.packets import V5, ConnAck, Connect
from lexicast.actors.mqtt.websocket.frames import BINARY, CLOSE, PING
from lexicast.actors.tls.development_certificates import DevelopmentAuthority
from lexicast.bench.stage.ports import free_port

from .certificates import server_knobs
from .mqtt_harness import HOST, WAIT_S, Raw, Served, served, unique

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # RFC 6455, section 1.3
_HEADERS = {
    "Host": "localhost",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "mqtt",
}


@contextmanager
def served_by_websocket(**knobs: Any) -> Iterator[Served]:
    """A running cluster with a port for WebSocket, `ws_port(running)`."""
    with served(mqtt__ws_port=free_port(), **knobs) as running:
        yield running


@contextmanager
def served_by_both(made: DevelopmentAuthority, clients: str = "no", **knobs: Any) -> Iterator[Served]:
    """One with and without TLS, `wss_port(running)` too."""
    ports = {"mqtt__wss_port": free_port(), "mqtt__ws_port": free_port()}
    with served(**server_knobs(made, clients, **ports, **knobs)) as running:
        yield running


def ws_port(running: Served) -> int:
    """Its port for WebSocket."""
    return running.broker().config.mqtt.ws_port


def wss_port(running: Served) -> int:
    """Its port for WebSocket with TLS."""
    return running.broker().config.mqtt.wss_port


def request(path: str = "/mqtt", **changed: str | None) -> bytes:
    """A request for a WebSocket; headers by name, with `_` for `-`; None: without that one."""
    given = {name.replace("_", "-").lower(): value for name, value in changed.items()}
    headers = {name: given.pop(name.lower(), value) for name, value in _HEADERS.items()} | given
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode()


def masked(data: bytes, key: bytes) -> bytes:
    """RFC 6455, section 5.3, as it is written there."""
    return bytes([byte ^ key[at % 4] for at, byte in enumerate(data)])


def client_frame(payload: bytes, opcode: int = BINARY, final: bool = True, key: bytes | None = None) -> bytes:
    """A client's frame."""
    key, size = os.urandom(4) if key is None else key, len(payload)
    first = bytes(((0x80 if final else 0) | opcode,))
    if size < 126:
        head = first + bytes((0x80 | size,))
    elif size < 1 << 16:
        head = first + b"\xfe" + size.to_bytes(2, "big")
    else:
        head = first + b"\xff" + size.to_bytes(8, "big")
    return head + key + (masked(payload, key) if size < 1 << 14 else _masked_fast(payload, key))


def _masked_fast(data: bytes, key: bytes) -> bytes:
    words = int.from_bytes((key * (len(data) // 4 + 1))[: len(data)], "big")
    return (int.from_bytes(data, "big") ^ words).to_bytes(len(data), "big")


def server_frames(data: bytes) -> tuple[list[tuple[int, bytes]], int]:
    """(opcode, payload) of the whole frames in what a server sent, and how many bytes they take."""
    found, at = [], 0
    while len(data) >= at + 2:
        assert data[at] & 0xF0 == 0x80, "a frame that is not whole, or with reserved bits"
        assert not data[at + 1] & 0x80, "a server's frame is not masked"
        size, begins = data[at + 1], at + 2
        if size >= 126:
            begins += 2 if size == 126 else 8
            size = int.from_bytes(data[at + 2 : begins], "big")
        if len(data) < begins + size:
            break
        found.append((data[at] & 0x0F, data[begins : begins + size]))
        at = begins + size
    return found, at


class WebSocketRaw(Raw):
    """`Raw` over a WebSocket. `frame_bytes`: what it sends goes in frames of at most so many bytes, one message all;
    `controls`: control frames as they came."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        self.frame_bytes = 0
        self.controls: list[tuple[int, bytes]] = []
        self.data_frames: list[bytes] = []
        self.socket_reader, self.socket_writer = reader, writer
        self._left = b""
        super().__init__(cast(asyncio.StreamReader, self), writer, version)

    @classmethod
    async def upgraded(
        cls, port: int, context: ssl.SSLContext | None = None, version: int = V5, asked: bytes = b""
    ) -> Self:
        """A WebSocket. Raises AssertionError with the answer where it is none."""
        reader, writer = await asyncio.open_connection(HOST, port, ssl=context, limit=1 << 22)
        writer.write(asked or request())
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
        assert answer.startswith(b"HTTP/1.1 101 "), answer
        assert b"Sec-WebSocket-Accept: " + ACCEPT in answer
        assert b"Sec-WebSocket-Protocol: mqtt\r\n" in answer  # [MQTT-6.0.0-4]
        assert b"Extensions" not in answer
        return cls(reader, writer, version)

    @classmethod
    async def connected(
        cls, port: int, context: ssl.SSLContext | None = None, version: int = V5, **connect: Any
    ) -> Self:
        """A client that is connected, whatever CONNACK says."""
        client = await cls.upgraded(port, context, version)
        client.send(Connect(version, connect.pop("client_id", None) or unique(), **connect))
        client.connack = await client.expect(ConnAck)
        return client

    def send(self, packet: Any) -> None:
        """Any packet, in frames as `frame_bytes` says."""
        sent: list[bytes] = []
        writer, self._writer = self._writer, cast(asyncio.StreamWriter, _Kept(sent))
        try:
            super().send(packet)
        finally:
            self._writer = writer
        data = b"".join(sent)
        size = self.frame_bytes or len(data) or 1
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        for number, part in enumerate(parts):
            opcode = BINARY if number == 0 else 0
            self.send_frame(client_frame(part, opcode, number == len(parts) - 1))

    def send_frame(self, frame: bytes) -> None:
        """Bytes as they are."""
        self.socket_writer.write(frame)

    async def read(self, _: int = -1) -> bytes:
        """As a StreamReader's: the data of frames; b"" at the end."""
        while True:
            frames, taken = server_frames(self._left)
            self._left = self._left[taken:]
            self.controls += [frame for frame in frames if frame[0] & CLOSE]
            data = [payload for opcode, payload in frames if not opcode & CLOSE]
            assert all(opcode in (BINARY, CLOSE, PING, 0xA) for opcode, _ in frames)  # [MQTT-6.0.0-1]
            self.data_frames += data
            if data:
                return b"".join(data)
            more = await self.socket_reader.read(1 << 20)
            if not more:
                return b""
            self._left += more

    async def close_code(self) -> int:
        """With which code the broker says CLOSE; what came before is dropped. -1: it ends without one."""
        await self.closed()
        return next((int.from_bytes(payload[:2], "big") for opcode, payload in self.controls if opcode == CLOSE), -1)


class _Kept:
    """A writer that keeps what is written."""

    def __init__(self, kept: list[bytes]) -> None:
        self._kept = kept

    def write(self, data: bytes) -> None:
        """Keep it."""
        self._kept.append(data)
