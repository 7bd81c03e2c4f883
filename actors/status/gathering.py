"""The cluster's status as one broker can tell it: over its own links to the coordinators, over Ray to the others.

`lexicast status` and Python clients ask a broker, which asks all actors at once, none for longer than ASK_TIMEOUT_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from lexicast.cluster.errors import LexicastError

from ..ray.handles import BROKER, COORDINATOR
from .report import ROLES, UNKNOWN, MissingError, gather

if TYPE_CHECKING:
    from ..broker.server import BrokerServer

ASK_TIMEOUT_S: Final = 2.0

AskActor = Callable[[str, float], Awaitable[dict[str, Any]]]


async def nobody(name: str, timeout_s: float) -> dict[str, Any]:
    """For brokers that run without Ray."""
    raise MissingError("it cannot be asked from here", UNKNOWN)


class ClusterStatus:
    """See the module's docstring. `ask_actor` asks an actor that this broker has no link to."""

    def __init__(self, broker: BrokerServer, ask_actor: AskActor = nobody) -> None:
        self._broker = broker
        self.ask_actor = ask_actor

    async def snapshot(self) -> dict[str, Any]:
        """See `status.gather`."""
        return await gather(await self._coordination(), self._ask)

    async def _coordination(self) -> dict[str, Any]:
        """What the coordination server says; while it is away, what this broker knows."""
        broker = self._broker
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                return await broker.coordination.overview()
        except (LexicastError, TimeoutError) as error:
            members: dict[str, dict[str, Any]] = {kind: {} for kind in ROLES.values()}
            members[BROKER][broker.name] = {}
            members[COORDINATOR] = {name: {} for name in broker.engine.pipelines}
            return {
                "error": str(error) or f"no answer for {ASK_TIMEOUT_S:.0f} s",
                "cluster_id": broker.cluster_id,
                "coordinators": sorted(broker.engine.pipelines),
                "groups": broker.engine.groups,
                "group_states": {},
                "members": members,
            }

    async def _ask(self, kind: str, name: str) -> dict[str, Any]:
        if kind == BROKER and name == self._broker.name:
            return self._broker.status()
        pipeline = self._broker.engine.pipelines.get(name) if kind == COORDINATOR else None
        if pipeline is None:
            return await self.ask_actor(name, ASK_TIMEOUT_S)
        if pipeline.link is not None:
            answer: dict[str, Any] = await pipeline.link.request("status", timeout_s=ASK_TIMEOUT_S)
            return answer
        since_us = pipeline.lost_us
        try:
            answer = await self.ask_actor(name, ASK_TIMEOUT_S)
        except MissingError as error:
            raise MissingError(str(error), error.fate, since_us) from None
        except LexicastError as error:
            raise MissingError(str(error), UNKNOWN, since_us) from None
        return answer | {"unlinked_since_us": since_us}
