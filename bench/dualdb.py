"""DualDB against its paper's baselines and against itself on other engines, and whether it stays as it was.

All engines take turns with the same batches (in a rotating order), by the same simulated clock, each batch durable in
each before the next. First so many batches that every engine holds what will live at any time (20 s); then rounds. A
figure is the median of the ratios within a round. Answers are counted and compared: engines that disagree make the exit
code 1.

    vs_repqueries_3_1, vs_repqueries_1_3     section 4.2: each query issued by its client, by itself
    vs_repqueries_joined_3_1, ..._1_3        beyond the paper: all queries of a batch asked together, on our engine
    vs_padres, vs_leveldb, vs_rocksdb, vs_two_databases      at 3:1, the subscription-heavy workload

Then DualDB alone: `growth_15m`, the time an operation in the last million of 15 over that in the second one
(`growth_15m_cpu`: CPU time alone, which a busy machine or disk does not change);
`file_growth`, the greatest file in the second half of that run over the greatest in the first; `rss_10m_mib`, anonymous
memory of a process that holds 10 million live subscriptions. --quick does each with a tenth or less.

A batch is mixed, so its time is not told apart into publish and subscribe as in the paper's figures; the picture has
the cumulative time of both.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib import util
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lexicast.cluster.errors import UnavailableError
from lexicast.storage.baselines.answered import Answered, Engine
from lexicast.storage.baselines.dual import OneDatabase
from lexicast.storage.baselines.padres import Padres
from lexicast.storage.baselines.repqueries import RepQueries
from lexicast.storage.baselines.repqueries_joined import RepQueriesJoined
from lexicast.storage.baselines.two_databases import TwoDatabases
from lexicast.storage.dualdb import Batch, DualDB, DualOptions
from lexicast.storage.lsm.batches import SUBSCRIBE

from . import report as reports
from .dualdb_picture import draw
from .dualdb_postgres import server
from .dualdb_stores import KeyValue, LevelDB, ListsOn, RocksDB
from .dualdb_workload import LIFE_US, START_US, Workload, batches, city_cells, taxi_cells
from .report import Report

SUBSCRIPTION_HEAVY = 0.75
PUBLICATION_HEAVY = 0.25
# RepQueries count an answer when a client asks for it, so theirs come later; all others give the same at once.
ALIKE = ("dualdb", "two_databases", "leveldb", "rocksdb", "padres")
YEAR_US = 365 * 86_400 * 1_000_000


class Size(NamedTuple):
    """How much is measured."""

    rate: int
    batch: int
    round_batches: int
    growth_operations: int
    memory_subscriptions: int
    memory_rows: int


FULL = Size(20_000, 10_000, 5, 15_000_000, 10_000_000, 1_000_000)
QUICK = Size(4_000, 4_000, 1, 1_500_000, 1_000_000, 100_000)
# Places of taxis: a hundred times the answers an operation at the same rate.
FULL_TAXI = Size(2_000, 2_000, 5, 15_000_000, 10_000_000, 1_000_000)
QUICK_TAXI = Size(1_000, 1_000, 1, 300_000, 1_000_000, 20_000)


@dataclass
class Contender:
    """An engine under comparison and what it gave."""

    name: str
    engine: Engine
    seconds: list[float] = field(default_factory=list)
    cumulative: list[float] = field(default_factory=list)
    answers: int = 0
    tags: int = 0

    def apply(self, batch: Batch) -> float:
        """Feed it a batch; how long that took."""
        start = time.perf_counter()
        found: Answered = self.engine.apply(batch)
        took = time.perf_counter() - start
        self.cumulative.append((self.cumulative[-1] if self.cumulative else 0.0) + took)
        self.answers += found.answers
        self.tags = (self.tags + found.tags) % 2**64
        return took


def lists_on(kind: Callable[[Path], KeyValue], path: Path) -> ListsOn:
    """DualDB's lists on an engine of that kind."""
    return ListsOn(kind(path), path)


def contenders(stack: ExitStack, folder: Path, report: Report) -> list[Contender]:
    """Every engine that is installed, each in an empty place of its own."""

    def opened(name: str, made: Callable[[Path], Engine]) -> None:
        found.append(Contender(name, made(folder / name)))
        stack.callback(found[-1].engine.close)

    found: list[Contender] = []
    opened("dualdb", OneDatabase)
    opened("two_databases", TwoDatabases)
    opened("repqueries", RepQueries)
    opened("repqueries_joined", RepQueriesJoined)
    for name, module, kind in (("leveldb", "plyvel", LevelDB), ("rocksdb", "rocksdict", RocksDB)):
        if util.find_spec(module) is None:
            report.missing(name, f"{module} is not installed: pip install 'lexicast[bench]'")
        else:
            opened(name, partial(lists_on, kind))
    try:
        conninfo = stack.enter_context(server())
        opened("padres", lambda _: Padres(conninfo))
    except UnavailableError as error:
        report.missing("padres", str(error))
    return found


def compare(report: Report, workload: Workload, size: Size, title: str, steps: reports.Steps) -> list[Contender]:
    """All engines in turns; their seconds a round."""
    warm = LIFE_US * size.rate // 1_000_000 // size.batch + 1
    rounds = max(report.options.rounds, reports.ROUNDS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lexicast-dualdb")))
        taking_part = contenders(stack, folder, report)
        steps.step(f"{title}: {warm} batches of {size.batch} until all hold the same live items")
        stream = batches(workload, (warm + rounds * size.round_batches) * size.batch)
        for number in range(warm):
            turn(taking_part, number, [next(stream)])
        for number in range(rounds):
            steps.step(f"{title}: round {number + 1}")
            seconds = turn(taking_part, number, [next(stream) for _ in range(size.round_batches)])
            for each in taking_part:
                each.seconds.append(seconds[each.name])
    agree(report, title, taking_part)
    return taking_part


def turn(taking_part: Sequence[Contender], number: int, work: Sequence[Batch]) -> dict[str, float]:
    """Every engine does `work`, in an order that rotates; seconds by name."""
    first = number % len(taking_part)
    rotated = [*taking_part[first:], *taking_part[:first]]
    return {each.name: sum([each.apply(batch) for batch in work]) for each in rotated}


def agree(report: Report, title: str, taking_part: Sequence[Contender]) -> None:
    """Complain where engines gave different answers."""
    ours = taking_part[0]
    for each in taking_part:
        if each.name in ALIKE and (each.answers, each.tags) != (ours.answers, ours.tags):
            report.problem(f"{title}: {each.name} gave {each.answers} answers, DualDB {ours.answers}")


def tell(report: Report, title: str, key: str, taking_part: Sequence[Contender], operations: int) -> dict[str, float]:
    """A table, samples; the ratio to each engine."""
    ours = taking_part[0]
    ratios = {each.name: reports.ratio(each.seconds, ours.seconds) or 0.0 for each in taking_part}
    rows = [
        (
            each.name,
            f"{(reports.median(each.seconds) or 0.0) / operations * 1e6:,.2f}",
            f"{ratios[each.name]:,.2f}",
        )
        for each in taking_part
    ]
    report.table(f"subscriptions to publications {title}", ("engine", "us an operation", "DualDB is faster by"), rows)
    report.samples[key] = {each.name: {"seconds": each.seconds, "answers": each.answers} for each in taking_part}
    return ratios


class Growth(NamedTuple):
    """DualDB alone over a long run: seconds and CPU seconds a part (a fifteenth), the file after each batch."""

    seconds: list[float]
    cpu_seconds: list[float]
    file_bytes: list[int]
    cumulative: list[float]


def grow(workload: Workload, operations: int, memory_rows: int) -> Growth:
    """Run DualDB alone; a memory table of `memory_rows` makes as many flushes in a short run as in a long one."""
    with tempfile.TemporaryDirectory(prefix="lexicast-dualdb") as folder:
        engine = OneDatabase(Path(folder), DualOptions(memory_rows_max=memory_rows))
        ours = Contender("dualdb", engine)
        files = []
        took = []
        worked = []
        for batch in batches(workload, operations):
            start = time.process_time()
            took.append(ours.apply(batch))
            worked.append(time.process_time() - start)
            files.append(engine.file_bytes())
        engine.close()
    seconds, cpu_seconds = [
        [float(part.sum()) for part in np.array_split(np.array(each), 15)] for each in (took, worked)
    ]
    return Growth(seconds, cpu_seconds, files, ours.cumulative)


def rss_anon_mib() -> float:
    """Anonymous memory of this process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def hold(
    folder: str, subscriptions: int, batch: int, cells: str, answer: multiprocessing.Queue[tuple[float, int]]
) -> None:
    """In a process of its own: hold that many live subscriptions, publish some, tell memory and answers."""
    places = np.load(cells)
    random = np.random.default_rng(1)
    db = DualDB.open(Path(folder))
    most = 0.0
    for first in range(0, subscriptions, batch):
        number = np.arange(first, first + batch)
        time_us = START_US + number
        cell = places[random.integers(0, len(places), batch)]
        kind = np.full(batch, SUBSCRIBE, np.uint8)
        db.apply(Batch(kind, cell, time_us, time_us, time_us + YEAR_US, number.astype(np.uint64), []))
        most = max(most, rss_anon_mib())
    found = db.publish(int(places[0]), START_US + subscriptions, START_US + subscriptions, 1, b"")
    most = max(most, rss_anon_mib())
    answer.put((most, len(found)))
    db.close()


def memory(report: Report, cells: np.ndarray[tuple[int], np.dtype[np.uint64]], size: Size) -> float | None:
    """Anonymous memory of a process with `size.memory_subscriptions` live subscriptions, in MiB."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="lexicast-dualdb") as folder:
        places = Path(folder) / "cells.npy"
        np.save(places, cells)
        answer: multiprocessing.Queue[tuple[float, int]] = context.Queue()
        child = context.Process(target=hold, args=(folder, size.memory_subscriptions, 10_000, str(places), answer))
        child.start()
        child.join()
        if child.exitcode != 0:
            report.problem(f"the process with {size.memory_subscriptions} subscriptions ended with {child.exitcode}")
            return None
        most, answers = answer.get()
    if answers == 0:
        report.problem("a publication found none of the live subscriptions")
    return most


def measure(report: Report) -> None:
    """Everything, in order."""
    options = report.options
    cells = taxi_cells(options.data) if options.data else city_cells(1)
    size = {(False, False): FULL, (True, False): QUICK, (False, True): FULL_TAXI, (True, True): QUICK_TAXI}[
        (options.quick, options.data is not None)
    ]
    curves: dict[str, list[tuple[str, list[float], int]]] = {}
    rounds = max(options.rounds, reports.ROUNDS)
    with reports.Steps(report.console, 2 * (rounds + 1) + 2) as steps:
        for title, part, key in (("3:1", SUBSCRIPTION_HEAVY, "3_1"), ("1:3", PUBLICATION_HEAVY, "1_3")):
            workload = Workload(cells, part, size.rate, size.batch, 7)
            taking_part = compare(report, workload, size, title, steps)
            ratios = tell(report, title, key, taking_part, size.batch * size.round_batches)
            report.figure(f"vs_repqueries_{key}", ratios.get("repqueries"))
            report.figure(f"vs_repqueries_joined_{key}", ratios.get("repqueries_joined"))
            if part == SUBSCRIPTION_HEAVY:
                for name in ("padres", "leveldb", "rocksdb", "two_databases"):
                    report.figure(f"vs_{name}", ratios.get(name))
            curves[title] = [(each.name, each.cumulative, size.batch) for each in taking_part]
        steps.step(f"DualDB alone: {size.growth_operations:,} operations")
        growth = grow(
            Workload(cells, SUBSCRIPTION_HEAVY, size.rate, size.batch, 8), size.growth_operations, size.memory_rows
        )
        half = len(growth.file_bytes) // 2
        report.figure("growth_15m", growth.seconds[-1] / growth.seconds[1])
        report.figure("growth_15m_cpu", growth.cpu_seconds[-1] / growth.cpu_seconds[1])
        report.figure("file_growth", max(growth.file_bytes[half:]) / max(growth.file_bytes[:half]))
        report.samples["growth"] = {
            "seconds": growth.seconds,
            "cpu_seconds": growth.cpu_seconds,
            "file_bytes": max(growth.file_bytes),
        }
        curves["3:1"].append(("dualdb alone", growth.cumulative, size.batch))
        steps.step(f"{size.memory_subscriptions:,} live subscriptions")
        report.figure("rss_10m_mib", memory(report, cells, size))
    draw(options.picture, curves, growth.seconds, size.growth_operations)
    report.console.print(f"picture: {options.picture}", highlight=False)


def main(arguments: Sequence[str]) -> int:
    """The driver; its exit code."""
    parser = reports.parser("dualdb", __doc__, default_targets="dualdb")
    parser.add_argument("--data", type=Path, metavar="DIR", help="take the taxi pick-ups of this folder as places")
    parser.add_argument("--picture", type=Path, default=Path("dualdb.png"), help="curves (default %(default)s)")
    options: argparse.Namespace = parser.parse_args(arguments)
    return reports.drive("dualdb", options, measure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
