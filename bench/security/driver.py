"""What security costs, a part each; every part measures with and without in the same run, in turns.

acl    the same acl and password files in Mosquitto and here, questions at random: see `acl`
links  the same loads with encrypted links and without: see `encrypted_links`
rules  fan-out and fan-in with 5,000 rules and without: see `rules`
tls    MQTT over TLS beside none and beside Mosquitto with TLS: see `tls`
reconnect    devices with passwords that all come back at once: see `reconnect`
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Final

from .. import report as reports
from ..contest import add_run_options, set_lengths
from ..report import DriverReport
from .acl import measure_acl
from .encrypted_links import measure_encrypted_links
from .reconnect import measure_reconnect
from .rules import measure_rules
from .tls import measure_tls

PARTS: Final[dict[str, Callable[[DriverReport], None]]] = {
    "acl": measure_acl,
    "links": measure_encrypted_links,
    "rules": measure_rules,
    "tls": measure_tls,
    "reconnect": measure_reconnect,
}
# Seconds of one run, and of one run of the ladder, in quick mode.
QUICK_S: Final = (0.3, 0.15)


def _parts(text: str) -> list[str]:
    chosen = text.split(",")
    if not set(chosen) <= set(PARTS):
        raise ValueError(f"{text}: only {', '.join(PARTS)}")
    return chosen


def measure(report: DriverReport) -> None:
    """Runs the parts that were asked for."""
    for part in report.options.only:
        PARTS[part](report)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options."""
    parser = reports.parser("security", __doc__, default_targets="lexicast,mosquitto")
    parser.add_argument(
        "--only", type=_parts, default=list(PARTS), help=f"comma-separated, of {', '.join(PARTS)} (all)"
    )
    add_run_options(parser, *QUICK_S)
    return set_lengths(parser.parse_args(argv), *QUICK_S)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.security`; returns the exit code."""
    return reports.drive("security", parse(argv), measure)
