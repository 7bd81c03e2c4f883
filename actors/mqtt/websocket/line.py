"""The WebSocket between a socket and an MQTT connection: to the one it is a protocol, to the other a transport.

    UPGRADING  the client's HTTP request is awaited
    OPEN       bytes go through, in frames
    CLOSING    we have said CLOSE: what the client still sends is dropped until it says the same
    CLOSED     nothing more goes through

The MQTT connection is there from the beginning, so what limits connections (their number, the seconds to CONNECT) holds
for those whose upgrade is slow; it learns nothing else of all this. Its keep-alive is MQTT's, PINGs do not count.

What is written to many is the same object for all of them, so its frame is made once (`SharedFrames`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from lexicast.cluster.security.addresses import is_same_machine

from ..connection import MqttConnection
from .frames import NORMAL_CLOSURE, PONG, FrameReader, close_frame, frame_header
from .upgrade import HEAD_BYTES_MAX, HEAD_END, too_long, upgrade_answer

log = logging.getLogger(__name__)

# From here on header and data are two buffers of one write: copying would cost more than the second buffer does.
COPIED_BYTES_MAX: Final = 256 * 1024
ORIGINS_REMEMBERED: Final = 100

UPGRADING: Final = 0
OPEN: Final = 1
CLOSING: Final = 2
CLOSED: Final = 3


class SharedFrames:
    """The frame around what was written last: a fan-out writes one object to many, one after the other."""

    __slots__ = ("_data", "_framed")

    def __init__(self) -> None:
        self._data = b""
        self._framed = frame_header(0)

    def framed(self, data: bytes) -> bytes:
        """`data` in a frame, the same object again for the same object."""
        if data is not self._data:
            self._data, self._framed = data, frame_header(len(data)) + data
        return self._framed


class WebSocketServices:
    """What the WebSockets of one broker share. `refused` counts upgrades that came to nothing, by why."""

    def __init__(
        self, origins: Collection[str], connection: Callable[[], MqttConnection], refused: Counter[str]
    ) -> None:
        """`origins`: mqtt.ws_origins; `connection` makes what serves one client."""
        self.origins = origins
        self.connection = connection
        self.refused = refused
        self.frames = SharedFrames()
        self._origins_told: set[str] = set()

    def line(self) -> WebSocketLine:
        """For a connection that was accepted."""
        return WebSocketLine(self)

    def refuse(self, why: str, origin: str, address: str) -> None:
        """Count and tell an upgrade that came to nothing."""
        self.refused[f"WebSocket: {why}"] += 1
        log.info("%s gets no WebSocket: %s", address, why)
        if why == "origin" and origin not in self._origins_told and len(self._origins_told) < ORIGINS_REMEMBERED:
            self._origins_told.add(origin)
            log.warning("a page of %r may not connect: mqtt.ws_origins does not name it", origin)


# More than 25 methods: each is one of asyncio's, a protocol's or a transport's.
class WebSocketLine(asyncio.Transport, asyncio.Protocol):
    """See the module's docstring."""

    __slots__ = ("_client", "_code", "_frames", "_full", "_head", "_inner", "_paused", "_services", "_state")

    def __init__(self, services: WebSocketServices) -> None:
        super().__init__()
        self._services = services
        self._client = services.connection()
        self._inner: asyncio.Transport
        self._frames = FrameReader()
        self._head = bytearray()
        self._state = UPGRADING
        self._code = NORMAL_CLOSURE
        self._full = self._paused = False

    # -- asyncio.Protocol: what the socket says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection was accepted."""
        self._inner = transport  # type: ignore[assignment] # uvloop's transport
        self._client.connection_made(self)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._state == UPGRADING:
            self._upgrade(data)
        elif self._state != CLOSED:
            self._take(data)

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return self._client.eof_received()

    def pause_writing(self) -> None:
        """Too much waits to be sent."""
        self._full = True
        self._client.pause_writing()

    def resume_writing(self) -> None:
        """It has been sent."""
        self._full = False
        self._client.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._state = CLOSED
        self._client.connection_lost(exc)

    # -- the upgrade

    def _upgrade(self, data: bytes) -> None:
        looked = max(0, len(self._head) - len(HEAD_END))
        self._head += data
        ends = self._head.find(HEAD_END, looked) + len(HEAD_END)
        if max(ends, 0 if ends >= len(HEAD_END) else len(self._head)) > HEAD_BYTES_MAX:
            self._refuse(too_long(), "too long a request")
        elif ends >= len(HEAD_END):
            head, rest = bytes(self._head[:ends]), bytes(self._head[ends:])
            self._head = bytearray()
            self._answer(head)
            if rest and self._state == OPEN:
                self._take(rest)

    def _answer(self, head: bytes) -> None:
        peer, own = (self._address(name) for name in ("peername", "sockname"))
        answer = upgrade_answer(head, self._services.origins, is_same_machine(peer, own))
        if answer.refusal:
            self._refuse(answer.response, answer.refusal, answer.origin)
            return
        self._state = OPEN
        self._inner.write(answer.response)

    def _refuse(self, response: bytes, why: str, origin: str = "") -> None:
        self._services.refuse(why, origin, self._address("peername"))
        self._inner.write(response)
        self._client.end()

    def _address(self, which: str) -> str:
        end = self._inner.get_extra_info(which)
        return str(end[0]) if isinstance(end, tuple) else ""

    # -- frames

    def _take(self, data: bytes) -> None:
        frames = self._frames
        payload = frames.feed(data)
        if payload and self._state == OPEN:
            self._client.data_received(payload)
        ping = frames.take_ping()
        if ping is not None and self._state == OPEN and not self._full:
            self._inner.write(frame_header(len(ping), PONG) + ping)
        if frames.is_over:
            self._over()
        elif frames.has_more:
            self._inner.pause_reading()
            asyncio.get_running_loop().call_soon(self._take_more)

    def _take_more(self) -> None:
        """Go on with a read of many frames, unless whoever serves the client does not want to read now."""
        if self._state in (OPEN, CLOSING) and not self._paused and self._frames.has_more:
            self._inner.resume_reading()
            self._take(b"")

    def _over(self) -> None:
        """The client closes, or has broken the rules."""
        frames = self._frames
        if self._state == CLOSING:
            self._state = CLOSED
            self._inner.close()
        elif self._state == OPEN:
            if frames.error is not None:
                log.info("%s: %s", self._address("peername"), frames.error)
                self._services.refused["WebSocket: bad frames"] += 1
                self._code = frames.error.code
            elif frames.closing is not None:
                self._code = frames.closing
            self._client.end()
            self.close()

    # -- asyncio.Transport: what the connection does

    def write(self, data: Any) -> None:
        """One frame."""
        if self._state != OPEN or not data:
            return
        if len(data) <= COPIED_BYTES_MAX:
            self._inner.write(self._services.frames.framed(data))
        else:
            self._inner.writelines((frame_header(len(data)), data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """One frame of all."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Whether CLOSE can still be said; the client is heard out then."""
        return self._state == OPEN

    def write_eof(self) -> None:
        """Say CLOSE, and hear the client out until it says the same."""
        if self._state == OPEN:
            self._inner.write(close_frame(self._code))
            self._state = CLOSING

    def close(self) -> None:
        """Say CLOSE, and this is the end."""
        self.write_eof()
        self._state = CLOSED
        self._inner.close()

    def abort(self) -> None:
        """The end, without a word."""
        self._state = CLOSED
        self._inner.abort()

    def is_closing(self) -> bool:
        """Whether it is being closed."""
        return self._state >= CLOSING or self._inner.is_closing()

    def pause_reading(self) -> None:
        """Take no more of what the client sends."""
        self._paused = True
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """Take more."""
        self._paused = False
        if self._frames.has_more:
            asyncio.get_running_loop().call_soon(self._take_more)
        else:
            self._inner.resume_reading()

    def is_reading(self) -> bool:
        """Whether it is read."""
        return not self._paused and self._inner.is_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The socket's, and "websocket": True."""
        return True if name == "websocket" else self._inner.get_extra_info(name, default)

    def set_read_buffer_limits(self, high: int | None = None) -> None:
        """Of TLS."""
        self._inner.set_read_buffer_limits(high)  # type: ignore[attr-defined] # what TLS transports have

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """What may wait to be sent."""
        self._inner.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """What waits to be sent."""
        return self._inner.get_write_buffer_size()


def is_websocket(transport: asyncio.BaseTransport) -> bool:
    """Whether the connection came by WebSocket."""
    return transport.get_extra_info("websocket") is True
