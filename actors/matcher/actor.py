"""The Ray actor around `MatcherServer`."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from typing import Any, Final

from lexicast.cluster.errors import LexicastError
from lexicast.cluster.membership import MATCHER, Member

from ..loop.background import keep_going, stop_loops
from ..ray.handles import RayCoordination
from ..ray.serving import ServingActor
from .server import MatcherServer

log = logging.getLogger(__name__)

MEMBERS_WAIT_S: Final = 5.0
RETRY_S: Final = 0.2


class MatcherActor(ServingActor):
    """One matcher of this node."""

    async def start(self) -> None:
        """Begin to serve."""
        self._coordination = RayCoordination()
        cluster = await self._coordination.cluster()
        incarnation = await self._register()
        self._server = MatcherServer(self.name, incarnation, cluster, self.config.link.beats())
        self._following = keep_going(self._follow_members(), "following the membership")

    async def _register(self) -> int:
        node = self.config.node
        member = Member(self.name, 0, (), node.own_name(), os.getpid(), location=node.location)
        return await self._coordination.register(MATCHER, member)

    async def _follow_members(self) -> None:
        version = -1
        while True:
            try:
                members = await self._coordination.members(version, MEMBERS_WAIT_S)
                if self.name not in members.matchers:  # the coordination server has lost its registry
                    await self._register()
            except LexicastError as error:
                log.debug("membership: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            version = members.version
            self._server.follow(members)

    def addresses(self) -> tuple[str, ...]:
        """None: it dials."""
        return ()

    def report(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return self._server.status()

    async def end(self) -> None:
        """Stop matching: coordinators ask others, or nobody."""
        await stop_loops(self._following)
        await self._server.stop()
        with suppress(LexicastError):
            await self._coordination.leave(MATCHER, self.name)
