"""A matcher's cells beside a naive list of boxes; which candidate is asked."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import UsageError
from lexicast.cluster.hpartition import matcher_cells
from lexicast.cluster.hpartition.cell_map import CellPlace
from lexicast.cluster.hpartition.choice import MatcherChoice, least_work
from lexicast.cluster.hpartition.matcher_cells import MatcherCells
from lexicast.cluster.hpartition.partition import CellId

EDGES = st.integers(-2, 2)
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "remove", "forget"]), st.integers(0, 1), st.integers(0, 24), EDGES, EDGES),
    max_size=60,
)


@given(STEPS, st.lists(st.tuples(EDGES, EDGES), max_size=40))
def test_a_matcher_finds_what_a_naive_list_finds(
    steps: list[tuple[str, int, int, int, int]], points: list[tuple[int, int]]
) -> None:
    matcher, naive = MatcherCells(2), dict[CellId, dict[int, tuple[np.ndarray, np.ndarray]]]()
    for what, which, number, one, other in steps:
        cell = CellId(0, which)
        box = np.array([one, -math.inf]), np.array([one + 1, other])
        if what == "put":
            matcher.put(cell, number, *box)
            naive.setdefault(cell, {})[number] = box
        elif what == "remove":
            matcher.remove(cell, number)
            naive.get(cell, {}).pop(number, None)
        else:
            matcher.forget(cell)
            naive.pop(cell, None)
    assert matcher.held == sum(map(len, naive.values()))
    events = np.array(points, float).reshape(-1, 2)
    for cell in (CellId(0, 0), CellId(0, 1)):
        boxes = naive.get(cell, {})
        assert (cell in matcher) == bool(boxes)
        rows, numbers = matcher.match(cell, events)
        expected = {
            (row, number)
            for row, event in enumerate(events)
            for number, (low, high) in boxes.items()
            if (low <= event).all() and (event <= high).all()
        }
        assert sorted(zip(rows.tolist(), numbers.tolist(), strict=True)) == sorted(expected)
        assert set(matcher.boxes(cell).numbers.tolist()) == set(boxes)


def test_a_matcher_that_is_full_and_edges_that_are_no_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher_cells, "SUBSCRIPTIONS_MAX", 1)
    matcher, zero = MatcherCells(1), np.zeros(1)
    with pytest.raises(UsageError, match="no numbers"):
        matcher.put(CellId(0, 0), 1, np.array([math.nan]), zero)
    matcher.put(CellId(0, 0), 1, zero, zero)
    with pytest.raises(UsageError, match="add matchers"):
        matcher.put(CellId(0, 1), 2, zero, zero)
    assert matcher.held == 1


def test_the_candidate_that_is_done_first_is_asked() -> None:
    """The least sum of what waits and what the event adds, over all living matchers of all candidates."""
    small, large = CellPlace(CellId(0, 0), b"\0"), CellPlace(CellId(1, 0), b"\1")
    matchers = {b"\0": ["a"], b"\1": ["b", "c"]}
    holds = {small: 10, large: 100}
    asked = [
        least_work([small, large], matchers, {"a": waits, "b": 50, "c": 20}, holds) for waits in (0, 109, 110, 111)
    ]
    a, c = MatcherChoice(small, "a", 10), MatcherChoice(large, "c", 100)
    assert asked == [a, a, a, c]
    assert least_work([small], {b"\1": ["b"]}, {}, holds) is None
