"""The Ray actor around `MatcherServer`."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from lexicast.cluster.errors import LexicastError
from lexicast.cluster.membership import MATCHER, Member
from lexicast.cluster.skipcloud.identifiers import CloudShape

from ..link.run_directory import run_directory
from ..loop.background import keep_going, stop_loops
from ..ray.following import follow_members
from ..ray.handles import RayCoordination
from ..ray.serving import ServingActor
from .server import MatcherServer, OverlaySetting
from .sockets import MatcherSockets


class MatcherActor(ServingActor):
    """One matcher of this node."""

    async def start(self) -> None:
        """Begin to serve."""
        self._coordination = RayCoordination()
        cluster = await self._coordination.cluster()
        self._sockets = MatcherSockets(self.name, cluster, self.config.link.beats(), self.config.security.links)
        try:
            await self._sockets.open(run_directory(self.config), self.config.node.host)
            incarnation = await self._register()
        except BaseException:
            self._sockets.close()
            raise
        content = self.config.content
        shape = CloudShape(content.overlay_base, content.overlay_levels, content.overlay_contacts)
        setting = OverlaySetting(content.overlay_beyond, shape, self._sockets.addresses)
        self._server = MatcherServer(self.name, incarnation, cluster, self.config.link.beats(), setting)
        self._sockets.admit(self._server.opened)
        following = follow_members(
            self._coordination,
            lambda members: self.name in members.matchers,
            self._register,
            self._server.follow,
            self._server.asks,
        )
        self._following = keep_going(following, "following the membership")

    async def _register(self) -> int:
        node = self.config.node
        member = Member(self.name, 0, self._sockets.addresses, node.own_name(), os.getpid(), location=node.location)
        return await self._coordination.register(MATCHER, member)

    def addresses(self) -> tuple[str, ...]:
        """Where other matchers reach it."""
        return self._sockets.addresses

    def report(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return self._server.status()

    async def end(self) -> None:
        """Stop matching: coordinators ask others, or nobody."""
        await stop_loops(self._following)
        self._sockets.close()
        await self._server.stop()
        with suppress(LexicastError):
            await self._coordination.leave(MATCHER, self.name)
