"""A socket with TLS for the load generator: what it does for a socket, at few calls of the kernel and of OpenSSL.

`ssl.SSLSocket` reads a record's head and its body from the kernel one after the other, 16 KiB at the most. Here a read
takes what the kernel has and gives all that was in it.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any, Final

from .wrapped_socket import READ_BYTES, WrappedSocket

HANDSHAKE_TIMEOUT_S: Final = 10.0
RECORD_BYTES: Final = 16 * 1024


class TlsSocket(WrappedSocket):
    """The side of the client; `socket.socket` as far as the load generator knows it. The handshake blocks."""

    _buffer = bytearray(READ_BYTES)
    """Shared by all: what was read is decrypted before the next one reads."""

    def __init__(self, sock: socket.socket, cafile: str, host: str) -> None:
        """Raises OSError where the handshake fails."""
        super().__init__(sock)
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


def _context(cafile: str) -> ssl.SSLContext:
    if cafile not in _contexts:
        _contexts[cafile] = ssl.create_default_context(cafile=cafile)
    return _contexts[cafile]


_contexts: dict[str, ssl.SSLContext] = {}
