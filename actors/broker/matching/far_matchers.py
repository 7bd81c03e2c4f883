"""Matchers that a broker has no link to: it tells them its conditions by circuits, through those that it is linked to.

Where matchers form an overlay, a few are a broker's entries (ENTRY); the map of cells names all. With each of them that
has no link a circuit is kept, over any entry. Where there are no entries there are no circuits, and nobody vouches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from typing import Any, Final

from lexicast.cluster.protocol.messages import CUT, ENTRY, ROUTE, SEGMENT, pack_message, unpack_message
from lexicast.cluster.skipcloud.circuit import Segment

from ...link.circuit_link import TICK_S, CircuitLink, CircuitUser, TellingLink
from ...link.turn_writes import TurnWrites

log = logging.getLogger(__name__)

# A circuit that has ended is begun again after so long.
AGAIN_S: Final = 1.0
# So many are begun in a tick: each is told everything at first.
BEGUN_AT_ONCE: Final = 32


class FarMatchers:
    """See the module's docstring. `linked`: names of those with links; `incarnation`: the broker's, 0 as long as it is
    not known."""

    def __init__(self, user: Callable[[], CircuitUser], linked: Collection[str]) -> None:
        self.incarnation = 0
        self._user = user
        self._linked = linked
        self._names: tuple[str, ...] = ()
        self._entries: dict[str, TellingLink] = {}
        # By the circuit's number, and by the matcher's name.
        self._circuits: dict[int, CircuitLink] = {}
        self._of_matcher: dict[str, CircuitLink] = {}
        self._again_s: dict[str, float] = {}
        self._last = 0
        self._writes = TurnWrites()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._circuits)

    def follow(self, names: Iterable[str]) -> None:
        """All matchers that there are, by the map of cells."""
        self._names = tuple(names)
        for name in sorted(self._of_matcher.keys() - set(self._names)):
            self._of_matcher[name].end(None)
        self._again_s = {name: at_s for name, at_s in self._again_s.items() if name in self._of_matcher}
        self._soon()

    def heard(self, link: TellingLink, message: tuple[Any, ...]) -> None:
        """A matcher says that it routes, or not; or brings what comes back. Raises PeerError."""
        if message[0] == ENTRY:
            if message[1]:
                self._entries[link.name] = link
            else:
                self._entries.pop(link.name, None)
            self._soon()
        elif message[4]:
            self._returned(message[1], unpack_message(message[4]))

    def _returned(self, number: int, message: tuple[Any, ...]) -> None:
        link = self._circuits.get(number)
        if link is None or message[1:3] != link.key:
            return
        if message[0] == SEGMENT:
            link.received(Segment(*message[3:]))
        elif message[0] == CUT:
            link.end(None)

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._entries = {name: link for name, link in self._entries.items() if not link.closed}
        for link in list(self._of_matcher.values()):
            if link.name in self._linked:
                link.end(None)
            else:
                link.tick()
        if self._entries and self.incarnation:
            self._begin()
        if self._entries or self._circuits:
            self._soon()

    def _begin(self) -> None:
        now_s = asyncio.get_running_loop().time()
        lacking = [n for n in self._names if n not in self._linked and n not in self._of_matcher]
        for name in [n for n in lacking if self._again_s.get(n, now_s) <= now_s][:BEGUN_AT_ONCE]:
            self._last += 1
            number, self._again_s[name] = self._last, now_s + AGAIN_S

            def transmit(message: tuple[Any, ...], name: str = name, number: int = number) -> None:
                self._transmit(name, number, message)

            user = _Forgetting(self, self._user())
            link = CircuitLink(name, (self.incarnation, number), transmit, user)
            self._circuits[number] = self._of_matcher[name] = link
            link.begin()

    def _transmit(self, name: str, number: int, message: tuple[Any, ...]) -> None:
        """By the entry that comes first for this matcher, so that its messages go one way; by another one when that
        lost something."""
        able = [link for link in self._entries.values() if not link.closed]
        if able:
            circuit = self._of_matcher.get(name)
            key = f"{name} {0 if circuit is None else circuit.resends}"
            entry = min(able, key=lambda link: blake2b(f"{link.name} {key}".encode(), digest_size=8).digest())
            self._writes.send(entry, (ROUTE, number, name, (), pack_message(message)))

    def ended(self, link: CircuitLink) -> None:
        """A circuit has ended."""
        self._circuits.pop(link.key[1], None)
        if self._of_matcher.get(link.name) is link:
            del self._of_matcher[link.name]
            self._transmit(link.name, link.key[1], (CUT, *link.key))

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {"entries": len(self._entries), "circuits": len(self._circuits)}

    def close(self) -> None:
        """End all circuits."""
        if self._timer is not None:
            self._timer.cancel()
        for link in list(self._circuits.values()):
            link.end(None)


class _Forgetting:
    """The user of a circuit, which is forgotten when it has ended."""

    def __init__(self, far: FarMatchers, user: CircuitUser) -> None:
        self._far, self._user = far, user

    def on_message(self, link: CircuitLink, message: tuple[Any, ...]) -> None:
        """See `CircuitUser`; so is the other one."""
        self._user.on_message(link, message)

    def on_close(self, link: CircuitLink, error: Exception | None) -> None:
        self._far.ended(link)
        self._user.on_close(link, error)
