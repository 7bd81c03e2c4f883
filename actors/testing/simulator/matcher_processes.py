"""The matchers of a story: linked to all brokers and coordinators, started, killed, started again; and what else is
there for content subscriptions: brokers' links to them, reports on conditions, and the cells that are planned of these.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from lexicast.cluster.errors import LexicastError
from lexicast.cluster.hpartition import planning as planning_module
from lexicast.cluster.hpartition.cell_map import CellMap, Change, Join
from lexicast.cluster.hpartition.heat import CellLoad, HeatCause, HotCell
from lexicast.cluster.hpartition.partition import CellId
from lexicast.cluster.membership import BROKER, MATCHER, ClusterInfo, Member, Members

from ...broker.engine import BrokerEngine
from ...broker.matching import cell_reports as cell_reports_module
from ...broker.matching.cell_reports import CellReports
from ...link.link import Link, LinkUser
from ...loop.background import keep_going
from ...matcher import server as matcher_module
from ...matcher.server import NO_OVERLAY, MatcherServer, OverlaySetting
from .coordination import CoordinationCalls
from .coordinator_processes import COORDINATION, CoordinatorProcesses
from .network import CLUSTER_ID, KEY, Listener
from .scene import GROUPS, Scene
from .virtual import SimProcess

FOLLOW_S: Final = 5.0
AGAIN_S: Final = 0.1
PLAN_S: Final = 0.1
LATE_S: Final = (0.005, 0.03, 0.2)


class MatcherProcesses:
    """See the module's docstring. Only in stories with content subscriptions."""

    def __init__(self, scene: Scene, coordinators: CoordinatorProcesses) -> None:
        self.scene = scene
        self.coordinators = coordinators
        self.processes: dict[str, SimProcess] = {}
        self.servers: dict[str, MatcherServer] = {}

    def _calls(self, process: SimProcess) -> CoordinationCalls:
        return CoordinationCalls(self.scene, self.coordinators.serving, process, self.scene.head)

    # -- matchers

    def open(self, name: str) -> None:
        """Start a matcher, if it does not run."""
        before = self.processes.get(name)
        if before is not None and before.alive:
            return
        process = self.processes[name] = self.scene.new_process(name, self.scene.node_of(name))
        self.scene.transcript.say(name, f"starts on {process.node}")
        self.scene.loop.create_task(self._serve(process), context=process.context.copy())

    async def _serve(self, process: SimProcess) -> None:
        calls, name, beats = self._calls(process), process.name, self.scene.broker_beats
        beyond, setting = self.scene.overlay_beyond, NO_OVERLAY
        if beyond is not None:
            setting = OverlaySetting(beyond, self.scene.overlay_shape, (name,))
        member = Member(name, 0, setting.addresses, process.node, 0)
        incarnation = await until_answered(lambda: calls.register(MATCHER, member))
        server = MatcherServer(name, incarnation, ClusterInfo(CLUSTER_ID, KEY, GROUPS, 1), beats, setting)
        self.scene.network.listeners[name] = Listener(process, server.opened, beats)
        self.servers[name] = server
        if self.scene.content_dice.random() < 0.4:
            late_s = self.scene.content_dice.choice(LATE_S)
            self.scene.transcript.say(name, f"hears brokers {late_s} s late")
            hears_late(server, late_s)
        await _following(calls, server.follow, server.asks)

    def kill(self, name: str) -> None:
        """Kill a matcher; the coordination server hears of it, as its actor's end is seen."""
        process = self.processes[name]
        if not process.alive:
            return
        self.scene.transcript.say(name, "is killed")
        process.kill()
        self.servers.pop(name, None)
        self.scene.network.ends_of(process)
        if (coordination := self.coordinators.serving()) is not None:
            self.scene.begin(_left, coordination, name)

    # -- brokers

    def with_broker(self, process: SimProcess, engine: BrokerEngine) -> None:
        """A broker is reached by matchers, and reports its conditions."""
        subscriptions, columns = engine.subscriptions, engine.event_columns
        told = subscriptions.told_conditions
        assert told is not None
        assert columns is not None
        calls: Any = self._calls(process)
        reports = CellReports(engine.name, calls, told, columns)

        def opened(link: Link) -> LinkUser | None:
            return told.opened(link)

        async def serve() -> None:
            self.scene.network.listeners[engine.name] = Listener(process, opened, self.scene.broker_beats)
            reporting = keep_going(reports.run(), "reporting conditions")
            assert not reporting.done()
            await _following(calls, lambda members: reports.follow(members.version, members.cells))

        self.scene.loop.create_task(serve(), context=process.context.copy())

    async def register_broker(self, process: SimProcess) -> int:
        """The incarnation of a broker that begins."""
        member = Member(process.name, 0, (process.name,), process.node, 0)
        calls = self._calls(process)
        incarnation: int = await until_answered(lambda: calls.register(BROKER, member))
        return incarnation

    # -- cells

    def plan(self) -> None:
        """Plan cells now and then, as the coordination server does."""
        process = self.coordinators.processes[COORDINATION]
        if process.alive:
            process.do(self.coordinators.coordination.plan_cells)
        self.scene.at(self.scene.loop.time() + PLAN_S, self.plan)

    def substitutes(self) -> list[tuple[Any, str, Any]]:
        """Attributes of modules (module, name, value): cells from a few conditions on, and often other ones, for any
        reason."""
        return [
            (matcher_module, "dial_any", self.scene.network.dial),
            (matcher_module, "CYCLE_S", 0.2),
            (planning_module, "CONDITIONS_MIN", 3),
            (planning_module, "EVENTS_MIN", 4),
            (planning_module, "hot_cells", any_cell_is_hot(random.Random(self.scene.seed))),
            (planning_module, "cold_changes", any_split_is_cold(random.Random(self.scene.seed + 1))),
            (planning_module, "COLD_TURNS", 1),
            (planning_module, "RECUT_GAIN", 1.0),
            (planning_module, "RECUT_TURNS", 2),
            (cell_reports_module, "REPORT_S", 0.2),
            (cell_reports_module, "LOOK_S", 0.05),
        ]


async def until_answered(ask: Callable[[], Any]) -> Any:
    """The coordination server's answer, however long it takes."""
    while True:
        try:
            return await ask()
        except LexicastError:
            await asyncio.sleep(AGAIN_S)


async def _following(
    calls: CoordinationCalls, apply: Callable[[Members], None], due: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Follow the membership, as a broker and a matcher do."""
    version = -1
    while True:
        if due is not None:
            await due()
        members = await until_answered(partial(calls.members, version, FOLLOW_S))
        if members.version != version:
            version = members.version
            apply(members)


async def _left(coordination: Any, name: str) -> None:
    with suppress(LexicastError):
        await coordination.leave(MATCHER, name)


def hears_late(matcher: MatcherServer, late_s: float) -> None:
    """What brokers tell it comes so late; what coordinators ask comes at once."""
    told, loop = matcher.conditions.told, asyncio.get_running_loop()
    line: deque[Callable[[], None]] = deque()  # timers of the same time go off in any order, words must not

    def later(broker: str, version: int, number: int, changes: Sequence[tuple[bool, bytes, str]]) -> None:
        known = matcher.conditions.brokers[broker]

        def hear() -> None:
            if matcher.conditions.brokers.get(broker) is known:
                told(broker, version, number, changes)
                matcher.names_changed()

        line.append(hear)
        loop.call_later(late_s, lambda: line.popleft()())

    matcher.conditions.told = later  # type: ignore[assignment, method-assign]  # the network in between


def any_split_is_cold(dice: random.Random) -> Callable[..., dict[CellId, Change]]:
    """In the place of `cold_changes`: of the cells that are split some, for any reason."""

    def cold_changes(cells: CellMap, loads: Mapping[CellId, CellLoad], matchers: int) -> dict[CellId, Change]:
        split = [cell for cell in sorted(cells.splits) if dice.random() < 0.4]
        return {cell: Join(dice.randrange(1, matchers + 1)) for cell in split}

    return cold_changes


def any_cell_is_hot(dice: random.Random) -> Callable[..., list[HotCell]]:
    """In the place of `hot_cells`: of the cells that are asked some, for any reason."""

    def hot_cells(loads: Mapping[CellId, CellLoad], matchers: int, copies: Mapping[CellId, int]) -> list[HotCell]:
        asked = sorted(loads)
        return [
            HotCell(cell, dice.choice(list(HeatCause)), dice.randrange(1, matchers + 1))
            for cell in dice.sample(asked, min(2, len(asked)))
        ]

    return hot_cells
