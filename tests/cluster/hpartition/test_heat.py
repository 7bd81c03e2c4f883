"""Hot cells: by events or by subscriptions, worth it or not, and what is done about them."""

from __future__ import annotations

import pytest

from lexicast.cluster.hpartition.heat import (
    CHANGES_MAX,
    CellLoad,
    HeatCause,
    HotCell,
    hot_cells,
    relieving_changes,
)
from lexicast.cluster.hpartition.partition import CellId
from lexicast.cluster.hpartition.splits import Split

CELLS = [CellId(0, number) for number in range(100)]


def even(events: float = 10.0, subscriptions: int = 10) -> dict[CellId, CellLoad]:
    return dict.fromkeys(CELLS, CellLoad(events, subscriptions))


@pytest.mark.parametrize(
    ("load", "cause"), [(CellLoad(500, 10), HeatCause.EVENTS), (CellLoad(10, 500), HeatCause.SUBSCRIPTIONS)]
)
def test_a_cell_is_hot_by_what_it_has_more_of(load: CellLoad, cause: HeatCause) -> None:
    (hot,) = hot_cells(even() | {CELLS[3]: load}, 64, {})
    assert hot.cell == CELLS[3]
    assert hot.cause is cause
    # The mean is (99 * 100 + 5,000) / 100 = 149.
    assert hot.copies == 17


def test_nothing_is_hot_where_all_are_alike_or_nobody_asks_or_there_is_one_matcher() -> None:
    assert hot_cells(even(), 64, {}) == []
    assert hot_cells(even(events=0), 64, {}) == []
    assert hot_cells(even() | {CELLS[0]: CellLoad(500, 10)}, 1, {}) == []


def test_what_is_little_beside_a_matchers_share_is_left_alone() -> None:
    """Three times the mean of a hundred cells is 6% of what each of two matchers has."""
    warm = even() | {CELLS[0]: CellLoad(30, 10)}
    assert hot_cells(warm, 2, {}) == []
    assert [hot.cell for hot in hot_cells(warm, 64, {})] == [CELLS[0]]


def test_copies_share_what_a_cell_has() -> None:
    loads = even() | {CELLS[0]: CellLoad(500, 10)}
    assert hot_cells(loads, 64, {CELLS[0]: 17}) == []
    assert len(hot_cells(loads, 64, {CELLS[0]: 16})) == 1


def test_the_hottest_come_first_and_so_many_a_turn() -> None:
    loads = {CellId(0, number): CellLoad(10.0, 10) for number in range(10_000)}
    loads |= {CellId(1, number): CellLoad(10_000.0 + number, 10) for number in range(CHANGES_MAX + 5)}
    found = hot_cells(loads, 1_000, {})
    assert [hot.cell.number for hot in found] == list(range(CHANGES_MAX + 4, 4, -1))


def test_subscriptions_split_a_cell_and_events_copy_it_and_what_cannot_be_split_is_copied() -> None:
    split = Split(0, 0.5)
    one, two, three, four = CELLS[:4]
    hot = [
        HotCell(one, HeatCause.SUBSCRIPTIONS, 3),
        HotCell(two, HeatCause.EVENTS, 3),
        HotCell(three, HeatCause.SUBSCRIPTIONS, 3),
        HotCell(four, HeatCause.EVENTS, 3),
    ]
    found = relieving_changes(hot, {four: 3}, lambda cell: split if cell != three else None)
    assert found == {one: split, two: 3, three: 3}
