"""The assignment from scratch: what it never does, and the cases that the paper leaves open."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lexicast.ft.assignment import BackupAssignment, Backups, assigned, indices
from lexicast.ft.choice import Loads
from lexicast.ft.greedy import least_cost, min_max_cost
from lexicast.ft.improvement import MAXIMUM, SUM, Improvement
from lexicast.ft.network import BrokerNetwork
from lexicast.ft.objectives import NONE, loads_bytes_s, presubscribed, uncovered

from .naive import Matrices, matrices


def beyond(network: BrokerNetwork, backups: BackupAssignment) -> float:
    """Load beyond capacities, in all."""
    loads = loads_bytes_s(network, backups.local, backups.remote)
    return float(np.maximum(0.0, loads - network.capacity_bytes_s).sum())


def system(counts: list[list[int]], locations: str, capacity: float = math.inf) -> BrokerNetwork:
    """A broker a row of `counts`, a letter of `locations` each; every rate is 1."""
    rates = [1] * len(counts[0])
    return Matrices(counts, list(locations), rates, [capacity] * len(counts)).network()


@given(matrices(), st.booleans())
def test_everybody_has_the_backups_that_there_are(m: Matrices, improve: bool) -> None:
    network = m.network()
    backups = assigned(network, improve=improve)
    for i in m.brokers:
        others = [j for j in m.brokers if j != i]
        near, far = [j for j in others if m.e(i, j)], [j for j in others if not m.e(i, j)]
        assert backups.local[i] in (near or [NONE])
        assert backups.remote[i] in (far or [NONE])


@given(matrices(), st.booleans())
def test_who_is_over_capacity_is_said(m: Matrices, improve: bool) -> None:
    network = m.network()
    backups = assigned(network, improve=improve)
    loads = loads_bytes_s(network, backups.local, backups.remote)
    serving = {*backups.local.tolist(), *backups.remote.tolist()}
    over = [j for j in m.brokers if j in serving and loads[j] >= m.capacities[j]]
    assert list(backups.over_capacity) == over


@given(matrices())
def test_improving_is_never_worse_and_always_the_same(m: Matrices) -> None:
    network = m.network()
    plain, better = assigned(network, improve=False), assigned(network)
    again = assigned(network)
    assert (again.local.tolist(), again.remote.tolist()) == (better.local.tolist(), better.remote.tolist())
    loads = Loads(network)
    local = least_cost(network, loads)
    before = np.maximum(0.0, loads.total - loads.capacity).sum(), local.cost.sum()
    Improvement(network, loads, local, network.near, SUM).run()
    assert (np.maximum(0.0, loads.total - loads.capacity).sum(), local.cost.sum()) <= before
    remote = min_max_cost(network, loads, local.backup)
    before = np.maximum(0.0, loads.total - loads.capacity).sum(), remote.cost.max(initial=0)
    Improvement(network, loads, remote, network.far, MAXIMUM).run()
    assert (np.maximum(0.0, loads.total - loads.capacity).sum(), remote.cost.max(initial=0)) <= before
    assert loads.total.tolist() == loads_bytes_s(network, local.backup, remote.backup).tolist()
    if not beyond(network, plain):
        assert presubscribed(network, better.local).sum() <= presubscribed(network, plain.local).sum()


@given(matrices())
def test_no_effort_is_the_papers_greedy_pass(m: Matrices) -> None:
    network = m.network()
    loads = Loads(network)
    local = least_cost(network, loads)
    Improvement(network, loads, local, network.near, SUM).run(effort_words=0)
    assert local.backup.tolist() == assigned(network, improve=False).local.tolist()


def test_one_broker_has_no_backup() -> None:
    backups = assigned(system([[1, 1]], "a"))
    assert (backups.local.tolist(), backups.remote.tolist(), backups.over_capacity) == ([NONE], [NONE], ())


def test_no_broker_at_all_is_no_error() -> None:
    network = Matrices([], [], [1], []).network()
    backups = assigned(network)
    assert (len(backups.local), len(backups.remote), backups.by_name(network)) == (0, 0, {})


def test_one_location_has_local_backups_only() -> None:
    backups = assigned(system([[1, 0], [0, 1], [1, 1]], "aaa"))
    assert backups.remote.tolist() == [NONE] * 3
    assert NONE not in backups.local


def test_a_broker_alone_in_its_location_has_a_remote_backup_only() -> None:
    backups = assigned(system([[1, 0], [0, 1], [1, 1]], "baa"))
    assert backups.local.tolist() == [NONE, 2, 1]
    assert NONE not in backups.remote


def test_where_nobody_subscribes_everybody_has_backups_all_the_same() -> None:
    network = system([[0, 0]] * 4, "aabb")
    backups = assigned(network)
    assert backups.local.tolist() == [1, 0, 3, 2]
    assert NONE not in backups.remote
    assert presubscribed(network, backups.local).sum() == uncovered(network, backups.local, backups.remote).sum() == 0


def test_where_nobody_has_capacity_the_least_loaded_is_taken_and_said() -> None:
    network = system([[1, 0, 0], [1, 1, 1], [1, 1, 0]], "aaa", capacity=1.0)
    backups = assigned(network, improve=False)
    assert backups.local.tolist() == [2, 0, 1]
    assert backups.over_capacity == (0, 1, 2)


def test_capacity_has_to_be_more_than_the_load() -> None:
    assert assigned(system([[1], [1]], "aa", capacity=2.0)).over_capacity == (0, 1)
    assert assigned(system([[1], [1]], "aa", capacity=2.5)).over_capacity == ()


def test_of_equal_candidates_the_one_with_less_load_is_taken_then_the_first() -> None:
    backups = assigned(system([[2], [2], [1], [1]], "aaaa"), improve=False)
    assert backups.local[0] == 2


def test_an_exchange_helps_where_no_move_has_room() -> None:
    """Each broker may back up one other; the first takes what the second needs."""
    counts = [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 0, 1], [1, 1, 1, 0]]
    network = system(counts, "aaaa", capacity=6.5)
    plain, better = assigned(network, improve=False), assigned(network)
    assert presubscribed(network, better.local).sum() <= presubscribed(network, plain.local).sum()
    assert not better.over_capacity


def test_names_outlast_a_network_that_counts_otherwise() -> None:
    network = system([[1, 0], [0, 1], [1, 1]], "baa")
    named = assigned(network).by_name(network)
    assert named["b1"] == Backups("b2", "b0")
    assert named["b0"].local == ""
    smaller = system([[0, 1], [1, 1]], "aa")
    local, remote = indices(smaller, {"b0": Backups("b1", "b7"), "b9": Backups("b0", "b0")})
    assert (local.tolist(), remote.tolist()) == ([1, NONE], [NONE, NONE])
