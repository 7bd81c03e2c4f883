"""Part `skipcloud`: hops, and routing messages beside Chord's at 64 members, for each base b and number of levels m.

    hops_excess          lookups that took more hops than ceil(log_b N), in settled overlays that have grown by joins
    chord_saving_best    part of Chord's routing messages that the best (b, m) saves, the least of all rates of lookups;
                         ..._worst: the same of the worst (b, m)
    chord_saving_hops    of the messages of lookups alone, the best (b, m)

Routing messages are those of maintenance and of lookups; both overlays do their maintenance once a period, a second
say. So few lookups weigh what maintenance costs, many what hops cost. A lookup ends where the key is: it goes to any
member of the nearest top cluster in SkipCloud, to the key's successor in Chord. The paper claims 60% less.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import mean
from typing import Final, NamedTuple

from lexicast.cluster.skipcloud.identifiers import CloudShape

from ..report import DriverReport, Steps
from .chord import BITS, ChordRing
from .overlay_network import OverlayNetwork
from .sharing_pictures import draw_savings

MEMBERS: Final = 64
SHAPES: Final = (*[(2, m) for m in range(1, 7)], *[(4, m) for m in range(1, 4)], (8, 1), (8, 2), (16, 1), (64, 1))
QUICK_SHAPES: Final = ((2, 2), (4, 2), (8, 2))
# Other numbers of members, with random identifiers: (N, b, m).
OTHERS: Final = ((20, 2, 4), (20, 4, 2), (100, 3, 4), (100, 10, 2), (200, 2, 7), (250, 6, 3))
RATES: Final = (0.1, 1.0, 10.0)
"""Lookups a member and period."""
PERIODS: Final = 50
CYCLES_MAX: Final = 400
LOOKUPS_EACH: Final = 60
PAPER: Final = 0.6


class OverlayCost(NamedTuple):
    """What an overlay sends: a member and period in maintenance (messages, and members named in them), and a lookup.
    `excess`: lookups beyond the bound."""

    name: str
    maintenance: float
    named: float
    hops: float
    hops_max: int
    excess: int

    def messages(self, rate: float) -> float:
        """A member and period with so many lookups."""
        return self.maintenance + rate * self.hops


def steps(quick: bool) -> int:
    """How many steps `measure` announces."""
    return 1 + (len(QUICK_SHAPES) if quick else len(SHAPES) + len(OTHERS))


def measure(report: DriverReport, progress: Steps) -> None:
    """See the module's docstring."""
    quick, seed = report.options.quick, report.options.seed
    progress.step(f"skipcloud: Chord of {MEMBERS}")
    chord = chord_cost(MEMBERS, seed)
    found = []
    for base, levels in QUICK_SHAPES if quick else SHAPES:
        progress.step(f"skipcloud: {MEMBERS} members, b = {base}, m = {levels}")
        found.append(cloud_cost(MEMBERS, CloudShape(base, levels), seed, spread=True))
    others = []
    for members, base, levels in () if quick else OTHERS:
        progress.step(f"skipcloud: {members} members, b = {base}, m = {levels}")
        others.append(cloud_cost(members, CloudShape(base, levels), seed, spread=False))
    _report(report, chord, found, others)
    if report.options.out is not None:
        draw_savings(report.options.out, chord, found, RATES)


def cloud_cost(members: int, shape: CloudShape, seed: int, *, spread: bool) -> OverlayCost:
    """A SkipCloud that has grown and settled; top clusters of the same size if `spread`, else by chance."""
    dice = random.Random(seed)
    network = OverlayNetwork(shape, seed)
    numbers = [number % shape.clusters if spread else dice.randrange(shape.clusters) for number in range(members)]
    network.grown([shape.digits(number) for number in numbers], 0.1)
    while not network.settled() and network.now < CYCLES_MAX:
        network.run(5)
    sent, named = network.messages, network.contacts
    network.run(PERIODS)
    sent, named = network.messages - sent, network.contacts - named
    routed = [
        network.routed(member, shape.hashed(dice.randbytes(8)))
        for member in sorted(network.nodes)
        for _ in range(LOOKUPS_EACH)
    ]
    hops = [each.hops for each in routed]
    bound = hops_bound(members, shape.base)
    # One that was lost has taken more hops than any.
    beyond = sum([each.hops > bound or each.member is None for each in routed])
    name = f"{members}: b = {shape.base}, m = {shape.levels}"
    periods = members * PERIODS
    return OverlayCost(name, sent / periods, named / periods, mean(hops), max(hops), beyond)


def chord_cost(members: int, seed: int) -> OverlayCost:
    """A settled Chord ring; each finger is fixed as often as any other."""
    dice, ring = random.Random(seed), ChordRing(members, seed)
    before = ring.messages
    for _ in range(2 * BITS):
        ring.period()
    maintenance = (ring.messages - before) / members / (2 * BITS)
    hops = [ring.routed_hops(node, dice.randrange(2**BITS)) for node in sorted(ring.nodes) for _ in range(LOOKUPS_EACH)]
    # Each message names one node.
    return OverlayCost("Chord", maintenance, maintenance, mean(hops), max(hops), 0)


def hops_bound(members: int, base: int) -> int:
    """ceil(log_b N), and one at least."""
    hops = 1
    while base**hops < members:
        hops += 1
    return hops


def saving(ours: OverlayCost, chord: OverlayCost, rate: float) -> float:
    """The part of Chord's messages that ours does not send."""
    return 1 - ours.messages(rate) / chord.messages(rate)


def _report(
    report: DriverReport, chord: OverlayCost, found: Sequence[OverlayCost], others: Sequence[OverlayCost]
) -> None:
    least = [min([saving(each, chord, rate) for rate in RATES]) for each in found]
    report.figure("hops_excess", sum([each.excess for each in (*found, *others)]))
    report.figure("chord_saving_best", max(least))
    report.figure("chord_saving_worst", min(least))
    report.figure("chord_saving_hops", max([1 - each.hops / chord.hops for each in found]))
    report.samples["skipcloud"] = [each._asdict() for each in (chord, *found, *others)]
    report.table(
        f"Messages a member and period, and what is saved of Chord's {MEMBERS} (the paper: {PAPER:.0%})",
        ["", "maintenance", "names", "hops", "most", *[f"{rate:g} lookups" for rate in RATES], "hops alone"],
        [
            [each.name, *[f"{value:.2f}" for value in (each.maintenance, each.named, each.hops)], str(each.hops_max),
             *_saved(each, chord)]
            for each in (chord, *found, *others)
        ],
    )  # fmt: skip


def _saved(each: OverlayCost, chord: OverlayCost) -> list[str]:
    if not each.name.startswith(f"{MEMBERS}:"):
        return ["-"] * (len(RATES) + 1)
    return [*[f"{saving(each, chord, rate):.0%}" for rate in RATES], f"{1 - each.hops / chord.hops:.0%}"]
