"""The cost of an operation by how many come at once: from one at a time, which is instant notification, to 10,000.

DualDB, its lists on LevelDB, and RepQueries get the same operations after the same warm-up, engine after engine within
each size. CPU is that of this process, the engines' own threads included; a batch is durable before the next, so the
time that one takes is what a subscriber waits for at the least.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from .. import report as reports
from .baselines.compared_engine import ComparedEngine
from .workload import Workload, batches_of

# Operations at once, and how many batches of them are measured.
SIZES: Final = {1: 400, 10: 200, 100: 100, 1_000: 40, 10_000: 10}
NAMES: Final = ("dualdb", "leveldb", "repqueries")


@dataclass
class Point:
    """An engine at a size: CPU of all its batches, and the time of each, in seconds."""

    cpu_s: float = 0.0
    batch_s: list[float] = field(default_factory=list)


Points = dict[str, dict[int, Point]]
"""By engine and size."""


def measure(engines: dict[str, ComparedEngine], workload: Workload, warm: int) -> Points:
    """The engines' curves; `warm` batches of the workload's size before."""
    points: Points = {name: {size: Point() for size in SIZES} for name in engines}
    counts = [workload.batch] * warm + [size for size, number in SIZES.items() for _ in range(number)]
    for number, batch in enumerate(batches_of(workload, counts)):
        for name, engine in engines.items():
            cpu, start = time.process_time(), time.perf_counter()
            engine.apply(batch)
            took = time.perf_counter() - start
            if number >= warm:
                point = points[name][batch.size]
                point.cpu_s += time.process_time() - cpu
                point.batch_s.append(took)
    return points


def tell(report: reports.DriverReport, points: Points) -> None:
    """A table, figures."""
    sizes: Sequence[int] = list(next(iter(points.values())))
    rows = []
    for size in sizes:
        row = [f"{size:,}"]
        for name, curve in points.items():
            cpu_us = curve[size].cpu_s / (size * len(curve[size].batch_s)) * 1e6
            middle_ms = (reports.median(curve[size].batch_s) or 0.0) * 1e3
            report.figure(f"cpu_us_{name}_{size}", cpu_us)
            report.figure(f"batch_ms_{name}_{size}", middle_ms)
            row += [reports.format_number(cpu_us, 1), reports.format_number(middle_ms)]
        rows.append(row)
    columns = ["operations at once", *[head for name in points for head in (f"{name}: us CPU each", "ms a batch")]]
    report.table("an operation by how many come at once, 3 subscriptions to 1 publication", columns, rows)
