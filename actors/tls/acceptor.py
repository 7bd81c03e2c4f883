"""The acceptor of TLS connections: it takes sockets from the kernel, and hands them to handshakes in a bounded line.

See `handshake_line` for who waits and who makes way; here is what is done about it. A connection is its protocol's from
the end of its handshake on, as asyncio has it; before that it costs a place in the line, and no place in whatever the
protocol counts.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from lexicast.cluster.security.back_off import party
from lexicast.cluster.security.networks import NO_NETWORKS, Networks

from ..mqtt.doors.proxied import is_proxy, take_header
from .decrypted_reads import BUFFER_BYTES, DecryptedReads
from .failures import MADE_WAY, failure_of
from .handshake_line import HandshakeLine

log = logging.getLogger(__name__)

BACKLOG: Final = 4_096
# Sockets taken from the kernel in one turn of the event loop: what is delivered goes on between.
ACCEPTED_AT_ONCE: Final = 16
# How often it is looked who makes way, while somebody waits.
LOOK_S: Final = 0.1
# After an error of the kernel's that others have to mend (too many open files), as asyncio does.
PAUSE_S: Final = 1.0
# How long a peer has for its close_notify, and to take what was written before.
SHUTDOWN_S: Final = 2.0
# uvloop takes no time that is over.
TIMEOUT_S_MIN: Final = 0.001


class TlsAcceptor:
    """See the module's docstring. `failures` counts what is not let through, by reason."""

    def __init__(
        self,
        sock: socket.socket,
        context: Callable[[], ssl.SSLContext | None],
        protocol: Callable[[], asyncio.Protocol],
        has_room: Callable[[], bool],
        line: HandshakeLine[socket.socket],
        timeout_s: float,
        failures: Counter[str],
        proxies: Networks = NO_NETWORKS,
    ) -> None:
        """`sock`: bound, non-blocking; this closes it. `has_room`: whether one more connection may begin.

        `timeout_s`: for each handshake, from when the connection was accepted. `proxies`: their connections begin with
        a header of the PROXY protocol, and are no address's in the line: which client's they are is not known there.
        """
        self._sock = sock
        self._context = context
        self._protocol = protocol
        self._has_room = has_room
        self._line = line
        self._timeout_s = timeout_s
        self._failures = failures
        self._proxies = proxies
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._loop = asyncio.get_running_loop()
        self._accepted_s: dict[socket.socket, float] = {}
        self._shaking: dict[socket.socket, asyncio.Task[None]] = {}
        self._made_way: set[socket.socket] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._reads = False
        self._closed = False

    def __len__(self) -> int:
        """Connections whose handshake is not done."""
        return len(self._line)

    def start(self) -> None:
        """Listen. Raises OSError."""
        self._sock.listen(BACKLOG)
        self._listen()

    def close(self) -> None:
        """Accept nobody more, end the handshakes under way."""
        if self._closed:
            return
        self._closed = True
        self._unlisten()
        for timer in (self._timer, self._pause):
            if timer is not None:
                timer.cancel()
        self._sock.close()
        for sock in [each for each in self._accepted_s if each not in self._shaking]:
            self._forget(sock)
            sock.close()
        for task in list(self._shaking.values()):
            task.cancel()

    # -- taking sockets

    def _listen(self) -> None:
        if not (self._reads or self._closed or self._pause is not None):
            self._reads = True
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def _unlisten(self) -> None:
        if self._reads:
            self._reads = False
            self._loop.remove_reader(self._sock.fileno())

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if self._line.is_full:
                self._unlisten()
                break
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                log.error("no connection can be accepted (%s): trying again in %.0f s", error.strerror, PAUSE_S)
                self._unlisten()
                self._pause = self._loop.call_later(PAUSE_S, self._paused)
                break
            proxy = is_proxy(address, self._proxies)
            self._arrived(sock, f"proxied {sock.fileno()}" if proxy else party(str(address[0])))
        self._go_on()

    def _paused(self) -> None:
        self._pause = None
        self._listen()

    def _arrived(self, sock: socket.socket, address: str) -> None:
        sock.setblocking(False)
        if not self._has_room():
            self._failures["connections_max"] += 1
            sock.close()
        elif not self._line.arrive(sock, address):
            self._failures["too many of one address"] += 1
            sock.close()
        else:
            self._accepted_s[sock] = self._loop.time()

    # -- shaking hands

    def _go_on(self) -> None:
        """Begin what may begin; look again while somebody waits."""
        now_s = self._loop.time()
        while not self._closed and (sock := self._line.begin(now_s)) is not None:
            task = self._shaking[sock] = self._loop.create_task(self._shake(sock))
            task.add_done_callback(partial(self._shaken, sock))
        if self._line.waiting and self._timer is None and not self._closed:
            self._timer = self._loop.call_later(LOOK_S, self._look)
        if not self._line.is_full:
            self._listen()

    def _look(self) -> None:
        """Those who hold places for too long make way."""
        self._timer = None
        for sock in self._line.making_way(self._loop.time()):
            self._made_way.add(sock)
            self._shaking[sock].cancel()
        self._go_on()

    async def _shake(self, sock: socket.socket) -> None:
        """Raises why it failed."""
        context, left_s = self._context(), self._accepted_s[sock] + self._timeout_s - self._loop.time()
        if context is None or left_s <= 0:
            raise TimeoutError("it has waited for too long")
        peer = None
        if self._proxies and is_proxy(sock.getpeername(), self._proxies):
            peer = await take_header(sock, left_s)
            left_s = max(self._accepted_s[sock] + self._timeout_s - self._loop.time(), TIMEOUT_S_MIN)
        await self._loop.connect_accepted_socket(
            partial(self._reading, peer),
            sock,
            ssl=context,
            ssl_handshake_timeout=left_s,
            ssl_shutdown_timeout=SHUTDOWN_S,
        )

    def _reading(self, peer: tuple[str, int] | None) -> DecryptedReads:
        return DecryptedReads(self._protocol(), self._buffer, peer)

    def _shaken(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        """A handshake is done; where it failed its transport has closed the socket, if there was one."""
        self._forget(sock)
        del self._shaking[sock]
        made_way = sock in self._made_way
        self._made_way.discard(sock)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            sock.close()
        if made_way and task.cancelled():
            self._failures[MADE_WAY] += 1
        elif error is not None:
            self._failures[failure_of(error)] += 1
            log.info("a TLS handshake failed (%s): %s", failure_of(error), error)
        self._go_on()

    def _forget(self, sock: socket.socket) -> None:
        self._line.end(sock)
        self._accepted_s.pop(sock, None)
