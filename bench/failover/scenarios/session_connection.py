"""The connection of a session in a crowd: a fleet device's, with QoS 2, silence that is noticed, and a longer way.

The kernels that machines in namespaces share delay no packets here, so a longer way to the other location is made at
this end of the connection: both directions, the handshake of TCP and its end take that much longer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from ...fleet.device_connection import DeviceConnection
from ...peers.wire import RefusedError, mqtt_frame

PINGREQ: Final = b"\xc0\0"
_CONNACK, _PUBLISH, _PUBACK, _PUBREC, _PUBREL, _PUBCOMP = 0x20, 0x30, 0x40, 0x50, 0x60, 0x70

# Topic, payload, QoS.
OnMessage = Callable[[bytes, bytes, int], None]


class FarTransport(asyncio.Transport):
    """A transport whose bytes leave later."""

    def __init__(self, near: asyncio.Transport, way_s: float) -> None:
        super().__init__()
        self._near = near
        self._way_s = way_s
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        # Timers of the same length end in the order in which they began.
        self._loop.call_later(self._way_s, self._near.write, data)

    def is_closing(self) -> bool:
        return self._near.is_closing()

    def close(self) -> None:
        self._loop.call_later(self._way_s, self._near.close)

    def abort(self) -> None:
        self._near.abort()


class SessionConnection(DeviceConnection):
    """See the module's docstring. `held`: the packet ids of QoS 2 that are not released yet, the session's; `on_answer`
    is called with the packet id of each publication of ours that is done, `on_received` where that is only received."""

    def __init__(
        self,
        on_message: OnMessage,
        held: set[bytes],
        way_s: float = 0.0,
        on_answer: Callable[[bytes], None] = lambda packet_id: None,
        on_received: Callable[[bytes], None] = lambda packet_id: None,
    ) -> None:
        super().__init__(lambda delivery: None)
        self._on_message = on_message
        self._held = held
        self._way_s = way_s
        self._on_answer = on_answer
        self._on_received = on_received
        self.heard_ns = time.monotonic_ns()
        self._asked = False
        self.accepted_ns = 0

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._way_s:
            transport = FarTransport(transport, self._way_s)  # type: ignore[arg-type]  # a stream's
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._way_s:
            asyncio.get_running_loop().call_later(self._way_s, self._heard, data)
        else:
            self._heard(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._way_s:
            asyncio.get_running_loop().call_later(self._way_s, super().connection_lost, error)
        else:
            super().connection_lost(error)

    def _heard(self, data: bytes) -> None:
        self.heard_ns, self._asked = time.monotonic_ns(), False
        super().data_received(data)

    def _packet(self, first: int, body: bytes, acknowledgements: bytearray) -> None:
        kind = first & 0xF0
        if kind == _PUBLISH:
            self._published(first >> 1 & 3, body, acknowledgements)
        elif kind == _PUBREL:
            self._held.discard(body)
            acknowledgements += b"\x70\x02" + body
        elif kind == _PUBREC:
            self._on_received(body)
            acknowledgements += b"\x62\x02" + body
        elif kind in (_PUBACK, _PUBCOMP):
            self._on_answer(body)
        else:
            if kind == _CONNACK:  # here, since messages may stand behind it
                self.accepted_ns = time.monotonic_ns()
            super()._packet(first, body, acknowledgements)

    def _published(self, qos: int, body: bytes, acknowledgements: bytearray) -> None:
        end = 2 + int.from_bytes(body[:2], "big")
        topic, packet_id = body[2:end], body[end : end + 2]
        if qos == 2:
            acknowledgements += b"\x50\x02" + packet_id
            if packet_id in self._held:
                return
            self._held.add(packet_id)
        elif qos:
            acknowledgements += b"\x40\x02" + packet_id
        self._on_message(topic, body[end + 2 if qos else end :], qos)

    # -- what a client does

    async def subscribe_to(self, filters: list[str], qos: int) -> None:
        """SUBSCRIBE. Raises RefusedError, PeerError, UnavailableError."""
        body = self._next_id()
        for each in filters:
            body += len(each.encode()).to_bytes(2, "big") + each.encode() + bytes([qos])
        if max((await self._ask(mqtt_frame(0x82, body), 0x90))[2:]) > 2:
            raise RefusedError(f"the broker refused to subscribe to {', '.join(filters)}")

    def look_for_silence(self, now_s: float, silence_s: float) -> None:
        """Ask whether the broker is there when it has been silent; end the connection when it says nothing."""
        silent_s = now_s - self.heard_ns / 1e9
        if silent_s > silence_s:
            self.transport.abort()
        elif not self._asked and silent_s > silence_s / 2:
            self._asked = True
            self.transport.write(PINGREQ)


async def dial_session(host: str, port: int, make: Callable[[], SessionConnection], way_s: float) -> SessionConnection:
    """A connection, nothing said yet. Raises OSError."""
    if way_s:  # SYN, and the answer
        await asyncio.sleep(2 * way_s)
    _, connection = await asyncio.get_running_loop().create_connection(make, host, port)
    return connection
