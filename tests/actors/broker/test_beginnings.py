"""Where sessions that return begin: as a look at each group by itself says, whoever began before."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.actors.broker.beginnings import Beginning, Beginnings

OFFSETS = st.dictionaries(st.integers(0, 3), st.integers(0, 4))
RETURNS = st.lists(st.tuples(OFFSETS, OFFSETS, OFFSETS, st.sets(st.integers(0, 3))), max_size=6)


@given(RETURNS, st.lists(OFFSETS, min_size=6, max_size=6))
@settings(max_examples=300)
def test_each_begins_where_it_would_begin_alone(returns: list[Any], moves: list[dict[int, int]]) -> None:
    heads: dict[int, int] = {}
    together = Beginnings(heads)
    for (start, cut, ends, behind), moved in zip(returns + returns, moves + moves, strict=False):
        heads.update(moved)
        begin = together.missed(start, cut, ends)
        assert begin == Beginnings(heads).missed(start, cut, ends)
        lagging = together.lagging(Beginning(begin, ends, behind))
        assert lagging == Beginnings(heads).lagging(Beginning(begin, ends, behind))
        # It is the subscriber's own, which goes on from there.
        lagging.lagging.clear()
        lagging.past.clear()
        lagging.missed_live.clear()


def test_those_that_stood_at_one_place_are_looked_at_once() -> None:
    class Looked(dict[int, int]):
        looks = 0

        def items(self) -> Any:
            self.looks += 1
            return super().items()

    beginnings = Beginnings({1: 5, 2: 0})
    start = Looked({1: 3, 2: 0})
    for _ in range(10):
        begin = beginnings.missed(start, {1: 5, 2: 0}, {1: 5, 2: 0})
        assert begin == {1: 3}
        assert beginnings.lagging(Beginning(begin, {1: 5})).past == {1: 5}
    assert start.looks == 1
