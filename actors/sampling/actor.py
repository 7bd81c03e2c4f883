"""The Ray actor around `SamplingServer`."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from typing import Any

from lexicast.cluster.clock import SystemClock
from lexicast.cluster.errors import LexicastError
from lexicast.cluster.membership import SAMPLER, Member, Members

from ..client.connect import connect_actor
from ..loop.background import keep_going, stop_loops
from ..ray.following import follow_members
from ..ray.handles import RayCoordination, find_actor
from ..ray.serving import ServingActor
from .server import SamplingServer

log = logging.getLogger(__name__)

RETRY_S = 0.2
# On a busy machine learning waits for whatever moves messages.
NICENESS = 10


class SamplingActor(ServingActor):
    """One sampling broker."""

    async def start(self) -> None:
        """Begin to serve."""
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)  # this thread's, and of those that it starts
        self._coordination = RayCoordination()
        self._brokers: frozenset[str] = frozenset()
        self._client = await connect_actor(self.name, compress=False)
        try:
            await self._register()
        except BaseException:
            await self._client.close()
            raise
        rules = self.config.security.acl_file != ""
        self._server = SamplingServer(
            self._client,
            self.config.compression,
            SystemClock(),
            audience=self._audience,
            # What a sibling has learned holds pieces of its messages, which with rules not everybody may read.
            siblings=not rules,
            rules=rules,
        )
        following = follow_members(
            self._coordination, lambda members: self.name in members.samplers, self._register, self._follow
        )
        self._tasks = [keep_going(following, "following the membership")]
        if self.config.compression.enabled:
            self._tasks.append(keep_going(self._sample(), "sampling"))

    async def _register(self) -> None:
        await self._coordination.register(SAMPLER, Member(self.name, 0, (), self.config.node.own_name(), os.getpid()))

    async def _sample(self) -> None:
        """Sample; what ends it is told, and it is begun again. A defect ends this process: another begins anew."""
        while True:
            try:
                await self._server.run()
            except* LexicastError as errors:
                log.warning("%s: sampling begins again: %s", self.name, errors.exceptions[0])
            await asyncio.sleep(RETRY_S)

    def _follow(self, members: Members) -> None:
        """Who shares the families, and which brokers' audiences count."""
        self._brokers = frozenset(members.brokers)
        self._server.set_members(set(members.samplers))

    async def _audience(self, family: bytes, topics: tuple[bytes, ...]) -> tuple[int, int]:
        """Over all brokers; one that does not answer has no audience now."""
        calls = [find_actor(name).call("audience", family, topics) for name in self._brokers]
        told = [answer for answer in await asyncio.gather(*calls, return_exceptions=True) if isinstance(answer, tuple)]
        return sum(publishers for publishers, _ in told), sum(subscribers for _, subscribers in told)

    def addresses(self) -> tuple[str, ...]:
        """None: it dials."""
        return ()

    def report(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return self._server.status()

    async def end(self) -> None:
        """Stop sampling."""
        await stop_loops(*self._tasks)
        await self._client.close()
        with suppress(LexicastError):
            await self._coordination.leave(SAMPLER, self.name)
