"""Simulated matchers: what rate of events they match together, by how subscriptions are shared out among them.

A matcher is busy for as long as the scans of its events take (`scan_cost`); it takes them in turns of TURN events, and
those of one cell are scanned together. All are offered as much as they can take: the rate is the number of events over
the time of the one that is busy longest. Ways to share out, all with the same scan and the same core:

    HPartition    cells of groups of dimensions by hash, the candidate that is done first, hot cells copied and split
    static        the same without the last
    BlueDove      a segment of each dimension a matcher, the candidate that is done first
    SPartition    segments of each dimension by hash, the candidate that is done first
    one dimension the same, but which dimension is asked is left to chance

Dimensions are cut at quantiles of a sample of events, for all of them; or evenly, as the paper does, or as if the hot
spot had come after the cuts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.hpartition.cell_map import CellMap, CellPlace
from lexicast.cluster.hpartition.choice import least_work
from lexicast.cluster.hpartition.heat import CellLoad, hot_cells, relieving_changes
from lexicast.cluster.hpartition.partition import CellId, partitioned
from lexicast.cluster.hpartition.placing import CellPlaces
from lexicast.cluster.hpartition.seen import SeenEvents
from lexicast.cluster.hpartition.segments import Floats
from lexicast.cluster.hpartition.splits import Split, least_duplicating_split, part_bounds
from lexicast.cluster.skipcloud.identifiers import CloudShape

from .population import BoxPopulation
from .scan_cost import ScanCost

TURN: Final = 256
SAMPLE: Final = 4_096
# Hot cells are looked for so many times, after so many events each.
HEAT_ROUNDS: Final = 8


class SharingOut(NamedTuple):
    """How subscriptions are shared out. `dimensions_a_group`, `segments` (of each dimension; 0: one a matcher)."""

    name: str
    dimensions_a_group: int
    segments: int
    dealt: bool = False
    chooses: bool = True
    adapts: bool = False


def sharings(dimensions_a_group: int, segments: int) -> list[SharingOut]:
    """Ours, ours without changes, and those that treat each dimension by itself."""
    return [
        SharingOut("HPartition", dimensions_a_group, segments, adapts=True),
        SharingOut("static", dimensions_a_group, segments),
        SharingOut("BlueDove", 1, 0, dealt=True),
        SharingOut("SPartition", 1, segments),
        SharingOut("one dimension", 1, segments, chooses=False),
    ]


class Matched(NamedTuple):
    """What came of it. `copies`: of a subscription, in all cells together; `scanned`: subscriptions that an event was
    compared with, mean; `balance`: mean over largest busy time; `changes`: of hot cells."""

    events_s: float
    copies: float
    scanned: float
    balance: float
    changes: int


class DealtPlaces(CellPlaces):
    """BlueDove's: segment i of each dimension at one matcher each, in an order by chance."""

    def __init__(self, shape: CloudShape, clusters: Sequence[bytes], orders: Sequence[Sequence[int]]) -> None:
        super().__init__(shape, clusters)
        self._orders = orders

    def homes(self, cell: CellId, copies: int = 1) -> tuple[bytes, ...]:
        """One."""
        order = self._orders[cell.group]
        return (self.clusters[order[cell.number % len(order)]],)


class SimulatedMatchers:
    """So many matchers, each a top cluster of its own, with all subscriptions of a population."""

    def __init__(
        self,
        population: BoxPopulation,
        sharing: SharingOut,
        matchers: int,
        cost: ScanCost,
        dice: np.random.Generator,
        *,
        even: bool = False,
    ) -> None:
        """`even`: dimensions are cut evenly, not at quantiles of what is seen."""
        self._population = population
        self._sharing = sharing
        self._cost = cost
        self._dice = dice
        dimensions = population.setting.dimensions
        size = sharing.dimensions_a_group
        groups = [range(at, min(at + size, dimensions)) for at in range(0, dimensions, size)]
        seen = SeenEvents(dimensions, SAMPLE, dice)
        seen.see(dice.random((SAMPLE, dimensions)) if even else population.events(SAMPLE, dice))
        partition = partitioned(seen.sample, groups, sharing.segments or matchers)
        shape = CloudShape(2, max(1, (matchers - 1).bit_length()))
        clusters = [shape.digits(number) for number in range(matchers)]
        places = CellPlaces(shape, clusters)
        if sharing.dealt:
            places = DealtPlaces(shape, clusters, [dice.permutation(matchers).tolist() for _ in partition.groups])
        self.map = CellMap(partition, places)
        self.changes = 0
        self._matchers = {cluster: [cluster.hex()] for cluster in clusters}
        self._counts = [group.overlap_counts(population.low, population.high) for group in partition.groups]
        self._parts: dict[CellId, int] = {}
        self._call = cost.call_comparisons()

    def settle(self, events: int) -> None:
        """Finds hot cells, and changes them, until there are none or it has looked often enough."""
        for _ in range(HEAT_ROUNDS if self._sharing.adapts else 0):
            asked = self._asked(self._population.events(events, self._dice))
            counted = Counter([cell for cells in asked.values() for cell in cells])
            loads = {cell: CellLoad(count, self.subscriptions(cell) + self._call) for cell, count in counted.items()}
            changes = relieving_changes(
                hot_cells(loads, len(self._matchers), self.map.copies), self.map.copies, self._split
            )
            if not changes:
                break
            for cell, change in changes.items():
                self.map = self.map.changed(cell, change)
            self.changes += len(changes)

    def matched(self, events: int) -> Matched:
        """Measures."""
        asked = self._asked(self._population.events(events, self._dice))
        busy = [self._busy_s(cells) for cells in asked.values()]
        idle = len(self._matchers) - len(busy)
        scanned = sum([self.subscriptions(cell) for cells in asked.values() for cell in cells])
        return Matched(
            events / max(busy),
            self.copies,
            scanned / events,
            float(np.mean([*busy, *[0.0] * idle])) / max(busy),
            self.changes,
        )

    @property
    def copies(self) -> float:
        """Places of a subscription, mean."""
        total = sum([int(counts.sum()) for counts in self._counts])
        for cell, count in self.map.copies.items():
            if cell not in self.map.splits:
                total += (count - 1) * self.subscriptions(cell)
        for cell in self.map.splits:
            below, above = (cell._replace(halves=cell.halves + half) for half in "01")
            total += self.subscriptions(below) + self.subscriptions(above) - self.subscriptions(cell)
        return total / len(self._population.low)

    def subscriptions(self, cell: CellId) -> int:
        """How many lie in a cell, or in a part of one."""
        if not cell.halves:
            return int(self._counts[cell.group][cell.number])
        if cell not in self._parts:
            self._parts[cell] = int(self._inside(cell).sum())
        return self._parts[cell]

    def _inside(self, cell: CellId) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        least, beyond = part_bounds(self.map.partition, self.map.splits, cell)
        low, high = self._population.low, self._population.high
        dimensions = list(self.map.partition.groups[cell.group].dimensions)
        overlaps = (low[:, dimensions] < beyond[dimensions]) & (high[:, dimensions] >= least[dimensions])
        return np.asarray(overlaps.all(axis=1))

    def _split(self, cell: CellId) -> Split | None:
        inside = self._inside(cell)
        dimensions = self.map.partition.groups[cell.group].dimensions
        bounds = part_bounds(self.map.partition, self.map.splits, cell)
        return least_duplicating_split(self._population.low[inside], self._population.high[inside], dimensions, bounds)

    def _asked(self, points: Floats) -> dict[str, list[CellId]]:
        """The cells that each matcher is asked about, an event after the other."""
        asked: dict[str, list[CellId]] = defaultdict(list)
        queued: dict[str, int] = defaultdict(int)
        work: dict[CellPlace, int] = {}
        numbers = self.map.partition.cells_of_events(points).tolist()
        chosen = self._dice.integers(0, len(self.map.partition.groups), len(points)).tolist()
        for row, point in enumerate(points.tolist()):
            groups = enumerate(numbers[row]) if self._sharing.chooses else [(chosen[row], numbers[row][chosen[row]])]
            places: list[CellPlace] = []
            for group, number in groups:
                places += self.map.candidates_in(self.map.part(CellId(group, number), point))
            for place in places:
                if place not in work:
                    work[place] = self.subscriptions(place.cell) + self._call
            choice = least_work(places, self._matchers, queued, work)
            if choice is None:
                raise UnavailableError("a cluster without a matcher")
            asked[choice.matcher].append(choice.place.cell)
            queued[choice.matcher] += choice.work
        return asked

    def _busy_s(self, cells: Sequence[CellId]) -> float:
        """How long one matcher is busy with these, in this order."""
        scans = Counter([(at // TURN, cell) for at, cell in enumerate(cells)])
        sizes = np.array([self.subscriptions(cell) for _, cell in scans])
        return float(self._cost.seconds(sizes, np.array(list(scans.values()))).sum())


def simulated(
    population: BoxPopulation,
    sharing: SharingOut,
    matchers: int,
    cost: ScanCost,
    events: int,
    seed: int,
    *,
    even: bool = False,
) -> Matched:
    """One way to share out, with so many matchers."""
    made = SimulatedMatchers(population, sharing, matchers, cost, np.random.default_rng(seed), even=even)
    made.settle(events)
    return made.matched(events)
