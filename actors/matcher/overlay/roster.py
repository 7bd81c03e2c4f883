"""What all matchers of an overlay are to know: whether there is one, who is to be linked to, and the map of cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgpack

from lexicast.cluster.errors import PeerError
from lexicast.cluster.membership import Member, Members


@dataclass(frozen=True, eq=False)
class Roster:
    """The membership's `version` that this is of; `on`: whether matchers form an overlay; `brokers`, `coordinators`: by
    name; `cells`: the map as plain values."""

    version: int
    on: bool
    brokers: Mapping[str, Member]
    coordinators: Mapping[str, Member]
    cells: Any

    @cached_property
    def body(self) -> bytes:
        """All but the version, packed: where that is the same, nothing is news."""
        served = [_plain(self.brokers.values()), _plain(self.coordinators.values())]
        packed: bytes = msgpack.packb((self.on, *served, self.cells))
        return packed

    @staticmethod
    def of_members(members: Members, beyond: int) -> Roster:
        """What the coordination server says; `beyond` so many matchers they form an overlay."""
        on = len(members.matchers) > beyond
        return Roster(members.version, on, members.brokers, members.coordinators, members.cells)

    @staticmethod
    def unpack(version: int, body: bytes) -> Roster:
        """A version, and what `body` was. Raises PeerError."""
        try:
            on, brokers, coordinators, cells = msgpack.unpackb(body, use_list=False)
            return Roster(version, bool(on), _members(brokers), _members(coordinators), cells)
        except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
            raise PeerError(f"not a roster: {error!r:.80}") from None


def _plain(members: Iterable[Member]) -> list[tuple[Any, ...]]:
    return [(member.name, member.incarnation, member.addresses) for member in members]


def _members(plain: Any) -> dict[str, Member]:
    made = [Member(str(name), int(incarnation), tuple(map(str, where)), "", 0) for name, incarnation, where in plain]
    return {member.name: member for member in made}
