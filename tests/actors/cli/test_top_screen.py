"""What `lexicast top` shows: the right things first, and never more than fits."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from lexicast.actors.cli.top.screen import ROWS_SHOWN, View, screen
from lexicast.actors.cli.top.sections import ORDERS, sections
from lexicast.actors.status.lagging_clients import LOOKED_AT_MAX, LaggingClient, furthest_behind
from lexicast.actors.status.leaders import leader_reports

TIME_S = 1_800_000_000.0
FIRST = View()


def broker(number: int, **more: Any) -> dict[str, Any]:
    """A row of `cluster_overview.overview`: the higher the number, the more clients and the fewer messages."""
    rates = {
        "published_per_s": 100 - number,
        "delivered_per_s": 0,
        "received_bytes_per_s": 5_000,
        "sent_bytes_per_s": 0,
    }
    rates["sent_bytes_per_s"] = 1_000_000 * (number == 1)
    serves = {"connections": number, "python_clients": 0, "filters": 0, "sessions": 0, "catching_up": 0, **rates}
    return {"name": f"broker-{number}", "kind": "broker", "state": "serves", "node": "n", **(more or serves)}


def figures(brokers: int = 3, topics: int = 40, **more: Any) -> dict[str, Any]:
    """What `TopFigures.now` gives."""
    coordinators = [
        {"name": f"coordinator-{n}", "kind": "coordinator", "state": "serves", "stored_per_s": 10 * n, "used_bytes": 1}
        for n in range(2)
    ]
    led = {"groups": 32, "epoch_min": 1, "epoch_max": 3, "copies_min": 2, "copies_max": 2, "behind_records": 7}
    family = {"messages": 10, "raw_bytes": 2_048, "sent_bytes": 512, "dictionary_bytes": 512, "codec": "fields-1"}
    audience = {"aware_publishers": 0, "aware_subscribers": 1}
    client = {"kind": "MQTT 5", "broker": "broker-0", "since_us": int((TIME_S - 90) * 1e6)}
    return {
        "time": TIME_S,
        "cluster": {"id": "c" * 32, "started": TIME_S - 7_200, "groups": 64},
        "warnings": [],
        "warnings_left_out": 0,
        "rates": {
            "stored_per_s": 1_234.0,
            "delivered_per_s": 5.0,
            "received_bytes_per_s": 2_048,
            "sent_bytes_per_s": 0,
        },
        "counts": {"connections": 3, "python_clients": 1, "topics": 5},
        "nodes": [
            {"name": f"node-{n}", "state": "serves", "location": "", "leads": 1, "copies": 2, "clients": n}
            for n in range(2)
        ],
        "actors": [*[broker(number) for number in range(brokers)], *coordinators],
        "leaders": [{"name": f"coordinator-{n}", **led} for n in range(2)],
        "topics": [{"name": f"flights/{n}", "per_s": 100.0 / (n + 1)} for n in range(topics)],
        "families": [{"name": "flights/+", **family, **audience}],
        "lagging": [{"id": "slow", "behind_records": 4_321, **client}],
        "missing": [],
        **more,
    }


def shown(now: dict[str, Any], view: View = FIRST, width: int = 80, height: int | None = 24) -> list[str]:
    return [line.plain for line in screen(now, view, width, height)]


def first_of(lines: list[str], title: str) -> str:
    """The first row of the table that begins so."""
    return next(lines[at + 1] for at, line in enumerate(lines) if title in line)


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


@given(
    st.integers(1, 220),
    st.integers(1, 70),
    st.integers(0, 40),
    st.lists(names, max_size=8),
    st.lists(names, max_size=5),
    st.sampled_from(ORDERS),
    st.integers(0, 9),
)
def test_it_fits_whatever_there_is(
    width: int, height: int, brokers: int, topics: list[str], warned: list[str], order: str, alone: int
) -> None:
    rows = [{"name": name, "per_s": 1.0} for name in topics]
    now = figures(brokers, warnings=warned, warnings_left_out=len(warned)) | {"topics": rows}
    lines = shown(now, View(order, alone), width, height)
    assert len(lines) == height
    assert all(cell_len(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)


def test_a_terminal_of_80_by_24_has_a_bit_of_everything() -> None:
    lines = shown(figures())
    assert lines[0].startswith("lexicast cccccccc, 2 nodes, 64 topic groups, up 2 h 0 min ")
    assert lines[1] == "clients 4  stored 1,234/s  delivered 5/s  in 2.0 KiB/s  out 0 B/s"
    assert lines[2] == "Nothing is wrong."
    for number, title in enumerate(("nodes", "brokers", "leaders", "busiest topics", "families", "behind"), 1):
        assert any(line.startswith(f"{number} {title}") for line in lines), title
    assert "q quit" in lines[-1]
    assert first_of(lines, "5 families").split() == ["flights/+", "10", "2.0", "KiB", "1.0", "KiB", "50.0%", "fields-1"]
    assert first_of(lines, "6 behind").split() == ["slow", "MQTT", "5", "broker-0", "1", "min", "4,321"]
    assert first_of(lines, "3 leaders").split() == ["coordinator-1", "32", "1-3", "2", "7", "10", "1", "B"]


def test_what_is_wrong_comes_first() -> None:
    silent = broker(9, error="no answer", fate="") | {"state": "does not answer"}
    now = figures(warnings=["broker-9 has not served"] * 20, warnings_left_out=5)
    now["actors"].append(silent)
    lines = shown(now)
    assert lines[2] == "! broker-9 has not served"
    assert lines[8] == "! and 19 more (lexicast status)"
    assert first_of(lines, "2 brokers") == "broker-9: does not answer"
    assert [line.plain for line in screen(now, View(), 80, 24, "no broker answers")][2] == "! no broker answers"
    assert "as of " in screen(now, View(), 80, 24, "no broker answers")[0].plain
    assert "! and 5 more" in shown(now, height=None)
    assert "who is behind at broker-9 is not known" in "".join(shown(figures(missing=["broker-9"])))


@pytest.mark.parametrize(("key", "first"), [("n", "broker-0"), ("c", "broker-2"), ("m", "broker-0"), ("b", "broker-1")])
def test_keys_sort(key: str, first: str) -> None:
    view = View().pressed(key)
    assert view is not None
    lines = shown(figures(), view)
    assert first_of(lines, "2 brokers").startswith(first)
    assert f"[{key} " in lines[-1]


def test_keys_show_one_table_and_end_it() -> None:
    assert View().pressed("q") is None
    assert View().pressed("x") == View()
    assert View().pressed("") == View()
    view = View().pressed("4")
    assert view is not None
    lines = shown(figures(), view)
    assert sum(line.startswith("flights/") for line in lines) == 19
    assert not any(line.startswith("broker-") for line in lines)
    assert view.pressed("0") == View()
    orders = [View()]
    for _ in ORDERS:
        orders.append(orders[-1].pressed("s") or View())
    assert {each.order for each in orders} == set(ORDERS)


def test_without_a_screen_there_is_more_of_it_and_no_keys() -> None:
    lines = shown(figures(), height=None)
    assert sum(line.startswith("flights/") for line in lines) == ROWS_SHOWN + 1  # and a family
    assert "q quit" not in "".join(lines)


def test_what_is_not_there_has_no_table() -> None:
    now = figures(nodes=[], families=[], lagging=[]) | {"topics": None}
    assert [table.columns[0] for table in sections(now, "name")] == ["brokers", "leaders"]


def test_leaders_are_counted_by_what_they_lead() -> None:
    states = {"0": (3, "a", ("a", "b")), "1": (5, "a", ("a",)), "2": (1, "", ())}
    followers = {"b": {"lag": 4}, "c": {"lag": 9}}
    now = {"coordination": {"group_states": states}, "coordinators": {"a": {"copies": {"followers": followers}}}}
    assert {name: tuple(led) for name, led in leader_reports(now).items()} == {
        "": (1, 1, 1, 0, 0, None),
        "a": (2, 3, 5, 1, 2, 9),
    }


def test_who_is_furthest_behind_is_found_with_a_bounded_look() -> None:
    clients = [LaggingClient(partial(dict, id=n), [{0: 1_000 - n}, {1: 5, 9: 5}]) for n in range(3)]
    assert furthest_behind(clients, {0: 1_000, 1: 10}, 2) == [
        {"id": 2, "behind_records": 7},
        {"id": 1, "behind_records": 6},
    ]

    def endless() -> Any:
        for number in range(LOOKED_AT_MAX):
            yield LaggingClient(partial(dict, id=number), [{0: 0}])
        raise AssertionError("looked at more")

    assert len(furthest_behind(endless(), {0: 1}, 10)) == 10
