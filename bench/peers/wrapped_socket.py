"""What a socket with something between it and the load generator has in common with all others of that kind."""

from __future__ import annotations

import select
import socket
from typing import Final

READ_BYTES: Final = 256 * 1024


class WrappedSocket:
    """`socket.socket` as far as the load generator knows it; see what is made of it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._writable = select.poll()
        self._writable.register(sock, select.POLLOUT)

    def fileno(self) -> int:
        """For epoll."""
        return self._sock.fileno()

    def setblocking(self, flag: bool) -> None:
        """As the socket's."""
        self._sock.setblocking(flag)

    def settimeout(self, timeout_s: float | None) -> None:
        """As the socket's."""
        self._sock.settimeout(timeout_s)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """As the socket's."""
        self._sock.setsockopt(level, option, value)

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """What one read of the kernel brought; 0 at the end. Raises BlockingIOError: nothing whole."""
        raise NotImplementedError

    def recv(self, size: int) -> bytes:
        """The same as bytes. On a socket that blocks it waits for something whole."""
        buffer = bytearray(READ_BYTES)
        while True:
            try:
                return bytes(buffer[: self.recv_into(buffer)])
            except BlockingIOError:
                if self._sock.gettimeout() == 0.0:
                    raise

    def close(self) -> None:
        """Close without a word."""
        self._sock.close()
