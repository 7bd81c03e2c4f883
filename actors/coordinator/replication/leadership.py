"""Which groups are led here, under which epoch, and who counts in them: what the coordination server says, and what is
asked of it.

Within an epoch only the group's leader changes its in-sync set, by compare-and-set; so what this coordinator knows of
the set is what it has asked for itself and was granted, and news that are older do no harm. A newer epoch is another
leader's, or one that was given to this coordinator because the leader before was lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from lexicast.cluster.errors import LexicastError, UnavailableError
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import Coordination, Member, Members
from lexicast.cluster.placement import Site
from lexicast.cluster.placement import followers as placed_followers
from lexicast.cluster.replication import Phase

from ...link.link import Link
from ...loop.background import keep_going, stop_loops
from .followers import Followers
from .renewals import Renewals

log = logging.getLogger(__name__)

MEMBERS_WAIT_S: Final = 5.0
RETRY_S: Final = 0.1
# After so long a change is asked for again that the coordination server cannot make before it knows more.
LOST_AGAIN_S: Final = 0.5


class Leads(Protocol):
    """Who opens groups to lead them, and closes them."""

    async def open(self, states: Mapping[int, GroupState]) -> None:
        """Lead these; returns when their first blocks are committed, or when they are not to be led after all."""

    def close_groups(self, groups: Sequence[int]) -> None:
        """Lead these no more."""


class GroupLeadership:
    """See the module's docstring; implements `followers.GroupChanges`."""

    def __init__(
        self,
        name: str,
        coordination: Coordination,
        leads: Leads,
        copies: int,
        dial: Callable[[Member, Any], Any],
        count_with: Callable[[Mapping[int, tuple[int, tuple[str, ...]]], bool], Awaitable[None]],
    ) -> None:
        """`dial(member, user)` opens a link to another coordinator; `copies`: members that each group is to have;
        `count_with`: see `Store.count_with`."""
        self.name = name
        self._coordination = coordination
        self._leads = leads
        self._copies = copies
        self._dial = dial
        self._count_with = count_with
        self.followers: Followers
        self._members: dict[str, Member] = {}
        self._sites: dict[str, Site] = {}
        # Of each group that is led here, or about to be.
        self._states: dict[int, GroupState] = {}
        # Who is to follow each of them, as the coordinators stand now.
        self._placed: dict[int, tuple[str, ...]] = {}
        # Of each group that was led here and is not any more: the epoch that is over. Who was cut off may hear of its
        # successor from that one first, and later of itself, in what was sent before.
        self._over: dict[int, int] = {}
        self._drops: dict[int, set[str]] = {}
        self._joins: dict[int, set[str]] = {}
        # Groups of which a change was asked for, and it is not known whether it was made.
        self._unresolved: set[int] = set()
        self._wanted = asyncio.Event()
        self._version = -1
        self.renewals = Renewals(name, coordination, self._open_given, self._left)
        self._tasks: list[asyncio.Task[None]] = []

    # -- life

    async def start(self, states: Mapping[int, GroupState]) -> None:
        """Lead what the coordination server has given to this coordinator at its start, and take part in what changes
        from then on. Raises StoreError."""
        self._states.update(states)
        self._tasks = [
            keep_going(self._watch(), "following who leads which groups"),
            keep_going(self._change(), "changing who counts"),
        ]
        await self._open(states)

    async def stop(self) -> None:
        """Take part no more."""
        await stop_loops(*self._tasks)
        await self.renewals.stop()

    async def dial(self, name: str, user: Any) -> Link:
        """A link to another coordinator. Raises OSError, LexicastError."""
        member = self._members.get(name)
        if member is None:
            raise UnavailableError(f"{name} has not been seen yet")
        link: Link = await self._dial(member, user)
        return link

    # -- what changes

    async def _watch(self) -> None:
        while True:
            try:
                members = await self._coordination.members(self._version, MEMBERS_WAIT_S)
            except LexicastError as error:
                log.debug("the membership: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            if members.version != self._version:
                self._version = members.version
                await self._take(members)

    async def _take(self, members: Members) -> None:
        self._members = members.coordinators
        self._sites = members.sites()
        self.followers.coordinators(members.coordinators)
        known = members.groups
        gone = [g for g, own in self._states.items() if g in known and known[g].epoch > own.epoch]
        given = {
            group: state
            for group, state in members.groups.items()
            if state.leader == self.name and state.epoch > self._epoch(group)
        }
        self.depose(gone)
        if given:
            await self._open_given(given)
        self._place()
        self.followers.gone(members.coordinators)

    def _epoch(self, group: int) -> int:
        """The epoch under which the group is led here, or was; nothing of it begins again."""
        known = self._states.get(group)
        return known.epoch if known is not None else self._over.get(group, -1)

    async def _open(self, states: Mapping[int, GroupState]) -> None:
        self._states.update(states)
        try:
            await self._leads.open(states)
        finally:
            self._reopen({group: s.epoch for group, s in states.items() if group not in self.followers.groups})

    def _reopen(self, epochs: Mapping[int, int]) -> None:
        """These could not be opened: there was no room, or they were left as they began. What was placed in their
        epochs others may have: another epoch is asked for, unless that was done when they were left."""
        changes = {}
        for group, epoch in epochs.items():
            known = self._states.get(group)
            if known is not None and known.epoch == epoch:
                self._over[group] = self._states.pop(group).epoch
                changes[group] = (known, known._replace(epoch=epoch + 1))
        self.renewals.begin(changes)

    async def _open_given(self, states: Mapping[int, GroupState]) -> None:
        """Lead what was given to this coordinator, unless it knows of something newer."""
        states = {group: state for group, state in states.items() if state.epoch > self._epoch(group)}
        if not states:
            return
        try:
            await self._open(states)
        except LexicastError as error:
            log.error("groups %s cannot be led now: %s", sorted(states), error)

    def _left(self, states: Mapping[int, GroupState]) -> None:
        """Others lead these under newer epochs; unless a group was given back, under one that is newer still."""
        self.depose([group for group, state in states.items() if self._states.get(group) == state])

    def _place(self) -> None:
        """Who is to follow the groups that are led here."""
        for group in self._states:
            self._placed[group] = placed_followers(group, self.name, self._sites, self._copies)
            self.followers.want(group, self._placed[group])
            if self._surplus(group):
                self._wanted.set()

    def _surplus(self, group: int) -> set[str]:
        """Members that count and need not, since everybody who is to follow counts: they hold copies that nobody asked
        for, on a node that is being drained or where the group was led before. Who has not come yet is none of them:
        at a cluster's start copies would be given up for want of patience."""
        known, placed = self._states.get(group), self._placed.get(group)
        if known is None or placed is None or not set(placed).issubset(known.in_sync):
            return set()
        return set(known.in_sync).difference(placed, [self.name]).intersection(self._sites)

    def depose(self, groups: Sequence[int]) -> None:
        """Somebody else leads these, under a newer epoch."""
        for group in groups:
            self._placed.pop(group, None)
            known = self._states.pop(group, None)
            if known is not None:
                self._over[group] = known.epoch
            self._drops.pop(group, None)
            self._joins.pop(group, None)
            self._unresolved.discard(group)
        if groups:
            self._leads.close_groups(groups)

    def states(self) -> dict[int, GroupState]:
        """Of each group that is led here, or about to be."""
        return dict(self._states)

    def holds(self, group: int, state: GroupState) -> bool:
        """Whether this coordinator is to lead the group under this very state."""
        return self._states.get(group) == state

    # -- GroupChanges

    def drop(self, member: str, groups: Sequence[int]) -> None:
        """See `followers.GroupChanges`."""
        for group in groups:
            self._drops.setdefault(group, set()).add(member)
        self._wanted.set()

    def join(self, member: str, groups: Sequence[int]) -> None:
        """See `followers.GroupChanges`."""
        for group in groups:
            self._joins.setdefault(group, set()).add(member)
        self._wanted.set()

    async def _change(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            drops, self._drops = self._drops, {}
            joins, self._joins = self._joins, {}
            changes = {}
            for group in {*drops, *joins, *filter(self._surplus, self._states)}:
                change = self._changed(group, drops.get(group, set()), joins.get(group, set()))
                if change is not None:
                    changes[group] = change
            if not changes:
                continue
            try:
                await self._note(_wider(changes), False)
                held = await self._coordination.change_groups(changes)
            except LexicastError as error:
                # Whether it was done is not known: it is asked for again, which does no harm.
                log.debug("the in-sync sets: %s", error)
                self._unresolved.update(changes)
                for group in changes:
                    self._drops.setdefault(group, set()).update(drops.get(group, ()))
                    self._joins.setdefault(group, set()).update(joins.get(group, ()))
                await asyncio.sleep(RETRY_S)
                self._wanted.set()
                continue
            self._held(changes, held)
            with suppress(LexicastError):  # that more is noted than is true does no harm
                await self._note(self._narrower(changes), True)

    async def _note(self, states: Mapping[int, GroupState], alone: bool) -> None:
        """Who may count is noted, durably, before it does; who does not any more, after that is known."""
        if states:
            await self._count_with({group: (state.epoch, state.in_sync) for group, state in states.items()}, alone)

    def _narrower(self, changes: Mapping[int, tuple[GroupState, GroupState]]) -> dict[int, GroupState]:
        """The states of groups in which fewer count than may have been noted, and no change is under way."""
        known = {group: self._states[group] for group in changes if group in self._states}
        return {
            group: state
            for group, state in known.items()
            if group not in self._unresolved and {*state.in_sync} < {n for each in changes[group] for n in each.in_sync}
        }

    def _changed(self, group: int, drops: set[str], joins: set[str]) -> tuple[GroupState, GroupState] | None:
        """What to ask for; None when there is no need any more."""
        known, led = self._states.get(group), self.followers.groups.get(group)
        if known is None or led is None or led.epoch != known.epoch:
            return None
        away = {name for name in {*drops, *joins} if self.followers.is_away(led, name)}
        ready = [name for name in sorted(joins) if name in led.joining and name not in away]
        surplus = self._surplus(group)
        stay = [name for name in known.in_sync if name not in surplus and (name not in away or name not in drops)]
        in_sync = (*stay, *ready)
        if in_sync == known.in_sync and group not in self._unresolved:
            self.followers.give_up(group)
            return None
        # Also where nothing is to change: what became of a change whose answer was lost has to be known.
        return known, known._replace(in_sync=in_sync)

    def _held(self, changes: Mapping[int, tuple[GroupState, GroupState]], held: Mapping[int, GroupState]) -> None:
        """What the coordination server has after a change that was asked for. Of a group whose row it has lost it says
        nothing: that is asked for again when it knows more."""
        gone = []
        for group, (_, wanted) in changes.items():
            state, known = held.get(group), self._states.get(group)
            if state is None:
                self._unresolved.add(group)
                asyncio.get_running_loop().call_later(LOST_AGAIN_S, self.followers.ask_again, group)
                continue
            self._unresolved.discard(group)
            if known is None or known.epoch != wanted.epoch:
                continue
            if state.epoch != known.epoch:
                gone.append(group)
                continue
            self._states[group] = state
            self.followers.counts(group, state.in_sync)
            if group in self._placed:
                self.followers.want(group, self._placed[group])
            led = self.followers.groups.get(group)
            # Or somebody is waited for who was away when this was asked, and has been brought up since.
            if state != wanted or (led is not None and led.joining):
                self.followers.ask_again(group)
            if self._surplus(group):
                self._wanted.set()
        self.depose(gone)

    def resigning(self, groups: Sequence[int]) -> dict[int, tuple[GroupState, GroupState]]:
        """What to ask for where this coordinator's disk has refused what others may have of these groups: a new epoch,
        led by another member that keeps up, since it may have room; by this one where there is none."""
        changes = {}
        for group in groups:
            known, led = self._states.get(group), self.followers.groups.get(group)
            if known is None or led is None or led.epoch != known.epoch:
                continue
            live = [n for n, p in led.members.items() if n in known.in_sync and p.phase is Phase.LIVE]
            leader = live[group % len(live)] if live else self.name
            changes[group] = (known, known._replace(epoch=known.epoch + 1, leader=leader))
        return changes

    def handing_over(self, groups: Mapping[int, str]) -> dict[int, tuple[GroupState, GroupState]]:
        """What to ask for where this coordinator stores too slowly: a new epoch, led by the member that is named, in
        which this one does not count."""
        changes = {}
        for group, leader in groups.items():
            known, led = self._states.get(group), self.followers.groups.get(group)
            if known is None or led is None or led.epoch != known.epoch or leader not in known.in_sync:
                continue
            in_sync = tuple([name for name in known.in_sync if name != self.name])
            changes[group] = (known, GroupState(known.epoch + 1, leader, in_sync))
        return changes


def _wider(changes: Mapping[int, tuple[GroupState, GroupState]]) -> dict[int, GroupState]:
    """The states that are asked for in which somebody counts who did not."""
    return {group: new for group, (old, new) in changes.items() if {*new.in_sync} - {*old.in_sync}}
