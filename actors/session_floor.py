"""How far all sessions of a broker have got, in one number a topic group, told to their homes every round. Pure.

A session that is live costs its home nothing as it goes on: its cursor is the broker's head, and everything before it
is acknowledged. So a broker does not tell of each session, but of all of them at once: before `floor[group]` nothing is
in flight anywhere, and nobody lags behind it. What is in flight for a moment holds the floor back; a session that is
still there a round later, or lags, is an *exception*: its own lowest offsets are told, the floor goes on without it.

    round n       floor 100    session 7 has 104 in flight                     floor 104
    round n + 1   floor 104    session 7 has 104 in flight: an exception       floor 120, 7: {group: 104}
    round n + 2   floor 120    session 7 is live again, in flight from 131     floor 131

Invariant: what is said of a session (`floor`, under its exception) is never beyond what it has acknowledged; the floor
never goes back. At most EXCEPTION_OFFSETS_MAX offsets are told; of sessions beyond them it is said that nothing is
known (None), and what was saved of them counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

EXCEPTION_OFFSETS_MAX = 20_000


class Floor:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.floor: dict[int, int] = {}

    def move(
        self, heads: Mapping[int, int], frontiers: Iterable[tuple[int, Mapping[int, int]]]
    ) -> dict[int, dict[int, int] | None]:
        """A round: `heads` were read before any of `frontiers`, which are (connection, group -> lowest offset not
        acknowledged) of every session that is behind somewhere. Returns the exceptions."""
        held: dict[int, int] = {}
        exceptions: dict[int, dict[int, int] | None] = {}
        room = EXCEPTION_OFFSETS_MAX
        for connection, frontier in frontiers:
            if any([offset <= self.floor.get(group, -1) for group, offset in frontier.items()]):
                room -= len(frontier)
                exceptions[connection] = dict(frontier) if room >= 0 else None
                continue
            for group, offset in frontier.items():
                held[group] = min(offset, held.get(group, offset))
        self.floor = {group: min(head, held.get(group, head)) for group, head in heads.items()}
        return exceptions
