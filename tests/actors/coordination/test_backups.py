"""Backups of brokers: from what they tell, kept over restarts, a few at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from lexicast.actors.coordination import backups as backups_module
from lexicast.actors.coordination.backups import AT_ONCE, LOST_S, NEVER, WEIGHED_S, BrokerBackups
from lexicast.actors.coordination.server import LocalCoordination
from lexicast.actors.testing.simulator.disks import MemoryRegistry
from lexicast.cluster.membership import BROKER, Member
from lexicast.ft.assignment import Backups
from lexicast.ft.interest_sample import InterestSample, hash_of, sampled
from lexicast.ft.reassignment import PAYS, Reassignment, reassigned
from lexicast.storage.registry import Registry


def member(name: str, node: str, location: str = "") -> Member:
    return Member(name, 1, (), node, 1, location=location)


def sample(*filters: str, subscribers: int = 10, capacity: int = 100) -> InterestSample:
    return sampled([hash_of(each.encode()) for each in filters], subscribers, capacity)


# Two locations of two nodes each.
MEMBERS = {
    each.name: each
    for each in (member("a", "n1", "x"), member("b", "n2", "x"), member("c", "n3", "y"), member("d", "n4", "y"))
}


def settled(backups: BrokerBackups, members: dict[str, Member], leaving: tuple[str, ...] = (), now_s: float = 1) -> int:
    """Turns until nothing changes."""
    turns = 0
    while (assigned := backups.turn(members, leaving, now_s)) is not None:
        backups.in_force = assigned
        turns += 1
    return turns


def told() -> BrokerBackups:
    backups = BrokerBackups(cast(Registry, MemoryRegistry()))
    for name, wants in {"a": ("s", "t"), "b": ("s",), "c": ("t", "u"), "d": ("v",)}.items():
        assert backups.told(name, sample(*wants), 0.0)
    return backups


def test_each_broker_has_a_backup_nearby_and_one_elsewhere() -> None:
    backups = told()
    settled(backups, MEMBERS)
    assert {name: each.local for name, each in backups.in_force.items()} == {"a": "b", "b": "a", "c": "d", "d": "c"}
    assert all(each.remote in ("c", "d") for name, each in backups.in_force.items() if name in "ab")
    assert backups.in_force["a"].remote == "c"  # which wants some of the same


def test_without_locations_the_remote_one_is_on_another_node() -> None:
    backups = told()
    members = {name: member(name, node) for name, node in {"a": "n1", "b": "n1", "c": "n2", "d": "n2"}.items()}
    settled(backups, members)
    assert backups.in_force["a"].local == "b"
    assert backups.in_force["a"].remote in ("c", "d")


def test_who_is_not_heard_of_or_is_to_leave_stands_in_for_nobody_and_keeps_its_own() -> None:
    backups = told()
    settled(backups, MEMBERS)
    before = backups.in_force["c"]
    for name in "abd":
        backups.told(name, None, LOST_S + 1)
    settled(backups, MEMBERS, now_s=LOST_S + 2)
    assert "c" not in {name for each in backups.in_force.values() for name in each}
    assert backups.in_force["c"] == before
    assert backups.in_force["d"].local == ""
    settled(backups, MEMBERS, ("n4",), LOST_S + 2)
    assert "d" not in {name for each in backups.in_force.values() for name in each if name != before.local}


def test_a_silence_that_proves_wrong_costs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    backups = told()
    settled(backups, MEMBERS)
    before = dict(backups.in_force)
    for name in "abd":
        backups.told(name, None, LOST_S + 1)
    settled(backups, MEMBERS, now_s=LOST_S + 2)
    settled(backups, MEMBERS, now_s=LOST_S + 3)
    backups.told("c", None, LOST_S + 4)
    settled(backups, MEMBERS, now_s=LOST_S + 5)
    assert backups.in_force["c"] == before["c"]
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "c has not been heard of for 20 s",
        "c is heard of again",
    ]
    # Whoever has left has not been suspected.
    backups.told("d", None, 3 * LOST_S)
    settled(backups, {name: each for name, each in MEMBERS.items() if name == "d"}, now_s=3 * LOST_S)
    assert len(caplog.records) == 2


def test_a_few_at_a_time() -> None:
    backups = BrokerBackups(cast(Registry, MemoryRegistry()))
    members = {f"b{i}": member(f"b{i}", f"n{i}", "xyz"[i % 3]) for i in range(30)}
    for name in members:
        backups.told(name, sample(name), 0.0)
    assigned = backups.turn(members, (), 0.0)
    assert assigned is not None
    assert sum([each != Backups() for each in assigned.values()]) <= AT_ONCE


async def test_they_are_told_to_all_and_outlast_the_coordination_server(tmp_path: Path) -> None:
    with LocalCoordination(tmp_path) as coordination:
        for name, node in (("a", "n1"), ("b", "n2")):
            await coordination.register(BROKER, member(name, node))
            assert not await coordination.broker_lives(name, None)
            assert await coordination.broker_lives(name, tuple(sample("s")))
        version = (await coordination.members(-1, 0.0)).version
        coordination.assign_backups()
        members = await coordination.members(-1, 0.0)
        assert members.version > version
        assert members.backups == {"a": ("b",), "b": ("a",)}
    with LocalCoordination(tmp_path) as coordination:
        assert coordination.status()["backups"] == {"a": ["", "b"], "b": ["", "a"]}
        coordination.assign_backups()  # nobody has told anything yet
        assert coordination.status()["backups"] == {"a": ["", "b"], "b": ["", "a"]}


def test_whether_a_change_would_pay_is_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def weighed(*arguments: Any, pays: float, **more: Any) -> Reassignment:
        asked.append(pays)
        return reassigned(*arguments, pays=pays, **more)

    monkeypatch.setattr(backups_module, "reassigned", weighed)
    backups = told()
    for now_s in (0.0, 1.0, WEIGHED_S - 1.0, WEIGHED_S):
        backups.turn(MEMBERS, (), now_s)
    assert asked == [PAYS, NEVER, NEVER, PAYS]
