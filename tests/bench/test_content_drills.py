"""The failover driver's drills of content subscriptions: who is owed what, what is struck, what is told."""

from __future__ import annotations

import argparse
import signal
from io import StringIO
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lexicast.bench.failover.audit import TOPICS_A_PUBLISHER, Audit, Party, topic
from lexicast.bench.failover.brokers import Brokers
from lexicast.bench.failover.clusters import DrilledCluster
from lexicast.bench.failover.content.cast import CONTENT_CAST, CONTROL
from lexicast.bench.failover.content.cells_seen import CellsSeen
from lexicast.bench.failover.content.crowd import ConditionsCrowd, CrowdSession
from lexicast.bench.failover.content.hot_spots import CrowdBox, boxes_around
from lexicast.bench.failover.content.kinds import CONTENT_NAMES, MATCHER_PAUSE, TWO_KILLED
from lexicast.bench.failover.content.messages import CONDITIONS, TENTHS, ContentMessages, fields
from lexicast.bench.failover.content.spared import COUNTED, SparedRecords
from lexicast.bench.failover.content.telling import CONTENT_FIGURES, tell_content
from lexicast.bench.failover.driver import main, parse
from lexicast.bench.failover.figures import Drilled
from lexicast.bench.failover.kinds import KINDS
from lexicast.bench.failover.machines import Machine
from lexicast.bench.failover.mosquitto_client import MosquittoClient
from lexicast.bench.failover.overview import Overview
from lexicast.bench.failover.paho_client import PahoDrillClient
from lexicast.bench.report import DriverReport
from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.fields import FieldReader
from lexicast.cluster.content.parsed import predicate

MESSAGES = ContentMessages()
PUBLISHER = Party("paho-pub-1", "paho", 1)
WHERE = "part = 3"
WANTED = 3 * TOPICS_A_PUBLISHER
"""The first number that WHERE is true of."""


# -- who is owed what


@pytest.mark.parametrize("where", CONDITIONS)
def test_what_is_owed_is_what_the_condition_is_true_of(where: str) -> None:
    """Written down twice: as the subscriber says it, and in Python."""
    asked, owed = predicate(where), 0
    publishers = [party.name for party in (*CONTENT_CAST.pythons, *CONTENT_CAST.publishers)]
    for publisher in publishers:
        for number in range(600):
            payload = MESSAGES.payload(publisher, number)
            record = ContentRecord(topic(publisher, number).encode(), payload, FieldReader(asked.names))
            wanted = MESSAGES.wanted(where, publisher, number)
            assert asked.matches(record) is wanted, payload
            owed += wanted
    share = owed / (600 * len(publishers))
    assert 0.02 < share < 0.15 if where in TENTHS else share == 0.5


@pytest.mark.parametrize("turn", range(3))
def test_what_the_crowd_wants_is_what_its_conditions_are_true_of(turn: int) -> None:
    boxes = boxes_around(turn, 3, seed=1)
    assert boxes == boxes_around(turn, 3, seed=1)
    assert boxes != boxes_around(turn + 1, 3, seed=1)
    some = fields("a", 123)
    near = CrowdBox(some["part"] - 0.5, some["reading"]["celsius"] - 0.5, some["reading"]["bar"] - 0.01)
    assert near.holds(some)
    for box in [*boxes, near]:
        asked = predicate(box.where)
        for number in range(100, 200):
            record = ContentRecord(b"drill/a", MESSAGES.payload("a", number), FieldReader(asked.names))
            assert asked.matches(record) is box.holds(fields("a", number))


def test_each_subscriber_has_a_condition_of_its_own_and_one_has_none() -> None:
    every = [*CONTENT_CAST.pythons, *CONTENT_CAST.subscribers]
    assert sorted([party.where for party in every]) == sorted(["", *CONDITIONS])
    assert [party.name for party in every if not party.where] == [CONTROL]
    assert {party.make for party in every if party.where} == {"python", "paho", "aiomqtt", "mosquitto"}


@given(st.sampled_from(["python-0", "paho-pub-2"]), st.integers(0, 10**6))
def test_a_message_tells_whose_it_is_and_a_changed_one_is_none(publisher: str, number: int) -> None:
    payload = MESSAGES.payload(publisher, number)
    assert b"\n" not in payload
    assert MESSAGES.read(payload) == (publisher, number)
    assert MESSAGES.wanted("", publisher, number)
    for broken in (payload[:-1], payload.replace(b"celsius", b"kelvin_"), b"", b"[1]", b"Subscribed (mid: 1): 1"):
        assert MESSAGES.read(broken) is None


def test_lost_is_what_the_condition_is_true_of_and_unwanted_what_it_is_not() -> None:
    audit = Audit([PUBLISHER], [Party("all", "paho", 1), Party("some", "paho", 1, WHERE)], MESSAGES)
    for _ in range(WANTED + 1):
        number, *_ = audit.publish(PUBLISHER.name, 0.0)
        audit.acknowledged(PUBLISHER.name, number)
    assert audit.missing({PUBLISHER.name: 0})["some"] == [(PUBLISHER.name, WANTED)]
    assert audit.lost() == WANTED + 2
    audit.arrived("some", MESSAGES.payload(PUBLISHER.name, WANTED), 1.0)
    assert audit.lost() == WANTED + 1
    audit.arrived("some", MESSAGES.payload(PUBLISHER.name, 0), 1.0)
    assert audit.counts == {"unwanted": 1}
    audit.arrived("some", MESSAGES.payload("nobody", WANTED), 1.0)
    audit.arrived("some", b"{", 1.0)
    assert audit.counts == {"unwanted": 1, "unreadable": 2}


# -- clients


def test_mosquitto_sub_gives_its_condition_and_its_lines_are_read() -> None:
    audit = Audit([PUBLISHER], [Party("some", "mosquitto", 1, WHERE)], MESSAGES)
    for _ in range(WANTED + 1):
        _, _, payload = audit.publish(PUBLISHER.name, 0.0)
    client = MosquittoClient(Party("some", "mosquitto", 1, WHERE), audit, None, Brokers(["a"], 0, 1883))
    command = client.command()
    assert command[command.index("-D") + 1 : command.index("-D") + 4] == ["subscribe", "user-property", "where"]
    assert WHERE in command
    for line in (
        "Client some sending CONNECT",
        "Client some received CONNACK (0)",
        "Subscribed (mid: 1): 1",
        "Client some received PUBLISH (d0, q1, r0, m1, 'drill/a/0', ... (200 bytes))",
        payload.decode(),
    ):
        client.said(line)
    assert audit.delivered == 1
    assert audit.counts == {}


def test_paho_that_may_not_subscribe_is_not_there() -> None:
    audit = Audit([PUBLISHER], [Party("some", "paho", 1, "part =")], MESSAGES)
    client = PahoDrillClient(Party("some", "paho", 1, "part ="), audit, None, Brokers(["a"], 0, 1883))

    class Refused:
        is_failure = True

    client.subscribed([Refused()])
    assert not client.ready
    assert len(audit.notes) == 1
    Refused.is_failure = False
    client.subscribed([Refused()])
    assert client.ready


def test_the_crowd_may_get_what_it_wanted_before_its_hot_spot_moved_and_nothing_else() -> None:
    crowd = ConditionsCrowd(["a"], 1883, ["drill/a/0", "drill/a/1"], 5, seed=1)
    session = CrowdSession("some", Brokers(["a"], 0, 1883))
    some, other = fields("a", 123), fields("a", 7)
    near = CrowdBox(some["part"] - 0.5, some["reading"]["celsius"] - 0.5, some["reading"]["bar"] - 0.01)
    session.want({"drill/a/0": near})
    session.arrived("drill/a/0", MESSAGES.payload("a", 123))
    session.want({"drill/a/0": CrowdBox(50.0, 50.0, 50.0)})
    session.arrived("drill/a/0", MESSAGES.payload("a", 123))
    assert (session.delivered, session.unwanted) == (2, 0)
    assert not near.holds(other)
    session.arrived("drill/a/0", MESSAGES.payload("a", 7))
    assert (session.delivered, session.unwanted) == (3, 1)
    assert not session.has_all
    assert crowd.conditions == 6
    crowd.move(1)
    assert crowd.conditions == 6


# -- what is struck


class FakeMachine:
    """One whose processes have the same numbers inside and outside, 1 to 9."""

    def __init__(self, number: int) -> None:
        self.name, self.host = f"machine-{number}", f"10.0.{number}.2"

    def processes(self) -> dict[int, int]:
        """All of them."""
        return {pid: 100 * int(self.name[-1]) + pid for pid in range(1, 10)}


MACHINES = cast(list[Machine], [FakeMachine(number) for number in range(3)])


def whole() -> dict[str, Any]:
    """The status of a cluster that lacks nothing."""
    every = range(3)
    members = {f"matcher-{n}": {"addresses": [], "node": f"machine-{n}", "pid": n + 1} for n in every}
    return {
        "coordination": {"group_states": {"0": [1, "coordinator-0", ["a", "b"]]}, "members": {"matcher": members}},
        "coordinators": {f"coordinator-{n}": {"pid": n, "matching": {"matchers": 3}} for n in every},
        "brokers": {f"broker-{n}": {} for n in every},
        "sampling": {"sampling-0": {}},
        "matchers": {f"matcher-{n}": {"brokers": 3} for n in every},
    }


def test_a_cluster_is_whole_when_matchers_serve_and_are_linked_to_all() -> None:
    assert Overview(whole(), MACHINES).lacks(3, 3) == ""
    told = whole()
    told["coordinators"]["coordinator-1"]["matching"]["matchers"] = 2
    told["matchers"]["matcher-2"]["brokers"] = 2
    assert Overview(told, MACHINES).lacks(3, 3) == "matchers' links to or from matcher-2, coordinator-1"
    assert Overview(told, MACHINES).lacks(3) == ""
    told["coordinators"]["coordinator-1"]["matching"]["overlay"] = {"entries": 0}
    told["matchers"]["matcher-2"]["brokers"] = 3
    assert Overview(told, MACHINES).lacks(3, 3) == "matchers' links to or from coordinator-1"
    told["coordinators"]["coordinator-1"]["matching"]["overlay"] = {"entries": 2}
    assert Overview(told, MACHINES).lacks(3, 3) == ""
    del told["matchers"]["matcher-0"]
    assert Overview(told, MACHINES).lacks(3, 3) == "matchers"
    told["matchers"]["matcher-0"] = {"error": "is not there"}
    assert Overview(told, MACHINES).lacks(3, 3) == "matcher-0"
    told = whole()
    told["coordination"]["group_states"]["1"] = [1, "coordinator-0", ["a"]]
    assert Overview(told, MACHINES).lacks(3, 3) == "1 groups' second copy"


def test_matchers_are_found_by_their_nodes_and_another_one_dies_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append((pid, number)))
    seen = Overview(whole(), MACHINES)
    assert seen.on("matcher", MACHINES[1]) == ["matcher-1"]
    struck = TWO_KILLED.strike(cast(DrilledCluster, None), seen, 2)
    assert struck.machine is MACHINES[2]
    assert struck.end is None
    assert sent == [(203, signal.SIGKILL), (1, signal.SIGKILL)]
    sent.clear()
    struck = MATCHER_PAUSE.strike(cast(DrilledCluster, None), seen, 1)
    assert struck.end is not None
    struck.end()
    assert sent == [(102, signal.SIGSTOP), (102, signal.SIGCONT)]


def test_the_scenario_has_kinds_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    content = parse(["--scenario", "content"])
    assert content.kinds == list(CONTENT_NAMES)
    assert content.drills == 24
    assert parse(["--scenario", "content", "--quick"]).drills < 5
    assert parse(["--scenario", "content", "--kinds", "matcher,node"]).kinds == [
        "matcher_kill",
        "matcher_pause",
        "matchers_kill",
        "node_kill",
    ]
    assert set(parse([]).kinds) == set(KINDS)
    for arguments in (["--kinds", "matcher_kill"], ["--scenario", "content", "--kinds", "disk_full"]):
        with pytest.raises(SystemExit):
            parse(arguments)
    assert "none that is drilled here" in capsys.readouterr().err


# -- what is told


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), max_size=5))
def test_what_was_spared_is_summed_up_over_processes(processes: list[list[int]]) -> None:
    """Of each process the counts at each look, grown by so much."""
    spared, expected, routed = SparedRecords(), 0, 0
    for pid, grown in enumerate(processes):
        count = 0
        for more in grown:
            count += more
            matching: dict[str, Any] = dict.fromkeys(COUNTED, count) | {"withheld_records": 2 * count}
            matching["overlay"] = {"routed": 3 * count, "lost": 0} if pid % 2 else None
            spared.looked({"coordinator-0": {"pid": pid, "matching": matching}, "coordinator-1": {"error": "away"}})
        expected += count
        routed += 3 * count * (pid % 2)
    assert spared.totals["given_records"] == expected
    assert spared.totals["overlay_routed"] == routed
    share = spared.withheld_share()
    assert (share is None) if not expected else share == pytest.approx(2 / 3)


def test_of_cells_the_most_is_told() -> None:
    seen = CellsSeen()
    seen.looked({})
    for version, cells, split in ((1, 0, 0), (3, 64, 0), (4, 65, 1), (900, 27, 0)):
        seen.looked({"version": version, "cells": cells, "split": split, "with_more_copies": 2 * split})
    assert (seen.cells, seen.split, seen.copied, seen.maps) == (65, 1, 2, 3)


def told_report(spared: SparedRecords) -> tuple[DriverReport, int]:
    """A report of one drill, and its exit code."""
    options = argparse.Namespace(json=None, quick=True, require_peers=False, targets="lexicast")
    report = DriverReport("failover", options, Console(file=StringIO(), width=120))
    drilled = [Drilled("matcher_kill", took_s, (), "", 0.02, 0.05) for took_s in (0.1, 0.2, 0.15)]
    tell_content(report, Audit([PUBLISHER], [Party("some", "paho", 1, WHERE)], MESSAGES), drilled, spared, CellsSeen())
    return report, report.finish()


def test_drills_in_which_nothing_was_withheld_have_failed() -> None:
    spared = SparedRecords()
    report, code = told_report(spared)
    assert code == 1
    assert report.figures["withheld_share"] is None
    counted = {"given_records": 1, "withheld_records": 3, "asked_records": 4, "unanswered_parts": 0}
    spared.looked({"coordinator-0": {"pid": 1, "matching": counted}})
    report, code = told_report(spared)
    assert code == 0
    assert report.figures["withheld_share"] == 0.75
    assert report.figures["matcher_death_ms"] == 200.0
    assert report.figures["matcher_death_p50_ms"] == 150.0
    assert report.figures["matcher_death_at_once_ms"] == 50.0
    assert report.figures["content_lost"] == 0
    assert set(CONTENT_FIGURES) <= set(report.figures)


def test_where_no_machines_can_be_made_the_figures_are_null(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["--scenario", "content", "--quick"]) == 0
    assert "matcher_death_ms = null" in capsys.readouterr().out
