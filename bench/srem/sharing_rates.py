"""Part `hpartition`: what rate of events simulated matchers match, by how subscriptions are shared out (`matching`).

    hpartition_vs_single   on the main load, HPartition over the best of those that treat each dimension by itself, the
                           least of all numbers of matchers; ..._best: the largest; ..._sweep_min: with the sweep
    hpartition_vs_...      the same beside one of them at 64 matchers: bluedove, spartition, one_dimension
    hpartition_vs_static   what copying and splitting hot cells brings, the most of all settings
    hpartition_copies      in how many cells a subscription lies, mean, on the main load: what the rate is paid with
    matchers_scaling       rate of 64 matchers over 16 times that of 4, HPartition on the main load

The abstract claims 3.7 to 40.4 times BlueDove's rate; the abridgement says nothing about the loads. The main load is of
its kind: many subscriptions, and they and the events around one hot spot a dimension. The sweep changes one thing of it
at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from ..report import DriverReport, Steps
from .matching import Matched, sharings, simulated
from .population import BoxSetting, drawn
from .scan_cost import ScanCost, measured_cost
from .sharing_pictures import draw_sharing

MATCHERS: Final = (4, 8, 16, 32, 64)
EVENTS: Final = 20_000
QUICK_EVENTS: Final = 4_000
OURS: Final = "HPartition"
SINGLE: Final = ("BlueDove", "SPartition", "one dimension")


class SharingSetting(NamedTuple):
    """A load, and how it is cut (`even`: all ways to share out cut evenly)."""

    name: str
    load: BoxSetting
    dimensions_a_group: int = 4
    segments: int = 10
    even: bool = False


_LOAD: Final = BoxSetting(200_000, 8, 0.1, 0.1)
MAIN: Final = SharingSetting("main", _LOAD)
SWEEP: Final = (
    *[SharingSetting(f"{count:,} subscriptions", _LOAD._replace(subscriptions=count)) for count in (10_000, 40_000)],
    *[SharingSetting(f"{count} dimensions", _LOAD._replace(dimensions=count)) for count in (4, 12)],
    *[SharingSetting(f"groups of {size}", _LOAD, size) for size in (2, 3)],
    *[SharingSetting(f"{count} segments", _LOAD, segments=count) for count in (4, 7, 13)],
    *[SharingSetting(f"spread {spread}", _LOAD._replace(spread=spread)) for spread in (0.03, 0.05, 0.2)],
    SharingSetting("uniform", _LOAD._replace(spread=None)),
    *[SharingSetting(f"width {width}", _LOAD._replace(width=width)) for width in (0.02, 0.3)],
    SharingSetting("equality, 5 values", _LOAD._replace(values=5)),
    *[SharingSetting(f"cut evenly, groups of {size}", _LOAD, size, even=True) for size in (2, 4)],
)
_QUICK_LOAD: Final = _LOAD._replace(subscriptions=20_000)

Rates = Mapping[str, Matched]


def steps(quick: bool) -> int:
    """How many steps `measure` announces."""
    return 1 if quick else 1 + len(SWEEP)


def measure(report: DriverReport, progress: Steps) -> None:
    """See the module's docstring."""
    quick, seed = report.options.quick, report.options.seed
    events = QUICK_EVENTS if quick else EVENTS
    costs: dict[int, ScanCost] = {}
    main = MAIN._replace(load=_QUICK_LOAD) if quick else MAIN
    progress.step(f"hpartition: {main.load.subscriptions:,} subscriptions, {MATCHERS[0]} to {MATCHERS[-1]} matchers")
    by_matchers = {matchers: _rates(main, matchers, costs, events, seed) for matchers in MATCHERS}
    sweep: dict[str, Rates] = {}
    for setting in () if quick else SWEEP:
        progress.step(f"hpartition: {setting.name}")
        sweep[setting.name] = _rates(setting, MATCHERS[-1], costs, events, seed)
    _report(report, by_matchers, sweep)
    if report.options.out is not None:
        draw_sharing(report.options.out, by_matchers, sweep)


def _rates(setting: SharingSetting, matchers: int, costs: dict[int, ScanCost], events: int, seed: int) -> Rates:
    population = drawn(setting.load, np.random.default_rng(seed))
    dimensions = setting.load.dimensions
    if dimensions not in costs:
        costs[dimensions] = measured_cost(population, np.random.default_rng(seed))
    return {
        sharing.name: simulated(population, sharing, matchers, costs[dimensions], events, seed, even=setting.even)
        for sharing in sharings(setting.dimensions_a_group, setting.segments)
    }


def over_single(rates: Rates) -> float:
    """Ours over the best that treats each dimension by itself."""
    return rates[OURS].events_s / max([rates[name].events_s for name in SINGLE])


def _report(report: DriverReport, by_matchers: Mapping[int, Rates], sweep: Mapping[str, Rates]) -> None:
    main = by_matchers[MATCHERS[-1]]
    over = [over_single(rates) for rates in by_matchers.values()]
    report.figure("hpartition_vs_single", min(over))
    report.figure("hpartition_vs_single_best", max(over))
    report.figure("hpartition_vs_single_sweep_min", min([*over, *map(over_single, sweep.values())]))
    for name in SINGLE:
        report.figure(f"hpartition_vs_{name.lower().replace(' ', '_')}", main[OURS].events_s / main[name].events_s)
    every = [*by_matchers.values(), *sweep.values()]
    report.figure("hpartition_vs_static", max([rates[OURS].events_s / rates["static"].events_s for rates in every]))
    report.figure("hpartition_copies", main[OURS].copies)
    first, last = MATCHERS[0], MATCHERS[-1]
    grown = by_matchers[last][OURS].events_s / by_matchers[first][OURS].events_s
    report.figure("matchers_scaling", grown / (last / first))
    rows = [(f"{matchers} matchers", rates) for matchers, rates in by_matchers.items()]
    rows += [(name, rates) for name, rates in sweep.items()]
    names = list(main)
    report.samples["hpartition"] = {row: {name: rates[name]._asdict() for name in names} for row, rates in rows}
    report.table(
        f"Thousand events/s, by how subscriptions are shared out ({MATCHERS[-1]} matchers where nothing is said)",
        ["", *names, "over single", "changes"],
        [
            [row, *[f"{rates[name].events_s / 1e3:,.0f}" for name in names], f"{over_single(rates):.2f}",
             str(rates[OURS].changes)]
            for row, rates in rows
        ],
    )  # fmt: skip
    shown = (OURS, *SINGLE[:2])
    report.table(
        "Subscriptions that an event is compared with; cells that a subscription lies in",
        ["", *shown, *[f"{name}: cells" for name in shown]],
        [
            [row, *[f"{rates[name].scanned:,.0f}" for name in shown], *[f"{rates[name].copies:,.1f}" for name in shown]]
            for row, rates in rows
        ],
    )
