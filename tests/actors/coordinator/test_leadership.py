"""Which groups a coordinator leads, by what it hears of the coordination server and of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

import pytest

from lexicast.actors.coordinator.replication.followers import Followers
from lexicast.actors.coordinator.replication.leadership import GroupLeadership
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import Coordination, Members

from ...support.harness import eventually

OURS = GroupState(1, "a", ("a", "b"))


class Told:
    """A coordination server that says what the test tells it to say."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Members] = asyncio.Queue()
        self.version = 0

    def tell(self, groups: Mapping[int, GroupState]) -> None:
        self.version += 1
        self.answers.put_nowait(Members(self.version, {}, {}, {}, dict(groups)))

    async def members(self, known_version: int, wait_s: float) -> Members:
        return await self.answers.get()


class Leading:
    """What is led: which groups were opened under which epochs, and closed. Also who follows: nobody."""

    def __init__(self) -> None:
        self.opened: list[tuple[int, int]] = []
        self.closed: list[int] = []
        self.groups: dict[int, Any] = {}

    async def open(self, states: Mapping[int, GroupState]) -> None:
        self.opened += [(group, state.epoch) for group, state in states.items()]
        self.groups.update(states)

    def close_groups(self, groups: Sequence[int]) -> None:
        self.closed += groups
        for group in groups:
            self.groups.pop(group, None)

    def coordinators(self, names: Any) -> None:
        """Nobody is there."""

    def gone(self, names: Any) -> None:
        """Nobody was there."""

    def want(self, group: int, names: Any) -> None:
        """Nobody follows."""


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def leading() -> Leading:
    return Leading()


async def _noted(counted: Any, alone: bool) -> None:
    """Whom it counts with is durable at once."""


@pytest.fixture
async def leadership(told: Told, leading: Leading) -> AsyncIterator[GroupLeadership]:
    made = GroupLeadership("a", cast(Coordination, told), leading, 2, lambda member, user: None, _noted)
    made.followers = cast(Followers, leading)
    await made.start({0: OURS})
    yield made
    await made.stop()


async def test_an_epoch_that_is_over_does_not_begin_again_by_older_news(
    told: Told, leading: Leading, leadership: GroupLeadership
) -> None:
    leadership.depose([0])  # by the successor itself, to whom this coordinator was linked again first
    told.tell({0: OURS, 1: GroupState(1, "a", ("a",))})
    await eventually(lambda: (1, 1) in leading.opened, "the news to be taken")
    assert leading.opened == [(0, 1), (1, 1)]
    assert leading.closed == [0]
    told.tell({0: GroupState(3, "a", ("a", "b"))})
    await eventually(lambda: (0, 3) in leading.opened, "a newer epoch to begin")


async def test_a_newer_epoch_of_another_leader_closes_the_group(
    told: Told, leading: Leading, leadership: GroupLeadership
) -> None:
    told.tell({0: GroupState(2, "b", ("a", "b"))})
    await eventually(lambda: leading.closed == [0], "the group to be closed")
    told.tell({0: OURS, 1: OURS})
    await eventually(lambda: (1, 1) in leading.opened, "the news to be taken")
    assert leading.opened == [(0, 1), (1, 1)]
