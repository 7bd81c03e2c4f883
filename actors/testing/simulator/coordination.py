"""The coordination server of a story, and the way to it: calls that take a while, and whose answers may be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import COORDINATOR, ClusterInfo, CoordinatorReport, Member, Members

from ...coordination.content_cells import ContentCells
from ...coordination.server import CoordinationServer
from .disks import MemoryRegistry
from .network import CLUSTER_ID, KEY
from .scene import GROUPS, Scene
from .virtual import SimProcess

T = TypeVar("T")

CALL_TIMEOUT_S = 1.0
AWAY_LOOK_S = 0.02
LOST_ANSWERS = 0.1


class SimulatedCoordination(CoordinationServer):
    """A coordination server whose registry is memory, and whose changes the transcript tells."""

    def __init__(self, scene: Scene, registry: MemoryRegistry, names: Sequence[str]) -> None:
        rows: Any = registry
        super().__init__(rows, GROUPS, names, run="story")
        self._scene = scene
        self._cells = ContentCells(1 + int(1_000 * scene.loop.time()))
        if not self._founded.is_set():
            self._found(CLUSTER_ID)
        self._cluster["key"] = KEY

    def states(self) -> dict[int, GroupState]:
        """Who leads which group now."""
        return self._leadership.states()

    def state(self, group: int) -> GroupState:
        """Who leads a group now."""
        return self._leadership[group]

    def incarnation(self, name: str) -> int:
        """Of the coordinator that serves under this name; 0: none has."""
        found = self._members[COORDINATOR].get(name)
        return 0 if found is None else found.incarnation

    def end(self) -> None:
        """Its process has been killed: who waits for a change waits in vain."""
        self._changed.set()

    def _commit_groups(self, states: Any) -> None:
        super()._commit_groups(states)
        for group, (epoch, leader, in_sync) in sorted(states.items()):
            what = f"group {group}: epoch {epoch}, led by {leader}, in sync {' '.join(in_sync)}"
            self._scene.transcript.say("coordination", what)


class CoordinationCalls:
    """`Coordination` as one process calls it."""

    def __init__(self, scene: Scene, server: Callable[[], CoordinationServer | None], process: SimProcess, node: str):
        """`server`: the one that runs, None: none does; `node`: where."""
        self._scene = scene
        self._server = server
        self._process = process
        self._node = node

    async def _way(self, source: str, target: str) -> CoordinationServer:
        """Get there, or back. Raises UnavailableError."""
        until = self._scene.loop.time() + CALL_TIMEOUT_S
        await asyncio.sleep(self._scene.choose.random() * 0.02)
        while True:
            server = self._server()
            if server is not None and not self._scene.network.is_broken(source, target):
                return server
            if self._scene.loop.time() > until:
                raise UnavailableError("the coordination server does not answer")
            await asyncio.sleep(AWAY_LOOK_S)

    async def _call(self, ask: Callable[[CoordinationServer], Awaitable[T]]) -> T:
        server = await self._way(self._process.node, self._node)
        found = await ask(server)
        if await self._way(self._node, self._process.node) is not server:
            raise UnavailableError("the answer was lost with the coordination server")
        return found

    async def cluster(self, wait: bool = True) -> ClusterInfo:
        """See `Coordination`."""
        return await self._call(lambda server: server.cluster(wait))

    async def open_groups(self, member: str, known: dict[int, int], cluster_id: str | None) -> dict[int, GroupState]:
        """See `Coordination`."""
        return await self._call(lambda server: server.open_groups(member, known, cluster_id))

    async def report_wanted(self, wait_s: float) -> bool:
        """See `Coordination`."""
        return await self._call(lambda server: server.report_wanted(wait_s))

    async def report(self, member: str, report: CoordinatorReport) -> bool:
        """See `Coordination`."""
        return await self._call(lambda server: server.report(member, report))

    async def register(self, kind: str, member: Member) -> int:
        """See `Coordination`."""
        return await self._call(lambda server: server.register(kind, member))

    async def leave(self, kind: str, name: str) -> None:
        """See `Coordination`."""
        await self._call(lambda server: server.leave(kind, name))

    async def members(self, known_version: int, wait_s: float) -> Members:
        """See `Coordination`."""
        return await self._call(lambda server: server.members(known_version, wait_s))

    async def cells_report(self, broker: str, report: tuple[Any, ...]) -> None:
        """See `OperatedCoordination`."""
        await self._call(lambda server: server.cells_report(broker, report))

    async def overview(self) -> dict[str, Any]:
        """See `Coordination`."""
        return await self._call(lambda server: server.overview())

    async def change_groups(self, changes: dict[int, tuple[GroupState, GroupState]]) -> dict[int, GroupState]:
        """See `Coordination`; sometimes the answer is lost."""
        held = await self._call(lambda server: server.change_groups(changes))
        if self._scene.choose.random() < LOST_ANSWERS:
            raise UnavailableError("the answer was lost")
        return held

    async def change_group(self, group: int, expected: GroupState, new: GroupState) -> bool:
        """See `Coordination`."""
        return await self._call(lambda server: server.change_group(group, expected, new))
