"""Members that store too slowly: they count no more in the groups that are led here, and slow disks here lead no more.

What is published is committed when every member that counts has it on disk, so the slowest of them decides how long
everybody waits. Looked at is how long a member has owed what it was sent (`replication.Lateness`). Beyond `slow_s` a
follower is dropped from the in-sync sets, all of them, since its disk is one; it is shipped to as before, and counts
again when it has everything, not before a while has passed, which doubles while it is found slow again. Where this
coordinator is the slow one, other members lead all its groups, without it.

Nobody is dropped where `min_copies` would not be left. Time here is that of a process that runs: one that was stopped
finds nobody late by that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from lexicast.cluster.replication import Phase
from lexicast.cluster.sequencer import Sequencer

from .follower_link import Led

log = logging.getLogger(__name__)

# How long who was slow does not count: first, and at most.
APART_FIRST_S: Final = 10.0
APART_MOST_S: Final = 60.0
# More than this between two looks is no time in which this process has looked at its sockets.
LOOK_MOST_S: Final = 0.2


class _Apart(NamedTuple):
    """Until when a member does not count, and for how long that is. `heard`: it was, so that it is its disk."""

    until_s: float
    wait_s: float
    heard: bool


class SlowMembers:
    """See the module's docstring."""

    def __init__(
        self,
        name: str,
        sequencer: Sequencer,
        slow_s: float,
        drop: Callable[[str, Sequence[int]], None],
        give_way: Callable[[Mapping[int, str]], None],
    ) -> None:
        """`drop(member, groups)`: it shall not count any more in these; `give_way(groups)`: others shall lead these
        (group -> who), and this coordinator shall not count in them."""
        self._name = name
        self._sequencer = sequencer
        self._slow_s = slow_s
        self._drop = drop
        self._give_way = give_way
        self._apart: dict[str, _Apart] = {}
        # The time of this process, and when it was looked at last by the loop's clock.
        self._now_s = 0.0
        self._looked_s: float | None = None

    def is_slow(self, name: str) -> bool:
        """Whether a member was found slow and is not to count yet."""
        found = self._apart.get(name)
        return found is not None and self._now_s < found.until_s

    def look(self, groups: Mapping[int, Led], loop_s: float, unheard: Collection[str] = ()) -> None:
        """Look at everybody who counts, or is about to, in groups that are led here; `loop_s`: the loop's clock;
        `unheard`: who says nothing at all, so that nothing is known of its disk."""
        if self._looked_s is not None:
            self._now_s += min(loop_s - self._looked_s, LOOK_MOST_S)
        self._looked_s = loop_s
        own_s, late = 0.0, dict[str, float]()
        successors: dict[int, str] = {}
        for group, led in groups.items():
            state = self._sequencer.groups.get(group)
            if state is None or not led.members:
                continue
            sent = state.unapplied[-1].last if state.unapplied else -1
            own_s = max(own_s, led.own_lateness.look(sent, state.durable.get(self._name, 0), self._now_s))
            followers = {name: self._lateness_s(led, name) for name in {*led.in_sync, *led.joining} - {self._name}}
            if (successor := self._successor(led, followers)) is not None:
                successors[group] = successor
            for name, late_s in followers.items():
                late[name] = max(late_s, late.get(name, 0.0))
        if own_s > self._slow_s:
            if successors:
                self._give_way(successors)
            return  # who waits for this disk is told late what is committed, and is not to blame
        for name, late_s in late.items():
            if late_s > self._slow_s and not self.is_slow(name):
                self._set_apart(name, late_s, groups, name not in unheard)

    def _lateness_s(self, led: Led, name: str) -> float:
        progress = led.members.get(name)
        if progress is None:
            return 0.0
        return progress.late_s(self._now_s)

    def _successor(self, led: Led, followers: Mapping[str, float]) -> str | None:
        """The follower that is least late, where there is one that keeps up, and enough are left without this one."""
        able = [
            name
            for name in led.in_sync
            if name in followers and followers[name] <= self._slow_s / 2 and led.members[name].phase is Phase.LIVE
        ]
        if not able or len(led.in_sync) - 1 < self._sequencer.min_copies:
            return None
        return min(able, key=lambda name: followers[name])

    def _set_apart(self, name: str, late_s: float, groups: Mapping[int, Led], heard: bool) -> None:
        least = self._sequencer.min_copies
        dropped = [g for g, led in groups.items() if name in led.in_sync and len(led.in_sync) > least]
        dropped += [g for g, led in groups.items() if name in led.joining and name not in led.in_sync]
        if not dropped:
            return
        before = self._apart.get(name)
        again = before is not None and self._now_s < before.until_s + before.wait_s
        wait_s = min(2 * before.wait_s, APART_MOST_S) if before is not None and again else APART_FIRST_S
        self._apart[name] = _Apart(self._now_s + wait_s, wait_s, heard)
        text = "%s has owed for %.1f s what it was sent: it does not count for %.0f s (%d groups)"
        log.warning(text, name, late_s, wait_s, len(dropped))
        self._drop(name, dropped)

    def status(self) -> list[str]:
        """The members that are not to count yet because their disks are slow."""
        return sorted(name for name, found in self._apart.items() if found.heard and self.is_slow(name))
