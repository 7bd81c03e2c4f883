"""A link between two that have none: a circuit over hops (`cluster.skipcloud.circuit`), used as a link is.

Whoever has one calls `tick` a few times a second, and `received` with what has come for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from lexicast.cluster.errors import LexicastError, PeerError, UnavailableError
from lexicast.cluster.protocol.messages import BEAT, SEGMENT, pack_message, unpack_message
from lexicast.cluster.skipcloud.circuit import Circuit, Segment

TICK_S: Final = 0.1


class TellingLink(Protocol):
    """What is needed of a link by whoever only tells something on it."""

    name: str
    closed: bool

    def send(self, message: tuple[Any, ...]) -> None:
        """See `Link`; so are the others."""

    def gather(self, message: tuple[Any, ...]) -> None:
        """As in `Link`."""

    def flush(self) -> None:
        """As in `Link`."""

    def abort(self) -> None:
        """As in `Link`."""


class CircuitUser(Protocol):
    """Who stands behind a circuit."""

    def on_message(self, link: Any, message: tuple[Any, ...]) -> None:
        """A message has come. May raise LexicastError: the circuit ends."""

    def on_close(self, link: Any, error: Exception | None) -> None:
        """The circuit has ended; called once."""


class CircuitLink:
    """A circuit to `name`. `key`: (the broker's incarnation, the circuit's number), which tells it from others of the
    same two; `transmit`: sends a message towards the other side, as well as that goes."""

    def __init__(
        self, name: str, key: tuple[int, int], transmit: Callable[[tuple[Any, ...]], None], user: CircuitUser
    ) -> None:
        self.name = name
        self.key = key
        self.closed = False
        self._transmit = transmit
        self._user = user
        self._loop = asyncio.get_running_loop()
        self._circuit = Circuit(self._loop.time())
        self._due: asyncio.Handle | None = None

    def send(self, message: tuple[Any, ...]) -> None:
        """Send one message; it goes at the end of this turn, with what else is due."""
        if self.closed:
            return
        try:
            self._circuit.send(pack_message(message), self._loop.time())
        except PeerError as error:
            self.end(error)
        else:
            self._soon()

    def gather(self, message: tuple[Any, ...]) -> None:
        """As `send`: what is sent in one turn goes together anyway."""
        self.send(message)

    def flush(self) -> None:
        """Nothing waits for it."""

    def abort(self) -> None:
        """End it; the other side hears nothing any more."""
        self.end(None)

    @property
    def resends(self) -> int:
        """How often something had to be sent again: another way may be better then."""
        return self._circuit.resends

    def begin(self) -> None:
        """Have the other side hear that there is a circuit."""
        self.send((BEAT,))

    def _soon(self) -> None:
        if self._due is None:
            self._due = self._loop.call_soon(self._send_due)

    def _send_due(self) -> None:
        self._due = None
        if not self.closed:
            for segment in self._circuit.due(self._loop.time()):
                self._transmit((SEGMENT, *self.key, *segment))

    def received(self, segment: Segment) -> None:
        """A segment has come."""
        if self.closed:
            return
        try:
            data = self._circuit.received(segment, self._loop.time())
            self._soon()  # what is acknowledged makes room, what has come is acknowledged
            if data is not None and (message := unpack_message(data)) != (BEAT,):
                self._user.on_message(self, message)
        except LexicastError as error:
            self.end(error)

    def tick(self) -> None:
        """Send again what seems lost; end where the other side, or the way to it, is gone."""
        if self.closed:
            return
        if self._circuit.broken(self._loop.time()):
            self.end(UnavailableError(f"the circuit to {self.name} has broken"))
        else:
            self._send_due()

    def end(self, error: Exception | None) -> None:
        """It has ended."""
        if not self.closed:
            self.closed = True
            if self._due is not None:
                self._due.cancel()
            self._user.on_close(self, error)
