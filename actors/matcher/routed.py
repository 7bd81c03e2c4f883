"""What comes to a matcher over the overlay: questions of coordinators, and circuits of brokers that tell conditions.

A circuit is used as a broker's link is. There is one to a broker at most, and none beside a link; the newer one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from lexicast.cluster.errors import PeerError
from lexicast.cluster.protocol.messages import ASK, CUT, SEGMENT, pack_message, unpack_message
from lexicast.cluster.skipcloud.circuit import Segment

from ..link.circuit_link import CircuitLink, CircuitUser
from .overlay.relay import Relay


class BrokerCircuits(Protocol):
    """Who is told of brokers' circuits, as of their links."""

    def circuit_user(self) -> CircuitUser:
        """Who stands behind a new one."""

    def may_begin(self, broker: str) -> bool:
        """Whether a broker may have one."""

    def broker_came(self, link: CircuitLink, incarnation: int) -> None:
        """One has begun."""


class _FarAsker:
    """Whoever asks from afar, in the place of its link: what it is answered goes back along the path."""

    def __init__(self, relay: Relay, path: tuple[str, ...], number: int) -> None:
        self.name = path[0]
        self.closed = False
        self._relay, self._path, self._number = relay, path, number

    def send(self, message: tuple[Any, ...]) -> None:
        """Send it."""
        self._relay.back(self._number, len(self._path) - 1, self._path, pack_message(message))

    gather = send

    def flush(self) -> None:
        """Nothing waits."""

    def abort(self) -> None:
        """There is nothing to end."""


class RoutedToMatcher:
    """See the module's docstring; it is the overlay's `RoutedHere`. `asked(link, message)` takes a question."""

    def __init__(self, brokers: BrokerCircuits, asked: Callable[[Any, tuple[Any, ...]], None]) -> None:
        self.relay: Relay | None = None
        self._brokers = brokers
        self._asked = asked
        # By broker: its circuit, and the path by which it was last heard.
        self._circuits: dict[str, CircuitLink] = {}
        self._paths: dict[str, tuple[tuple[str, ...], int]] = {}

    def __len__(self) -> int:
        return len(self._circuits)

    def __call__(self, path: tuple[str, ...], number: int, data: bytes) -> None:
        """Something has come. Raises PeerError: it is nothing that a matcher takes."""
        assert self.relay is not None
        message = unpack_message(data)
        if message[0] == ASK:
            self._asked(_FarAsker(self.relay, path, number), message)
        elif message[0] == SEGMENT:
            self._segment(path, number, message)
        elif message[0] == CUT:
            link = self._circuits.get(path[0])
            if link is not None and link.key == message[1:]:
                link.end(None)
        else:
            raise PeerError(f"a message of kind {message[0]} was routed")

    def _segment(self, path: tuple[str, ...], number: int, message: tuple[Any, ...]) -> None:
        broker, key, segment = path[0], (message[1], message[2]), Segment(*message[3:])
        link = self._circuits.get(broker)
        if link is not None and key < link.key:
            return
        if link is None or key > link.key:
            if segment.number > 1 or not segment.message or not self._brokers.may_begin(broker):
                self._back(path, number, (CUT, *key))
                return
            if link is not None:
                link.end(None)
            link = self._begin(broker, key)
            self._paths[broker] = path, number
            self._brokers.broker_came(link, key[0])
        self._paths[broker] = path, number
        link.received(segment)

    def _begin(self, broker: str, key: tuple[int, int]) -> CircuitLink:
        user = _Ending(self, self._brokers.circuit_user())
        link = self._circuits[broker] = CircuitLink(broker, key, lambda message: self._say(broker, message), user)
        return link

    def _say(self, broker: str, message: tuple[Any, ...]) -> None:
        if broker in self._paths:
            self._back(*self._paths[broker], message)

    def _back(self, path: tuple[str, ...], number: int, message: tuple[Any, ...]) -> None:
        if self.relay is not None:
            self.relay.back(number, len(path) - 1, path, pack_message(message))

    def ended(self, link: CircuitLink) -> None:
        """A circuit has ended: the other side is told, which may not know."""
        if self._circuits.get(link.name) is link:
            self._say(link.name, (CUT, *link.key))
            del self._circuits[link.name], self._paths[link.name]

    def end(self, broker: str) -> None:
        """A broker's circuit is of no use: there is a link."""
        if (link := self._circuits.get(broker)) is not None:
            link.end(None)

    def tick(self) -> None:
        """A few times a second."""
        for link in list(self._circuits.values()):
            link.tick()

    def close(self) -> None:
        """End all circuits."""
        for link in list(self._circuits.values()):
            link.end(None)


class _Ending:
    """The user of a circuit, which is forgotten when it has ended."""

    def __init__(self, routed: RoutedToMatcher, user: CircuitUser) -> None:
        self._routed, self._user = routed, user

    def on_message(self, link: CircuitLink, message: tuple[Any, ...]) -> None:
        """See `CircuitUser`; so is the other one."""
        self._user.on_message(link, message)

    def on_close(self, link: CircuitLink, error: Exception | None) -> None:
        self._user.on_close(link, error)
        self._routed.ended(link)
