"""One fault under load: sessions on what dies, publishers elsewhere, and what becomes of the sessions."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from lexicast.cluster.errors import PeerError, UnavailableError

from ...stage.parts import Part, Stage
from ...stage.servers import cpu_s
from ..clusters import DrilledCluster
from ..overview import Overview
from .cases import LOCATIONS, Case, broker_list, far_from
from .curves import TakeOver
from .plans import CrowdPlan, CrowdTold, Expected, Fate, PublishingPlan

ROOM: Final = "lexicast.bench.failover.scenarios"
PUBLISHERS: Final = 4
OPEN_S: Final = 120.0
BEFORE_S: Final = (2.0, 3.0)
"""Between the first publication and the fault: another moment of the brokers' second each time."""
AFTER_S: Final = 1.0
SERVED_S: Final = 40.0
SETTLE_S: Final = 60.0
LEAVE_S: Final = 30.0
LOOK_S: Final = 0.02
SILENCE_S: Final = 2.0
"""Clients of machines that lose power ask after half of it, and give up then; the drills' keep-alive."""


class ScenarioLoad:
    """The processes of one run's load, in a folder of its own."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self._stage = stage
        self._folder = folder
        self._crowds: list[tuple[Part, Path]] = []
        self._publishing: Part | None = None
        self._expected = folder / "expected.json"
        folder.mkdir(parents=True, exist_ok=True)

    async def open(self, crowds: Sequence[CrowdPlan], publishing: PublishingPlan) -> None:
        """Start all; returns when all sessions are there. Raises PeerError."""
        self._publishing = self._part("publishing", "publishing", publishing)
        self._crowds = [
            (self._part(f"crowd-{number}", "crowd", plan), self._folder / f"crowd-{number}.told")
            for number, plan in enumerate(crowds)
        ]
        for part in (self._publishing, *[part for part, _ in self._crowds]):
            await part.start()
        for part in (self._publishing, *[part for part, _ in self._crowds]):
            await part.wait_for("ready", OPEN_S)

    def _part(self, name: str, module: str, plan: CrowdPlan | PublishingPlan) -> Part:
        file = self._folder / f"{name}.plan"
        plan.write(file)
        arguments = ["--plan", str(file), "--expected", str(self._expected)]
        if module == "crowd":
            arguments += ["--told", str(self._folder / f"{name}.told")]
        return self._stage.part(name, f"{ROOM}.{module}", arguments)

    def publish(self) -> None:
        """Begin."""
        assert self._publishing is not None
        self._publishing.order(f"go {time.monotonic_ns()}")

    def strike(self, hit_ns: int) -> None:
        """The fault has struck."""
        for part, _ in self._crowds:
            part.order(f"go {hit_ns}")

    def counted(self, what: str, crowds: int) -> int:
        """How many of the first so many crowds' clients are `accepted`, or `served`."""
        for part, _ in self._crowds:
            part.require_alive()
        return sum([int(part.state.get(what, 0)) for part, _ in self._crowds[:crowds]])

    async def settle(self) -> tuple[Expected, list[CrowdTold]]:
        """End publishing, and return what was published and what each crowd tells once all has come, or has not.
        Raises PeerError."""
        assert self._publishing is not None
        self._publishing.order("finish")
        await self._publishing.wait_for("settled", SETTLE_S)
        for part, _ in self._crowds:
            part.order("finish")
        for part, _ in self._crowds:
            await part.wait_for("settled", SETTLE_S)
        return Expected.read(self._expected), [CrowdTold.read(file) for _, file in self._crowds]

    async def leave(self) -> None:
        """All sessions end, or what has not yet LEAVE_S later stays behind. Raises PeerError."""
        for part, _ in self._crowds:
            part.require_alive()
        with suppress(PeerError):
            for part, _ in self._crowds:
                await part.wait_for("gone", LEAVE_S)

    async def until(self, what: str, count: int, limit_s: float, crowds: int = 1) -> str:
        """Return when so many are; what is lacking after `limit_s`, in words. Raises PeerError."""
        until_s = time.monotonic() + limit_s
        while (reached := self.counted(what, crowds)) < count:
            if time.monotonic() > until_s:
                return f"{reached:,} of {count:,} are {what} after {limit_s:.0f} s"
            await asyncio.sleep(LOOK_S)
        return ""


def strike_down(cluster: DrilledCluster, seen: Overview, victims: Sequence[int], power: bool) -> int:
    """Kill the brokers of these machines, or take their power away; when that was. Raises UnavailableError."""
    machines = [cluster.machines[number] for number in victims]
    pids = [seen.place(name).pid for machine in machines for name in seen.on("broker", machine)]
    if len(pids) < len(machines):
        raise UnavailableError(f"no broker is on one of {', '.join([machine.name for machine in machines])}")
    hit_ns = time.monotonic_ns()
    if not power:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return hit_ns
    for machine in machines:
        machine.cut(incoming=True, outgoing=True)
    for machine in machines:
        machine.kill()
    return hit_ns


class Survivors:
    """The brokers and coordinators that live on, and the CPU that they have taken since."""

    def __init__(self, cluster: DrilledCluster, seen: Overview, victims: Sequence[int], power: bool) -> None:
        self._pids: dict[str, list[int]] = {}
        for kind, dead in (("broker", set(victims)), ("coordinator", set(victims) if power else set[int]())):
            machines = [machine for machine in cluster.machines if machine.number not in dead]
            self._pids[kind] = [seen.place(name).pid for machine in machines for name in seen.on(kind, machine)]
        self._before_s = self._taken_s()

    def _taken_s(self) -> dict[str, float]:
        return {kind: sum(map(cpu_s, pids)) for kind, pids in self._pids.items()}

    def cpu_s(self) -> dict[str, float]:
        """By kind, seconds."""
        return {kind: taken_s - self._before_s[kind] for kind, taken_s in self._taken_s().items()}


def spread_wrongly(cluster: DrilledCluster, status: dict[str, Any]) -> int:
    """How many groups have no copy in one of the locations."""
    coordination = status.get("coordination", {})
    members = coordination.get("members", {}).get("coordinator", {})
    where = {}
    for machine, location in zip(cluster.machines, LOCATIONS, strict=True):
        for name, member in members.items():
            if any(f"tcp:{machine.host}:" in address for address in member.get("addresses", ())):
                where[name] = location
    states = coordination.get("group_states", {}).values()
    return sum([len({where.get(name) for name in names}) < len(set(LOCATIONS)) for _, _, names in states])


class Scenarios:
    """Faults one after the other on one cluster."""

    def __init__(self, cluster: DrilledCluster, folder: Path, far_s: float, seed: int) -> None:
        """`far_s`: how much longer the way to the other location is."""
        self.cluster = cluster
        self.far_s = far_s
        self.seed = seed
        self._folder = folder
        self._chance = random.Random(seed)
        self._runs = 0

    def next_folder(self) -> tuple[str, Path]:
        """The name of the next run, and where its files go."""
        self._runs += 1
        return f"run{self._runs}", self._folder / f"run{self._runs}"

    def hosts(self, machines: Sequence[int]) -> list[str]:
        """Where clients find the brokers of these."""
        return [self.cluster.machines[number].host for number in machines]

    async def take_over(self, case: Case) -> TakeOver:
        """One fault. Raises PeerError, UnavailableError."""
        seen = await self.cluster.healed()
        run, folder = self.next_folder()
        plan = self._crowd(case, run)
        hosts = self.hosts([case.survivors[number % len(case.survivors)] for number in range(PUBLISHERS)])
        async with Stage(folder) as stage:
            load = ScenarioLoad(stage, folder)
            await load.open([plan], PublishingPlan(run, hosts, case.sessions, case.shared_rate, case.own_rate))
            load.publish()
            await asyncio.sleep(self._chance.uniform(*BEFORE_S))
            survivors = Survivors(self.cluster, seen, case.victims, case.power)
            hit_ns = await asyncio.to_thread(strike_down, self.cluster, seen, case.victims, case.power)
            load.strike(hit_ns)
            lacks = await load.until("served", case.sessions, SERVED_S)
            taken_s = survivors.cpu_s()
            await asyncio.sleep(AFTER_S)
            expected, told = await load.settle()
            found = TakeOver(case, hit_ns, told[0].found(), expected.reconnects, os.getloadavg()[0], taken_s)
            unanswered = sum(map(len, expected.unanswered.values()))
            found.problems += [lacks] * bool(lacks) + [f"{unanswered} not acknowledged"] * bool(unanswered)
            await load.leave()
        return found

    def _crowd(self, case: Case, run: str) -> CrowdPlan:
        homes = [case.victims[number % len(case.victims)] for number in range(case.sessions)]
        lists = [self.hosts(broker_list(home, case.towards)) for home in homes]
        far, silence_s = self.hosts(far_from(case.victims)), SILENCE_S if case.power else 0.0
        return CrowdPlan(run, 0, lists, True, True, far, self.far_s, silence_s, seed=self.seed)


def all_fates(told: Sequence[CrowdTold]) -> list[Fate]:
    """Of several processes."""
    return [fate for each in told for fate in each.found()]
