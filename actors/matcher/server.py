"""The matcher: links to all brokers, which tell it what subscribers want, and to all coordinators, which ask it.

It runs without Ray; `matcher.actor` wraps it. It keeps nothing: what it holds comes with the links, and goes with them.

Where there are many matchers (`content.overlay_beyond`) they form an overlay (`overlay`): each is linked to some
others, and to those brokers and coordinators whose entry it is. All others reach it over other matchers (`routed`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from lexicast.cluster.content.event_rows import EventRows
from lexicast.cluster.errors import PeerError
from lexicast.cluster.membership import ClusterInfo, Members
from lexicast.cluster.protocol.heartbeat import Beats
from lexicast.cluster.protocol.messages import CELLS, ENTRY, NAMES, VERDICT
from lexicast.cluster.skipcloud.identifiers import CloudShape

from ..link.circuit_link import TICK_S, TellingLink
from ..link.link import BEATS, Link, LinkUser
from ..link.sockets import dial_any
from ..loop.background import keep_going, stop_loops
from ..loop.turns import LoopWatch
from .brokers_conditions import BrokersConditions
from .overlay.overlay import MatcherOverlay
from .overlay.roster import Roster
from .routed import RoutedToMatcher
from .served_links import BrokerLink, ServedLinks

log = logging.getLogger(__name__)

MATCHER_ROLE: Final = "matcher"
# What conditions ask of publications is told brokers so late at most: many begin at once.
NAMES_TOLD_S: Final = 0.01
# Of a broker whose link has ended so many conditions are forgotten at a time, and others are served in between.
FORGOTTEN_AT_ONCE: Final = 100
GIVES_WAY_S: Final = 0.001
# A cycle of the overlay; and what follows of its having ended waits so long, until others have heard of that.
CYCLE_S: Final = 1.0
LEAVES_S: Final = 1.0
# A matcher that gets the roster from others looks whether the coordination server knows it so often.
KNOWN_S: Final = 30.0


class OverlaySetting(NamedTuple):
    """`beyond`: so many matchers they form an overlay, of that shape; `addresses`: where others reach this one."""

    beyond: int
    shape: CloudShape = CloudShape(8, 2)
    addresses: tuple[str, ...] = ()


# Nobody reaches this one: it is linked to everybody.
NO_OVERLAY: Final = OverlaySetting(1 << 30)


# More than 25 methods: seven are callbacks of links, of circuits and of the overlay.
class MatcherServer:
    """See the module's docstring. `overlay`: None while each matcher is linked to everybody; `beyond` so many there is
    one."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        cluster: ClusterInfo,
        beats: Beats = BEATS,
        setting: OverlaySetting = NO_OVERLAY,
    ) -> None:
        self.name = name
        self.conditions = BrokersConditions()
        self.overlay: MatcherOverlay | None = None
        self._incarnation = incarnation
        self._cluster = cluster
        self._beats = beats
        self.beyond = setting.beyond
        self._setting = setting
        self._roster: Roster | None = None
        self._served = ServedLinks(self, self._dial)
        # Of each broker the link or circuit that tells what it wants.
        self._brokers: dict[str, TellingLink] = {}
        self._routed = RoutedToMatcher(self, self.asked)
        self._asks: list[tuple[Any, int, int, EventRows]] = []
        self._telling: asyncio.TimerHandle | None = None
        self._forgetting: asyncio.TimerHandle | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._polls = asyncio.Event()
        self._polls.set()
        self._watch = LoopWatch()
        self._loops = [
            keep_going(self._watch.run(), "watching the event loop"),
            keep_going(self._cycles(), "the overlay's cycles"),
            keep_going(self._circuits(), "watching circuits"),
        ]

    # -- who serves

    async def asks(self) -> None:
        """Return when the coordination server is to be asked for the members: at once, or after KNOWN_S where others
        tell this matcher."""
        try:
            async with asyncio.timeout(KNOWN_S):
                await self._polls.wait()
        except TimeoutError:
            pass

    def follow(self, members: Members) -> None:
        """Who serves now, as the coordination server says."""
        roster = Roster.of_members(members, self.beyond)
        if self._roster is not None and roster.version < self._roster.version:
            return  # it has come by the overlay meanwhile
        if roster.on and self.overlay is None:
            self._begin_overlay()
        if self.overlay is not None:
            self.overlay.join(members.matchers.values())
            self.overlay.tell(roster)
        self._take(roster)

    def _begin_overlay(self) -> None:
        setting = self._setting
        self.overlay = MatcherOverlay(
            setting.shape,
            self.name,
            self._incarnation,
            setting.addresses,
            self._dial,
            self._served.get,
            self._routed,
            self._take,
        )
        self._routed.relay = self.overlay.relay
        self._served.tell((ENTRY, True))

    def _take(self, roster: Roster) -> None:
        """Who serves now, whoever has said so."""
        if self._roster is None or roster.version >= self._roster.version:
            changed = self._roster is None or roster.cells != self._roster.cells
            self._roster = roster
            if roster.on and self._leaving is not None:
                self._leaving.cancel()
                self._leaving = None
            elif not roster.on and self.overlay is not None and self._leaving is None:
                self._leaving = asyncio.get_running_loop().call_later(LEAVES_S, self._end_overlay)
            self._link()
            if changed and self.overlay is not None:
                self._tell_cells(roster)

    def _end_overlay(self) -> None:
        self._leaving = None
        if self.overlay is not None:
            self._served.tell((ENTRY, False))
            self._routed.close()
            self.overlay.leave()
            self.overlay = self._routed.relay = None
            self._link()

    def _link(self) -> None:
        """Have the links that there should be: brokers and coordinators are dialled, again and again while they
        serve."""
        roster, overlay = self._roster, self.overlay
        if roster is None:
            return
        wanted = {**roster.brokers, **roster.coordinators}
        if overlay is not None and roster.on:
            if not overlay.settled:
                return
            wanted = {name: member for name, member in wanted.items() if overlay.is_entry_of(name)}
        self._ask_oneself(overlay is None or not roster.on or overlay.node.alone or overlay.is_entry_of(""))
        self._served.follow(wanted, roster.brokers)

    def _ask_oneself(self, does: bool) -> None:
        if does:
            self._polls.set()
        else:
            self._polls.clear()

    async def _dial(self, addresses: tuple[str, ...], user: LinkUser) -> Link:
        cluster, hello = self._cluster, (MATCHER_ROLE, self.name, self._incarnation)
        return await dial_any(addresses, cluster.key, cluster.cluster_id, hello, lambda link: user, self._beats)

    # -- the overlay

    def opened(self, link: Link) -> LinkUser | None:
        """Another matcher has dialled."""
        if link.role != MATCHER_ROLE or self.overlay is None:
            return None
        return self.overlay.neighbours.opened(link)

    async def _cycles(self) -> None:
        while True:
            await asyncio.sleep(CYCLE_S)
            if self.overlay is not None:
                self.overlay.tick()
                self._link()

    async def _circuits(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._routed.tick()

    def route(self, source: str, message: tuple[Any, ...]) -> None:
        """Something is to be routed for a broker or coordinator."""
        if self.overlay is not None:
            self.overlay.relay.routed(source, message)

    def came(self, link: Link, incarnation: int, is_broker: bool) -> None:
        """See `ServesLinks`."""
        if self.overlay is not None:
            link.send((ENTRY, True))
            if is_broker and self._roster is not None:
                link.send((CELLS, self._roster.version, self._roster.cells))
        if is_broker:
            self.broker_came(link, incarnation)

    def _tell_cells(self, roster: Roster) -> None:
        for name in roster.brokers:
            link = self._served.get(name)
            if link is not None:
                link.send((CELLS, roster.version, roster.cells))

    # -- brokers

    def circuit_user(self) -> BrokerLink:
        """See `BrokerCircuits`; so is the next one."""
        return BrokerLink(self)

    def may_begin(self, broker: str) -> bool:
        return self._served.get(broker) is None

    def broker_came(self, link: TellingLink, incarnation: int) -> None:
        """A broker's link or circuit has begun."""
        if link.closed:
            return
        if link is self._served.get(link.name):  # there is one or the other
            self._routed.end(link.name)
        self._brokers[link.name] = link
        self.conditions.begin(link.name, incarnation)
        self._forget_soon()
        # It tells its conditions when it has heard this.
        link.send((NAMES, self.conditions.all_names()))

    def told(self, link: TellingLink, version: int, number: int, changes: Sequence[tuple[bool, bytes, str]]) -> None:
        """A broker's conditions begin and end."""
        if self._brokers.get(link.name) is link:
            self.conditions.told(link.name, version, number, changes)
            self.names_changed()

    def broker_gone(self, link: TellingLink) -> None:
        """A broker's link or circuit has ended."""
        if self._brokers.get(link.name) is link:
            del self._brokers[link.name]
            self.conditions.forget(link.name)
            self._forget_soon()

    def _forget_soon(self) -> None:
        if self._forgetting is None:
            self._forgetting = asyncio.get_running_loop().call_later(GIVES_WAY_S, self._forget)

    def _forget(self) -> None:
        """Some of what brokers had told whose links have ended."""
        self._forgetting = None
        if self.conditions.step(FORGOTTEN_AT_ONCE):
            self._forget_soon()
        self.names_changed()

    def names_changed(self) -> None:
        """Brokers are told soon what conditions ask by now."""
        if self.conditions.changed and self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(NAMES_TOLD_S, self._tell_names)

    def _tell_names(self) -> None:
        self._telling = None
        changed, self.conditions.changed = self.conditions.changed, set()
        names = self.conditions.names(sorted(changed))
        for link in list(self._brokers.values()):
            link.send((NAMES, names))

    # -- coordinators

    def asked(self, link: Any, message: tuple[Any, ...]) -> None:
        """A coordinator asks, on its link or from afar."""
        _, number, version, time_us, packed = message
        try:
            rows = EventRows(packed, time_us)
        except PeerError as error:  # made by a broker, not by who asks: nobody is vouched for
            log.warning("%s asks about %s", link.name, error)
            link.send((VERDICT, number, {}))
        else:
            self.ask(link, number, version, rows)

    def ask(self, link: Any, number: int, version: int, rows: EventRows) -> None:
        """A coordinator asks; what comes in one turn is answered together."""
        if not self._asks:
            asyncio.get_running_loop().call_soon(self._answer)
        self._asks.append((link, number, version, rows))

    def _answer(self) -> None:
        asks, self._asks = self._asks, []
        answers = self.conditions.wanted([(version, rows) for _, _, version, rows in asks])
        asking: dict[Any, None] = {}
        for (link, number, _, _), vouched in zip(asks, answers, strict=True):
            if not link.closed:
                link.gather((VERDICT, number, vouched))
                asking[link] = None
        for link in asking:
            link.flush()

    # -- life

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {
            "name": self.name,
            "pid": os.getpid(),
            "members": len(self._served),
            "loop_ms": self._watch.longest_ms(),
            "overlay": None if self.overlay is None else {**self.overlay.status(), "circuits": len(self._routed)},
            **self.conditions.status(),
        }

    async def stop(self) -> None:
        """End all links."""
        for timer in (self._telling, self._forgetting, self._leaving):
            if timer is not None:
                timer.cancel()
        self._routed.close()
        if self.overlay is not None:
            self.overlay.leave()
        await stop_loops(*self._loops, *self._served.tasks())
        self.conditions.table.close()
