"""Cells are planned from what brokers tell, one step at a time."""

from __future__ import annotations

import random

import pytest

from lexicast.cluster.errors import PeerError
from lexicast.cluster.hpartition.cell_map import HandoverPhase
from lexicast.cluster.hpartition.cell_report import SAMPLE_MAX, CellReport
from lexicast.cluster.hpartition.live_map import LiveMap
from lexicast.cluster.hpartition.partition import CellId
from lexicast.cluster.hpartition.planning import CONDITIONS_MIN, EVENTS_MIN, CellPlanner

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
