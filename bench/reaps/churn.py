"""Beside figure 4b: subscriptions come and go; what that costs at local backups, by lines 16 to 22 of Algorithm 3."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from lexicast.ft.assignment import BackupAssignment
from lexicast.ft.backup_subscriptions import OWN, BackupSubscriptions
from lexicast.ft.network import BrokerNetwork

from .baselines import unpacked

CHANGING: Final = 0.1
"""The part of its subscriptions that each broker gives up, and takes again."""


class Churn(NamedTuple):
    """Subscriptions that brokers withdraw and make at the back end: for themselves, and as local backups."""

    own: int
    backup: int

    @property
    def backup_per_own(self) -> float:
        """What a change of a broker's own costs beside it."""
        return self.backup / max(1, self.own)


def churned(network: BrokerNetwork, subscriptions: int, backups: BackupAssignment, dice: np.random.Generator) -> Churn:
    """Each broker in turn gives up a part of its subscriptions, chosen by chance, and takes them again."""
    sets = [set(np.flatnonzero(row).tolist()) for row in unpacked(network.subscriptions, subscriptions)]
    held = [BackupSubscriptions[int]() for _ in sets]
    for broker, subscribed in enumerate(sets):
        held[broker].arrived(OWN, subscribed)
        held[int(backups.local[broker])].arrived(network.names[broker], subscribed)
    own = backup = 0
    for broker, subscribed in enumerate(sets):
        some = dice.choice(sorted(subscribed), round(CHANGING * len(subscribed)), replace=False).tolist()
        for came, went in (((), some), (some, ())):
            mine = held[broker].changed(OWN, came, went)
            theirs = held[int(backups.local[broker])].changed(network.names[broker], came, went)
            own += len(mine.subscribe) + len(mine.withdraw)
            backup += len(theirs.subscribe) + len(theirs.withdraw)
    return Churn(own, backup)
