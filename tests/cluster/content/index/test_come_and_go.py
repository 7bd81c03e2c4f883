"""Thousands of boxes come and go, with the limits as they are: answers are whole at every moment, steps are bounded."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lexicast.cluster.content.boxes import Boxes, Interval
from lexicast.cluster.content.index.bit_blocks import BLOCK, BitBlocks
from lexicast.cluster.content.index.predicate_index import PredicateIndex

Floats = NDArray[np.float64]
NAMES = ("a", "b", "c")


class Crowd:
    """Boxes with centres by chance, some of them open on one side, in the index and in arrays."""

    def __init__(self, seed: int) -> None:
        self.index = PredicateIndex()
        self.low, self.high = np.empty((0, 3)), np.empty((0, 3))
        self.keys: list[int] = []
        self._dice = np.random.default_rng(seed)

    def come(self, count: int, at: float, spread: float) -> None:
        """Boxes around (at, at, at)."""
        centre = self._dice.normal(at, spread, (count, 3))
        width = self._dice.choice([0.0, 0.02, 0.3], (count, 3))
        low, high = centre - width, centre + width
        low[self._dice.random((count, 3)) < 0.1] = -np.inf
        high[self._dice.random((count, 3)) < 0.1] = np.inf
        for key, ends in enumerate(zip(low.tolist(), high.tolist(), strict=True), start=len(self.low)):
            box = {name: Interval(*bounds) for name, *bounds in zip(NAMES, *ends, strict=True)}
            self.index.add(key, Boxes((box,), True))
            self.keys.append(key)
        self.low, self.high = np.concatenate([self.low, low]), np.concatenate([self.high, high])

    def go(self, count: int) -> None:
        """Some of them, by chance."""
        for _ in range(count):
            key = self.keys.pop(int(self._dice.integers(len(self.keys))))
            self.index.remove(key)
            self.low[key], self.high[key] = np.inf, -np.inf

    def check(self, at: float, spread: float) -> None:
        """Events around (at, at, at)."""
        events = self._dice.normal(at, spread, (40, 3))
        events[self._dice.random((40, 3)) < 0.02] = np.nan
        inside = (self.low <= events[:, None]) & (events[:, None] <= self.high)
        expected = np.argwhere(inside.all(axis=2))
        found = np.stack(self.index.match(events, NAMES), axis=1)
        assert found[np.lexsort((found[:, 1], found[:, 0]))].tolist() == expected.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_whole_at_every_moment(seed: int) -> None:
    crowd = Crowd(seed)
    for turn in range(60):
        at, spread = (0.5, 0.3) if turn < 40 else (7.0, 0.01)  # what is asked for moves
        crowd.come(150 if turn < 50 else 20, at, spread)
        if turn > 20:
            crowd.go(200 if turn < 45 else 100)
        for _ in range(turn % 4):
            crowd.index.step(64 + 16 * turn)
        crowd.check(at, spread)
    while crowd.index.step(300):
        crowd.check(7.0, 0.02)
    assert crowd.index.waiting == 0


def test_steps_are_bounded_by_what_they_move(monkeypatch: pytest.MonkeyPatch) -> None:
    touched = {"written": 0, "inserted": 0, "most": 0}
    write, insert = BitBlocks.write, BitBlocks.insert

    def counting_write(self: BitBlocks, blocks: Any, *rest: Any) -> None:
        touched["written"] += len(blocks)
        write(self, blocks, *rest)

    def counting_insert(self: BitBlocks, blocks: Any, *rest: Any) -> Any:
        touched["inserted"] += len(blocks)
        return insert(self, blocks, *rest)

    monkeypatch.setattr(BitBlocks, "write", counting_write)
    monkeypatch.setattr(BitBlocks, "insert", counting_insert)
    crowd, budget = Crowd(7), 128
    crowd.come(900, 0.5, 0.3)
    for turn in range(150):
        crowd.come(60, 0.5, 0.3)
        crowd.go(20)
        touched["written"] = touched["inserted"] = 0
        crowd.index.step(budget)
        assert touched["inserted"] <= budget
        # Blocks whose boxes are shared out with the next ones', and as many new ones as that and the moved boxes fill.
        shared = 2 * (budget // 8)
        assert touched["written"] <= shared + (shared * BLOCK + budget) // 60 + 1, turn
        touched["most"] = max(touched["most"], touched["written"])
    assert touched["most"] > 2


def test_what_is_asked_for_may_move_on_and_on() -> None:
    """As bounds of time do: each box is beyond all others, the oldest go. Steps come to an end, blocks stay full."""
    index = PredicateIndex()
    for key in range(12_000):
        at = float(key)
        index.add(key, Boxes(({"a": Interval(at, inf), "b": Interval(at, at)},), True))
        if key >= 4_000:
            index.remove(key - 4_000)
        if key % 100 == 0:
            assert sum(1 for _ in iter(lambda: index.step(256), False)) < 100
    assert index.nbytes < 128 * len(index)
    events, keys = index.match(np.array([[11_500.0, 11_000.0], [inf, 7_999.0], [inf, 8_000.0]]), ("a", "b"))
    assert sorted(zip(events.tolist(), keys.tolist(), strict=True)) == [(0, 11_000), (2, 8_000)]


def test_memory_is_given_back() -> None:
    crowd = Crowd(3)
    crowd.come(6_000, 0.5, 0.3)
    while crowd.index.step(512):
        pass
    full = crowd.index.nbytes
    assert full / 6_000 < 128
    crowd.go(5_500)
    crowd.come(1, 0.5, 0.3)
    while crowd.index.step(512):
        pass
    crowd.check(0.5, 0.3)
    assert crowd.index.nbytes < full
    crowd.go(len(crowd.keys))
    assert crowd.index.nbytes < full / 4
