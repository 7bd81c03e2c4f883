"""What the assignment of backups is decided from: brokers, where they are, their subscriptions, loads and capacities.

REAPS' Z = [z_ik] (broker i has subscription k) is kept as bits, C = [c_ik] (how many subscribers of broker i have k)
only as each broker's own load, sum_k lambda_k c_ik, since nothing else of it is ever asked for; E = [e_ij] as one
location a broker: e_ij = 1 iff i and j have the same one. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexicast.cluster.errors import UsageError

from .bits import Integers, Words, bits_set, packed

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Holdings:
    """C, as its entries that are not zero: broker[n] has subscribers[n] subscribers of subscription[n]. Each array is
    [entries]; a pair (broker, subscription) stands there once."""

    broker: Integers
    subscription: Integers
    subscribers: Integers

    @classmethod
    def of_matrix(cls, counts: NDArray[Any]) -> Holdings:
        """The entries of C [brokers x subscriptions]."""
        broker, subscription = np.nonzero(counts)
        return cls(broker, subscription, counts[broker, subscription].astype(np.int64))


# eq=False: arrays have no one truth, and a network is compared by nobody.
@dataclass(frozen=True, eq=False)
class BrokerNetwork:
    """Brokers and what they hold.

    names, locations     [brokers]
    subscriptions        Z as bits [brokers x words]
    own_load_bytes_s     what a broker sends its own subscribers, sum_k lambda_k c_ik [brokers]
    capacity_bytes_s     D_j [brokers]; a load has to be below; infinity: no limit
    """

    names: tuple[str, ...]
    locations: tuple[str, ...]
    subscriptions: Words
    own_load_bytes_s: Floats
    capacity_bytes_s: Floats

    @classmethod
    def of_holdings(
        cls,
        brokers: Sequence[tuple[str, str]],
        holdings: Holdings,
        rate_bytes_s: NDArray[Any],
        capacity_bytes_s: NDArray[Any],
    ) -> BrokerNetwork:
        """From (name, location) of each broker, C, lambda_k [subscriptions] and D_j [brokers].

        Raises UsageError: names that occur twice, entries of brokers or subscriptions that there are none of, pairs
        that occur twice, counts below one, rates that are negative or not finite, capacities that are negative.
        """
        names, locations = tuple([name for name, _ in brokers]), tuple([location for _, location in brokers])
        rates, capacities = np.asarray(rate_bytes_s, np.float64), np.asarray(capacity_bytes_s, np.float64)
        shape = (len(names), len(rates))
        _check_brokers(names, capacities)
        _check_holdings(holdings, shape)
        if not (np.isfinite(rates).all() and (rates >= 0).all()):
            raise UsageError("rates have to be finite and not negative")
        loads = np.bincount(
            holdings.broker, rates[holdings.subscription] * holdings.subscribers, minlength=len(names)
        ).astype(np.float64)
        rows = packed(holdings.broker, holdings.subscription, shape)
        return cls(names, locations, rows, loads, capacities)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def index(self) -> dict[str, int]:
        """Where each broker stands."""
        return {name: at for at, name in enumerate(self.names)}

    @cached_property
    def held(self) -> Integers:
        """How many subscriptions each broker has [brokers]."""
        return bits_set(self.subscriptions)

    @cached_property
    def place(self) -> Integers:
        """The location of each broker as a number [brokers]: e_ij = (place[i] == place[j])."""
        known = {location: number for number, location in enumerate(dict.fromkeys(self.locations))}
        return np.array([known[location] for location in self.locations], np.int64)

    def near(self, broker: int) -> Integers:
        """The others of its location, which may be its local backup (eq. 4 and 5)."""
        found = np.flatnonzero(self.place == self.place[broker])
        return np.asarray(found[found != broker])

    def far(self, broker: int) -> Integers:
        """Those of other locations, which may be its remote backup (eq. 5)."""
        return np.flatnonzero(self.place != self.place[broker])


def _check_brokers(names: Sequence[str], capacities: Floats) -> None:
    if len(set(names)) < len(names):
        raise UsageError("two brokers have the same name")
    if capacities.shape != (len(names),):
        raise UsageError(f"{len(names)} brokers need as many capacities, not {capacities.shape}")
    if not (capacities >= 0).all():
        raise UsageError("a capacity is negative, or no number")


def _check_holdings(holdings: Holdings, shape: tuple[int, int]) -> None:
    columns = (holdings.broker, holdings.subscription, holdings.subscribers)
    if len({len(column) for column in columns}) != 1:
        raise UsageError("broker, subscription and subscribers have to be of one length")
    for what, column, limit in (
        ("broker", holdings.broker, shape[0]),
        ("subscription", holdings.subscription, shape[1]),
    ):
        if len(column) and not 0 <= column.min() <= column.max() < limit:
            raise UsageError(f"a {what} of the holdings is not one of {limit}")
    if len(holdings.subscribers) and holdings.subscribers.min() < 1:
        raise UsageError("who holds a subscription has one subscriber of it at least")
    if len(np.unique(holdings.broker * max(1, shape[1]) + holdings.subscription)) < len(holdings.broker):
        raise UsageError("a pair of broker and subscription occurs twice")
