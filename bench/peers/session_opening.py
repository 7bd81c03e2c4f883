"""The opening of many sessions at once, at a bounded rate, over non-blocking sockets and one epoll.

A session counts as open when the broker confirmed each step of its handshake (CONNACK and SUBACK; PONG after SUB).
Bounds: at most `in_flight` handshakes at a time and `rate_per_s` new ones a second, so that a listen queue is never
overrun (at a backlog of 100 clients see success long before the server has accepted them).
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from lexicast.cluster.errors import PeerError, UnavailableError, UsageError

from ..stage.servers import Address
from .framed_socket import FramedSocket
from .tls_socket import TlsSocket
from .wire import HandshakeStep, RefusedError, Wire


@dataclass(frozen=True)
class SessionSpec:
    """One session to open: its client id and, for a subscriber, its topic."""

    client_id: str
    topic: str | None = None
    qos: int = 0


class _Handshake:
    """One session on its way: which step it is at and what has arrived of the answer."""

    def __init__(self, index: int, sock: socket.socket, steps: list[HandshakeStep]) -> None:
        self.index = index
        self.sock = sock
        self._steps = steps
        self._at = -1
        self._received = b""

    @property
    def idle(self) -> bool:
        """True while it waits for a timer of the broker's."""
        return self._at < len(self._steps) and self._steps[self._at].idle

    def advance(self) -> bool:
        """Sends the next step's bytes; True when there is nothing left to wait for.

        A handshake's bytes are far fewer than an empty socket buffer takes, so one send is enough.
        """
        self._at += 1
        while self._at < len(self._steps):
            step = self._steps[self._at]
            if step.data:
                self.sock.send(step.data)
            if step.answer is not None:
                return False
            self._at += 1
        if self._received:
            raise RefusedError(f"unexpected bytes after the handshake: {self._received[:40]!r}")
        return True

    def on_readable(self) -> bool:
        """Reads what arrived; True when the session is open."""
        try:
            data = self.sock.recv(65_536)
        except BlockingIOError:  # a part of a record of TLS, or of a frame's header
            return False
        if not data:
            raise RefusedError(f"the broker closed a connection at step {self._at + 1} of its handshake")
        self._received += data
        while (answer := self._steps[self._at].answer) is not None and (taken := answer(self._received)):
            self._received = self._received[taken:]
            if self.advance():
                return True
        return False


def encrypted(sock: socket.socket, address: Address) -> socket.socket:
    """`sock` with TLS, whose handshake is done. Raises UnavailableError."""
    try:
        return cast(socket.socket, TlsSocket(sock, address.cafile, address.host))
    except OSError as error:
        sock.close()
        raise UnavailableError(f"no TLS with {address.host}:{address.port}: {error}") from error


def raise_open_files(needed: int) -> None:
    """Raises this process's soft limit of open files to its hard limit; child processes inherit it.

    Raises `UsageError` when even the hard limit is below `needed`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UsageError(
            f"{needed} open files are needed but the hard limit is {hard}: use fewer connections or raise `ulimit -Hn`"
        )
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_sessions(
    address: Address,
    wire: Wire,
    specs: Sequence[SessionSpec],
    *,
    in_flight: int = 100,
    rate_per_s: float = 5_000.0,
    timeout_s: float = 120.0,
    progress: Callable[[int], None] = lambda opened: None,
) -> list[socket.socket]:
    """Opens a session for each of `specs` and returns their non-blocking sockets in that order.

    Raises `RefusedError` when a broker refuses or closes one, `UnavailableError` when not all are open after
    `timeout_s`. On any error every socket opened so far is closed.
    """
    opener = _Opener(address, wire, specs, in_flight, rate_per_s)
    deadline = time.monotonic() + timeout_s
    try:
        while opener.opened < len(specs):
            opener.turn()
            progress(opener.opened)
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"only {opener.opened} of {len(specs)} sessions were open after {timeout_s:.0f} s "
                    f"at {address.host}:{address.port}"
                )
    except BaseException:
        close_all(opener.sockets)
        raise
    finally:
        opener.close()
    return opener.sockets


class _Opener:
    """The state of `open_sessions`."""

    def __init__(
        self, address: Address, wire: Wire, specs: Sequence[SessionSpec], in_flight: int, rate_per_s: float
    ) -> None:
        self.sockets: list[socket.socket] = []
        self.opened = 0
        self._address, self._wire, self._specs = address, wire, specs
        self._in_flight, self._rate_per_s = in_flight, rate_per_s
        self._started = time.monotonic()
        self._epoll = select.epoll()
        self._pending: dict[int, _Handshake] = {}
        self._idle = 0

    def turn(self) -> None:
        """Starts what the bounds allow and handles what became ready (waits up to 10 ms)."""
        allowed = 1 + int((time.monotonic() - self._started) * self._rate_per_s)
        while len(self.sockets) < min(len(self._specs), allowed) and len(self._pending) - self._idle < self._in_flight:
            self._start(self._specs[len(self.sockets)])
        for descriptor, _ in self._epoll.poll(0.01):
            handshake = self._pending[descriptor]
            was_idle = handshake.idle
            try:
                done = handshake.on_readable()
            except (PeerError, OSError) as error:
                spec = self._specs[handshake.index]
                raise RefusedError(f"session {spec.client_id} (number {handshake.index + 1}): {error}") from error
            self._idle += handshake.idle - was_idle
            if done:
                self._finish(descriptor)

    def _start(self, spec: SessionSpec) -> None:
        # Connecting to loopback completes at once or fails at once, so a blocking connect costs nothing here.
        try:
            sock = socket.create_connection((self._address.host, self._address.port), timeout=10.0)
        except OSError as error:
            place = f"{self._address.host}:{self._address.port}"
            raise UnavailableError(f"cannot connect to {place}: {error.strerror or error}") from error
        if self._address.cafile:
            sock = encrypted(sock, self._address)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        steps = self._wire.opening(spec.client_id, spec.topic, spec.qos)
        if self._address.websocket:
            framed = FramedSocket(sock)
            sock, steps = cast(socket.socket, framed), [framed.upgrade(), *steps]
        handshake = _Handshake(len(self.sockets), sock, steps)
        self.sockets.append(sock)
        self._pending[sock.fileno()] = handshake
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        handshake.advance()

    def _finish(self, descriptor: int) -> None:
        self._epoll.unregister(descriptor)
        del self._pending[descriptor]
        self.opened += 1

    def close(self) -> None:
        self._epoll.close()


def close_all(sockets: Iterable[socket.socket], farewell: bytes = b"") -> None:
    """Closes every socket, after the protocol's `farewell` where the peer still takes it."""
    for sock in sockets:
        if farewell:
            with contextlib.suppress(OSError):
                sock.send(farewell)
        sock.close()
