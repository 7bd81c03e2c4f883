"""The loads of `bench.fanout` and `bench.fanin` on two clusters that differ in one thing, in turns: what it costs.

Both are given the same window: where each chose its own, a slump while one was trying windows made it run with another
one for all rounds, and looked like a cost of a third.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from .. import fanout
from .. import report as reports
from ..contest import WINDOWS, Scenario, contest
from ..peers.fleet_load import FleetLoad, OpenFleet
from ..peers.loadgen import Load, OpenLoad
from ..peers.session_opening import raise_open_files
from ..report import DriverReport
from ..stage.clusters import start_lexicast
from ..stage.servers import Target

FANOUT: Final = (1, 100, 1_000)
FANIN: Final = (1_000, 5_000)
QUICK_FANOUT: Final = (1, 100)
QUICK_FANIN: Final = (1_000,)
WITHOUT: Final = "lexicast"


def measure_beside(report: DriverReport, part: str, has: str, config: Callable[[Path], str]) -> None:
    """`config` makes, in a folder, what one of the clusters has in its configuration and the other one has not; `has`:
    that, in a word. Figures: PART_fanout_ratio and PART_fanin_ratio, the least of all loads. Of the options it takes
    quick, rounds, payload, seconds, calibrate_seconds, messages and mqtt_version."""
    quick = report.options.quick
    fanouts, fanins = (QUICK_FANOUT, QUICK_FANIN) if quick else (FANOUT, FANIN)
    raise_open_files(2 * max(*fanouts, *fanins) + 200)
    chosen = _scenarios(part, fanouts, fanins, report.options.payload)
    steps = len(chosen) * (1 + report.options.rounds)
    with _running(has, config) as targets, reports.Steps(report.console, steps) as progress:
        for scenario in chosen:
            contest(report, progress, targets, scenario)
    _figures(report, part, has, chosen)


def _scenarios(part: str, fanouts: Sequence[int], fanins: Sequence[int], payload: int) -> list[Scenario]:
    return [
        *[
            Scenario(
                f"{part}_fanout_{count}",
                partial(OpenLoad, load=Load(f"{part}_fanout_{count}", count, payload)),
                copies=count,
                windows=fanout.WINDOW_LADDER[max(size for size in fanout.WINDOW_LADDER if size <= count)][-1:],
            )
            for count in fanouts
        ],
        *[
            Scenario(
                f"{part}_fanin_{count}{'_qos1' if qos else ''}",
                partial(OpenFleet, load=FleetLoad(f"{part}_fanin_{count}_{qos}", count, payload, qos)),
                qos,
                windows=[max(count, WINDOWS[1])],
            )
            for count in fanins
            for qos in (0, 1)
        ],
    ]


@contextlib.contextmanager
def _running(has: str, config: Callable[[Path], str]) -> Iterator[list[Target]]:
    with contextlib.ExitStack() as stack:
        targets = []
        for name in (WITHOUT, _with(has)):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lexicast-bench-")))
            targets.append(start_lexicast(folder, "" if name == WITHOUT else config(folder), name))
            stack.callback(targets[-1].stop)
        yield targets


def _with(has: str) -> str:
    return f"{WITHOUT}-{has}"


def _figures(report: DriverReport, part: str, has: str, chosen: Sequence[Scenario]) -> None:
    ratios: dict[str, list[float | None]] = {f"{part}_fanout": [], f"{part}_fanin": []}
    rows = []
    for scenario in chosen:
        samples = report.samples[scenario.name]
        rates = {name: told["deliveries_per_s"] for name, told in samples.items()}
        ratio = reports.median_ratio(rates.get(_with(has)), rates.get(WITHOUT))
        ratios[next(kind for kind in ratios if scenario.name.startswith(kind))].append(ratio)
        report.figure(f"{scenario.name}_ratio", ratio)
        told = [reports.format_rate(reports.median(rates.get(name, ()))) for name in (WITHOUT, _with(has))]
        rows.append([scenario.name, *told, reports.format_number(ratio)])
    for name, found in ratios.items():
        known = [ratio for ratio in found if ratio is not None]
        report.figure(f"{name}_ratio", min(known) if len(known) == len(found) else None)
    columns = ["deliveries/s", "without", has, "ratio"]
    report.table(f"{report.options.payload} B, median of {report.options.rounds} rounds", columns, rows)
