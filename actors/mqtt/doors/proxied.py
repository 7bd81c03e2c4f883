"""Connections that a proxy passes on: their first bytes say whose they are (`proxy_header`), and from then on they are
the client's.

Whether one is passed on is told by where it comes from (`mqtt.proxies`), never by what it begins with: else whoever
connects could say that he is somebody else. The connection that serves the client is there from the beginning, so what
limits those (their number, the seconds to CONNECT) holds for a proxy that says nothing. With TLS the header comes
before the handshake, and is taken off the socket (`take_header`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, Final, cast

from lexicast.cluster.security.networks import Networks

from .passing import Passing
from .proxy_header import HEADER_BYTES_MAX, ProxyHeaderError, proxy_header

log = logging.getLogger(__name__)

_PEER: Final = "peername"
_ADDRESSED: Final = "addressed"


class AddressedTransport(asyncio.Transport):
    """A transport whose peer is another one than the socket's."""

    __slots__ = ("_inner", "_peer", "is_named", "when_named", "write", "writelines")

    def __init__(self, inner: asyncio.Transport, peer: tuple[str, int] | None = None) -> None:
        """`peer` None: it is not known yet, see `name`."""
        super().__init__()
        self._inner = inner
        self._peer = peer
        self.is_named = peer is not None
        # Called by `name`.
        self.when_named: Callable[[], None] | None = None
        # The transport's own: what is written costs nothing more.
        self.write = inner.write  # type: ignore[method-assign] # a slot, not a method
        self.writelines = inner.writelines  # type: ignore[method-assign] # a slot, not a method

    def name(self, peer: tuple[str, int] | None) -> None:
        """The header has come; None: the connection is the socket's peer's own."""
        self._peer, self.is_named = peer, True
        told, self.when_named = self.when_named, None
        if told is not None:
            told()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The socket's, but for "peername", and this as "addressed"."""
        if name == _PEER and self._peer is not None:
            return self._peer
        if name == _ADDRESSED:
            return self
        return self._inner.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See asyncio."""
        self._inner.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See asyncio."""
        return self._inner.get_protocol()

    def can_write_eof(self) -> bool:
        """See asyncio."""
        return self._inner.can_write_eof()

    def write_eof(self) -> None:
        """See asyncio."""
        self._inner.write_eof()

    def close(self) -> None:
        """See asyncio."""
        self._inner.close()

    def abort(self) -> None:
        """See asyncio."""
        self._inner.abort()

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._inner.is_closing()

    def pause_reading(self) -> None:
        """See asyncio."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """See asyncio."""
        self._inner.resume_reading()

    def is_reading(self) -> bool:
        """See asyncio."""
        return self._inner.is_reading()

    def set_read_buffer_limits(self, high: int | None = None) -> None:
        """Of TLS."""
        self._inner.set_read_buffer_limits(high)  # type: ignore[attr-defined] # what TLS transports have

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio."""
        self._inner.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return self._inner.get_write_buffer_size()


class ProxiedBeginning(Passing, asyncio.Protocol):
    """The protocol of a connection until it has said whose it is; then that is its `protocol`'s."""

    __slots__ = ("_begun", "_proxies", "_transport")

    def __init__(self, protocol: asyncio.Protocol, proxies: Networks) -> None:
        super().__init__(protocol)
        self._proxies = proxies
        self._begun = b""
        self._transport: AddressedTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection was accepted."""
        inner = cast(asyncio.Transport, transport)  # uvloop's is none
        if not is_proxy(transport.get_extra_info(_PEER), self._proxies):
            inner.set_protocol(self._protocol)
            self._protocol.connection_made(inner)
            return
        self._transport = AddressedTransport(inner)
        self._protocol.connection_made(self._transport)

    def data_received(self, data: bytes) -> None:
        """Its first bytes, or more of them."""
        self._begun += data
        try:
            header = proxy_header(self._begun)
        except ProxyHeaderError as error:
            _tell_refused(self._transport.get_extra_info(_PEER), error)
            self._transport.abort()
            return
        if header is not None:
            self._transport.set_protocol(self._protocol)
            rest, self._begun = self._begun[header.size :], b""
            self._transport.name(header.peer)
            if rest and not self._transport.is_closing():
                self._protocol.data_received(rest)


def proxied(protocol: Callable[[], asyncio.Protocol], proxies: Networks) -> Callable[[], asyncio.Protocol]:
    """`protocol` for a door at which proxies are believed."""
    return (lambda: ProxiedBeginning(protocol(), proxies)) if proxies else protocol


def unnamed(transport: asyncio.BaseTransport) -> AddressedTransport | None:
    """What becomes `is_named` when a proxy has said whose connection it is; None: that is known."""
    found = transport.get_extra_info(_ADDRESSED)
    return found if isinstance(found, AddressedTransport) and not found.is_named else None


def is_proxy(peer: object, proxies: Networks) -> bool:
    """Whether a connection from `peer`, a socket's address, is passed on by a proxy that is believed."""
    return isinstance(peer, tuple) and bool(peer) and str(peer[0]) in proxies


async def take_header(sock: socket.socket, timeout_s: float) -> tuple[str, int] | None:
    """Take a header, and nothing else, off a non-blocking socket: the client's (address, port), None where it is the
    proxy's own. Raises ProxyHeaderError, TimeoutError, OSError."""
    loop = asyncio.get_running_loop()
    begun, until_s = b"", loop.time() + timeout_s
    while True:
        await _readable(sock, until_s - loop.time())
        data = sock.recv(HEADER_BYTES_MAX, socket.MSG_PEEK)
        if not data:
            raise ProxyHeaderError("the connection ended before its header did")
        header = proxy_header(begun + data)
        if header is not None:
            sock.recv(header.size - len(begun))
            return header.peer
        begun += sock.recv(len(data))  # a part of a header is nothing else's


async def _readable(sock: socket.socket, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    there = asyncio.Event()
    loop.add_reader(sock.fileno(), there.set)
    try:
        async with asyncio.timeout(timeout_s):
            await there.wait()
    finally:
        loop.remove_reader(sock.fileno())


def _tell_refused(peer: object, error: ProxyHeaderError) -> None:
    """Tell of a connection of a proxy's that did not say whose it is."""
    log.warning("%s is among mqtt.proxies and sent no header of the PROXY protocol: %s", peer, error)
