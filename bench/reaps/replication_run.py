"""Figure 4d: messages that replicate positions, against what a takeover delivers twice; a broker's hour, simulated.

Channels run at their periods, from a random moment on. Each run gives every subscription of the channel one result; the
broker retrieves it, delivers it at once to all its subscribers, and a position (of all that share the subscription) is
unsaved until the next message to the backup. What is unsaved, in the mean over time, is what a takeover repeats.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from lexicast.ft.replication_policy import PositionUpdate, ReplicationPace, ReplicationPolicy

from .population import World

PERIODS_S: Final = (2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0)
"""Thresholds are what a broker delivers in so many seconds."""
HORIZON_S: Final = 3600.0
WARM_UP_S: Final = 600.0
UNBOUNDED: Final = 1_000_000
METHODS: Final = ("periodic", "threshold", "threshold, most unsaved first")

Update = PositionUpdate[int, int]


class Replicated(NamedTuple):
    """One broker with one method.

    messages_per_s, positions_per_s    what replication costs
    retrieved_bytes, delivered_bytes   what a takeover retrieves again, and delivers again, in the mean
    """

    messages_per_s: float
    positions_per_s: float
    retrieved_bytes: float
    delivered_bytes: float


class Policy(Protocol):
    """What decides when positions are sent."""

    def delivered(self, key: int, position: int, volume_bytes: int) -> None:
        """A result was delivered."""

    def turn(self, now_s: float) -> list[Update]:
        """What is sent now."""

    def confirmed(self, updates: Sequence[Update]) -> None:
        """The backup has it."""


class WholeStateThreshold:
    """The paper's threshold: the whole state is sent once what is unsaved passes it."""

    def __init__(self, threshold_bytes: int) -> None:
        self._threshold_bytes = threshold_bytes
        self._unsaved: dict[int, int] = {}
        self._volume_bytes = 0

    def delivered(self, key: int, position: int, volume_bytes: int) -> None:
        """A result was delivered."""
        self._unsaved[key] = position
        self._volume_bytes += volume_bytes

    def turn(self, now_s: float) -> list[Update]:
        """Everything or nothing."""
        if self._volume_bytes <= self._threshold_bytes:
            return []
        updates = [PositionUpdate(*each) for each in self._unsaved.items()]
        self._unsaved, self._volume_bytes = {}, 0
        return updates

    def confirmed(self, updates: Sequence[Update]) -> None:
        """The backup has it."""


def policy(method: str, seconds: float, rate_bytes_s: float) -> Policy:
    """One of METHODS with a period of so many seconds, or what is retrieved in them as threshold."""
    if method == "periodic":
        return ReplicationPolicy(ReplicationPace(period_s=seconds, positions_max=UNBOUNDED), 0.0)
    threshold = max(1, round(seconds * rate_bytes_s))
    if method == "threshold":
        return WholeStateThreshold(threshold)
    return ReplicationPolicy(ReplicationPace(threshold_bytes=threshold, positions_max=UNBOUNDED), 0.0)


class BrokerHour:
    """An hour of one broker: when channels run and what they give it. The same for each policy."""

    def __init__(self, world: World, broker: int, horizon_s: float, dice: np.random.Generator) -> None:
        held, subscribers = world.held_by(broker)
        self._subscribers = dict(zip(held.tolist(), subscribers.tolist(), strict=True))
        self._result_bytes = {k: round(float(world.result_bytes[k])) for k in self._subscribers}
        self._horizon_s = horizon_s
        self.rate_bytes_s = float(world.rate_bytes_s[held].sum())
        self._events: list[tuple[float, list[int]]] = []
        # All subscriptions of a channel share its period, and no two channels have the same.
        for period_s in np.unique(world.period_s[held]):
            members = held[world.period_s[held] == period_s].tolist()
            times = np.arange(dice.uniform(0, period_s), horizon_s, period_s)
            self._events += [(float(at), members) for at in times]
        self._events += [(half / 2, []) for half in range(1, 2 * int(horizon_s))]
        self._events.sort(key=lambda event: event[0])

    def replicated(self, decides: Policy) -> Replicated:
        """What a policy costs, and leaves unsaved: it is asked after each run and at each full second, and what is
        unsaved is looked at between seconds."""
        unsaved: dict[int, int] = {}
        messages, positions, samples = 0, 0, []
        for number, (now_s, members) in enumerate(self._events):
            for k in members:
                decides.delivered(k, number, self._result_bytes[k])
                unsaved[k] = unsaved.get(k, 0) + self._result_bytes[k]
            if not members and now_s % 1:
                samples.append(self._repeated(unsaved) if now_s > WARM_UP_S else (0, 0))
                continue
            sent = decides.turn(now_s)
            decides.confirmed(sent)
            for update in sent:
                del unsaved[update.key]
            messages, positions = messages + bool(sent), positions + len(sent)
        counted = samples[int(WARM_UP_S) :] or samples
        retrieved, delivered = (statistics.fmean(column) for column in zip(*counted, strict=True))
        return Replicated(messages / self._horizon_s, positions / self._horizon_s, retrieved, delivered)

    def _repeated(self, unsaved: dict[int, int]) -> tuple[int, int]:
        return sum(unsaved.values()), sum([self._subscribers[k] * volume for k, volume in unsaved.items()])


class Curves(NamedTuple):
    """Each method's means over brokers: a row for each of PERIODS_S."""

    methods: dict[str, list[Replicated]]

    def ratio(self, method: str, cost: str) -> float | None:
        """What `method` repeats (retrieval) over what the periodic one does at the same `cost` (a field of Replicated),
        in the geometric mean of its points that lie within the periodic one's range."""
        base = sorted([(getattr(each, cost), each.retrieved_bytes) for each in self.methods["periodic"]])
        costs, volumes = np.log([each[0] for each in base]), np.log([each[1] for each in base])
        found = []
        for each in self.methods[method]:
            at = np.log(getattr(each, cost))
            if costs[0] <= at <= costs[-1]:
                found.append(np.log(each.retrieved_bytes) - np.interp(at, costs, volumes))
        return float(np.exp(np.mean(found))) if found else None


def curves(worlds: Sequence[World], brokers: int, horizon_s: float) -> Curves:
    """`brokers` of each world, an hour each, with each method at each pace."""
    hours = []
    for number, world in enumerate(worlds):
        dice = np.random.default_rng(number)
        some = dice.choice(len(world.network), brokers, replace=False)
        hours += [BrokerHour(world, int(broker), horizon_s, dice) for broker in some]
    methods = {}
    for method in METHODS:
        methods[method] = [
            _mean([hour.replicated(policy(method, seconds, hour.rate_bytes_s)) for hour in hours])
            for seconds in PERIODS_S
        ]
    return Curves(methods)


def _mean(rows: Sequence[Replicated]) -> Replicated:
    return Replicated(*[statistics.fmean(column) for column in zip(*rows, strict=True)])
