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

Each node has a console, and beside each machine stands a prober that asks it for /health/live, /health/ready and the
page's overview a few times a second, and publishes to its broker. What they were told is compared with the drills' own
record (`truth.judging` says what is true):

    health_lies               answers that are not true for longer than they may be; must be 0
    ready_false_ms            the longest time for which a node said that it was ready and could not serve; 3,000 may be
    unready_false_ms          the longest time for which it did not say so and could; 2,000 may be, before a fault none
    page_false_ms             the longest time for which the page did not tell of what was struck; 4,000 may be
    page_stale_ms             the longest time for which it told of something when all was whole again; 4,000 may be

At the end one of the three nodes is killed in the middle of a longer spell (`--stop-s`): MigratoryData's table 2.

Most scenarios (`--scenario`) play no drills: on four machines in two locations, each with two copies of the groups it
takes part in, brokers die that have a thousand MQTT sessions (REAPS, figure 3), or ten thousand that all come back at
once:

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

`--scenario content` plays drills again, on three machines with a matcher each, where all subscribers but one have a
condition (`where`) of their own, most of which are true of a tenth of the messages, and a crowd beside them has more
(`--conditions`), so that matchers share them out by cells. Matchers are killed and stopped, and the crowd's hot spot
moves under load, so that cells are split. With `--overlay` there are two matchers a machine, which form an overlay:

    content_lost, content_disorder, content_doubled, content_unwanted
                              as above, of what each subscriber's condition is true of; unwanted: what it is not true of
    matcher_death_ms, matchers_death_ms, matcher_pause_ms (_p50_ms: the median drill's)
                              the longest delay to a subscriber with a condition, of messages that were under way or
                              sent after a matcher was killed, two were, or one stopped; _at_once_ms: of what was sent
                              within half a second (later Ray starts another one, on the same cores)
    matcher_death_control_ms  (and so on) the same of the subscriber without a condition, whom no matcher concerns
    content_quiet_ms          the same of the second before each fault
    cells_most, cells_split, cells_copied
                              the most cells between two drills, those that were split, and with more than two copies
    withheld_share            of the records of which matchers were asked, those that brokers were spared
    overlay_routed, overlay_lost
                              with --overlay: questions that went over other matchers, those that were told to be lost
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from .. import report as reports
from ..report import DriverReport
from . import machines
from .clusters import MQTT_PORT, DrilledCluster
from .content.driver import perform_content
from .content.kinds import CONTENT_NAMES, CONTENT_QUICK
from .content.telling import CONTENT_FIGURES
from .drills import Drills, drill_each, planned
from .kinds import KINDS
from .load import DrillLoad, lacking_makes
from .scenarios.cases import CONTENT
from .scenarios.driver import perform_scenarios
from .scenarios.options import add_options, settle_options
from .scenarios.pictures import draw_scenarios
from .scenarios.telling import figure_keys, tell_figures, tell_tables
from .telling import FIGURES, tell
from .truth.telling import TRUTH_FIGURES, tell_truth

MODULE: Final = "lexicast.bench.failover"
NODES: Final = 3
QUICK: Final = ("coordinator_kill", "broker_kill", "node_pause", "cut_both")


async def run(report: DriverReport, progress: reports.Steps, folder: Path) -> None:
    """All of it, on one cluster."""
    options = report.options
    cluster = DrilledCluster(folder, NODES, probed=not options.unprobed)
    try:
        progress.step("starting three nodes")
        await asyncio.to_thread(cluster.start)
        hosts = [machine.host for machine in cluster.machines]
        load = DrillLoad(hosts, MQTT_PORT, cluster.head.disk, options.rate)
        drills = Drills(report, cluster, load)
        try:
            await cluster.healed()
            await load.start()
            faults = [KINDS[name] for name in planned(options)]
            if await drill_each(report, progress, cluster, drills, faults) and options.stop_s:
                progress.step("one of three nodes is stopped in the middle")
                await drills.stop_in_the_middle(options.stop_s)
        finally:
            await load.stop()
            tell(report, cluster, load, drills)
            if cluster.probers is not None:
                tell_truth(report, drills.records, cluster.probers.read())
    finally:
        cluster.close()


def measure(report: DriverReport) -> None:
    """See the module's docstring."""
    if reason := machines.lacking():
        report.missing("a cluster", f"no machines can be made here: {reason}")
        for key in wanted_figures(report.options):
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


def wanted_figures(options: argparse.Namespace) -> list[str]:
    """The figures that say whether it is as it must be."""
    if options.scenario is None:
        return [*FIGURES, *([] if options.unprobed else TRUTH_FIGURES)]
    return [*figure_keys(options.scenario), *(CONTENT_FIGURES if CONTENT in options.scenario else ())]


def drill(report: DriverReport, folder: Path) -> None:
    """The drills."""
    for name, what_to_do in lacking_makes().items():
        report.missing(name, what_to_do)
    with reports.Steps(report.console, report.options.drills + 2) as progress:
        asyncio.run(run(report, progress, folder))


def play(report: DriverReport, folder: Path) -> None:
    """The scenarios. Raises UnavailableError."""
    if report.options.scenario != [CONTENT]:
        found = perform_scenarios(report, folder)
        tell_figures(report, found)
        tell_tables(report, found)
        if report.options.picture is not None:
            draw_scenarios(found, report.options.picture)
    if CONTENT in report.options.scenario:
        perform_content(report, folder / CONTENT)


def kinds(text: str) -> list[str]:
    """The option's value `--kinds`: names of kinds, or the beginnings of names."""
    every = dict.fromkeys((*KINDS, *CONTENT_NAMES))
    found = [name for part in text.split(",") for name in every if name.startswith(part)]
    if not found:
        raise ValueError(f"{text}: no such kind; there are {', '.join(every)}")
    return found


def settle_kinds(options: argparse.Namespace) -> None:
    """Which are drilled, and how often. Raises ValueError: none of those that were named is one of the scenario's."""
    content = options.scenario is not None and CONTENT in options.scenario
    every, quick = (CONTENT_NAMES, CONTENT_QUICK) if content else (tuple(KINDS), QUICK)
    if options.kinds is None:
        options.kinds = list(quick if options.quick else every)
    else:
        options.kinds = [name for name in options.kinds if name in every]
    if not options.kinds:
        raise ValueError(f"--kinds: none that is drilled here; there are {', '.join(every)}")
    options.drills = options.drills or len(options.kinds) * (1 if options.quick else 3)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options."""
    parser = reports.parser("failover", __doc__, default_targets="lexicast")
    parser.add_argument("--drills", type=reports.positive, help="default: 3 of each kind; quick: 1 of a few kinds")
    names = f"{', '.join(KINDS)}; of scenario {CONTENT}: {', '.join(CONTENT_NAMES)}"
    parser.add_argument("--kinds", type=kinds, help=f"comma-separated, or how they begin: {names}")
    parser.add_argument("--rate", type=float, default=15.0, help="publications a second of each publisher (default 15)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the drills (default 1)")
    parser.add_argument("--stop-s", type=float, help="spells before and after the last loss (default 40; quick none)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw what the drills took")
    parser.add_argument("--unprobed", action="store_true", help="without consoles, and nobody asks them")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the machines' files and logs there")
    add_options(parser)
    options = parser.parse_args(argv)
    settle_options(options)
    try:
        settle_kinds(options)
    except ValueError as error:
        parser.error(str(error))
    if options.stop_s is None:
        options.stop_s = 0.0 if options.quick else 40.0
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.failover`; returns the exit code."""
    options = parse(argv)
    if not machines.lacking():
        machines.enter(MODULE, sys.argv[1:] if argv is None else argv)
    return reports.drive("failover", options, measure)
