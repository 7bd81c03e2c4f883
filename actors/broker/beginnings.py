"""The beginnings of sessions that return: where each lags, group by group, from where it was left and the broker is.

Those that were left at the same place, as when a site or a broker is gone for a while, begin at the same place: looked
at once. (To look at a hundred groups takes ten times as long as to see that they are the ones of before.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

Offsets = Mapping[int, int]


class Beginning(NamedTuple):
    """Where new filters of a subscriber begin: at the heads, or lagging from `begin` on. `past`: from where on it comes
    live, or came to this broker. `behind`: groups whose blocks before the cut are still to come, and may have been
    chosen before the filter was known."""

    begin: Offsets = MappingProxyType({})
    past: Offsets = MappingProxyType({})
    behind: Collection[int] = ()


class Lagging(NamedTuple):
    """What a subscriber keeps of that: see `Subscriber`."""

    lagging: dict[int, int]
    past: dict[int, int]
    missed_live: set[int]


class Beginnings:
    """See the module's docstring. `heads`: group -> the broker's head, as it is now."""

    def __init__(self, heads: dict[int, int]) -> None:
        self._heads = heads
        self._missed = Remembered(self._look_at_missed)
        self._lagging = Remembered(self._look_at_lagging)

    def missed(self, start: Offsets, cut: Offsets, ends: Offsets) -> dict[int, int]:
        """Where a new subscriber to all groups begins in those in which it is not live at once. It stood at `start`;
        coordinators have said `cut` and `ends`. Not to be changed: others begin there too."""
        found: dict[int, int] = self._missed(start, cut, ends, self._heads)
        return found

    @staticmethod
    def _look_at_missed(start: Offsets, cut: Offsets, ends: Offsets, heads: Offsets) -> dict[int, int]:
        begin = {group: at for group, at in start.items() if at < ends.get(group, 0)}
        for group, first in cut.items():
            if group not in begin:
                at = max(first, start.get(group, 0))
                if heads.get(group) != at:
                    begin[group] = at
        return begin

    def lagging(self, beginning: Beginning) -> Lagging:
        """How a subscriber lags that was live everywhere."""
        begin, past, behind = beginning
        if behind:
            return self._look_at_lagging(begin, past, self._heads, behind)
        lagging, pasts, missed_live = self._lagging(begin, past, self._heads)
        return Lagging(lagging.copy(), pasts.copy(), missed_live.copy())

    @staticmethod
    def _look_at_lagging(begin: Offsets, past: Offsets, heads: Offsets, behind: Collection[int] = ()) -> Lagging:
        lagging = {g: at for g, at in begin.items() if at != heads.get(g, 0) or g in behind}
        pasts = {g: past[g] for g, at in lagging.items() if at < past.get(g, 0)}
        return Lagging(lagging, pasts, lagging.keys() - pasts.keys())


class Remembered:
    """A function of offsets, and what it gave the last time. Of them all only the last ones, the heads, may change."""

    __slots__ = ("_found", "_look", "_offsets")

    def __init__(self, look: Callable[..., Any]) -> None:
        self._look = look
        self._offsets: tuple[Offsets, ...] = ()
        self._found: Any = None

    def __call__(self, *offsets: Offsets) -> Any:
        """Of the same offsets what it gave before."""
        if offsets != self._offsets:
            self._found = self._look(*offsets)
            self._offsets = (*offsets[:-1], dict(offsets[-1]))
        return self._found
