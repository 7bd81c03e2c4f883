"""The cost of an operation by how many come at once: from one at a time, which is instant notification, to 10,000.

All engines get the same operations after the same warm-up, a batch each in an order that rotates, and a batch is
durable in each before the next: LevelDB and RocksDB sync their write batch, DualDB its journal or LMDB, PADRES its
transaction. (RepQueries' and PADRES' subscriptions are not stored: a batch of nothing else waits for no disk.) CPU is
that of this process, the engines' own threads included; PostgreSQL's is not, so PADRES has none.

A ratio is that of the time of whole rounds, a fifth of the batches of a size each, so work behind counts; the figure is
the median of the rounds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from .. import report as reports
from .baselines.compared_engine import ComparedEngine
from .workload import Workload, batches_of

# Operations at once, and how many batches of them are measured.
SIZES: Final = {1: 1_000, 10: 200, 100: 100, 1_000: 20, 10_000: 5}
# Engines whose work is done in other processes.
ELSEWHERE: Final = ("padres",)
# The sizes whose ratios are figures, by the name that they have there.
COMPARED: Final = {1: "single", 100: "100"}
PEERS: Final = ("leveldb", "rocksdb")


@dataclass
class Point:
    """An engine at a size: CPU and time of each batch, in seconds."""

    cpu_s: list[float] = field(default_factory=list)
    batch_s: list[float] = field(default_factory=list)

    def quantile_ms(self, part: float) -> float:
        """The time of a batch that so large a part of them does not exceed."""
        return float(np.quantile(self.batch_s, part, method="higher")) * 1e3


Points = dict[str, dict[int, Point]]
"""By engine and size."""


def measure(engines: dict[str, ComparedEngine], workload: Workload, warm: int, quick: bool) -> Points:
    """The engines' curves; `warm` batches of the workload's size before. `quick`: a quarter of the batches."""
    points: Points = {name: {size: Point() for size in SIZES} for name in engines}
    counts = [workload.batch] * warm + [
        size for size, number in SIZES.items() for _ in range(max(2, number // 4) if quick else number)
    ]
    names = list(engines)
    for number, batch in enumerate(batches_of(workload, counts)):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            cpu, start = time.process_time(), time.perf_counter()
            engines[name].apply(batch)
            took = time.perf_counter() - start
            if number >= warm:
                point = points[name][batch.size]
                point.cpu_s.append(time.process_time() - cpu)
                point.batch_s.append(took)
    return points


def rounds_of(values: Sequence[float]) -> list[float]:
    """The sums of the rounds; fewer where there are fewer values."""
    return [float(part.sum()) for part in np.array_split(np.array(values), reports.ROUNDS) if len(part)]


def tell(report: reports.DriverReport, points: Points) -> None:
    """A table a measure, and figures."""
    sizes: Sequence[int] = list(next(iter(points.values())))
    columns = ["operations at once", *points]
    rates: list[list[str]] = []
    latencies: list[list[str]] = []
    costs: list[list[str]] = []
    for size in sizes:
        for rows in (rates, latencies, costs):
            rows.append([f"{size:,}"])
        for name, curve in points.items():
            point = curve[size]
            operations = size * len(point.batch_s)
            rate = operations / sum(point.batch_s)
            middle, last = point.quantile_ms(0.5), point.quantile_ms(0.99)
            cpu_us = None if name in ELSEWHERE else sum(point.cpu_s) / operations * 1e6
            for key, value in (("ops_s", rate), ("p50_ms", middle), ("p99_ms", last), ("cpu_us", cpu_us)):
                report.figure(f"{key}_{name}_{size}", value)
            rates[-1].append(f"{rate:,.0f}")
            latencies[-1].append(f"{middle:,.2f} / {last:,.1f}")
            costs[-1].append(reports.format_number(cpu_us, 1))
    what = "by how many come at once, 3 subscriptions to 1 publication"
    report.table(f"operations a second, {what}", columns, rates)
    report.table(f"ms a batch, p50 / p99, {what}", columns, latencies)
    report.table(f"us of CPU an operation, {what}", columns, costs)
    compare_sizes(report, points)


def compare_sizes(report: reports.DriverReport, points: Points) -> None:
    """How many times as long LevelDB and RocksDB take, in time and in CPU."""
    for size, told in COMPARED.items():
        for peer in PEERS:
            theirs, ours = points.get(peer, {}).get(size), points["dualdb"].get(size)
            for ending, what in (("", "batch_s"), ("_cpu", "cpu_s")):
                sums = [None if each is None else rounds_of(getattr(each, what)) for each in (theirs, ours)]
                report.figure(f"vs_{peer}_{told}{ending}", reports.median_ratio(*sums))


def samples_of(points: Points) -> dict[str, dict[str, dict[str, list[float]]]]:
    """What was measured, for the JSON file."""
    return {
        name: {str(size): {"cpu_s": point.cpu_s, "batch_s": point.batch_s} for size, point in curve.items()}
        for name, curve in points.items()
    }


def points_in(samples: Mapping[str, Mapping[str, Mapping[str, list[float]]]]) -> Points:
    """The inverse of `samples_of`."""
    return {
        name: {int(size): Point(each["cpu_s"], each["batch_s"]) for size, each in curve.items()}
        for name, curve in samples.items()
    }
