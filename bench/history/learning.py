"""The gain of learning from the history over learning online: dictionaries, and PREDICT's regression. Without Spark.

`br_gain`: each corpus is cut in half. PREDICT runs through all of it, online; a dictionary is chosen from the first
half, as `lexicast spark train-dictionaries` chooses, and serves the second half. Compared on the second half, the
dictionaries that came in it included; in points, the mean over the corpora.

`mc_error_cold`, `mc_error_warm`: how far MC is off, in doublings, on the dictionaries of a corpus (see
`raydp_jobs.jobs.regression_observations`): the bootstrap's MC.base, and the regression fitted to all *other* corpora.
In figures of the thesis' own terms: how many looks, MC doubled or halved at each, until it is within a factor of two.
`br_warm`: what PREDICT saves more of all bytes of these corpora when it starts from that regression, in points, the
mean.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from lexicast.compression.accounting import reduction_percent
from lexicast.compression.predict import AGE_MAX, Predict
from lexicast.compression.regression import OBSERVATIONS_MAX
from lexicast.compression.substring_repository import Features
from lexicast.raydp_jobs.jobs.dictionary_choice import choose
from lexicast.raydp_jobs.jobs.regression_observations import Observation, error_doublings, fitted_plane, replay

from .. import report as reports
from ..compression.offline_runs import FAMILY, OfflineRun, simulate
from ..data.corpora import Corpus, of_folder, of_packages
from ..report import DriverReport

MESSAGES_MAX = 20_000
QUICK_MAX = 4_000


def second_half(corpus: Corpus, cold: OfflineRun) -> tuple[float, float]:
    """Reduction of the second half in percent: (PREDICT online, a dictionary chosen from the first half)."""
    half = len(corpus.messages) // 2
    first, second = corpus.messages[:half], corpus.messages[half:]
    online = statistics.fmean(cold.windows[len(cold.windows) // 2 :])
    choice = choose(FAMILY, first, len(first), None)
    if choice.dictionary is None:
        return online, 0.0
    codec = choice.dictionary.build()
    sent = sum(1 + len(codec.encode(message)[1]) for message in second)
    return online, reduction_percent(sum(map(len, second)), sent + len(choice.dictionary.pack()))


def looks_until(predicted: float, right: float) -> int:
    """Looks until MC, doubled or halved from `predicted`, is within a factor of two of what is right."""
    return min(AGE_MAX * 4, max(0, ceil(error_doublings(predicted, right) - 1)))


def clamped(predicted: float, rows: Sequence[Observation]) -> float:
    """As `compression.regression` bounds a prediction: within a factor of two of what was observed."""
    counts = [row.messages for row in rows]
    return min(max(predicted, min(counts) / 2), 2 * max(counts))


def predictions(observed: dict[str, list[Observation]]) -> dict[str, list[tuple[float, float, float]]]:
    """Corpus -> (MC.base, the regression of the other corpora, what was right) of each dictionary."""
    made = {}
    for name, rows in observed.items():
        others = [row for other, found in observed.items() if other != name for row in found]
        intercept, deviation, score = fitted_plane(others)
        made[name] = [
            (
                row.base,
                clamped(intercept + deviation * row.mean_deviation + score * row.mean_score, others),
                row.messages,
            )
            for row in rows
        ]
    return made


def warm_reduction(corpus: Corpus, observed: dict[str, list[Observation]]) -> float:
    """Reduction of all of it by PREDICT that starts from the other corpora, in percent."""
    algorithm = Predict()
    others = [row for name, rows in observed.items() if name != corpus.name for row in rows]
    algorithm.warm([(Features(row.mean_deviation, row.mean_score), row.messages) for row in thinned(others)])
    return simulate(corpus.messages, algorithm).reduction()


def thinned(rows: Sequence[Observation]) -> list[Observation]:
    """As many as a published regression holds, spread over all."""
    step = max(1.0, len(rows) / OBSERVATIONS_MAX)
    return [rows[int(at * step)] for at in range(min(len(rows), OBSERVATIONS_MAX))]


def measure(report: DriverReport) -> None:
    """One run of the driver."""
    options = report.options
    most = options.messages or (QUICK_MAX if options.quick else MESSAGES_MAX)
    corpora = of_packages(most) if options.data is None else of_folder(options.data, most)
    halves: dict[str, tuple[float, float]] = {}
    observed: dict[str, list[Observation]] = {}
    wholes: dict[str, tuple[float, float]] = {}
    with reports.Steps(report.console, 2 * len(corpora)) as steps:
        runs: dict[str, OfflineRun] = {}
        for corpus in corpora:
            steps.step(f"{corpus.name}: {len(corpus.messages):,} messages")
            runs[corpus.name] = simulate(corpus.messages, Predict())
            halves[corpus.name] = second_half(corpus, runs[corpus.name])
            if rows := list(replay(corpus.messages)):
                observed[corpus.name] = rows
        for corpus in corpora:
            steps.step(f"{corpus.name}: PREDICT from the others' regression")
            if corpus.name in observed and len(observed) > 1:
                wholes[corpus.name] = runs[corpus.name].reduction(), warm_reduction(corpus, observed)
    _report_warm(report, wholes)
    report.samples["second_half_percent"] = halves
    report.figure("br_gain", statistics.fmean([trained - online for online, trained in halves.values()]))
    table = [[name, f"{a:.1f}%", f"{b:.1f}%", f"{b - a:+.1f}"] for name, (a, b) in halves.items()]
    report.table("reduction of the second half", ["corpus", "PREDICT", "from history", "points"], table)
    _report_counts(report, predictions(observed) if len(observed) > 1 else {})


def _report_warm(report: DriverReport, wholes: dict[str, tuple[float, float]]) -> None:
    report.samples["whole_percent"] = wholes
    gains = [warm - cold for cold, warm in wholes.values()]
    report.figure("br_warm", statistics.fmean(gains) if gains else None)
    table = [[name, f"{cold:.1f}%", f"{warm:.1f}%", f"{warm - cold:+.1f}"] for name, (cold, warm) in wholes.items()]
    report.table("reduction of the whole", ["corpus", "PREDICT", "warm", "points"], table)


def _report_counts(report: DriverReport, made: dict[str, list[tuple[float, float, float]]]) -> None:
    report.samples["mc"] = made
    everything = [row for rows in made.values() for row in rows]
    for key, at in (("mc_error_cold", 0), ("mc_error_warm", 1)):
        report.figure(
            key, statistics.fmean([error_doublings(row[at], row[2]) for row in everything]) if everything else None
        )
    table = []
    for name, rows in made.items():
        cold = statistics.fmean([error_doublings(row[0], row[2]) for row in rows])
        warm = statistics.fmean([error_doublings(row[1], row[2]) for row in rows])
        looks = [statistics.fmean([looks_until(row[at], row[2]) for row in rows]) for at in (0, 1)]
        table.append([name, str(len(rows)), f"{cold:.1f}", f"{warm:.1f}", f"{looks[0]:.1f}", f"{looks[1]:.1f}"])
    columns = ["corpus", "dictionaries", "cold: doublings off", "warm", "cold: looks until good", "warm"]
    report.table("MC, by the bootstrap and by the other corpora's regression", columns, table)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the driver; returns the exit code."""
    parser = reports.parser("history.learning", __doc__, default_targets="lexicast")
    parser.add_argument("--data", type=Path, metavar="DIR", help="corpora: files whose lines are messages (plain, .gz)")
    parser.add_argument("--messages", type=reports.positive, help=f"so many a corpus (default {MESSAGES_MAX:,})")
    options: argparse.Namespace = parser.parse_args(argv)
    return reports.drive("history_learning", options, measure)


if __name__ == "__main__":
    sys.exit(main())
