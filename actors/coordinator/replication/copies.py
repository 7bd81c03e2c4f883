"""A coordinator's part in the copies of groups: of those it leads, and of those it follows.

`LedGroups` hands it what was sequenced and what became durable; without it a coordinator leads alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from lexicast.cluster.blocks import Block
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import Coordination, Member
from lexicast.storage.log.stored_block import StoredBlock

from ...link.link import Link
from ..led_groups import LedGroups
from .followers import Followers
from .following import Following
from .leadership import GroupLeadership

log = logging.getLogger(__name__)


class Copies:
    """See the module's docstring."""

    def __init__(
        self,
        led: LedGroups,
        coordination: Coordination,
        copies: int,
        dial: Callable[[Member, Any], Any],
        slow_s: float,
    ) -> None:
        """`copies`: members that each group is to have; `dial(member, user)` opens a link to another coordinator;
        `slow_s`: see `slow_members`."""
        self._led = led
        self.leadership = GroupLeadership(led.name, coordination, led, copies, dial, self._count_with)
        self.followers = Followers(
            led.name,
            led.store,
            led.sequencer,
            led.committer.apart,
            led.committer.shipped,
            self.leadership.dial,
            self.leadership,
            led.moved,
            self.leadership.depose,
            self._give_way,
            slow_s,
        )
        self.leadership.followers = self.followers
        self.following = Following(led.store, led.committer, led.sequencer.groups, self.leadership.depose)
        led.copies = self

    async def _count_with(self, sets: Mapping[int, tuple[int, tuple[str, ...]]], alone: bool) -> None:
        await self._led.committer.run(partial(self._led.store.count_with, sets, alone))

    def opened(self, link: Link) -> Following:
        """Another coordinator has dialled: it leads groups that are to be followed here."""
        return self.following.opened(link)

    async def stop(self) -> None:
        """Follow and ship no more."""
        await self.leadership.stop()
        await self.followers.stop()

    def durable(self, group: int) -> dict[str, int]:
        """See `GroupCopies`."""
        led = self.followers.groups.get(group)
        return {} if led is None else {name: progress.durable for name, progress in led.members.items()}

    def status(self) -> dict[str, Any]:
        """For `lexicast status`: how many groups are followed here, and of each follower of groups that are led here
        how many it follows, in how many of them it counts, and the most offsets that it lacks in one; those that are
        too slow to count; the files of what was set aside."""
        followers: dict[str, dict[str, int]] = {}
        for led in self.followers.status().values():
            for name, found in led["followers"].items():
                of = followers.setdefault(name, {"groups": 0, "in_sync": 0, "lag": 0})
                of["groups"] += 1
                of["in_sync"] += name in led["in_sync"]
                of["lag"] = max(of["lag"], found["lag"])
        aside = self._led.store.all_set_aside()
        return {
            "following": self.following.count,
            "followers": followers,
            "slow": self.followers.slow.status(),
            "set_aside": aside,
        }

    # -- for `LedGroups`

    def may_lead(self, states: Mapping[int, GroupState]) -> list[int]:
        """Those of these groups that are not promised to somebody newer; they are not followed here any more."""
        wanted = {group: state.epoch for group, state in states.items() if self.leadership.holds(group, state)}
        return self.following.lead(wanted)

    def lead(self, states: Mapping[int, GroupState]) -> None:
        """These are led here from now on: their first blocks come with the next `ship`."""
        for group, state in states.items():
            self.followers.lead(group, state.epoch, state.in_sync)

    def close(self, groups: Iterable[int]) -> None:
        """These are not led here any more."""
        self.followers.close(groups)

    def ship(self, blocks: Sequence[Block]) -> list[StoredBlock]:
        """Blocks that were just sequenced go to followers; those that were encoded for that."""
        return self.followers.ship(blocks) if self.followers.groups else []

    def written(self, blocks: Iterable[Block]) -> None:
        """Blocks of groups that are followed here are durable."""
        self.following.written(blocks)

    def refused(self, led: Sequence[int], followed: Iterable[int]) -> None:
        """The disk had no room for blocks of these groups, which others may have."""
        self.following.refused(followed)
        self._renew(self.leadership.resigning(led))

    def resign(self, group: int) -> None:
        """There is no room here: the group is led by another member from now on, if there is one that keeps up."""
        changes = self.leadership.resigning([group])
        if any(new.leader != self.leadership.name for _, new in changes.values()):
            self._renew(changes)

    def _give_way(self, groups: Mapping[int, str]) -> None:
        """This coordinator stores too slowly: others lead these groups (group -> who)."""
        changes = self.leadership.handing_over(groups)
        if changes:
            log.warning("%s stores too slowly: others lead groups %s", self.leadership.name, sorted(changes))
        self._renew(changes)

    def _renew(self, changes: Mapping[int, tuple[GroupState, GroupState]]) -> None:
        if changes:
            # What others take over is sent to them by whoever sent it; what nobody else can take is refused.
            own = self.leadership.name
            self._led.close_groups([group for group, (_, new) in changes.items() if new.leader != own])
            self.leadership.renewals.begin(changes)
