"""Cells copied and split while subscriptions come and go: whoever is asked, by whichever map, has all matches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.errors import UsageError
from lexicast.cluster.hpartition import cell_map
from lexicast.cluster.hpartition.cell_map import DEPTH_MAX, CellMap, CellPlace, HandoverPhase
from lexicast.cluster.hpartition.matcher_cells import MatcherCells
from lexicast.cluster.hpartition.partition import CellId, partitioned
from lexicast.cluster.hpartition.placing import CellPlaces
from lexicast.cluster.hpartition.splits import Split, least_duplicating_split, part_bounds, part_of_event
from lexicast.cluster.skipcloud.identifiers import CloudShape

SHAPE = CloudShape(2, 2)
PLACES = CellPlaces(SHAPE, [SHAPE.digits(number) for number in range(4)])
GROUPS = st.sampled_from([[[0], [1], [2]], [[0, 1], [2]], [[0, 1, 2]]])
COORDINATES = st.integers(0, 6).map(float)
SIDES = st.one_of(st.integers(0, 3).map(float), st.just(math.inf))
BOXES = st.tuples(*[st.tuples(COORDINATES, SIDES)] * 3)


class Box(NamedTuple):
    low: np.ndarray
    high: np.ndarray


class Holders:
    """Top clusters with what they hold, and members some of whom have the newest map, others still the one before."""

    def __init__(self, groups: list[list[int]], segments: int, seed: int) -> None:
        seen = np.random.default_rng(seed).integers(0, 7, (40, 3)).astype(float)
        self.before = self.now = CellMap(partitioned(seen, groups, segments), PLACES)
        self.boxes: dict[int, Box] = {}
        self.clusters = {cluster: MatcherCells(3) for cluster in PLACES.clusters}

    def subscribe(self, number: int, box: Box, told_by: CellMap) -> None:
        self.unsubscribe(number)
        self.boxes[number] = box
        self.install(number, told_by.holders(*box))

    def install(self, number: int, places: set[CellPlace]) -> None:
        for place in places:
            self.clusters[place.cluster].put(place.cell, number, *self.boxes[number])

    def unsubscribe(self, number: int) -> None:
        """Ends are told to everybody: whoever has it."""
        if self.boxes.pop(number, None):
            for held in self.clusters.values():
                for cell in list(held._cells):
                    held.remove(cell, number)

    def step(self, pick: Callable[[list[CellId]], CellId], change: Split | int) -> None:
        """The next step of some cell's handover, or a new one; all have the map that is the newest so far."""
        self.before = self.now
        under_way = sorted(self.now.handovers)
        if not under_way:
            cells = [
                CellId(group, number)
                for group, made in enumerate(self.now.partition.groups)
                for number in range(made.cells)
            ]
            for split in self.now.splits:
                cells = [each for each in cells if each != split]
                cells += [split._replace(halves=split.halves + half) for half in "01"]
            cells = [each for each in cells if each not in self.now.splits]
            cell = pick(sorted(cells))
            if isinstance(change, Split):
                dimensions = self.now.partition.groups[cell.group].dimensions
                change = change._replace(dimension=dimensions[change.dimension % len(dimensions)])
            self.now = self.now.begun(cell, change)
            return
        cell = pick(under_way)
        if self.now.handovers[cell].phase is HandoverPhase.FILLING:
            self.fill(cell)
            self.now = self.now.filled(cell)
        else:
            self.now = self.now.drained(cell)

    def fill(self, cell: CellId) -> None:
        """The old places tell the new ones what they have of the cell, and nothing else."""
        for cluster in PLACES.homes(cell, self.now.copies.get(cell, 1))[:1]:
            for number in self.clusters[cluster].boxes(cell).numbers.tolist():
                self.install(number, self.now.holders(*self.boxes[number]))

    def forget(self) -> None:
        """What lies where no map puts it any more is dropped; all have the newest map."""
        self.before = self.now
        wanted = {place for box in self.boxes.values() for place in self.now.holders(*box)}
        for cluster, held in self.clusters.items():
            for cell in list(held._cells):
                if CellPlace(cell, cluster) not in wanted:
                    held.forget(cell)

    def check(self, point: np.ndarray) -> None:
        """Every candidate, by both maps, finds what a naive look at all boxes finds."""
        expected = {n for n, box in self.boxes.items() if (box.low <= point).all() and (point <= box.high).all()}
        for told_by in (self.before, self.now):
            candidates = told_by.candidates(point.tolist())
            assert len(candidates) >= len(told_by.partition.groups)
            for cell, cluster in candidates:
                _, numbers = self.clusters[cluster].match(cell, point[None, :])
                assert set(numbers.tolist()) == expected


@settings(deadline=None, max_examples=60)
@given(GROUPS, st.integers(1, 3), st.integers(0, 99), st.data())
def test_every_candidate_has_every_subscription_that_matches(
    groups: list[list[int]], segments: int, seed: int, data: st.DataObject
) -> None:
    world = Holders(groups, segments, seed)
    for step in range(data.draw(st.integers(5, 25))):
        kind = data.draw(st.sampled_from(["subscribe", "subscribe", "step", "step", "step", "end", "forget"]))
        if kind == "subscribe":
            edges = np.array(data.draw(BOXES))
            told_by = data.draw(st.sampled_from([world.before, world.now]))
            world.subscribe(step % 8, Box(edges[:, 0], edges[:, 0] + edges[:, 1]), told_by)
        elif kind == "step":
            split = st.builds(Split, st.integers(0, 2), COORDINATES)
            change = data.draw(st.one_of(st.integers(1, 4), split))
            world.step(lambda cells: data.draw(st.sampled_from(cells)), change)
        elif kind == "end":
            world.unsubscribe(data.draw(st.integers(0, 7)))
        else:
            world.forget()
        for point in np.random.default_rng(seed + step).integers(0, 7, (6, 3)).astype(float):
            world.check(point)


def hot_map() -> tuple[CellMap, CellId]:
    seen = np.random.default_rng(1).random((100, 2))
    return CellMap(partitioned(seen, [[0, 1]], 2), PLACES), CellId(0, 0)


def test_events_go_to_the_old_places_until_the_new_ones_are_filled_and_subscriptions_to_both_meanwhile() -> None:
    first, cell = hot_map()
    point, box = [0.0, 0.0], (np.zeros(2), np.zeros(2))
    filling = first.begun(cell, 3)
    draining = filling.filled(cell)
    last = draining.drained(cell)
    asked = [len(each.candidates(point)) for each in (first, filling, draining, last)]
    held = [len(each.holders(*box)) for each in (first, filling, draining, last)]
    assert (asked, held) == ([1, 1, 3, 3], [1, 3, 3, 3])


def test_halves_begin_with_the_copies_of_the_cell() -> None:
    first, cell = hot_map()
    split = first.changed(cell, 2).changed(cell, Split(0, 0.1))
    for point, half in (([0.0, 0.0], "0"), ([0.2, 0.0], "1")):
        assert [place.cell for place in split.candidates(point)] == [cell._replace(halves=half)] * 2


def test_what_cannot_be_changed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first, cell = hot_map()
    filling = first.begun(cell, 2)
    refused: list[Callable[[], CellMap]] = [
        lambda: filling.begun(cell, 3),
        lambda: first.begun(CellId(0, 99), 2),
        lambda: first.begun(CellId(1, 0), 2),
        lambda: first.begun(cell._replace(halves="0"), 2),
        lambda: first.changed(cell, Split(0, 0.1)).begun(cell, 2),
        lambda: first.begun(cell, 0),
        lambda: first.filled(cell),
        lambda: filling.drained(cell),
        lambda: filling.filled(cell).filled(cell),
    ]
    for what in refused:
        with pytest.raises(UsageError):
            what()
    monkeypatch.setattr(cell_map, "HANDOVERS_MAX", 1)
    with pytest.raises(UsageError, match="wait for one to end"):
        filling.begun(CellId(0, 1), 2)
    for _ in range(DEPTH_MAX):
        first = first.changed(cell, Split(0, 0.1))
        cell = cell._replace(halves=cell.halves + "0")
    with pytest.raises(UsageError, match="splits"):
        first.begun(cell, Split(0, 0.1))


def test_a_cell_is_cut_where_fewest_lie_in_both_halves() -> None:
    """Along the first dimension all boxes are narrow, along the second one all but two span the cell."""
    dice = np.random.default_rng(1)
    low, high = dice.random((50, 2)), np.empty((50, 2))
    high[:, 0] = low[:, 0] + 0.01
    low[2:, 1], high[2:, 1], high[:2, 1] = -math.inf, math.inf, low[:2, 1]
    unbounded = np.full(2, -math.inf), np.full(2, math.inf)
    split = least_duplicating_split(low, high, (0, 1), unbounded)
    assert split is not None
    assert split.dimension == 0
    assert 0.3 < split.at < 0.7
    assert least_duplicating_split(low, high, (1,), unbounded) is None, "it would relieve neither half"
    same = np.zeros((9, 2))
    assert least_duplicating_split(same, same, (0, 1), unbounded) is None


@given(st.lists(st.tuples(st.integers(0, 1), COORDINATES), min_size=1, max_size=6), st.tuples(COORDINATES, COORDINATES))
def test_a_point_lies_within_the_bounds_of_its_part(cuts: list[tuple[int, float]], point: tuple[float, float]) -> None:
    seen = np.random.default_rng(1).integers(0, 7, (40, 2)).astype(float)
    made = CellMap(partitioned(seen, [[0, 1]], 2), PLACES)
    (number,) = made.partition.cells_of_events(np.array([point]))[0].tolist()
    for dimension, at in cuts:
        part = part_of_event(made.splits, CellId(0, number), point)
        made = made.changed(part, Split(dimension, at))
    part = part_of_event(made.splits, CellId(0, number), point)
    assert len(part.halves) == len(cuts)
    least, beyond = part_bounds(made.partition, made.splits, part)
    assert (least <= point).all()
    assert (np.array(point) < beyond).all()


@settings(deadline=None)
@given(st.integers(2, 5), st.integers(1, 3), st.data())
def test_copies_lie_at_different_clusters_the_first_one_where_prefix_routing_ends(
    base: int, levels: int, data: st.DataObject
) -> None:
    shape = CloudShape(base, levels)
    numbers = data.draw(st.sets(st.integers(0, shape.clusters - 1), min_size=1))
    places = CellPlaces(shape, [shape.digits(number) for number in numbers])
    cell = CellId(0, data.draw(st.integers(0, 1_000)))
    homes = places.homes(cell, data.draw(st.integers(1, 9)))
    assert homes == tuple(dict.fromkeys(homes))
    assert homes == places.homes(cell, len(numbers))[: len(homes)]
    assert set(places.homes(cell, 200)) == set(places.clusters)
    assert homes[0] in places.clusters


def test_cells_are_spread_over_all_clusters_and_none_is_an_error() -> None:
    counts = dict.fromkeys(PLACES.clusters, 0)
    for number in range(4_000):
        counts[PLACES.homes(CellId(0, number))[0]] += 1
    assert min(counts.values()) > 850
    with pytest.raises(UsageError, match="a cluster"):
        CellPlaces(SHAPE, [])
