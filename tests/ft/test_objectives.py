"""O_j, R_j, P_j and the greedy algorithms against the paper's equations as loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import UsageError
from lexicast.ft.bits import bits_set, common, packed
from lexicast.ft.choice import Loads
from lexicast.ft.greedy import least_cost, min_max_cost
from lexicast.ft.network import BrokerNetwork, Holdings
from lexicast.ft.objectives import loads_bytes_s, presubscribed, uncovered

from . import naive
from .naive import Matrices, matrices, pairs_of


@given(matrices(), st.data())
def test_objectives_are_the_equations(m: Matrices, data: st.DataObject) -> None:
    count = len(m.brokers)
    backups = st.lists(st.integers(-1, count - 1), min_size=count, max_size=count)
    local, remote = np.array(data.draw(backups)), np.array(data.draw(backups))
    x, y = pairs_of(local, count), pairs_of(remote, count)
    network = m.network()
    assert presubscribed(network, local).tolist() == [naive.overhead(m, x, j) for j in m.brokers]
    assert uncovered(network, local, remote).tolist() == [naive.remote_overhead(m, x, y, j) for j in m.brokers]
    assert loads_bytes_s(network, local, remote).tolist() == [naive.load(m, x, y, j) for j in m.brokers]


@given(matrices())
def test_greedy_algorithms_are_the_papers(m: Matrices) -> None:
    network = m.network()
    loads = Loads(network)
    local = least_cost(network, loads)
    x = naive.least_cost(m)
    assert pairs_of(local.backup, len(m.brokers)) == x
    remote = min_max_cost(network, loads, local.backup)
    assert pairs_of(remote.backup, len(m.brokers)) == naive.min_max_cost(m, x)
    assert local.cost.tolist() == presubscribed(network, local.backup).tolist()
    assert remote.cost.tolist() == uncovered(network, local.backup, remote.backup).tolist()
    assert loads.total.tolist() == loads_bytes_s(network, local.backup, remote.backup).tolist()


@given(st.sets(st.tuples(st.integers(0, 4), st.integers(0, 299))), st.sets(st.integers(0, 299)))
def test_rows_of_bits_are_sets(pairs: set[tuple[int, int]], other: set[int]) -> None:
    brokers, subscriptions = (np.array([pair[part] for pair in sorted(pairs)], np.int64) for part in (0, 1))
    rows = packed(brokers, subscriptions, (5, 300))
    sets = [{k for i, k in pairs if i == broker} for broker in range(5)]
    assert bits_set(rows).tolist() == [len(each) for each in sets]
    row = packed(np.zeros(len(other), np.int64), np.array(sorted(other), np.int64), (1, 300))[0]
    assert common(row, rows, np.array([4, 0, 2])).tolist() == [len(sets[at] & other) for at in (4, 0, 2)]


ONE = Holdings(np.array([0]), np.array([0]), np.array([1]))


@pytest.mark.parametrize(
    ("brokers", "holdings", "rates", "capacities", "says"),
    [
        (["a", "a"], ONE, [1.0], [1.0, 1.0], "same name"),
        (["a"], ONE, [1.0], [1.0, 1.0], "capacities"),
        (["a"], ONE, [1.0], [-1.0], "capacity is negative"),
        (["a"], ONE, [1.0], [np.nan], "capacity is negative, or no number"),
        (["a"], ONE, [-1.0], [1.0], "rates"),
        (["a"], ONE, [np.inf], [1.0], "rates"),
        (["a"], ONE, [], [1.0], "a subscription of the holdings"),
        (["a"], Holdings(np.array([1]), np.array([0]), np.array([1])), [1.0], [1.0], "a broker of the holdings"),
        (["a"], Holdings(np.array([0]), np.array([0]), np.array([0])), [1.0], [1.0], "one subscriber"),
        (["a"], Holdings(np.array([0, 0]), np.array([0, 0]), np.array([1, 1])), [1.0], [1.0], "occurs twice"),
        (["a"], Holdings(np.array([0, 0]), np.array([0]), np.array([1])), [1.0], [1.0], "one length"),
    ],
)
def test_what_is_no_network_is_refused(
    brokers: list[str], holdings: Holdings, rates: list[float], capacities: list[float], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        BrokerNetwork.of_holdings([(name, "") for name in brokers], holdings, np.array(rates), np.array(capacities))
