"""The SREM driver's index: what is drawn, what the index is held against, a quick run."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from lexicast.bench.srem import driver, index_churn, index_rates
from lexicast.bench.srem.filling import boxes_from, columns, filled
from lexicast.bench.srem.index_rates import IndexCase
from lexicast.bench.srem.peers import Closures, Scan
from lexicast.bench.srem.population import BOUNDED, BoxSetting, drawn

SETTINGS = [
    BoxSetting(300),
    BoxSetting(300, 1, 0.3),
    BoxSetting(300, 2, values=5),
    BoxSetting(300, 6, 0.4, spread=0.1),
    BoxSetting(300, 6, 0.5, sets=7),
    BoxSetting(300, 3, 0.5, values=5, above=2),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_all_find_the_same(setting: BoxSetting) -> None:
    dice = np.random.default_rng(1)
    population = drawn(setting, dice)
    points = population.events(50, dice)
    inside = (population.low <= points[:, None]) & (points[:, None] <= population.high)
    expected = np.argwhere(inside.all(axis=2)).tolist()
    assert expected
    index = filled(population).predicates
    for match in (
        Scan(population).match,
        Closures(population).match,
        lambda some: index.match(some, columns(population)),
    ):
        events, keys = match(points)
        assert sorted(zip(events.tolist(), keys.tolist(), strict=True)) == [tuple(pair) for pair in expected]


def test_what_is_drawn_is_as_its_setting_says() -> None:
    dice = np.random.default_rng(1)
    sets = drawn(BoxSetting(2_000, 6, sets=7), dice)
    boxes = [each.boxes[0] for each in boxes_from(sets, 0, 2_000)]
    assert {len(box) for box in boxes} == {BOUNDED}
    assert len({tuple(box) for box in boxes}) == 7
    points = drawn(BoxSetting(2_000, values=5), dice)
    assert set(points.low[:, 0]) == set(points.high[:, 0]) == set(range(5))
    assert set(points.events(100, dice)[:, 0]) == set(range(5))
    hot = drawn(BoxSetting(2_000, 2, spread=0.05), dice)
    assert np.abs(hot.events(2_000, dice) - hot.hot).std() < 0.06


def test_a_quick_run_has_every_figure_and_its_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    small = BoxSetting(400)
    monkeypatch.setattr(index_rates, "MAIN", small)
    monkeypatch.setattr(index_rates, "QUICK_MILLION", 600)
    monkeypatch.setattr(
        index_rates, "CASES", {"batch_1": IndexCase(small, 1), "wide": IndexCase(small._replace(width=0.3))}
    )
    monkeypatch.setattr(index_rates, "_QUICK_ROUND_S", 0.005)
    monkeypatch.setattr(index_churn, "MAIN", small)
    monkeypatch.setattr(index_churn, "QUICK_MILLION", 600)
    monkeypatch.setattr(index_churn, "_QUICK_SECONDS", 0.1)
    file, folder = tmp_path / "r.json", tmp_path / "pictures"
    arguments = ["--quick", "--rounds", "2", "--only", "index,churn", "--json", str(file), "--out", str(folder)]
    assert driver.main(arguments) == 0
    figures = json.loads(file.read_text())["figures"]
    for name in ("40k", "1m", "batch_1", "wide"):
        assert figures[f"index_{name}_events_s"] > 0
        assert figures[f"index_{name}_vs_scan"] > 0
    assert figures["index_40k_vs_closures"] > figures["index_40k_vs_scan"]
    assert figures["index_bytes"] > 4 * 16
    assert figures["index_loop_ms"] <= figures["index_loop_wall_ms"] * 1.5
    assert {"index_fill_us", "index_resident_bytes"} <= figures.keys()
    assert {"index_churn_s", "index_churn_events_s", "index_churn_bytes"} <= figures.keys()
    assert [path.name for path in folder.iterdir()] == ["srem_index.png"]
