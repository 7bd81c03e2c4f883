"""`ray up` on machines that are namespaces of this one: started, bereft of a machine, grown, drained, stopped.

`--transcript FILE` writes what was typed and seen as a page. Needs root, and Debian's openssh-server, rsync, iproute2
and mosquitto-clients. Figures, in seconds: up_s (until all serve), lose_s (from a machine's loss until forty
publications are acknowledged and the session has got them elsewhere), grow_s and back_s (until a new machine, and
the one that was lost, serve), drain_s, down_s.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from .. import report as reports
from ..report import DriverReport
from .drill import MACHINES, OPERATOR, Drill
from .machines import lacking, network
from .transcript import OperatorPage

TITLE = "`ray up`, from the first start to the end"
PARTS = 6


def drill(said: Callable[[str], None]) -> tuple[OperatorPage, Drill]:
    """Run it; what was seen, and how long it took. Main thread. Raises LexicastError."""
    base = Path(tempfile.mkdtemp(prefix="lexicast-ray-up-"))
    transcript = OperatorPage(TITLE, said)
    try:
        with network(base, OPERATOR, MACHINES) as machines:
            made = Drill(machines, transcript)
            made.run()
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return transcript, made


def measure(report: DriverReport) -> None:
    """See the module's docstring."""
    if reason := lacking():
        report.missing("machines", reason)
        return
    with reports.Steps(report.console, PARTS) as progress:
        transcript, done = drill(progress.step)
    if report.options.transcript is not None:
        report.options.transcript.write_text(transcript.text(), encoding="utf-8")
    report.samples["commands_s"] = done.commands
    for key, value in done.seconds.items():
        report.figure(key, value)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options."""
    parser = reports.parser("ray_up", __doc__, default_targets="lexicast")
    parser.add_argument("--transcript", type=Path, metavar="FILE", help="write the page here")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.ray_up`; returns the exit code."""
    return reports.drive("ray_up", parse(argv), measure)
