"""The floor of a broker's sessions: how far all have got, in one number a topic group, told to their homes. Pure.

A session that is live costs its home nothing as it goes on: its cursor is the broker's head, and everything before it
is acknowledged. So a broker does not tell of each session, but of all of them at once: before `floor[group]` nothing is
in flight anywhere, and nobody lags behind it. What is in flight for a moment holds the floor back; a session that is
still there a round later, or lags, is an *exception*: its own lowest offsets are told, the floor goes on without it.

    round n       floor 100    session 7 has 104 in flight                     floor 104
    round n + 1   floor 104    session 7 has 104 in flight: an exception       floor 120, 7: {group: 104}
    round n + 2   floor 120    session 7 is live again, in flight from 131     floor 131

Invariant: what is said of a session (`floor`, under its exception) is never beyond what it has acknowledged; the floor
never goes back. At most EXCEPTION_OFFSETS_MAX offsets are told; of sessions beyond them it is said that nothing is
known (None), and what was saved of them counts. Nobody need look at those: of sessions that lag beyond so many offsets,
as when all return at once, None is handed in.
An exception travels and lies at its home as msgpack (`packed_exceptions`): few are ever asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgpack

from ..records import SessionSaved
from .shapes import CURSOR

EXCEPTION_OFFSETS_MAX = 4_000


class SessionFloor:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.floor: dict[int, int] = {}

    def move(
        self, heads: Mapping[int, int], frontiers: Iterable[tuple[int, dict[int, int] | None]]
    ) -> dict[int, dict[int, int] | None]:
        """A round: `heads` were read before any of `frontiers`, which are (connection, group -> lowest offset not
        acknowledged; None: not looked at) of every session that is behind somewhere. Returns the exceptions."""
        held: dict[int, int] = {}
        exceptions: dict[int, dict[int, int] | None] = {}
        room = EXCEPTION_OFFSETS_MAX
        for connection, frontier in frontiers:
            if frontier is None:
                exceptions[connection] = None
                continue
            if any([offset <= self.floor.get(group, -1) for group, offset in frontier.items()]):
                room -= len(frontier)
                exceptions[connection] = frontier if room >= 0 else None
                continue
            for group, offset in frontier.items():
                held[group] = min(offset, held.get(group, offset))
        self.floor = {group: min(head, held.get(group, head)) for group, head in heads.items()}
        return exceptions


def packed_exceptions(exceptions: Mapping[int, Mapping[int, int] | None]) -> dict[int, bytes | None]:
    """Exceptions as their home is told of them, each by itself."""
    pack = msgpack.Packer(autoreset=True).pack
    return {number: None if frontier is None else pack(frontier) for number, frontier in exceptions.items()}


def frontier_of(exception: bytes | None) -> dict[int, int] | None:
    """The offsets in one of `packed_exceptions`; None where nothing is known, or nothing can be read."""
    if exception is None:
        return None
    try:
        found: Any = msgpack.unpackb(exception, use_list=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        return None
    return found if CURSOR(found) else None


class Standing(NamedTuple):
    """How far all sessions of a broker's incarnation have got, but those of connections from `below` on.

    Before `floor` (group -> offset) everything is acknowledged, where `exceptions` (connection -> group -> offset as
    `packed_exceptions`, or None: nothing is known) does not say otherwise.
    """

    below: int
    floor: Mapping[int, int]
    exceptions: Mapping[int, bytes | None]

    def of(self, session: SessionSaved) -> Mapping[int, int]:
        """The floor of one session."""
        if session.connection >= self.below:
            return {}
        if session.connection not in self.exceptions:
            return self.floor
        own = frontier_of(self.exceptions[session.connection])
        return {} if own is None else {**self.floor, **own}


class Standings:
    """How far the sessions of each broker's incarnation have got, as their homes were told."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, int], Standing] = {}

    def tell(
        self, broker: tuple[str, int], below: int, moved: Mapping[int, int], exceptions: Mapping[int, bytes | None]
    ) -> None:
        """What a broker (its name and incarnation) says; `moved`: the floor where it has moved since."""
        known = self._told.get(broker)
        self._told[broker] = Standing(below, {**known.floor, **moved} if known is not None else moved, exceptions)

    def of(self, session: SessionSaved) -> Mapping[int, int]:
        """The floor of one session, as its owner has told."""
        standing = self._told.get((session.owner, session.incarnation))
        return {} if standing is None else standing.of(session)

    def forget_before(self, incarnations: Mapping[str, int]) -> None:
        """Forget incarnations before those that there are by now."""
        for broker, incarnation in list(self._told):
            if incarnation < incarnations.get(broker, 0):
                del self._told[broker, incarnation]
