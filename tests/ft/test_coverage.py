"""What is kept of who covers what, against the same counted anew."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lexicast.ft.coverage import Coverage
from lexicast.ft.greedy import local_coverage
from lexicast.ft.network import BrokerNetwork
from lexicast.ft.objectives import presubscribed

from .naive import Matrices, matrices


def some_coverage(network: BrokerNetwork, data: st.DataObject) -> Coverage:
    """Any backups, put and removed in any order."""
    coverage = local_coverage(network)
    count = len(network)
    for broker, backup in data.draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)))):
        if coverage.backup[broker] >= 0:
            coverage.remove(broker)
        elif broker != backup:
            coverage.put(broker, backup)
    return coverage


@given(matrices(), st.data())
def test_costs_and_what_changes_them_are_as_if_counted_anew(m: Matrices, data: st.DataObject) -> None:
    network = m.network()
    coverage = some_coverage(network, data)
    before = presubscribed(network, coverage.backup)
    assert coverage.cost.tolist() == before.tolist()
    everybody = np.arange(len(network))
    for broker in m.brokers:
        changed = coverage.backup.copy()
        if coverage.backup[broker] >= 0:
            changed[broker] = -1
            assert coverage.freed(broker) == before.sum() - presubscribed(network, changed).sum()
            continue
        for backup, added in enumerate(coverage.added(broker, everybody).tolist()):
            changed[broker] = backup
            assert added == presubscribed(network, changed).sum() - before.sum()
            assert coverage.added_by_each(np.array([broker]), backup).tolist() == [added]


@given(matrices(brokers_min=2), st.data())
def test_an_exchange_is_two_removals_and_two_additions(m: Matrices, data: st.DataObject) -> None:
    network = m.network()
    coverage = some_coverage(network, data)
    backup = coverage.backup
    before = presubscribed(network, backup)
    for broker in np.flatnonzero(backup >= 0):
        others = np.flatnonzero((backup >= 0) & (backup != backup[broker]))
        here, there = coverage.exchanged(int(broker), others)
        for at, other in enumerate(others):
            changed = backup.copy()
            changed[broker], changed[other] = backup[other], backup[broker]
            after = presubscribed(network, changed)
            assert here[at] == (after - before)[backup[broker]]
            assert there[at] == (after - before)[backup[other]]
