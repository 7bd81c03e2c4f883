"""Reassignment: only what must or pays, a few at a time, and an end to it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lexicast.cluster.errors import UsageError
from lexicast.ft.assignment import BackupAssignment, Backups, assigned, indices
from lexicast.ft.network import BrokerNetwork
from lexicast.ft.objectives import NONE, loads_bytes_s, presubscribed
from lexicast.ft.reassignment import reassigned

from .naive import Matrices, matrices

TURNS_MAX = 200


def settled(
    network: BrokerNetwork, in_force: Mapping[str, Backups], lost: list[str], at_once: int = 3
) -> BackupAssignment:
    """Turns until nothing changes any more."""
    for _ in range(TURNS_MAX):
        turn = reassigned(network, in_force, lost=lost, at_once=at_once)
        if not turn.changed:
            assert not turn.waiting
            return turn.assignment
        in_force = turn.assignment.by_name(network)
    raise AssertionError("it does not come to an end")


def anything(network: BrokerNetwork, data: st.DataObject) -> dict[str, Backups]:
    """Backups by names, also ones that may not be, or are not there."""
    names = st.sampled_from(["", "gone", *network.names])
    return {name: Backups(data.draw(names), data.draw(names)) for name in network.names}


@given(matrices())
def test_nothing_changes_when_nothing_changed(m: Matrices) -> None:
    network = m.network()
    backups = assigned(network)
    assume(not backups.over_capacity)
    turn = reassigned(network, backups.by_name(network), at_once=5)
    assert (turn.changed, turn.waiting) == ((), ())
    assert turn.assignment.local.tolist() == backups.local.tolist()
    assert turn.assignment.remote.tolist() == backups.remote.tolist()


@given(matrices(), st.data())
def test_turns_come_to_an_end_and_then_nothing_changes(m: Matrices, data: st.DataObject) -> None:
    network = m.network()
    lost = data.draw(st.lists(st.sampled_from(network.names), max_size=2, unique=True))
    backups = settled(network, anything(network, data), lost)
    turn = reassigned(network, backups.by_name(network), lost=lost, at_once=5)
    assert turn.changed == ()


@given(matrices(), st.data(), st.integers(1, 4))
def test_at_most_so_many_change_at_once_and_they_are_named(m: Matrices, data: st.DataObject, at_once: int) -> None:
    network = m.network()
    in_force = anything(network, data)
    turn = reassigned(network, in_force, at_once=at_once)
    before = indices(network, in_force)
    now = (turn.assignment.local, turn.assignment.remote)
    different = {
        int(i)
        for old, new in zip(before, now, strict=True)
        for i in np.flatnonzero(old != new)
        if new[i] != NONE  # one that cannot be any more is taken away at once
    }
    assert len(turn.changed) <= at_once
    assert different <= set(turn.changed)


@given(matrices(), st.data(), st.integers(1, 3))
def test_a_lost_backup_is_always_replaced(m: Matrices, data: st.DataObject, at_once: int) -> None:
    network = m.network()
    in_force = assigned(network).by_name(network)
    lost = data.draw(st.lists(st.sampled_from(network.names), min_size=1, max_size=2, unique=True))
    gone = {network.index[name] for name in lost}
    backups = settled(network, in_force, lost, at_once)
    for i in set(m.brokers) - gone:
        others = [j for j in m.brokers if j != i and j not in gone]
        assert backups.local[i] in ([j for j in others if m.e(i, j)] or [NONE])
        assert backups.remote[i] in ([j for j in others if not m.e(i, j)] or [NONE])
    for i in gone:  # its subscribers are moving there
        if backups.local[i] != NONE:
            assert network.names[backups.local[i]] == in_force[network.names[i]].local


@given(matrices(), st.data())
def test_no_turn_brings_more_load_beyond_capacities_than_lost_backups_need(m: Matrices, data: st.DataObject) -> None:
    network = m.network()
    in_force = assigned(network).by_name(network)
    before = indices(network, in_force)
    turn = reassigned(network, in_force, at_once=3)

    def beyond(backups: tuple[np.ndarray, np.ndarray]) -> float:
        loads = loads_bytes_s(network, *backups)
        return float(np.maximum(0.0, loads - network.capacity_bytes_s).sum())

    assert beyond((turn.assignment.local, turn.assignment.remote)) <= beyond(before)


def chain(capacity: float = math.inf) -> BrokerNetwork:
    """Brokers 0 to 2 have nearly the same subscriptions, 3 has others; 4 and 5 are elsewhere."""
    counts = [[1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]]
    return Matrices([*counts, *counts[:2]], list("aaaabb"), [1] * 6, [capacity] * 6).network()


def test_who_has_lost_both_backups_comes_first_and_the_others_wait() -> None:
    network = chain()
    in_force = {name: Backups("b1" if name != "b1" else "b0", "b4") for name in network.names[:4]}
    in_force |= {"b0": Backups("gone", "b4"), "b2": Backups("gone", "gone"), "b3": Backups("gone", "b5")}
    in_force |= {"b4": Backups("b5", "b0"), "b5": Backups("b4", "b0")}
    turn = reassigned(network, in_force, at_once=1)
    assert (turn.changed, turn.waiting) == ((2,), (0, 3))
    assert turn.assignment.local[0] == NONE


def test_a_backup_that_is_lost_but_not_gone_stays_until_it_is_its_turn() -> None:
    network = chain()
    in_force = assigned(network).by_name(network)
    lost = in_force["b0"].local
    having = [name for name, each in in_force.items() if lost in each and name != lost]
    turn = reassigned(network, in_force, lost=[lost], at_once=1)
    assert len(turn.waiting) == len(having) - 1
    for waiting in turn.waiting:
        assert lost in turn.assignment.by_name(network)[network.names[waiting]]


def test_a_move_has_to_save_the_stated_part() -> None:
    network = chain()
    worse = assigned(network).by_name(network) | {"b0": Backups("b3", "b4")}
    before, _ = indices(network, worse)
    turn = reassigned(network, worse, at_once=5, pays=0.5)
    assert turn.changed == (0,)
    assert presubscribed(network, turn.assignment.local).sum() < presubscribed(network, before).sum()
    assert reassigned(network, worse, at_once=5, pays=1.5).changed == ()


def test_too_much_is_taken_from_a_backup_and_no_more() -> None:
    network = chain(capacity=12.5)
    in_force = {name: Backups("b1", "b4") for name in ("b0", "b2", "b3")} | {"b1": Backups("b0", "b5")}
    in_force |= {"b4": Backups("b5", "b2"), "b5": Backups("b4", "b3")}
    # b4 has 3 of its own, 3 of b5, 8 of the three: 1.5 or more have to go, and b2's 2 are the fewest that are enough.
    turn = reassigned(network, in_force, at_once=5, pays=10.0)
    assert turn.changed == (2,)
    assert turn.assignment.over_capacity == ()
    assert turn.assignment.remote[2] == 5


@pytest.mark.parametrize(("at_once", "pays"), [(0, 0.1), (1, 0.0), (1, math.nan)])
def test_settings_that_make_no_sense_are_refused(at_once: int, pays: float) -> None:
    with pytest.raises(UsageError, match="at_once has to be"):
        reassigned(chain(), {}, at_once=at_once, pays=pays)
