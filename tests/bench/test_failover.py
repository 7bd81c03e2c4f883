"""The failover driver's audit, its figures, its clients' lists, and its options. (Drills: tests/stories.)"""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.bench.failover.audit import TOPICS_A_PUBLISHER, Audit, Party, topic
from lexicast.bench.failover.brokers import Brokers, DrillPace
from lexicast.bench.failover.drills import planned
from lexicast.bench.failover.driver import main, parse
from lexicast.bench.failover.figures import Spell, percentile
from lexicast.bench.failover.kinds import KINDS
from lexicast.bench.failover.mosquitto_client import SILENCE_S, MosquittoClient
from lexicast.bench.failover.overview import Overview
from lexicast.bench.failover.paho_client import PahoDrillClient

PYTHON, PAHO_1, PAHO_2 = Party("python-1", "python", 1), Party("paho-pub-1", "paho", 1), Party("paho-pub-2", "paho", 2)
ALL = [PYTHON, PAHO_1, PAHO_2]
SUBSCRIBERS = [Party("python-s", "python", 1), Party("sub-1", "paho", 1), Party("sub-2", "paho", 2)]


def published(count: int = 1) -> Audit:
    """An audit of so many publications of each."""
    audit = Audit(ALL, SUBSCRIBERS)
    for party in ALL:
        for _ in range(count):
            audit.publish(party.name, 0.0)
    return audit


def test_what_was_acknowledged_and_never_arrived_is_lost_to_each_subscriber() -> None:
    audit = published(2)
    audit.acknowledged("python-1", 0)
    audit.acknowledged("paho-pub-1", 1)
    assert audit.lost() == 6
    audit.arrived("sub-1", b"python-1 0", 1.0)
    assert audit.lost() == 5
    assert audit.missing({"python-1": 1, "paho-pub-1": 0, "paho-pub-2": 0})["sub-1"] == [("paho-pub-1", 1)]
    assert audit.unanswered("paho-pub-1") == [0]
    audit.refused("paho-pub-1", 0)
    assert audit.unanswered("paho-pub-1") == []


def test_first_deliveries_of_a_topic_out_of_order_are_disorder_and_repeats_are_not() -> None:
    audit = published(2 * TOPICS_A_PUBLISHER)
    for number in (TOPICS_A_PUBLISHER, 1, 0):
        audit.arrived("sub-1", b"paho-pub-1 %d" % number, 1.0)
    assert topic("paho-pub-1", 0) == topic("paho-pub-1", TOPICS_A_PUBLISHER)
    assert audit.counts == {"disorder": 1}
    audit.arrived("sub-1", b"paho-pub-1 0", 1.0, dup=True)
    assert audit.counts == {"disorder": 1, "repeated": 1}


@pytest.mark.parametrize(
    ("publisher", "subscriber", "counted"),
    [
        ("python-1", "python-s", "doubled"),
        ("paho-pub-2", "python-s", "doubled"),
        ("paho-pub-2", "sub-2", "doubled"),
        ("paho-pub-1", "python-s", "repeated"),
        ("paho-pub-2", "sub-1", "repeated"),
        ("python-1", "sub-2", "repeated"),
    ],
)
def test_what_may_come_again_and_what_must_not(publisher: str, subscriber: str, counted: str) -> None:
    audit = published()
    audit.resent(publisher, [0])
    for _ in range(2):
        audit.arrived(subscriber, f"{publisher} 0".encode(), 1.0)
    assert audit.counts == {counted: 1}


def test_what_comes_again_for_no_reason_is_unexplained_and_a_session_that_went_on_is_one() -> None:
    audit = published()
    audit.arrived("sub-1", b"paho-pub-1 0", 1.0)
    audit.connected("sub-1")
    audit.arrived("sub-1", b"paho-pub-1 0", 2.0)
    assert audit.counts == {"repeated": 1}
    audit.arrived("sub-2", b"paho-pub-1 0", 1.0)
    audit.arrived("sub-2", b"paho-pub-1 0", 2.0)
    assert audit.counts == {"repeated": 1, "unexplained": 1}
    audit.arrived("sub-2", b"paho-pub-2 0", 1.0)
    audit.connected("sub-2")
    audit.arrived("sub-2", b"paho-pub-2 0", 2.0)
    assert audit.counts == {"repeated": 1, "unexplained": 1, "repeated_qos2": 1}


def test_what_a_client_publishes_anew_against_the_protocol_is_no_double() -> None:
    audit = published()
    audit.arrived("python-s", b"paho-pub-2 0", 1.0)
    audit.anew("paho-pub-2", 0)
    audit.arrived("python-s", b"paho-pub-2 0", 2.0)
    assert audit.counts == {"sent_anew": 1, "repeated": 1}


def test_paho_that_publishes_after_its_pubrel_is_noticed() -> None:
    audit = published()
    client = PahoDrillClient(PAHO_2, audit, DrillPace(1.0), Brokers(["a"], 0, 1883))
    client.sent(1, 0)
    for text in (
        "Sending PUBLISH (d0, q2, r0, m1), 'b'drill/paho-pub-2/0'', ... (12 bytes)",
        "Sending PUBLISH (d1, q2, r0, m1), 'b'drill/paho-pub-2/0'', ... (12 bytes)",
        "Sending PUBREL (Mid: 1)",
    ):
        client.logged(text)
    assert audit.counts == {}
    client.logged("Sending PUBLISH (d0, q2, r0, m1), 'b'drill/paho-pub-2/0'', ... (12 bytes)")
    assert audit.counts == {"sent_anew": 1}


def test_delays_are_those_between_the_named_and_a_return_is_counted_by_what_was_published_later() -> None:
    audit = published(1)
    audit.publish("python-1", 5.0)
    audit.arrived("sub-1", b"python-1 0", 6.0)
    audit.arrived("sub-1", b"python-1 1", 7.0)
    audit.arrived("sub-2", b"python-1 1", 9.0)
    since, until = dict.fromkeys([party.name for party in ALL], 0), audit.marks()
    assert [each.took_s for each in audit.delays(since, until, ["python-1"], ["sub-1"])] == [6.0, 2.0]
    assert audit.first_after("sub-1", 4.0) == 7.0
    assert audit.first_after("sub-1", 5.5) is None


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(1, 100))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(values: list[float], percent: int) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum([value <= found for value in values]) * 100 >= percent * len(values)
    assert sum([value < found for value in values]) * 100 < percent * len(values)


def test_of_nothing_there_are_no_percentiles() -> None:
    assert percentile([], 95) is None
    assert Spell("before").row() == [None] * 7


def test_a_client_goes_round_its_list_and_home() -> None:
    brokers = Brokers(["a", "b", "c"], 1, 1883)
    seen = []
    for _ in range(4):
        seen.append(brokers.host)
        brokers.failed()
    assert seen == ["b", "c", "a", "b"]
    brokers.go_home()
    assert brokers.host == "b"


def test_whole_is_a_cluster_whose_consoles_serve_where_it_has_any() -> None:
    status: dict[str, Any] = {
        "coordination": {"group_states": {"0": [1, "c", ["c", "d"]]}},
        "coordinators": {"c": {}, "d": {}},
        "brokers": {"b": {}, "e": {}},
        "sampling": {"s": {}},
        "consoles": {"n": {}, "m": {"error": "no answer"}},
    }
    assert Overview(status, ()).lacks(2) == "m"
    status["consoles"] = {"n": {}}
    assert Overview(status, ()).lacks(2) == ""
    assert Overview(status, ()).lacks(2, consoles=2) == "consoles"


def test_publishers_keep_their_pace_and_do_not_make_up_for_what_they_missed() -> None:
    pace = DrillPace(10.0)
    assert not pace.due("a", 0.0)
    pace.on = True
    assert [pace.due("a", now_s) for now_s in (1.0, 1.05, 1.11, 5.0, 5.05, 5.11)] == [
        True,
        False,
        True,
        True,
        False,
        True,
    ]
    assert pace.due("b", 5.11)


def test_mosquitto_is_understood_by_what_it_says() -> None:
    audit, brokers = published(1), Brokers(["a"], 0, 1883)
    client = MosquittoClient(SUBSCRIBERS[1], audit, None, brokers)
    for line in (
        "Client sub-1 sending CONNECT",
        "Client sub-1 received CONNACK (0)",
        "Client sub-1 received SUBACK",
        "Subscribed (mid: 1): 1",
        "Client sub-1 received PUBLISH (d0, q1, r0, m1, 'drill/a/0', ... (8 bytes))",
        "paho-pub-1 0",
        "Client sub-1 received PUBLISH (d1, q1, r0, m1, 'drill/a/0', ... (8 bytes))",
        "paho-pub-1 0",
    ):
        client.said(line)
    assert client.at == "a"
    assert audit.counts == {"repeated": 1}
    assert not client.is_silent(time.monotonic() + SILENCE_S - 1)
    assert client.is_silent(time.monotonic() + SILENCE_S)


def test_quick_is_fewer_drills_and_every_kind_comes_before_any_comes_again() -> None:
    full, quick = parse([]), parse(["--quick"])
    assert quick.drills < full.drills
    assert full.drills >= 50
    names = planned(full)
    assert set(names[: len(KINDS)]) == set(KINDS)
    assert names == planned(parse([]))
    assert names != planned(parse(["--seed", "2"]))
    assert set(planned(parse(["--kinds", "cut,node_off", "--drills", "8"]))) == {
        "cut_both",
        "cut_in",
        "cut_out",
        "node_off",
    }


def test_a_kind_that_is_none_is_an_error_that_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--kinds", "earthquake"])
    assert "earthquake" in capsys.readouterr().err


def test_where_no_machines_can_be_made_that_is_said_and_the_figures_are_null(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["--quick"]) == 0
    assert main(["--quick", "--require-peers"]) == 3
    told = capsys.readouterr().out
    assert "namespaces need root" in told
    assert "lost = null" in told
