"""What is cold is joined again, and what was just relieved is not."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import UsageError
from lexicast.cluster.hpartition.cell_map import CellMap, HandoverPhase, Join
from lexicast.cluster.hpartition.cooling import EVENTS_EACH, cold_changes
from lexicast.cluster.hpartition.heat import CellLoad, hot_limit
from lexicast.cluster.hpartition.live_map import places_of
from lexicast.cluster.hpartition.partition import CellId, partitioned
from lexicast.cluster.hpartition.splits import Split, halves

CELL, OTHER = CellId(0, 0), CellId(0, 1)
MATCHERS = 3


def cells(*splits: CellId) -> CellMap:
    """Sixteen, of which these are split."""
    names = [f"m{number}" for number in range(MATCHERS)]
    partition = partitioned(np.random.default_rng(1).random((200, 2)), [[0, 1]], 4)
    made = CellMap(partition, places_of(names), copies_each=2)
    for cell in splits:
        made = made.changed(cell, Split(0, float(made.partition.bounds(cell)[1][0]) / 2))
    return made


def loads(others: CellLoad, **halves_of: CellLoad) -> dict[CellId, CellLoad]:
    """Of the other cells, and of halves of the first."""
    return {CellId(0, number): others for number in range(1, 16)} | {
        CELL._replace(halves=name[1:]): load for name, load in halves_of.items()
    }


USUAL = CellLoad(100, 100)


def test_cold_halves_are_joined() -> None:
    cold = CellLoad(30, 30)
    assert cold_changes(cells(CELL), loads(USUAL, h0=cold, h1=cold), MATCHERS) == {CELL: Join(2)}
    assert cold_changes(cells(CELL), loads(USUAL), MATCHERS) == {CELL: Join(2)}, "nobody asked"
    warm = CellLoad(60, 60)
    assert cold_changes(cells(CELL), loads(USUAL, h0=warm, h1=warm), MATCHERS) == {}
    below = CELL._replace(halves="0")
    assert cold_changes(cells(CELL, below), loads(USUAL), MATCHERS) == {below: Join(2)}, "the innermost first"


def test_copies_of_a_cold_cell_are_given_back() -> None:
    more = cells().changed(OTHER, 3)
    assert cold_changes(more, loads(USUAL), MATCHERS) == {}
    assert cold_changes(more, {**loads(USUAL), OTHER: CellLoad(10, 10)}, MATCHERS) == {OTHER: 2}


def test_of_few_events_nothing_is_known() -> None:
    assert cold_changes(cells(CELL), loads(CellLoad(EVENTS_EACH, 100)), MATCHERS) is None
    assert cold_changes(cells(CELL), {}, MATCHERS) is None


@given(st.integers(1, 1_000), st.integers(1, 1_000), st.floats(0, 1), st.floats(0, 1))
def test_what_is_hot_is_not_joined_as_soon_as_it_is_split(events: int, held: int, asked: float, lies: float) -> None:
    """However its events and its subscriptions fall into the halves."""
    before = loads(USUAL, h=CellLoad(events, held))
    if events * held <= hot_limit(before, MATCHERS):
        return
    below = CellLoad(events * asked, round(held * lies))
    after = loads(USUAL, h0=below, h1=CellLoad(events - below.events, held - below.subscriptions))
    assert CELL not in (cold_changes(cells(CELL), after, MATCHERS) or {})


def test_a_join_is_a_handover_of_three_maps() -> None:
    split = cells(CELL).changed(CELL._replace(halves="0"), 3)
    maps = [split, split.begun(CELL, Join(2))]
    maps.append(maps[-1].filled(CELL))
    maps.append(maps[-1].drained(CELL))
    assert [each.handovers[CELL].phase for each in maps[1:3]] == [HandoverPhase.FILLING, HandoverPhase.DRAINING]
    assert (maps[-1].splits, maps[-1].copies) == ({}, {})
    least, beyond = split.partition.bounds(CELL)
    low, high = np.maximum(least, -9.0), np.minimum(beyond, 9.0) - 1e-6
    asked = [{place.cell for place in each.candidates(low.tolist())} for each in maps]
    assert asked == [{halves(CELL)[0]}, {halves(CELL)[0]}, {CELL}, {CELL}]
    for one, other in pairwise(maps):
        assert one.holders(low, high) >= set(other.candidates(low.tolist()))
        assert other.holders(low, high) >= set(one.candidates(low.tolist()))


def test_what_is_under_way_is_not_joined() -> None:
    split, below = cells(CELL), CELL._replace(halves="0")
    with pytest.raises(UsageError):
        split.begun(below, 3).begun(CELL, Join(2))
    with pytest.raises(UsageError):
        split.begun(CELL, Join(2)).begun(below, 3)
    with pytest.raises(UsageError):
        split.begun(OTHER, Join(2))
    with pytest.raises(UsageError):
        split.changed(below, Split(0, -0.5)).begun(CELL, Join(2))
    with pytest.raises(UsageError):
        split.begun(CELL, Join(0))
