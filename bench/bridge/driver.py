"""Bridges: nothing lost and nothing looped through cuts and restarts, bytes between two clusters, speed beside
Mosquitto's own bridge.

Four parts, each with brokers of its own: `faults` (messages out and a tenth as many in, while the link is cut, the
other broker is restarted, the bridge's process and the coordinator are killed), `bytes` (flights from one lexicast to
another, compressed and plain at the same time), `speed` and `speed_in` (both bridges in turns, out and in).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from .. import report as reports
from ..peers.targets import TargetMissingError
from ..report import DriverReport
from .faults import measure_faults
from .link_bytes import measure_bytes
from .speed import measure_speed, measure_speed_in

PARTS: Final = {"faults": measure_faults, "bytes": measure_bytes, "speed": measure_speed, "speed_in": measure_speed_in}


def measure(report: DriverReport) -> None:
    """The parts that are asked for."""
    names = report.options.parts.split(",")
    timed = [name for name in names if name.startswith("speed")]
    steps = len(names) - len(timed) + 2 * report.options.rounds * len(timed)
    with reports.Steps(report.console, steps) as progress:
        for name in names:
            with ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lexicast-bench-")))
                folder.chmod(0o755)
                try:
                    PARTS[name](report, progress, folder, stack)
                except TargetMissingError as error:
                    report.missing("mosquitto", str(error))


def _parts(text: str) -> str:
    if not set(text.split(",")) <= set(PARTS):
        raise ValueError(text)
    return text


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options; what is left out follows from the mode."""
    parser = reports.parser("bridge", __doc__, default_targets="lexicast,mosquitto")
    parser.add_argument("--parts", type=_parts, default=",".join(PARTS), help="comma-separated (default %(default)s)")
    parser.add_argument("--messages", type=reports.positive, help="out, through faults (default 1000000; quick 20000)")
    parser.add_argument("--fault-s", type=float, help="seconds between two faults (default 2; quick 0.5)")
    parser.add_argument("--flights", type=reports.positive, help="between two clusters (default 50000; quick 3000)")
    parser.add_argument("--payload", type=reports.positive, default=140, help="bytes of a message of speed (140)")
    parser.add_argument("--seconds", type=float, help="of one run of speed (default 5; quick 1)")
    parser.add_argument("--warm-s", type=float, default=1.0, help="of each pair before it is measured (default 1)")
    options = parser.parse_args(argv)
    usual = {"messages": (1_000_000, 20_000), "fault_s": (2.0, 0.5), "flights": (50_000, 3_000), "seconds": (5.0, 1.0)}
    for name, (full, quick) in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else full)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.bridge`; returns the exit code."""
    return reports.drive("bridge", parse(argv), measure)
