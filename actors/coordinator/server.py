"""The coordinator: the shell around the groups that it leads (`led_groups`), the sessions whose home it is, its links.

What brokers publish goes to the groups, what they ask to `requests`; beside that it tells them how far they have been
served, keeps house, and says how it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, cast

from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import LexicastError, PeerError
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import ClusterInfo, Coordination, Member
from lexicast.cluster.protocol.heartbeat import Beats
from lexicast.cluster.protocol.messages import COLUMNS, PUBLISH, REQUEST
from lexicast.storage.store import Store

from ..link.link import BEATS, Link, LinkUser
from ..loop.background import keep_going, stop_loops
from ..loop.turns import LoopWatch
from ..status.installed import installed_version
from ..status.meters import Meter, Since, Trend
from .interest import Interest
from .led_groups import Columns, LedGroups
from .past import Past
from .replication.copies import Copies
from .replication.reporting import LeadingAlone, LeadingWithOthers, Reporting
from .requests import CoordinatorRequests
from .session_home import SessionHome
from .shares.led_shares import USUAL_RULES, LedShares, ShareRules

log = logging.getLogger(__name__)

HEADS_PERIOD_S = 1.0
# A broker that has been behind for less only came back, or had a burst.
BEHIND_TOLD_S = 60.0
SWEEP_PERIOD_S = 0.1


class BelievedClock:
    """The clock by which sessions end: one that has jumped is not believed at once (`cluster.clock.TrustedTime`)."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def time_us(self) -> int:
        """See `Store.discard_us`."""
        return self._store.discard_us()

    def monotonic(self) -> float:
        """See `Clock`."""
        return self._clock.monotonic()


class Beating:
    """The user of a link on which nothing is said but that both sides live; one of `links` until it ends."""

    def __init__(self, links: set[Link]) -> None:
        self._links = links

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """Nothing is to come."""
        raise PeerError(f"{link.name} sent a message of kind {message[0]}")

    def on_close(self, link: Link, error: Exception | None) -> None:
        """Who has dialled dials again."""
        self._links.discard(link)

    def on_writable(self, link: Link) -> None:
        """Nothing waits."""


class CoordinatorServer:
    """Leads groups over an open store. `start` opens the epochs; then `opened` serves links.

    Where groups have copies, `share` comes before `start`.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        clock: Clock,
        min_copies: int = 1,
        beats: Beats = BEATS,
        shares: ShareRules = USUAL_RULES,
    ) -> None:
        """`min_copies`: see `cluster.sequencer`. `beats`: of the links over which it is seen whether coordinators live,
        with copies or without. `shares`: of shared subscriptions."""
        self.name = name
        self.led = led = LedGroups(name, store, clock, self._cut_links, min_copies)
        self.store, self.routing, self.sequencer = store, led.routing, led.sequencer
        self.sessions = SessionHome(store.tables, led.append_control, led.routing.peers, BelievedClock(store, clock))
        led.when_opened.append(self.sessions.opened)
        led.when_closed.append(self.sessions.closed)
        self.past = Past(led)
        self._interest = Interest(led, self.sessions, self.past)
        self.shares = LedShares(led, self.sessions, self.past, shares)
        self.requests = CoordinatorRequests(led, self.sessions, self._interest, self.past, self.shares, self.status)
        self._publish = led.publish
        # What brokers have told of the entries of their next PUBLISH, by its tag.
        self._columns: dict[Link, tuple[int, Columns]] = {}
        self._watch = LoopWatch()
        self._meter, self._used, self._behind = Meter(), Trend(), Since()
        self._copies: Copies | None = None
        self._reporting: Reporting | None = None
        self._beats = beats
        self._links: set[Link] = set()
        self._tasks: list[asyncio.Task[None]] = []

    # -- life

    def share(
        self,
        coordination: Coordination,
        copies: int,
        dial: Callable[[Member, LinkUser], Awaitable[Link]],
        slow_s: float,
    ) -> None:
        """Have the groups copied to other coordinators, and follow theirs; see `replication.copies.Copies`."""
        self._copies = Copies(self.led, coordination, copies, dial, slow_s)

    async def start(self, states: Mapping[int, GroupState]) -> None:
        """Lead every group of `states`; returns when all epoch records are committed. Raises StoreError."""
        await (self.led.open(states) if self._copies is None else self._copies.leadership.start(states))
        self._tasks = [
            keep_going(self._tell_heads(), "telling brokers how far they have been served"),
            keep_going(self._sweep(), "the coordinator's housekeeping"),
            keep_going(self.shares.run(), "saving where shared subscriptions stand"),
            keep_going(self._watch.run(), "watching the event loop"),
        ]

    def report(self, coordination: Coordination, info: ClusterInfo, member: Member) -> None:
        """Report to a coordination server that has lost what it knew, of this coordinator, which is reached as `member`
        says, and of its groups. Call it once it serves."""
        shared = self._copies
        leading = LeadingAlone(self.led) if shared is None else LeadingWithOthers(shared.leadership)
        self._reporting = Reporting(coordination, info, member, self.store, leading)

    async def stop(self) -> None:
        """Commit what is under way, close the links and the store."""
        if self._reporting is not None:
            await self._reporting.stop()
        if self._copies is not None:
            await self._copies.stop()
        await self._interest.close()
        await stop_loops(*self._tasks)
        await self.shares.close()
        await self.requests.traces.close()
        await self.sessions.close()
        await self.led.close()
        for link in list(self._links):
            link.close()
        self.routing.choosers.matchers.close()
        self.store.close()

    def _cut_links(self) -> None:
        for link in list(self._links):
            link.abort()

    def opened(self, link: Link) -> LinkUser | None:
        """A link was opened: by a broker, by another coordinator whose groups are followed here, or by the coordination
        server, which wants to hear that this coordinator lives."""
        if self.led.failure is not None:
            return None
        user: LinkUser | None = None
        if link.role == "broker":
            user = self
        elif link.role == "matcher":
            return self.routing.choosers.matchers.opened(link)
        elif link.role == "coordinator" and self._copies is not None:
            link.keep_time(self._beats)
            user = self._copies.opened(link)
        elif link.role == "coordination":
            link.keep_time(self._beats)
            user = Beating(self._links)
        if user is not None:
            self._links.add(link)
        return user

    # -- LinkUser

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """One message of a broker."""
        if message[0] == PUBLISH:
            if self._columns and (told := self._columns.pop(link, None)) is not None and told[0] == message[1]:
                self._publish(link, message[1], message[2], told[1])
            else:
                self._publish(link, message[1], message[2])
        elif message[0] == REQUEST:
            self.requests.handle(link, message[1], message[2], message[3])
        elif message[0] == COLUMNS:
            self._columns[link] = message[1], message[2]
        else:
            raise PeerError(f"a broker sent a message of kind {message[0]}")

    def on_close(self, link: Link, error: Exception | None) -> None:
        """A broker's link ended: its subscriptions stay until it comes back or another incarnation does."""
        self._links.discard(link)
        self._columns.pop(link, None)
        self.shares.unlinked(link)
        peer = self.routing.peers.get(link.name)
        if peer is not None and peer.link is link:
            self.sessions.owners.unlinked(link.name)

    def on_writable(self, link: Link) -> None:
        """A full link has drained."""
        peer = self.routing.peers.get(link.name)
        if peer is not None and peer.link is link and peer.behind:
            self.past.bring_up(peer)

    # -- periodic

    async def _tell_heads(self) -> None:
        while True:
            await asyncio.sleep(HEADS_PERIOD_S)
            self.routing.flush()
            for peer in list(self.routing.peers.values()):
                self.led.tell_heads(peer)
            self._measure()

    def _measure(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._meter.sample(now_s, {"published_records": self.led.published_records})
        peers = self.routing.peers.values()
        self._behind.look(now_s, {(peer.name, group) for peer in peers for group in peer.behind})
        if self._used.due(now_s) and self.led.failure is None:
            self._used.sample(now_s, self.store.stats().used_bytes)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_PERIOD_S)
            self.led.tick()
            with suppress(LexicastError):
                self.sessions.sweep(self.led.served)

    # -- status

    def committed(self) -> dict[int, int]:
        """Of each group that it serves the first offset that its store does not know to be committed."""
        groups = self.sequencer.groups
        return {number: groups[number].applied for number in self.led.served}

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        now_s, led, store = asyncio.get_running_loop().time(), self.led, self.store.stats()
        brokers = self.routing.status()
        for key in self._behind.longer_than(BEHIND_TOLD_S, now_s):
            name, _ = cast(tuple[str, int], key)
            if name in brokers:
                brokers[name]["groups_long_behind"] = brokers[name].get("groups_long_behind", 0) + 1
        return {
            "name": self.name,
            "version": installed_version(),
            "pid": os.getpid(),
            "groups": len(self.sequencer.groups),
            "published_records": led.published_records,
            "refused": dict(led.refused),
            "rates": self._meter.rates(),
            "full_in_s": self._used.seconds_left(store.free_bytes),
            "uncommitted_bytes": led.uncommitted_bytes,
            "commits": led.committer.durations.status(),
            "damage": self.store.damage.status(),
            "failure": str(led.failure) if led.failure else None,
            "loop_ms": self._watch.longest_ms(),
            "copies": None if self._copies is None else self._copies.status(),
            "brokers": brokers,
            "shares": self.shares.status(),
            "matching": self.routing.choosers.status(),
            "store": store,
        }
