"""The cells as a cluster uses them: whoever may be asked about a publication has been told all that hold of it."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from math import inf, nan

import msgpack
import numpy as np
import pytest

from lexicast.cluster.content.boxes import Boxes, Interval
from lexicast.cluster.errors import PeerError, UsageError
from lexicast.cluster.hpartition.cell_map import CellMap, Change, HandoverPhase, Join
from lexicast.cluster.hpartition.live_map import MATCHERS_MAX, LiveMap, clusters_of, places_of
from lexicast.cluster.hpartition.partition import CellId, partitioned
from lexicast.cluster.hpartition.splits import Split

COLUMNS = ("a", "b", "c:text")


def map_of(dice: random.Random) -> LiveMap:
    """Some map: of one group or two, with copies, splits and handovers."""
    seen = np.random.default_rng(dice.randrange(1 << 30)).normal(size=(200, 3))
    groups = dice.choice([[[0, 1, 2]], [[0, 1], [2]]])
    names = tuple(f"matcher-{i}" for i in range(dice.randrange(2, 7)))
    places = places_of(names)
    cells = CellMap(partitioned(seen, groups, dice.randrange(2, 5)), places, copies_each=dice.randrange(1, 3))
    for _ in range(dice.randrange(6)):
        cell = any_cell(cells, dice)
        change: Split | int = dice.randrange(1, 4)
        if dice.random() < 0.5:
            change = Split(dice.choice(groups[0]), dice.normalvariate())
        if cell not in cells.splits and cell not in cells.handovers:
            cells = dice.choice(
                [cells.begun(cell, change), cells.begun(cell, change).filled(cell), cells.changed(cell, change)]
            )
    return LiveMap(dice.randrange(9), names, COLUMNS, cells)


def any_cell(cells: CellMap, dice: random.Random) -> CellId:
    """One of the first group, whole or a half."""
    cell = CellId(0, dice.randrange(cells.partition.groups[0].cells))
    while cell in cells.splits:
        cell = cell._replace(halves=cell.halves + dice.choice("01"))
    return cell


def any_boxes(dice: random.Random) -> Boxes:
    """What a condition bounds: some of the columns, and others."""
    found = []
    for _ in range(dice.choice([1, 1, 2])):
        box = {}
        for column in (*COLUMNS, "other"):
            if dice.random() < 0.6:
                low = dice.choice([-inf, dice.normalvariate()])
                box[column] = Interval(
                    low, dice.choice([inf, max(low, dice.normalvariate()), low if low > -inf else 0.0])
                )
        found.append(box)
    return Boxes(tuple(found), exact=True)


def holds(boxes: Boxes, point: dict[str, float]) -> bool:
    """Whether a publication lies in one."""
    return any(
        [all([low <= point.get(column, nan) <= high for column, (low, high) in box.items()]) for box in boxes.boxes]
    )


@pytest.mark.parametrize("seed", range(40))
def test_who_may_be_asked_has_been_told(seed: int) -> None:
    dice = random.Random(seed)
    cells, held = map_of(dice), 0
    conditions = [any_boxes(dice) for _ in range(40)]
    told = [cells.holders(boxes)[0] for boxes in conditions]
    for _ in range(60):
        point = {column: dice.choice([dice.normalvariate(), nan, inf, 0.0]) for column in (*COLUMNS, "other")}
        _, candidates = cells.candidates([point[column] for column in COLUMNS])
        assert candidates
        for boxes, names in zip(conditions, told, strict=True):
            if holds(boxes, point):
                held += 1
                assert names.issuperset(candidates)
    assert held > 20


def steps(cells: CellMap, dice: random.Random, count: int) -> list[CellMap]:
    """Maps that follow one another: cells are split, copied and joined, several at a time."""
    made = [cells]
    for _ in range(count):
        now = made[-1]
        if now.handovers and dice.random() < 0.7:
            cell = dice.choice(sorted(now.handovers))
            filling = now.handovers[cell].phase is HandoverPhase.FILLING
            made.append(now.filled(cell) if filling else now.drained(cell))
            continue
        changes: list[Change] = [Split(dice.randrange(3), dice.normalvariate()), dice.randrange(1, 4)]
        change = dice.choice(changes)
        cell = any_cell(now, dice)
        if now.splits and dice.random() < 0.5:
            cell, change = dice.choice(sorted(now.splits)), Join(dice.randrange(1, 3))
        with suppress(UsageError):
            made.append(now.begun(cell, change))
    return made


@pytest.mark.parametrize("seed", range(30))
def test_neighbours_are_right_for_each_others_publications(seed: int) -> None:
    """Whoever is asked by a map has been told by it, by the one before, and by the one after."""
    dice = random.Random(seed)
    seen = np.random.default_rng(seed).normal(size=(200, 3))
    names = tuple(f"matcher-{i}" for i in range(dice.randrange(2, 7)))
    places = places_of(names)
    begun = CellMap(partitioned(seen, [[0, 1, 2]], 2), places, copies_each=dice.randrange(1, 3))
    made = steps(begun, dice, 60)
    maps = [LiveMap(n, names, COLUMNS, each) for n, each in enumerate(made)]
    conditions = [any_boxes(dice) for _ in range(15)]
    told = [[each.holders(boxes)[0] for boxes in conditions] for each in maps]
    held = 0
    for _ in range(15):
        point = {column: dice.choice([dice.normalvariate(), nan, 0.0]) for column in (*COLUMNS, "other")}
        holding = [number for number, boxes in enumerate(conditions) if holds(boxes, point)]
        for number, each in enumerate(maps):
            _, candidates = each.candidates([point[column] for column in COLUMNS])
            for near in told[max(0, number - 1) : number + 2]:
                for condition in holding:
                    held += 1
                    assert near[condition].issuperset(candidates)
    assert held > 100
    changes = [handover.change for each in made for handover in each.handovers.values()]
    assert any([isinstance(change, Join) for change in changes])


@pytest.mark.parametrize("seed", range(10))
def test_conditions_are_counted_by_the_parts_of_cells(seed: int) -> None:
    """And a publication that a condition holds for lies in one of these parts, where nothing is handed over."""
    dice = random.Random(seed)
    cells = map_of(dice)
    assert cells.cells is not None
    cells = LiveMap(1, cells.matchers, COLUMNS, replace(cells.cells, handovers={}))
    conditions = [any_boxes(dice) for _ in range(30)]
    for _ in range(40):
        point = {column: dice.choice([dice.normalvariate(), 0.0]) for column in (*COLUMNS, "other")}
        parts, _ = cells.candidates([point[column] for column in COLUMNS])
        for boxes in conditions:
            if holds(boxes, point):
                assert cells.holders(boxes)[1].issuperset(parts) or not cells.holders(boxes)[1]


@pytest.mark.parametrize("seed", range(10))
def test_a_map_is_the_same_as_plain_values(seed: int) -> None:
    dice = random.Random(seed)
    cells = map_of(dice)
    again = LiveMap.of_plain(msgpack.unpackb(msgpack.packb(cells.to_plain()), use_list=False))
    assert (again.version, again.matchers, again.columns) == (cells.version, cells.matchers, cells.columns)
    for _ in range(30):
        boxes, point = any_boxes(dice), [dice.normalvariate() for _ in COLUMNS]
        assert again.holders(boxes) == cells.holders(boxes)
        assert again.candidates(point) == cells.candidates(point)


def test_without_cells_everybody_holds_everything() -> None:
    whole = LiveMap(3, ("x", "y"))
    assert LiveMap.of_plain(whole.to_plain()) == whole or LiveMap.of_plain(whole.to_plain()).cells is None
    assert whole.holders(any_boxes(random.Random(1))) == (frozenset({"x", "y"}), frozenset())
    assert whole.candidates([1.0]) == ([], ("x", "y"))


def test_matchers_are_spread_evenly() -> None:
    assert clusters_of(["c", "a", "b", "a"]) == {b"\x00": "a", b"\x55": "b", b"\xaa": "c"}
    with pytest.raises(UsageError):
        clusters_of(map(str, range(MATCHERS_MAX + 1)))


@pytest.mark.parametrize("plain", [None, (1,), (1, ("a",), (), ((), (), (), ())), (1, 2, 3, 4), (1, ("a",), (), 5)])
def test_what_is_no_map_is_a_peers_mistake(plain: object) -> None:
    with pytest.raises(PeerError):
        LiveMap.of_plain(plain)
