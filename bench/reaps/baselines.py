"""What REAPS is measured against: random backups (RND), and active replication (AR), where backups retrieve as well."""

from __future__ import annotations

import numpy as np

from lexicast.ft.assignment import BackupAssignment
from lexicast.ft.bits import WORD_BITS, Words
from lexicast.ft.choice import Loads
from lexicast.ft.network import BrokerNetwork
from lexicast.ft.objectives import NONE, unions

from .population import Array


def randomly_assigned(network: BrokerNetwork, dice: np.random.Generator) -> BackupAssignment:
    """RND: any broker of the same location, any of another one, as long as it has capacity (by the same rule as ours
    where none has)."""
    loads = Loads(network)
    chosen = []
    for candidates_of in (network.near, network.far):
        backups = np.full(len(network), NONE, np.int64)
        for broker in range(len(network)):
            if len(candidates := candidates_of(broker)):
                backups[broker] = loads.best(broker, candidates, dice.permutation(len(candidates)))
                loads.give(broker, int(backups[broker]))
        chosen.append(backups)
    return BackupAssignment.of(chosen[0], chosen[1], loads)


def retrieved_bytes_s(network: BrokerNetwork, rate_bytes_s: Array, *backups: Array) -> Array:
    """What each broker retrieves from the back end if it retrieves its own subscriptions and those of all whose backup
    it is by `backups` (none: REAPS; both: AR) [brokers]."""
    rows = network.subscriptions.copy()
    for backup in backups:
        rows |= unions(network.subscriptions, backup)
    return np.asarray(unpacked(rows, len(rate_bytes_s)) @ rate_bytes_s)


def unpacked(rows: Words, subscriptions: int) -> Array:
    """Rows of bits as zeros and ones [rows x subscriptions]."""
    bits = (rows[:, :, None] >> np.arange(WORD_BITS, dtype=np.uint64)) & np.uint64(1)
    return np.asarray(bits.reshape(len(rows), -1)[:, :subscriptions].astype(np.float64))
