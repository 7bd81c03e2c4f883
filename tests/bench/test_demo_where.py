"""The demo of content subscriptions: its condition, its judgement (each fault is seen), a short run of it all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexicast.bench.data.flights import Replay, prepare_flights
from lexicast.bench.demo import driver as demo
from lexicast.bench.demo.verdicts import Arrivals
from lexicast.bench.demo_where.agreement import Selected, judge_selected
from lexicast.bench.demo_where.conditions import DEFAULT_CONDITION, EventFilter, check_condition, numbers_that_hold
from lexicast.bench.demo_where.driver import group_numbers
from lexicast.bench.demo_where.report import Saving, Trail, Way
from lexicast.cluster.errors import UsageError

WEST = {"BUR", "LAX", "LGB", "OAK", "PDX", "SAN", "SEA", "SFO", "SJC", "SMF", "SNA"}
# Among the first 3,000 flights are some that were late to the west coast.
MESSAGES = 3_000


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Replay:
    return prepare_flights(MESSAGES, tmp_path_factory.mktemp("data") / "events.tsv")


# -- the condition


def late_to_the_west(payload: bytes) -> bool:
    event = json.loads(payload)
    return event.get("dest") in WEST and (event.get("arr_delay_min") or 0) > 60


def test_the_condition_says_what_a_program_would(replay: Replay) -> None:
    by_program = [number for number, event in enumerate(replay.events) if late_to_the_west(event.payload)]
    assert numbers_that_hold(replay.events, DEFAULT_CONDITION).tolist() == by_program
    assert len(by_program) > 5


def test_weather_is_not_denied_either(replay: Replay) -> None:
    """What a weather report says of `dest` is unknown, and so is what NOT makes of it."""
    denied = numbers_that_hold(replay.events, f"NOT ({DEFAULT_CONDITION})").tolist()
    assert {replay.events[number].topic.partition("/")[0] for number in denied} == {"flights"}


def test_what_mqtt_does_not_tell_cannot_be_filtered_in_the_client() -> None:
    with pytest.raises(UsageError, match=r"payload\.time"):
        check_condition("time > '2026-01-01T00:00Z' OR dest = 'LAX'")
    check_condition("payload.time > '2013' AND level(2) = 'JFK' AND qos = 1")
    assert EventFilter("qos = 1 AND level(2) = 'JFK'").holds("flights/JFK/LAX", b"{}")


@pytest.mark.parametrize("where", ["dest =", "time > 3"])
def test_a_wrong_condition_is_refused_before_anything_starts(
    where: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    assert demo.main(["--where", where]) == 2
    assert capsys.readouterr().err.startswith("error: ")


# -- the judgement: events 0 to 7 on two topics of each of two groups; wanted are all but 0 and 1

GROUPS = np.array([0, 1, 0, 1, 0, 1, 0, 1])
TOPICS = np.array([0, 1, 2, 3, 0, 1, 2, 3])
WANTED = np.arange(2, 8)
# Group 0's log has 6 before 4: topics of different publishers.
LOGGED = np.array([0, 1, 2, 3, 6, 5, 4, 7])


def judged(*numbers: int) -> Selected:
    return judge_selected(np.array(numbers, dtype=np.int64), WANTED, GROUPS, TOPICS, LOGGED)


def test_groups_may_overtake_each_other() -> None:
    one, other = judged(2, 3, 6, 5, 4, 7), judged(3, 5, 7, 2, 6, 4)
    assert one.right
    assert one == other


@pytest.mark.parametrize(
    ("numbers", "faults"),
    [
        ((2, 3, 6, 5, 4), (1, 0, 0)),
        ((2, 3, 6, 5, 4, 7, 1), (0, 1, 0)),
        ((2, 3, 6, 5, 4, 7, 7), (0, 1, 0)),
        ((2, 3, 6, 5, 4, 7, -1), (0, 1, 0)),
        ((2, 3, 4, 5, 6, 7), (0, 0, 1)),
        ((2, 7, 6, 5, 4, 3), (0, 0, 3)),
        ((), (6, 0, 0)),
    ],
    ids=["lost", "not asked for", "twice", "altered", "not as logged", "not as published", "nothing"],
)
def test_each_fault_in_what_was_kept_is_seen(numbers: tuple[int, ...], faults: tuple[int, ...]) -> None:
    one = judged(*numbers)
    assert (one.missing, one.wrong, one.out_of_order) == faults
    assert not one.right
    assert one.fingerprint != judged(2, 3, 6, 5, 4, 7).fingerprint


def test_what_the_log_lacks_is_a_fault_of_who_read_it() -> None:
    short = judge_selected(LOGGED[2:-1], WANTED, GROUPS, TOPICS, LOGGED[:-1])
    whole = judge_selected(LOGGED[2:], WANTED, GROUPS, TOPICS, LOGGED[:-1])
    assert (short.missing, whole.missing, whole.out_of_order) == (1, 0, 0)


def test_groups_are_those_of_topics(replay: Replay) -> None:
    groups = group_numbers(replay.events)
    of_topic = {event.topic: int(group) for event, group in zip(replay.events, groups, strict=True)}
    assert [of_topic[event.topic] for event in replay.events] == groups.tolist()
    assert len(set(of_topic.values())) > 30


# -- the report


def test_a_saving_is_a_share_of_receiving_everything() -> None:
    nothing = Arrivals(np.array([]), np.array([]), {})
    saving = Saving.of(Way(1, 20, 0.25, nothing), Way(100, 1_000, 0.5, nothing))
    assert saving == Saving(messages=0.01, link_bytes=0.02, cpu=0.5)
    assert Saving.of(Way(0, 0, 0.0, nothing), Way(0, 0, 0.0, nothing)) == Saving(0.0, 0.0, 0.0)


def test_a_trail_is_of_what_counts() -> None:
    trail = Trail()
    for told in ({"ready": True}, {"received": 3, "cpu_s": 0.1, "at_ns": 7}, {"done": True}):
        trail.add(told)
    assert trail == Trail([7], [3], [0.1])


# -- from end to end


def test_a_short_demo_of_conditions(tmp_path: Path, replay: Replay) -> None:
    where = "arr_delay_min > 60 OR dest = 'LAX' AND carrier LIKE '_A' OR gust_mph > 20"
    wanted = numbers_that_hold(replay.events, where)
    assert 100 < len(wanted) < 1_000
    command = [sys.executable, "-m", "lexicast.bench.demo", "--where", where, "--messages", str(MESSAGES)]
    ended = subprocess.run(
        [*command, "--rate", "1500", "--out", str(tmp_path), "--json", str(tmp_path / "told.json")],
        capture_output=True,
        text=True,
        timeout=120,
        # Ray's sockets need a shorter path than pytest's folders have.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path), "RAY_TMPDIR": "/tmp"},
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr
    told: dict[str, Any] = json.loads((tmp_path / "told.json").read_text())
    figures = told["figures"]
    assert told["problems"] == []
    assert figures["published"] == figures["events"] == len(replay.events)
    assert figures["wanted"] == len(wanted)
    assert figures["same"]
    for name in ("live_where", "live_all", "past_where", "past_all"):
        assert figures[f"received_{name}"] == (len(wanted) if name.endswith("where") else len(replay.events))
        assert figures[f"kept_{name}"] == len(wanted)
        assert [figures[f"{fault}_{name}"] for fault in ("missing", "wrong", "out_of_order")] == [0, 0, 0]
        assert figures[f"cpu_s_{name}"] > 0
    assert figures["link_bytes_live_where"] < 0.5 * figures["link_bytes_live_all"]
    assert figures["link_bytes_past_where"] < 0.5 * figures["link_bytes_past_all"]
    assert figures["seconds_past_where"] > 0
    assert 0 < figures["latency_p50_ms_live_where"] <= figures["latency_p99_ms_live_where"]
    assert figures["broker_us_a_publication"] > 0
    assert (tmp_path / "lexicast-demo-where.png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path / "lexicast-demo-where.png") in ended.stdout
    assert where in " ".join(ended.stdout.split())
    assert not list(tmp_path.glob("lexicast-demo-*/")), "its temporary folder is left"
