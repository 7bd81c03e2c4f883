"""The link to one other coordinator, for all groups that it follows: asked where they stand, brought up, shipped to.

See `followers`; what is said is in `cluster.replication`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Protocol

from lexicast.cluster.errors import LexicastError, PeerError, UnavailableError
from lexicast.cluster.protocol.messages import APPEND, APPENDED, REFUSED
from lexicast.cluster.replication import FollowerProgress, Lateness, LogEnd, Phase, common_last, sequenced_end
from lexicast.cluster.sequencer import Sequencer
from lexicast.storage.store import Store

from ...link.link import Link
from ...loop.background import keep_going
from ...loop.turns import Turns
from .following import log_end
from .shipment import Shipment

log = logging.getLogger(__name__)

# A link on which more waits is full: its groups are served from the log from then on.
BACKLOG_BYTES_MAX: Final = 32 * 1024 * 1024
# What a group that is behind gets at a time, and what may wait on the link meanwhile.
PAGE_BYTES: Final = 256 * 1024
SHIPPING_BYTES_MAX: Final = 4 * 1024 * 1024
# Groups that join at a time at one follower: each is read from the log, beside everything else.
JOINING_MAX: Final = 8
DIAL_FIRST_S: Final = 0.02
DIAL_MOST_S: Final = 1.0
# After what did not come about is tried again.
AGAIN_S: Final = 0.2


class Dial(Protocol):
    """Opens a link to a coordinator."""

    async def __call__(self, name: str, user: Any) -> Link:
        """Raises OSError, LexicastError."""
        ...


@dataclass(slots=True, eq=False)
class Led:
    """One group that is led here, towards its followers."""

    epoch: int
    in_sync: tuple[str, ...]
    members: dict[str, FollowerProgress] = field(default_factory=dict)
    joining: set[str] = field(default_factory=set)
    # Of this coordinator's own disk.
    own_lateness: Lateness = field(default_factory=Lateness)


class Shipping(Protocol):
    """Who leads the groups: what a link asks of `followers.Followers`."""

    store: Store
    sequencer: Sequencer
    groups: dict[int, Led]
    shipped: set[int]
    dial: Dial
    moved: Callable[[Iterable[int]], None]
    depose: Callable[[Sequence[int]], None]

    def appended(self, name: str, groups: Mapping[int, tuple[int, int]]) -> None:
        """A follower has made blocks durable."""

    def refused(self, name: str, groups: Mapping[int, int]) -> None:
        """A follower has not taken what was sent."""

    def lost(self, name: str, groups: Iterable[int] | None = None) -> None:
        """A follower cannot be reached, or does not take (`groups`: only in these)."""


class FollowerLink:
    """The link to one other coordinator, for all groups that it follows; a `LinkUser`."""

    def __init__(self, followers: Shipping, name: str) -> None:
        self.name = name
        self.wake = asyncio.Event()
        self._followers = followers
        self._link: Link | None = None
        self._ended = asyncio.Event()
        # What `flush` sends.
        self.shipment = Shipment()
        self.task = keep_going(self._keep_linked(), f"the link to {name}")

    # -- what is sent

    @property
    def linked(self) -> bool:
        """Whether the link stands."""
        return self._link is not None

    def silent_s(self) -> float:
        """How long the follower has said nothing."""
        return inf if self._link is None else self._link.silent_s()

    @property
    def full(self) -> bool:
        """Whether more waits on the link than may."""
        return self._link is None or self._link.write_buffer_bytes() > BACKLOG_BYTES_MAX

    def flush(self) -> None:
        """Send what was added, as one message."""
        items = self.shipment.take()
        if items and self._link is not None:
            self._link.send((APPEND, items))

    # -- LinkUser

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """One message of the follower."""
        if message[0] == APPENDED:
            self._followers.appended(self.name, message[1])
        elif message[0] == REFUSED:
            self._followers.refused(self.name, message[1])
        else:
            raise PeerError(f"a follower sent a message of kind {message[0]}")

    def on_close(self, link: Link, error: Exception | None) -> None:
        """The link ended: `_keep_linked` dials again. Who was silent is lost, and not only its link."""
        self._link = None
        self.shipment.take()
        self._ended.set()
        self.wake.set()
        if isinstance(error, UnavailableError):
            self._followers.lost(self.name)
        for led in self._followers.groups.values():
            progress = led.members.get(self.name)
            if progress is not None:
                progress.asked()

    def on_writable(self, link: Link) -> None:
        """There is room again."""
        self.wake.set()

    # -- its life

    async def _keep_linked(self) -> None:
        wait_s = DIAL_FIRST_S
        while True:
            self._ended.clear()
            try:
                link = await self._followers.dial(self.name, self)
            except (OSError, LexicastError) as error:
                log.debug("the link to %s: %s", self.name, error)
                self._followers.lost(self.name)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, DIAL_MOST_S)
                continue
            self._link = link
            try:
                while not self._ended.is_set():
                    await self._serve(link)
                    wait_s = DIAL_FIRST_S
            except LexicastError as error:
                log.debug("the link to %s: %s", self.name, error)
                link.abort()
            # A link that was cut is dialled again at once: nobody is lost by that.
            await asyncio.sleep(DIAL_FIRST_S)

    async def _serve(self, link: Link) -> None:
        """Ask where groups stand, bring up those that are behind, until there is nothing to do."""
        self.wake.clear()
        asked, _ = self._due()
        if asked:
            await self._ask(link, asked)
        behind = self._due()[1]
        turns, more = Turns(), False
        for group in behind:
            if link.write_buffer_bytes() > SHIPPING_BYTES_MAX:
                break
            more = await self._bring_up(link, group) or more
            await turns.give_way()
        if not more and not self._ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self.wake.wait()

    def _due(self) -> tuple[list[int], list[int]]:
        """The groups whose place is to be asked for, and those that are behind."""
        asked: list[int] = []
        behind: list[int] = []
        joining = 0
        for group, led in self._followers.groups.items():
            progress = led.members.get(self.name)
            if progress is None or progress.phase is Phase.LIVE:
                continue
            if self.name not in led.in_sync:
                joining += 1
                if joining > JOINING_MAX:
                    continue
            (asked if progress.phase is Phase.ASKED else behind).append(group)
        return asked, behind

    async def _ask(self, link: Link, groups: Sequence[int]) -> None:
        """Learn where the follower's logs stand, and say from where they go on."""
        followers = self._followers
        epochs = {group: followers.groups[group].epoch for group in groups}
        answer = await link.request("follow", epochs)
        places, gone = {}, []
        for group, (promised, starts, last, applied_below) in answer.items():
            led = self._still(group, epochs)
            if led is None:
                continue
            if promised > led.epoch:
                gone.append(group)
                continue
            theirs = LogEnd(tuple(tuple(start) for start in starts), last, applied_below)
            places[group] = common_last(self._sequenced_end(group), theirs)
        if gone:
            followers.depose(gone)
        cannot = await link.request("begin", {group: (epochs[group], place) for group, place in places.items()})
        for group, place in places.items():
            led = self._still(group, epochs)
            if led is None:
                continue
            if group in cannot:
                await self._set_aside(link, group, led, place)
                continue
            if self.name not in led.in_sync:
                await self._install(link, group)
                led = self._still(group, epochs)
            if led is not None:
                led.members[self.name].begun(place)
                if group in followers.sequencer.groups and followers.sequencer.durable(self.name, group, place):
                    followers.moved([group])  # it had more than it had been heard to say

    async def _set_aside(self, link: Link, group: int, led: Led, place: int) -> None:
        """The follower's tables have followed from what is not in this log: a store that was put back, or whose copy
        alone was lost to the cluster for a while. It keeps that in a file, and joins anew.

        Not before this epoch has begun durably, and never a member that counts, which has nothing that this one lacks:
        such a one is dropped first. What stays undone is asked for again.
        """
        state = self._followers.sequencer.groups.get(group)
        if state is None or not state.settled:
            return
        if self.name in led.in_sync or self.name in led.joining:
            self._followers.lost(self.name, [group])
            return
        what = "group %d: the store of %s has gone another way: what it has behind offset %d is set aside there"
        log.warning(what, group, self.name, place)
        while await link.request("set_aside", group, led.epoch, place):
            pass

    def _sequenced_end(self, group: int) -> LogEnd:
        durable, state = log_end(self._followers.store, group), self._followers.sequencer.groups.get(group)
        if state is None:
            return durable
        return sequenced_end(durable, state.epoch, state.opened, state.unapplied[-1].last if state.unapplied else -1)

    def _still(self, group: int, epochs: Mapping[int, int]) -> Led | None:
        """The group, while it is led here under the same epoch and this member is one of it."""
        led = self._followers.groups.get(group)
        return led if led is not None and led.epoch == epochs[group] and self.name in led.members else None

    async def _install(self, link: Link, group: int) -> None:
        """What the log does not tell any more."""
        place = None
        while True:
            page, place = self._followers.store.group_snapshot(group, place)
            await link.request("install", group, page)
            if place is None:
                return

    async def _bring_up(self, link: Link, group: int) -> bool:
        """Send the next page of a group that is behind; True when there is more to do."""
        followers = self._followers
        led, state = followers.groups.get(group), followers.sequencer.groups.get(group)
        progress = None if led is None else led.members.get(self.name)
        if led is None or state is None or progress is None or progress.phase is not Phase.BEHIND:
            return False
        page: list[tuple[int, bytes]] = []
        if progress.sent + 1 < state.applied:
            end = followers.store.applied_end(group)  # first: what is applied meanwhile is in the log then
            stored = followers.store.stored(group, progress.sent + 1, PAGE_BYTES)
            if progress.sent < end[1] and not (stored and stored[0][0] <= end[1]):
                return await self._say_end(link, group, led, progress, end)
            page = [(last, value) for last, value in stored if last < state.applied]
        if not page:
            # Everything that it lacks is in memory; of that the disk here may not have all yet.
            followers.shipped.add(group)
            missing = [followers.store.sealed(block) for block in state.unapplied if block.last > progress.sent]
            page = [(stored.block.last, stored.value) for stored in missing]
            progress.phase = Phase.LIVE
        for last, value in page:
            self.shipment.add(group, led.epoch, progress, last, value, state.settled)
        self.shipment.tell(group, led.epoch, progress, state.settled)
        self.flush()
        return progress.phase is Phase.BEHIND

    async def _say_end(
        self, link: Link, group: int, led: Led, progress: FollowerProgress, end: tuple[int, int, int]
    ) -> bool:
        """Nothing is left of the log's end (epoch, last offset, time): the follower is told where that is."""
        followers, sent = self._followers, progress.sent
        await link.request("end", group, led.epoch, sent, end)
        if followers.groups.get(group) is not led or led.members.get(self.name) is not progress:
            return False
        if progress.phase is Phase.BEHIND and progress.sent == sent:
            progress.ended(end[1])
            if followers.sequencer.durable(self.name, group, end[1]):
                followers.moved([group])
        return True

    def close(self) -> None:
        """End the link."""
        if self._link is not None:
            self._link.close()
