"""What a second copy costs: CPU a message, bytes of log a subscription, seconds until all are served after a loss.

Two clusters of two coordinators each run at the same time and take turns under the same loads, with the same window:
in one every topic group has one copy, in the other two (`cluster.copies`), so each coordinator there also follows what
the other one leads. CPU is that of all processes of a cluster (brokers, coordinators, coordination and sampling; not
Ray's own daemons), in microseconds a publication; the cost is two copies' by one copy's of the same round, less 1.

Shapes: `fanout`, one topic to 100 subscribers, QoS 1 (the copy is cheap beside so many deliveries); `batches`, one to
one, QoS 1, as many publications a read as come (a block holds many); `fleet`, 1,000 publishers with a topic each and
one message under way, QoS 1, to one wildcard subscriber (a block holds few: the dearest); `fleet_qos0`, the same
without acknowledgements. Each with small and with large payloads (`--payloads`).

    replication_cpu_cost        the dearest shape and payload's; `replication_cpu_cost_best` is the cheapest's
    subscribe_log_bytes         log that a persistent session with one wildcard (`devices/N/#`) writes, in all copies
    resubscribe_s               from the death (SIGKILL) of a leader until each of these sessions, which stay connected,
                                has got a publication that was sent after it: the longest;
                                `resubscribe_unhurt_s`: what publishing to all of them takes with nobody lost
    quasi_active_cpu            what it costs a broker to tell the homes of its sessions how far they are, and to save
                                them (`--state-sessions`, at `--state-rate` messages a second in all, QoS 1): its CPU a
                                message with and without, less 1, of the dearest shape. `all`: every session gets
                                messages; `few`: one in ten; `silent`: one in ten acknowledges nothing
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from lexicast.cluster.errors import PeerError

from .. import report as reports
from ..contest import Scenario, contest
from ..peers.fleet_load import FleetLoad, OpenFleet
from ..peers.loadgen import Load, OpenLoad
from ..peers.session_opening import raise_open_files
from ..report import DriverReport
from ..stage.clusters import start_lexicast
from ..stage.servers import Target
from .session_state import measure_session_state
from .subscriptions import measure_subscriptions

COORDINATORS: Final = 2
COPIES: Final = {"one copy": 1, "two copies": 2}
CONFIG: Final = "[cluster]\ncopies = {copies}\n[node]\ncoordinators = {coordinators}\n"
SHAPES: Final = ("fanout", "batches", "fleet", "fleet_qos0")
# Fixed, not chosen by rate: batches of another size would be another load.
FANOUT_WINDOW: Final = 250
BATCH_WINDOW: Final = 1_000


@contextlib.contextmanager
def clusters(copies: dict[str, int]) -> Iterator[dict[str, Target]]:
    """A cluster for each; they are stopped at the end, whatever happens. Raises UnavailableError."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lexicast-bench-")))
        started = {}
        for name, count in copies.items():
            folder = directory / str(count)
            folder.mkdir()
            started[name] = start_lexicast(folder, CONFIG.format(copies=count, coordinators=COORDINATORS), name)
            stack.callback(started[name].stop)
        yield started


def scenarios(options: argparse.Namespace) -> list[Scenario]:
    """The loads to run, by what their figures are called."""
    made = []
    for shape in options.shapes:
        for size in options.payloads:
            name = f"{shape}_{size}"
            if shape == "fanout":
                load = Load(name, options.subscribers, size, qos=1)
                open_load = partial(OpenLoad, load=load)
                made.append(Scenario(name, open_load, 1, options.subscribers, (FANOUT_WINDOW,)))
            elif shape == "batches":
                made.append(Scenario(name, partial(OpenLoad, load=Load(name, 1, size, qos=1)), 1, 1, (BATCH_WINDOW,)))
            else:
                fleet = FleetLoad(name, options.publishers, size, int(shape == "fleet"))
                made.append(Scenario(name, partial(OpenFleet, load=fleet), fleet.qos, 1, (options.publishers,)))
    return made


def measure(report: DriverReport) -> None:
    """See the module's docstring."""
    options = report.options
    raise_open_files(len(COPIES) * (options.publishers + options.subscribers) + options.sessions + 500)
    chosen = scenarios(options)
    steps = len(chosen) * (1 + options.rounds) + 1 + 2 * options.losses + options.state_rounds
    with reports.Steps(report.console, steps) as progress:
        if chosen:
            with clusters(COPIES) as targets:
                for scenario in chosen:
                    contest(report, progress, list(targets.values()), scenario)
        _cpu_figures(report, chosen)
        if options.sessions and options.losses:
            with clusters({"two copies": 2}) as targets:
                try:
                    measure_subscriptions(report, progress, targets["two copies"])
                except PeerError as error:
                    report.problem(f"{options.sessions} sessions: {error}")
        if options.state_sessions and options.state_rounds:
            measure_session_state(report, progress)


def _sums(samples: dict[str, list[float | None]]) -> list[float | None]:
    """CPU of all roles, round by round."""
    return [None if None in one else sum([v or 0.0 for v in one]) for one in zip(*samples.values(), strict=True)]


def cpu_cost(samples: dict[str, Any]) -> float | None:
    """What two copies cost beyond one, as a share of that: the median of the rounds' ratios, less 1."""
    one, two = [_sums(samples[name]["cpu_us"]) for name in COPIES]
    ratio = reports.median_ratio(two, one)
    return None if ratio is None else ratio - 1


def _cpu_figures(report: DriverReport, chosen: Sequence[Scenario]) -> None:
    costs, rows = [], []
    for scenario in chosen:
        samples = report.samples[scenario.name]
        cost = cpu_cost(samples)
        report.figure(f"replication_cpu_cost_{scenario.name}", cost)
        if cost is not None:
            costs.append(cost)
        cells = []
        for name in COPIES:
            roles = {role: reports.median(us) or 0.0 for role, us in samples[name]["cpu_us"].items()}
            total = reports.median(_sums(samples[name]["cpu_us"]))
            report.figure(f"{scenario.name}_{'two' if COPIES[name] > 1 else 'one'}_cpu_us", total)
            cells.append(f"{total or 0.0:.1f} ({roles['brokers']:.1f} + {roles['coordinators']:.1f})")
        rates = [reports.format_rate(reports.median(samples[name]["deliveries_per_s"])) for name in COPIES]
        rows.append([scenario.name, *cells, reports.format_number(cost), *rates])
    report.figure("replication_cpu_cost", max(costs, default=None))
    report.figure("replication_cpu_cost_best", min(costs, default=None))
    columns = ["shape, payload", "one copy: CPU us", "two copies: CPU us", "cost", "one: deliveries/s", "two"]
    rounds = f"median of {report.options.rounds} rounds"
    title = f"CPU of a publication, all processes, {rounds}\nin brackets: brokers + coordinators"
    report.table(title, columns, rows)


def _shapes(text: str) -> list[str]:
    chosen = text.split(",") if text else []
    if not set(chosen) <= set(SHAPES):
        raise ValueError(f"{text}: only {', '.join(SHAPES)}")
    return chosen


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options; what is left out follows from the mode."""
    parser = reports.parser("replication", __doc__, default_targets="lexicast")
    parser.add_argument("--shapes", type=_shapes, default=SHAPES, help=f"comma-separated, of {', '.join(SHAPES)} (all)")
    parser.add_argument("--payloads", type=reports.integers, default=[140, 2_000], help="bytes (default 140,2000)")
    parser.add_argument("--seconds", type=float, help="length of one run (default 3; quick 0.3)")
    parser.add_argument("--publishers", type=reports.positive, default=1_000, help="of a fleet (default 1000)")
    parser.add_argument("--subscribers", type=reports.positive, default=100, help="of `fanout` (default 100)")
    parser.add_argument("--sessions", type=int, help="with a wildcard each, 0: none (default 10000; quick 1000)")
    parser.add_argument("--losses", type=int, help="of a leader, 0: sessions are not measured (default 5; quick 1)")
    parser.add_argument("--state-sessions", type=int, help="whose state is told, 0: none (default 10000; quick 1000)")
    parser.add_argument("--state-rate", type=reports.positive, default=5_000, help="messages/s to them (default 5000)")
    parser.add_argument("--state-seconds", type=float, help="length of one run (default 10; quick 2)")
    parser.add_argument("--state-rounds", type=int, help="with clusters of their own (default 5; quick 1)")
    parser.add_argument("--messages", type=int, help="end a run after so many publications")
    parser.add_argument("--mqtt-version", type=int, choices=(4, 5), default=4, help="4 is MQTT 3.1.1 (default)")
    options = parser.parse_args(argv)
    quick = options.quick
    options.seconds = options.seconds or (0.3 if quick else 3.0)
    options.calibrate_seconds = min(0.3, options.seconds)
    options.sessions = (1_000 if quick else 10_000) if options.sessions is None else options.sessions
    options.state_sessions = (1_000 if quick else 10_000) if options.state_sessions is None else options.state_sessions
    options.state_seconds = options.state_seconds or (2.0 if quick else 10.0)
    options.state_rounds = (1 if quick else 5) if options.state_rounds is None else options.state_rounds
    options.losses = (1 if quick else 5) if options.losses is None else options.losses
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.replication`; returns the exit code."""
    return reports.drive("replication", parse(argv), measure)


if __name__ == "__main__":
    sys.exit(main())
