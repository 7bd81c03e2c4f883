"""The SREM driver's simulated parts: matchers that share subscriptions out, Chord, hops, loss; a quick run of each."""

from __future__ import annotations

import json
import signal
from bisect import bisect_left
from pathlib import Path

import numpy as np
import pytest

from lexicast.bench.srem import driver, mass_failure, overlay_messages, scan_cost, sharing_rates
from lexicast.bench.srem.chord import BITS, ChordRing
from lexicast.bench.srem.matching import SharingOut, SimulatedMatchers, sharings, simulated
from lexicast.bench.srem.overlay_messages import OverlayCost, hops_bound, saving
from lexicast.bench.srem.population import BoxSetting, drawn
from lexicast.bench.srem.scan_cost import EVENTS, SIZES, ScanCost
from lexicast.cluster.hpartition.splits import Split, part_bounds

# A call takes 8 us, a comparison 10 ns, however many at once.
COST = ScanCost(np.array([[8e-6 + 1e-8 * size * events for events in EVENTS] for size in SIZES]))
HOT = BoxSetting(3_000, 4, 0.1, 0.1)


@pytest.mark.parametrize("nodes", [1, 2, 3, 40])
def test_chord_finds_who_succeeds_a_key_from_everywhere(nodes: int) -> None:
    made = ChordRing(nodes, 1)
    ring = sorted(made.nodes)
    assert made.settled()
    assert [made.nodes[node].successor for node in ring] == [*ring[1:], ring[0]]
    for number in range(200):
        key = number * 2**BITS // 200
        for source in ring[:: max(1, nodes // 5)]:
            assert made.lookup(source, key).node == ring[bisect_left(ring, key) % nodes]
            assert made.routed_hops(source, key) <= 1 + hops_bound(nodes, 2) * 2


def test_chords_maintenance_is_what_its_messages_sum_up_to() -> None:
    """Of two nodes each knows the other's keys: stabilize 2, notify 1, check_predecessor 2, no lookups."""
    made = ChordRing(2, 1)
    before = made.messages
    made.period()
    assert made.messages - before == 2 * 5


def test_a_saving_is_of_maintenance_and_lookups() -> None:
    ours, chord = OverlayCost("", 2.0, 9.0, 1.0, 2, 0), OverlayCost("", 5.0, 5.0, 3.0, 6, 0)
    assert [saving(ours, chord, rate) for rate in (0.0, 1.0)] == pytest.approx([0.6, 1 - 3 / 8])
    assert [hops_bound(members, base) for members, base in ((1, 2), (64, 2), (65, 2), (64, 64), (100, 10))] == [
        1, 6, 7, 1, 2,
    ]  # fmt: skip


def test_costs_are_the_measured_ones_and_between_them_in_between() -> None:
    sizes, events = np.array([1, 256, 65_536]), np.array([1, 4, 16])
    expected = 8e-6 + 1e-8 * sizes * events
    assert COST.seconds(sizes, events) == pytest.approx(expected)
    least, between, most = COST.seconds(np.array([256, 600, 1_024]), np.array([1, 1, 1])).tolist()
    assert least < between < most
    # 35 events are three scans; twice the largest size takes twice as long; nobody is one at least.
    assert COST.seconds(np.array([1]), np.array([35]))[0] == pytest.approx(3 * 8e-6, rel=0.05)
    assert COST.seconds(np.array([131_072]), np.array([1])) == pytest.approx(2 * expected[2] / 16, rel=0.02)
    assert COST.seconds(np.array([0]), np.array([1])) == pytest.approx(expected[0])
    assert COST.call_comparisons() == pytest.approx(800, abs=2)


def test_a_measured_cost_grows_with_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_cost, "SIZES", (1, 20_000))
    monkeypatch.setattr(scan_cost, "_ROUNDS", 2)
    cost = scan_cost.measured_cost(drawn(HOT, np.random.default_rng(1)), np.random.default_rng(1))
    assert (cost.measured_s[1] > 2 * cost.measured_s[0]).all()


@pytest.mark.parametrize("sharing", sharings(2, 5), ids=lambda sharing: sharing.name)
def test_each_event_is_asked_of_one_cell_that_has_all_its_matches(sharing: SharingOut) -> None:
    """Naive: the boxes that overlap the bounds of the cell, and those that match the event."""
    population = drawn(HOT._replace(values=4), np.random.default_rng(1))
    made = SimulatedMatchers(population, sharing, 7, COST, np.random.default_rng(1))
    made.settle(400)
    assert bool(made.changes) == sharing.adapts
    points = population.events(40, np.random.default_rng(2))
    low, high = population.low, population.high
    for point in points:
        ((_, (cell,)),) = made._asked(point[None, :]).items()
        least, beyond = part_bounds(made.map.partition, made.map.splits, cell)
        inside = np.asarray(((low < beyond) & (high >= least)).all(axis=1))
        assert made.subscriptions(cell) == inside.sum()
        assert inside[((low <= point) & (point <= high)).all(axis=1)].all()
    assert sum(map(len, made._asked(points).values())) == len(points)


def test_copies_count_every_place_of_every_part() -> None:
    population = drawn(HOT._replace(subscriptions=200), np.random.default_rng(1))
    made = SimulatedMatchers(population, SharingOut("", 2, 3), 5, COST, np.random.default_rng(1))
    cell = next(iter(made.map.partition.cells_of_box(population.low[0], population.high[0])))
    middle = float(np.median(population.low[:, 0]))
    made.map = made.map.changed(cell, 2).changed(cell, Split(0, middle))
    naive = sum([len(made.map.holders(*box)) for box in zip(population.low, population.high, strict=True)])
    assert made.copies == pytest.approx(naive / 200)


def test_more_matchers_and_smaller_cells_match_more() -> None:
    population = drawn(HOT._replace(subscriptions=20_000), np.random.default_rng(1))
    ours, _, bluedove, spartition, one = [
        simulated(population, sharing, 16, COST, 2_000, 1) for sharing in sharings(4, 6)
    ]
    assert ours.events_s > max(bluedove.events_s, spartition.events_s)
    assert ours.scanned < spartition.scanned
    assert ours.copies > spartition.copies
    assert spartition.events_s > one.events_s
    fewer = simulated(population, sharings(4, 6)[0], 4, COST, 2_000, 1)
    assert 2.4 < ours.events_s / fewer.events_s < 4.4


def test_loss_ends_when_nothing_is_lost_any_more() -> None:
    assert mass_failure.cycles_to_none([0.5, 0.0, 0.1, 0.0]) == 3
    assert mass_failure.cycles_to_none([0.0, 0.0]) == 0
    assert mass_failure.mean_curve([[1.0, 0.0], [0.0, 0.0]]) == [0.5, 0.0]


def test_a_quick_run_has_every_figure_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(sharing_rates, "QUICK_EVENTS", 300)
    monkeypatch.setattr(sharing_rates, "_QUICK_LOAD", HOT)
    monkeypatch.setattr(sharing_rates, "measured_cost", lambda population, dice: COST)
    monkeypatch.setattr(overlay_messages, "QUICK_SHAPES", ((4, 2),))
    monkeypatch.setattr(overlay_messages, "MEMBERS", 24)
    monkeypatch.setattr(overlay_messages, "PERIODS", 10)
    monkeypatch.setattr(overlay_messages, "LOOKUPS_EACH", 5)
    monkeypatch.setattr(mass_failure, "CYCLES", 15)
    monkeypatch.setattr(mass_failure, "SETTLING", 20)
    monkeypatch.setattr(mass_failure, "MEMBERS", 32)
    monkeypatch.setattr(mass_failure, "LOOKUPS", 50)
    file, folder = tmp_path / "r.json", tmp_path / "pictures"
    parts = "hpartition,skipcloud,loss"
    assert driver.main(["--quick", "--only", parts, "--json", str(file), "--out", str(folder)]) == 0
    told = json.loads(file.read_text())
    figures = told["figures"]
    assert figures["hops_excess"] == 0
    assert figures["hpartition_vs_single"] <= figures["hpartition_vs_single_best"]
    assert figures["chord_saving_worst"] <= figures["chord_saving_best"] < 1
    assert 0 < figures["loss_first"] < 1
    assert figures["loss_cycles_noticed"] <= figures["loss_cycles"]
    assert {"hpartition_copies", "hpartition_vs_bluedove", "matchers_scaling", "chord_saving_hops"} <= figures.keys()
    assert {"hpartition", "skipcloud", "loss"} <= told["samples"].keys()
    assert sorted([path.name for path in folder.iterdir()]) == ["srem_loss.png", "srem_savings.png", "srem_sharing.png"]
