"""LCS and MMCS as the paper has them (REAPS, Algorithms 1 and 2): one broker after the other gets its backup. Pure.

What the printed algorithms leave open is decided as `choice.Loads.best` says: ties (they take the first), and that no
candidate has room (they leave the broker without a backup).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .bits import Integers
from .choice import Loads
from .coverage import Coverage
from .network import BrokerNetwork
from .objectives import unions


def local_coverage(network: BrokerNetwork) -> Coverage:
    """Nobody has a local backup yet: what a broker has by itself are its subscriptions (eq. 1)."""
    return Coverage(network.subscriptions, network.subscriptions)


def remote_coverage(network: BrokerNetwork, local: Integers) -> Coverage:
    """Nobody has a remote backup yet: what a broker has by itself is also what it subscribes to as a local one (eq. 2).

    local: [brokers].
    """
    return Coverage(network.subscriptions, network.subscriptions | unions(network.subscriptions, local))


def least_cost(network: BrokerNetwork, loads: Loads, order: Iterable[int] | None = None) -> Coverage:
    """Least Cost Selection (Algorithm 1): to each broker the one of its location that subscribes to the fewest more for
    its sake (eq. 9). A broker that is alone in its location gets none. Changes `loads`.

    Equation 9 multiplies over those that j backs up already: what it subscribes to for one of them costs nothing more.
    """
    coverage = local_coverage(network)
    for broker in range(len(network)) if order is None else order:
        candidates = network.near(broker)
        if len(candidates):
            backup = loads.best(broker, candidates, coverage.added(broker, candidates))
            coverage.put(broker, backup)
            loads.give(broker, backup)
    return coverage


def min_max_cost(network: BrokerNetwork, loads: Loads, local: Integers, order: Iterable[int] | None = None) -> Coverage:
    """Min Max Cost Selection (Algorithm 2): to each broker the one of another location with which the largest R_l
    (eq. 2) stays least. Where there is one location only nobody gets one. local: [brokers]. Changes `loads`.

    Line 8 asks for max_l R_l for each candidate pair. R_l does not change but for the candidate, and never falls, so
    that is max(the largest so far, R_j + what i adds to j).
    """
    coverage = remote_coverage(network, local)
    for broker in range(len(network)) if order is None else order:
        candidates = network.far(broker)
        if len(candidates):
            cost = coverage.cost[candidates] + coverage.added(broker, candidates)
            backup = loads.best(broker, candidates, np.maximum(cost, coverage.cost.max()))
            coverage.put(broker, backup)
            loads.give(broker, backup)
    return coverage
