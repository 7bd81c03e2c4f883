"""Which cells are cold, and what is undone: halves are joined, copies beyond those of all cells given back. Pure. Ours.

    cold     below COLD of what makes a cell hot (`heat`): halves as the one that they would be, a cell as if it had no
             copies of its own
    judged   by EVENTS_EACH events a cell or more; of fewer nothing is known

What has just been relieved was hot, so its load has to fall to COLD of that before it is undone: nothing goes back and
forth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .cell_map import CellMap, Change, Join
from .heat import CellLoad, hot_limit
from .partition import CellId
from .splits import halves

COLD: Final = 0.25
EVENTS_EACH: Final = 16
_NOTHING: Final = CellLoad(0, 0)


def cold_changes(cells: CellMap, loads: Mapping[CellId, CellLoad], matchers: int) -> dict[CellId, Change] | None:
    """What `CellMap.begun` is told of each cold cell; None: too little is known. `loads`: of cells that were asked."""
    if sum([load.events for load in loads.values()]) < EVENTS_EACH * (cells.partition.cells + len(cells.splits)):
        return None
    limit = COLD * hot_limit(loads, matchers)
    found: dict[CellId, Change] = {}
    for cell in sorted(cells.splits):
        parts = [loads.get(half, _NOTHING) for half in halves(cell)]
        # A subscription in both is counted twice: rather too hot than too cold.
        joined = CellLoad(sum([each.events for each in parts]), sum([each.subscriptions for each in parts]))
        if joined.comparisons < limit and not any([half in cells.splits for half in halves(cell)]):
            found[cell] = Join(cells.copies_each)
    for cell, copies in sorted(cells.copies.items()):
        whole = cell.halves == "" or cell._replace(halves=cell.halves[:-1]) not in found
        if copies > cells.copies_each and whole and loads.get(cell, _NOTHING).comparisons / cells.copies_each < limit:
            found[cell] = cells.copies_each
    return found
