"""What each broker covers as a backup of one kind while backups are being chosen, and what one more or less changes.

A backup's *cost* is the number of subscriptions that the brokers it backs up (its members) have and that it has not by
itself: O_j (eq. 1) where what it has by itself is its own, R_j (eq. 2) where that is its own and those of whom it is
the local backup. Three sets of bits a backup keep everything else cheap:

    held   what it has by itself
    once   what at least one member has
    twice  what at least two members have

    a broker i more     adds   S_i \\ (held | once)            (eq. 9)
    a member i less     takes  S_i \\ (held | twice)
    i in l's place      adds   S_i \\ (held | once), and what of l's share i has too

So neither an addition nor an exchange looks at the other members; a removal counts them anew. Pure, but for its state.
"""

from __future__ import annotations

import numpy as np

from .bits import ROWS_AT_ONCE, Integers, Words, bits_set, common
from .objectives import NONE


class Coverage:
    """The backups of one kind, as far as they are chosen.

    backup  whose members brokers are; NONE: not chosen yet [brokers]
    cost    of each broker as a backup [brokers]
    """

    def __init__(self, rows: Words, held: Words) -> None:
        """`rows`: the subscriptions of each broker; `held`: what each has by itself; both [brokers x words]."""
        self.backup = np.full(len(rows), NONE, np.int64)
        self.cost = np.zeros(len(rows), np.int64)
        self._rows = rows
        self._lacking = ~held
        # What a member alone would cover: not held, and not of two members already.
        self._single = ~held
        # What its backup covers for each broker alone, as a number.
        self._freed = np.zeros(len(rows), np.int64)
        self._once = np.zeros_like(rows)
        self._twice = np.zeros_like(rows)
        # What no member has and the backup neither; kept since every question about candidates asks for it.
        self._uncovered = ~held

    def members(self, backup: int) -> Integers:
        """The brokers that have `backup`, ascending."""
        return np.flatnonzero(self.backup == backup)

    def put(self, broker: int, backup: int) -> None:
        """`broker`, which has none, has `backup` from here on."""
        self.backup[broker] = backup
        self._add(broker, backup)
        self._settle(backup)

    def remove(self, broker: int) -> None:
        """`broker` has no backup from here on."""
        backup = int(self.backup[broker])
        self.backup[broker] = NONE
        self._once[backup] = self._twice[backup] = 0
        for member in self.members(backup):
            self._add(member, backup)
        self._settle(backup)

    def _add(self, broker: int, backup: int) -> None:
        self._twice[backup] |= self._once[backup] & self._rows[broker]
        self._once[backup] |= self._rows[broker]

    def _settle(self, backup: int) -> None:
        self._single[backup] = self._lacking[backup] & ~self._twice[backup]
        members = self.members(backup)
        self._freed[members] = bits_set(self._rows[members] & self._single[backup])
        self._uncovered[backup] = self._lacking[backup] & ~self._once[backup]
        self.cost[backup] = bits_set(self._lacking[backup] & self._once[backup])

    def added(self, broker: int, candidates: Integers) -> Integers:
        """delta_j (eq. 9): what `broker` would add to the cost of each candidate [candidates]."""
        return common(self._rows[broker], self._uncovered, candidates)

    def added_by_each(self, brokers: Integers, backup: int) -> Integers:
        """What each of `brokers` would add to the cost of `backup` [brokers]."""
        return common(self._uncovered[backup], self._rows, brokers)

    def share(self, broker: int) -> Words:
        """What the backup of `broker` covers for it alone, as a row."""
        return np.asarray(self._rows[broker] & self._single[self.backup[broker]])

    def freed(self, broker: int) -> int:
        """How much less its backup would cost without `broker`."""
        return int(self._freed[broker])

    def exchanged(self, broker: int, others: Integers) -> tuple[Integers, Integers]:
        """`broker` and each of `others`, which have other backups, change places: what the cost of the backup of
        `broker` changes by, and that of the other's backup [others] each."""
        # What the others would add here, and what only `broker` covers here, have no subscription in common.
        wanted = self._uncovered[self.backup[broker]] | self.share(broker)
        here = common(wanted, self._rows, others) - self._freed[broker]
        backups, at = np.unique(self.backup[others], return_inverse=True)
        there = self.added(broker, backups)[at] + self._shared(broker, others) - self._freed[others]
        return here, there

    def _shared(self, broker: int, others: Integers) -> Integers:
        """How much `broker` has in common with the share of each of `others` [others]."""
        row, backups = self._rows[broker], self.backup[others]
        words = np.flatnonzero(row)
        found = np.empty(len(others), np.int64)
        for first in range(0, len(others), ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            shares = self._rows[np.ix_(others[some], words)] & self._single[np.ix_(backups[some], words)]
            found[some] = bits_set(shares & row[words])
        return found
