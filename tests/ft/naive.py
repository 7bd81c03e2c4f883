"""REAPS' equations and algorithms as loops, straight from the paper: what the vectorised cores are held against."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from lexicast.ft.bits import Integers
from lexicast.ft.network import BrokerNetwork, Holdings


class Matrices(NamedTuple):
    """C [brokers][subscriptions], locations, lambda_k, D_j: small whole numbers, so that sums are exact."""

    counts: list[list[int]]
    locations: list[str]
    rates: list[int]
    capacities: list[float]

    @property
    def brokers(self) -> range:
        """1 .. L."""
        return range(len(self.locations))

    @property
    def subscriptions(self) -> range:
        """1 .. N."""
        return range(len(self.rates))

    def z(self, i: int, k: int) -> int:
        """z_ik."""
        return int(self.counts[i][k] > 0)

    def e(self, i: int, j: int) -> int:
        """e_ij."""
        return int(self.locations[i] == self.locations[j])

    def network(self) -> BrokerNetwork:
        """The same as the cores take it."""
        counts = np.array(self.counts, np.int64).reshape(len(self.locations), len(self.rates))
        brokers = [(f"b{i}", location) for i, location in enumerate(self.locations)]
        return BrokerNetwork.of_holdings(
            brokers, Holdings.of_matrix(counts), np.array(self.rates, np.float64), np.array(self.capacities)
        )


@st.composite
def matrices(draw: st.DrawFn, *, brokers_min: int = 1, brokers_max: int = 7) -> Matrices:
    """Any small system; also with one broker, one location, no subscription, no capacity."""
    brokers = draw(st.integers(brokers_min, brokers_max))
    subscriptions = draw(st.integers(0, 9))
    row = st.lists(st.integers(0, 2), min_size=subscriptions, max_size=subscriptions)
    capacity = st.one_of(st.integers(0, 60).map(float), st.just(math.inf))
    return Matrices(
        draw(st.lists(row, min_size=brokers, max_size=brokers)),
        draw(st.lists(st.sampled_from("abc"), min_size=brokers, max_size=brokers)),
        draw(st.lists(st.integers(0, 4), min_size=subscriptions, max_size=subscriptions)),
        draw(st.lists(capacity, min_size=brokers, max_size=brokers)),
    )


Pairs = list[list[int]]


def pairs_of(backup: Integers | Iterable[int], count: int) -> Pairs:
    """X = [x_ij] from an array of backups."""
    found = [[0] * count for _ in range(count)]
    for i, j in enumerate(backup):
        if j >= 0:
            found[i][int(j)] = 1
    return found


def overhead(m: Matrices, x: Pairs, j: int) -> int:
    """O_j, equation 1."""
    return sum(
        [(1 - m.z(j, k)) * (1 - math.prod([1 - x[i][j] * m.z(i, k) for i in m.brokers])) for k in m.subscriptions]
    )


def remote_overhead(m: Matrices, x: Pairs, y: Pairs, j: int) -> int:
    """R_j, equation 2."""
    return sum(
        [
            (1 - m.z(j, k))
            * (1 - math.prod([1 - y[i][j] * m.z(i, k) for i in m.brokers]))
            * math.prod([1 - x[i][j] * m.z(i, k) for i in m.brokers])
            for k in m.subscriptions
        ]
    )


def load(m: Matrices, x: Pairs, y: Pairs, j: int) -> float:
    """P_j, equation 7."""
    own = sum([m.rates[k] * m.counts[j][k] for k in m.subscriptions])
    others = [(x[i][j] + y[i][j]) * sum([m.rates[k] * m.counts[i][k] for k in m.subscriptions]) for i in m.brokers]
    return float(own + sum(others))


def least_cost(m: Matrices) -> Pairs:
    """Algorithm 1; of equal candidates the one with less load, where none has capacity the one least beyond it."""
    x, y = pairs_of([], len(m.brokers)), pairs_of([], len(m.brokers))
    for i in m.brokers:
        candidates = [j for j in m.brokers if j != i and m.e(i, j) == 1]
        found = []
        for j in candidates:
            delta = sum(
                [
                    m.z(i, k) * (1 - m.z(j, k)) * math.prod([1 - x[n][j] * m.z(n, k) for n in m.brokers])
                    for k in m.subscriptions
                ]
            )
            found.append((delta, j))
        _choose(m, x, x, y, i, found)
    return x


def min_max_cost(m: Matrices, x: Pairs) -> Pairs:
    """Algorithm 2, with max_l R_l counted anew for each pair."""
    y = pairs_of([], len(m.brokers))
    for i in m.brokers:
        found = []
        for j in m.brokers:
            if j != i and m.e(i, j) == 0:
                y[i][j] = 1
                found.append((max([remote_overhead(m, x, y, n) for n in m.brokers]), j))
                y[i][j] = 0
        _choose(m, y, x, y, i, found)
    return y


def _choose(m: Matrices, chosen: Pairs, x: Pairs, y: Pairs, i: int, found: list[tuple[int, int]]) -> None:
    own = sum([m.rates[k] * m.counts[i][k] for k in m.subscriptions])
    able = [(score, load(m, x, y, j), j) for score, j in found if load(m, x, y, j) + own < m.capacities[j]]
    if able:
        chosen[i][min(able)[2]] = 1
    elif found:
        chosen[i][min([(load(m, x, y, j) - m.capacities[j], j) for _, j in found])[1]] = 1
