"""Part `index`: how many events a second one core matches, beside a scan in NumPy and closures in Python.

    index_40k_scan_events_s       40,000 subscriptions of width 10%, uniform, in 4 dimensions, batches of 256 events:
                                  the scan; index_40k_closures_events_s: the closures

A rate is the best of the rounds, in which all take turns: other processes only ever slow one down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..report import DriverReport, Steps
from .peers import Closures, Scan
from .population import BoxPopulation, BoxSetting, Floats, drawn

BATCH: Final = 256
MAIN: Final = BoxSetting(40_000)
# Each round goes on for so long; one event of the closures takes several milliseconds.
_ROUND_S: Final = 0.5
_CLOSURE_EVENTS: Final = 16


def steps(quick: bool) -> int:
    """How many steps `measure` announces."""
    return 1


def measure(report: DriverReport, progress: Steps) -> None:
    """See the module's docstring."""
    dice = np.random.default_rng(report.options.seed)
    progress.step(f"index: {MAIN.subscriptions:,} subscriptions")
    population = drawn(MAIN, dice)
    rates = _rates(population, dice, report.options.rounds)
    report.samples["index_40k"] = rates
    for name, found in rates.items():
        report.figure(f"index_40k_{name}_events_s", max(found))


def _rates(population: BoxPopulation, dice: np.random.Generator, rounds: int) -> dict[str, list[float]]:
    """Events a second, round by round."""
    points = population.events(BATCH, dice)
    matchers = {
        "scan": (Scan(population).match, points),
        "closures": (Closures(population).match, points[:_CLOSURE_EVENTS]),
    }
    rates: dict[str, list[float]] = {name: [] for name in matchers}
    for _ in range(rounds):
        for name, (match, some) in matchers.items():
            rates[name].append(events_s(match, some, _ROUND_S))
    return rates


def events_s(match: Callable[[Floats], Any], points: Floats, seconds: float) -> float:
    """Events a second of CPU time, of a matcher that is asked again and again for at least `seconds`."""
    begun, batches = time.process_time(), 0
    while (taken := time.process_time() - begun) < seconds:
        match(points)
        batches += 1
    return batches * len(points) / taken
