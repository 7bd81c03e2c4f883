"""Watching coordinators: a link to each, on which nothing is said but that both sides live.

A process that dies closes its link at once, and nobody answers when it is dialled again; one that is stopped, or whose
node or network is gone, is silent. Who is lost is watched on: a suspicion may prove wrong, and a process may come back.
Who has not come at all, although the cluster was created with it, is lost too after a while.

When nobody has come or gone for a while, leaderships are evened out, a few groups at a time. Brokers get their backups
(`backups`), a few at a time too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from lexicast.cluster.errors import LexicastError, PeerError, StoreError, UnavailableError
from lexicast.cluster.membership import COORDINATOR, Member
from lexicast.cluster.protocol.heartbeat import Beats

from ..link.link import Link
from ..link.sockets import dial_any
from ..loop.background import keep_going, stop_loops
from .server import CoordinationServer

log = logging.getLogger(__name__)

COORDINATION_ROLE: Final = "coordination"
MEMBERS_WAIT_S: Final = 60.0
# How soon one that is lost is dialled again.
AGAIN_S: Final = 0.5
# After so long groups wait no more for a coordinator that has left or not come. All of them start within seconds.
ABSENT_S: Final = 10.0
# Leaderships move when the same coordinators have been alive for BALANCE_AFTER_S, BALANCED_AT_ONCE groups a period.
BALANCE_PERIOD_S: Final = 1.0
BALANCE_AFTER_S: Final = 10.0
BALANCED_AT_ONCE: Final = 4
BACKUPS_PERIOD_S: Final = 2.0
CELLS_PERIOD_S: Final = 0.5


class _Ended:
    """The user of one link: how it ended."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.error: Exception | None = None

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """Nothing is to come."""
        raise PeerError(f"{link.name} sent a message of kind {message[0]}")

    def on_close(self, link: Link, error: Exception | None) -> None:
        """The link ended."""
        self.error = error
        self.ended.set()

    def on_writable(self, link: Link) -> None:
        """Nothing waits."""


class CoordinatorWatch:
    """Tells a `CoordinationServer` which coordinators are lost, and which are found again."""

    def __init__(
        self,
        server: CoordinationServer,
        beats: Beats,
        absent_s: float = ABSENT_S,
        balance_after_s: float = BALANCE_AFTER_S,
        balance_period_s: float = BALANCE_PERIOD_S,
    ) -> None:
        """`beats.silence_s`: silent for so long, a coordinator is lost; `absent_s`: one that has not come."""
        self._server = server
        self._beats = beats
        self._watched: dict[str, tuple[int, asyncio.Task[None]]] = {}
        self._absent_s = absent_s
        self._balance_after_s = balance_after_s
        self._balance_period_s = balance_period_s
        self._tasks = [
            keep_going(self._follow(), "following which coordinators there are"),
            keep_going(self._balance(), "evening out who leads how much"),
            keep_going(self._assign_backups(), "assigning backups"),
            keep_going(self._plan_cells(), "planning cells"),
        ]

    async def stop(self) -> None:
        """Watch no more."""
        await stop_loops(*self._tasks, *[task for _, task in self._watched.values()])

    async def _follow(self) -> None:
        version, wait_s, loop = -1, 0.0, asyncio.get_running_loop()
        missing: dict[str, float] = {}  # since when
        while True:
            members = await self._server.members(version, wait_s)
            version, now_s = members.version, loop.time()
            missing = {n: missing.get(n, now_s) for n in self._server.coordinators() if n not in members.coordinators}
            for name, since_s in missing.items():
                if now_s - since_s >= self._absent_s:
                    _decided(partial(self._server.absent, name))
            wait_s = min(MEMBERS_WAIT_S, self._absent_s) if missing else MEMBERS_WAIT_S
            for name, member in members.coordinators.items():
                known = self._watched.get(name)
                if known is None or known[0] != member.incarnation:
                    if known is not None:
                        known[1].cancel()
                    task = keep_going(self._watch(member), f"watching {name}")
                    self._watched[name] = (member.incarnation, task)
            for name in [name for name in self._watched if name not in members.coordinators]:
                self._watched.pop(name)[1].cancel()

    async def _balance(self) -> None:
        alive, since_s, loop = [""], 0.0, asyncio.get_running_loop()
        while True:
            # Somebody waits for a node to be drained.
            await asyncio.sleep(self._balance_period_s / (2 if self._server.is_leaving() else 1))
            if self._server.is_leaving():
                _decided(partial(self._server.balance, BALANCED_AT_ONCE))
            elif alive != (alive := self._server.alive()):
                since_s = loop.time()
            elif loop.time() - since_s >= self._balance_after_s:
                _decided(partial(self._server.balance, BALANCED_AT_ONCE))

    async def _assign_backups(self) -> None:
        while True:
            await asyncio.sleep(BACKUPS_PERIOD_S)
            _decided(self._server.assign_backups)

    async def _plan_cells(self) -> None:
        while True:
            await asyncio.sleep(CELLS_PERIOD_S)
            _decided(self._server.plan_cells)

    async def _watch(self, member: Member) -> None:
        hello, loop = (COORDINATION_ROLE, COORDINATION_ROLE, 1), asyncio.get_running_loop()
        while True:
            user, link = _Ended(), None
            try:
                info = await self._server.cluster()
                link = await dial_any(
                    member.addresses,
                    info.key,
                    info.cluster_id,
                    hello,
                    lambda link, user=user: user,  # type: ignore[misc]  # called within this turn of the loop
                    self._beats,
                    self._beats.silence_s,
                )
                _decided(partial(self._server.found, COORDINATOR, member.name, member.incarnation))
                began_s = loop.time()
                await user.ended.wait()
                if isinstance(user.error, UnavailableError):
                    raise user.error  # it was silent: that it can be dialled says nothing
                if loop.time() - began_s < AGAIN_S:
                    raise UnavailableError(f"it ends links at once: {user.error}")
            except (OSError, LexicastError) as error:
                log.debug("%s: %s", member.name, error)
                _decided(partial(self._server.lost, COORDINATOR, member.name, member.incarnation))
                await asyncio.sleep(AGAIN_S)
            finally:
                if link is not None:
                    link.abort()


def _decided(decide: Callable[[], object]) -> None:
    """Have the server decide; where its registry cannot be written, it is asked again when there is something to."""
    try:
        decide()
    except StoreError as error:
        log.error("who leads which groups cannot be changed now: %s", error)
