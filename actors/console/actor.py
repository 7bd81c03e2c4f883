"""The Ray actor around `ConsoleServer`."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Final

from lexicast.cluster.errors import LexicastError
from lexicast.cluster.membership import CONSOLE, Member

from ..ray.handles import RayCoordination
from ..ray.serving import ServingActor
from ..status.over_ray import ask_actor, snapshot
from .server import ConsoleServer

# On a busy machine whoever looks waits for whatever moves messages.
NICENESS: Final = 10


class ConsoleActor(ServingActor):
    """The console of this node."""

    async def start(self) -> None:
        """Begin to serve."""
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)  # this thread's, and of those that it starts
        self._coordination = RayCoordination()
        cluster = await self._coordination.cluster()
        of = (self.name, self.config, cluster, self._coordination)
        self._server = ConsoleServer(*of, ask_actor, snapshot, self._register)
        await self._server.start()

    async def _register(self) -> None:
        node = self.config.node
        member = Member(self.name, 0, (), node.own_name(), os.getpid(), location=node.location)
        await self._coordination.register(CONSOLE, member)

    def addresses(self) -> tuple[str, ...]:
        """None: no link leads here."""
        return ()

    def report(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {**self._server.status(), "pid": os.getpid()}

    async def end(self) -> None:
        """Stop serving."""
        await self._server.stop()
        with suppress(LexicastError):
            await self._coordination.leave(CONSOLE, self.name)
