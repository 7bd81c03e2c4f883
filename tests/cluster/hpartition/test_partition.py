"""Segments, groups and cells: the paper's example, and that whoever matches is in the event's cell in every group."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import UsageError
from lexicast.cluster.hpartition.partition import (
    GROUP_CELLS_MAX,
    CellId,
    DimensionGroup,
    Partition,
    partitioned,
)
from lexicast.cluster.hpartition.seen import SeenEvents
from lexicast.cluster.hpartition.segments import SEGMENTS_MAX, DimensionCuts, cut_by_quantiles

# Few distinct values, so that edges, cuts and events fall on each other; and what has no bound.
VALUES = st.one_of(st.integers(-3, 3).map(float), st.sampled_from([-math.inf, math.inf, 0.5, 1e300]))
POINTS = st.lists(st.tuples(VALUES, VALUES, VALUES, VALUES), min_size=1, max_size=20).map(np.array)
GROUPS = st.sampled_from([[[0], [1], [2], [3]], [[0, 1], [2, 3]], [[3, 1], [0], [2]], [[2, 0, 3, 1]]])


@given(st.lists(VALUES, min_size=1).map(np.array), st.integers(1, 9), VALUES)
def test_each_value_lies_within_the_bounds_of_its_segment(seen: np.ndarray, segments: int, value: float) -> None:
    cuts = cut_by_quantiles(seen, segments)
    assert cuts.segments <= segments
    assert (np.diff(cuts.at) > 0).all()
    segment = int(cuts.segment(np.array([value]))[0])
    least, beyond = cuts.bounds(segment)
    assert least <= value
    assert value < beyond or beyond == math.inf
    assert set(cuts.segment(seen).tolist()) == set(range(cuts.segments)), "no segment is empty of what was seen"


def test_segments_get_the_same_share_of_a_skewed_dimension() -> None:
    seen = np.random.default_rng(1).normal(0.5, 0.05, 10_000) ** 3
    counts = np.bincount(cut_by_quantiles(seen, 10).segment(seen))
    assert counts.min() > 990
    assert counts.max() < 1_010


@pytest.mark.parametrize(("seen", "segments"), [([1.0], 0), ([1.0], SEGMENTS_MAX + 1), ([], 2), ([1.0, math.nan], 2)])
def test_what_no_dimension_can_be_cut_by_is_refused(seen: list[float], segments: int) -> None:
    with pytest.raises(UsageError, match="a dimension"):
        cut_by_quantiles(np.array(seen), segments)


def test_the_papers_example() -> None:
    """SREM, section 4.2: two groups of two dimensions, each in two segments."""
    halves = DimensionCuts(np.array([101.0]))
    partition = Partition((DimensionGroup((0, 1), (halves, halves)), DimensionGroup((2, 3), (halves, halves))))
    low, high = np.array([80, 105, -math.inf, 115]), np.array([100, 170, math.inf, 150])
    labels = sorted([partition.label(cell) for cell in partition.cells_of_box(low, high)])
    assert labels == [(0, 0, 1, 2), (0, 0, 2, 2), (1, 2, 0, 0)]


@given(POINTS, POINTS, POINTS, GROUPS, st.integers(1, 4), st.data())
def test_who_matches_an_event_lies_in_its_cell_in_every_group(
    seen: np.ndarray, low: np.ndarray, points: np.ndarray, groups: list[list[int]], segments: int, data: st.DataObject
) -> None:
    partition = partitioned(seen, groups, segments)
    high = low + data.draw(st.sampled_from([0.0, 1.0, 2.5]))
    cells = [set(partition.cells_of_box(*box)) for box in zip(low, high, strict=True)]
    for point, numbers in zip(points, partition.cells_of_events(points).tolist(), strict=True):
        for group, number in enumerate(numbers):
            least, beyond = partition.bounds(CellId(group, number))
            assert ((least <= point) & ((point < beyond) | (beyond == math.inf))).all()
            for box in np.flatnonzero(((low <= point) & (point <= high)).all(axis=1)):
                assert CellId(group, number) in cells[box]
    for group, made in enumerate(partition.groups):
        counted = np.zeros(made.cells, int)
        for cell in [cell for some in cells for cell in some if cell.group == group]:
            counted[cell.number] += 1
        assert made.overlap_counts(low, high).tolist() == counted.tolist()


def test_partitions_that_cannot_be_are_refused() -> None:
    seen = np.random.default_rng(1).random((1_000, 4))
    assert partitioned(seen, [[0, 1, 2, 3]], 16).cells == GROUP_CELLS_MAX
    with pytest.raises(UsageError, match="fewer segments"):
        partitioned(seen, [[0, 1, 2, 3]], 17)
    for groups in ([[0, 1], [1, 2]], [[0, 2]], []):
        with pytest.raises(UsageError, match="one group"):
            partitioned(seen, groups, 2)
    with pytest.raises(UsageError, match="a dimension or more"):
        partitioned(seen, [[]], 2)


@given(st.lists(st.integers(0, 7), max_size=6), st.integers(1, 12))
def test_a_sample_is_all_that_was_seen_until_it_is_full_and_then_some_of_it(batches: list[int], most: int) -> None:
    seen = SeenEvents(1, most, np.random.default_rng(1))
    numbers = np.arange(sum(batches), dtype=float)[:, None]
    for batch in np.split(numbers, np.cumsum(batches)[:-1]) if batches else []:
        seen.see(batch)
    assert seen.count == len(numbers)
    assert len(seen.sample) == min(most, len(numbers))
    assert len(np.unique(seen.sample)) == len(seen.sample)
    if len(numbers) <= most:
        assert seen.sample.tolist() == numbers.tolist()


def test_each_event_has_the_same_chance_to_be_kept() -> None:
    counts = np.zeros(40)
    for seed in range(4_000):
        seen = SeenEvents(1, 10, np.random.default_rng(seed))
        for batch in np.split(np.arange(40.0)[:, None], [3, 4, 20]):
            seen.see(batch)
        counts[seen.sample[:, 0].astype(int)] += 1
    assert counts.min() > 850
    assert counts.max() < 1_150
