"""Which groups a coordinator leads, by what it hears of the coordination server and of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from lexicast.actors.coordinator.replication.followers import Followers
from lexicast.actors.coordinator.replication.leadership import GroupLeadership
from lexicast.cluster.errors import StoreFullError, UnavailableError
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import Coordination, Members

from ...support.harness import eventually

OURS = GroupState(1, "a", ("a", "b"))


class Told:
    """A coordination server that says what the test tells it to say."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Members] = asyncio.Queue()
        self.version = 0
        # What was asked for; each is answered with the next of `held`, or its answer is lost.
        self.asked: list[dict[int, GroupState]] = []
        self.held: list[dict[int, GroupState]] = []

    def tell(self, groups: Mapping[int, GroupState]) -> None:
        self.version += 1
        self.answers.put_nowait(Members(self.version, {}, {}, {}, dict(groups)))

    async def members(self, known_version: int, wait_s: float) -> Members:
        return await self.answers.get()

    async def change_groups(self, changes: Mapping[int, tuple[GroupState, GroupState]]) -> dict[int, GroupState]:
        self.asked.append({group: new for group, (_, new) in changes.items()})
        if not self.held:
            raise UnavailableError("the answer was lost")
        return self.held.pop(0)


class Leading:
    """What is led: which groups were opened under which epochs, and closed. Also who follows: nobody."""

    def __init__(self) -> None:
        self.opened: list[tuple[int, int]] = []
        self.closed: list[int] = []
        self.groups: dict[int, Any] = {}
        # What becomes of the next openings.
        self.no_room = False
        self.left_by: Callable[[Mapping[int, GroupState]], None] | None = None

    async def open(self, states: Mapping[int, GroupState]) -> None:
        self.opened += [(group, state.epoch) for group, state in states.items()]
        if self.no_room:
            self.no_room = False
            raise StoreFullError("no room for the beginning of an epoch")
        if self.left_by is not None:
            self.left_by(states)
            self.left_by = None
        else:
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


async def test_in_place_of_an_epoch_that_could_not_begin_another_one_is_asked_for(
    told: Told, leading: Leading, leadership: GroupLeadership
) -> None:
    leading.no_room = True
    given, renewed = GroupState(3, "a", ("a", "b")), GroupState(4, "a", ("a", "b"))
    told.held.append({0: renewed})
    told.tell({0: given})
    await eventually(lambda: told.asked == [{0: renewed}], "another epoch to be asked for")
    told.tell({0: given})  # older than that
    await eventually(lambda: (0, 4) in leading.opened, "the epoch that was given to begin")
    assert leading.opened == [(0, 1), (0, 3), (0, 4)]


async def test_an_epoch_that_was_left_as_it_began_does_not_begin_again_while_its_end_is_asked_for(
    told: Told, leading: Leading, leadership: GroupLeadership
) -> None:
    given, successor = GroupState(3, "a", ("a", "b")), GroupState(4, "b", ("a", "b"))
    leading.left_by = lambda states: leadership.renewals.begin({0: (given, successor)})
    told.tell({0: given})
    await eventually(lambda: told.asked == [{0: successor}], "the change to be asked for")
    told.tell({0: given, 1: OURS})  # the answer was lost, and this is older than the change
    await eventually(lambda: (1, 1) in leading.opened, "the news to be taken")
    told.held.append({0: successor})
    await eventually(lambda: not told.held, "the change to be asked for again")
    assert sorted(leading.opened) == [(0, 1), (0, 3), (1, 1)]
    assert all(asked == {0: successor} for asked in told.asked)
