"""Ranks never go down when values go up; boxes that are close have close places on the curve."""

from __future__ import annotations

from math import inf

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.content.index.ranks import RANKS, Ranks

VALUES = st.floats(allow_nan=False)


@given(st.lists(VALUES, max_size=50), st.lists(VALUES, min_size=1, max_size=50))
def test_ranks_keep_the_order_of_values(ends: list[float], values: list[float]) -> None:
    ranks = Ranks(np.array([ends], np.float64)).of_all(np.array(sorted([-inf, *values, inf]))[:, None])[:, 0]
    assert (np.diff(ranks) >= 0).all()
    assert ranks[0] >= 0
    assert ranks[-1] < RANKS


def test_few_values_are_told_apart_and_spread() -> None:
    found = Ranks(np.array([[1.0, 2.0, 3.0, 2.0, inf, -inf]])).of_all(np.array([[0.0], [1.0], [2.0], [3.0], [inf]]))
    assert found[:, 0].tolist() == [0, 1365, 2730, 4095, 4095]


def test_ranks_are_spread_evenly_however_values_are() -> None:
    values = np.random.default_rng(1).lognormal(0, 3, 50_000)
    ranks = Ranks(values[None, :20_000]).of_all(values[:, None])
    counts, _ = np.histogram(ranks, 16, (0, RANKS))
    assert counts.min() > 0.8 * len(values) / 16
    assert counts.max() < 1.2 * len(values) / 16


def test_a_place_on_the_curve_has_the_bits_of_all_dimensions_in_turn() -> None:
    ranks = Ranks(np.arange(RANKS, dtype=np.float64)[None].repeat(2, axis=0))
    low = np.array([[0b101, 0b011]], np.int32)
    assert ranks.z_codes(low, low).tolist() == [0b01_10_11]
