"""What `lexicast status` prints of what the cluster tells."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from lexicast.actors.cli.status import render
from lexicast.actors.status.report import GONE, size, span, warnings


def told(time: float, stored: int, **coordinator: Any) -> dict[str, Any]:
    """A snapshot of two coordinators, one of them gone."""
    said = {
        "cluster_id": "c" * 32,
        "groups": 1,
        "pid": 1,
        "started_us": 0,
        "group_states": {0: [3, "coordinator-0", ["coordinator-0"]]},
        "members": {"coordinator": {}, "broker": {}, "sampler": {}},
    }
    gone = {"error": "no such actor", "fate": GONE, "since_us": 1}
    rates = {"stored_per_s": float(stored)}
    coordinators = {"coordinator-0": {"rates": rates, **coordinator}, "coordinator-1": gone}
    now = {"time": time, "coordination": said, "coordinators": coordinators, "brokers": {}, "sampling": {}}
    return {**now, "rates": {**rates, "delivered_per_s": 0.0}, "warnings": list(warnings(now))}


def shown(now: dict[str, Any], width: int = 140) -> str:
    console = Console(width=width, record=True, file=StringIO())
    console.print(render(now))
    return console.export_text()


def test_status_shows_who_stands_in_for_each_broker() -> None:
    now = told(0, 0)
    assert "backups" not in shown(now)
    now["coordination"]["backups"] = {"broker-0": ["", "broker-1"], "broker-1": ["broker-2", ""]}
    rows = [line.split() for line in shown(now).splitlines()]
    assert ["broker-0", "broker-1"] in rows
    assert ["broker-1", "broker-2"] in rows


def test_status_shows_each_bridge_and_warns_of_one_that_is_away() -> None:
    counts = dict.fromkeys(("looped_out", "looped_in", "retried_out", "retried_in", "refused_out", "refused_in"), 0)
    bridge = {"address": "mqtt://broker.example", "connected": True, "since_us": 1, "last_error": "", **counts}
    bridge |= {"sent": 12_345, "received": 678, "errors": 0, "lag_records": 90, "echoes_forgotten": 0}
    bridge |= {"refused_waiting": 0, "filters_refused": 0}
    away = {**bridge, "connected": False, "last_error": "it cannot be reached", "refused_out": 3}
    now = told(100.0, 0)
    assert "bridges" not in shown(now)
    refused = {**bridge, "refused_waiting": 7, "filters_refused": 2, "last_error": "0x83"}
    now["bridges"] = {
        "bridge-a": bridge,
        "bridge-b": away,
        "bridge-d": refused,
        "bridge-c": {"error": "starting", "fate": GONE},
    }
    text = shown(now)
    rows = [line.split() for line in text.splitlines()]
    (row,) = [row for row in rows if row[:2] == ["bridge-a", "mqtt://broker.example"]]
    assert row[2:] == ["connected", "1", "min", "90", "12,345", "678", "0", "0", "0"]
    assert any(row[:3] == ["bridge-b", "mqtt://broker.example", "away"] for row in rows)
    lines = [line for line in warnings(now) if line.startswith("bridge-b")]
    assert "is not connected to mqtt://broker.example for 1 min (it cannot be reached)" in lines[0]
    assert "3 publications were refused for good" in lines[1]
    lines = [line for line in warnings(now) if line.startswith("bridge-d")]
    assert "refuses 7 publications, which are sent again until it takes them" in lines[0]
    assert "does not let it subscribe to 2 of its filters (last: 0x83)" in lines[1]


def test_status_fits_a_terminal_of_80_columns() -> None:
    store = {
        "topics": 1_234_567,
        "sessions": 18_000,
        "full": False,
        "used_bytes": 12_345_678_901,
        "free_bytes": 5 << 40,
    }
    now = told(5e5, 0, uncommitted_bytes=63 << 20, store={**store, "oldest_us": 3})
    family = {"messages": 1_234_567, "raw_bytes": 345_678_901, "sent_bytes": 45_678_901, "dictionary_bytes": 145_678}
    now["sampling"] = {"sampling-0": {"families": {"flights/EWR/+": {**family, "codec": "deflate-9"}}}}
    counts = {"clients": 1_000, "filters": 100_000, "catching_up": 12}
    now["brokers"] = {"broker-0": {**counts, "mqtt": {"connections": 18_000, "sessions": 18_000}}}
    rows = {words[0]: words for line in shown(now, 80).splitlines() if (words := line.split())}
    assert rows["coordinator-0"] == ["coordinator-0", "0", "63.0", "MiB", "11.5", "GiB", "5.0", "TiB", "5", "days"]
    assert rows["broker-0"] == ["broker-0", "18,000", "18,000", "1,000", "100,000", "0", "0", "12", "0", "B"]
    words = ["1,234,567", "329.7", "MiB", "43.7", "MiB", "286.0", "MiB", "86.7%", "deflate-9"]
    assert rows["flights/EWR/+"] == ["flights/EWR/+", *words]


def test_status_tells_what_is_wrong_first() -> None:
    lines = shown(told(61, 0)).splitlines()
    assert lines[1].startswith("! coordinator-1 has not served for 1 min (no such actor); Ray does not start it again")
    assert any(line.split()[:2] == ["coordinator-1", "does"] for line in lines[2:])


@pytest.mark.parametrize(
    ("coordinator", "words"),
    [
        ({"store": {"full": True, "free_bytes": 5 << 20}}, "publishing is refused, 5.0 MiB are left"),
        ({"failure": "EIO"}, "gave up|given up after an I/O error \\(EIO\\)"),
        ({"full_in_s": 5_400.0}, "its store is full in 1 h 30 min"),
        ({"uncommitted_bytes": 40 << 20}, "40.0 MiB wait for the disk"),
        ({"brokers": {"broker-7": {"groups_long_behind": 3}}}, "broker-7 has been behind coordinator-0 in 3 topic"),
    ],
)
def test_warnings_are_sentences(coordinator: dict[str, Any], words: str) -> None:
    assert any(re.search(words, warning) for warning in told(0, 0, **coordinator)["warnings"])


@pytest.mark.parametrize(
    ("states", "lost", "words"),
    [
        ([(7, "a", "ab"), (7, "a", "a")], "", ["1 topic groups have one copy of 2 (others are catching up)"]),
        ([(7, "a", "ab"), (7, "a", "a")], "b", ["2 topic groups have one copy of 2 (b cannot be reached)"]),
        ([(7, "a", "a"), (7, "b", "ab")], "a", ["1 topic groups wait for a,", "1 topic groups have one copy of 2 (a"]),
        ([(7, "a", "ab"), (7, "b", "ab")], "", []),
    ],
)
def test_what_has_too_few_copies_is_told(states: list[tuple[int, str, str]], lost: str, words: list[str]) -> None:
    now = told(0, 0)
    said = {
        "lost": list(lost),
        "copies": 2,
        "group_states": {g: [e, who, list(s)] for g, (e, who, s) in enumerate(states)},
    }
    now["coordinators"] = {}
    found = list(warnings({**now, "coordination": {**now["coordination"], **said}}))
    assert len(found) == len(words)
    assert all(warning.startswith(each) for warning, each in zip(found, words, strict=True))


def test_times_are_for_people() -> None:
    assert [span(s) for s in (0, 59, 60, 5_000, 3 * 86_400)] == ["0 s", "59 s", "1 min", "1 h 23 min", "3 days"]


def test_sizes_are_for_people() -> None:
    assert [size(n) for n in (0, 1023, 2048, 12_345_678, 5 << 40)] == [
        "0 B",
        "1,023 B",
        "2.0 KiB",
        "11.8 MiB",
        "5.0 TiB",
    ]


def test_status_shows_what_conditions_cost() -> None:
    now = told(0, 0)
    content = {"subscribers": 2, "predicates": 0, "residual": 0, "matched_records": 10, "skipped_records": 1_990}
    now["brokers"]["broker-0"] = {"content": {**content, "us_a_record": 3.25, "unread_payloads": {"malformed": 4}}}
    assert "content subscriptions" not in shown(now)
    now["brokers"]["broker-0"]["content"] |= {"predicates": 7, "residual": 1}
    rows = [line.split() for line in shown(now).splitlines()]
    assert ["broker-0", "2", "7", "1", "2,000", "10", "3.2", "us", "4"] in rows


def test_status_shows_what_links_got_paid_and_saved() -> None:
    now = told(0, 0)
    links = {"links": 0, "with_dictionary": 0, "dictionaries": 0, "paid_bytes": 0, "saved_bytes": 0, "worst_bytes": 0}
    now["brokers"]["broker-0"] = {"links": links}
    assert "clients that know dictionaries" not in shown(now)
    links |= {"links": 1_200, "with_dictionary": 7, "dictionaries": 9, "paid_bytes": 9_216, "saved_bytes": 3 << 20}
    links["worst_bytes"] = -512
    rows = [line.split() for line in shown(now).splitlines()]
    assert ["broker-0", "1,200", "7", "9", "9.0", "KiB", "3.0", "MiB", "-512", "B"] in rows


def test_status_shows_the_overlay_that_matchers_form() -> None:
    now = told(0, 0)
    matcher: dict[str, Any] = {"brokers": 2, "overlay": None}
    now["matchers"] = {"matcher-0": matcher}
    now["brokers"]["broker-0"] = {"overlay": {"entries": 0, "circuits": 0}}
    assert "overlay" not in shown(now)
    counts = {"neighbours": 51, "neighbour_links": 49, "circuits": 7, "routed": 12_345, "relayed": 999, "lost": 4}
    matcher["overlay"] = counts | {"hops_mean": 1.625, "hops_max": 3}
    now["brokers"]["broker-0"]["overlay"] = {"entries": 3, "circuits": 297}
    routed = {"entries": 2, "routed": 777, "hops_mean": 1.5, "hops_max": 2, "lost": 6}
    now["coordinators"] = {"coordinator-0": {"matching": {"overlay": routed}}}
    text = shown(now)
    assert "overlay" in text
    for number in ("51", "49", "12,345", "1.62", "999", "297", "777", "1.50"):
        assert number in text


def test_status_shows_what_matchers_spare() -> None:
    now = told(0, 0)
    assert "matchers" not in shown(now)
    cells = {"cells": 96, "columns": ["delay", "carrier:text"], "split": 2, "with_more_copies": 0, "handed_over": 1}
    now["coordination"]["cells"] = cells
    now["matchers"] = {"matcher-0": {"brokers": 2, "conditions": 5_000, "filters": 3, "asked_records": 700}}
    matching = {
        "filters": 4,
        "asked_records": 700,
        "given_records": 30,
        "withheld_records": 1_370,
        "unanswered_parts": 1,
    }
    now["coordinators"] = {"coordinator-0": {"matching": matching}}
    text = shown(now)
    assert "matchers: 96 cells by delay and carrier:text, 2 split, 1 being handed over" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["matcher-0", "2", "5,000", "3", "700"] in rows
    assert ["coordinator-0", "4", "700", "30", "1,370", "1"] in rows
