"""Figures 5a and 5b: several brokers of one cluster fail at once; what is repeated, who goes far, how long it takes.

How many results each failed broker has delivered since its last message to its backups is drawn: the message's age lies
evenly between 0 and `PERIOD_S` (periodic replication), the channels' phases are independent. A backup retrieves what it
repeats once for all that fail over to it.

The time is a *model*, not a measurement. Each backup works off, one after the other, what comes to it:

    DETECT_S, until the failure is known
    RECONNECT_S a subscription of a subscriber, to have it back
    SUBSCRIBE_S a subscription that has to be created (the R of eq. 2; a local backup has all of them)
    what is retrieved again, at BANDWIDTH_BYTES_S
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lexicast.ft.assignment import BackupAssignment
from lexicast.ft.objectives import unions

from .baselines import unpacked
from .population import World

PERIOD_S: Final = 30.0
DETECT_S: Final = 1.0
RECONNECT_S: Final = 0.001
SUBSCRIBE_S: Final = 0.010
BANDWIDTH_BYTES_S: Final = 125e6
DRAWS: Final = 5
PARTS: Final = (1, 2, 4, 8, 16, 24, 32)
"""How many brokers of the cluster fail; all of them besides."""


class FailedOver(NamedTuple):
    """What one failure of several brokers brings, in the mean over draws.

    failed            how many brokers
    remote            how many of them fail over to their remote backup
    retrieved_bytes   what backups retrieve again
    delivered_bytes   what subscribers get again
    recovery_s        until the last subscriber is back
    local_s, remote_s until the last one that goes to a local, to a remote backup is (0: nobody does)
    """

    failed: float
    remote: float
    retrieved_bytes: float
    delivered_bytes: float
    recovery_s: float
    local_s: float
    remote_s: float


class Cluster:
    """The brokers of one location, and what fails with them."""

    def __init__(self, world: World, backups: BackupAssignment) -> None:
        self._world = world
        self._backups = backups
        network = world.network
        size = len(world.rate_bytes_s)
        self.brokers = np.flatnonzero(network.place == 0)
        self._held = unpacked(network.subscriptions, size) > 0
        # What each broker is subscribed to, as a local backup too.
        active = network.subscriptions | unions(network.subscriptions, backups.local)
        self._active = unpacked(active, size) > 0
        self._subscribers = np.zeros((len(network), size), np.int64)
        self._subscribers[world.holdings.broker, world.holdings.subscription] = world.holdings.subscribers

    def failed(self, count: int, dice: np.random.Generator) -> FailedOver:
        """So many brokers of it, chosen by chance, at a moment chosen by chance."""
        lost = dice.choice(self.brokers, count, replace=False)
        goes = {int(each): int(self._backups.local[each]) for each in lost}
        far = {broker for broker, backup in goes.items() if backup < 0 or backup in goes}
        goes |= {broker: int(self._backups.remote[broker]) for broker in far}
        results = {broker: self._results(broker, dice) for broker in goes}
        coming: dict[int, list[int]] = {}
        for broker, backup in goes.items():
            coming.setdefault(backup, []).append(broker)
        retrieved = {backup: self._retrieved(brokers, results) for backup, brokers in coming.items()}
        took_s = {backup: self._took_s(backup, brokers, retrieved[backup]) for backup, brokers in coming.items()}
        # Local backups are in this cluster, remote ones are not: none is both.
        local_s = max([took_s[goes[each]] for each in goes if each not in far], default=0.0)
        remote_s = max([took_s[goes[each]] for each in far], default=0.0)
        delivered = sum([float((results[each] * self._subscribers[each]) @ self._world.result_bytes) for each in goes])
        recovery_s = max(local_s, remote_s)
        return FailedOver(count, len(far), sum(retrieved.values()), delivered, recovery_s, local_s, remote_s)

    def _results(self, broker: int, dice: np.random.Generator) -> NDArray[Any]:
        """How many results of each subscription it has delivered that its backups do not know of [subscriptions]."""
        age_s = dice.uniform(0, PERIOD_S)
        phases = dice.uniform(0, 1, len(self._world.period_s))
        return np.asarray(np.floor(age_s / self._world.period_s + phases) * self._held[broker])

    def _retrieved(self, brokers: Sequence[int], results: Mapping[int, NDArray[Any]]) -> float:
        """What the one backup of all these retrieves again, in bytes."""
        most = np.max([results[broker] for broker in brokers], axis=0)
        return float(most @ self._world.result_bytes)

    def _took_s(self, backup: int, brokers: Sequence[int], retrieved_bytes: float) -> float:
        lacking = self._held[list(brokers)].any(axis=0) & ~self._active[backup]
        returning = int(self._subscribers[list(brokers)].sum())
        return (
            DETECT_S + RECONNECT_S * returning + SUBSCRIBE_S * int(lacking.sum()) + retrieved_bytes / BANDWIDTH_BYTES_S
        )


def failures(worlds: Sequence[tuple[World, BackupAssignment]], seed: int) -> list[FailedOver]:
    """A row for each of PARTS, and one for the whole cluster; the mean over worlds and draws."""
    clusters = [Cluster(world, backups) for world, backups in worlds]
    dice = np.random.default_rng(seed)
    smallest = min([len(cluster.brokers) for cluster in clusters])
    counts = [*[each for each in PARTS if each < smallest], smallest]
    return [_mean([cluster.failed(count, dice) for cluster in clusters for _ in range(DRAWS)]) for count in counts]


def _mean(rows: Sequence[FailedOver]) -> FailedOver:
    return FailedOver(*[statistics.fmean(column) for column in zip(*rows, strict=True)])
