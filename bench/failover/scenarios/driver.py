"""The scenarios, one after the other, on four machines in two locations."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lexicast.cluster.errors import LexicastError

from ... import report as reports
from ...report import DriverReport
from ..clusters import DrilledCluster
from .cases import (
    BROKER,
    BROKERS,
    LOCAL,
    LOCATION,
    LOCATIONS,
    REMOTE,
    STORM,
    Case,
    broker_case,
    brokers_case,
    location_case,
)
from .options import OWN_RATE, RATE
from .storm import run_storm
from .takeover import Scenarios, spread_wrongly
from .telling import Found, tell_run, tell_storm

RATES_SESSIONS: Final = 100


def broker_cases(options: argparse.Namespace) -> list[Case]:
    """Of scenario `broker`: in each round local and remote in turn, then other rates."""
    found: list[Case] = []
    sessions = min(options.sessions, RATES_SESSIONS)
    for number in range(rounds_of(options)):
        both = (LOCAL, REMOTE) if number % 2 == 0 else (REMOTE, LOCAL)
        for count in [*options.counts, options.sessions]:
            found += [broker_case(towards, count, RATE, OWN_RATE) for towards in both]
        found += [broker_case(LOCAL, sessions, rate, OWN_RATE) for rate in options.shared_rates]
    return found


def cases(options: argparse.Namespace) -> list[Case]:
    """All but the storm's, in order."""
    found: list[Case] = []
    if BROKER in options.scenario:
        found += broker_cases(options)
    if BROKERS in options.scenario:
        found += [brokers_case(options.sessions, RATE, OWN_RATE)] * rounds_of(options)
    if LOCATION in options.scenario:
        found += [location_case(options.sessions, RATE, OWN_RATE)] * rounds_of(options)
    return found


def rounds_of(options: argparse.Namespace) -> int:
    """How often each is done."""
    return 1 if options.quick else int(options.rounds)


def storms_of(options: argparse.Namespace) -> int:
    """How many storms there are."""
    return rounds_of(options) if STORM in options.scenario else 0


class Performance:
    """All of it, on one cluster."""

    def __init__(self, report: DriverReport, progress: reports.Steps, cluster: DrilledCluster, folder: Path) -> None:
        options = report.options
        self._report = report
        self._progress = progress
        self._cluster = cluster
        self._scenarios = Scenarios(cluster, folder / "runs", options.far_ms / 2e3, options.seed)
        self.found = Found(options.sessions, RATE)

    async def perform(self) -> None:
        """Everything. Raises UnavailableError where the cluster is not whole at its beginning."""
        planned = cases(self._report.options)
        await self._spread()
        await self._take_over([case for case in planned if not case.power])
        for _ in range(storms_of(self._report.options)):
            await self._storm()
        await self._take_over([case for case in planned if case.power])

    async def _spread(self) -> None:
        """Every group has a copy in each location, or a location's loss would be a loss."""
        await self._cluster.healed()
        if wrong := spread_wrongly(self._cluster, await self._cluster.overview()):
            self._report.problem(f"{wrong} groups have no copy in one of the locations")

    async def _take_over(self, planned: Sequence[Case]) -> None:
        for at, case in enumerate(planned):
            self._progress.step(case.name)
            try:
                takeover = await self._scenarios.take_over(case)
                self.found.takeovers.append(takeover)
                tell_run(self._report, takeover)
            except LexicastError as error:
                self._report.problem(f"{case.name}: {error}")
                await self._cluster.restore()
            if case.power and at + 1 < len(planned):
                await self._cluster.restore()
                await self._spread()

    async def _storm(self) -> None:
        clients = self._report.options.clients
        self._progress.step(f"storm: {clients:,} clients")
        try:
            storm = await run_storm(self._scenarios, clients, self._report.options.open_s)
            self.found.storms.append(storm)
            tell_storm(self._report, storm)
        except LexicastError as error:
            self._report.problem(f"storm: {error}")
            await self._cluster.restore()


async def run(report: DriverReport, progress: reports.Steps, folder: Path, found: list[Found]) -> None:
    """On a cluster of its own; `found` gets what was found, however it ends."""
    cluster = DrilledCluster(folder, len(LOCATIONS), LOCATIONS)
    try:
        progress.step("starting four nodes in two locations")
        await asyncio.to_thread(cluster.start)
        performance = Performance(report, progress, cluster, folder)
        found.append(performance.found)
        await performance.perform()
    finally:
        cluster.close()


def perform_scenarios(report: DriverReport, folder: Path) -> Found:
    """See the module's docstring. Raises UnavailableError."""
    found: list[Found] = []
    steps = 1 + len(cases(report.options)) + storms_of(report.options)
    with reports.Steps(report.console, steps) as progress:
        asyncio.run(run(report, progress, folder, found))
    return found[0]
