"""What an assignment of backups is judged by: O_j, R_j and P_j (REAPS, equations 1, 2 and 7). Pure.

An assignment is two arrays [brokers]: local[i] = j iff x_ij = 1, remote[i] = j iff y_ij = 1, NONE where there is none.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from .bits import Integers, Words, bits_set
from .network import BrokerNetwork, Floats

NONE: Final = -1
"""No backup of this kind: the broker is alone in its location, or its location is the only one."""


def unions(rows: Words, backup: Integers) -> Words:
    """For each broker j the union of the rows of those that have j as this backup [brokers x words]: the complement of
    prod_i (1 - x_ij z_ik)."""
    found = np.zeros_like(rows)
    for broker in np.flatnonzero(backup != NONE):
        found[backup[broker]] |= rows[broker]
    return found


def presubscribed(network: BrokerNetwork, local: Integers) -> Integers:
    """O_j (eq. 1): subscriptions that broker j holds only since it is a local backup [brokers]."""
    return bits_set(unions(network.subscriptions, local) & ~network.subscriptions)


def uncovered(network: BrokerNetwork, local: Integers, remote: Integers) -> Integers:
    """R_j (eq. 2): subscriptions that broker j would have to create if all that it is the remote backup of failed over
    to it: those that are neither its own nor subscribed to as a local backup [brokers]."""
    rows = network.subscriptions
    return bits_set(unions(rows, remote) & ~rows & ~unions(rows, local))


def loads_bytes_s(network: BrokerNetwork, local: Integers, remote: Integers) -> Floats:
    """P_j (eq. 7): what broker j sends if all that it backs up fail over to it, in bytes a second [brokers].

    Equation 8 (in Algorithm 1) leaves the remote ones out. That is the same thing while there are none, at the very
    first assignment, and too little at any later one; here both always count.
    """
    found = network.own_load_bytes_s.copy()
    for backup in (local, remote):
        has = backup != NONE
        np.add.at(found, backup[has], network.own_load_bytes_s[has])
    return found
