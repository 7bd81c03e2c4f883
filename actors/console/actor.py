"""The Ray actor around `ConsoleServer`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, Final

import ray

from lexicast.cluster.errors import LexicastError
from lexicast.cluster.membership import CONSOLE, Member

from ..launch.spark_environment import prepare_spark
from ..ray.handles import RayCoordination
from ..ray.serving import ServingActor
from ..status.over_ray import ask_actor, snapshot
from .server import ConsoleServer
from .sql.program import SqlProgram

# On a busy machine whoever looks waits for whatever moves messages.
NICENESS: Final = 10
QUESTIONS: Final = "lexicast.raydp_jobs.jobs.page_questions"
# Ray sets them for a worker; a driver that has them takes itself for one.
_OF_WORKERS: Final = ("RAY_JOB_ID", "RAY_RAYLET_PID")


class ConsoleActor(ServingActor):
    """The console of this node."""

    async def start(self) -> None:
        """Begin to serve."""
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)  # this thread's, and of those that it starts
        self._coordination = RayCoordination()
        cluster = await self._coordination.cluster()
        of = (self.name, self.config, cluster, self._coordination)
        self._server = ConsoleServer(*of, ask_actor, snapshot, self._register, _sql_program())
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


def _sql_program() -> SqlProgram:
    """What answers questions in SQL, as a driver of this Ray of its own."""
    address: str = ray.get_runtime_context().gcs_address
    environment = {name: value for name, value in os.environ.items() if name not in _OF_WORKERS}

    def prepare() -> None:
        prepare_spark(dict(environment))

    return SqlProgram((sys.executable, "-m", QUESTIONS, address), environment, prepare)
