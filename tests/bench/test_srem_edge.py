"""The SREM driver's parts on a broker's engine: figures and their keys, and that what is wrong is a problem."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.broker.content.content_fanout import ContentFanout
from lexicast.actors.mqtt.codec.encode import encode_qos0_run
from lexicast.actors.mqtt.codec.packets import V311
from lexicast.bench.srem import driver
from lexicast.bench.srem.edge import delivery_rates, past_rates, plain_cost, plain_rounds, resumptions, truth
from lexicast.bench.srem.edge.condition_dice import ConditionDice
from lexicast.cluster.content.predicate import Predicate


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver takes SIGTERM for itself."""
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(delivery_rates, "QUICK_SUBSCRIPTIONS", 100)
    monkeypatch.setattr(delivery_rates, "QUICK_FEW", (50,))
    monkeypatch.setattr(delivery_rates, "WIDE_EVENTS", 32)
    monkeypatch.setattr(past_rates, "QUICK_MESSAGES", 200)
    monkeypatch.setattr(resumptions, "QUICK_MESSAGES", 200)
    monkeypatch.setattr(resumptions, "QUICK_SUBSCRIPTIONS", 40)
    monkeypatch.setattr(truth, "QUICK_PAIRS", 1_000)
    monkeypatch.setattr(plain_cost, "QUICK_ROUNDS", 1)
    monkeypatch.setattr(plain_cost, "BESIDE", 20)


def run(folder: Path, part: str) -> tuple[int, dict[str, Any]]:
    """Exit code and what was told."""
    code = driver.main(["--quick", "--rounds", "1", "--only", part, "--json", str(folder / "f.json")])
    told: dict[str, Any] = json.loads((folder / "f.json").read_text())
    return code, told


def test_the_edge_is_measured(tmp_path: Path) -> None:
    code, told = run(tmp_path, "edge")
    figures = told["figures"]
    assert (code, told["problems"]) == (0, [])
    assert all(figures[case.key] > 0 for cases in delivery_rates.cases(True).values() for case in cases)
    assert figures["content_vs_filtering"] > 1
    shares = [figures[f"content_share_{name}"] for name in ("decoding", "columns", "index", "delivery")]
    assert sum(shares) == pytest.approx(1, abs=0.01)


def test_resumptions_are_measured_and_held_against_a_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, told = run(tmp_path, "resumptions")
    assert (code, told["problems"]) == (0, [])
    assert told["figures"]["content_resume_us"] > 0
    monkeypatch.setattr(resumptions.Resumed, "write", lambda self, data: None)
    assert run(tmp_path, "resumptions")[0] == 1


def test_what_is_not_delivered_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = ContentFanout.deliver

    def forgetful(self: ContentFanout, *arguments: Any) -> int:
        return max(0, deliver(self, *arguments) - 1)

    monkeypatch.setattr(ContentFanout, "deliver", forgetful)
    assert run(tmp_path, "edge")[0] == 1


def test_every_way_to_ask_agrees_with_the_model(tmp_path: Path) -> None:
    code, told = run(tmp_path, "truth")
    figures = told["figures"]
    assert (code, figures["disagreements"]) == (0, 0)
    assert figures["truth_pairs"] >= 1_000
    assert 0 < figures["truth_true_share"] < 1
    assert 0 < figures["truth_indexed_share"] < 1


def test_a_way_that_lies_disagrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matches = Predicate.matches
    monkeypatch.setattr(Predicate, "matches", lambda self, record: record.qos == 2 or matches(self, record))
    code, told = run(tmp_path, "truth")
    assert code == 1
    assert told["figures"]["disagreements"] > 0


def test_a_seed_gives_the_same_conditions_and_records() -> None:
    one, same, other = (ConditionDice(seed) for seed in (1, 1, 2))
    drawn = [([dice.tree() for _ in range(20)], repr(dice.records(20))) for dice in (one, same, other)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_packets_are_taken_apart() -> None:
    payloads = [b"", b"x" * 200, b"y" * 20_000]
    data = encode_qos0_run(V311, b"a/b", payloads)
    assert list(truth.packets_of(data)) == [(b"a/b", payload) for payload in payloads]


def test_conditions_on_the_past_are_measured(tmp_path: Path) -> None:
    code, told = run(tmp_path, "past")
    assert (code, told["problems"]) == (0, [])
    for case in past_rates.CASES:
        assert told["figures"][f"{case.key}_s"] > 0
        assert 0 < told["figures"][f"{case.key}_bytes"] < 1


def test_a_past_that_broker_and_client_see_differently_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = past_rates.CASES[1]
    monkeypatch.setattr(past_rates, "CASES", (case._replace(holds=lambda event: event["distance_mi"] > 1_000),))
    assert run(tmp_path, "past")[0] == 1


def test_plain_subscribers_are_measured_beside_the_sources_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here: beside these themselves."""
    monkeypatch.setattr(plain_cost, "sources_before", lambda folder: plain_cost._ROOT / "src")
    code, told = run(tmp_path, "plain")
    assert code == 0
    assert all(told["figures"][f"plain_ratio_{load}"] > 0.1 for load in plain_rounds.LOADS)
    assert told["figures"]["plain_beside"] > 0.1


def test_without_the_sources_before_there_is_no_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_cost, "BEFORE", "0" * 40)
    code, told = run(tmp_path, "plain")
    assert (code, told["figures"]["plain_ratio"]) == (0, None)


@pytest.mark.parametrize("name", plain_rounds.LOADS)
def test_plain_loads_reach_all_their_subscribers(name: str) -> None:
    topics, each, subscribers, _ = plain_rounds.LOADS[name]
    load = plain_rounds.PlainLoad(name, 0)
    load._blocks = 1
    load.round_s()
    assert load._engine.live.delivered_records == topics * each * subscribers
