"""What is routed over the overlay: to the matcher that is meant, from hop to hop, and back along the path it came.

Nothing is kept of what is under way: the path travels with it. What cannot go on is told to whoever has sent it (an
empty BACK), as far as there is a way; else that one's own limit of time tells it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from lexicast.cluster.errors import LexicastError
from lexicast.cluster.protocol.messages import BACK, PATH_MAX, ROUTE
from lexicast.cluster.skipcloud.identifiers import CloudMember
from lexicast.cluster.skipcloud.node import SkipCloudNode
from lexicast.cluster.skipcloud.wire import named_member

from ...link.link import Link
from ...link.turn_writes import TurnWrites
from .neighbours import Neighbours

# Hops that come nobody nearer, before what is routed counts as lost.
DETOURS_MAX: Final = 2

log = logging.getLogger(__name__)


class RoutedHere(Protocol):
    """Takes what is for this matcher."""

    def __call__(self, path: tuple[str, ...], number: int, data: bytes) -> None:
        """What whoever is first of `path` has sent."""


class HopCount:
    """How many hops what was routed to here has taken."""

    def __init__(self) -> None:
        self.routed = self.hops = self.hops_max = 0

    def add(self, hops: int) -> None:
        """One more."""
        self.routed += 1
        self.hops += hops
        self.hops_max = max(self.hops_max, hops)

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        mean = self.hops / self.routed if self.routed else 0.0
        return {"routed": self.routed, "hops_mean": round(mean, 3), "hops_max": self.hops_max}


class Relay:
    """See the module's docstring. `served(name)`: the link to a broker or coordinator."""

    def __init__(
        self, node: SkipCloudNode, neighbours: Neighbours, served: Callable[[str], Link | None], here: RoutedHere
    ) -> None:
        self.count = HopCount()
        self.relayed = self.lost = 0
        self._node = node
        self._neighbours = neighbours
        self._served = served
        self._here = here
        self._writes = TurnWrites()

    def routed(self, source: str, message: tuple[Any, ...]) -> None:
        """A ROUTE has come from a neighbour, or from a broker or coordinator that is linked here."""
        _, number, target, path, data = message
        self.forward((ROUTE, number, target, (*path, source), data))

    def forward(self, message: tuple[Any, ...]) -> None:
        """Send a ROUTE on whose path is complete up to here."""
        _, number, target, path, data = message
        if target == self._node.own.name:
            self.count.add(len(path) - 1)
            try:
                self._here(path, number, data)
            except LexicastError as error:  # made by who is first of the path, not by the last hop
                log.warning("what %s has sent from afar is not taken: %s", path[0], error)
            return
        hop = self._hop(target, path)
        while hop is not None and not self._neighbours.send(hop.name, message):
            self._node.unreachable(hop)
            hop = self._hop(target, path)
        if hop is not None:
            self.relayed += 1
            return
        self.lost += 1
        self.back(number, 0, path, b"")

    def _hop(self, target: str, path: tuple[str, ...]) -> CloudMember | None:
        member, node = named_member(self._node.shape, target), self._node
        if len(path) >= PATH_MAX:
            return None
        if node.knows(member):
            return member
        hop = node.next_hop(member.digits, self._neighbours.links.keys())
        if hop is None and len(path) <= node.shape.levels + DETOURS_MAX:
            # Nearest is oneself, or so it seems: while views are not right yet others may know more.
            hop = node.detour(member.digits, path)
        return hop

    def returned(self, message: tuple[Any, ...]) -> None:
        """A BACK has come from a neighbour."""
        _, number, hops, path, data = message
        self.back(number, hops, path, data)

    def back(self, number: int, hops: int, path: tuple[str, ...], data: bytes) -> None:
        """Send something to whoever is first of `path`, along it."""
        if not path:
            return
        message = BACK, number, hops, path[:-1], data
        if len(path) == 1:
            link = self._served(path[0])
            if link is not None:
                self._writes.send(link, message)
            else:
                self.lost += 1
        elif not self._neighbours.send(path[-1], message):
            self.lost += 1

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {**self.count.status(), "relayed": self.relayed, "lost": self.lost}
