"""The drills of content subscriptions: three machines with a broker, a coordinator and a matcher each."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ... import report as reports
from ...report import DriverReport
from ..audit import TOPICS_A_PUBLISHER, topic
from ..clusters import MQTT_PORT, DrilledCluster
from ..drills import Drills, drill_each, planned
from ..load import AIOMQTT, DrillLoad, lacking_makes
from ..overview import Overview
from .cast import CONTENT_CAST
from .cells_seen import CellsSeen
from .kinds import CONTENT_KINDS, HOT_SPOT, hot_spot
from .spared import SparedRecords
from .telling import tell_content

if TYPE_CHECKING:
    from .crowd import ConditionsCrowd

NODES: Final = 3
MATCHERS: Final = 1
"""A node: any may die, and there are two other candidates."""
OVERLAY_MATCHERS: Final = 2
"""A node, where they form an overlay: two are killed at once, and the others still do not all know each other."""
CELLS_S: Final = 20.0
"""Brokers report what they have seen every 2 s."""


class ContentDrills:
    """All of them, on one cluster."""

    def __init__(self, report: DriverReport, progress: reports.Steps, cluster: DrilledCluster) -> None:
        options, hosts = report.options, [machine.host for machine in cluster.machines]
        self._report = report
        self._progress = progress
        self._cluster = cluster
        self._spared, self._seen = SparedRecords(), CellsSeen()
        self._load = DrillLoad(hosts, MQTT_PORT, cluster.head.disk, options.rate, CONTENT_CAST)
        self._crowd = None if AIOMQTT in lacking_makes() or not options.conditions else self._crowded(hosts)
        self._drills = Drills(report, cluster, self._load, self._looked)

    def _crowded(self, hosts: list[str]) -> ConditionsCrowd:
        from .crowd import ConditionsCrowd  # its client need not be installed

        options = self._report.options
        topics = [topic(name, number) for name in self._load.publishers for number in range(TOPICS_A_PUBLISHER)]
        return ConditionsCrowd(hosts, MQTT_PORT, topics, options.conditions, options.seed)

    def _looked(self, seen: Overview) -> None:
        self._spared.looked(seen.said("coordinators"))
        self._seen.looked(seen.cells())

    async def perform(self) -> None:
        """Until they are over, or the cluster does not become whole again. Raises UnavailableError."""
        loop, crowd = asyncio.get_running_loop(), self._crowd

        def move(turn: int) -> None:  # faults strike in a thread
            if crowd is not None:
                loop.call_soon_threadsafe(crowd.move, turn)

        faults = [CONTENT_KINDS.get(name, hot_spot(move)) for name in planned(self._report.options)]
        await self._cluster.healed()
        await self._load.start()
        if crowd is not None:
            await crowd.start()
            await self._cells()
        if await drill_each(self._report, self._progress, self._cluster, self._drills, faults):
            self._looked(await self._cluster.healed())
            if crowd is not None and HOT_SPOT in self._report.options.kinds and not self._seen.split:
                self._report.problem("no cell was split: these drills prove nothing of that")

    async def _cells(self) -> None:
        """Returns when there are cells: something has to be seen first."""
        self._load.pace.on = True
        try:
            async with asyncio.timeout(CELLS_S):
                while not (await self._cluster.look()).cells().get("cells"):  # noqa: ASYNC110  # another process'
                    await asyncio.sleep(0.5)
        except TimeoutError:
            self._report.problem(f"matchers share nothing out after {CELLS_S:.0f} s")
        finally:
            self._load.pace.on = False

    async def stop(self) -> None:
        """End all clients, and tell what was found."""
        await self._load.stop()
        if self._crowd is not None:
            await self._crowd.stop()
            self._report.figure("crowd_delivered", self._crowd.delivered)
            if self._crowd.unwanted:
                self._report.problem(f"{self._crowd.unwanted} were delivered to the crowd against its conditions")
        self._report.figure("content_restarts", self._cluster.restarts)
        if self._report.options.overlay and not self._spared.totals["overlay_routed"]:
            self._report.problem("no question was routed: these drills prove nothing of the overlay")
        tell_content(self._report, self._load.audit, self._drills.drilled, self._spared, self._seen)


async def run(report: DriverReport, progress: reports.Steps, folder: Path) -> None:
    """All of it."""
    overlay = report.options.overlay
    cluster = DrilledCluster(folder, NODES, matchers=OVERLAY_MATCHERS if overlay else MATCHERS, overlay=overlay)
    try:
        progress.step("starting three nodes with matchers")
        await asyncio.to_thread(cluster.start)
        drills = ContentDrills(report, progress, cluster)
        try:
            await drills.perform()
        finally:
            await drills.stop()
    finally:
        cluster.close()


def perform_content(report: DriverReport, folder: Path) -> None:
    """See the module's docstring. Raises UnavailableError."""
    for name, what_to_do in lacking_makes().items():
        report.missing(name, what_to_do)
    with reports.Steps(report.console, 1 + report.options.drills) as progress:
        asyncio.run(run(report, progress, folder))
