"""A socket with TLS for the load generator: what it does for a socket, at few calls of the kernel and of OpenSSL.

`ssl.SSLSocket` reads a record's head and its body from the kernel one after the other, 16 KiB at the most. Here a read
takes what the kernel has and gives all that was in it.
"""

from __future__ import annotations

import select
import socket
import ssl
from typing import Any, Final

HANDSHAKE_TIMEOUT_S: Final = 10.0
READ_BYTES: Final = 256 * 1024
RECORD_BYTES: Final = 16 * 1024


class TlsSocket:
    """The side of the client; `socket.socket` as far as the load generator knows it. The handshake blocks."""

    _buffer = bytearray(READ_BYTES)
    """Shared by all: what was read is decrypted before the next one reads."""

    def __init__(self, sock: socket.socket, cafile: str, host: str) -> None:
        """Raises OSError where the handshake fails."""
        self._sock = sock
        self._writable = select.poll()
        self._writable.register(sock, select.POLLOUT)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = _context(cafile)
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._read: Any = self._tls.read  # typeshed knows no memoryview to read into, nor that it gives a number then
        sock.settimeout(HANDSHAKE_TIMEOUT_S)
        while not self._shaken():
            self._sock.sendall(self._outgoing.read())
            data = sock.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError("the broker closed a connection in the handshake")
            self._incoming.write(data)
        self._sock.sendall(self._outgoing.read())

    def _shaken(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

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
        """All that one read of the kernel brought, decrypted; 0 at the end. Raises BlockingIOError: nothing whole."""
        view = memoryview(buffer)
        taken = self._sock.recv_into(self._buffer, max(1, len(view) - 2 * RECORD_BYTES))
        if not taken:
            return 0
        self._incoming.write(memoryview(self._buffer)[:taken])
        total = 0
        try:
            while self._incoming.pending or self._tls.pending():
                got: int = self._read(len(view) - total, view[total:])
                if not got:
                    break
                total += got
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            return total
        if not total:
            raise BlockingIOError
        return total

    def recv(self, size: int) -> bytes:
        """The same as bytes. On a socket that blocks it waits for something whole."""
        buffer = bytearray(READ_BYTES)
        while True:
            try:
                return bytes(buffer[: self.recv_into(buffer)])
            except BlockingIOError:
                if self._sock.gettimeout() == 0.0:
                    raise

    def send(self, data: bytes | memoryview) -> int:
        """One record's worth of `data` at the most. Raises BlockingIOError where the kernel has no room; what begins to
        go is waited for."""
        if not self._writable.poll(0):
            raise BlockingIOError
        count = self._tls.write(data[:RECORD_BYTES])
        encrypted = self._outgoing.read()
        while encrypted:
            try:
                encrypted = encrypted[self._sock.send(encrypted) :]
            except BlockingIOError:
                self._writable.poll(HANDSHAKE_TIMEOUT_S * 1_000)
        return count

    def close(self) -> None:
        """Close without a word."""
        self._sock.close()


def _context(cafile: str) -> ssl.SSLContext:
    if cafile not in _contexts:
        _contexts[cafile] = ssl.create_default_context(cafile=cafile)
    return _contexts[cafile]


_contexts: dict[str, ssl.SSLContext] = {}
