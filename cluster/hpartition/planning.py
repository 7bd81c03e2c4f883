"""Which cells there are and where they lie, decided from what brokers tell, a step at a time. Pure.

Cells begin where that pays (CONDITIONS_MIN, two matchers) and something has been seen. The columns that most conditions
bound are the dimensions, in one group, each cut by what has been seen; a cell has two copies where there are matchers
enough, so that one may die. A cell that is hot (`heat`) gets more copies, or is split, and what is cold for COLD_TURNS
in a row (`cooling`) is joined again; that is a handover of three maps (`cell_map`), and the next one is made when all
brokers that live know the one before it. Nothing depends on that: a matcher that was told by another map is not
believed (`live_map`).

All cells are cut anew where conditions have come to bound other columns: when those that they bound most often bound
RECUT_GAIN times as much as the cells' columns do (`bound_by`), for RECUT_TURNS in a row. That is a jump of the map, so
publications are vouched for again as brokers have followed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Final

import numpy as np

from ..errors import UsageError
from .cell_map import CellMap, Change, HandoverPhase
from .cell_report import CellReport
from .cooling import cold_changes
from .heat import CellLoad, hot_cells, relieving_changes
from .live_map import ALL_HOLD_MAX, HOLDERS_OF_ALL, MATCHERS_MAX, LiveMap, places_of
from .partition import CellId, partitioned
from .segments import Floats
from .splits import Split, least_duplicating_split, part_bounds

CONDITIONS_MIN: Final = 1_000
COPIES_EACH: Final = 2
DIMENSIONS_MAX: Final = 4
# A column that fewer of the conditions bound cuts nothing apart.
BOUND_SHARE_MIN: Final = 0.2
# More cells are smaller, and a condition lies in more of them.
CELLS_A_MATCHER: Final = 32
EVENTS_MIN: Final = 64
# Handovers that run at the same time: each moves a cell's conditions.
HANDOVERS_AT_ONCE: Final = 4
# In a row, in which a cell was cold; turns in which brokers told too little do not count.
COLD_TURNS: Final = 3
# Cutting anew costs that everything is told again. New columns have to be worth it, and to stay.
RECUT_GAIN: Final = 1.5
RECUT_TURNS: Final = 10


class CellPlanner:
    """See the module's docstring. `map`: the one that all are to follow."""

    def __init__(self, version: int) -> None:
        """`version`: beyond any that was given before."""
        self.map = LiveMap(version)
        self._reports: dict[str, CellReport] = {}
        self._asked: Counter[CellId] = Counter()
        # How often in a row cells were cold, and other columns would have been better.
        self._cold: Counter[CellId] = Counter()
        self._misfits = 0
        self._fresh = False

    def told(self, broker: str, report: CellReport) -> None:
        """A broker reports."""
        self._reports[broker] = report
        self._asked.update(report.asked)
        self._fresh = True

    def turn(self, brokers: Iterable[str], matchers: Iterable[str]) -> LiveMap | None:
        """The next map, where there is to be one; `brokers`: that live, `matchers`: that serve."""
        living = set(brokers)
        self._reports = {name: report for name, report in self._reports.items() if name in living}
        names = tuple(sorted(matchers))[:MATCHERS_MAX]
        made = self._other_matchers(names) or self._begun(names) or self._cut_anew(names) or self._stepped()
        if made is not None:
            self.map = made
        self._fresh = False
        return made

    # -- all of it

    def _other_matchers(self, names: tuple[str, ...]) -> LiveMap | None:
        """Matchers have come or gone: the cells lie elsewhere."""
        now = self.map
        cells = now.cells if len(names) > 1 else None
        if cells is None and len(names) > ALL_HOLD_MAX:
            names = names[:HOLDERS_OF_ALL]
        if names == now.matchers:
            return None
        if cells is not None:
            cells = replace(cells, places=places_of(names), handovers={})
        return LiveMap(now.version + 2, names, now.columns if cells is not None else (), cells)

    def _begun(self, names: tuple[str, ...]) -> LiveMap | None:
        """Cells, where there are none."""
        conditions = sum([report.conditions for report in self._reports.values()])
        if self.map.cells is not None or len(names) < 2 or conditions < CONDITIONS_MIN:
            return None
        return self._cut(names)

    def _cut_anew(self, names: tuple[str, ...]) -> LiveMap | None:
        """Other cells, where conditions bound other columns than those that these were cut by."""
        now, reports = self.map, self._reports.values()
        if now.cells is None or not self._all_follow or not self._fresh:
            return None
        shares = self._shares(reports)
        misfit = bound_by(self._columns(reports), shares) > RECUT_GAIN * bound_by(now.columns, shares)
        self._misfits = self._misfits + 1 if misfit else 0
        if self._misfits < RECUT_TURNS or now.cells.handovers:
            return None
        self._misfits = 0
        return self._cut(names)

    def _cut(self, names: tuple[str, ...]) -> LiveMap | None:
        reports = list(self._reports.values())
        columns = self._columns(reports)
        seen = self._seen(reports, columns)
        if not columns or len(seen) < EVENTS_MIN:
            return None
        segments = max(2, int((CELLS_A_MATCHER * len(names)) ** (1 / len(columns))))
        partition = partitioned(seen, [range(len(columns))], segments)
        if partition.cells < 2:
            return None
        cells = CellMap(partition, places_of(names), copies_each=COPIES_EACH)
        self._asked.clear()
        self._cold.clear()
        return LiveMap(self.map.version + 2, names, columns, cells)

    @classmethod
    def _columns(cls, reports: Iterable[CellReport]) -> tuple[str, ...]:
        """The columns that most conditions bound, the most frequent first."""
        often = [(-share, column) for column, share in cls._shares(reports).items() if share >= BOUND_SHARE_MIN]
        return tuple([column for _, column in sorted(often)[:DIMENSIONS_MAX]])

    @staticmethod
    def _shares(reports: Iterable[CellReport]) -> dict[str, float]:
        """By column which part of all conditions bounds it, by the samples."""
        shares: dict[str, float] = {}
        total = sum([report.conditions for report in reports])
        for report in reports:
            for box in report.boxes:
                for column in box:
                    shares[column] = shares.get(column, 0.0) + report.conditions / len(report.boxes) / max(1, total)
        return shares

    @staticmethod
    def _seen(reports: Iterable[CellReport], columns: tuple[str, ...]) -> Floats:
        """What has been seen [events x columns], of events that have a value in some column."""
        rows = [
            [event.get(column, inf) for column in columns]
            for report in reports
            for event in report.events
            if not event.keys().isdisjoint(columns)
        ]
        return np.array(rows, np.float64).reshape(len(rows), len(columns))

    # -- a step

    @property
    def _all_follow(self) -> bool:
        """Whether all brokers that live know the map."""
        return all([report.version == self.map.version for report in self._reports.values()])

    def _stepped(self) -> LiveMap | None:
        """The handovers go on, or some begin."""
        now = self.map
        if now.cells is None or not self._all_follow:
            return None
        cells = self._handed_over(now.cells) if now.cells.handovers else self._relieved(now)
        return None if cells is None else replace(now, version=now.version + 1, cells=cells)

    @staticmethod
    def _handed_over(cells: CellMap) -> CellMap:
        for cell, handover in list(cells.handovers.items()):
            cells = cells.filled(cell) if handover.phase is HandoverPhase.FILLING else cells.drained(cell)
        return cells

    def _relieved(self, now: LiveMap) -> CellMap | None:
        cells = now.cells
        assert cells is not None
        asked, self._asked = self._asked, Counter()
        held: Counter[CellId] = Counter()
        for report in self._reports.values():
            held.update(report.held)
        # Brokers may tell of cells of maps before this one.
        loads = {cell: CellLoad(count, held[cell]) for cell, count in asked.items() if cells.is_whole(cell)}
        copies = {cell: cells.copies.get(cell, cells.copies_each) for cell in loads}
        changes: dict[CellId, Change] = {
            **relieving_changes(hot_cells(loads, len(now.matchers), copies), copies, self._splitter(now))
        }
        for cell, change in self._cooled(cells, loads, len(now.matchers)).items():
            changes.setdefault(cell, change)
        for cell, change in list(changes.items())[:HANDOVERS_AT_ONCE]:
            try:
                cells = cells.begun(cell, change)
            except UsageError:  # of a map before this one
                continue
        return cells if cells.handovers else None

    def _cooled(self, cells: CellMap, loads: Mapping[CellId, CellLoad], matchers: int) -> dict[CellId, Change]:
        """What is to be undone of what was cold for long enough."""
        cold = cold_changes(cells, loads, matchers)
        if cold is None:
            return {}
        self._cold = Counter({cell: self._cold[cell] + 1 for cell in cold})
        return {cell: change for cell, change in cold.items() if self._cold[cell] >= COLD_TURNS}

    def _splitter(self, now: LiveMap) -> _Splitter:
        boxes = [box for report in self._reports.values() for box in report.boxes]
        return _Splitter(now, boxes)


def bound_by(columns: Iterable[str], shares: Mapping[str, float]) -> float:
    """How many of these columns a condition bounds in the mean. `shares`: by column the part that bounds it."""
    return sum([shares.get(column, 0.0) for column in columns])


class _Splitter:
    """Where to cut a cell, by a sample of all conditions."""

    def __init__(self, now: LiveMap, boxes: list[Mapping[str, tuple[float, float]]]) -> None:
        self._cells = now.cells
        bounds = [[box.get(column, (-inf, inf)) for column in now.columns] for box in boxes]
        sides = np.array(bounds, np.float64).reshape(len(boxes), len(now.columns), 2)
        self._low, self._high = sides[:, :, 0], sides[:, :, 1]

    def __call__(self, cell: CellId) -> Split | None:
        cells = self._cells
        if cells is None or cell.group >= len(cells.partition.groups):
            return None
        least, beyond = part_bounds(cells.partition, cells.splits, cell)
        inside = ((self._low < beyond) & (self._high >= least)).all(axis=1)
        if not inside.any():
            return None
        dimensions = cells.partition.groups[cell.group].dimensions
        return least_duplicating_split(self._low[inside], self._high[inside], dimensions, (least, beyond))
