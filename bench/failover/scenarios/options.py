"""The options of the scenarios."""

from __future__ import annotations

import argparse
from typing import Final

from ... import report as reports
from .cases import CONTENT, SCENARIOS

COUNTS: Final = [23, 50, 74, 97, 250, 500]
"""The first four are the paper's."""
SESSIONS: Final = 1_000
RATES: Final = [1.0, 2.0, 5.0, 10.0, 20.0]
RATE: Final = 5.0
OWN_RATE: Final = 50.0
CLIENTS: Final = 10_000
CONDITIONS: Final = 1_500
"""Beyond the 1,000 from which on there are cells."""
QUICK_SESSIONS: Final = 50
QUICK_CLIENTS: Final = 500


def scenario_names(text: str) -> list[str]:
    """The option's value `--scenario`."""
    names = text.split(",")
    if unknown := [name for name in names if name not in SCENARIOS]:
        raise ValueError(f"{', '.join(unknown)}: no such scenario; there are {', '.join(SCENARIOS)}")
    return [name for name in SCENARIOS if name in names]


def rates(text: str) -> list[float]:
    """The option's value `--shared-rates`."""
    values = [float(part) for part in text.split(",")]
    if min(values) <= 0:
        raise ValueError(f"{text}: only numbers above 0")
    return values


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of scenarios alone."""
    group = parser.add_argument_group("scenarios (instead of these drills)")
    names = ", ".join(SCENARIOS)
    group.add_argument("--scenario", type=scenario_names, help=f"comma-separated: {names}")
    group.add_argument("--sessions", type=reports.positive, help=f"default {SESSIONS}; quick {QUICK_SESSIONS}")
    group.add_argument("--counts", type=reports.integers, help="sessions of the broker that dies: figure 3b's others")
    group.add_argument("--shared-rates", type=rates, help="messages/s to all sessions: the repeats' picture")
    group.add_argument("--clients", type=reports.positive, help=f"of the storm (default {CLIENTS})")
    opening = "how long a client of the storm waits for CONNACK (default 30, as MQTT.js and Paho's for Java and Go do)"
    group.add_argument("--open-s", type=float, default=30.0, help=opening)
    conditions = f"of {CONTENT}'s crowd, 0: none (default {CONDITIONS})"
    group.add_argument("--conditions", type=int, default=CONDITIONS, help=conditions)
    overlay = f"{CONTENT}'s matchers, two a node, form an overlay (SkipCloud) of four parts, with one contact in each"
    group.add_argument("--overlay", action="store_true", help=overlay)
    far = "how much longer the round trip of a client to the other location's brokers is (default 20)"
    group.add_argument("--far-ms", type=float, default=20.0, help=far)


def settle_options(options: argparse.Namespace) -> None:
    """What was not given."""
    quick = options.quick
    options.sessions = options.sessions or (QUICK_SESSIONS if quick else SESSIONS)
    options.counts = options.counts or ([] if quick else [each for each in COUNTS if each < options.sessions])
    options.shared_rates = options.shared_rates or ([] if quick else RATES)
    options.clients = options.clients or (QUICK_CLIENTS if quick else CLIENTS)
