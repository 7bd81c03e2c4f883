"""The followers of the groups that are led here: what each has, what is shipped to it, who counts.

See `cluster.replication`. There is one link to each other coordinator, for all groups that it follows. A group that is
*live* there gets each block in the turn in which it is sequenced, beside this coordinator's own disk; one that is
*behind* is read from the log, a page at a time, until nothing lies between the log and what is live. Nothing is queued:
a link that is full makes its groups behind.

Who counts is decided by the coordination server (`GroupChanges`). A member that is lost is dropped from the in-sync
set; until that is done, what it lacks is not committed. One that joins is waited for before it is asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from mypy_extensions import mypyc_attr

from lexicast.cluster.blocks import Block
from lexicast.cluster.replication import FollowerProgress, Phase
from lexicast.cluster.sequencer import Sequencer
from lexicast.storage.log.stored_block import StoredBlock, shipped_checksum
from lexicast.storage.store import Store

from ...loop.background import keep_going, stop_loops
from .follower_link import Dial, FollowerLink, Led
from .slow_members import SlowMembers

log = logging.getLogger(__name__)

# How often followers are told what is committed where no block tells them.
TELL_S: Final = 0.05


class GroupChanges(Protocol):
    """Who changes in-sync sets: by compare-and-set at the coordination server."""

    def drop(self, member: str, groups: Sequence[int]) -> None:
        """`member` is lost: it shall not count any more in these groups."""

    def join(self, member: str, groups: Sequence[int]) -> None:
        """`member` has everything that is committed in these groups: it shall count."""


@mypyc_attr(allow_interpreted_subclasses=True)  # by tests
class Followers:
    """All followers of all groups that are led here."""

    def __init__(
        self,
        name: str,
        store: Store,
        sequencer: Sequencer,
        apart: set[int],
        shipped: set[int],
        dial: Dial,
        changes: GroupChanges,
        moved: Callable[[Iterable[int]], None],
        depose: Callable[[Sequence[int]], None],
        give_way: Callable[[Mapping[int, str]], None],
        slow_s: float,
    ) -> None:
        """`apart`, `shipped`: see `Committer`; `moved(groups)`: what is committed may have moved; `depose(groups)`:
        somebody else leads them; `give_way`, `slow_s`: see `slow_members`."""
        self.name = name
        self.groups: dict[int, Led] = {}
        self.links: dict[str, FollowerLink] = {}
        self.store, self.sequencer, self.dial = store, sequencer, dial
        self.changes, self.moved, self.depose = changes, moved, depose
        self._slow_s = slow_s
        self.slow = SlowMembers(name, sequencer, slow_s, changes.drop, give_way)
        self._apart = apart
        self.shipped = shipped
        self._task = keep_going(self._tell(), "telling followers what is committed")

    # -- who there is

    def coordinators(self, names: Iterable[str]) -> None:
        """The other coordinators that there are now."""
        for name in names:
            if name != self.name and name not in self.links:
                self.links[name] = FollowerLink(self, name)

    def gone(self, names: Collection[str]) -> None:
        """Only these coordinators are left, and those that still count somewhere."""
        counting = {name for led in self.groups.values() for name in led.members}
        for name in [name for name in self.links if name not in names and name not in counting]:
            link = self.links.pop(name)
            link.task.cancel()
            link.close()

    def lead(self, group: int, epoch: int, in_sync: Sequence[str]) -> None:
        """`group` is led here from now on; its epoch's first block comes with the next `ship`."""
        others = [name for name in in_sync if name != self.name]
        self.coordinators(others)
        led = self.groups[group] = Led(epoch, tuple(in_sync), {name: FollowerProgress() for name in others})
        self._set_apart(group, led)
        self._wake(others)

    def close(self, groups: Iterable[int]) -> None:
        """These are not led here any more."""
        for group in groups:
            self.groups.pop(group, None)
            self._apart.discard(group)
            self.shipped.discard(group)

    def want(self, group: int, names: Iterable[str]) -> None:
        """These coordinators are to follow the group; whoever neither counts nor is among them is served no more."""
        led = self.groups.get(group)
        if led is None:
            return
        wanted = {*names, *led.in_sync} - {self.name}
        self.coordinators(wanted)
        for name in [name for name in led.members if name not in wanted and name not in led.joining]:
            del led.members[name]
        fresh = [name for name in wanted if name not in led.members]
        for name in fresh:
            led.members[name] = FollowerProgress()
        self._wake(fresh)

    def counts(self, group: int, in_sync: Sequence[str]) -> None:
        """The coordination server has this in-sync set for a group that is led here."""
        led = self.groups.get(group)
        if led is None:
            return
        led.in_sync = tuple(in_sync)
        self.give_up(group)
        for name in led.in_sync:
            if name in led.members and not self.links[name].linked:
                self.changes.drop(name, [group])

    def is_away(self, led: Led, name: str) -> bool:
        """Whether a member of a group is not to count: it is not here, has not said where it stands, or is slow."""
        found = led.members.get(name)
        return found is None or found.phase is Phase.ASKED or self.slow.is_slow(name)

    def give_up(self, group: int) -> None:
        """It is known that nobody is in the group's in-sync set but who is counted: who was lost while it joined is
        not waited for any more."""
        led = self.groups.get(group)
        if led is not None:
            led.joining = {
                name
                for name in led.joining.difference(led.in_sync)
                if name in led.members and not self.is_away(led, name)
            }
            self._count(group, led)

    def ask_again(self, group: int) -> None:
        """The coordination server has not done what it was asked for in this group."""
        led = self.groups.get(group)
        if led is None:
            return
        for name in led.joining:
            self.changes.join(name, [group])
        for name in led.in_sync:
            if name in led.members and self.is_away(led, name):
                self.changes.drop(name, [group])

    def _count(self, group: int, led: Led) -> None:
        joining = {name: led.members[name].durable for name in led.joining if name in led.members}
        self._set_apart(group, led)
        if self.sequencer.count(group, led.in_sync, joining):
            self.moved([group])

    def _set_apart(self, group: int, led: Led) -> None:
        """Whether others have to hold what is committed in this group."""
        if len(led.in_sync) > 1 or led.joining:
            self._apart.add(group)
        else:
            self._apart.discard(group)

    def _wake(self, names: Iterable[str]) -> None:
        for name in names:
            self.links[name].wake.set()

    # -- blocks

    def ship(self, blocks: Sequence[Block]) -> list[StoredBlock]:
        """Send blocks that were just sequenced to whoever is live in their groups; those blocks, as they are stored."""
        stored: list[StoredBlock] = []
        full = {name for name, link in self.links.items() if link.full}
        for block in blocks:
            led = self.groups.get(block.group)
            if led is None:
                continue
            sealed: StoredBlock | None = None
            checksum: int | None = None
            for name, progress in led.members.items():
                if progress.phase is not Phase.LIVE:
                    continue
                if sealed is None:
                    self.shipped.add(block.group)
                    sealed = self.store.sealed(block)
                    stored.append(sealed)
                    checksum = shipped_checksum(sealed)
                link = self.links[name]
                if name in full:
                    progress.phase = Phase.BEHIND
                    link.wake.set()
                    continue
                committed = self.sequencer.groups[block.group].settled
                link.shipment.add(block.group, led.epoch, progress, block.last, sealed.value, committed, checksum)
        for link in self.links.values():
            link.flush()
        return stored

    async def _tell(self) -> None:
        """Followers' tables follow what is committed, also where no block tells them."""
        while True:
            await asyncio.sleep(TELL_S)
            # Who has caught up and does not count: nothing may be appended that would show it.
            ready: dict[str, list[int]] = {}
            for group, led in self.groups.items():
                state = self.sequencer.groups.get(group)
                if state is None:
                    continue
                for name, progress in led.members.items():
                    if progress.phase is Phase.LIVE and progress.told < state.settled:
                        self.links[name].shipment.tell(group, led.epoch, progress, state.settled)
                    if self._is_ready(led, name, progress, state.committed):
                        ready.setdefault(name, []).append(group)
            for link in self.links.values():
                link.flush()
            for name, groups in ready.items():
                self.ready(name, groups)
            unheard = {name for name, link in self.links.items() if link.silent_s() > self._slow_s / 2}
            self.slow.look(self.groups, asyncio.get_running_loop().time(), unheard)

    def _is_ready(self, led: Led, name: str, progress: FollowerProgress, committed: int) -> bool:
        """Whether who does not count yet may be waited for: it has all that is committed, in time."""
        counted = name in led.in_sync or name in led.joining
        return not counted and progress.caught_up(committed) and not self.slow.is_slow(name)

    def appended(self, name: str, groups: Mapping[int, tuple[int, int]]) -> None:
        """A follower has made blocks durable."""
        touched, ready = [], []
        for group, (epoch, next_offset) in groups.items():
            led, state = self.groups.get(group), self.sequencer.groups.get(group)
            progress = None if led is None else led.members.get(name)
            if led is None or state is None or progress is None or led.epoch != epoch or not progress.has(next_offset):
                continue
            if self.sequencer.durable(name, group, next_offset - 1):
                touched.append(group)
            if self._is_ready(led, name, progress, state.committed):
                ready.append(group)
        if touched:
            self.moved(touched)
        if ready:
            self.ready(name, ready)

    def ready(self, name: str, groups: Sequence[int]) -> None:
        """Who has caught up is waited for from now on, and then asked for."""
        for group in groups:
            led = self.groups[group]
            led.joining.add(name)
            self._count(group, led)
        self.changes.join(name, groups)

    def refused(self, name: str, groups: Mapping[int, int]) -> None:
        """A follower has not taken what was sent: another leads there, or it has to be asked again where it stands."""
        gone = []
        for group, promised in groups.items():
            led = self.groups.get(group)
            progress = None if led is None else led.members.get(name)
            if led is None or progress is None:
                continue
            if promised > led.epoch:
                gone.append(group)
            else:
                progress.asked()
        if gone:
            self.depose(gone)
        self.lost(name, [group for group in groups if group not in gone])
        self._wake([name])

    def lost(self, name: str, groups: Iterable[int] | None = None) -> None:
        """A follower cannot be reached, or does not take (`groups`: only in these)."""
        dropped = []
        for group, led in self.groups.items():
            if name not in led.members or (groups is not None and group not in groups):
                continue
            # Who is to join too: whether the coordination server has let it is not known here yet.
            if name in led.in_sync or name in led.joining:
                dropped.append(group)
        if dropped:
            self.changes.drop(name, dropped)

    async def stop(self) -> None:
        """End the links."""
        await stop_loops(self._task, *[link.task for link in self.links.values()])
        for link in self.links.values():
            link.close()

    # -- for `lexicast status`

    def status(self) -> dict[int, dict[str, Any]]:
        """Of each group that is led here: epoch, in-sync set, and of each follower how it is served and how many
        offsets it lacks."""
        found = {}
        for group, led in self.groups.items():
            state = self.sequencer.groups.get(group)
            if state is not None:
                followers = {
                    name: {"phase": progress.phase.value, "lag": max(0, state.next - progress.durable)}
                    for name, progress in led.members.items()
                }
                found[group] = {"epoch": led.epoch, "in_sync": list(led.in_sync), "followers": followers}
        return found
