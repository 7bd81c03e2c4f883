"""Cells that are split in two, again and again: which part an event lies in, which parts a subscription, and where to
cut. Pure.

The cut is the one that puts fewest subscriptions into both halves, among one a dimension: that at the median of what
lies in the cell. Where even that relieves no half (everybody spans the cell) there is none: copies are what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from .partition import CellId, Partition
from .segments import Floats

# Neither half may keep more than this part of the cell's subscriptions, else a split does not pay for its copies.
_RELIEF: Final = 0.9


class Split(NamedTuple):
    """A cell is cut at `at` along `dimension`: what is below lies in half "0", the rest in half "1"."""

    dimension: int
    at: float


def halves(cell: CellId) -> tuple[CellId, CellId]:
    """What a cell becomes where it is split: (below, from the cut on)."""
    return cell._replace(halves=cell.halves + "0"), cell._replace(halves=cell.halves + "1")


def part_of_event(splits: Mapping[CellId, Split], cell: CellId, point: Sequence[float]) -> CellId:
    """The part of `cell` that a point of it [dimensions] lies in."""
    while (split := splits.get(cell)) is not None:
        cell = halves(cell)[point[split.dimension] >= split.at]
    return cell


def parts_of_box(splits: Mapping[CellId, Split], cell: CellId, low: Floats, high: Floats) -> Iterator[CellId]:
    """The parts of `cell` that a box which overlaps it [dimensions] overlaps."""
    split = splits.get(cell)
    if split is None:
        yield cell
        return
    below, above = halves(cell)
    if low[split.dimension] < split.at:
        yield from parts_of_box(splits, below, low, high)
    if high[split.dimension] >= split.at:
        yield from parts_of_box(splits, above, low, high)


def part_bounds(partition: Partition, splits: Mapping[CellId, Split], part: CellId) -> tuple[Floats, Floats]:
    """(least, first beyond) of a part of a cell [dimensions]; infinite where it has no bound."""
    least, beyond = partition.bounds(part)
    for depth, half in enumerate(part.halves):
        split = splits[part._replace(halves=part.halves[:depth])]
        if half == "0":
            beyond[split.dimension] = min(beyond[split.dimension], split.at)
        else:
            least[split.dimension] = max(least[split.dimension], split.at)
    return least, beyond


def least_duplicating_split(
    low: Floats, high: Floats, dimensions: Sequence[int], bounds: tuple[Floats, Floats]
) -> Split | None:
    """Where to cut a cell with `bounds` and these subscriptions [subscriptions x all dimensions] along one of its
    group's `dimensions`. None: no cut relieves it."""
    found: list[tuple[int, Split]] = []
    for dimension in dimensions:
        least, beyond = bounds[0][dimension], bounds[1][dimension]
        # A box's part in the cell. An infinite side says nothing about where its middle is.
        begins, ends = np.maximum(low[:, dimension], least), np.minimum(high[:, dimension], beyond)
        bounded = np.isfinite(begins) | np.isfinite(ends)
        if not bounded.any():
            continue
        begins, ends = begins[bounded], ends[bounded]
        middles = np.where(np.isfinite(begins), begins, ends) / 2 + np.where(np.isfinite(ends), ends, begins) / 2
        at = float(np.median(middles))
        below, above = int((low[:, dimension] < at).sum()), int((high[:, dimension] >= at).sum())
        if least < at < beyond and max(below, above) <= _RELIEF * len(low):
            found.append((below + above - len(low), Split(dimension, at)))
    return min(found, default=(0, None))[1]
