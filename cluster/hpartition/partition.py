"""The content space cut into cells (SREM, sections 4.1 and 4.2). Pure.

Dimensions are in groups; a group's cells are the products of segments of its dimensions, and any value in all others.
So each group alone covers the whole space:

    a subscription    lies in every cell of every group that it overlaps (the paper's example, where G1200 of one group
                      and G0012 and G0022 of the other belong to one subscription; eq. 1 reads A_i in V_j there)
    an event          lies in one cell of each group, and all subscriptions that match it lie in each of those

    groups of one dimension       SPartition, and BlueDove
    one group of all dimensions   APartition
    what is between               HPartition: more groups are more candidates an event, larger ones smaller cells

Subscriptions are closed boxes; a side may be infinite. An event without a value in a dimension has +inf there: all
boxes that do not ask for the dimension hold that, and whoever asks for the others has to look at the event itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from ..errors import UsageError
from .segments import DimensionCuts, Floats, Integers, cut_by_quantiles

# A subscription may lie in all of them.
GROUP_CELLS_MAX: Final = 65_536


class CellId(NamedTuple):
    """A cell: its group, its number there, and where it was split, the half at each split ("0": below the cut)."""

    group: int
    number: int
    halves: str = ""


@dataclass(frozen=True, eq=False)
class DimensionGroup:
    """Dimensions that are cut together.

    Raises UsageError: not one cut a dimension, or more than GROUP_CELLS_MAX cells.
    """

    dimensions: tuple[int, ...]
    cuts: tuple[DimensionCuts, ...]

    def __post_init__(self) -> None:
        if not self.dimensions or len(self.dimensions) != len(self.cuts):
            raise UsageError("a group has a dimension or more, and cuts for each")
        if self.cells > GROUP_CELLS_MAX:
            raise UsageError(f"{self.cells} cells in one group are more than {GROUP_CELLS_MAX}: fewer segments")

    @property
    def shape(self) -> tuple[int, ...]:
        """Segments of each dimension."""
        return tuple([cuts.segments for cuts in self.cuts])

    @property
    def cells(self) -> int:
        """How many cells there are."""
        return int(np.prod(self.shape, dtype=object))

    def cells_of(self, points: Floats) -> Integers:
        """The number of the cell of each point [points x all dimensions]; [points]."""
        segments = [cuts.segment(points[:, at]) for at, cuts in zip(self.dimensions, self.cuts, strict=True)]
        return np.ravel_multi_index(segments, self.shape)

    def overlapping(self, low: Floats, high: Floats) -> Integers:
        """The numbers of the cells that a box [all dimensions] overlaps, ascending."""
        first, last = (self._segments(edge[None, :])[:, 0] for edge in (low, high))
        ranges = [np.arange(one, other + 1) for one, other in zip(first, last, strict=True)]
        return np.ravel_multi_index(np.meshgrid(*ranges, indexing="ij"), self.shape).ravel()

    def overlap_counts(self, low: Floats, high: Floats) -> Integers:
        """How many of the boxes [boxes x all dimensions] overlap each cell [cells].

        Each box is one number at each corner of its block of cells; sums along all axes fill it.
        """
        counts = np.zeros([segments + 1 for segments in self.shape], np.int64)
        first, beyond = self._segments(low), self._segments(high) + 1
        for corner in itertools.product((0, 1), repeat=len(self.dimensions)):
            at = tuple([(beyond if far else first)[axis] for axis, far in enumerate(corner)])
            np.add.at(counts, at, -1 if sum(corner) % 2 else 1)
        for axis in range(len(self.dimensions)):
            np.cumsum(counts, axis=axis, out=counts)
        return counts[tuple([slice(segments) for segments in self.shape])].ravel()

    def segments_of(self, cell: int) -> tuple[int, ...]:
        """The segment of each dimension of a cell."""
        return tuple([int(segment) for segment in np.unravel_index(cell, self.shape)])

    def _segments(self, points: Floats) -> Integers:
        """[dimensions of this group x points]"""
        return np.array([cuts.segment(points[:, at]) for at, cuts in zip(self.dimensions, self.cuts, strict=True)])


@dataclass(frozen=True, eq=False)
class Partition:
    """The content space, as all members cut it.

    Raises UsageError: a dimension is in no group, or in two.
    """

    groups: tuple[DimensionGroup, ...]

    def __post_init__(self) -> None:
        named = sorted([dimension for group in self.groups for dimension in group.dimensions])
        if named != list(range(len(named))) or not named:
            raise UsageError(f"each dimension belongs to one group: {[group.dimensions for group in self.groups]}")

    @property
    def dimensions(self) -> int:
        """k"""
        return sum([len(group.dimensions) for group in self.groups])

    @property
    def cells(self) -> int:
        """Of all groups."""
        return sum([group.cells for group in self.groups])

    def cells_of_events(self, points: Floats) -> Integers:
        """The number of the cell in each group of each point [points x dimensions]; [points x groups]."""
        return np.stack([group.cells_of(points) for group in self.groups], axis=1)

    def cells_of_box(self, low: Floats, high: Floats) -> Iterator[CellId]:
        """All cells that a subscription [dimensions] overlaps."""
        for number, group in enumerate(self.groups):
            for cell in group.overlapping(low, high).tolist():
                yield CellId(number, cell)

    def bounds(self, cell: CellId) -> tuple[Floats, Floats]:
        """(least, first beyond) of a whole cell [dimensions]; infinite in the dimensions of other groups."""
        least, beyond = np.full(self.dimensions, -np.inf), np.full(self.dimensions, np.inf)
        group = self.groups[cell.group]
        segments = zip(group.dimensions, group.cuts, group.segments_of(cell.number), strict=True)
        for dimension, cuts, segment in segments:
            least[dimension], beyond[dimension] = cuts.bounds(segment)
        return least, beyond

    def label(self, cell: CellId) -> tuple[int, ...]:
        """The paper's x_1 ... x_k (eq. 1): the segment, from 1 on, of each dimension of the group; 0 for all others."""
        group = self.groups[cell.group]
        found = [0] * self.dimensions
        for dimension, segment in zip(group.dimensions, group.segments_of(cell.number), strict=True):
            found[dimension] = segment + 1
        return tuple(found)


def partitioned(seen: Floats, groups: Sequence[Sequence[int]], segments: int) -> Partition:
    """Cuts each dimension into so many segments by the events that have been `seen` [events x dimensions].

    Raises UsageError: see `cut_by_quantiles`, `DimensionGroup` and `Partition`.
    """
    made = [
        DimensionGroup(tuple(group), tuple([cut_by_quantiles(seen[:, at], segments) for at in group]))
        for group in groups
    ]
    return Partition(tuple(made))
