"""DualDB against its paper's baselines and against itself on other engines, and whether it stays as it was.

All engines take turns with the same batches (in a rotating order), by the same simulated clock, each batch durable in
each before the next. First so many batches that every engine holds what will live at any time (20 s); then rounds. A
figure is the median of the ratios within a round. Answers are counted and compared: engines that disagree make the exit
code 1.

    vs_repqueries_3_1, vs_repqueries_1_3     section 4.2: each query issued by its client, by itself
    vs_repqueries_joined_3_1, ..._1_3        beyond the paper: all queries of a batch asked together, on our engine
    vs_padres, vs_leveldb, vs_rocksdb, vs_two_databases      at 3:1, the subscription-heavy workload

By how many operations come at once (section `curve`, see `batch_sizes`): `vs_leveldb_single`, `vs_leveldb_100`, and
RocksDB's; each also in CPU time (`_cpu`); and of each engine at each size `ops_s`, `p50_ms`, `p99_ms`, `cpu_us`.

Then DualDB alone (see `growth`): `growth_15m`, the time an operation in the last million of 15 over that in the
second one, taken in turns (`growth_15m_cpu`: CPU time alone); `file_growth`, the greatest file in the second half of
that run over the greatest in the first; `rss_10m_mib`, anonymous memory of a process that holds 10 million live
subscriptions. --quick does each with a tenth or less.

--only does some of the sections, for a machine that is quiet for minutes only; figures and curves of the others are
then taken over from the --json file, where it is of the same mode:

{sections}

A batch is mixed, so its time is not told apart into publish and subscribe as in the paper's figures; the picture has
the cumulative time of both, and the average time an operation.
"""

from __future__ import annotations

import argparse
import json
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
from numpy.typing import NDArray

from lexicast.cluster.errors import UnavailableError, UsageError
from lexicast.storage.dualdb.batches import OperationBatch

from .. import report as reports
from ..report import DriverReport
from . import batch_sizes
from .baselines.compared_engine import Answered, ComparedEngine
from .baselines.key_value import KeyValue, LevelDB, ListsOn, RocksDB
from .baselines.one_database import OneDatabase
from .baselines.padres import Padres
from .baselines.repqueries import RepQueries
from .baselines.repqueries_joined import RepQueriesJoined
from .baselines.two_databases import TwoDatabases
from .growth import PARTS, grow, subscriptions_mib
from .growth import ROUNDS as GROWTH_ROUNDS
from .picture import Curve, draw
from .postgres import server
from .workload import BOXES, LIFE_US, Workload, city_cells, taxi_cells, workload_batches

SUBSCRIPTION_HEAVY = 0.75
PUBLICATION_HEAVY = 0.25
# RepQueries count an answer when a client asks for it, so theirs come later; all others give the same at once.
ALIKE = ("dualdb", "two_databases", "leveldb", "rocksdb", "padres")
CURVE_POINTS = 300


class Size(NamedTuple):
    """How much is measured."""

    rate: int
    batch: int
    round_batches: int
    growth_operations: int
    memory_subscriptions: int
    memory_rows: int


# What lives at any time (20 s of the rate) fits into a part of the growth run: its second part has all of it.
FULL = Size(20_000, 10_000, 5, 15_000_000, 10_000_000, 1_000_000)
QUICK = Size(4_000, 4_000, 1, 1_500_000, 1_000_000, 100_000)
# Places of taxis are closer together: more answers an operation at the same rate.
FULL_TAXI = Size(4_000, 4_000, 10, 15_000_000, 10_000_000, 1_000_000)
QUICK_TAXI = Size(4_000, 4_000, 1, 1_500_000, 1_000_000, 100_000)


@dataclass
class EngineContender:
    """An engine under comparison and what it gave."""

    name: str
    engine: ComparedEngine
    seconds: list[float] = field(default_factory=list)
    cumulative: list[float] = field(default_factory=list)
    answers: int = 0
    tags: int = 0

    def apply(self, batch: OperationBatch) -> float:
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


def contenders(stack: ExitStack, folder: Path, report: DriverReport) -> list[EngineContender]:
    """Every engine that is installed, each in an empty place of its own."""

    def opened(name: str, made: Callable[[Path], ComparedEngine]) -> None:
        found.append(EngineContender(name, made(folder / name)))
        stack.callback(found[-1].engine.close)

    found: list[EngineContender] = []
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


def warm_batches(size: Size) -> int:
    """As many as it takes until every engine holds what will live at any time."""
    return LIFE_US * size.rate // 1_000_000 // size.batch + 1


def compare(
    report: DriverReport, workload: Workload, size: Size, title: str, steps: reports.Steps
) -> list[EngineContender]:
    """All engines in turns; their seconds a round."""
    warm = warm_batches(size)
    rounds = max(report.options.rounds, reports.ROUNDS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lexicast-dualdb")))
        taking_part = contenders(stack, folder, report)
        steps.step(f"{title}: {warm} batches of {size.batch} until all hold the same live items")
        stream = workload_batches(workload, (warm + rounds * size.round_batches) * size.batch)
        for number in range(warm):
            turn(taking_part, number, [next(stream)])
        for number in range(rounds):
            steps.step(f"{title}: round {number + 1}")
            seconds = turn(taking_part, number, [next(stream) for _ in range(size.round_batches)])
            for each in taking_part:
                each.seconds.append(seconds[each.name])
    agree(report, title, taking_part)
    return taking_part


def turn(taking_part: Sequence[EngineContender], number: int, work: Sequence[OperationBatch]) -> dict[str, float]:
    """Every engine does `work`, in an order that rotates; seconds by name."""
    first = number % len(taking_part)
    rotated = [*taking_part[first:], *taking_part[:first]]
    return {each.name: sum([each.apply(batch) for batch in work]) for each in rotated}


def agree(report: DriverReport, title: str, taking_part: Sequence[EngineContender]) -> None:
    """Complain where engines gave different answers."""
    ours = taking_part[0]
    for each in taking_part:
        if each.name in ALIKE and (each.answers, each.tags) != (ours.answers, ours.tags):
            report.problem(f"{title}: {each.name} gave {each.answers} answers, DualDB {ours.answers}")


def tell(
    report: DriverReport, title: str, key: str, taking_part: Sequence[EngineContender], operations: int
) -> dict[str, float]:
    """A table, samples; the ratio to each engine."""
    ours = taking_part[0]
    ratios = {each.name: reports.median_ratio(each.seconds, ours.seconds) or 0.0 for each in taking_part}
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


SECTIONS = {
    "ratios_3_1": "the engines at 3:1 (in full, on two cores, 100 s)",
    "ratios_1_3": "the engines at 1:3 (70 s)",
    "curve": "speed, latency and CPU by how many operations come at once, 1 to 10,000 (100 s)",
    "growth": "growth_15m, growth_15m_cpu, file_growth (60 s)",
    "memory": "rss_10m_mib (35 s)",
}


def compare_at(report: DriverReport, run: ComparisonRun, key: str, steps: reports.Steps) -> None:
    """The engines at a ratio of subscriptions to publications: table, figures, curves."""
    size = run.size
    title, part = {"3_1": ("3:1", SUBSCRIPTION_HEAVY), "1_3": ("1:3", PUBLICATION_HEAVY)}[key]
    workload = Workload(run.cells, part, size.rate, size.batch, 7)
    taking_part = compare(report, workload, size, title, steps)
    ratios = tell(report, title, key, taking_part, size.batch * size.round_batches)
    report.figure(f"vs_repqueries_{key}", ratios.get("repqueries"))
    report.figure(f"vs_repqueries_joined_{key}", ratios.get("repqueries_joined"))
    if part == SUBSCRIPTION_HEAVY:
        for name in ("padres", "leveldb", "rocksdb", "two_databases"):
            report.figure(f"vs_{name}", ratios.get(name))
    run.curves.setdefault(key, {}).update({each.name: curve(each.cumulative, size.batch) for each in taking_part})


def by_batch(report: DriverReport, run: ComparisonRun, steps: reports.Steps) -> None:
    """What an operation costs, by how many come at once."""
    size = run.size
    workload = Workload(run.cells, SUBSCRIPTION_HEAVY, size.rate, size.batch, 9)
    steps.step("operations one at a time to 10,000 at once")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lexicast-dualdb")))
        taking_part = contenders(stack, folder, report)
        engines = {each.name: each.engine for each in taking_part}
        points = batch_sizes.measure(engines, workload, warm_batches(size), report.options.quick)
    batch_sizes.tell(report, points)
    report.samples["curve"] = batch_sizes.samples_of(points)


def measure_growth(report: DriverReport, run: ComparisonRun, steps: reports.Steps) -> None:
    """DualDB over a long run."""
    size = run.size
    workload = Workload(run.cells, SUBSCRIPTION_HEAVY, size.rate, size.batch, 8)
    found = grow(workload, size.growth_operations, size.memory_rows, lambda text: steps.step(f"DualDB alone: {text}"))
    report.figure("growth_15m", found.wall)
    report.figure("growth_15m_cpu", found.cpu)
    report.figure("file_growth", found.file_growth)
    part = size.growth_operations // size.batch // PARTS
    report.samples["growth"] = {
        "seconds": [part.wall for part in found.parts],
        "cpu_seconds": [part.cpu for part in found.parts],
        "ratios": [each._asdict() for each in found.ratios],
        "file_bytes": found.file_bytes[part - 1 :: part],
        "operations": size.growth_operations,
    }
    run.curves.setdefault("3_1", {})["dualdb_alone"] = curve(found.cumulative, size.batch)


def measure_memory(report: DriverReport, run: ComparisonRun, steps: reports.Steps) -> None:
    """Anonymous memory with many live subscriptions."""
    subscriptions = run.size.memory_subscriptions
    steps.step(f"{subscriptions:,} live subscriptions")
    most, wrong = subscriptions_mib(run.cells, subscriptions)
    if wrong:
        report.problem(wrong)
    report.figure("rss_10m_mib", most)


@dataclass
class ComparisonRun:
    """What the sections share, and the curves they leave: by workload and engine."""

    cells: NDArray[np.uint64]
    size: Size
    curves: dict[str, dict[str, Curve]]


def curve(cumulative: Sequence[float], batch: int) -> Curve:
    """(million operations, cumulative seconds) at up to CURVE_POINTS batches, the last one among them."""
    step = -(-len(cumulative) // CURVE_POINTS)
    at = sorted({*range(0, len(cumulative), step), len(cumulative) - 1})
    return [((number + 1) * batch / 1e6, cumulative[number]) for number in at]


def before(report: DriverReport) -> dict[str, dict[str, Curve]]:
    """Take over what an earlier part of this run has left in the --json file; its curves."""
    options = report.options
    if options.json is None or not options.json.exists() or options.only == list(SECTIONS):
        return {}
    told = json.loads(options.json.read_text())
    if (told.get("driver"), told.get("mode")) != ("dualdb", "quick" if options.quick else "full"):
        raise UsageError(f"{options.json} is of another driver or mode: name another file, or remove it")
    report.figures.update(told["figures"])
    report.samples.update(told["samples"])
    curves: dict[str, dict[str, Curve]] = told["samples"].get("curves", {})
    return curves


def measure(report: DriverReport) -> None:
    """The sections asked for, in order."""
    options = report.options
    box = BOXES[options.box or ("city" if options.data else "state")]
    cells = taxi_cells(options.data, box) if options.data else city_cells(1, box=box)
    size = {(False, False): FULL, (True, False): QUICK, (False, True): FULL_TAXI, (True, True): QUICK_TAXI}[
        (options.quick, options.data is not None)
    ]
    run = ComparisonRun(cells, size, before(report))
    done: dict[str, Callable[[reports.Steps], None]] = {
        "ratios_3_1": partial(compare_at, report, run, "3_1"),
        "ratios_1_3": partial(compare_at, report, run, "1_3"),
        "curve": partial(by_batch, report, run),
        "growth": partial(measure_growth, report, run),
        "memory": partial(measure_memory, report, run),
    }
    rounds = max(options.rounds, reports.ROUNDS)
    counts = {"ratios_3_1": rounds + 1, "ratios_1_3": rounds + 1, "curve": 1, "growth": GROWTH_ROUNDS + 1, "memory": 1}
    with reports.Steps(report.console, sum([counts[name] for name in options.only])) as steps:
        for name in options.only:
            start = time.perf_counter()
            done[name](steps)
            report.samples.setdefault("section_seconds", {})[name] = round(time.perf_counter() - start, 1)
            report.samples["curves"] = run.curves
    if options.picture is not None:
        by_size = batch_sizes.points_in(report.samples.get("curve", {}))
        draw(options.picture, run.curves, report.samples.get("growth"), by_size)
        report.console.print(f"picture: {options.picture}", highlight=False)


def sections(text: str) -> list[str]:
    """The value of --only: sections, in the order in which they are done."""
    names = [part.strip() for part in text.split(",")]
    chosen = {each for name in names for each in SECTIONS if each == name or (name == "ratios" and "ratios" in each)}
    if unknown := set(names) - set(SECTIONS) - {"ratios"}:
        raise argparse.ArgumentTypeError(f"no section {', '.join(sorted(unknown))}: there are {', '.join(SECTIONS)}")
    return [name for name in SECTIONS if name in chosen]


def main(argv: Sequence[str] | None = None) -> int:
    """The driver; its exit code."""
    told = "\n".join([f"    {name:12} {what}" for name, what in SECTIONS.items()])
    parser = reports.parser("dualdb", (__doc__ or "").format(sections=told), default_targets="dualdb")
    parser.add_argument("--data", type=Path, metavar="DIR", help="take the taxi pick-ups of this folder as places")
    parser.add_argument("--box", choices=BOXES, help="bounding box of the cells (default city with --data, else state)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the curves here (PNG)")
    parser.add_argument(
        "--only",
        type=sections,
        default=list(SECTIONS),
        metavar="NAME,...",
        help=f"only these sections: {', '.join(SECTIONS)}, or ratios for both (default all)",
    )
    options: argparse.Namespace = parser.parse_args(argv)
    return reports.drive("dualdb", options, measure)
