"""Deliveries per second to the members of one shared subscription, beside Mosquitto.

One publisher takes topics in turn, a thousand of them, a message each, unless --topics and --burst say otherwise; the
members share them, and acknowledge what they get. All targets run at the same time and take turns; the same generator
loads each of them, with the window of a ladder (messages under way) that suits it best. Each message is to come to one
member, once: what is lost or repeated is told, and makes the exit code 1.

lexicast stores every message before it acknowledges or deals it (QoS 1); Mosquitto does not store.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from lexicast.cluster.shares.dealing import FREE, TOPIC

from . import report as reports
from .contest import Scenario, add_run_options, contest, set_lengths
from .peers.session_opening import raise_open_files
from .peers.shared_load import OpenShared, SharedLoad
from .peers.targets import running
from .report import DriverReport

WINDOWS = (250, 1_000, 4_000, 16_000)
"""A share of 4 members has 80 to 4,000 messages of QoS 1 under way towards them, by what each takes unacknowledged."""

QUICK_S = (0.3, 0.15)


def measure(report: DriverReport) -> None:
    """Runs all numbers of members against all targets."""
    options = report.options
    names = options.targets.split(",")
    raise_open_files(len(names) * (max(options.members) + 100))
    suffix = "" if options.qos else "_qos0"
    loads = [
        SharedLoad(f"shared_{count}{suffix}", count, options.topics, options.payload, options.qos, options.burst)
        for count in options.members
    ]
    chosen = [Scenario(load.name, partial(OpenShared, load=load), options.qos, windows=WINDOWS) for load in loads]
    config = f'[mqtt]\nshare_strategy = "{options.strategy}"\n'
    with (
        running(names, report.missing, config=config) as targets,
        reports.Steps(report.console, len(chosen) * (1 + options.rounds)) as progress,
    ):
        for scenario in chosen:
            contest(report, progress, list(targets.values()), scenario)
    rows, lost_of_all = [], 0
    for scenario in chosen:
        samples = report.samples[scenario.name]
        rates = {name: one["deliveries_per_s"] for name, one in samples.items()}
        ratio = reports.median_ratio(rates.get("lexicast"), rates.get("mosquitto"))
        report.figure(f"{scenario.name}_vs_mosquitto", ratio)
        for name, values in rates.items():
            report.figure(f"{scenario.name}_{name}_per_s", reports.median(values))
        lost = sum(value or 0 for value in samples.get("lexicast", {}).get("lost", ()))
        lost_of_all += lost
        cells = [reports.format_rate(report.figures.get(f"{scenario.name}_{name}_per_s")) for name in names]
        rows.append([scenario.name, *cells, reports.format_number(ratio, 2), str(lost)])
    report.figure("shared_lost", lost_of_all)
    report.table(
        f"QoS {options.qos}, {options.payload} B, {options.topics} topics, bursts of {options.burst}, "
        f'"{options.strategy}", median of {options.rounds} rounds',
        ["deliveries/s", *names, "vs mosquitto", "lost or repeated"],
        rows,
    )


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options; seconds left out follow from the mode."""
    parser = reports.parser("shared", __doc__, default_targets="lexicast,mosquitto")
    parser.add_argument("--members", type=reports.integers, default=[1, 4, 8], help="default 1,4,8")
    parser.add_argument("--topics", type=reports.positive, default=1_000, help="default 1000")
    parser.add_argument("--burst", type=reports.positive, default=1, help="messages to a topic in a row (default 1)")
    parser.add_argument("--qos", type=int, choices=(0, 1), default=1, help="of publications and members (default 1)")
    parser.add_argument("--strategy", choices=(TOPIC, FREE), default=TOPIC, help="lexicast's mqtt.share_strategy")
    add_run_options(parser, *QUICK_S)
    return set_lengths(parser.parse_args(argv), *QUICK_S)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.shared`; returns the exit code."""
    return reports.drive("shared", parse(argv), measure)


if __name__ == "__main__":
    sys.exit(main())
