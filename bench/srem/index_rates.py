"""Part `index`: how many events a second one core matches, beside a scan in NumPy and closures in Python.

    index_40k_events_s     40,000 subscriptions of width 10%, uniform, in 4 dimensions, batches of 256 events
    index_40k_vs_scan      the same over the scan; index_40k_vs_closures: over the closures
    index_1m_events_s      a million of width 2%, skewed, as the events are (quick: 50,000); index_1m_vs_scan
    index_<case>_events_s, index_<case>_vs_scan
                           the cases of `CASES`, with 40,000 subscriptions where nothing else is said: the weak ones too
    index_bytes            memory a subscription, the more of 40,000 and a million: the index' mappings, and what Python
                           and NumPy allocated; index_resident_bytes: what the process has grown by, at a million
    index_fill_us          CPU time to enter a subscription, the million's

A rate is the best of the rounds, in which all take turns (CPU time: other processes only ever slow one down); a ratio
is the median of those within a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from .. import report as reports
from ..report import DriverReport, Steps
from .filling import Filled, columns, filled, python_bytes, resident_bytes
from .index_pictures import draw_rates
from .peers import Closures, Scan
from .population import BoxPopulation, BoxSetting, Floats, drawn

BATCH: Final = 256
MAIN: Final = BoxSetting(40_000)
MILLION: Final = BoxSetting(1_000_000, width=0.02, spread=0.15)
QUICK_MILLION: Final = 50_000


class IndexCase(NamedTuple):
    """A population, and how many events come at once."""

    setting: BoxSetting
    batch: int = BATCH


CASES: Final = {
    "batch_1": IndexCase(MAIN, 1),
    "batch_16": IndexCase(MAIN, 16),
    "batch_64": IndexCase(MAIN, 64),
    "1k": IndexCase(MAIN._replace(subscriptions=1_000)),
    "10k": IndexCase(MAIN._replace(subscriptions=10_000)),
    "200k": IndexCase(MAIN._replace(subscriptions=200_000)),
    "1k_batch_1": IndexCase(MAIN._replace(subscriptions=1_000), 1),
    "1k_batch_16": IndexCase(MAIN._replace(subscriptions=1_000), 16),
    "1d": IndexCase(MAIN._replace(dimensions=1)),
    "2d": IndexCase(MAIN._replace(dimensions=2)),
    "8d": IndexCase(MAIN._replace(dimensions=8)),
    "wide": IndexCase(MAIN._replace(width=0.3)),
    "8d_wide": IndexCase(MAIN._replace(dimensions=8, width=0.3)),
    "skewed": IndexCase(MAIN._replace(spread=0.15)),
    "equal_1d": IndexCase(MAIN._replace(dimensions=1, values=10_000)),
    "equal": IndexCase(MAIN._replace(values=10_000)),
    "mixed": IndexCase(MAIN._replace(values=100, above=2)),
    "sets_8": IndexCase(MAIN._replace(dimensions=12, sets=8)),
    "sets_64": IndexCase(MAIN._replace(dimensions=12, sets=64)),
    "sets_400": IndexCase(MAIN._replace(dimensions=12, sets=400)),
}
"""By the names in the figures. batch: events at once; d: dimensions; wide: width 30%; equal: one of 10,000 values in
the first dimension; mixed: one of 100 values, a range of 10%, two bounds from below; sets: so many different sets of 4
of 12 dimensions."""
QUICK_CASES: Final = ("1k", "batch_1", "wide", "equal")
_BY_NUMBER: Final = ("1k", "10k", "40k", "200k")
_BY_BATCH: Final = ("batch_1", "batch_16", "batch_64", "40k")
_CLOSURE_EVENTS: Final = 8
_SCAN_EVENTS: Final = 64
_ROUND_S: Final = 0.3
_QUICK_ROUND_S: Final = 0.1

Rates = Mapping[str, list[float]]
"""Events a second of each matcher, round by round."""


def steps(quick: bool) -> int:
    """How many steps `measure` announces."""
    return len(_cases(quick)) + 3


def measure(report: DriverReport, progress: Steps) -> None:
    """See the module's docstring."""
    quick = report.options.quick
    rates: dict[str, Rates] = {}
    rows = []
    population, dice = _drawn(report, MAIN)
    main = found = filled(population)
    for name, case in {"40k": IndexCase(MAIN), **_cases(quick)}.items():
        progress.step(f"index: {described(case)}")
        if case.setting != population.setting:
            population, dice = _drawn(report, case.setting)
            found = filled(population)
        rates[name], matches = _measured(report, population, found, case.batch, dice, closures=name == "40k")
        rows.append(_row(described(case), rates[name], matches))
        _report(report, name, rates[name])
    report.figure("index_40k_vs_closures", reports.median_ratio(rates["40k"]["index"], rates["40k"]["closures"]))
    progress.step("index: memory")
    held_by_python = python_bytes(_drawn(report, MAIN)[0])
    million = _million(report, progress, rates, rows)
    most = max([found.predicates.nbytes / len(found.predicates) for found in (main, million)])
    report.figure("index_bytes", held_by_python + most)
    report.samples["index"] = {name: dict(found) for name, found in rates.items()}
    heads = ["subscriptions and events", "matches an event", "index: events/s", "scan", "index/scan"]
    report.table("Matching on one core; best of the rounds, the ratios' median", heads, rows)
    if report.options.out is not None:
        best = {name: {who: max(each) for who, each in found.items()} for name, found in rates.items()}
        cases = {"40k": IndexCase(MAIN), **CASES}
        by_number = {cases[name].setting.subscriptions: best[name] for name in _BY_NUMBER if name in best}
        by_batch = {cases[name].batch: best[name] for name in _BY_BATCH if name in best}
        draw_rates(report.options.out, by_number, by_batch)


def _million(report: DriverReport, progress: Steps, rates: dict[str, Rates], rows: list[list[str]]) -> Filled:
    setting = MILLION._replace(subscriptions=QUICK_MILLION) if report.options.quick else MILLION
    progress.step(f"index: {described(IndexCase(setting))}")
    population, dice = _drawn(report, setting)
    before = resident_bytes()
    found = filled(population)
    count = setting.subscriptions
    report.figure("index_resident_bytes", (resident_bytes() - before) / count)
    report.figure("index_fill_us", found.seconds / count * 1e6)
    rates["1m"], matches = _measured(report, population, found, BATCH, dice)
    _report(report, "1m", rates["1m"])
    rows.append(_row(described(IndexCase(setting)), rates["1m"], matches))
    return found


def _cases(quick: bool) -> dict[str, IndexCase]:
    return {name: case for name, case in CASES.items() if not quick or name in QUICK_CASES}


def _drawn(report: DriverReport, setting: BoxSetting) -> tuple[BoxPopulation, np.random.Generator]:
    dice = np.random.default_rng(report.options.seed)
    return drawn(setting, dice), dice


def _measured(
    report: DriverReport,
    population: BoxPopulation,
    found: Filled,
    batch: int,
    dice: np.random.Generator,
    *,
    closures: bool = False,
) -> tuple[Rates, float]:
    """Rates, and the matches of an event."""
    names, scan = columns(population), Scan(population)

    def index(points: Floats) -> Any:
        return found.predicates.match(points, names)

    points = population.events(max(batch, _SCAN_EVENTS), dice)
    agreed = points[:_SCAN_EVENTS]
    pairs = _sorted(index(agreed))
    if pairs != _sorted(scan.match(agreed)):
        report.problem(f"{population.setting}: the index and the scan disagree")
    matchers = {"index": (index, points[:batch]), "scan": (scan.match, points[: min(batch, _SCAN_EVENTS)])}
    if closures:
        asked = Closures(population)
        matchers["closures"] = (asked.match, points[:_CLOSURE_EVENTS])
        if _sorted(asked.match(points[:_CLOSURE_EVENTS])) != [pair for pair in pairs if pair[0] < _CLOSURE_EVENTS]:
            report.problem(f"{population.setting}: the index and the closures disagree")
    seconds = _QUICK_ROUND_S if report.options.quick else _ROUND_S
    rates: dict[str, list[float]] = {name: [] for name in matchers}
    for _ in range(report.options.rounds):
        for name, (match, some) in matchers.items():
            rates[name].append(events_s(match, some, seconds))
    return rates, len(pairs) / len(agreed)


def _sorted(pairs: Iterable[Any]) -> list[tuple[int, int]]:
    events, keys = pairs
    return sorted(zip(events.tolist(), keys.tolist(), strict=True))


def events_s(match: Callable[[Floats], Any], points: Floats, seconds: float) -> float:
    """Events a second of CPU time, of a matcher that is asked again and again for at least `seconds`."""
    begun, batches = time.process_time(), 0
    while (taken := time.process_time() - begun) < seconds:
        match(points)
        batches += 1
    return batches * len(points) / taken


def _report(report: DriverReport, name: str, rates: Rates) -> None:
    report.figure(f"index_{name}_events_s", max(rates["index"]))
    report.figure(f"index_{name}_vs_scan", reports.median_ratio(rates["index"], rates["scan"]))


def _row(what: str, rates: Rates, matches: float) -> list[str]:
    ratio = reports.format_number(reports.median_ratio(rates["index"], rates["scan"]), 1)
    return [what, f"{matches:,.2f}", *[f"{max(rates[name]):,.0f}" for name in ("index", "scan")], ratio]


def described(case: IndexCase) -> str:
    """A case in words."""
    setting = case.setting
    told = [f"{setting.subscriptions:,}", f"{setting.dimensions}d", f"{setting.width:.0%}"]
    if setting.spread is not None:
        told.append("skewed")
    if setting.values:
        told.append(f"= of {setting.values:,}")
    if setting.above:
        told.append(f"> in {setting.above}")
    if setting.sets:
        told.append(f"{setting.sets} sets of columns")
    return ", ".join([*told, f"batches of {case.batch}"])
