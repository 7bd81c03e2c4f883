"""The matcher: links to all brokers, which tell it what subscribers want, and to all coordinators, which ask it.

It runs without Ray; `matcher.actor` wraps it. It keeps nothing: what it holds comes with the links, and goes with them.
It dials, so neither brokers nor coordinators have to follow who matches: a link that stands is one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Any, Final

from lexicast.cluster.content.event_rows import EventRows
from lexicast.cluster.errors import LexicastError, PeerError
from lexicast.cluster.membership import ClusterInfo, Member, Members
from lexicast.cluster.protocol.heartbeat import Beats
from lexicast.cluster.protocol.messages import ASK, NAMES, VERDICT, WANTS

from ..link.link import BEATS, Link
from ..link.sockets import dial_any
from ..loop.background import keep_going, stop_loops
from ..loop.turns import LoopWatch
from .brokers_conditions import BrokersConditions

log = logging.getLogger(__name__)

MATCHER_ROLE: Final = "matcher"
AGAIN_S: Final = 0.1
AGAIN_MOST_S: Final = 1.0
# What conditions ask of publications is told brokers so late at most: many begin at once.
NAMES_TOLD_S: Final = 0.01
# Of a broker whose link has ended so many conditions are forgotten at a time, and others are served in between.
FORGOTTEN_AT_ONCE: Final = 100
GIVES_WAY_S: Final = 0.001


class _BrokerLink:
    """The link to a broker: what its subscribers want."""

    def __init__(self, server: MatcherServer) -> None:
        self.ended = asyncio.Event()
        self._server = server

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """Conditions begin and end."""
        if message[0] != WANTS:
            raise PeerError(f"{link.name} sent a message of kind {message[0]}")
        _, version, number, changes = message
        self._server.conditions.told(link.name, version, number, changes)
        self._server.names_changed()

    def on_close(self, link: Link, error: Exception | None) -> None:
        """The broker is dialled again, and tells everything again."""
        self.ended.set()
        self._server.broker_gone(link)

    def on_writable(self, link: Link) -> None:
        """Little is said."""


class _CoordinatorLink:
    """The link to a coordinator: it asks."""

    def __init__(self, server: MatcherServer) -> None:
        self.ended = asyncio.Event()
        self._server = server

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """Who wants these publications?"""
        if message[0] != ASK:
            raise PeerError(f"{link.name} sent a message of kind {message[0]}")
        _, number, version, time_us, packed = message
        try:
            rows = EventRows(packed, time_us)
        except PeerError as error:  # made by a broker, not by who asks: nobody is vouched for
            log.warning("%s asks about %s", link.name, error)
            link.send((VERDICT, number, {}))
        else:
            self._server.ask(link, number, version, rows)

    def on_close(self, link: Link, error: Exception | None) -> None:
        """The coordinator is dialled again."""
        self.ended.set()

    def on_writable(self, link: Link) -> None:
        """A coordinator asks no more than it may have under way."""


class MatcherServer:
    """See the module's docstring."""

    def __init__(self, name: str, incarnation: int, cluster: ClusterInfo, beats: Beats = BEATS) -> None:
        self.name = name
        self.conditions = BrokersConditions()
        self._hello = (MATCHER_ROLE, name, incarnation)
        self._cluster = cluster
        self._beats = beats
        self._dialled: dict[str, tuple[Member, asyncio.Task[None]]] = {}
        self._brokers: dict[str, Link] = {}
        self._asks: list[tuple[Link, int, int, EventRows]] = []
        self._telling: asyncio.TimerHandle | None = None
        self._forgetting: asyncio.TimerHandle | None = None
        self._watch = LoopWatch()
        self._loops = [keep_going(self._watch.run(), "watching the event loop")]

    def follow(self, members: Members) -> None:
        """Who serves now: all brokers and coordinators are dialled, again and again while they serve."""
        wanted = {**members.brokers, **members.coordinators}
        for name in [n for n, (member, _) in self._dialled.items() if wanted.get(n) != member]:
            self._dialled.pop(name)[1].cancel()
        for name, member in wanted.items():
            if name not in self._dialled:
                kind = _BrokerLink if name in members.brokers else _CoordinatorLink
                self._dialled[name] = member, keep_going(self._keep_linked(member, kind), f"the link to {name}")

    async def _keep_linked(self, member: Member, kind: type[_BrokerLink] | type[_CoordinatorLink]) -> None:
        wait_s, link = AGAIN_S, None
        try:
            while True:
                user = kind(self)
                try:
                    link = await self._dial(member, user)
                    wait_s = AGAIN_S
                    if kind is _BrokerLink:
                        self._broker_came(link, member)
                    await user.ended.wait()
                except (OSError, LexicastError) as error:
                    log.debug("link to %s: %s", member.name, error)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, AGAIN_MOST_S)
        finally:
            if link is not None and not link.closed:
                link.close()

    async def _dial(self, member: Member, user: _BrokerLink | _CoordinatorLink) -> Link:
        cluster = self._cluster
        link = await dial_any(
            member.addresses, cluster.key, cluster.cluster_id, self._hello, lambda link: user, self._beats
        )
        link.name = member.name
        return link

    # -- brokers

    def _broker_came(self, link: Link, member: Member) -> None:
        if link.closed:
            return
        self._brokers[member.name] = link
        self.conditions.begin(member.name, member.incarnation)
        self._forget_soon()
        # It tells its conditions when it has heard this.
        link.send((NAMES, self.conditions.all_names()))

    def broker_gone(self, link: Link) -> None:
        """A broker's link has ended."""
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
        for link in self._brokers.values():
            link.send((NAMES, names))

    # -- coordinators

    def ask(self, link: Link, number: int, version: int, rows: EventRows) -> None:
        """A coordinator asks; what comes in one turn is answered together."""
        if not self._asks:
            asyncio.get_running_loop().call_soon(self._answer)
        self._asks.append((link, number, version, rows))

    def _answer(self) -> None:
        asks, self._asks = self._asks, []
        answers = self.conditions.wanted([(version, rows) for _, _, version, rows in asks])
        asking: dict[Link, None] = {}
        for (link, number, _, _), vouched in zip(asks, answers, strict=True):
            if not link.closed:
                link.gather((VERDICT, number, vouched))
                asking[link] = None
        for link in asking:
            link.flush()

    # -- life

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        links: Mapping[str, Any] = self._dialled
        return {
            "name": self.name,
            "pid": os.getpid(),
            "members": len(links),
            "loop_ms": self._watch.longest_ms(),
            **self.conditions.status(),
        }

    async def stop(self) -> None:
        """End all links."""
        for timer in (self._telling, self._forgetting):
            if timer is not None:
                timer.cancel()
        tasks = [task for _, task in self._dialled.values()]
        await stop_loops(*self._loops, *tasks)
        self.conditions.table.close()
