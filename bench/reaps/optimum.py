"""The exact optimum of small instances, by mixed integer programming (REAPS, Fig. 2: equations 3 to 7).

Both parts as the paper solves them, one after the other: first sum_j O_j over X, then, with X given, max_j R_j over Y.
A product of (1 - x_ij z_ik) becomes a variable o_jk >= x_ij for each i that has k: a minimum makes it their maximum.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from lexicast.cluster.errors import UnavailableError
from lexicast.ft.bits import Integers
from lexicast.ft.network import BrokerNetwork
from lexicast.ft.objectives import NONE, loads_bytes_s, unions

from .baselines import unpacked

TIME_LIMIT_S: Final = 60.0
# A load has to be below a capacity; a program knows only "at most".
_BELOW: Final = 1e-9


class InfeasibleError(UnavailableError):
    """No assignment keeps all loads below the capacities."""


class _Program:
    """Rows of a sparse constraint matrix: sum of entries <= limit, or == limit."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, float]] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def row(self, entries: list[tuple[int, float]], low: float, high: float) -> None:
        self.entries += [(len(self.low), column, value) for column, value in entries]
        self.low.append(low)
        self.high.append(high)

    def constraint(self, columns: int) -> LinearConstraint:
        rows, at, values = zip(*self.entries, strict=True)
        return LinearConstraint(coo_array((values, (rows, at)), (len(self.low), columns)).tocsr(), self.low, self.high)


def least_sum(network: BrokerNetwork, subscriptions: int) -> int:
    """The least sum_j O_j. Raises InfeasibleError."""
    held = unpacked(network.subscriptions, subscriptions) > 0
    none = np.full(len(network), NONE, np.int64)
    return _solved(network, [network.near(broker) for broker in range(len(network))], held, held, none, total=True)


def least_maximum(network: BrokerNetwork, subscriptions: int, local: Integers) -> int:
    """The least max_j R_j with these local backups [brokers]. Raises InfeasibleError."""
    rows = network.subscriptions
    held = unpacked(rows, subscriptions) > 0
    covered = unpacked(rows | unions(rows, local), subscriptions) > 0
    return _solved(network, [network.far(broker) for broker in range(len(network))], held, covered, local, total=False)


def _solved(
    network: BrokerNetwork,
    candidates: list[Integers],
    held: NDArray[Any],
    covered: NDArray[Any],
    local: Integers,
    *,
    total: bool,
) -> int:
    """`held` and `covered`: what a broker has, and what it has as a backup already [brokers x subscriptions]."""
    pairs = [(broker, int(backup)) for broker, found in enumerate(candidates) for backup in found]
    column = {pair: at for at, pair in enumerate(pairs)}
    lacking = {(j, k): len(pairs) + at for at, (j, k) in enumerate(np.argwhere(~covered).tolist())}
    columns = len(pairs) + len(lacking) + 1  # the last one is the maximum
    program = _Program()
    for broker, found in enumerate(candidates):
        if len(found):
            program.row([(column[broker, int(backup)], 1.0) for backup in found], 1, 1)
    for (broker, backup), at in column.items():
        for k in np.flatnonzero(held[broker] & ~covered[backup]).tolist():
            program.row([(lacking[backup, k], 1.0), (at, -1.0)], 0, np.inf)
    _limit_loads(program, network, column, local)
    for backup in range(len(network)):
        entries = [(lacking[backup, k], 1.0) for k in np.flatnonzero(~covered[backup]).tolist()]
        program.row([*entries, (columns - 1, -1.0)], -np.inf, 0)
    objective = np.zeros(columns)
    objective[len(pairs) : columns - 1] = total
    objective[-1] = not total
    return _optimum(program, objective, len(pairs), len(lacking))


def _limit_loads(
    program: _Program, network: BrokerNetwork, column: dict[tuple[int, int], int], local: Integers
) -> None:
    """Equation 7, with the local backups that are chosen already."""
    own = network.own_load_bytes_s
    before = loads_bytes_s(network, local, np.full(len(network), NONE, np.int64))
    for backup in np.flatnonzero(np.isfinite(network.capacity_bytes_s)).tolist():
        room = float(network.capacity_bytes_s[backup] * (1 - _BELOW) - before[backup])
        program.row([(at, float(own[i])) for (i, j), at in column.items() if j == backup], -np.inf, room)


def _optimum(program: _Program, objective: NDArray[Any], pairs: int, lacking: int) -> int:
    columns = len(objective)
    upper = np.ones(columns)
    upper[-1] = np.inf
    integral = np.zeros(columns)
    integral[:pairs] = 1
    options = {"time_limit": TIME_LIMIT_S}
    found = milp(
        objective,
        constraints=program.constraint(columns),
        bounds=Bounds(np.zeros(columns), upper),
        integrality=integral,
        options=options,
    )
    if found.status == 2:
        raise InfeasibleError("no assignment keeps all loads below the capacities")
    if not found.success:
        raise UnavailableError(f"the optimum was not found: {found.message}")
    return round(float(found.fun))
