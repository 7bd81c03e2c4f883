"""What a protocol between a transport and another protocol passes on as it is."""

from __future__ import annotations

import asyncio


class Passing(asyncio.BaseProtocol):
    """See the module's docstring. `protocol`: whom it is passed on to."""

    __slots__ = ("_protocol",)

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def eof_received(self) -> bool | None:
        """The peer sends no more."""
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        """Too much waits to be sent."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """It has been sent."""
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._protocol.connection_lost(exc)
