"""The driver of the past by the index: figures and their keys, answers that differ."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lexicast.bench.past import driver
from lexicast.bench.past.log import topic_name

TINY = driver.LogSize(3_000, 400, 30)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver takes SIGTERM for itself."""
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(driver, "QUICK", TINY)
    monkeypatch.setattr(driver, "SHORT_LOG", 500)


def test_all_figures_are_measured(tmp_path: Path) -> None:
    assert driver.main(["--quick", "--rounds", "1", "--json", str(tmp_path / "f.json")]) == 0
    told = json.loads((tmp_path / "f.json").read_text())
    figures = told["figures"]
    for key in ("past", "last", "count", "past_half", "past_short"):
        assert figures[f"{key}_vs_scan"] > 0
    assert figures["index_share"] < 1
    assert figures["index_expired_rows"] == 0
    assert figures["index_rows"] > 0
    assert told["problems"] == []


def test_answers_that_differ_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = driver.Asked.last

    async def forgetful(self: driver.Asked, topic_filter: bytes, groups: Sequence[int], scan: bool) -> list[Any]:
        return [] if scan else await last(self, topic_filter, groups, scan)

    monkeypatch.setattr(driver.Asked, "last", forgetful)
    assert driver.main(["--quick", "--rounds", "1"]) == 1


def test_a_filter_names_one_topic_a_site_or_half() -> None:
    names = [topic_name(number).split(b"/") for number in range(400)]
    assert [len({name[at] for name in names}) for at in range(4)] == [1, 2, 4, 400]
