"""One fault after the other over one cluster under load, and what each of them cost."""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from lexicast.cluster.errors import UnavailableError

from .. import report as reports
from ..report import DriverReport
from .audit import Delay
from .clusters import DrilledCluster
from .figures import AT_ONCE_S, Drilled, Spell
from .kinds import DRAIN, KINDS, Fault, Struck
from .load import DrillLoad
from .overview import Overview
from .truth.judging import DrillRecord, TimeSpan, without_numbers
from .truth.telling import LIMITS

BEFORE_S: Final = 1.0
AFTER_S: Final = 2.0
UNDER_WAY_S: Final = 10.0
NOTES_MAX: Final = 5
LATE_S: Final = 2.0


class Drills:
    """All drills over one cluster."""

    def __init__(
        self,
        report: DriverReport,
        cluster: DrilledCluster,
        load: DrillLoad,
        looked: Callable[[Overview], None] = lambda seen: None,
    ) -> None:
        """`looked`: is told how the cluster looks before each drill.

        Where nodes are probed, `records` has what their answers are judged by."""
        self._report = report
        self._cluster = cluster
        self._load = load
        self._looked = looked
        self._noted = 0
        self.drilled: list[Drilled] = []
        self.records: list[DrillRecord] = []
        self.spells: list[Spell] = []
        self.stopped: list[tuple[float, float]] = []

    async def drill(self, kind: Fault, turn: int) -> Struck:
        """One."""
        load, audit = self._load, self._load.audit
        seen = await self._cluster.healed()
        self._looked(seen)
        await load.go_home()
        since, at = audit.marks(), load.at()
        quiet_s = self._quiet_from()
        load.pace.on = True
        await asyncio.sleep(max(0.0, quiet_s - time.monotonic()) + BEFORE_S)
        hit_s = time.monotonic()
        struck = await asyncio.to_thread(kind.strike, self._cluster, seen, turn)
        struck_s = time.monotonic()
        try:
            await asyncio.sleep(kind.lasts_s)
        finally:
            over_s = time.monotonic()
            if struck.end is not None:
                await asyncio.to_thread(struck.end)
        await asyncio.sleep(AFTER_S if struck.end is not None else 0.0)
        load.pace.on = False
        if lacks := await load.settled(since):
            self._report.problem(f"{kind.name}: {lacks}")
        late = self._count(kind, struck, since, at, hit_s)
        if self._cluster.probers is not None:
            if struck.stays:
                over_s = time.monotonic()
            elif struck.end is None:
                over_s = struck_s
            self.records.append(
                DrillRecord(
                    kind.name,
                    struck.machine.name,
                    struck.names,
                    quiet_s,
                    hit_s,
                    struck_s,
                    over_s,
                    whole_node=struck.whole_node,
                    drains=kind.name == DRAIN,
                    killed=struck.killed,
                    known=frozenset(map(without_numbers, seen.warned())),
                    late=tuple(TimeSpan(each.sent_s, each.sent_s + each.took_s) for each in late),
                )
            )
        return struck

    def _quiet_from(self) -> float:
        """From when on nothing may be amiss: some time after the last drill, of which is told until then."""
        now_s = time.monotonic()
        if not self.records:
            return now_s
        quiet_s = max(now_s, self.records[-1].whole_s + LIMITS.page_s)
        self.records[-1] = replace(self.records[-1], until_s=quiet_s)
        return quiet_s

    async def whole(self, restarted: bool) -> None:
        """After a drill everything is again as it was."""
        if self.records:
            whole_s, known = time.monotonic(), self.records[-1].known
            known |= frozenset(map(without_numbers, (await self._cluster.look()).warned()))
            self.records[-1] = replace(self.records[-1], whole_s=whole_s, known=known, restarted=restarted)

    async def told(self) -> None:
        """Returns when what is to be told of the last drill has been."""
        if self.records:
            await asyncio.sleep(max(0.0, self._quiet_from() - time.monotonic()))

    def _count(
        self, kind: Fault, struck: Struck, since: dict[str, int], at: dict[str, str], hit_s: float
    ) -> list[Delay]:
        """Those that were late, between clients that were connected elsewhere."""
        audit = self._load.audit
        elsewhere = [name for name, host in at.items() if struck.everywhere or host != struck.machine.host]
        publishers = [name for name in self._load.publishers if name in elsewhere]
        subscribers = [name for name in self._load.measured if name in elsewhere]
        delays = audit.delays(since, audit.marks(), publishers, subscribers)
        felt = [each for each in delays if each.sent_s + each.took_s > hit_s]
        lost = [name for name in self._load.measured if name not in elsewhere]
        back = [audit.first_after(name, hit_s) for name in lost]
        returned = tuple(first_s - hit_s for first_s in back if first_s is not None)
        before = [each.took_s for each in delays if each.sent_s + each.took_s <= hit_s]
        worst = max(felt, key=lambda each: each.took_s, default=Delay(hit_s, 0.0, "", ""))
        whose = f"{worst.publisher} to {worst.subscriber}, sent {worst.sent_s - hit_s:+.2f} s"
        at_once = [each.took_s for each in felt if each.sent_s < hit_s + AT_ONCE_S]
        others = [name for name in self._load.subscribers if name in elsewhere and name not in self._load.measured]
        control = [
            each.took_s
            for each in audit.delays(since, audit.marks(), publishers, others)
            if each.sent_s + each.took_s > hit_s
        ]
        most = (max(some, default=0.0) for some in (before, at_once, control))
        self.drilled.append(Drilled(kind.name, worst.took_s, returned, whose, *most))
        for note in audit.notes[self._noted :][:NOTES_MAX]:
            self._report.note(note)
        self._noted = len(audit.notes)
        late = Counter([side for each in felt if each.took_s > LATE_S for side in (each.publisher, each.subscriber)])
        if late:
            told = ", ".join([f"{name} {count}" for name, count in late.most_common()])
            self._report.note(f"later than {LATE_S} s: {told}")
        counts = {name: count for name, count in audit.counts.items() if count}
        self._report.note(f"{1e3 * worst.took_s:.0f} ms ({whose}); so far {counts}")
        return [each for each in felt if each.took_s > LIMITS.page_s]

    async def stop_in_the_middle(self, spell_s: float) -> None:
        """Kill one of the three nodes between two spells: MigratoryData, section 6.2."""
        load, audit = self._load, self._load.audit
        seen = await self._cluster.healed()
        await load.go_home()
        since = audit.marks()
        load.pace.on = True
        await asyncio.sleep(spell_s)
        before = tuple(load.spread()[machine.host] for machine in self._cluster.machines)
        hit_s = time.monotonic()
        struck = await asyncio.to_thread(KINDS["node_off"].strike, self._cluster, seen, 0)
        await asyncio.sleep(spell_s)
        load.pace.on = False
        if lacks := await load.settled(since):
            self._report.problem(f"a node stopped in the middle: {lacks}")
        after = tuple(load.spread()[machine.host] for machine in self._cluster.machines)
        delays = audit.delays(since, audit.marks(), self._load.publishers, self._load.subscribers)
        self.stopped = [(each.sent_s - hit_s, each.took_s) for each in delays]
        whole = [delay for at_s, delay in self.stopped if at_s + delay < 0]
        felt = [delay for at_s, delay in self.stopped if at_s + delay >= 0 and at_s < UNDER_WAY_S]
        then = [delay for at_s, delay in self.stopped if at_s >= UNDER_WAY_S]
        self.spells = [
            Spell("before", whole, before),
            Spell(f"the {UNDER_WAY_S:.0f} s after", felt, ()),
            Spell("later", then, after),
        ]
        assert not struck.machine.runs


async def drill_each(
    report: DriverReport, progress: reports.Steps, cluster: DrilledCluster, drills: Drills, faults: Iterable[Fault]
) -> bool:
    """One after the other, and the cluster whole again between them; whether it was each time."""
    for turn, fault in enumerate(faults):
        progress.step(fault.name)
        try:
            await drills.drill(fault, turn)
            if lacked := await cluster.restore():
                report.note(f"lexicast up was started again: {lacked}")
            await drills.whole(restarted=bool(lacked))
        except UnavailableError as error:
            report.problem(f"drill {turn + 1} ({fault.name}): {error}")
            return False
    await drills.told()
    return True


def planned(options: argparse.Namespace) -> list[str]:
    """The kinds of the drills, in order: each kind once before any comes again."""
    chance, found = random.Random(options.seed), list[str]()
    while len(found) < options.drills:
        found += chance.sample(options.kinds, len(options.kinds))
    return found[: options.drills]
