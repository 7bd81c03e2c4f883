"""The world of the paper's simulation (REAPS, section VI-B): brokers in clusters, channels, subscribers' interests.

What the paper gives: 100 brokers in 3 clusters, 100,000 subscribers, 100 channels of 10 subscriptions each, periods of
10 to 600 s, results of 10 KB to 10 MB. What it does not give is decided here:

    where       clusters are places in a plane, a unit apart; brokers, and the homes of subscriptions, lie around them
                with a spread of 0.1 each way
    popularity  subscriptions have ranks, by chance; the weight of rank r is 1 / r^zipf; zipf 0: all are alike
    interest    a share `locality` of what a broker's subscribers want is near: popularity times exp(-(d / 0.1)^2) with
                the distance d of the subscription's home; the rest is popularity alone. 0: all brokers are alike but
                for chance; 1: nobody wants anything of another cluster
    spread      subscribers are dealt to brokers by chance, brokers' weights lying between 0.5 and 1.5
    volume      a channel's period is uniform, a subscription's result size uniform in its logarithm
    capacity    every broker's D_j is `headroom` times the mean load of a broker
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lexicast.ft.network import BrokerNetwork, Holdings

SPREAD: Final = 0.1
PERIOD_S: Final = (10.0, 600.0)
RESULT_BYTES: Final = (10e3, 10e6)

Array = NDArray[Any]


class WorldSetting(NamedTuple):
    """One world's size and shape."""

    brokers: int = 100
    clusters: int = 3
    channels: int = 100
    subscriptions_a_channel: int = 10
    subscribers: int = 100_000
    each_wants: int = 1  # subscriptions a subscriber
    locality: float = 0.5
    zipf: float = 1.0
    headroom: float = 5.0

    @property
    def subscriptions(self) -> int:
        """N."""
        return self.channels * self.subscriptions_a_channel


class World(NamedTuple):
    """A population.

    network       what backups are assigned from
    holdings      C
    period_s      how often each subscription's channel runs [subscriptions]
    result_bytes  what each run gives [subscriptions]
    """

    network: BrokerNetwork
    holdings: Holdings
    period_s: Array
    result_bytes: Array

    @property
    def rate_bytes_s(self) -> Array:
        """lambda_k [subscriptions]."""
        return np.asarray(self.result_bytes / self.period_s)

    def held_by(self, broker: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(subscriptions, subscribers of each) of one broker."""
        mine = self.holdings.broker == broker
        return self.holdings.subscription[mine], self.holdings.subscribers[mine]


def populated(setting: WorldSetting, seed: int) -> World:
    """A world from a seed."""
    dice = np.random.default_rng(seed)
    cluster = np.arange(setting.brokers) % setting.clusters
    holdings = _holdings(setting, cluster, dice)
    period_s = np.repeat(dice.uniform(*PERIOD_S, setting.channels), setting.subscriptions_a_channel)
    low, high = np.log(RESULT_BYTES).tolist()
    result_bytes = np.exp(dice.uniform(low, high, setting.subscriptions))
    rates = result_bytes / period_s
    mean_load = float((rates[holdings.subscription] * holdings.subscribers).sum()) / setting.brokers
    capacity = np.full(setting.brokers, setting.headroom * mean_load)
    brokers = [(f"broker-{number}", f"cluster-{where}") for number, where in enumerate(cluster)]
    network = BrokerNetwork.of_holdings(brokers, holdings, rates, capacity)
    return World(network, holdings, period_s, result_bytes)


def _holdings(setting: WorldSetting, cluster: NDArray[np.int64], dice: np.random.Generator) -> Holdings:
    """C. Who wants several subscriptions draws each by itself: few want one of them twice, which counts twice."""
    homes = _places(dice.integers(0, setting.clusters, setting.subscriptions), setting.clusters, dice)
    places = _places(cluster, setting.clusters, dice)
    popularity = (1.0 + dice.permutation(setting.subscriptions)) ** -setting.zipf
    weights = dice.uniform(0.5, 1.5, setting.brokers)
    subscribers = dice.multinomial(setting.subscribers, weights / weights.sum())
    found = []
    for broker, number in enumerate(subscribers):
        distances = np.hypot(*(homes - places[broker]).T)
        near = popularity * np.exp(-((distances / SPREAD) ** 2))
        shares = setting.locality * near / near.sum() + (1 - setting.locality) * popularity / popularity.sum()
        counts = dice.multinomial(number * setting.each_wants, shares / shares.sum())
        wanted = np.flatnonzero(counts)
        found.append(np.array([np.full_like(wanted, broker), wanted, counts[wanted]]))
    return Holdings(*np.concatenate(found, axis=1))


def _places(cluster: NDArray[np.int64], clusters: int, dice: np.random.Generator) -> Array:
    """Places around the centres, which lie on a circle a unit apart [len(cluster) x 2]."""
    angles = 2 * np.pi * np.arange(clusters) / clusters
    radius = 0.5 / np.sin(np.pi / clusters) if clusters > 1 else 0.0
    centres = radius * np.column_stack((np.cos(angles), np.sin(angles)))
    return np.asarray(centres[cluster] + dice.normal(0, SPREAD, (len(cluster), 2)))
