"""Deliveries per second of one publisher to 1, 100 and 1,000 subscribers, and of less kind loads, beside peers.

All targets run at the same time and take turns; the same generator loads each of them, with the window of a ladder
(messages ahead of the slowest subscriber) that suits it best. Deliveries are counted and their sequence numbers
checked: a lost, repeated or reordered message is reported and makes the exit code 1.

One topic and one packet length are lexicast's best case: its reader takes such packets in runs. So there are loads
without runs beside it: `varying`, one to one with lengths from a seventh of the mean to 13 sevenths; `topics`, one
publisher that takes a thousand topics in turn, to one wildcard subscriber; `pairs`, a thousand publishers with a topic
and a subscriber each, one message a write. `qos1` is one to one, QoS 1. `fanin` measures many publishers to one
subscriber, `latency` the time that a message takes.

lexicast sequences and stores every message (QoS 1: durable before each acknowledgement); the peers do not store.
NATS has no acknowledged delivery in its core, so QoS 1 is compared with Mosquitto alone.

With `--transport ws` publishers and subscribers come over WebSocket, beside Mosquitto: over WebSocket too where it was
built with it (Debian's is), else over TCP, where it has less to do. The figures begin with `ws_`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from lexicast.cluster.errors import UsageError

from . import report as reports
from .contest import WINDOWS, Scenario, add_run_options, contest, set_lengths
from .peers.fleet_load import FleetLoad, OpenPairs, OpenTopics
from .peers.loadgen import Load, OpenLoad
from .peers.session_opening import raise_open_files
from .peers.targets import running
from .peers.varying_load import OpenVarying
from .report import DriverReport

PEERS = ("mosquitto", "nats")
CASES = ("same", "varying", "topics", "pairs", "qos1")

WINDOW_LADDER = {1: WINDOWS, 100: (250, 1_000, 4_000), 1_000: (100, 500, 2_000)}
"""Windows tried, by the least number of subscribers they are for; chosen like `WINDOWS`."""


def scenarios(options: argparse.Namespace) -> list[Scenario]:
    """The loads to run, named by what their figures are called."""
    made = []
    if "same" in options.cases:
        for count in options.subscribers:
            load = Load(f"fanout_{count}", count, options.payload, verify=options.verify)
            ladder = WINDOW_LADDER[max(size for size in WINDOW_LADDER if size <= count)]
            made.append(Scenario(load.name, partial(OpenLoad, load=load), copies=count, windows=ladder))
    if "varying" in options.cases:
        load = Load("fanout_1_varying", 1, options.payload)
        made.append(Scenario(load.name, partial(OpenVarying, load=load)))
    if "topics" in options.cases:
        fleet = FleetLoad(f"fanout_topics_{options.topics}", options.topics, options.payload)
        made.append(Scenario(fleet.name, partial(OpenTopics, fleet=fleet)))
    if "pairs" in options.cases:
        fleet = FleetLoad(f"fanout_pairs_{options.topics}", options.topics, options.payload)
        made.append(Scenario(fleet.name, partial(OpenPairs, load=fleet)))
    if "qos1" in options.cases and not options.no_qos1:
        load = Load("qos1", 1, options.payload, qos=1, verify=options.verify)
        made.append(Scenario(load.name, partial(OpenLoad, load=load), qos=1))
    return made


def measure(report: DriverReport) -> None:
    """Runs all scenarios against all targets."""
    options = report.options
    websocket = reports.by_websocket(options)
    names = options.targets.split(",")
    if options.messages is not None and options.messages < 1:
        raise UsageError("--messages must be at least 1")
    raise_open_files(len(names) * max(*options.subscribers, 2 * options.topics) + 200)
    chosen = [replace(each, name=f"ws_{each.name}") if websocket else each for each in scenarios(options)]
    steps = len(chosen) * (1 + options.rounds)
    running_targets = running(names, report.missing, websocket=websocket)
    with running_targets as targets, reports.Steps(report.console, steps) as progress:
        for scenario in chosen:
            contest(report, progress, list(targets.values()), scenario)
    _figures(report, chosen)
    _table(report, chosen, names)


def _figures(report: DriverReport, chosen: Sequence[Scenario]) -> None:
    for scenario in chosen:
        rates = {name: samples["deliveries_per_s"] for name, samples in report.samples[scenario.name].items()}
        for peer in PEERS if not scenario.qos else PEERS[:1]:
            report.figure(f"{scenario.name}_vs_{peer}", reports.median_ratio(rates.get("lexicast"), rates.get(peer)))
        for name, values in rates.items():
            report.figure(f"{scenario.name}_{name}_per_s", reports.median(values))


def _table(report: DriverReport, chosen: Sequence[Scenario], names: Sequence[str]) -> None:
    rows = []
    for scenario in chosen:
        samples = report.samples[scenario.name]
        cells = [reports.format_rate(report.figures.get(f"{scenario.name}_{name}_per_s")) for name in names]
        ratios = [reports.format_number(report.figures.get(f"{scenario.name}_vs_{peer}"), 1) for peer in PEERS]
        lost = sum(value or 0 for one in samples.values() for value in one["lost"])
        rows.append([scenario.name, *cells, *ratios, str(lost)])
    columns = ["deliveries/s", *names, *(f"vs {peer}" for peer in PEERS), "lost"]
    report.table(f"{report.options.payload} B, median of {report.options.rounds} rounds", columns, rows)


def _cases(text: str) -> list[str]:
    chosen = text.split(",")
    if not set(chosen) <= set(CASES):
        raise ValueError(f"{text}: only {', '.join(CASES)}")
    return chosen


QUICK_S = (0.3, 0.15)
"""Seconds of one run, and of one run of the ladder, in quick mode."""


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options; seconds left out follow from the mode."""
    parser = reports.parser("fanout", __doc__, default_targets=reports.ALL_PEERS)
    parser.add_argument("--subscribers", type=reports.integers, default=[1, 100, 1_000], help="default 1,100,1000")
    parser.add_argument("--cases", type=_cases, default=CASES, help=f"comma-separated, of {', '.join(CASES)} (all)")
    parser.add_argument("--topics", type=reports.positive, default=1_000, help="of `topics` and `pairs` (default 1000)")
    parser.add_argument("--no-qos1", action="store_true", help="leave the QoS 1 scenario out")
    parser.add_argument("--verify", action="store_true", help="check every sequence number (slower generator)")
    reports.add_transport(parser)
    add_run_options(parser, *QUICK_S)
    return set_lengths(parser.parse_args(argv), *QUICK_S)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.fanout`; returns the exit code."""
    return reports.drive("fanout", parse(argv), measure)


if __name__ == "__main__":
    sys.exit(main())
