"""Part `loss`: what is lost after a part of all members have died at once, cycle by cycle, until views have healed.

    loss_first             part of the lookups that are lost at once, half of the members dead, nobody noticing a dead
                           hop; mean of some seeds
    loss_cycles            cycles (a second each, say) until none is lost any more, the slowest seed
    loss_cycles_noticed    the same where a hop that does not answer is noticed, and another one chosen, twice at most

Nobody is told who died; sources are living members by chance, targets clusters by chance. The abstract claims that loss
is back to 0 within tens of seconds of the failure of a large number of servers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import mean
from typing import Final

from lexicast.cluster.skipcloud.identifiers import CloudShape

from ..report import DriverReport, Steps
from .overlay_network import OverlayNetwork
from .sharing_pictures import draw_loss

MEMBERS: Final = 128
SHAPE: Final = CloudShape(4, 2)
DYING: Final = (0.25, 0.5, 0.75)
CYCLES: Final = 80
SETTLING: Final = 60
LOOKUPS: Final = 300
SEEDS: Final = 5
RETRIES: Final = 2

Curve = Sequence[float]


def steps(quick: bool) -> int:
    """How many steps `measure` announces."""
    return 1 if quick else len(DYING)


def measure(report: DriverReport, progress: Steps) -> None:
    """See the module's docstring."""
    quick, first = report.options.quick, report.options.seed
    seeds = range(first, first + (1 if quick else SEEDS))
    curves: dict[tuple[float, int], list[Curve]] = {}
    for part in (0.5,) if quick else DYING:
        progress.step(f"loss: {part:.0%} of {MEMBERS} members die")
        for retries in (0, RETRIES):
            curves[part, retries] = [losses(part, retries, seed) for seed in seeds]
    report.figure("loss_first", mean([curve[0] for curve in curves[0.5, 0]]))
    report.figure("loss_cycles", max(map(cycles_to_none, curves[0.5, 0])))
    report.figure("loss_cycles_noticed", max(map(cycles_to_none, curves[0.5, RETRIES])))
    rows = {_told(*key): mean_curve(some) for key, some in curves.items()}
    report.samples["loss"] = {name: list(curve) for name, curve in rows.items()}
    shown = [cycle for cycle in (0, 1, 2, 5, 10, 15, 20, 30, 40, 60, 80) if cycle <= CYCLES]
    report.table(
        "Lookups lost in %, by cycles since the failure",
        ["", *map(str, shown), "none from"],
        [
            [_told(*key), *[f"{100 * mean_curve(some)[at]:.1f}" for at in shown],
             str(max(map(cycles_to_none, some)))]
            for key, some in curves.items()
        ],
    )  # fmt: skip
    if report.options.out is not None:
        draw_loss(report.options.out, rows)


def losses(part: float, retries: int, seed: int) -> Curve:
    """The part of lookups that is lost, cycle by cycle from the failure on [CYCLES + 1]."""
    dice, network = random.Random(seed), OverlayNetwork(SHAPE, seed)
    network.grown([SHAPE.digits(number % SHAPE.clusters) for number in range(MEMBERS)], 0.05)
    network.run(SETTLING)
    network.crash(dice.sample(sorted(network.nodes), round(part * MEMBERS)))
    alive, found = sorted(network.nodes), []
    for _ in range(CYCLES + 1):
        routed = [network.routed(dice.choice(alive), SHAPE.hashed(dice.randbytes(8)), retries) for _ in range(LOOKUPS)]
        found.append(sum([each.member is None for each in routed]) / LOOKUPS)
        network.run(1)
    return found


def cycles_to_none(curve: Curve) -> int:
    """From which cycle on nothing is lost."""
    return max([cycle + 1 for cycle, lost in enumerate(curve) if lost > 0], default=0)


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean, cycle by cycle."""
    return [mean(values) for values in zip(*curves, strict=True)]


def _told(part: float, retries: int) -> str:
    return f"{part:.0%} die, " + (f"dead hops noticed, {retries} retries" if retries else "dead hops not noticed")
