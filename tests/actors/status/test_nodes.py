"""Nodes in the report: whether each serves, is being drained, or is away."""

from __future__ import annotations

from typing import Any

import pytest

from lexicast.actors.status.nodes import AWAY, DRAINED, DRAINING, SERVES, node_reports
from lexicast.actors.status.report import NODE_GONE, warnings

GONE = {"error": "no such actor", "fate": NODE_GONE, "since_us": 0}


def snapshot(b_leaving: bool = False, b_copies: int = 2, b_clients: int = 0, b_gone: str = "") -> dict[str, Any]:
    """A cluster of nodes a and b; `b_gone`: what does not answer there ("c" the coordinator, "b" the broker)."""
    nodes = {
        name: {
            "leaving": name == "b" and b_leaving,
            "location": "rack",
            "coordinators": [f"coordinator-{i}"],
            "brokers": [f"broker-{i}"],
            "samplers": [],
            "serving": [f"coordinator-{i}", f"broker-{i}"],
            "leads": 1 if name == "a" else 0,
            "copies": 2 if name == "a" else b_copies,
        }
        for i, name in enumerate("ab")
    }
    lost = ["coordinator-1"] if "c" in b_gone else []
    broker = GONE if "b" in b_gone else {"mqtt": {"connections": b_clients}, "clients": 0}
    return {
        "time": 0.0,
        "coordination": {"nodes": nodes, "lost": lost, "group_states": {}},
        "coordinators": {"coordinator-0": {}, "coordinator-1": GONE if lost else {}},
        "brokers": {"broker-0": {"mqtt": {"connections": 1}, "clients": 2}, "broker-1": broker},
        "sampling": {},
    }


@pytest.mark.parametrize(
    ("now", "state"),
    [
        (snapshot(), SERVES),
        (snapshot(b_gone="c"), SERVES),
        (snapshot(b_gone="cb"), AWAY),
        (snapshot(b_leaving=True), DRAINING),
        (snapshot(b_leaving=True, b_copies=0, b_clients=1), DRAINING),
        (snapshot(b_leaving=True, b_copies=0), DRAINED),
        (snapshot(b_leaving=True, b_copies=0, b_gone="cb"), AWAY),
    ],
)
def test_a_node_serves_is_drained_or_away(now: dict[str, Any], state: str) -> None:
    reports = node_reports(now)
    assert reports["a"] == (SERVES, "rack", ("coordinator-0",), ("broker-0",), 1, 2, 3)
    assert reports["b"].state == state


def test_a_node_that_is_away_is_one_warning_that_says_what_to_do() -> None:
    (warning,) = warnings(snapshot(b_gone="cb"))
    assert warning.startswith("node b is away (coordinator-1, broker-1)")
    assert warning.endswith("`lexicast node remove b`")


def test_an_actor_that_is_away_alone_is_told_by_its_name() -> None:
    (warning,) = warnings(snapshot(b_gone="b"))
    assert warning.startswith("broker-1 has not served")


def test_of_a_cluster_of_which_nothing_answers_no_node_is_said_to_be_the_one_that_is_away() -> None:
    now = snapshot(b_gone="cb")
    now["coordinators"]["coordinator-0"] = now["brokers"]["broker-0"] = GONE
    assert len(list(warnings(now))) == 4
