"""The leadership of topic groups: (epoch, leader, in-sync set) by compare-and-set (DESIGN.md section 3).

Theory of operation. The coordination server holds one `GroupState` a group and changes it only here. Rules:

    found      a group starts at (0, home, {home}): epoch 0 was never served. `home` is fixed when the cluster is
               created: group index mod number of coordinators, by sorted names
    open       a member opens a group that it leads: (e, m, S) -> (max(e, known) + 1, m, S), where `known` is the last
               epoch in its own store. A restart opens again, so every opening has an epoch of its own
    change     compare-and-set of the whole state, for failover: refused unless `expected` is what is stored, the epoch
               does not go back, the leader is in the new in-sync set and was in the old one, and a new leader comes
               with a new epoch

Invariants (tests/cluster/test_leadership.py proves them over random histories):

    I1  a group's epoch never goes back
    I2  one epoch of a group never has two leaders
    I3  the leader is in the in-sync set, and a new leader comes from the old one
    I4  a change whose `expected` is stale changes nothing

Nothing here reads a clock: leases and heartbeats serve speed, never safety. A server that has lost its states takes
them from what the stores know (`recovery`), so that I1 and I2 hold across it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .errors import StaleEpochError, UsageError

GROUPS_MAX = 10_000
COORDINATORS_MAX = 1_000


class GroupState(NamedTuple):
    """Who leads a group: the highest epoch handed out, its leader, and the members that hold all that is committed."""

    epoch: int
    leader: str
    in_sync: tuple[str, ...]


def assign(groups: int, coordinators: Iterable[str]) -> dict[int, str]:
    """The home of each group: index mod n over the sorted names. Raises UsageError without groups or coordinators."""
    names = sorted(set(coordinators))
    if not 1 <= groups <= GROUPS_MAX:
        raise UsageError(f"a cluster has 1 to {GROUPS_MAX} topic groups, not {groups}")
    if not 1 <= len(names) <= COORDINATORS_MAX:
        raise UsageError(f"a cluster has 1 to {COORDINATORS_MAX} coordinators, not {len(names)}")
    return {group: names[group % len(names)] for group in range(groups)}


class Leadership:
    """The states of all groups. Pure: every call returns the rows to make durable before it is answered."""

    def __init__(self, states: Mapping[int, GroupState]) -> None:
        self._states = dict(states)

    @classmethod
    def found(cls, groups: int, coordinators: Iterable[str]) -> Leadership:
        """A new cluster's groups, each at epoch 0 with its home as the only member."""
        homes = assign(groups, coordinators)
        return cls({group: GroupState(0, home, (home,)) for group, home in homes.items()})

    def __getitem__(self, group: int) -> GroupState:
        """Raises UsageError for a group that the cluster does not have."""
        try:
            return self._states[group]
        except KeyError:
            raise UsageError(f"topic group {group} is not one of this cluster's {len(self._states)}") from None

    def states(self) -> dict[int, GroupState]:
        """A copy of all states."""
        return dict(self._states)

    def led_by(self, member: str) -> tuple[int, ...]:
        """The groups that `member` leads, ascending."""
        return tuple(sorted(group for group, state in self._states.items() if state.leader == member))

    def open(self, member: str, known: Mapping[int, int]) -> dict[int, GroupState]:
        """`member` opens every group it leads, each under a new epoch. Returns the changed rows.

        `known`: the last epoch of each group in the member's store, also of groups that it only follows; those are
        not opened. Raises UsageError for a group that the cluster does not have; then nothing changed.
        """
        for group in known:
            self[group]
        changed = {
            group: self._states[group]._replace(epoch=max(self._states[group].epoch, known.get(group, 0)) + 1)
            for group in self.led_by(member)
        }
        self._states.update(changed)
        return changed

    def change(self, group: int, expected: GroupState, new: GroupState) -> bool:
        """Compare-and-set. False when the stored state is neither `expected` nor already `new`.

        Repeating a change that succeeded is True (its answer may have been lost). Raises StaleEpochError when `new`
        goes back, UsageError when it breaks an invariant; then nothing changed.
        """
        state = self[group]
        if state == new:
            return True
        if state != expected:
            return False
        _check_change(group, state, new)
        self._states[group] = new
        return True


def _check_change(group: int, old: GroupState, new: GroupState) -> None:
    if new.epoch < old.epoch:
        raise StaleEpochError(f"group {group}: epoch {new.epoch} is older than {old.epoch}")
    if new.leader not in new.in_sync:
        raise UsageError(f"group {group}: leader {new.leader} is not in the in-sync set {new.in_sync}")
    if len(set(new.in_sync)) != len(new.in_sync):
        raise UsageError(f"group {group}: the in-sync set {new.in_sync} names a member twice")
    if new.leader != old.leader:
        if new.leader not in old.in_sync:
            raise UsageError(f"group {group}: {new.leader} was not in sync and may not lead")
        if new.epoch == old.epoch:
            raise UsageError(f"group {group}: a new leader needs a new epoch, not {new.epoch}")
