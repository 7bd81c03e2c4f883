"""Figures 4a to 4c: what backups cost while nothing fails, in worlds of all kinds, against AR and RND."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from lexicast.ft.assignment import BackupAssignment, assigned
from lexicast.ft.objectives import presubscribed, uncovered

from .baselines import randomly_assigned, retrieved_bytes_s
from .churn import churned
from .population import WorldSetting, populated

RANDOM_DRAWS: Final = 5
"""RND is drawn so often in each world, and its mean taken."""
LOCALITIES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)


class Overheads(NamedTuple):
    """One world. Names ending in `_plain`: the paper's greedy pass alone; `_random`: RND, the mean of its draws.

    original     subscriptions of all brokers, without any backup
    presubscribed, ...   sum_j O_j
    remote_max, ...      max_j R_j
    retrieved, ...       bytes a second that a broker retrieves, in the mean: REAPS; REAPS if local backups retrieved
                         what they are subscribed to (`warm`); AR with REAPS' backups and with random ones
    churn, ...           changes at the back end for local backups, a change of a broker's own (`churn`)
    over_capacity        backups beyond their capacity
    """

    original: float
    presubscribed: float
    presubscribed_plain: float
    presubscribed_random: float
    remote_max: float
    remote_max_plain: float
    remote_max_random: float
    retrieved: float
    retrieved_warm: float
    retrieved_active: float
    retrieved_active_random: float
    churn: float
    churn_random: float
    over_capacity: float
    over_capacity_random: float


def settings(*, quick: bool) -> list[WorldSetting]:
    """All that is looked at: localities, how much of a world's subscriptions a broker has, capacities."""
    if quick:
        shapes = [WorldSetting(), WorldSetting(each_wants=5), WorldSetting(each_wants=10, zipf=0.0)]
        return [shape._replace(locality=each) for shape in shapes for each in (0.0, 0.5, 1.0)]
    shapes = [
        WorldSetting(subscribers=number, each_wants=wants) for wants in (1, 5) for number in (10_000, 30_000, 100_000)
    ]
    shapes += [WorldSetting(headroom=headroom) for headroom in (3.5, np.inf)]
    shapes += [WorldSetting(each_wants=wants, zipf=0.0) for wants in (1, 5, 10)]
    return [shape._replace(locality=each) for shape in shapes for each in LOCALITIES]


def described(setting: WorldSetting) -> str:
    """A setting in a line."""
    return (
        f"locality {setting.locality:g}, {setting.subscribers:,} subscribers of {setting.each_wants}, "
        f"zipf {setting.zipf:g}, capacity {setting.headroom:g} loads"
    )


def measured(setting: WorldSetting, seed: int) -> Overheads:
    """One world with backups of each kind."""
    world = populated(setting, seed)
    network, rates = world.network, world.rate_bytes_s
    ours, plain = assigned(network), assigned(network, improve=False)
    dice = np.random.default_rng(seed)
    random = [randomly_assigned(network, dice) for _ in range(RANDOM_DRAWS)]

    def presubscribing(backups: BackupAssignment) -> float:
        return float(presubscribed(network, backups.local).sum())

    def most_remote(backups: BackupAssignment) -> float:
        return float(uncovered(network, backups.local, backups.remote).max())

    def active(backups: BackupAssignment) -> float:
        return float(retrieved_bytes_s(network, rates, backups.local, backups.remote).mean())

    def churning(backups: BackupAssignment) -> float:
        return churned(network, setting.subscriptions, backups, np.random.default_rng(seed)).backup_per_own

    return Overheads(
        original=float(network.held.sum()),
        presubscribed=presubscribing(ours),
        presubscribed_plain=presubscribing(plain),
        presubscribed_random=_mean(presubscribing, random),
        remote_max=most_remote(ours),
        remote_max_plain=most_remote(plain),
        remote_max_random=_mean(most_remote, random),
        retrieved=float(retrieved_bytes_s(network, rates).mean()),
        retrieved_warm=float(retrieved_bytes_s(network, rates, ours.local).mean()),
        retrieved_active=active(ours),
        retrieved_active_random=_mean(active, random),
        churn=churning(ours),
        churn_random=churning(random[0]),
        over_capacity=float(len(ours.over_capacity)),
        over_capacity_random=_mean(lambda backups: float(len(backups.over_capacity)), random),
    )


def _mean(asked: Callable[[BackupAssignment], float], backups: Sequence[BackupAssignment]) -> float:
    return statistics.fmean([asked(each) for each in backups])


def means(worlds: Sequence[Overheads]) -> Overheads:
    """The mean over seeds."""
    return Overheads(*[statistics.fmean(column) for column in zip(*worlds, strict=True)])


class Ratios(NamedTuple):
    """Ours over theirs, setting by setting. A setting in which both are 0 is a tie: it is counted, and is no ratio.

    infinite: settings in which theirs is 0 and ours is not.
    """

    worst: float | None
    best: float | None
    ties: int
    infinite: int


def ratios(pairs: Sequence[tuple[float, float]]) -> Ratios:
    """Of (ours, theirs)."""
    found = [ours / theirs for ours, theirs in pairs if theirs]
    ties = sum([not ours and not theirs for ours, theirs in pairs])
    return Ratios(max(found, default=None), min(found, default=None), ties, len(pairs) - len(found) - ties)


def least_active(worlds: Sequence[Overheads]) -> float:
    """What AR retrieves over what REAPS does, the least of all worlds and of AR's two choices of backups."""
    return min([min(each.retrieved_active, each.retrieved_active_random) / each.retrieved for each in worlds])


def least_active_warm(worlds: Sequence[Overheads]) -> float:
    """The same over REAPS whose local backups retrieve what they are subscribed to."""
    return min([min(each.retrieved_active, each.retrieved_active_random) / each.retrieved_warm for each in worlds])
