"""The drills of content subscriptions: three machines with a broker, a coordinator and a matcher each."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from ... import report as reports
from ...report import DriverReport
from ..clusters import MQTT_PORT, DrilledCluster
from ..drills import Drills, drill_each, planned
from ..load import DrillLoad, lacking_makes
from .cast import CONTENT_CAST
from .kinds import CONTENT_KINDS
from .spared import SparedRecords
from .telling import tell_content

NODES: Final = 3
MATCHERS: Final = 1
"""A node: any may die, and there are two other candidates."""


async def run(report: DriverReport, progress: reports.Steps, folder: Path) -> None:
    """All of it, on one cluster."""
    cluster, spared = DrilledCluster(folder, NODES, matchers=MATCHERS), SparedRecords()
    try:
        progress.step("starting three nodes with matchers")
        await asyncio.to_thread(cluster.start)
        hosts = [machine.host for machine in cluster.machines]
        load = DrillLoad(hosts, MQTT_PORT, cluster.head.disk, report.options.rate, CONTENT_CAST)
        drills = Drills(report, cluster, load, lambda seen: spared.looked(seen.said("coordinators")))
        try:
            await cluster.healed()
            await load.start()
            faults = [CONTENT_KINDS[name] for name in planned(report.options)]
            if await drill_each(report, progress, cluster, drills, faults):
                spared.looked((await cluster.healed()).said("coordinators"))
        finally:
            await load.stop()
            report.figure("content_restarts", cluster.restarts)
            tell_content(report, load.audit, drills.drilled, spared)
    finally:
        cluster.close()


def perform_content(report: DriverReport, folder: Path) -> None:
    """See the module's docstring. Raises UnavailableError."""
    for name, what_to_do in lacking_makes().items():
        report.missing(name, what_to_do)
    with reports.Steps(report.console, 1 + report.options.drills) as progress:
        asyncio.run(run(report, progress, folder))
