"""The backups of all brokers: one in the same location, one elsewhere (REAPS, section III). Pure.

    from scratch    `assigned`: LCS, then MMCS, each improved (`ft/improvement.py`) unless the paper's own is asked for
    from there on   `ft/reassignment.py`

Cases that the paper leaves open. A broker that is alone in its location has no local backup, and where there is one
location only nobody has a remote one: `local` or `remote` is NONE, which is no error. Where no candidate has capacity
the one that would be least beyond its own is taken; `over_capacity` names those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .bits import Integers
from .choice import Loads
from .greedy import least_cost, min_max_cost
from .improvement import MAXIMUM, SUM, Improvement
from .network import BrokerNetwork
from .objectives import NONE


class Backups(NamedTuple):
    """Who stands in for one broker; "": nobody."""

    local: str = ""
    remote: str = ""


@dataclass(frozen=True, eq=False)
class BackupAssignment:
    """X and Y: local[i] = j iff x_ij = 1, remote[i] = j iff y_ij = 1; NONE: there is no such backup. [brokers] each.

    over_capacity: brokers that back others up and could not carry all of it (P_j < D_j does not hold), ascending.
    """

    local: Integers
    remote: Integers
    over_capacity: tuple[int, ...] = ()

    @classmethod
    def of(cls, local: Integers, remote: Integers, loads: Loads) -> BackupAssignment:
        """With what `loads` says of capacities."""
        serving = np.union1d(local, remote)
        over = np.flatnonzero(loads.over())
        return cls(local, remote, tuple([int(broker) for broker in np.intersect1d(serving, over)]))

    def by_name(self, network: BrokerNetwork) -> dict[str, Backups]:
        """The same in names, which outlast a network that changes."""
        names = (*network.names, "")  # NONE is the last one
        return {
            name: Backups(names[local], names[remote])
            for name, local, remote in zip(network.names, self.local, self.remote, strict=True)
        }


def indices(network: BrokerNetwork, backups: Mapping[str, Backups]) -> tuple[Integers, Integers]:
    """(local, remote) [brokers] from names; NONE for brokers that are not in the network (any more)."""
    told = [backups.get(name, Backups()) for name in network.names]
    local, remote = (np.array([network.index.get(each[kind], NONE) for each in told], np.int64) for kind in (0, 1))
    return local, remote


def assigned(network: BrokerNetwork, *, improve: bool = True) -> BackupAssignment:
    """Backups for all brokers. `improve`: False is the paper's greedy pass alone."""
    loads = Loads(network)
    local = least_cost(network, loads)
    if improve:
        Improvement(network, loads, local, network.near, SUM).run()
    remote = min_max_cost(network, loads, local.backup)
    if improve:
        Improvement(network, loads, remote, network.far, MAXIMUM).run()
    return BackupAssignment.of(local.backup, remote.backup, loads)
