"""The devices' connections, a bare asyncio MQTT 3.1.1 client: what thousands in one process can afford, and no more.

It acknowledges what it gets in the same turn, counts its own unacknowledged publications, and knows no timers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from lexicast.cluster.errors import PeerError, UnavailableError

from ..peers.wire import RefusedError, mqtt_frame, mqtt_header

ANSWER_TIMEOUT_S: Final = 60.0
_IDS: Final = 65_535
_CLEAN: Final = 0x02
_WILL_QOS1: Final = 0x0C


class DeviceWill(NamedTuple):
    """Published with QoS 1 when the connection breaks."""

    topic: str
    payload: bytes


class FleetDelivery(NamedTuple):
    """A PUBLISH that came."""

    topic: bytes
    payload: bytes
    again: bool
    """Sent before on another connection (DUP)."""


def _text(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return len(data).to_bytes(2, "big") + data


class DeviceConnection(asyncio.Protocol):
    """One connection. `on_delivery` is called for each PUBLISH; `closed` is done when the connection has ended."""

    def __init__(self, on_delivery: Callable[[FleetDelivery], None]) -> None:
        self._on_delivery = on_delivery
        self._rest = b""
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._unacknowledged: set[int] = set()
        self._packet_id = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set by connection_made
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a stream's

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(UnavailableError("the broker closed the connection"))
        self._quiet.set()

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at = 0
        acknowledgements = bytearray()
        while (header := mqtt_header(data[at : at + 5])) is not None and len(data) - at >= header[1]:
            start, length = header
            self._packet(data[at], data[at + start : at + length], acknowledgements)
            at += length
        self._rest = data[at:]
        if acknowledgements and not self.transport.is_closing():
            self.transport.write(bytes(acknowledgements))

    def _packet(self, first: int, body: bytes, acknowledgements: bytearray) -> None:
        kind = first & 0xF0
        if kind == 0x30:
            end = 2 + int.from_bytes(body[:2], "big")
            topic, qos = body[2:end], first >> 1 & 3
            if qos:
                acknowledgements += b"\x40\x02" + body[end : end + 2]
                end += 2
            self._on_delivery(FleetDelivery(topic, body[end:], bool(first & 8)))
        elif kind == 0x40:
            self._unacknowledged.discard(int.from_bytes(body, "big"))
            if not self._unacknowledged:
                self._quiet.set()
        elif (answer := self._answers.get(kind)) is not None and not answer.done():
            answer.set_result(body)

    # -- what a client does

    async def _ask(self, packet: bytes, kind: int) -> bytes:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[kind] = answer
        self.transport.write(packet)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise PeerError(f"the broker did not answer within {ANSWER_TIMEOUT_S:.0f} s (packet {kind:#04x})") from None
        finally:
            del self._answers[kind]

    async def open(self, client_id: str, *, clean: bool = False, will: DeviceWill | None = None) -> bool:
        """CONNECT; whether the broker had the session. Raises RefusedError, PeerError, UnavailableError."""
        flags = (_CLEAN if clean else 0) | (_WILL_QOS1 if will is not None else 0)
        body = b"\0\4MQTT\4" + bytes([flags, 0, 0]) + _text(client_id)
        if will is not None:
            body += _text(will.topic) + _text(will.payload)
        answer = await self._ask(mqtt_frame(0x10, body), 0x20)
        if answer[1]:
            raise RefusedError(f"{client_id}: the broker refused CONNECT with code {answer[1]}")
        return bool(answer[0] & 1)

    async def subscribe(self, topic_filter: str | bytes) -> None:
        """SUBSCRIBE with QoS 1. Raises RefusedError, PeerError, UnavailableError."""
        packet = mqtt_frame(0x82, self._next_id() + _text(topic_filter) + b"\1")
        if (await self._ask(packet, 0x90))[2] > 2:
            raise RefusedError(f"the broker refused to subscribe to {topic_filter!r}")

    def publish(self, topic: str, payload: bytes) -> None:
        """PUBLISH with QoS 1."""
        packet_id = self._next_id()
        self._unacknowledged.add(self._packet_id)
        self._quiet.clear()
        self.transport.write(mqtt_frame(0x32, _text(topic) + packet_id + payload))

    def _next_id(self) -> bytes:
        self._packet_id = self._packet_id % _IDS + 1
        return self._packet_id.to_bytes(2, "big")

    async def quiet(self) -> None:
        """Return when everything is acknowledged. Raises UnavailableError when the connection ends before,
        PeerError when the broker takes too long."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._quiet.wait()
        except TimeoutError:
            raise PeerError(f"{len(self._unacknowledged)} publications are not acknowledged") from None
        if self._unacknowledged:
            raise UnavailableError(f"the broker closed the connection, {len(self._unacknowledged)} unacknowledged")

    async def leave(self) -> None:
        """DISCONNECT, and close."""
        self.transport.write(b"\xe0\0")
        self.transport.close()
        await self.closed

    async def drop(self) -> None:
        """Break the connection without a word, so that the will goes out."""
        self.transport.abort()
        await self.closed


async def dial_broker(host: str, port: int, on_delivery: Callable[[FleetDelivery], None]) -> DeviceConnection:
    """A connection, nothing said yet. Raises UnavailableError."""
    try:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: DeviceConnection(on_delivery), host, port
        )
    except OSError as error:
        raise UnavailableError(f"cannot connect to {host}:{port}: {error.strerror or error}") from None
    return connection
