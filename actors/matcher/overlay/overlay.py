"""A matcher's place in the overlay: its SkipCloud member with real links and a timer, and what that carries.

    a question    of a coordinator goes in at a matcher that is linked to it, and over prefixes to the one that is meant
                  (`relay`); so do the conditions that brokers tell
    the roster    who is to be linked to, the map of cells, whether there is an overlay: a few matchers ask the
                  coordination server, and it is spread along prefixes (`cluster.skipcloud.spreading`)
    who serves    whom: of each of ENTRIES names made of a broker's, a coordinator's or the coordination server's own,
                  one matcher of the cluster nearest to what it hashes to. Each finds out by itself whether it is one

While views are not right yet more take themselves for one, which costs links; and when one dies, others remain.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from typing import Any, Final

from lexicast.cluster.errors import PeerError
from lexicast.cluster.membership import Member
from lexicast.cluster.protocol.messages import BACK, CLOUD, ROUTE, SPREAD
from lexicast.cluster.skipcloud.identifiers import CloudMember, CloudShape
from lexicast.cluster.skipcloud.messages import CloudLetter
from lexicast.cluster.skipcloud.node import SkipCloudNode
from lexicast.cluster.skipcloud.spreading import Spreading, SpreadLetter
from lexicast.cluster.skipcloud.wire import (
    Addresses,
    WireContact,
    WireMessage,
    named_member,
    pack_cloud_message,
    unpack_cloud_message,
)

from ...link.link import Link
from .neighbours import Dial, Neighbours, OverlayMessage
from .relay import Relay, RoutedHere
from .roster import Roster

# Matchers that a broker, a coordinator, the coordination server is linked to.
ENTRIES: Final = 3
# Who does not answer a shuffle so often, a cycle each, is gone.
ANSWER_CYCLES: Final = 3
# Links to matchers that are no contacts any more.
SPARE_LINKS_MAX: Final = 16
# Cycles after which whoever has found nobody serves alone.
ALONE_CYCLES: Final = 3


class MatcherOverlay:
    """See the module's docstring. `taken`: called with each newer roster."""

    def __init__(
        self,
        shape: CloudShape,
        name: str,
        incarnation: int,
        addresses: Addresses,
        dial: Dial,
        served: Callable[[str], Link | None],
        here: RoutedHere,
        taken: Callable[[Roster], None],
    ) -> None:
        self._dice = random.Random(f"{name} {incarnation}")
        self.node = SkipCloudNode(shape, named_member(shape, name), self._dice, ANSWER_CYCLES)
        self.neighbours = Neighbours(name, dial, self)
        self.relay = Relay(self.node, self.neighbours, served, here)
        self.roster: Roster | None = None
        self._spreading = Spreading(self.node)
        self._addresses = addresses
        self._taken = taken
        self._cycles = 0
        self._first = True
        self._others: list[Member] = []

    # -- life

    def join(self, members: Iterable[Member]) -> None:
        """Become known by some of these, which are all that there are: by a few if it knows nobody, else by one more,
        since there may be two overlays of members that have not found each other."""
        own, shape = self.node.own.name, self.node.shape
        self._others = [member for member in members if member.name != own and member.addresses]
        self._first = self._first and not self._others
        known = {member.name for member in self.node.contacts()}
        unknown = [member for member in self._others if member.name not in known]
        for member in self._dice.sample(unknown, min(1 if known else ENTRIES, len(unknown))):
            self.neighbours.book.heard([(member.name, 0, member.addresses)], self.node.cycle)
            self._send(self.node.join(named_member(shape, member.name)))

    def tick(self) -> None:
        """One cycle."""
        self._cycles += 1
        if self.node.alone:
            self.join(self._others)
        self._send(self.node.tick())
        self.neighbours.keep({member.name for member in self.node.contacts()}, SPARE_LINKS_MAX)

    def leave(self) -> None:
        """Go, and say so to all that are linked."""
        linked = {named_member(self.node.shape, name) for name in self.neighbours.links}
        self._send([letter for letter in self.node.leave(linked) if letter.to in linked])
        self.neighbours.close()

    # -- who serves whom

    @property
    def settled(self) -> bool:
        """Whether it has found its place, or is the first of all: before that it would take itself for everything."""
        return self._first or self._cycles >= (ALONE_CYCLES if self.node.alone else 1)

    def is_entry_of(self, name: str) -> bool:
        """Whether this matcher is one of those that `name` is to be linked to."""
        return any(self._is_chosen(f"{name} {number}".encode()) for number in range(ENTRIES))

    def _is_chosen(self, key: bytes) -> bool:
        own = self.node.own
        if self.node.next_hop(self.node.shape.hashed(key)) is not None:
            return False
        return own == max([own, *self.node.cluster()], key=lambda member: _weight(member, key))

    # -- the roster

    @property
    def version(self) -> int:
        """Of the roster that it has; -1: none."""
        return self._spreading.version

    def tell(self, roster: Roster) -> None:
        """The coordination server has told this."""
        if self.roster is None or (roster.version > self.roster.version and roster.body != self.roster.body):
            self._take(roster, 0)

    def _take(self, roster: Roster, level: int) -> None:
        letters = self._spreading.told(roster.version, roster.body, level)
        if letters is not None:
            self.roster = roster
            self._spread(letters)
            self._taken(roster)

    def _spread(self, letters: Iterable[SpreadLetter]) -> None:
        value = self._spreading
        for to, level in letters:
            self.neighbours.send(to.name, (SPREAD, value.version, level, value.value))

    # -- neighbours

    def _own(self) -> WireContact:
        return self.node.own.name, 0, self._addresses

    def _send(self, letters: Iterable[CloudLetter]) -> None:
        book = self.neighbours.book.addresses
        for to, message in letters:
            packed = pack_cloud_message(message, self._own(), self._spreading.version, book)
            if not self.neighbours.send(to.name, (CLOUD, *packed)):
                self.node.unreachable(to)

    def heard(self, link: Link, message: OverlayMessage) -> None:
        """See `NeighboursUser`; so are the others."""
        if message[0] == ROUTE:
            self.relay.routed(link.name, message)
        elif message[0] == BACK:
            self.relay.returned(message)
        elif message[0] == CLOUD:
            self._converse(link.name, WireMessage(*message[1:]))
        elif message[0] == SPREAD:
            self._take_spread(message)
        else:
            raise PeerError(f"{link.name} sent a message of kind {message[0]}")

    def _converse(self, sender: str, message: WireMessage) -> None:
        said = unpack_cloud_message(self.node.shape, sender, message)
        self.neighbours.book.heard(message.contacts, self.node.cycle)
        self._send(self.node.received(named_member(self.node.shape, sender), said))
        if self._spreading.lacks(message.version):
            self._spread([SpreadLetter(named_member(self.node.shape, sender), self.node.shape.levels + 1)])

    def _take_spread(self, message: OverlayMessage) -> None:
        _, version, level, value = message
        if version > self._spreading.version:
            self._take(Roster.unpack(version, value), level)

    def wants(self, name: str) -> bool:
        """A contact is to be linked."""
        return self.node.knows(named_member(self.node.shape, name))

    def unreachable(self, name: str, unsent: list[OverlayMessage]) -> None:
        """What was to be routed there goes another way."""
        self.node.unreachable(named_member(self.node.shape, name))
        for message in unsent:
            if message[0] == ROUTE:
                self.relay.forward(message)

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {
            "neighbours": len(self.node.contacts()),
            "neighbour_links": len(self.neighbours.links),
            "said": self.neighbours.said,
            "roster": self._spreading.version,
            **self.relay.status(),
        }


def _weight(member: CloudMember, key: bytes) -> bytes:
    return hashlib.blake2b(key + b" " + member.name.encode(), digest_size=8).digest()
