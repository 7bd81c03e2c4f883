"""The cluster as a console knows it: what is told by itself (members, leaders), and what it asks for when it is wanted.

What costs others something is asked once for all who want it, and kept for a moment. Rates are gathered for an hour,
every RATES_EVERY_S, by one question to one broker.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from lexicast.cluster.errors import LexicastError
from lexicast.cluster.membership import Coordination, Members

from ..status.cluster_status import AskActor
from ..status.report import MissingError
from .broker_lines import BrokerLines
from .cluster_events import ClusterEvents
from .readiness import Readiness, readiness
from .shared_answer import SharedAnswer

STATUS_FRESH_S: Final = 1.0
HEALTH_FRESH_S: Final = 0.3
HEALTH_TIMEOUT_S: Final = 1.0
OWN_FRESH_S: Final = 0.5
ASK_TIMEOUT_S: Final = 2.0
MEMBERS_WAIT_S: Final = 5.0
# A coordination server that is asked and says nothing for so long beyond that is away.
MEMBERS_GRACE_S: Final = 1.0
RETRY_S: Final = 0.2
RATES_EVERY_S: Final = 10.0
RATES_KEPT: Final = 360

Status: TypeAlias = dict[str, Any]


class ConsoleView:
    """See the module's docstring. `events`: what has changed; `rates`: (time, what is told), the oldest first."""

    def __init__(
        self,
        lines: BrokerLines,
        coordination: Coordination,
        ask_actor: AskActor,
        without_brokers: Callable[[], Awaitable[Status]],
        told: Callable[[Members], None],
        stay: Callable[[Members], Awaitable[None]],
    ) -> None:
        """`ask_actor(name, timeout_s)` asks an actor without a broker; `without_brokers` the whole cluster, where no
        broker answers; `told`: who serves now; `stay`: before that, see that this console is among
        them."""
        self.lines = lines
        self._coordination = coordination
        self._ask_actor = ask_actor
        self._without_brokers = without_brokers
        self._told = told
        self._stay = stay
        self._reached_s = asyncio.get_running_loop().time()
        self.events = ClusterEvents()
        self.rates: deque[dict[str, float]] = deque(maxlen=RATES_KEPT)
        self._status = SharedAnswer(self._ask_status, STATUS_FRESH_S)
        self._own = SharedAnswer(self._ask_own, OWN_FRESH_S)
        self._health = SharedAnswer(self._ask_health, HEALTH_FRESH_S)

    # -- what is told

    async def follow(self) -> None:
        """Follow the membership, until cancelled."""
        version, loop = -1, asyncio.get_running_loop()
        while True:
            try:
                members = await self._coordination.members(version, MEMBERS_WAIT_S)
                await self._stay(members)
            except LexicastError:
                await asyncio.sleep(RETRY_S)
                continue
            self._reached_s = loop.time()
            if members.version != version:
                version = members.version
                self.events.follow(members, time.time())
                self.lines.follow(members)
                self._told(members)

    def coordination_away_s(self) -> float:
        """For how long the coordination server has not been reached; 0: it is there."""
        away_s = asyncio.get_running_loop().time() - self._reached_s - MEMBERS_WAIT_S - MEMBERS_GRACE_S
        return max(0.0, away_s)

    async def gather_rates(self) -> None:
        """Every RATES_EVERY_S, until cancelled."""
        while True:
            with suppress(LexicastError):
                now = await self.status()
                brokers = now["brokers"].values()
                connections = sum([each.get("mqtt", {}).get("connections", 0) for each in brokers])
                self.rates.append({"time": now["time"], "connections": connections, **now["rates"]})
                self.events.warned(now["warnings"], time.time())
            await asyncio.sleep(RATES_EVERY_S)

    # -- what is asked

    async def status(self) -> Status:
        """See `report.gather`; as of STATUS_FRESH_S ago at the most. Raises UnavailableError."""
        return await self._status.get()

    async def _ask_status(self) -> Status:
        try:
            told: Status = await self.lines.ask_nearest("cluster")
        except LexicastError:
            return await self._without_brokers()
        return told

    async def own_actors(self) -> dict[str, tuple[str, Status]]:
        """(kind, what it says, as in `report.gather`) of each actor of this node, by name."""
        return await self._own.get()

    async def _ask_own(self) -> dict[str, tuple[str, Status]]:
        members, node = self.lines.members, self.lines.node
        kinds = {"coordinator": members.coordinators, "sampler": members.samplers, "matcher": members.matchers}
        kinds["bridge"] = members.bridges
        own = {n: kind for kind, named in kinds.items() for n, m in named.items() if m.node == node}
        brokers = [name for name, member in members.brokers.items() if member.node == node]
        coordinators = [name for name, kind in own.items() if kind == "coordinator"]
        told, *answers = await asyncio.gather(
            self._coordinators(coordinators),
            *[self._broker(name) for name in brokers],
            *[self._actor(name) for name, kind in own.items() if kind != "coordinator"],
        )
        others = [name for name, kind in own.items() if kind != "coordinator"]
        said = dict(zip([*brokers, *others], answers, strict=True)) | told
        return {name: (own.get(name, "broker"), each) for name, each in said.items()}

    async def _coordinators(self, names: list[str]) -> dict[str, Status]:
        """Over the links that a broker has to them; else each by itself."""
        if not names:
            return {}
        with suppress(LexicastError):
            told: dict[str, Status] = await self.lines.ask_nearest("actors", tuple(names))
            return told
        return dict(zip(names, await asyncio.gather(*map(self._actor, names)), strict=True))

    async def _broker(self, name: str) -> Status:
        try:
            said: Status = await self.lines.ask(name, "status", timeout_s=ASK_TIMEOUT_S)
        except LexicastError as error:
            return {"error": str(error)}
        return said

    async def _actor(self, name: str) -> Status:
        try:
            return await self._ask_actor(name, ASK_TIMEOUT_S)
        except (LexicastError, MissingError) as error:
            return {"error": str(error)}

    async def health(self) -> Readiness:
        """As of now."""
        return await self._health.get()

    async def _ask_health(self) -> Readiness:
        own = self.lines.own()
        answers = await asyncio.gather(*map(self._health_of, own))
        return readiness(dict(zip(own, answers, strict=True)), self.coordination_away_s())

    async def _health_of(self, name: str) -> Status | str:
        try:
            said: Status = await self.lines.ask(name, "health", timeout_s=HEALTH_TIMEOUT_S)
        except LexicastError as error:
            return str(error)
        return said
