"""A link's byte stream over batched Ray calls, for clients that cannot reach a broker's sockets (`ray://`).

    client                                         broker actor
    write -> gathered -> one send() at a time  ->  CallLinks.send     -> ListenerLink.data_received
    data_received  <-  one receive() at a time <-  CallLinks.receive  <- ListenerLink's writes, gathered

What is written while a call is under way joins the next one, so a slow path makes larger batches, not a longer queue
of calls. One call at a time in each direction keeps the order. The same handshake as on a socket runs inside, and
encrypts what Ray carries in the clear.

Bounds: the broker holds at most `BUFFER_BYTES_MAX` for a client (a client that lets more gather is cut off; the link
is told to pause long before); a `send` returns only when the link reads again; at most `CLIENTS_MAX` clients; a
client that makes no call for `IDLE_S` is dropped.

No Ray in here: `BrokerCalls` is what the client needs of the actor, whose methods only call `CallLinks`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, Final, Protocol

from lexicast.cluster.errors import PeerError, UnavailableError
from lexicast.cluster.protocol.heartbeat import Beats

from .handshake import DiallerLink, ListenerLink
from .link import HANDSHAKE_TIMEOUT_S, WRITE_HIGH_BYTES, Link, LinkUser

BUFFER_BYTES_MAX: Final = 64 * 1024 * 1024
CALL_BYTES_MAX: Final = 8 * 1024 * 1024
RECEIVE_WAIT_S: Final = 20.0
IDLE_S: Final = 60.0
CLIENTS_MAX: Final = 10_000
# Each beat is a call or two: rarer than on a socket.
BEATS: Final = Beats(beat_s=5.0, silence_s=IDLE_S)


class BrokerCalls(Protocol):
    """The broker actor's methods, as the client calls them. Each raises UnavailableError when the actor is gone."""

    async def client_open(self, name: str) -> str:
        """A token for a new stream."""

    async def client_send(self, token: str, data: bytes) -> None:
        """Bytes to the broker."""

    async def client_receive(self, token: str, wait_s: float) -> bytes:
        """Bytes from the broker: at once when there are some, else after at most `wait_s` seconds, perhaps none."""

    async def client_close(self, token: str) -> None:
        """The end of the stream."""


class _Buffered(asyncio.Transport):
    """A transport whose writes gather in memory, with asyncio's flow control towards its protocol."""

    def __init__(self, protocol: asyncio.Protocol, bytes_max: int | None) -> None:
        super().__init__()
        self._protocol = protocol
        self._bytes_max = bytes_max
        self._high = WRITE_HIGH_BYTES
        self._parts: list[bytes] = []
        self._size = 0
        self._protocol_paused = False
        self._closing = False
        self._ended = False
        self.keeper: object = None
        self.readable = asyncio.Event()
        self.readable.set()
        self.gathered = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        self._parts.append(bytes(data))
        self._size += len(data)
        self.gathered.set()
        if self._bytes_max is not None and self._size > self._bytes_max:
            self.end(PeerError(f"the other side has let {self._size} bytes gather"))
        elif self._size > self._high and not self._protocol_paused:
            self._protocol_paused = True
            self._protocol.pause_writing()

    def take(self) -> bytes:
        """What has gathered, at most about CALL_BYTES_MAX."""
        data = b"".join(self._parts)
        self._parts.clear()
        if len(data) > CALL_BYTES_MAX:
            self._parts.append(data[CALL_BYTES_MAX:])
            data = data[:CALL_BYTES_MAX]
        self._size -= len(data)
        if not self._parts and not self._closing:
            self.gathered.clear()
        if self._protocol_paused and self._size <= self._high // 2:
            self._protocol_paused = False
            self._protocol.resume_writing()
        return data

    def feed(self, data: bytes) -> None:
        """Bytes from the other side, to the protocol."""
        if not self._ended and data:
            self._protocol.data_received(data)

    def end(self, error: Exception | None) -> None:
        """The stream is over."""
        if self._ended:
            return
        self._ended = self._closing = True
        self.gathered.set()
        self.readable.set()
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)

    @property
    def ended(self) -> bool:
        return self._ended

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = WRITE_HIGH_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._size

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self.readable.is_set()

    def pause_reading(self) -> None:
        if not self._ended:
            self.readable.clear()

    def resume_reading(self) -> None:
        self.readable.set()

    def close(self) -> None:
        """No more writes; whoever takes what has gathered ends the stream."""
        self._closing = True
        self.gathered.set()

    def abort(self) -> None:
        self._parts.clear()
        self._size = 0
        self.end(None)


class CallLinks:
    """The broker's side: a ListenerLink for each token. All methods in the actor's event loop."""

    def __init__(
        self,
        key: bytes,
        cluster_id: str,
        opened: Callable[[Link], LinkUser | None],
        info: dict[str, Any],
        *,
        idle_s: float = IDLE_S,
        encrypted: bool = True,
    ) -> None:
        self._key = key
        self._cluster_id = cluster_id
        self._opened = opened
        self._info = info
        self._idle_s = idle_s
        self._encrypted = encrypted
        self._streams: dict[str, tuple[ListenerLink, _Buffered]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, name: str) -> str:
        """A token for a new stream. `name` is for people; the handshake inside says who it is.

        Raises UnavailableError when there are CLIENTS_MAX already.
        """
        if len(self._streams) >= CLIENTS_MAX:
            raise UnavailableError(f"{CLIENTS_MAX} clients are connected by Ray calls already: use another broker")
        link = ListenerLink(self._key, self._cluster_id, self._opened, self._info, BEATS, self._encrypted)
        transport = _Buffered(link, BUFFER_BYTES_MAX)
        token = secrets.token_hex(16)
        self._streams[token] = (link, transport)
        self._touch(token)
        link.connection_made(transport)
        return token

    async def send(self, token: str, data: bytes) -> None:
        """Bytes from the client; returns when the link takes more. Raises UnavailableError for an unknown token."""
        transport = self._transport(token)
        transport.feed(data)
        await transport.readable.wait()
        self._touch(token)

    async def receive(self, token: str, wait_s: float) -> bytes:
        """Bytes for the client, after at most `wait_s` seconds (then none). Raises UnavailableError at the end."""
        transport = self._transport(token)
        try:
            async with asyncio.timeout(min(wait_s, self._idle_s / 2)):
                await transport.gathered.wait()
        except TimeoutError:
            pass
        self._touch(token)
        data = transport.take()
        if not data and transport.is_closing():
            transport.end(None)
            self._forget(token)
            raise UnavailableError("the broker ended the stream")
        return data

    def close(self, token: str) -> None:
        """The client has gone."""
        stream = self._streams.get(token)
        if stream is not None:
            stream[1].abort()
            self._forget(token)

    def close_all(self) -> None:
        """The broker stops."""
        for token in list(self._streams):
            self.close(token)

    def _transport(self, token: str) -> _Buffered:
        stream = self._streams.get(token)
        if stream is None:
            raise UnavailableError("unknown stream: it was idle too long, or the broker has restarted")
        self._touch(token)
        return stream[1]

    def _touch(self, token: str) -> None:
        timer = self._timers.pop(token, None)
        if timer is not None:
            timer.cancel()
        if token in self._streams:
            self._timers[token] = asyncio.get_running_loop().call_later(self._idle_s, self.close, token)

    def _forget(self, token: str) -> None:
        self._streams.pop(token, None)
        timer = self._timers.pop(token, None)
        if timer is not None:
            timer.cancel()


class _ClientStream:
    """The client's side of one stream: two tasks, one a direction."""

    def __init__(self, calls: BrokerCalls, token: str, transport: _Buffered) -> None:
        self._calls = calls
        self._token = token
        self._transport = transport
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._send()), loop.create_task(self._receive())]

    async def _send(self) -> None:
        transport = self._transport
        while True:
            await transport.gathered.wait()
            data = transport.take()
            if data and not transport.ended:
                try:
                    await self._calls.client_send(self._token, data)
                except Exception as error:  # whatever it was: nobody else would ever end the stream
                    transport.end(error)
            elif transport.is_closing():
                await self._finish()
                transport.end(None)
                return

    async def _finish(self) -> None:
        self._tasks[1].cancel()
        try:
            await self._calls.client_close(self._token)
        except Exception:
            return  # the broker drops the stream by itself when it is idle

    async def _receive(self) -> None:
        transport = self._transport
        while not transport.ended:
            await transport.readable.wait()
            try:
                data = await self._calls.client_receive(self._token, RECEIVE_WAIT_S)
            except Exception as error:  # as in `_send`
                transport.end(error)
                return
            transport.feed(data)


async def dial_calls(
    calls: BrokerCalls,
    key: bytes,
    cluster_id: str,
    hello: tuple[str, str, int],
    opened: Callable[[Link], LinkUser | None],
) -> Link:
    """Open a link through an actor's calls, as `link.dial` does through a socket. Raises as `link.dial`."""
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            token = await calls.client_open(hello[1])
    except TimeoutError:
        raise TimeoutError(f"the broker has not answered a call within {HANDSHAKE_TIMEOUT_S:.0f} s") from None
    link = DiallerLink(key, cluster_id, hello, opened, BEATS)
    transport = _Buffered(link, None)
    link.connection_made(transport)
    # The link holds the transport, the transport holds the tasks: an event loop refers to its tasks only weakly.
    transport.keeper = _ClientStream(calls, token, transport)
    try:
        return await link.wait_open()
    except BaseException:
        link.abort()
        raise
