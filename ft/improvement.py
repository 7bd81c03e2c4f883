"""What the greedy algorithms leave on the table: moves, exchanges, and a few kicks. Pure.

Not in the paper, which stops after the greedy pass (docs/reaps.md: how far from the optimum that is, and what this
brings). A *move* gives a broker another backup, an *exchange* lets two brokers change places; both are made as long as
they lower the objective, or the load beyond capacities, moves first since they are cheaper to look for. Where neither
helps any more a *kick* gives three brokers any backup, all begins again from there, and what comes out stays if it is
no worse.

The objective is sum_j cost_j^power: with power 1 the left one of eq. 3, with a high power nearly the right one, its
maximum. Lowering the maximum alone stops too soon: the one backup that costs most can often give nothing away before
others, which do not count yet, have made room.

Everything ends after `KICKS`, or when so many words of bits have been looked at: a count and not a clock, so the same
network always gets the same backups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .bits import Integers
from .choice import Loads
from .coverage import Coverage
from .network import BrokerNetwork, Floats

EFFORT_WORDS: Final = 700_000_000
"""A word takes 1 to 3 ns: some two seconds of one core, for each kind of backup of a thousand brokers, where it bounds
the first descent. A hundred brokers are done with a twentieth of it."""
KICKS_EFFORT_WORDS: Final = 200_000_000
"""Of that for kicks: all fifty for a dozen brokers, where they bring most; four or five for a hundred."""
SUM: Final = 1
MAXIMUM: Final = 8
"""2 * 0.9^8 < 1: a move that brings two backups a tenth below the larger of them lowers the sum of powers."""
KICKS: Final = 50

_KICKED: Final = 3
# What a question costs beside its words: some thirty microseconds of NumPy's calls.
_QUESTION_WORDS: Final = 30_000
_NOBODY: Final = -1
_SEED: Final = 0

Candidates = Callable[[int], Integers]
Standing = tuple[float, int, float]


class Changes(NamedTuple):
    """What one broker may do, a row each.

    backup   the one that it would have
    partner  who would get its backup in exchange (_NOBODY: it moves alone)
    here     what the cost of the backup that it leaves changes by
    there    what the cost of the one that it gets changes by
    beyond   what all loads beyond capacities change by, in bytes a second; infinite: it must not be
    """

    backup: Integers
    partner: Integers
    here: Integers
    there: Integers
    beyond: Floats

    def only(self, chosen: NDArray[np.bool_]) -> Changes:
        """These rows."""
        return Changes(
            self.backup[chosen], self.partner[chosen], self.here[chosen], self.there[chosen], self.beyond[chosen]
        )


class Improvement:
    """Improves the backups of one kind in place; changes `loads` with them."""

    def __init__(
        self, network: BrokerNetwork, loads: Loads, coverage: Coverage, candidates: Candidates, power: int
    ) -> None:
        """`candidates`: who may be the backup of a broker (`network.near`, `network.far`); `power`: SUM or MAXIMUM."""
        self._network = network
        self._loads = loads
        self._coverage = coverage
        self._candidates = candidates
        self._power = power
        self._effort_words = 0
        # Sums of loads in another order differ by so much: no change is made for that.
        self._noise_bytes_s = 1e-9 * max(1.0, float(loads.own.sum()))

    def run(self, effort_words: int = EFFORT_WORDS) -> None:
        """Lowers the objective as far as it goes."""
        self._effort_words = effort_words
        self._descend()
        self._effort_words = min(self._effort_words, KICKS_EFFORT_WORDS)
        dice = np.random.default_rng(_SEED)
        for _ in range(KICKS):
            before, kept = self._standing(), self._coverage.backup.copy()
            if self._effort_words <= 0 or before[2] == 0:
                return
            self._kick(dice)
            self._descend()
            if self._standing() > before:
                self._restore(kept)

    def _standing(self) -> Standing:
        """What is to be low, what matters most first: load beyond capacities, the maximum, the sum of powers."""
        beyond = float(np.maximum(0.0, self._loads.total - self._loads.capacity).sum())
        cost = self._coverage.cost
        top = int(cost.max(initial=0)) if self._power > SUM else 0
        return beyond // self._noise_bytes_s, top, float((cost.astype(np.float64) ** self._power).sum())

    def _descend(self) -> None:
        """Sweeps over all brokers until one changes nothing."""
        for changes_of in (self._moves, self._moves_and_exchanges):
            changing = True
            while changing:
                changing = False
                for broker in np.flatnonzero(self._coverage.backup >= 0):
                    if self._effort_words <= 0:
                        return
                    changing |= self._change_best(int(broker), changes_of(int(broker)))

    def _change_best(self, broker: int, changes: Changes) -> bool:
        """Does the best of `changes`. False when none pays."""
        score = self._score(broker, changes)
        pays = (changes.beyond < 0) | ((changes.beyond == 0) & (score < 0))
        if not pays.any():
            return False
        changes, score = changes.only(pays), score[pays]
        at = int(np.lexsort((changes.backup, score, changes.beyond))[0])
        left, backup, partner = int(self._coverage.backup[broker]), int(changes.backup[at]), int(changes.partner[at])
        self._leave(broker)
        if partner != _NOBODY:
            self._leave(partner)
            self._take(partner, left)
        self._take(broker, backup)
        return True

    def _score(self, broker: int, changes: Changes) -> Floats:
        """What sum_j cost_j^power changes by."""
        cost = self._coverage.cost.astype(np.float64)
        mine, theirs = cost[self._coverage.backup[broker]], cost[changes.backup]
        before = mine**self._power + theirs**self._power
        return np.asarray((mine + changes.here) ** self._power + (theirs + changes.there) ** self._power - before)

    def _kick(self, dice: np.random.Generator) -> None:
        """Gives a few brokers any backup that has room, one of them of the backup that costs most."""
        top = self._coverage.members(int(np.argmax(self._coverage.cost)))
        having = np.flatnonzero(self._coverage.backup >= 0)
        some = dice.choice(having, min(_KICKED - 1, len(having)), replace=False)
        for broker in sorted({int(dice.choice(top)), *some.tolist()}):
            found = self._candidates(broker)
            found = found[found != self._coverage.backup[broker]]
            found = found[self._loads.room(self._loads.own[broker], found)]
            if len(found):
                self._leave(broker)
                self._take(broker, int(dice.choice(found)))

    def _restore(self, kept: Integers) -> None:
        others = np.flatnonzero(self._coverage.backup != kept)
        for broker in others:
            self._leave(int(broker))
        for broker in others:
            self._take(int(broker), int(kept[broker]))

    def _leave(self, broker: int) -> None:
        self._loads.take(broker, int(self._coverage.backup[broker]))
        self._coverage.remove(broker)

    def _take(self, broker: int, backup: int) -> None:
        self._coverage.put(broker, backup)
        self._loads.give(broker, backup)

    def _moves_and_exchanges(self, broker: int) -> Changes:
        moves, exchanges = self._moves(broker), self._exchanges(broker)
        return Changes(*[np.concatenate(pair) for pair in zip(moves, exchanges, strict=True)])

    def _moves(self, broker: int) -> Changes:
        left = int(self._coverage.backup[broker])
        targets = self._candidates(broker)
        targets = targets[targets != left]
        self._spend(len(targets))
        here = np.full(len(targets), -self._coverage.freed(broker), np.int64)
        beyond = self._beyond(left, targets, np.full(len(targets), self._loads.own[broker]))
        return Changes(targets, np.full_like(targets, _NOBODY), here, self._coverage.added(broker, targets), beyond)

    def _exchanges(self, broker: int) -> Changes:
        backup, left = self._coverage.backup, int(self._coverage.backup[broker])
        # Who may be the backup of whom is the same both ways: those for whom `left` may be one are its candidates.
        others = self._candidates(left)
        others = others[(backup[others] >= 0) & (backup[others] != left)]
        others = others[np.isin(backup[others], self._candidates(broker))]
        self._spend(3 * len(others))
        here, there = self._coverage.exchanged(broker, others)
        beyond = self._beyond(left, backup[others], self._loads.own[broker] - self._loads.own[others])
        return Changes(backup[others], others, here, there, beyond)

    def _beyond(self, left: int, targets: Integers, more: Floats) -> Floats:
        """What the loads beyond capacities change by where `left` has so much less and each target so much more.
        Infinite where one of the two would not be below its capacity and nothing becomes better by that."""
        change = np.zeros(len(targets))
        fits = np.ones(len(targets), bool)
        for brokers, added in ((np.full(len(targets), left), -more), (targets, more)):
            before, capacity = self._loads.total[brokers], self._loads.capacity[brokers]
            change += np.maximum(0.0, before + added - capacity) - np.maximum(0.0, before - capacity)
            fits &= before + added < capacity
        return np.where(change < -self._noise_bytes_s, change, np.where(fits, 0.0, np.inf))

    def _spend(self, rows: int) -> None:
        self._effort_words -= rows * self._network.subscriptions.shape[1] + _QUESTION_WORDS
