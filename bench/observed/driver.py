"""What it costs to be looked at, and how long the console's answers take where there is much.

    observed_ratio      deliveries/s of a broker at full speed with the page open and Prometheus scraping each second,
                        over those with nobody looking: median of the ratios within a round
    observed_all_ratio  the same where somebody looks at the tree of topics and at a stream of everything too
    api_ms              the slowest of the API's answers, with 100,000 topics and 10,000 MQTT sessions (--topics,
                        --sessions), each asked for --tries times
    api_kib             the largest of them
    page_ms             the slowest of --tries first loads of the page, with as much there: from its address to its
                        overview, in Chromium with an empty cache
    page_kib            what the largest of them took on the wire

One cluster; the load is that of `bench.fanout`, one publisher to one subscriber, looked at or not in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import lexicast
from lexicast.cluster.errors import UnavailableError

from .. import report as reports
from ..contest import WINDOWS, add_run_options, set_lengths
from ..peers.loadgen import Load, OpenLoad, best_window
from ..peers.session_opening import SessionSpec, open_sessions, raise_open_files
from ..peers.wire import wire_of
from ..report import DriverReport
from ..stage.clusters import READY_FILE, data_dir, start_lexicast
from ..stage.ports import free_port
from ..stage.servers import Target
from .first_load import first_loads

QUICK_S: Final = (0.5, 0.3)
QUICK_TOPICS: Final = 2_000
QUICK_SESSIONS: Final = 500
BATCH: Final = 2_000
PATHS: Final = (
    "metrics",
    "health/ready",
    "api/v1/status",
    "api/v1/groups?limit=1000",
    "api/v1/sessions?limit=100",
    "api/v1/sessions?limit=1000",
    "api/v1/sessions?search=99",
    "api/v1/subscriptions?limit=1000",
    "api/v1/families?limit=1000",
    "api/v1/events",
    "api/v1/rates",
    "api/v1/topics",
    "api/v1/topics?under=devices/&limit=200",
    "api/v1/topics?under=devices/7/&limit=200",
    "api/v1/history?filter=devices/7/107&since=beginning",
    "api/v1/history?filter=devices/7/%2B&since=beginning&limit=500",
    "api/v1/history?filter=%23&since=beginning&limit=100",
)


def measure(report: DriverReport) -> None:
    """Everything."""
    options = report.options
    raise_open_files(options.sessions + 500)
    with running() as (target, page), reports.Steps(report.console, options.rounds + 2) as progress:
        progress.step("one to one: opening, choosing the window")
        compare(report, target, page, progress)
        progress.step(f"{options.topics:,} topics, {options.sessions:,} sessions: publishing, connecting, asking")
        fill(target, options.topics)
        specs = [SessionSpec(f"bench-{n}", f"devices/{n % 100}/{n}") for n in range(options.sessions)]
        sockets = open_sessions(target.address, wire_of("mqtt", options.mqtt_version), specs)
        try:
            ask(report, page, options.tries)
            load_page(report, page, options.tries)
        finally:
            for sock in sockets:
                sock.close()


@contextlib.contextmanager
def running() -> Iterator[tuple[Target, str]]:
    """A cluster, and the address of its page."""
    with tempfile.TemporaryDirectory(prefix="lexicast-bench-") as folder:
        target = start_lexicast(Path(folder), f"[http]\nport = {free_port()}\n")
        try:
            yield target, json.loads((Path(folder) / READY_FILE).read_text())["pages"][0]
        finally:
            target.stop()


def compare(report: DriverReport, target: Target, page: str, progress: reports.Steps) -> None:
    """The same load, looked at or not, in turns."""
    options = report.options
    load = OpenLoad(target.address, wire_of("mqtt", options.mqtt_version), Load("observed", 1, options.payload))
    rates: dict[str, list[float | None]] = {"rest": [], "page": [], "all": []}
    try:
        window, _ = best_window(load, 1, WINDOWS, options.calibrate_seconds, options.seconds)
        with onlookers(page) as tell:
            for number in range(options.rounds):
                progress.step(f"round {number + 1} of {options.rounds}")
                first = number % len(rates)
                for name in [*rates, *rates][first : first + len(rates)]:
                    tell(name)
                    rates[name].append(load.run(options.seconds, window).deliveries_per_s)
            told = tell("rest")
    finally:
        load.close()
    if told["errors"] or not told["answers"]:
        report.problem(f"who looked was not answered: {told}")
    report.samples["observed"] = {**rates, "answers": told["answers"]}
    report.figure("observed_ratio", reports.median_ratio(rates["page"], rates["rest"]))
    report.figure("observed_all_ratio", reports.median_ratio(rates["all"], rates["rest"]))
    rows = [[name, reports.format_rate(reports.median(found))] for name, found in rates.items()]
    report.table(
        f"one to one, {options.payload} B, median of {options.rounds} rounds", ["who looks", "deliveries/s"], rows
    )


@contextlib.contextmanager
def onlookers(page: str) -> Iterator[Any]:
    """What has them look, or rest, and gives what they have done."""
    command = [sys.executable, "-m", "lexicast.bench.observed.onlookers", page]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def tell(word: str) -> dict[str, int]:
            stdin.write(f"{word}\n")
            stdin.flush()
            said = stdout.readline()
            if not said:
                raise UnavailableError("the process that looks has died")
            found: dict[str, int] = json.loads(said)
            return found

        try:
            yield tell
        finally:
            stdin.close()
            process.terminate()


def fill(target: Target, topics: int) -> None:
    """Publish to so many topics."""
    with lexicast.sync.connect(data_dir=data_dir(target)) as bus:
        for first in range(0, topics, BATCH):
            numbers = range(first, min(topics, first + BATCH))
            bus.publish_many([(f"devices/{n % 100}/{n}", f'{{"number": {n}, "value": {n % 17}}}') for n in numbers])


def ask(report: DriverReport, page: str, tries: int) -> None:
    """Each answer's time and size."""
    slowest, largest, rows = 0.0, 0.0, []
    for path in PATHS:
        times_ms, size = [], 0
        for _ in range(tries):
            began_s = time.perf_counter()
            with urllib.request.urlopen(page + path, timeout=60) as answer:
                size = max(size, len(answer.read()))
            times_ms.append((time.perf_counter() - began_s) * 1_000)
        report.samples[path] = {"ms": [round(each, 2) for each in times_ms], "bytes": size}
        slowest, largest = max(slowest, *times_ms), max(largest, size / 1024)
        rows.append([path, f"{reports.median(times_ms):.1f}", f"{max(times_ms):.1f}", f"{size / 1024:.1f}"])
    report.table(f"{tries} tries", ["path", "median ms", "most ms", "KiB"], rows)
    report.figure("api_ms", slowest)
    report.figure("api_kib", largest)


def load_page(report: DriverReport, page: str, tries: int) -> None:
    """The page's first loads."""
    loads = first_loads(page, tries)
    if loads is None:
        report.missing("a browser", "Debian's chromium or playwright is not here: make test installs both")
    else:
        report.samples["page"] = [{"ms": round(took_ms, 1), "kib": round(kib, 1)} for took_ms, kib in loads]
    report.figure("page_ms", max([took_ms for took_ms, _ in loads or ()], default=None))
    report.figure("page_kib", max([kib for _, kib in loads or ()], default=None))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options."""
    parser = reports.parser("observed", __doc__, default_targets="lexicast")
    parser.add_argument("--topics", type=reports.positive, help=f"(default 100,000; quick {QUICK_TOPICS:,})")
    parser.add_argument("--sessions", type=reports.positive, help=f"(default 10,000; quick {QUICK_SESSIONS:,})")
    parser.add_argument("--tries", type=reports.positive, default=5, help="of each answer (default %(default)s)")
    add_run_options(parser, *QUICK_S)
    options = set_lengths(parser.parse_args(argv), *QUICK_S)
    options.topics = options.topics or (QUICK_TOPICS if options.quick else 100_000)
    options.sessions = options.sessions or (QUICK_SESSIONS if options.quick else 10_000)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.observed`; returns the exit code."""
    return reports.drive("observed", parse(argv), measure)
