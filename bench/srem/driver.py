"""Content subscriptions: what SREM's matching takes, on the cores that are in cluster/, and a broker's delivery, on its
engine. Only `live` starts clusters.

`--only` runs some of the parts, `--out` draws their pictures. Figures:

    index_...             the index at one broker: matching, memory (`index_rates`), subscriptions that come and go
                          (`index_churn`)
    content_...           JSON in, matches out at one broker's engine (`delivery_rates`)
    plain_...             what those pay who have no condition (`plain_cost`)
    history_where_...     conditions on the stored past (`past_rates`)
    content_resume_...    many subscriptions with conditions that go on from their places (`resumptions`)
    disagreements         of all ways to ask a condition with a naive evaluator (`truth`)
    live_...              what matchers spare brokers of a running cluster (`spared_work`)
    overlay_...           matchers that form an overlay, on real links (`overlay_links`)
    hpartition_...        subscriptions shared out among matchers, simulated (`sharing_rates`); matchers_scaling
    hops_excess           SkipCloud's hops, and its messages beside Chord's, simulated (`overlay_messages`);
                          chord_saving_...
    loss_...              SkipCloud after a mass failure, simulated (`mass_failure`)
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from .. import report as reports
from ..report import DriverReport, Steps
from . import index_churn, index_rates, mass_failure, overlay_messages, sharing_rates
from .edge import delivery_rates, past_rates, plain_cost, resumptions, truth
from .live import overlay_links, spared_work


class SremPart(NamedTuple):
    """One part of the driver: what measures it, and how many steps it announces (`quick`: of the smaller counts)."""

    measure: Callable[[DriverReport, Steps], None]
    steps: Callable[[bool], int]


PARTS: Final = {
    "index": SremPart(index_rates.measure, index_rates.steps),
    "churn": SremPart(index_churn.measure, index_churn.steps),
    "edge": SremPart(delivery_rates.measure, delivery_rates.steps),
    "plain": SremPart(plain_cost.measure, plain_cost.steps),
    "past": SremPart(past_rates.measure, past_rates.steps),
    "resumptions": SremPart(resumptions.measure, resumptions.steps),
    "truth": SremPart(truth.measure, truth.steps),
    "live": SremPart(spared_work.measure, spared_work.steps),
    "overlay": SremPart(overlay_links.measure, overlay_links.steps),
    "hpartition": SremPart(sharing_rates.measure, sharing_rates.steps),
    "skipcloud": SremPart(overlay_messages.measure, overlay_messages.steps),
    "loss": SremPart(mass_failure.measure, mass_failure.steps),
}


# Of what `--quick` measures where nothing is asked for: starting two clusters takes half a minute.
NOT_QUICK: Final = ("live",)


def measure(report: DriverReport) -> None:
    """The parts that are asked for, one after the other, on one core."""
    options = report.options
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    with Steps(report.console, sum([PARTS[name].steps(options.quick) for name in options.only])) as progress:
        for name in options.only:
            PARTS[name].measure(report, progress)


def _parts(text: str) -> list[str]:
    """The option `--only`."""
    found = text.split(",")
    if not set(found) <= set(PARTS):
        raise ValueError(f"{text}: only {', '.join(PARTS)}")
    return found


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = reports.parser("srem", __doc__, default_targets="lexicast")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn by chance (default %(default)s)")
    parser.add_argument(
        "--only",
        type=_parts,
        help=f"some of {','.join(PARTS)} (default: all; with --quick all but {','.join(NOT_QUICK)})",
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="draw pictures there")
    options = parser.parse_args(argv)
    if options.only is None:
        options.only = [name for name in PARTS if not (options.quick and name in NOT_QUICK)]
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """The driver; its exit code."""
    return reports.drive("srem", parse(argv), measure)
