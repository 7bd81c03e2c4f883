"""The stored history as a counted Spark DataFrame: how fast, in how much memory, at what cost to publishing.

Starts a cluster, stores flights as JSON (most of them compressed with the dictionaries that the cluster learns
meanwhile), starts Spark in the cluster's Ray, and reads. `history_1m_s`: seconds from the call to the counted
DataFrame, scaled to a million messages. `driver_mib`: the most memory that the driver took: this Python process and
Spark's Java beside it. `publish_during_read`: messages published a second while the history is read again and again,
over those without, by a publisher at full speed (QoS 1), in rounds that take turns.

Needs `lexicast[spark]`.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_uint64
from itertools import cycle, islice
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, Final

import psutil

import lexicast
from lexicast.raydp_jobs.history.dataframe import history, release
from lexicast.raydp_jobs.spark.environment import spark_session

from .. import report as reports
from ..data.flights import prepare_flights
from ..report import DriverReport
from ..stage.clusters import DATA, running_cluster

FULL: Final = 1_000_000
QUICK: Final = 100_000
FLIGHTS: Final = 50_000
SPAN_S: Final = 6.0
"""Seconds of publishing without a read in each round."""
BATCH: Final = 2_000
MIB: Final = 1 << 20


async def fill(data_dir: Path, events: list[tuple[str, bytes]], count: int) -> None:
    """Stores `count` messages: the events, over and over."""
    async with lexicast.connect(data_dir=data_dir) as bus:
        await bus.publish_many(islice(cycle(events), count), qos=1)


def publish_until_ended(data_dir: Path, events: list[tuple[str, bytes]], published: Synchronized[int]) -> None:
    """A process that publishes at full speed until it is ended, on topics of its own, and counts."""

    async def run() -> None:
        own = cycle([(f"live/{topic}", payload) for topic, payload in events])
        async with lexicast.connect(data_dir=data_dir) as bus:
            while True:
                await bus.publish_many(islice(own, BATCH), qos=1)
                published.value += BATCH

    asyncio.run(run())


@contextmanager
def publishing(data_dir: Path, events: list[tuple[str, bytes]]) -> Iterator[Synchronized[int]]:
    """The publisher in a process of its own; gives its count."""
    context = multiprocessing.get_context("spawn")
    published = context.Value(c_uint64, 0)
    process = context.Process(target=publish_until_ended, args=(data_dir, events, published), daemon=True)
    process.start()
    try:
        yield published
    finally:
        process.terminate()
        process.join()


def peak_mib() -> float:
    """The most memory so far of this process and of Spark's Java beside it."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return (own + sum(_peak_bytes(java.pid) for java in spark_driver_processes())) / MIB


def spark_driver_processes() -> list[psutil.Process]:
    """The Java processes that this one has started: Spark's driver."""
    return [child for child in psutil.Process().children() if child.name() == "java"]


def _peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


class Rates:
    """Counts over spans of time."""

    def __init__(self, count: Synchronized[int]) -> None:
        self._count = count
        self.start()

    def start(self) -> None:
        """A span begins."""
        self._from, self._at = self._count.value, time.perf_counter()

    def per_s(self) -> float:
        """The rate since `start`."""
        return float((self._count.value - self._from) / (time.perf_counter() - self._at))


def measure(report: DriverReport) -> None:
    """One run of the driver."""
    options = report.options
    count = options.messages or (QUICK if options.quick else FULL)
    with (
        tempfile.TemporaryDirectory(prefix="lexicast-history-") as folder,
        reports.Steps(report.console, 3 + 2 * options.rounds) as steps,
    ):
        steps.step("starting a cluster")
        with running_cluster(Path(folder)):
            data_dir = Path(folder) / DATA
            replay = prepare_flights(min(FLIGHTS, count), Path(folder) / "events.tsv")
            events = [(event.topic, event.payload) for event in replay.events]
            steps.step(f"storing {count:,} messages")
            asyncio.run(fill(data_dir, events, count))
            steps.step("starting Spark")
            started = time.perf_counter()
            with spark_session(data_dir=data_dir) as spark:
                report.samples["spark_start_s"] = time.perf_counter() - started
                _measure_reads(report, steps, spark, count)
                _measure_publishing(report, steps, spark, data_dir, events)
                report.figure("driver_mib", peak_mib())


def _read(spark: Any, filter: str) -> tuple[float, int]:
    """Seconds from the call to the counted DataFrame, and the count."""
    started = time.perf_counter()
    frame = history(spark, filter)
    counted = frame.count()
    seconds = time.perf_counter() - started
    release(frame)
    return seconds, counted


def _measure_reads(report: DriverReport, steps: reports.Steps, spark: Any, count: int) -> None:
    seconds = []
    for _ in range(report.options.rounds):
        steps.step(f"reading {count:,} messages")
        taken, counted = _read(spark, "#")
        seconds.append(taken)
        if counted != count:
            report.problem(f"{counted} rows for {count} messages")
    report.samples["read_s"] = seconds
    # The first one is what a user waits for: Ray's and Spark's processes load their code in it.
    report.figure("history_1m_s", seconds[0] * FULL / count)
    rows = [[f"read {at + 1}", f"{taken:.2f}", f"{count / taken:,.0f}"] for at, taken in enumerate(seconds)]
    report.table(f"{count:,} messages to a counted DataFrame", ["", "seconds", "messages/s"], rows)


def _measure_publishing(
    report: DriverReport, steps: reports.Steps, spark: Any, data_dir: Path, events: list[tuple[str, bytes]]
) -> None:
    alone: list[float | None] = []
    during: list[float | None] = []
    with publishing(data_dir, events[:BATCH]) as published:
        while published.value == 0:
            time.sleep(0.05)
        for _ in range(report.options.rounds):
            steps.step("publishing without and with a read")
            rates = Rates(published)
            time.sleep(SPAN_S)
            alone.append(rates.per_s())
            rates.start()
            _read(spark, "flights/#")
            during.append(rates.per_s())
    report.samples["published_per_s"] = {"alone": alone, "during_read": during}
    report.figure("publish_during_read", reports.median_ratio(during, alone))
    pairs = zip(alone, during, strict=True)
    rows = [[f"round {at + 1}", reports.format_rate(a), reports.format_rate(d)] for at, (a, d) in enumerate(pairs)]
    report.table("published a second (QoS 1)", ["", "alone", "during a read"], rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the driver; returns the exit code."""
    parser = reports.parser("history", __doc__, default_targets="lexicast")
    parser.add_argument("--messages", type=reports.positive, help=f"stored messages (default {FULL:,})")
    options: argparse.Namespace = parser.parse_args(argv)
    return reports.drive("history", options, measure)
