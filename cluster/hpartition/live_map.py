"""The cells as a cluster uses them: which matchers are told a condition, and which may be asked about a publication.

A `CellMap` with a number, the columns (`cluster.content.boxes`) that are its dimensions, and the matchers by name, each
a top cluster of its own. Without cells (a few conditions, one matcher, nothing seen yet) everybody holds everything.

    version     neighbours are one apart, and are right for each other's publications (`cell_map`); anything else that
                changes takes two, so that nobody vouches across it
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import inf, isnan
from typing import Any, Final

import numpy as np

from ..content.boxes import Boxes
from ..errors import PeerError, UsageError
from ..skipcloud.identifiers import CloudShape
from .cell_map import CellMap, Change, Handover, HandoverPhase, Join
from .partition import CellId, DimensionGroup, Partition
from .placing import CellPlaces
from .segments import DimensionCuts, Floats
from .splits import Split, parts_of_box

# Matchers are told apart by one digit, a byte; more than that by two.
_SHAPES: Final = (CloudShape(base=256, levels=1), CloudShape(base=256, levels=2))
MATCHERS_MAX: Final = 4_096
# Where there are no cells each matcher holds everything; of more than so many only the first ones do.
ALL_HOLD_MAX: Final = 256
HOLDERS_OF_ALL: Final = 16
# Of a box that lies in more cells than this all are taken.
CELLS_LOOKED_AT_MAX: Final = 256

Names = frozenset[str]


def shape_of(matchers: Collection[str]) -> CloudShape:
    """By which so many are told apart."""
    return _SHAPES[len(matchers) > _SHAPES[0].base]


def clusters_of(matchers: Iterable[str]) -> dict[bytes, str]:
    """Each matcher's top cluster, evenly around: so many cells are nearest to each. Raises UsageError: too many."""
    names = sorted(set(matchers))
    if len(names) > MATCHERS_MAX:
        raise UsageError(f"{len(names)} matchers: at most {MATCHERS_MAX}")
    shape = shape_of(names)
    return {shape.digits(i * shape.clusters // len(names)): name for i, name in enumerate(names)}


def places_of(matchers: Collection[str]) -> CellPlaces:
    """Where cells lie with these matchers. Raises UsageError: too many, or none."""
    return CellPlaces(shape_of(matchers), clusters_of(matchers))


@dataclass(frozen=True, eq=False)
class LiveMap:
    """See the module's docstring. `columns`: of the dimensions; `cells` None: everybody holds everything."""

    version: int = 0
    matchers: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    cells: CellMap | None = None

    @cached_property
    def _all(self) -> Names:
        return frozenset(self.matchers)

    @cached_property
    def _name_of(self) -> dict[bytes, str]:
        return clusters_of(self.matchers)

    @cached_property
    def _grids(self) -> list[_Grid]:
        assert self.cells is not None
        return [_Grid(number, group) for number, group in enumerate(self.cells.partition.groups)]

    # -- conditions

    def holders(self, boxes: Boxes) -> tuple[Names, frozenset[CellId]]:
        """Who has to be told a condition, and the cells that it lies in (none where that is all)."""
        if self.cells is None:
            return self._all, frozenset()
        names, cells = set[str](), set[CellId]()
        for box in boxes.boxes:
            bounds = [box.get(column) for column in self.columns]
            for grid in self._grids:
                found = grid.of_box([(-inf, inf) if bound is None else (bound.low, bound.high) for bound in bounds])
                if found is None:
                    return self._all, frozenset()
                for cell in found:
                    names |= self._holders_of(cell, bounds)
                    cells.update(self._parts_of(cell, bounds))
        return frozenset(names), frozenset(cells)

    @cached_property
    def _known(self) -> dict[CellId, Names]:
        return {}

    def _parts_of(self, cell: CellId, bounds: Sequence[Any]) -> Iterable[CellId]:
        """The parts of a whole cell that a box lies in."""
        assert self.cells is not None
        if cell not in self.cells.splits:
            return (cell,)
        return parts_of_box(self.cells.splits, cell, *_sides(bounds))

    def _holders_of(self, cell: CellId, bounds: Sequence[Any]) -> Names:
        found = self._known.get(cell)
        if found is not None:
            return found
        assert self.cells is not None
        if cell in self.cells.splits or cell in self.cells.handovers:
            places = self.cells.holders_in(cell, *_sides(bounds))
            return frozenset([self._name_of[place.cluster] for place in places])
        found = frozenset([self._name_of[place.cluster] for place in self.cells.candidates_in(cell)])
        self._known[cell] = found
        return found

    # -- publications

    def candidates(self, point: Sequence[float]) -> tuple[list[CellId], tuple[str, ...]]:
        """The cells that a publication [columns] lies in, NaN where it has no value; who may be asked about it, one
        cell's after the other's."""
        if self.cells is None:
            return [], self.matchers
        values = [inf if isnan(value) else value for value in point]
        cells = [grid.of_point(values) for grid in self._grids]
        if self.cells.splits or self.cells.handovers:
            cells = [self.cells.part(cell, values) for cell in cells]
        key = tuple(cells)
        names = self._candidates.get(key)
        if names is None:
            found = [self._name_of[place.cluster] for cell in cells for place in self.cells.candidates_in(cell)]
            names = self._candidates[key] = tuple(dict.fromkeys(found))
        return cells, names

    @cached_property
    def _candidates(self) -> dict[tuple[CellId, ...], tuple[str, ...]]:
        return {}

    # -- as plain values

    def to_plain(self) -> tuple[Any, ...]:
        """Numbers, texts and tuples."""
        cells = self.cells
        if cells is None:
            return self.version, self.matchers, self.columns, None
        groups = [(group.dimensions, [cuts.at.tolist() for cuts in group.cuts]) for group in cells.partition.groups]
        splits = [(tuple(cell), tuple(split)) for cell, split in cells.splits.items()]
        copies = [(tuple(cell), count) for cell, count in cells.copies.items()]
        handovers = [
            (tuple(cell), each.change if isinstance(each.change, int) else tuple(each.change), each.phase.value)
            for cell, each in cells.handovers.items()
        ]
        return self.version, self.matchers, self.columns, (groups, splits, copies, handovers, cells.copies_each)

    @staticmethod
    def of_plain(plain: Any) -> LiveMap:
        """What `to_plain` gave. Raises PeerError."""
        try:
            version, matchers, columns, cells = plain
            matchers = tuple(map(str, matchers))
            return LiveMap(int(version), matchers, tuple(columns), None if cells is None else _cells(matchers, cells))
        except (ValueError, TypeError, UsageError) as error:
            raise PeerError(f"not a map of cells: {error}") from None


def _sides(bounds: Sequence[Any]) -> tuple[Floats, Floats]:
    """(low, high) of a box [columns]; infinite where it bounds nothing."""
    low = np.array([-inf if bound is None else bound.low for bound in bounds])
    high = np.array([inf if bound is None else bound.high for bound in bounds])
    return low, high


class _Grid:
    """The whole cells of a group of dimensions, found by bisection: numpy's calls cost more than these few steps."""

    __slots__ = ("_cuts", "_dimensions", "_group", "_strides")

    def __init__(self, number: int, group: DimensionGroup) -> None:
        self._group = number
        self._dimensions = group.dimensions
        self._cuts: list[list[float]] = [cuts.at.tolist() for cuts in group.cuts]
        strides = [1]
        for cuts in reversed(self._cuts[1:]):
            strides.insert(0, strides[0] * (len(cuts) + 1))
        self._strides = strides

    def of_point(self, values: Sequence[float]) -> CellId:
        """The cell of a point [all dimensions]."""
        axes = zip(self._dimensions, self._cuts, self._strides, strict=True)
        return CellId(self._group, sum([bisect_right(cuts, values[at]) * stride for at, cuts, stride in axes]))

    def of_box(self, bounds: Sequence[tuple[float, float]]) -> list[CellId] | None:
        """The cells that a box (low, high) [all dimensions] overlaps; None: more than CELLS_LOOKED_AT_MAX."""
        ranges, count = [], 1
        for at, cuts, stride in zip(self._dimensions, self._cuts, self._strides, strict=True):
            low, high = bounds[at]
            first, last = bisect_right(cuts, low), bisect_right(cuts, high)
            count *= last - first + 1
            ranges.append([segment * stride for segment in range(first, last + 1)])
        if count > CELLS_LOOKED_AT_MAX:
            return None
        return [CellId(self._group, sum(steps)) for steps in product(*ranges)]


def _change(plain: Any) -> Change:
    """Copies are a number, a join a tuple of one, a split of two."""
    if isinstance(plain, int):
        return plain
    return Join(*plain) if len(plain) == 1 else Split(*plain)


def _cells(matchers: Sequence[str], plain: Any) -> CellMap:
    groups, splits, copies, handovers, copies_each = plain
    made = [
        DimensionGroup(tuple(dimensions), tuple([DimensionCuts(np.array(at, np.float64)) for at in cuts]))
        for dimensions, cuts in groups
    ]
    return CellMap(
        Partition(tuple(made)),
        places_of(matchers),
        {CellId(*cell): Split(*split) for cell, split in splits},
        {CellId(*cell): int(count) for cell, count in copies},
        {CellId(*cell): Handover(_change(change), HandoverPhase(phase)) for cell, change, phase in handovers},
        int(copies_each),
    )
