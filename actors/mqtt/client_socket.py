"""The socket to one MQTT client: in which state it is, whether it is read, how it is hung up.

    NEW      nothing but CONNECT is understood
    OPENING  the session is being taken over; what came behind CONNECT is held, the socket is not read
    OPEN     served
    CLOSED   the session was let go (saved, or ended); the will, if one is due, is out

It is not read while there is a reason not to (`client_line`). Each reason is ended by whoever gave it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ..tls.identity import is_encrypted

# What a TLS connection that is not read may hold undecrypted, beside what the kernel holds (uvloop: 512 KiB).
TLS_UNREAD_BYTES = 32 * 1024
# How long a client may go on sending, unread, after its farewell.
LINGER_S = 2.0

NEW: Final = 0
OPENING: Final = 1
OPEN: Final = 2
CLOSED: Final = 3


class ClientSocket(asyncio.Protocol):
    """See the module's docstring. `transport` is there from `connection_made` on."""

    __slots__ = ("_pauses", "state", "transport")

    def __init__(self) -> None:
        self._pauses = 0
        self.state: int = NEW
        self.transport: asyncio.Transport

    @property
    def is_open(self) -> bool:
        """Whether the client is being served."""
        return self.state == OPEN

    @property
    def is_closed(self) -> bool:
        """Whether the client has left, or has been told to."""
        return self.state == CLOSED

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """From asyncio."""
        self.transport = transport  # type: ignore[assignment]  # uvloop's transport
        if is_encrypted(transport):
            transport.set_read_buffer_limits(TLS_UNREAD_BYTES)  # type: ignore[attr-defined] # what TLS transports have

    def pause(self, reason: int) -> None:
        """Do not read the socket."""
        if self.state == CLOSED:
            return
        if not self._pauses:
            self.transport.pause_reading()
        self._pauses |= reason

    def resume(self, reason: int) -> None:
        """The reason has passed: read again if there is no other."""
        if self._pauses & reason:
            self._pauses &= ~reason
            if not self._pauses and self.state == OPEN:
                self.transport.resume_reading()

    def is_paused(self, reasons: int) -> bool:
        """Whether one of these is a reason not to read."""
        return bool(self._pauses & reasons)

    def hang_up(self, words: bytes = b"") -> None:
        """End the socket. A client that is still sending when its last `words` come would lose them with the
        connection's reset, so it is heard out for a moment, unread."""
        transport = self.transport
        if transport.is_closing():
            return
        if words:
            transport.write(words)
        if words and transport.can_write_eof():
            transport.write_eof()
            if self._pauses:
                transport.resume_reading()
        else:  # TLS says that this is the end, and hears the client out until it says the same
            transport.close()
        # A peer that never reads would hold its buffer for ever.
        asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
