"""Backups while brokers, subscribers and loads come and go: only what must change or pays, a few brokers at a time.

Whoever gets another backup has to send it everything first. So an assignment in force stays, but for

    must    a backup is lost, or may not be one any more (it has moved, or its broker has): another one
    must    a backup is beyond its capacity, and another one has room: so many of its brokers as are too many
    pays    a move saves the local backup at least `pays` of the subscriptions that the broker has (O, eq. 1), or
            lowers the largest R (eq. 2) at its place by at least that part

in this order, at most `at_once` brokers a turn; who has lost both backups comes first. What a move saves is set against
the broker's own subscriptions since that is what the move costs; a part of the whole sum would be too much for any one
broker among a thousand.

Each turn is given what the one before has made. Where nothing else changes the turns come to an end: load beyond
capacities never rises again and each move that pays lowers an objective. Pure.

A lost broker is nobody's backup, and keeps its own while its subscribers are moving there. REAPS (section V-A) says
only that reassignment may be needed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import numpy as np

from lexicast.cluster.errors import UsageError

from .assignment import BackupAssignment, Backups, indices
from .bits import Integers
from .choice import Loads
from .coverage import Coverage
from .greedy import local_coverage, remote_coverage
from .network import BrokerNetwork
from .objectives import NONE

PAYS: Final = 0.1


class Reassignment(NamedTuple):
    """What one turn has made of an assignment.

    changed  the brokers whose local or remote backup is another one now, ascending
    waiting  those that have lost a backup and have to wait for a later turn, ascending
    """

    assignment: BackupAssignment
    changed: tuple[int, ...]
    waiting: tuple[int, ...]


def reassigned(
    network: BrokerNetwork,
    in_force: Mapping[str, Backups],
    *,
    lost: Collection[str] = (),
    at_once: int,
    pays: float = PAYS,
) -> Reassignment:
    """One turn. `network`: as it is now, lost brokers still in it as long as their subscribers are moving; `in_force`:
    by name, since a network that has changed counts otherwise.

    Raises UsageError: `at_once` below one, `pays` not above zero.
    """
    if at_once < 1 or not pays > 0:
        raise UsageError("at_once has to be 1 or more, pays above 0")
    turn = _Turn(network, indices(network, in_force), {network.index[name] for name in lost if name in network.index})
    turn.replace_lost(at_once)
    turn.relieve(at_once)
    turn.save_subscriptions(at_once, pays)
    turn.lower_maximum(at_once, pays)
    return turn.result()


class _Turn:
    def __init__(self, network: BrokerNetwork, in_force: tuple[Integers, Integers], lost: set[int]) -> None:
        self._network = network
        self._loads = Loads(network)
        self._in_force = in_force
        self._alive = np.ones(len(network), bool)
        self._alive[list(lost)] = False
        self._changed: set[int] = set()
        self._waiting: list[int] = []
        self._local = self._kept(local_coverage(network), in_force[0], same=True)
        self._remote = self._kept(remote_coverage(network, self._local.backup), in_force[1], same=False)

    def _kept(self, coverage: Coverage, in_force: Integers, *, same: bool) -> Coverage:
        """With the backups that may stay: alive (or the broker itself is not), and where they have to be."""
        place = self._network.place
        for broker in np.flatnonzero(in_force != NONE):
            backup = int(in_force[broker])
            fits = backup != broker and (place[broker] == place[backup]) == same
            if fits and (self._alive[backup] or not self._alive[broker]):
                coverage.put(int(broker), backup)
                self._loads.give(int(broker), backup)
        return coverage

    def replace_lost(self, at_once: int) -> None:
        """Another backup for each that is lost, for both kinds in one go."""
        bare_local, bare_remote = self._bare(self._local), self._bare(self._remote)
        bare = sorted(
            bare_local | bare_remote, key=lambda each: (not (each in bare_local and each in bare_remote), each)
        )
        self._waiting = sorted(bare[at_once:])
        chosen = bare[:at_once]
        for broker in [each for each in chosen if each in bare_local]:
            self._give(self._local, broker)
        self._renew_remote()
        for broker in [each for each in chosen if each in bare_remote]:
            self._give(self._remote, broker)

    def _bare(self, coverage: Coverage) -> set[int]:
        """Living brokers that have no backup of this kind and could have one."""
        without = np.flatnonzero(self._alive & (coverage.backup == NONE))
        return {int(broker) for broker in without if len(self._candidates(coverage, int(broker)))}

    def _candidates(self, coverage: Coverage, broker: int) -> Integers:
        found = self._network.near(broker) if coverage is self._local else self._network.far(broker)
        return np.asarray(found[self._alive[found]])

    def _score(self, coverage: Coverage, broker: int, candidates: Integers) -> Integers:
        """As LCS and MMCS judge."""
        added = coverage.added(broker, candidates)
        if coverage is self._local:
            return added
        return np.asarray(np.maximum(coverage.cost[candidates] + added, coverage.cost.max()))

    def _give(self, coverage: Coverage, broker: int) -> None:
        candidates = self._candidates(coverage, broker)
        self._move(coverage, broker, self._loads.best(broker, candidates, self._score(coverage, broker, candidates)))

    def _move(self, coverage: Coverage, broker: int, backup: int) -> None:
        left = int(coverage.backup[broker])
        if left != NONE:
            coverage.remove(broker)
            self._loads.take(broker, left)
        coverage.put(broker, backup)
        self._loads.give(broker, backup)
        self._changed.add(broker)

    def _renew_remote(self) -> None:
        """Local backups have changed, and with them what a remote one has to create (eq. 2)."""
        kept = self._remote.backup
        self._remote = remote_coverage(self._network, self._local.backup)
        for broker in np.flatnonzero(kept != NONE):
            self._remote.put(int(broker), int(kept[broker]))

    def _may_change(self, broker: int, at_once: int) -> bool:
        return bool(self._alive[broker]) and (broker in self._changed or len(self._changed) < at_once)

    def relieve(self, at_once: int) -> None:
        """Takes from backups beyond their capacity what others have room for; remote ones first, which only store."""
        for backup in np.flatnonzero(self._loads.over()):
            for coverage in (self._remote, self._local):
                while self._loads.over()[backup] and self._relieve_once(coverage, int(backup), at_once):
                    pass
        self._renew_remote()

    def _relieve_once(self, coverage: Coverage, backup: int, at_once: int) -> bool:
        """Moves the smallest member that is enough, else the largest one that somebody has room for."""
        own = self._loads.own
        too_much = self._loads.total[backup] - self._loads.capacity[backup]
        members = [int(each) for each in coverage.members(backup) if own[each] > 0]
        for broker in sorted(members, key=lambda each: (own[each] <= too_much, abs(own[each] - too_much), each)):
            candidates = self._with_room(coverage, broker)
            if len(candidates) and self._may_change(broker, at_once):
                score = self._score(coverage, broker, candidates)
                self._move(coverage, broker, self._loads.best(broker, candidates, score))
                return True
        return False

    def _with_room(self, coverage: Coverage, broker: int) -> Integers:
        """Other backups that could carry it."""
        found = self._candidates(coverage, broker)
        found = found[found != coverage.backup[broker]]
        return np.asarray(found[self._loads.room(self._loads.own[broker], found)])

    def save_subscriptions(self, at_once: int, pays: float) -> None:
        """Moves of local backups that save enough subscriptions; what saves most first."""
        having = [int(broker) for broker in np.flatnonzero(self._local.backup != NONE)]
        saved = {broker: self._saving(broker)[0] for broker in having if self._may_change(broker, at_once)}
        for broker in sorted(saved, key=lambda each: (-saved[each], each)):
            # Moves that were made since may have taken its saving, or its room.
            saving, backup = self._saving(broker)
            if saving >= max(1, pays * self._network.held[broker]) and self._may_change(broker, at_once):
                self._move(self._local, broker, backup)
        self._renew_remote()

    def _saving(self, broker: int) -> tuple[int, int]:
        """What the best local backup with room would save, and which one it is; at most 0 where there is none."""
        candidates = self._with_room(self._local, broker)
        freed = self._local.freed(broker)
        if not freed or not len(candidates):
            return 0, NONE
        added = self._local.added(broker, candidates)
        backup = self._loads.best(broker, candidates, added)
        return freed - int(added[np.flatnonzero(candidates == backup)[0]]), backup

    def lower_maximum(self, at_once: int, pays: float) -> None:
        """Moves of remote backups from where R is largest, as long as that is lowered enough."""
        cost = self._remote.cost
        while cost.max(initial=0) > 0:
            top = int(np.argmax(cost))
            found = [
                self._lowered(int(broker))
                for broker in self._remote.members(top)
                if self._may_change(int(broker), at_once)
            ]
            after, broker, backup = min(found, default=(int(cost[top]), NONE, NONE))
            if cost[top] - after < max(1, pays * cost[top]):
                return
            self._move(self._remote, broker, backup)

    def _lowered(self, broker: int) -> tuple[int, int, int]:
        """(the larger R of the two backups after the best move of this broker, the broker, its new backup)."""
        left = int(self._remote.backup[broker])
        candidates = self._with_room(self._remote, broker)
        if not len(candidates):
            return int(self._remote.cost[left]), broker, NONE
        there = self._remote.cost[candidates] + self._remote.added(broker, candidates)
        after = np.maximum(there, self._remote.cost[left] - self._remote.freed(broker))
        backup = self._loads.best(broker, candidates, after)
        return int(after[np.flatnonzero(candidates == backup)[0]]), broker, backup

    def result(self) -> Reassignment:
        """Who has to wait keeps what it had, though that be lost."""
        local, remote = self._local.backup.copy(), self._remote.backup.copy()
        for backups, before in ((local, self._in_force[0]), (remote, self._in_force[1])):
            for broker in self._waiting:
                if backups[broker] == NONE:
                    backups[broker] = before[broker]
        changed, waiting = tuple(sorted(self._changed)), tuple(self._waiting)
        return Reassignment(BackupAssignment.of(local, remote, self._loads), changed, waiting)
