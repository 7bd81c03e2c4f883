"""Drills on the real thing: whatever can die, stop or be cut off does so under load, and what is lost is counted.

Three machines of their own (network, PID and mount namespaces of this one, joined by a router: it needs root), a Ray of
three nodes on them, `lexicast up --address` in it with two copies of each group. Clients of four makes publish with QoS
0, 1 and 2 and subscribe, each with a list of brokers and knowing nothing but to connect again. In each drill one kind
of fault strikes; when the cluster is whole again (`lexicast up` is started again where its status says that this is
needed) the next one follows. All is on one machine, so this measures detection and succession, not a network.

    lost, disorder, doubled   see `audit`: all must be 0; what is `repeated` (and the like) is permitted
    recover_<kind>_p50_ms, _p95_ms, _max_ms
                              of each drill's longest delay, from publishing to arrival, of messages that were under way
                              or sent after the fault, between clients that are connected elsewhere
    recover_crash_p95_ms      of kills of a coordinator's or broker's process
    recover_node_p95_ms       of nodes that are killed, lose power, stop, lose their raylet, or are cut off
    drain_max_ms              of nodes that are drained, the longest; who was connected there is among `returned`
    recover_one_way_p95_ms    of nodes that are heard and hear nothing, or hear and are not heard
    returned_p50_ms, _p95_ms  till a subscriber of a lost broker or node has the first message published after the loss
    restarts                  how often `lexicast up` had to be started again

At the end one of the three nodes is killed in the middle of a longer spell (`--stop-s`): MigratoryData's table 2.

`--scenario` plays no drills: on four machines in two locations, each with two copies of the groups it takes part in,
brokers die that have a thousand MQTT sessions (REAPS, figure 3), or ten thousand that all come back at once:

    broker      one is killed; its sessions' lists go on with its location's other one, or with the other location
    brokers     two, of different locations; location: both machines of one lose power
    takeover_<local|remote|brokers|location>_p95_ms
                              from the end of a client's connection till CONNACK of its session and the first message
                              that was published after the fault; the median of the rounds' (`_worst`: the worst one's)
    takeover_<...>_cpu_ms     of the brokers and coordinators that live on, for each session: what the machine's other
                              programs change least
    local_vs_remote           takeover_local_p95_ms by takeover_remote_p95_ms, within a round
    repeats_per_subscriber    messages that came again because a session goes on where its broker last told that it was
    lost, disorder, doubled   of all sessions: see `scenarios.session_audit`
    storm_s                   from the kill of a broker till the last of its clients has its session back
    storm_others_p99_ms       meanwhile, from publishing to arrival, between clients of other brokers
    storm_refused, storm_refused_max_s
                              clients that were not served at their first try, and for how long
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from lexicast.cluster.errors import UnavailableError

from .. import report as reports
from ..report import DriverReport
from . import machines
from .audit import Delay
from .clusters import MQTT_PORT, DrilledCluster
from .figures import Drilled, Spell, percentile
from .kinds import KINDS, Fault, Struck
from .load import DrillLoad, lacking_makes
from .picture import draw
from .scenarios.driver import perform_scenarios
from .scenarios.options import add_options, settle_options
from .scenarios.pictures import draw_scenarios
from .scenarios.telling import figure_keys, tell_figures, tell_tables

MODULE: Final = "lexicast.bench.failover"
NODES: Final = 3
BEFORE_S: Final = 1.0
AFTER_S: Final = 2.0
UNDER_WAY_S: Final = 10.0
QUICK: Final = ("coordinator_kill", "broker_kill", "node_pause", "cut_both")
BARS_S: Final = {"a crash: 250 ms": 0.25, "a node: 1.25 s": 1.25}
CRASHES: Final = ("broker_kill", "coordinator_kill")
NODES_LOST: Final = ("raylet_kill", "node_kill", "node_off", "node_pause", "cut_both")
FIGURES: Final = ("lost", "disorder", "doubled", "recover_crash_p95_ms", "recover_node_p95_ms")
ONE_WAY: Final = ("cut_in", "cut_out")
NOTES_MAX: Final = 5
LATE_S: Final = 2.0


class Drills:
    """All drills over one cluster."""

    def __init__(self, report: DriverReport, cluster: DrilledCluster, load: DrillLoad) -> None:
        self._report = report
        self._cluster = cluster
        self._load = load
        self._noted = 0
        self.drilled: list[Drilled] = []
        self.spells: list[Spell] = []
        self.stopped: list[tuple[float, float]] = []

    async def drill(self, kind: Fault, turn: int) -> Struck:
        """One."""
        load, audit = self._load, self._load.audit
        seen = await self._cluster.healed()
        await load.go_home()
        since, at = audit.marks(), load.at()
        load.pace.on = True
        await asyncio.sleep(BEFORE_S)
        hit_s = time.monotonic()
        struck = await asyncio.to_thread(kind.strike, self._cluster, seen, turn)
        try:
            await asyncio.sleep(kind.lasts_s)
        finally:
            if struck.end is not None:
                await asyncio.to_thread(struck.end)
        await asyncio.sleep(AFTER_S if struck.end is not None else 0.0)
        load.pace.on = False
        if lacks := await load.settled(since):
            self._report.problem(f"{kind.name}: {lacks}")
        self._count(kind, struck, since, at, hit_s)
        return struck

    def _count(self, kind: Fault, struck: Struck, since: dict[str, int], at: dict[str, str], hit_s: float) -> None:
        audit = self._load.audit
        elsewhere = [name for name, host in at.items() if struck.everywhere or host != struck.machine.host]
        publishers = [name for name in self._load.publishers if name in elsewhere]
        subscribers = [name for name in self._load.subscribers if name in elsewhere]
        delays = audit.delays(since, audit.marks(), publishers, subscribers)
        felt = [each for each in delays if each.sent_s + each.took_s > hit_s]
        lost = [name for name in self._load.subscribers if name not in subscribers]
        back = [audit.first_after(name, hit_s) for name in lost]
        returned = tuple(first_s - hit_s for first_s in back if first_s is not None)
        worst = max(felt, key=lambda each: each.took_s, default=Delay(hit_s, 0.0, "", ""))
        whose = f"{worst.publisher} to {worst.subscriber}, sent {worst.sent_s - hit_s:+.2f} s"
        self.drilled.append(Drilled(kind.name, worst.took_s, returned, whose))
        for note in audit.notes[self._noted :][:NOTES_MAX]:
            self._report.console.print(f"  {note}", highlight=False)
        self._noted = len(audit.notes)
        late = Counter([side for each in felt if each.took_s > LATE_S for side in (each.publisher, each.subscriber)])
        if late:
            told = ", ".join([f"{name} {count}" for name, count in late.most_common()])
            self._report.console.print(f"  later than {LATE_S} s: {told}", highlight=False)
        counts = {name: count for name, count in audit.counts.items() if count}
        self._report.console.print(f"  {1e3 * worst.took_s:.0f} ms ({whose}); so far {counts}", highlight=False)

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


async def run(report: DriverReport, progress: reports.Steps, folder: Path) -> None:
    """All of it, on one cluster."""
    options = report.options
    cluster = DrilledCluster(folder, NODES)
    try:
        progress.step("starting three nodes")
        await asyncio.to_thread(cluster.start)
        hosts = [machine.host for machine in cluster.machines]
        load = DrillLoad(hosts, MQTT_PORT, cluster.head.disk, options.rate)
        drills = Drills(report, cluster, load)
        try:
            await cluster.healed()
            await load.start()
            await drill_all(report, progress, cluster, drills)
        finally:
            await load.stop()
            tell(report, cluster, load, drills)
    finally:
        cluster.close()


async def drill_all(report: DriverReport, progress: reports.Steps, cluster: DrilledCluster, drills: Drills) -> None:
    """One after the other, and the cluster whole again between them."""
    options = report.options
    for turn, name in enumerate(planned(options)):
        progress.step(name)
        try:
            await drills.drill(KINDS[name], turn)
            if lacked := await cluster.restore():
                report.console.print(f"  lexicast up was started again: {lacked}", highlight=False)
        except UnavailableError as error:
            report.problem(f"drill {turn + 1} ({name}): {error}")
            return
    if options.stop_s:
        progress.step("one of three nodes is stopped in the middle")
        await drills.stop_in_the_middle(options.stop_s)


def planned(options: argparse.Namespace) -> list[str]:
    """The kinds of the drills, in order: each kind once before any comes again."""
    chance, found = random.Random(options.seed), list[str]()
    while len(found) < options.drills:
        found += chance.sample(options.kinds, len(options.kinds))
    return found[: options.drills]


def tell(report: DriverReport, cluster: DrilledCluster, load: DrillLoad, drills: Drills) -> None:
    """Figures, tables and picture."""
    audit, drilled = load.audit, drills.drilled
    counts = {"lost": audit.lost(), "disorder": audit.counts["disorder"], "doubled": audit.counts["doubled"]}
    for name, count in counts.items():
        if count:
            report.problem(f"{count} {name}")
    report.samples["notes"] = audit.notes
    report.samples["missing"] = audit.missing(dict.fromkeys(load.publishers, 0))
    more = {name: audit.counts[name] for name in ("repeated", "repeated_qos2", "unexplained", "sent_anew", "refused")}
    more["restarts"] = cluster.restarts
    told = {"drills": len(drilled), "published": audit.published, "delivered": audit.delivered, **counts, **more}
    for name, count in told.items():
        report.figure(name, count)
    report.figure("lost_qos0", audit.fleeting_lost())
    for name, some in (("crash", CRASHES), ("node", NODES_LOST), ("one_way", ONE_WAY)):
        values = [each.elsewhere_s for each in drilled if each.kind in some]
        report.figure(f"recover_{name}_p95_ms", in_ms(percentile(values, 95)))
    drains = [each.elsewhere_s for each in drilled if each.kind == "node_drain"]
    report.figure("drain_max_ms", in_ms(max(drains, default=None)))
    returned = [back_s for each in drilled for back_s in each.returned_s]
    for percent in (50, 95, 100):
        report.figure(f"returned_p{percent}_ms", in_ms(percentile(returned, percent)))
    rows = []
    for kind in [name for name in KINDS if any(each.kind == name for each in drilled)]:
        values = [each.elsewhere_s for each in drilled if each.kind == kind]
        back = [back_s for each in drilled if each.kind == kind for back_s in each.returned_s]
        report.samples[kind] = {"elsewhere_s": values, "returned_s": back}
        row = [in_ms(percentile(values, percent)) for percent in (50, 95, 100)]
        for name, value in zip(("p50", "p95", "max"), row, strict=True):
            report.figure(f"recover_{kind}_{name}_ms", value)
        row += [in_ms(percentile(back, percent)) for percent in (50, 95)]
        rows.append([kind, str(len(values)), *(reports.format_number(each, 0) for each in row)])
    columns = ["fault", "drills", "p50", "p95", "max", "returned p50", "p95"]
    report.table("a drill's longest delay elsewhere, and when clients of what was lost are back, ms", columns, rows)
    tell_stopped(report, drills)
    if report.options.picture is not None and drilled:
        draw(drilled, drills.stopped, BARS_S, report.options.picture)


def tell_stopped(report: DriverReport, drills: Drills) -> None:
    """MigratoryData's table 2, ours beside theirs."""
    if not drills.spells:
        return
    names = ("median", "mean", "deviation", "p90", "p95", "p99", "max")
    rows = []
    for spell in drills.spells:
        row = spell.row()
        rows.append([spell.name, *(reports.format_number(value, 1) for value in row), "/".join(map(str, spell.spread))])
        for name, value in zip(names, row, strict=True):
            report.figure(f"stopped_{spell.name.split()[0]}_{name}_ms", value)
    report.table("one of three nodes without power in the middle, ms", ["spell", *names, "clients"], rows)
    report.table(
        "MigratoryData's table 2 (300,000 subscribers, one of three servers stopped), ms",
        ["spell", "median", "mean", "deviation", "p90", "p95", "p99"],
        MIGRATORY,
    )


MIGRATORY: Final = (
    ["before", "11", "10.7", "6.04", "15", "16", "21"],
    ["after", "11", "11.39", "12.06", "15", "17", "56"],
)


def in_ms(seconds: float | None) -> float | None:
    """The same in ms."""
    return None if seconds is None else 1e3 * seconds


def measure(report: DriverReport) -> None:
    """See the module's docstring."""
    if reason := machines.lacking():
        report.missing("a cluster", f"no machines can be made here: {reason}")
        for key in FIGURES if report.options.scenario is None else figure_keys(report.options.scenario):
            report.figure(key, None)
        return
    with ExitStack() as stack:
        folder = report.options.keep
        if folder is None:
            made = tempfile.TemporaryDirectory(prefix="lexd-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
        folder.mkdir(parents=True, exist_ok=True)
        machines.open_router()
        if report.options.scenario is None:
            drill(report, folder.resolve())
        else:
            play(report, folder.resolve())


def drill(report: DriverReport, folder: Path) -> None:
    """The drills."""
    for name, what_to_do in lacking_makes().items():
        report.missing(name, what_to_do)
    with reports.Steps(report.console, report.options.drills + 2) as progress:
        asyncio.run(run(report, progress, folder))


def play(report: DriverReport, folder: Path) -> None:
    """The scenarios. Raises UnavailableError."""
    found = perform_scenarios(report, folder)
    tell_figures(report, found)
    tell_tables(report, found)
    if report.options.picture is not None:
        draw_scenarios(found, report.options.picture)


def kinds(text: str) -> list[str]:
    """The option's value `--kinds`: names of KINDS, or the beginnings of names."""
    found = [name for part in text.split(",") for name in KINDS if name.startswith(part)]
    if not found:
        raise ValueError(f"{text}: no such kind; there are {', '.join(KINDS)}")
    return found


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options."""
    parser = reports.parser("failover", __doc__, default_targets="lexicast")
    parser.add_argument("--drills", type=reports.positive, help="default: 3 of each kind; quick: 1 of four kinds")
    parser.add_argument("--kinds", type=kinds, help=f"comma-separated, or how they begin: {', '.join(KINDS)}")
    parser.add_argument("--rate", type=float, default=15.0, help="publications a second of each publisher (default 15)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the drills (default 1)")
    parser.add_argument("--stop-s", type=float, help="spells before and after the last loss (default 40; quick none)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw what the drills took")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the machines' files and logs there")
    add_options(parser)
    options = parser.parse_args(argv)
    settle_options(options)
    options.kinds = options.kinds or list(QUICK if options.quick else KINDS)
    options.drills = options.drills or len(options.kinds) * (1 if options.quick else 3)
    if options.stop_s is None:
        options.stop_s = 0.0 if options.quick else 40.0
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.failover`; returns the exit code."""
    options = parse(argv)
    if not machines.lacking():
        machines.enter(MODULE, sys.argv[1:] if argv is None else argv)
    return reports.drive("failover", options, measure)
