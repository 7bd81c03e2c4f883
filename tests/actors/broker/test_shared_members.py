"""The members of shares at a broker: what coordinators are told of them, and told again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lexicast.actors.broker.coordinators import Coordinators
from lexicast.actors.broker.encoding import BlockView
from lexicast.actors.broker.pipelines.pipeline import Pipeline
from lexicast.actors.broker.shares import shared_members
from lexicast.actors.broker.shares.dealt_blocks import DealtPart
from lexicast.actors.broker.shares.shared_members import SharedMembers, ShareKey
from lexicast.cluster.errors import UnavailableError

from ...support.harness import eventually

KEY = ShareKey("g", b"#", "a")


class Member:
    """Has been dealt these."""

    def __init__(self, held: dict[int, list[int]]) -> None:
        self._held = held

    def take_dealt(self, parts: list[DealtPart]) -> None:
        """None comes."""

    def held(self) -> dict[int, list[int]]:
        return {group: [*offsets] for group, offsets in self._held.items()}


class Leader:
    """A pipeline to a coordinator that leads `groups`, and answers `share_join` with `errors` first."""

    def __init__(self, name: str, groups: list[int]) -> None:
        self.member = SimpleNamespace(name=name)
        self.groups = groups
        self.link = SimpleNamespace(closed=False)
        self.errors: list[Exception] = []
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    async def request(self, method: str, *arguments: Any) -> dict[str, Any]:
        self.asked.append((method, arguments))
        return {"groups": self.groups}

    def call(self, done: Callable[[Exception | None, Any], None], method: str, *arguments: Any) -> None:
        self.asked.append((method, arguments))
        joins = method == "share_join"
        done(self.errors.pop() if joins and self.errors else None, {"groups": self.groups})

    def joined_with(self) -> list[dict[int, list[int]]]:
        """What each `share_join` has said is held."""
        return [arguments[-2] for method, arguments in self.asked if method == "share_join"]


class Leaders:
    """Who leads what."""

    def __init__(self, *leaders: Leader) -> None:
        self.leaders = leaders

    def groups_of_all(self, _: Iterable[bytes]) -> range:
        return range(4)

    def by_leader(self, groups: Iterable[int]) -> dict[Leader, list[int]]:
        asked = set(groups)
        found = {leader: [group for group in leader.groups if group in asked] for leader in self.leaders}
        return {leader: led for leader, led in found.items() if led}


def members_of(*leaders: Leader) -> SharedMembers:
    return SharedMembers(cast(Coordinators, Leaders(*leaders)), 5.0, lambda block: BlockView(block, 0))


async def test_a_coordinator_is_told_what_is_held_of_its_own_groups() -> None:
    """What it would know of others' would be out of date once it leads them."""
    one, other = Leader("one", [0, 1]), Leader("other", [2, 3])
    members = members_of(one, other)
    await members.join(KEY, Member({0: [5], 3: [7]}), 10)
    members.resumed(cast(Pipeline, other))
    assert one.joined_with() == [{0: [5]}]
    assert other.joined_with() == [{3: [7]}, {3: [7]}]


async def test_a_coordinator_that_cannot_take_a_member_back_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has just begun and cannot write: nothing it leads would be dealt to the member otherwise."""
    monkeypatch.setattr(shared_members, "JOIN_AGAIN_S", 0.0)
    leader = Leader("one", [0, 1, 2, 3])
    members = members_of(leader)
    await members.join(KEY, Member({}), 10)
    leader.errors = [UnavailableError("no quorum"), UnavailableError("no quorum")]
    members.resumed(cast(Pipeline, leader))
    await eventually(lambda: len(leader.joined_with()) == 4)
    await asyncio.sleep(0.01)
    assert len(leader.joined_with()) == 4


async def test_a_member_that_has_left_or_a_link_that_has_ended_is_not_asked_about_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_members, "JOIN_AGAIN_S", 0.0)
    left, cut = Leader("left", [0, 1, 2, 3]), Leader("cut", [0, 1, 2, 3])
    for leader in (left, cut):
        members = members_of(leader)
        await members.join(KEY, Member({}), 10)
        leader.errors = [UnavailableError("no quorum")]
        members.resumed(cast(Pipeline, leader))
        if leader is left:
            members.leave(KEY)
        else:
            leader.link = SimpleNamespace(closed=False)
    await asyncio.sleep(0.01)
    assert len(left.joined_with()) == len(cut.joined_with()) == 2
