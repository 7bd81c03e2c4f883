"""Cells are planned from what brokers tell, one step at a time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from lexicast.cluster.errors import PeerError
from lexicast.cluster.hpartition.cell_map import Handover, HandoverPhase, Join
from lexicast.cluster.hpartition.cell_report import SAMPLE_MAX, CellReport
from lexicast.cluster.hpartition.live_map import LiveMap
from lexicast.cluster.hpartition.partition import CellId
from lexicast.cluster.hpartition.planning import COLD_TURNS, CONDITIONS_MIN, EVENTS_MIN, RECUT_TURNS, CellPlanner
from lexicast.cluster.hpartition.splits import Split

MATCHERS = ("m0", "m1", "m2")


def report(version: int, conditions: int = CONDITIONS_MIN, asked: dict[CellId, int] | None = None) -> CellReport:
    """Of a broker whose subscribers bound `x`, most of them `y` and few `z`."""
    dice = random.Random(1)
    boxes = []
    for number in range(100):
        low = dice.random()
        box = {"x": (low, low + 0.1)}
        if number % 3:
            box["y"] = (0.0, low)
        if number < 10:
            box["z"] = (1.0, 1.0)
        boxes.append(box)
    events = tuple({"x": dice.random(), "y": dice.random()} for _ in range(EVENTS_MIN))
    found = asked or {}
    return CellReport(version, conditions, tuple(boxes), events, found, dict.fromkeys(found, 100))


def planned(conditions: int = CONDITIONS_MIN) -> CellPlanner:
    """With matchers, and a report."""
    planner = CellPlanner(10)
    assert planner.turn(["b"], MATCHERS) is not None
    planner.told("b", report(planner.map.version, conditions))
    return planner


def test_cells_begin_where_they_pay() -> None:
    planner = planned()
    made = planner.turn(["b"], MATCHERS)
    assert made is not None
    assert made.version == 14
    assert made.columns == ("x", "y"), "few bound z"
    assert made.cells is not None
    assert made.cells.partition.cells > len(MATCHERS)
    assert made.cells.copies_each == 2


@pytest.mark.parametrize("why", ["few conditions", "one matcher", "nothing seen", "the broker is gone"])
def test_else_everybody_holds_everything(why: str) -> None:
    planner = planned(CONDITIONS_MIN - 1 if why == "few conditions" else CONDITIONS_MIN)
    if why == "nothing seen":
        planner.told("b", report(12)._replace(events=()))
    matchers = MATCHERS[:1] if why == "one matcher" else MATCHERS
    brokers = [] if why == "the broker is gone" else ["b"]
    planner.turn(brokers, matchers)
    planner.turn(brokers, matchers)
    assert planner.map.cells is None


def test_a_hot_cell_is_handed_over_step_by_step_as_brokers_follow() -> None:
    planner = planned()
    planner.turn(["b"], MATCHERS)
    begun = planner.map.version
    # All alike, one far above it.
    asked = {CellId(0, number): 10 for number in range(20)} | {CellId(0, 3): 10_000}
    planner.told("b", report(begun - 2, asked=asked))
    assert planner.turn(["b"], MATCHERS) is None, "the broker has not followed yet"
    planner.told("b", report(begun, asked=asked))
    phases = []
    for step in range(1, 4):
        made = planner.turn(["b"], MATCHERS)
        assert made is not None
        assert made.version == begun + step
        assert made.cells is not None
        phases.append([handover.phase for handover in made.cells.handovers.values()])
        assert planner.turn(["b"], MATCHERS) is None
        planner.told("b", report(made.version))
    assert phases == [[HandoverPhase.FILLING], [HandoverPhase.DRAINING], []]
    last: LiveMap = planner.map
    assert last.cells is not None
    assert CellId(0, 3) in last.cells.splits or last.cells.copies[CellId(0, 3)] > 2


def test_cells_that_are_there_no_more_are_passed_over() -> None:
    """Those that a broker counted by the map of a server that has ended."""
    planner = planned()
    planner.turn(["b"], MATCHERS)
    asked = {CellId(0, number): 10 for number in range(20)}
    gone = {CellId(0, 3, "0"): 10_000, CellId(7, 0): 10_000, CellId(0, 60_000): 10_000}
    planner.told("b", report(planner.map.version, asked={**asked, **gone}))
    assert planner.turn(["b"], MATCHERS) is None


def bounding(version: int, *columns: str) -> CellReport:
    """Of a broker all of whose subscribers bound these."""
    dice = random.Random(2)
    boxes = [{column: (low := dice.random(), low + 0.1) for column in columns} for _ in range(100)]
    events = tuple({column: dice.random() for column in "uvwxy"} for _ in range(EVENTS_MIN))
    return CellReport(version, CONDITIONS_MIN, tuple(boxes), events, {}, {})


def turns(planner: CellPlanner, count: int, *columns: str) -> list[int]:
    """By how much the map jumped, turn by turn, of a broker that follows and reports each time."""
    jumps = []
    for _ in range(count):
        before = planner.map.version
        planner.told("b", bounding(before, *columns))
        planner.turn(["b"], MATCHERS)
        jumps.append(planner.map.version - before)
    return jumps


def test_cells_are_cut_anew_when_other_columns_have_been_bound_for_long() -> None:
    planner = planned()
    planner.turn(["b"], MATCHERS)
    assert planner.map.columns == ("x", "y")
    assert turns(planner, RECUT_TURNS - 1, "u", "v") == [0] * (RECUT_TURNS - 1)
    assert [planner.turn(["b"], MATCHERS) for _ in range(9)] == [None] * 9, "nothing new was told"
    assert turns(planner, 1, "u", "v") == [2], "nobody vouches across it"
    assert planner.map.columns == ("u", "v")
    assert planner.map.cells is not None
    assert not planner.map.cells.splits
    assert turns(planner, 3 * RECUT_TURNS, "u", "v") == [0] * 3 * RECUT_TURNS


def test_cells_are_not_cut_anew_to_and_fro() -> None:
    planner = planned()
    planner.turn(["b"], MATCHERS)
    for _ in range(5):
        assert turns(planner, RECUT_TURNS - 1, "u", "v") == [0] * (RECUT_TURNS - 1)
        assert turns(planner, 1, "x", "y") == [0]
    # Half of the cells' columns are bound still: one column more is not worth it.
    assert turns(planner, 3 * RECUT_TURNS, "x", "y", "u") == [0] * 3 * RECUT_TURNS
    # A broker that does not follow is waited for.
    for _ in range(2 * RECUT_TURNS):
        planner.told("b", bounding(planner.map.version - 2, "u", "v"))
        assert planner.turn(["b"], MATCHERS) is None


def test_a_cell_that_was_split_is_joined_when_it_has_been_cold_for_long() -> None:
    planner = planned()
    planner.turn(["b"], MATCHERS)
    begun = planner.map
    assert begun.cells is not None
    cell = CellId(0, 3)
    least, beyond = begun.cells.partition.bounds(cell)
    at = float(max(least[0], 0.0) + min(beyond[0], 1.0)) / 2
    planner.map = replace(begun, cells=begun.cells.changed(cell, Split(0, at)))
    asked = {CellId(0, number): 100 for number in range(begun.cells.partition.cells)}
    seen = []
    for _ in range(COLD_TURNS + 4):
        planner.told("b", report(planner.map.version, asked=asked))
        planner.turn(["b"], MATCHERS)
        assert planner.map.cells is not None
        seen.append((dict(planner.map.cells.handovers), cell in planner.map.cells.splits))
    joining = [Handover(Join(2), phase) for phase in HandoverPhase]
    assert seen[: COLD_TURNS - 1] == [({}, True)] * (COLD_TURNS - 1)
    assert seen[COLD_TURNS - 1 : COLD_TURNS + 1] == [({cell: each}, True) for each in joining]
    assert seen[COLD_TURNS + 1 :] == [({}, False)] * 3


def test_matchers_that_come_and_go_move_cells_by_a_jump() -> None:
    planner = planned()
    planner.turn(["b"], MATCHERS)
    before = planner.map
    made = planner.turn(["b"], (*MATCHERS, "m3"))
    assert made is not None
    assert made.version == before.version + 2
    assert made.columns == before.columns
    assert made.cells is not None
    alone = planner.turn(["b"], ("m3",))
    assert alone is not None
    assert alone.cells is None


def test_a_report_is_the_same_as_plain_values() -> None:
    told = report(3, asked={CellId(0, 1, "01"): 5})
    assert CellReport.of_plain(told.to_plain()) == told
    for plain in (
        None,
        (1, 2),
        told._replace(events=told.events * (SAMPLE_MAX // 10)).to_plain(),
        (1, 2, [3], [], [], []),
    ):
        with pytest.raises(PeerError):
            CellReport.of_plain(plain)
