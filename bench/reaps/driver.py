"""Backups of brokers and what they cost: the simulation of REAPS (section VI-B), on the cores that are in ft/.

Nothing is started, and no broker runs: brokers, channels, subscribers are numbers from a seed (`population`). What the
paper does not say is swept: how local subscribers' interests are (0: not at all), how many there are and how many
subscriptions each has, how much capacity brokers have. Figures, in the order of the paper:

    ar_vs_reaps_min       4a: what active replication retrieves over what REAPS retrieves, the least of all worlds (it
                          cannot be below 1: AR retrieves whatever REAPS does); ..._warm_min: over REAPS if local
                          backups retrieved what they are subscribed to
    lcs_vs_rnd            4b: subscriptions made for local backups (sum of O, eq. 1) over those with random backups, the
                          worst setting; ..._best: the best; lcs_paper_vs_rnd: the paper's greedy pass alone
    churn_vs_rnd          what local backups change at the back end while subscriptions come and go, over random ones,
                          the worst setting
    mmcs_vs_rnd           4c: the largest number of non-overlapping remote subscriptions (max R, eq. 2) over that of
                          random backups, the worst setting; settings where both are 0 are ties: counted, no ratio
    threshold_vs_periodic 4d: what is retrieved again after a takeover, by the paper's threshold over periodically at
                          the same messages a second; unsaved_first_...: ft's threshold, most unsaved first, and
                          ..._positions at the same number of positions a second
    repeated_mb_1, _all   5a: MB retrieved again when one broker fails, when a whole cluster does
    recovery_s_1, _all    5b: seconds until the last subscriber is back, by a model (`failures`), not measured
    lcs_gap, mmcs_gap     excess over the exact optimum on small instances (milp), the worst; ..._mean; ..._paper: of
                          the paper's greedy pass alone
    assign_1000_s         wall time to assign 1,000 brokers with 100,000 subscriptions, the slowest of some densities;
                          ..._cpu_s: of the CPU; ..._paper_s: the greedy pass alone; reassign_1000_s: one turn
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from lexicast.cluster.errors import UnavailableError
from lexicast.ft.assignment import assigned

from .. import report as reports
from ..report import DriverReport, Steps
from . import pictures, scale
from .baselines import randomly_assigned
from .failures import FailedOver, failures
from .overheads import (
    Overheads,
    Ratios,
    described,
    least_active,
    least_active_warm,
    means,
    measured,
    ratios,
    settings,
)
from .population import WorldSetting, populated
from .replication_run import HORIZON_S, METHODS, curves

PARTS = ("backups", "positions", "failures", "gaps", "scale")
QUICK_SEEDS = 1
HOURS_BROKERS = 10
QUICK_HORIZON_S = 1_200.0


def measure(report: DriverReport) -> None:
    """The parts that are asked for, one after the other, on one core."""
    options = report.options
    seeds = range(options.seed, options.seed + (QUICK_SEEDS if options.quick else options.seeds))
    if options.picture is not None:
        options.picture.mkdir(parents=True, exist_ok=True)
    parts = {"backups": _backups, "positions": _positions, "failures": _failures, "gaps": _gaps, "scale": _scale}
    counts = {"backups": len(settings(quick=options.quick)), "scale": len(_scales(options.quick))}
    with Steps(report.console, sum([counts.get(part, 1) for part in options.only])) as steps:
        for part in options.only:
            parts[part](report, steps, seeds)


def _backups(report: DriverReport, steps: Steps, seeds: Sequence[int]) -> None:
    found: dict[WorldSetting, list[Overheads]] = {}
    for setting in settings(quick=report.options.quick):
        steps.step(f"backups: {described(setting)}")
        found[setting] = [measured(setting, seed) for seed in seeds]
    _report_overheads(report, found)
    if report.options.picture is not None:
        pictures.draw_overheads(report.options.picture, {setting: means(worlds) for setting, worlds in found.items()})


def _positions(report: DriverReport, steps: Steps, seeds: Sequence[int]) -> None:
    steps.step("replication of positions: an hour of some brokers")
    quick = report.options.quick
    worlds = [populated(WorldSetting(), seed) for seed in seeds]
    found = curves(worlds, 2 if quick else HOURS_BROKERS, QUICK_HORIZON_S if quick else HORIZON_S)
    report.samples["replication"] = {name: [each._asdict() for each in rows] for name, rows in found.methods.items()}
    _, paper, ours = METHODS
    for key, method in (("threshold", paper), ("unsaved_first", ours)):
        report.figure(f"{key}_vs_periodic", found.ratio(method, "messages_per_s"))
        report.figure(f"{key}_vs_periodic_positions", found.ratio(method, "positions_per_s"))
    if report.options.picture is not None:
        pictures.draw_replication(report.options.picture, found)


def _failures(report: DriverReport, steps: Steps, seeds: Sequence[int]) -> None:
    """Ours and random backups in the same worlds."""
    steps.step("failures of several brokers")
    worlds = [populated(WorldSetting(), seed) for seed in seeds]
    ours = [(world, assigned(world.network)) for world in worlds]
    random = [(world, randomly_assigned(world.network, np.random.default_rng(0))) for world in worlds]
    found = {"LCS and MMCS": failures(ours, seeds[0]), "RND": failures(random, seeds[0])}
    _report_failures(report, found)
    if report.options.picture is not None:
        pictures.draw_failures(report.options.picture, found)


def _scale(report: DriverReport, steps: Steps, seeds: Sequence[int]) -> None:
    found = []
    for subscribers, clusters in _scales(report.options.quick):
        steps.step(f"1,000 brokers in {clusters} clusters, {subscribers:,} subscribers")
        found.append(scale.timed(subscribers, clusters, seeds[0]))
    report.samples["scale"] = [each._asdict() for each in found]
    report.figure("assign_1000_s", max([each.assign_s for each in found]))
    report.figure("assign_1000_cpu_s", max([each.assign_cpu_s for each in found]))
    report.figure("assign_1000_paper_s", max([each.plain_s for each in found]))
    report.figure("reassign_1000_s", max([each.reassign_s for each in found]))


def _scales(quick: bool) -> list[tuple[int, int]]:
    """(subscribers, clusters) of the timings."""
    if quick:
        return [(scale.SUBSCRIBERS[1], scale.CLUSTERS[0])]
    return [(subscribers, clusters) for clusters in scale.CLUSTERS for subscribers in scale.SUBSCRIBERS]


# What is told


def _report_overheads(report: DriverReport, found: dict[WorldSetting, list[Overheads]]) -> None:
    worlds = [each for some in found.values() for each in some]
    rows = {setting: means(some) for setting, some in found.items()}
    report.samples["settings"] = [
        {"setting": _in_json(setting), "worlds": [each._asdict() for each in some]} for setting, some in found.items()
    ]
    report.figure("ar_vs_reaps_min", least_active(worlds))
    report.figure("ar_vs_reaps_warm_min", least_active_warm(worlds))
    for name, ours in (("lcs", "presubscribed"), ("mmcs", "remote_max")):
        kinds = [(f"{name}_vs_rnd", ours), (f"{name}_paper_vs_rnd", f"{ours}_plain")]
        for key, field in kinds:
            told = ratios([(getattr(each, field), getattr(each, f"{ours}_random")) for each in rows.values()])
            _report_ratios(report, key, told)
    _report_ratios(report, "churn_vs_rnd", ratios([(each.churn, each.churn_random) for each in rows.values()]))
    report.table(
        "Subscriptions: original, for local backups (sum of O), most for remote backups (max R); over capacity",
        ["setting", "original", "LCS", "paper", "RND", "MMCS", "paper", "RND", "over", "RND"],
        [[described(setting), *_subscriptions(each)] for setting, each in rows.items()],
    )
    report.table(
        "MB/s that a broker retrieves (warm: if local backups retrieved what they are subscribed to)",
        ["setting", "REAPS", "warm", "AR", "AR, RND"],
        [[described(setting), *_retrieved(each)] for setting, each in rows.items()],
    )


def _in_json(setting: WorldSetting) -> dict[str, Any]:
    """JSON knows no infinity: null is no limit."""
    return setting._asdict() | {"headroom": setting.headroom if np.isfinite(setting.headroom) else None}


def _report_ratios(report: DriverReport, key: str, told: Ratios) -> None:
    report.figure(key, told.worst)
    report.figure(f"{key}_best", told.best)
    report.figure(f"{key}_ties", told.ties)
    if told.infinite:
        report.problem(f"{key}: in {told.infinite} settings RND has none, and ours has some")


def _subscriptions(each: Overheads) -> list[str]:
    counts = (
        each.original, each.presubscribed, each.presubscribed_plain, each.presubscribed_random,
        each.remote_max, each.remote_max_plain, each.remote_max_random,
    )  # fmt: skip
    over = (each.over_capacity, each.over_capacity_random)
    return [*[f"{value:,.0f}" for value in counts], *[f"{value:.1f}" for value in over]]


def _retrieved(each: Overheads) -> list[str]:
    rates = (each.retrieved, each.retrieved_warm, each.retrieved_active, each.retrieved_active_random)
    return [f"{value / 1e6:.2f}" for value in rates]


def _report_failures(report: DriverReport, found: dict[str, list[FailedOver]]) -> None:
    report.samples["failures"] = {name: [each._asdict() for each in rows] for name, rows in found.items()}
    one, whole = (next(iter(found.values()))[at] for at in (0, -1))
    for key, each in (("1", one), ("all", whole)):
        report.figure(f"repeated_mb_{key}", each.retrieved_bytes / 1e6)
        report.figure(f"recovery_s_{key}", each.recovery_s)
    report.table(
        "Brokers of one cluster that fail: remote fail-overs, MB retrieved and delivered twice, s (a model)",
        ["backups", "fail", "remote", "retrieved", "delivered", "recovery", "local", "remote"],
        [[name, *[f"{value:,.1f}" for value in _in_mb(each)]] for name, rows in found.items() for each in rows],
    )


def _in_mb(each: FailedOver) -> tuple[float, ...]:
    return each._replace(retrieved_bytes=each.retrieved_bytes / 1e6, delivered_bytes=each.delivered_bytes / 1e6)


def _gaps(report: DriverReport, steps: Steps, seeds: Sequence[int]) -> None:
    steps.step("small instances, and their exact optimum")
    keys = [f"{name}_gap{what}" for name in ("lcs", "mmcs") for what in ("", "_mean", "_paper", "_paper_mean")]
    if find_spec("scipy") is None:
        report.missing("the optimum", "scipy not found: pip install lexicast[bench]")
        for key in keys:
            report.figure(key, None)
        return
    from . import gaps  # needs SciPy, which only this part does

    found = []
    for setting, seed in gaps.instances(len(seeds), quick=report.options.quick):
        try:
            found.append(gaps.solved(setting, seed))
        except UnavailableError as error:
            report.problem(str(error))
    ours, plain = gaps.summary([each.ours for each in found]), gaps.summary([each.plain for each in found])
    report.samples["gaps"] = [_instance(each) for each in found]
    values: list[Any] = [None] * len(keys)
    if ours is not None and plain is not None:
        values = [
            ours.local_worst, ours.local_mean, plain.local_worst, plain.local_mean,
            ours.remote_worst, ours.remote_mean, plain.remote_worst, plain.remote_mean,
        ]  # fmt: skip
    for key, value in zip(keys, values, strict=True):
        report.figure(key, value)
    report.figure("gap_instances", sum([each.ours is not None for each in found]))
    report.figure("gap_over_capacity", sum([each.over_capacity for each in found]))


def _instance(each: Any) -> dict[str, Any]:
    return {
        "ours": each.ours and each.ours._asdict(),
        "paper": each.plain and each.plain._asdict(),
        "over_capacity": each.over_capacity,
    }


def _parts(text: str) -> list[str]:
    """The option `--only`."""
    found = text.split(",")
    if not set(found) <= set(PARTS):
        raise ValueError(f"{text}: only {', '.join(PARTS)}")
    return found


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = reports.parser("reaps", __doc__, default_targets="lexicast")
    parser.add_argument("--seeds", type=reports.positive, default=5, help="worlds of each kind (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first world (default %(default)s)")
    parser.add_argument("--only", type=_parts, default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--picture", type=Path, metavar="FOLDER", help="draw figures 4a to 4d, 5a and 5b there")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The driver; its exit code."""
    return reports.drive("reaps", parse(argv), measure)
