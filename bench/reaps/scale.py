"""How long it takes to assign the backups of 1,000 brokers with 100,000 subscriptions, and to replace a lost one."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from lexicast.ft.assignment import assigned
from lexicast.ft.reassignment import reassigned

from .population import WorldSetting, populated

BROKERS: Final = 1_000
CHANNELS: Final = 10_000
SUBSCRIBERS: Final = (100_000, 1_000_000, 10_000_000)
"""So that a broker has some 77, 580, 3,900 of the subscriptions: bits that are hardly set, and bits that are."""
CLUSTERS: Final = (3, 20)


class Assigned(NamedTuple):
    """held: subscriptions of a broker, in the mean; seconds of wall time, and of the CPU: on a quiet core the same."""

    clusters: int
    held: float
    assign_s: float
    assign_cpu_s: float
    plain_s: float
    reassign_s: float
    changed: int


def timed(subscribers: int, clusters: int, seed: int) -> Assigned:
    """All backups from scratch; then a broker that backs up others is lost."""
    setting = WorldSetting(brokers=BROKERS, clusters=clusters, channels=CHANNELS, subscribers=subscribers)
    network = populated(setting, seed).network
    began = time.perf_counter()
    assigned(network, improve=False)
    plain, plain_cpu = time.perf_counter(), time.process_time()
    backups = assigned(network)
    done, cpu_s = time.perf_counter(), time.process_time() - plain_cpu
    lost = network.names[int(backups.local[0])]
    turn = reassigned(network, backups.by_name(network), lost=[lost], at_once=10)
    end = time.perf_counter()
    held = float(network.held.mean())
    return Assigned(clusters, held, done - plain, cpu_s, plain - began, end - done, len(turn.changed))
