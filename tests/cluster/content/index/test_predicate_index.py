"""The index of content subscriptions agrees with comparing each event with each box, whatever came and went before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.content.boxes import Box, Boxes, Interval
from lexicast.cluster.content.index import column_group, column_groups, predicate_index
from lexicast.cluster.content.index.predicate_index import PredicateIndex
from lexicast.cluster.errors import UsageError

COLUMNS = ["a", "b", "c", "d"]
# Few, so that ends and values often are equal.
VALUES = [-inf, -1e308, -1.0, -0.0, 0.0, 0.25, 0.5, 1.0, 1.5, 2.0**53, 2.0**53 + 2, inf]


@pytest.fixture(scope="module", autouse=True)
def _small_limits() -> Iterator[None]:
    """So that some dozen boxes are clustered, run out of groups and fill what is loose."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"CLUSTERED_FROM": 6, "LOOSE_MAX": 100, "MOVED_MAX": 40, "_SCANNED": 8}.items():
            patch.setattr(column_group, name, value)
        for name, value in {"GROUPS_MAX": 2, "DIMENSIONS_MAX": 3, "RARE_MAX": 12}.items():
            patch.setattr(column_groups, name, value)
        patch.setattr(predicate_index, "EVENTS_AT_ONCE", 7)
        yield


def naive(boxes: dict[int, tuple[Box, ...]], values: np.ndarray, columns: list[str]) -> list[tuple[int, int]]:
    """The pairs that match, one by one."""
    found = []
    for number, event in enumerate(values.tolist()):
        named = dict(zip(columns, event, strict=True))
        for key, some in boxes.items():
            if any(all(low <= named.get(name, nan) <= high for name, (low, high) in box.items()) for box in some):
                found.append((number, key))
    return sorted(found)


def matched(index: PredicateIndex, values: np.ndarray, columns: list[str]) -> list[tuple[int, int]]:
    """The pairs that the index finds."""
    events, keys = index.match(values, columns)
    return sorted(zip(events.tolist(), keys.tolist(), strict=True))


intervals = st.tuples(st.sampled_from(VALUES), st.sampled_from(VALUES)).map(lambda ends: Interval(*sorted(ends)))
some_boxes = st.lists(st.dictionaries(st.sampled_from(COLUMNS), intervals, max_size=4), max_size=3).map(tuple)
keys = st.integers(0, 40) | st.sampled_from([-1, 2**40, 2**63 - 1, -(2**63)])
events = st.lists(st.lists(st.sampled_from([nan, *VALUES]), min_size=4, max_size=4), min_size=1, max_size=10)
steps = st.one_of(
    st.tuples(st.just("add"), st.lists(st.tuples(keys, some_boxes), min_size=1, max_size=30)),
    st.tuples(st.just("remove"), st.lists(keys, min_size=1, max_size=20)),
    st.tuples(st.just("step"), st.integers(1, 100)),
    st.tuples(st.just("match"), events),
)


class Model:
    """The index, and what it has to know."""

    def __init__(self) -> None:
        self.index = PredicateIndex()
        self.boxes: dict[int, tuple[Box, ...]] = {}

    def add(self, entered: list[tuple[int, tuple[Box, ...]]]) -> None:
        for key, boxes in entered:
            if key in self.boxes:
                with pytest.raises(UsageError, match="in use"):
                    self.index.add(key, Boxes(boxes, True))
                continue
            with contextlib.suppress(UsageError):  # the rare ones may be too many; then nothing has changed
                self.index.add(key, Boxes(boxes, True))
                self.boxes[key] = boxes

    def remove(self, keys: list[int]) -> None:
        for key in keys:
            if self.boxes.pop(key, None) is None:
                with pytest.raises(UsageError, match="not in the index"):
                    self.index.remove(key)
            else:
                self.index.remove(key)

    def step(self, budget: int) -> None:
        self.index.step(budget)

    def match(self, events: list[list[float]], columns: list[str] = COLUMNS) -> None:
        values = np.array(events)[:, [COLUMNS.index(name) for name in columns]]
        assert matched(self.index, values, columns) == naive(self.boxes, values, columns)
        assert len(self.index) == len(self.boxes)


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, min_size=1, max_size=25), events)
def test_it_agrees_with_comparing_one_by_one(done: list[tuple[str, Any]], last: list[list[float]]) -> None:
    model = Model()
    for what, given_ in done:
        getattr(model, what)(given_)
    model.match(last)
    model.match(last, ["c", "a"])
    assert all(key in model.index for key in model.boxes)
    model.remove(list(model.boxes))
    model.match(last)
    assert model.index.columns == ()
