"""How far LCS and MMCS are from the exact optimum, on instances small enough to have one found (`optimum.py`)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from lexicast.ft.assignment import BackupAssignment, assigned
from lexicast.ft.network import BrokerNetwork
from lexicast.ft.objectives import presubscribed, uncovered

from .optimum import InfeasibleError, least_maximum, least_sum
from .population import WorldSetting, populated

HEADROOMS: Final = (4.0, 5.0, np.inf)
LOCALITIES: Final = (0.0, 0.5, 0.9)
# (brokers, clusters, channels, subscribers): a few dozen subscriptions, where one more is a tenth; and a few hundred.
SHAPES: Final = ((10, 2, 8, 150), (12, 3, 20, 1200))


class Gap(NamedTuple):
    """(value - optimum) / optimum; an optimum of 0 counts as 1.

    MMCS is compared with the optimum over Y for the X that it was given, as the paper divides the problem.
    """

    local: float
    remote: float


class Instance(NamedTuple):
    """One instance, solved three ways. None: no assignment keeps the capacities (of remote backups: with that X).

    over_capacity: ours goes beyond a capacity although that could be avoided.
    """

    ours: Gap | None
    plain: Gap | None
    over_capacity: bool


def instances(seeds: int, *, quick: bool) -> Iterator[tuple[WorldSetting, int]]:
    """(setting, seed) of each."""
    for brokers, clusters, channels, subscribers in SHAPES[:1] if quick else SHAPES:
        for headroom in HEADROOMS:
            for locality in LOCALITIES:
                made = WorldSetting(
                    brokers=brokers,
                    clusters=clusters,
                    channels=channels,
                    subscribers=subscribers,
                    headroom=headroom,
                    locality=locality,
                )
                yield from [(made, seed) for seed in range(seeds)]


def solved(setting: WorldSetting, seed: int) -> Instance:
    """Both greedy ways, and the optimum. Raises UnavailableError where the optimum is not found in time."""
    network = populated(setting, seed).network
    try:
        least = least_sum(network, setting.subscriptions)
    except InfeasibleError:
        return Instance(None, None, over_capacity=False)
    ours, plain = assigned(network), assigned(network, improve=False)
    gaps = [_gap(network, setting.subscriptions, each, least) for each in (ours, plain)]
    return Instance(gaps[0], gaps[1], over_capacity=bool(ours.over_capacity) and gaps[0] is not None)


def _gap(network: BrokerNetwork, subscriptions: int, backups: BackupAssignment, least: int) -> Gap | None:
    try:
        lowest = least_maximum(network, subscriptions, backups.local)
    except InfeasibleError:
        return None
    local = int(presubscribed(network, backups.local).sum())
    remote = int(uncovered(network, backups.local, backups.remote).max())
    return Gap((local - least) / max(1, least), (remote - lowest) / max(1, lowest))


class GapSummary(NamedTuple):
    """Mean and worst of some gaps."""

    local_mean: float
    local_worst: float
    remote_mean: float
    remote_worst: float


def summary(gaps: Sequence[Gap | None]) -> GapSummary | None:
    """None where there is nothing to sum up."""
    known = [gap for gap in gaps if gap is not None]
    if not known:
        return None
    local, remote = zip(*known, strict=True)
    return GapSummary(statistics.fmean(local), max(local), statistics.fmean(remote), max(remote))
