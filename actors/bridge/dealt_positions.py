"""Which positions a bridge has in hand, and has done lately: what is dealt to it again is not sent again. Pure.

A share deals anew what it does not know to be done: where the link to this cluster breaks, or a coordinator goes, that
is also what is under way to the other broker, or has been acknowledged by it a moment ago.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, TypeAlias

DONE_MAX: Final = 65_536

# Number of the bridge's topic, topic group, offset.
Place: TypeAlias = tuple[int, int, int]


class DealtPositions:
    """See the module's docstring. Of what is done at least half of `done_max` are remembered, at most all of it."""

    def __init__(self, done_max: int = DONE_MAX) -> None:
        self._half = max(1, done_max // 2)
        self._open: set[Place] = set()
        # What was done lately, and what before that: in two parts, so that a part is forgotten at once.
        self._done: set[Place] = set()
        self._done_before: set[Place] = set()
        self.repeats = 0

    def __len__(self) -> int:
        return len(self._open)

    def take(self, places: Collection[Place]) -> list[bool]:
        """Of each whether it is new, and to be sent."""
        fresh = set(places)
        known = not (
            self._open.isdisjoint(fresh) and self._done.isdisjoint(fresh) and self._done_before.isdisjoint(fresh)
        )
        if known or len(fresh) < len(places):
            return [self._take(place) for place in places]
        self._open |= fresh
        return [True] * len(places)

    def _take(self, place: Place) -> bool:
        if place in self._open or self.is_done(place):
            self.repeats += 1
            return False
        self._open.add(place)
        return True

    def is_done(self, place: Place) -> bool:
        """Whether it was done lately."""
        return place in self._done or place in self._done_before

    def done(self, places: Collection[Place]) -> None:
        """They are."""
        self._open.difference_update(places)
        if len(self._done) >= self._half:
            self._done_before, self._done = self._done, set()
        self._done.update(places)


def ranges(places: Iterable[Place]) -> list[tuple[int, int, int]]:
    """Places of one topic as (group, first, last), neighbours together."""
    groups: dict[int, list[int]] = {}
    for _, group, offset in places:
        known = groups.get(group)
        if known is None:
            groups[group] = [offset]
        else:
            known.append(offset)
    found: list[tuple[int, int, int]] = []
    for group, offsets in sorted(groups.items()):
        offsets.sort()
        first = last = offsets[0]
        for offset in offsets:
            if offset > last + 1:
                found.append((group, first, last))
                first = offset
            last = offset
        found.append((group, first, last))
    return found
