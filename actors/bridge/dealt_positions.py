"""Which positions a bridge has in hand, and has done lately: what is dealt to it again is not sent again. Pure.

A share deals anew what it does not know to be done: where the link to this cluster breaks, or a coordinator goes, that
is also what is under way to the other broker, or has been acknowledged by it a moment ago.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, TypeAlias

DONE_MAX: Final = 65_536

# Number of the bridge's topic, topic group, offset.
Place: TypeAlias = tuple[int, int, int]


class DealtPositions:
    """See the module's docstring. Of what is done `done_max` are remembered."""

    def __init__(self, done_max: int = DONE_MAX) -> None:
        self._done_max = done_max
        self._open: set[Place] = set()
        self._done: OrderedDict[Place, None] = OrderedDict()
        self.repeats = 0

    def __len__(self) -> int:
        return len(self._open)

    def take(self, place: Place) -> bool:
        """Whether it is new, and to be sent."""
        if place in self._open or place in self._done:
            self.repeats += 1
            return False
        self._open.add(place)
        return True

    def is_done(self, place: Place) -> bool:
        """Whether it was done lately."""
        return place in self._done

    def done(self, places: Iterable[Place]) -> None:
        """They are."""
        for place in places:
            self._open.discard(place)
            self._done[place] = None
        while len(self._done) > self._done_max:
            self._done.popitem(last=False)


def ranges(places: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(group, offset) as (group, first, last), neighbours together."""
    found: list[tuple[int, int, int]] = []
    for group, offset in sorted(places):
        if found and found[-1][0] == group and found[-1][2] >= offset - 1:
            found[-1] = (group, found[-1][1], offset)
        else:
            found.append((group, offset, offset))
    return found
