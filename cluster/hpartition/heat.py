"""Which cells are hot, and what is done about each: copies where events made it so, a split where subscriptions did.
Pure. The paper's algorithm is lacking in the abridgement; this one is ours.

    load of a cell   events a second * subscriptions: comparisons a second
    hot              above HOT times the mean of the cells that are asked at all, and worth it: beyond WORTH of what
                     each matcher would have if all had the same: of thousands of cells most above the mean are little
    by events        the cell has more times the mean of events than it has of subscriptions
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from .partition import CellId
from .splits import Split

HOT: Final = 2.0
WORTH: Final = 0.25
# A turn changes no more than this; the next one sees what that has done.
CHANGES_MAX: Final = 32


class CellLoad(NamedTuple):
    """What a cell has: events asked of it in a time, all copies together, and its subscriptions."""

    events: float
    subscriptions: int

    @property
    def comparisons(self) -> float:
        """Events * subscriptions."""
        return self.events * self.subscriptions


class HeatCause(Enum):
    """Of what a hot cell has more."""

    EVENTS = "events"
    SUBSCRIPTIONS = "subscriptions"


class HotCell(NamedTuple):
    """A cell that is to be changed, by `cause`. `copies` would bring each of them below what is hot."""

    cell: CellId
    cause: HeatCause
    copies: int


def hot_limit(loads: Mapping[CellId, CellLoad], matchers: int) -> float:
    """The comparisons beyond which each copy of a cell is hot; 0 where nothing was asked."""
    asked = [load.comparisons for load in loads.values() if load.comparisons > 0]
    total = sum(asked)
    return max(HOT * total / len(asked), WORTH * total / matchers) if asked else 0.0


def hot_cells(loads: Mapping[CellId, CellLoad], matchers: int, copies: Mapping[CellId, int]) -> list[HotCell]:
    """The hottest first, CHANGES_MAX at most. `copies`: of cells that have more than one; each carries its share."""
    asked = {cell: load for cell, load in loads.items() if load.comparisons > 0}
    if not asked or matchers < 2:
        return []
    events, subscriptions = sum([load[0] for load in asked.values()]), sum([load[1] for load in asked.values()])
    limit = hot_limit(asked, matchers)
    found = []
    for cell, load in asked.items():
        share = load.comparisons / copies.get(cell, 1)
        if share > limit:
            by_events = load.events * subscriptions > load.subscriptions * events
            cause = HeatCause.EVENTS if by_events else HeatCause.SUBSCRIPTIONS
            wanted = min(matchers, int(-(-load.comparisons // limit)))
            found.append((share, HotCell(cell, cause, wanted)))
    found.sort(key=lambda each: (-each[0], each[1].cell))
    return [hot for _, hot in found[:CHANGES_MAX]]


def relieving_changes(
    hot: Sequence[HotCell], copies: Mapping[CellId, int], split: Callable[[CellId], Split | None]
) -> dict[CellId, Split | int]:
    """What `CellMap.begun` is told of each hot cell; nothing of one that has as many copies as it can have already.
    `split`: where to cut a cell (`least_duplicating_split`); None, and it gets copies."""
    found: dict[CellId, Split | int] = {}
    for each in hot:
        cut = split(each.cell) if each.cause is HeatCause.SUBSCRIPTIONS else None
        if cut is not None:
            found[each.cell] = cut
        elif each.copies > copies.get(each.cell, 1):
            found[each.cell] = each.copies
    return found
