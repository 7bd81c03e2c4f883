"""The replication driver's figures and options. (Copies themselves: tests/stories/test_copies.)"""

from __future__ import annotations

from typing import Any

import pytest

from lexicast.bench.replication.driver import SHAPES, cpu_cost, parse, scenarios


def test_the_cost_is_of_all_processes_and_of_the_same_round() -> None:
    samples: dict[str, Any] = {
        "one copy": {"cpu_us": {"brokers": [10.0, 20.0, 10.0], "coordinators": [10.0, 20.0, 10.0]}},
        "two copies": {"cpu_us": {"brokers": [11.0, 22.0, 11.0], "coordinators": [15.0, 26.0, 19.0]}},
    }
    assert cpu_cost(samples) == pytest.approx(0.3)  # of 0.3, 0.2 and 0.5


def test_rounds_that_failed_count_for_nothing() -> None:
    samples: dict[str, Any] = {
        "one copy": {"cpu_us": {"brokers": [10.0, None, 10.0]}},
        "two copies": {"cpu_us": {"brokers": [12.0, 30.0, None]}},
    }
    assert cpu_cost(samples) == pytest.approx(0.2)
    samples["two copies"]["cpu_us"]["brokers"] = [None, None, None]
    assert cpu_cost(samples) is None


def test_quick_has_the_same_shapes_with_less_of_everything() -> None:
    quick, full = parse(["--quick"]), parse([])
    assert [each.name for each in scenarios(quick)] == [each.name for each in scenarios(full)]
    assert len(scenarios(full)) == len(SHAPES) * len(full.payloads)
    assert quick.seconds < full.seconds
    assert quick.sessions < full.sessions == 10_000
    assert parse(["--sessions", "0"]).sessions == 0


def test_both_clusters_get_the_same_window() -> None:
    assert all(len(each.windows) == 1 for each in scenarios(parse([])))


def test_a_shape_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--shapes", "fanout,other"])
    assert "--shapes" in capsys.readouterr().err
