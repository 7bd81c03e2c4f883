"""REAPS, section by section: what the paper says of backups and replication, held against the cores."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lexicast.ft.assignment import assigned
from lexicast.ft.backup_subscriptions import OWN, BackupSubscriptions
from lexicast.ft.choice import Loads
from lexicast.ft.greedy import least_cost, min_max_cost
from lexicast.ft.network import BrokerNetwork, Holdings
from lexicast.ft.objectives import loads_bytes_s, presubscribed, uncovered
from lexicast.ft.reassignment import reassigned
from lexicast.ft.replication_policy import ReplicationPace, ReplicationPolicy


def network(
    rows: list[str], clusters: str, *, rates: list[float] | None = None, capacity: float = math.inf
) -> BrokerNetwork:
    """A row a broker: how many subscribers it has of each subscription, a digit each."""
    counts = np.array([[int(digit) for digit in row] for row in rows])
    brokers = [(f"b{at}", cluster) for at, cluster in enumerate(clusters)]
    rate = np.array(rates or [1.0] * counts.shape[1])
    return BrokerNetwork.of_holdings(brokers, Holdings.of_matrix(counts), rate, np.full(len(rows), capacity))


def test_section_3a_identical_subscriptions_of_a_broker_are_one() -> None:
    made = network(["90", "11"], "aa")
    assert made.held.tolist() == [1, 2]  # z_ik
    assert made.own_load_bytes_s.tolist() == [9.0, 2.0]  # c_ik


def test_equation_1_a_backup_subscribes_once_to_what_several_need_and_not_to_what_it_has() -> None:
    made = network(["1100", "0110", "1000"], "aaa")
    assert presubscribed(made, np.array([2, 2, 0])).tolist() == [0, 0, 2]


def test_equation_2_a_remote_backup_creates_nothing_that_it_has_as_a_local_one() -> None:
    made = network(["1000", "0100", "1110"], "aab")
    local, remote = np.array([1, 0, -1]), np.array([2, 2, 1])
    # Broker 1 has 1 of its own and 0 for the sake of broker 0: of broker 2's three only the third is lacking.
    assert uncovered(made, local, remote).tolist() == [0, 1, 0]


def test_equation_5_local_backups_are_in_the_cluster_and_remote_ones_are_not() -> None:
    made = network(["11", "10", "01", "11"], "abab")
    backups = assigned(made)
    for broker in range(4):
        assert made.locations[backups.local[broker]] == made.locations[broker]
        assert made.locations[backups.remote[broker]] != made.locations[broker]


def test_equation_7_a_load_counts_what_would_fail_over_locally_and_remotely() -> None:
    made = network(["20", "03", "11"], "aab", rates=[10.0, 1.0])
    assert loads_bytes_s(made, np.array([1, 0, -1]), np.array([2, -1, 0])).tolist() == [34.0, 23.0, 31.0]


def test_algorithm_1_takes_who_has_most_in_common() -> None:
    made = network(["1110", "0001", "1100"], "aaa")
    assert least_cost(made, Loads(made)).backup.tolist()[0] == 2


def test_algorithm_1_line_8_only_with_capacity_left_after_the_assignments_so_far() -> None:
    made = network(["111", "111", "111", "110"], "aaaa", capacity=7.0)
    # Each has room for one more: the second cannot have what the first has got, though it has all in common with it.
    assert sorted(least_cost(made, Loads(made)).backup.tolist()) == [0, 1, 2, 3]


def test_equation_8_leaves_remote_loads_out_and_ours_does_not() -> None:
    made = network(["11", "11", "10", "11"], "aaab", capacity=5.0)
    loads = Loads(made)
    loads.give(3, 1)  # broker 1 is the remote backup of broker 3 already
    assert least_cost(made, loads, order=[0]).backup.tolist()[0] == 2


def test_equation_9_what_a_candidate_subscribes_to_for_another_costs_nothing_more() -> None:
    made = network(["1111", "0000", "1110", "0001"], "aaaa")
    coverage = least_cost(made, Loads(made), order=[])
    assert coverage.added(2, np.array([1, 3])).tolist() == [3, 3]
    coverage.put(0, 1)
    assert coverage.added(2, np.array([1, 3])).tolist() == [0, 3]


def test_algorithm_2_keeps_the_largest_number_of_remote_subscriptions_least() -> None:
    made = network(["1100", "0011", "1111", "0000"], "aabb")
    loads = Loads(made)
    local = least_cost(made, loads)
    remote = min_max_cost(made, loads, local.backup)
    # Broker 3 subscribes to all four for broker 2, so both are as good; none of a's costs anything.
    assert uncovered(made, local.backup, remote.backup)[2:].tolist() == [0, 0]


def test_section_4b_the_local_backup_withdraws_what_only_the_primary_needed() -> None:
    held = BackupSubscriptions[str]()
    held.arrived(OWN, ["own"])
    assert held.arrived("j", ["own", "x", "y"]) == ({"x", "y"}, frozenset())
    assert held.arrived("p", ["y", "z"]) == ({"z"}, frozenset())
    assert held.arrived("j", ["own"]) == (frozenset(), {"x"})


def test_algorithm_3_line_22_with_the_new_state_in_the_union_would_subscribe_to_nothing() -> None:
    own, stored, new = {"own"}, {"j": {"x"}}, {"x", "y"}
    printed = new - (own | {"x", "y"})  # the union over D_j of l(i), j itself among them
    assert printed == set()
    held = BackupSubscriptions[str]()
    held.arrived(OWN, own)
    held.arrived("j", stored["j"])
    assert held.arrived("j", new).subscribe == {"y"}


def test_algorithm_3_line_21_from_the_right_would_withdraw_what_others_need() -> None:
    old, new, others, own = {"x", "y"}, {"x"}, {"y"}, {"own"}
    assert old - (new - (others - own)) == {"y"}
    assert ((old - new) - others) - own == set()
    held = BackupSubscriptions[str]()
    held.arrived(OWN, own)
    held.arrived("p", others)
    held.arrived("j", old)
    assert held.arrived("j", new).withdraw == frozenset()


@pytest.mark.parametrize(
    ("pace", "sent_at"), [(ReplicationPace(period_s=10.0), 10.0), (ReplicationPace(threshold_bytes=99), 3.0)]
)
def test_section_4b_positions_go_periodically_or_by_what_is_unsaved(pace: ReplicationPace, sent_at: float) -> None:
    policy = ReplicationPolicy[tuple[str, str], int](pace, 0.0)
    for now in range(20):
        if now < 4:
            policy.delivered(("m", "k"), now, 25 if now < 3 else 30)
        if policy.turn(float(now)):
            assert now == sent_at
            return
    raise AssertionError("nothing was sent")


def test_section_5a_backups_are_assigned_anew_when_they_have_failed() -> None:
    made = network(["110", "110", "111", "100", "100"], "aaabb")
    in_force = assigned(made).by_name(made)
    lost = in_force["b0"].local
    turn = reassigned(made, in_force, lost=[lost], at_once=9)
    named = turn.assignment.by_name(made)
    assert all(lost not in each for name, each in named.items() if name != lost)
    assert named["b0"].local
