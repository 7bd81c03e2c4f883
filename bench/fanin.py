"""Messages per second of 1,000 and 5,000 publishers to one wildcard subscriber, QoS 0 and 1, beside peers.

A fleet: each connection has a topic of its own and sends one message of 140 B a write.

All targets run at the same time and take turns; the same generator loads each of them, with the window of a ladder
(messages under way, of all connections together) that suits it best. The least is one message a connection: then a
broker reads one message at a time, and nothing can be taken in runs. With more, a broker that falls behind finds
several in one read; what each window gave is told. That everything arrives, unchanged and in order within each topic,
is checked: what is not makes the exit code 1. CPU is that of the target's processes, in microseconds a message; the
generator runs on the same cores, so its share is told: near 100% it is the generator that was measured.

lexicast sequences and stores every message (QoS 1: durable before each acknowledgement); the peers do not store.
NATS has no acknowledged delivery in its core, so QoS 1 is compared with Mosquitto alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from lexicast.cluster.errors import UsageError

from . import report as reports
from .contest import WINDOWS, Scenario, add_run_options, contest, set_lengths
from .peers.fleet_load import FleetLoad, OpenFleet
from .peers.session_opening import raise_open_files
from .peers.targets import running
from .report import DriverReport

PEERS = ("mosquitto", "nats")

DATA_PATH = ("brokers", "coordinators")
"""The roles whose CPU a message `fanin_cpu_us` adds up."""


def scenarios(options: argparse.Namespace) -> list[Scenario]:
    """The loads to run, named by what their figures are called."""
    made = []
    for count in options.publishers:
        windows = options.windows or sorted({max(count, window) for window in WINDOWS})
        for qos in options.qos:
            load = FleetLoad(f"fanin_{count}_qos1" if qos else f"fanin_{count}", count, options.payload, qos)
            made.append(Scenario(load.name, partial(OpenFleet, load=load), qos, windows=windows))
    return made


def measure(report: DriverReport) -> None:
    """Runs all scenarios against all targets."""
    options = report.options
    names = options.targets.split(",")
    if options.messages is not None and options.messages < 1:
        raise UsageError("--messages must be at least 1")
    raise_open_files(len(names) * max(options.publishers) + 200)
    chosen = scenarios(options)
    steps = len(chosen) * (1 + options.rounds)
    with running(names, report.missing) as targets, reports.Steps(report.console, steps) as progress:
        for scenario in chosen:
            contest(report, progress, list(targets.values()), scenario)
    _figures(report, chosen)


def data_path_cpu_us(samples: dict[str, list[float | None]]) -> float | None:
    """Broker and coordinator together, in us a message: the median of the rounds' sums."""
    rounds = zip(*(values for role, values in samples.items() if role in DATA_PATH), strict=True)
    return reports.median([None if None in one else sum(value or 0.0 for value in one) for one in rounds])


def _figures(report: DriverReport, chosen: Sequence[Scenario]) -> None:
    rows = []
    report.figure("fanin_cpu_us", None)
    for scenario in chosen:
        samples = report.samples[scenario.name]
        rates = {name: one["deliveries_per_s"] for name, one in samples.items()}
        for peer in PEERS if not scenario.qos else PEERS[:1]:
            report.figure(f"{scenario.name}_vs_{peer}", reports.median_ratio(rates.get("lexicast"), rates.get(peer)))
        for name, one in samples.items():
            report.figure(f"{scenario.name}_{name}_per_s", reports.median(one["deliveries_per_s"]))
            for role, values in one["cpu_us"].items():
                report.figure(f"{scenario.name}_{name}_{role}_cpu_us", reports.median(values))
            report.figure(f"{scenario.name}_{name}_generator_cpu", reports.median(one["generator_cpu"]))
            rows.append(_row(report, scenario, name, one))
    if "lexicast" in report.samples.get("fanin_1000", {}):
        report.figure("fanin_cpu_us", data_path_cpu_us(report.samples["fanin_1000"]["lexicast"]["cpu_us"]))
    columns = ["publishers to one", "target", "msg/s", "vs mosquitto", "CPU us", "generator", "msg/s by window", "lost"]
    title = (
        f"One message of {report.options.payload} B a write, median of {report.options.rounds} rounds\n"
        "CPU of a message: brokers + coordinators, and in brackets the rest"
    )
    report.table(title, columns, rows)


def _row(report: DriverReport, scenario: Scenario, name: str, samples: dict[str, Any]) -> list[str]:
    cpu = {role: reports.median(values) or 0.0 for role, values in samples["cpu_us"].items()}
    rest = sum(value for role, value in cpu.items() if role not in DATA_PATH)
    told = " + ".join(f"{cpu[role]:.1f}" for role in DATA_PATH if role in cpu)
    share = report.figures[f"{scenario.name}_{name}_generator_cpu"]
    return [
        f"{int(scenario.name.split('_')[1]):,}, QoS {scenario.qos}",
        name,
        reports.format_rate(report.figures[f"{scenario.name}_{name}_per_s"]),
        reports.format_number(report.figures.get(f"{scenario.name}_vs_mosquitto")) if name == "lexicast" else "",
        f"{told} ({rest:.1f})" if rest else told,
        "-" if share is None else f"{share:.0%}",
        "\n".join(f"{reports.format_rate(rate)} at {window:,}" for window, rate in samples["window_rates"].items()),
        str(sum(value or 0 for value in samples["lost"])),
    ]


QUICK_S = (0.5, 0.2)
"""Seconds of one run, and of one run of the ladder, in quick mode."""


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options; what is left out follows from the mode."""
    parser = reports.parser("fanin", __doc__, default_targets="lexicast,mosquitto,nats")
    parser.add_argument("--publishers", type=reports.integers, default=[1_000, 5_000], help="default 1000,5000")
    parser.add_argument("--qos", type=reports.qualities, default=[0, 1], help="default 0,1 (NATS: 0 alone)")
    parser.add_argument(
        "--windows", type=reports.integers, help="messages under way, to choose from (default: see above)"
    )
    add_run_options(parser, *QUICK_S)
    return set_lengths(parser.parse_args(argv), *QUICK_S)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.fanin`; returns the exit code."""
    return reports.drive("fanin", parse(argv), measure)


if __name__ == "__main__":
    sys.exit(main())
