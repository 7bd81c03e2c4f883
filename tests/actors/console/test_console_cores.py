"""The pure parts of a console: pages of bounded size, readiness, events, metrics; one level of the tree of topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.console.answers import PAGE_BYTES, page_of
from lexicast.actors.console.cluster_events import EVENTS_MAX, ClusterEvents
from lexicast.actors.console.cluster_overview import ROWS_MAX, WARNINGS_MAX, family_rows, group_rows_behind, overview
from lexicast.actors.console.metrics import FAMILIES_MAX, OTHERS, NodeMetrics
from lexicast.actors.console.readiness import COORDINATION_S, UNANSWERED_S, readiness
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import Member, Members
from lexicast.storage.tables.topic_levels import beyond

from ...support.harness import Cluster

SERVES = {"listens": True, "leaving": False, "groups_waiting": 0, "waits_for": [], "unanswered_s": 0.0}
MIB = 1 << 20


# -- pages


@given(st.lists(st.integers(0, 200_000), max_size=40), st.integers(1, 20))
def test_pages_give_everything_once_and_none_is_large(sizes: list[int], limit: int) -> None:
    rows = [{"number": number, "text": "x" * size} for number, size in enumerate(sizes)]
    seen, after = list[int](), -1
    while True:
        page = page_of(rows[after + 1 :], limit, lambda row: row["number"])
        assert len(page["rows"]) <= limit
        assert len(msgspec.json.encode(page)) < PAGE_BYTES + 210_000
        seen += [row["number"] for row in page["rows"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert seen == list(range(len(rows)))


def large_cluster() -> dict[str, Any]:
    """What `report.gather` tells of 2,000 brokers, 10,000 groups, 5,000 warnings."""
    names = [f"broker-{number}" for number in range(2_000)]
    return {
        "time": 1.0,
        "coordination": {
            "cluster_id": "c" * 32,
            "groups": 10_000,
            "group_states": {
                group: [7, "coordinator-0" if group else "", ["coordinator-0"]] for group in range(10_000)
            },
            "members": {"broker": {name: {"node": "n", "pid": 1, "incarnation": 1} for name in names}},
        },
        "warnings": ["w" * 5_000] * 5_000,
        "rates": {"stored_per_s": 1.0, "delivered_per_s": 2.0},
        "brokers": {name: {"error": "gone " * 100, "fate": "f"} for name in names},
        "coordinators": {},
        "sampling": {"s": {"families": {f"f/{number}": {"raw_bytes": 1} for number in range(1_000)}}},
    }


def test_an_overview_is_small_whatever_there_is() -> None:
    now = overview(large_cluster())
    assert len(msgspec.json.encode(now)) < MIB
    assert (len(now["warnings"]), now["warnings_left_out"]) == (WARNINGS_MAX, 5_000 - WARNINGS_MAX)
    assert (len(now["actors"]), now["left_out"]) == (ROWS_MAX, 1_001)
    assert now["cluster"]["groups_without_leader"] == 1
    assert len(group_rows_behind(large_cluster(), 9_000)) == 999
    assert group_rows_behind(large_cluster(), -1)[0]["reached"] is False
    assert len(family_rows(large_cluster())) == 1_000


# -- readiness


@pytest.mark.parametrize(
    ("brokers", "away_s", "ready", "said"),
    [
        ({"b": SERVES}, 0.0, True, ""),
        ({}, 0.0, False, "no broker of this node serves"),
        ({"b": "gone"}, 0.0, False, "b does not answer (gone)"),
        ({"b": "gone", "c": SERVES}, 0.0, True, "b does not answer (gone)"),
        ({"b": {**SERVES, "listens": False}}, 0.0, False, "b does not let clients in yet"),
        ({"b": {**SERVES, "listens": False, "leaving": True}}, 0.0, False, "b sends its clients to other nodes"),
        ({"b": {**SERVES, "groups_waiting": 3, "waits_for": ["x"]}}, 0.0, False, "b: 3 topic groups wait for x"),
        (
            {"b": {**SERVES, "unanswered_s": UNANSWERED_S}},
            0.0,
            False,
            "b: what was published has not been answered for",
        ),
        ({"b": {**SERVES, "unanswered_s": UNANSWERED_S / 2}}, 0.0, True, ""),
        ({"b": SERVES}, 5.0, True, "the coordination server has not been reached for 5 s"),
        ({"b": SERVES}, COORDINATION_S, False, "the coordination server has not been reached for 30 s"),
    ],
)
def test_ready_is_who_takes_and_stores_what_is_published(
    brokers: dict[str, Any], away_s: float, ready: bool, said: str
) -> None:
    found = readiness(brokers, away_s)
    assert found.ready is ready
    assert any(reason.startswith(said) for reason in found.reasons) if said else found.reasons == []


# -- events


def members(version: int, leaders: dict[int, str], brokers: tuple[str, ...] = ("b",), incarnation: int = 1) -> Members:
    """These serve and lead."""
    serving = {name: Member(name, incarnation, (), "node", 1) for name in brokers}
    return Members(
        version, {}, serving, {}, {group: GroupState(version, name, (name,)) for group, name in leaders.items()}
    )


def test_events_tell_of_failovers_and_of_who_comes_and_goes() -> None:
    events = ClusterEvents()
    events.follow(members(1, {0: "x", 1: "x", 2: "y"}), 1.0)
    assert events.page(0, 10) == []
    events.follow(members(2, {0: "y", 1: "y", 2: "y"}, ("b", "c"), 2), 2.0)
    events.follow(members(3, {0: "", 1: "y", 2: "y"}, ("c",), 2), 3.0)
    assert [event["text"] for event in events.page(0, 10)] == [
        "nobody is known to lead 1 topic group of y",
        "b has left",
        "y leads 2 topic groups that x led",
        "c serves, on node",
        "b has started again",
    ]
    assert events.taken_over == {"y": 2}
    assert [event["number"] for event in events.page(3, 10)] == [5, 4]


def test_a_warning_is_told_when_it_begins_and_when_it_is_over() -> None:
    events = ClusterEvents()
    for text in ("disk: 5 left", "disk: 4 left", "disk: 12,345 left"):  # numbers change all the time
        events.warned([text], 1.0)
    events.warned([], 2.0)
    assert [(event["kind"], event["text"]) for event in events.page(0, 10)] == [
        ("over", "no more: disk: # left"),
        ("warning", "disk: 5 left"),
    ]


def test_events_are_bounded() -> None:
    events = ClusterEvents()
    for version in range(EVENTS_MAX):
        events.follow(members(version, {0: "xy"[version % 2]}, ("b",), version), float(version))
    assert len(events.page(0, 10_000)) == EVENTS_MAX


# -- metrics


def test_families_beyond_a_bound_are_one() -> None:
    family = {"raw_bytes": 10, "sent_bytes": 3, "dictionary_bytes": 1}
    said = {"families": {f"f/{number}": family for number in range(FAMILIES_MAX + 5)}}
    metrics = NodeMetrics()
    for _ in range(2):
        found = {each.name: each for each in metrics.of({"sampling-0": ("sampler", said)}, {}).collect()}
        samples = {each.labels["family"]: each.value for each in found["lexicast_family_sent_bytes"].samples}
        assert len(samples) == FAMILIES_MAX + 1
        assert (samples["f/0"], samples[OTHERS]) == (4.0, 20.0)


def test_who_says_nothing_is_down_and_has_no_other_series() -> None:
    kinds = {"broker-0": "broker", "coordinator-0": "coordinator", "sampling-0": "sampler"}
    actors: dict[str, Any] = {name: (kind, {"error": "gone", "up": {kind: 0}}) for name, kind in kinds.items()}
    found = {each.name: each.samples for each in NodeMetrics().of(actors, {"ready": False}).collect()}
    assert [(each.labels["actor"], each.value) for each in found["lexicast_up"]] == [(name, 0.0) for name in kinds]
    assert [each.value for each in found["lexicast_ready"]] == [0.0]
    assert found.keys() == {"lexicast_up", "lexicast_ready"}, "a 0 would be said of what is not known"


# -- the tree of topics


def expected(names: set[str], prefix: str) -> list[tuple[bytes, bool]]:
    """One level, as a walk over all names gives it."""
    found = set()
    for name in names:
        if name.startswith(prefix):
            rest = name[len(prefix) :]
            end = rest.find("/")
            found.add((name.encode(), False) if end < 0 else ((prefix + rest[: end + 1]).encode(), True))
    return sorted(found)


async def test_a_level_is_what_a_walk_over_all_names_gives(tmp_path: Path) -> None:
    every = {"a", "a/b", "a/b/c", "a-b", "a-b/c", "a/", "/a", "b//c", "x" * 480, "ä/ö", "$sys/a"}
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        engine = await cluster.start_engine("broker-0")
        for name in sorted(every):
            await engine.publish(name.encode(), [b"x"])
        store = coordinator.server.store
        for prefix in ("", "a/", "a/b/", "/", "b/", "b//", "ä/", "none/"):
            assert store.by_topic.level(prefix.encode(), b"", 100) == expected(every, prefix), prefix
            paged, start = list[tuple[bytes, bool]](), b""
            while page := store.by_topic.level(prefix.encode(), start, 2):
                paged += page
                start = beyond(*page[-1])
            assert paged == expected(every, prefix), prefix
