"""The homes are told of the few sessions that are behind, and those that are not are not looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from lexicast.actors.mqtt.owning.floor_telling import FloorTelling
from lexicast.actors.mqtt.session import Session, Unsettled
from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.protocol.session_floor import EXCEPTION_OFFSETS_MAX, packed_exceptions

Done = Callable[[Exception | None, Any], None]


@dataclass
class Subscriber:
    """`looks`: how often it was asked where it stands."""

    session: Session
    lagging: dict[int, int] = field(default_factory=dict)
    looks: int = 0

    def frontier(self) -> dict[int, int]:
        self.looks += 1
        return self.lagging | self.session.held()


@dataclass
class Home:
    """A coordinator's pipeline."""

    told: list[tuple[int, dict[int, int], dict[int, bytes | None]]] = field(default_factory=list)
    error: Exception | None = None

    def call(self, done: Done, method: str, below: int, moved: Any, exceptions: Any) -> None:
        assert method == "sessions_stand"
        self.told.append((below, moved, exceptions))
        done(self.error, None)


class Broker:
    """Sessions a, b, ... of connections 1, 2, ..., all live at first."""

    def __init__(self, count: int) -> None:
        self.home, self.heads, self.unsettled = Home(), {1: 100}, Unsettled()
        self.owners: dict[str, Any] = {}
        for number in range(1, count + 1):
            session = Session(f"c{number}", b"u", 1, window=10, connection=number, unsettled=self.unsettled)
            self.owners[session.client_id] = SimpleNamespace(session=session, subscriber=Subscriber(session))
        engine: Any = SimpleNamespace(
            live=SimpleNamespace(heads=self.heads), coordinators=SimpleNamespace(pipelines={"home": self.home})
        )
        self.telling = FloorTelling(engine, self.owners, self.unsettled)

    async def round(self, *unknown: int) -> tuple[dict[int, int], dict[int, bytes | None]]:
        """What is told: (floor where it has moved, exceptions)."""
        await self.telling.tell(len(self.owners) + 1, lambda: unknown)
        return self.home.told[-1][1:]

    def looks(self) -> list[int]:
        return [owner.subscriber.looks for owner in self.owners.values()]


async def test_those_alone_are_looked_at_that_have_something_in_flight() -> None:
    broker = Broker(3)
    session = broker.owners["c2"].session
    session.send(1, [90, 91], 1)
    assert await broker.round() == ({1: 90}, {})
    assert await broker.round() == ({1: 100}, packed_exceptions({2: {1: 90}}))
    session.on_pubacks([1])
    assert await broker.round() == ({}, packed_exceptions({2: {1: 91}}))
    session.on_pubacks([2])
    assert await broker.round() == ({}, {})
    assert broker.looks() == [0, 3, 0]


async def test_one_that_lags_is_looked_at_until_it_is_live() -> None:
    broker = Broker(2)
    broker.owners["c1"].subscriber.lagging = {1: 40}
    broker.unsettled.lagging["c1"] = None
    await broker.round()
    broker.heads[1] = 120
    assert await broker.round() == ({1: 120}, packed_exceptions({1: {1: 40}}))
    broker.owners["c1"].subscriber.lagging = {}
    assert await broker.round() == ({}, {})
    assert await broker.round() == ({}, {})
    assert broker.looks() == [3, 0]


async def test_of_more_that_lag_than_can_be_told_nothing_is_known_and_nobody_looks() -> None:
    broker = Broker(3)
    for owner in broker.owners.values():
        owner.subscriber.lagging = dict.fromkeys(range(EXCEPTION_OFFSETS_MAX // 2), 7)
        broker.unsettled.lagging[owner.session.client_id] = None
    _, exceptions = await broker.round()
    assert exceptions[3] is None
    assert broker.looks() == [1, 1, 0]


async def test_of_those_that_are_on_their_way_out_nothing_is_known() -> None:
    broker = Broker(1)
    assert await broker.round(8, 9) == ({1: 100}, {8: None, 9: None})


@pytest.mark.parametrize("lost", [False, True])
async def test_a_home_that_may_not_have_heard_is_told_everything_again(lost: bool) -> None:
    broker = Broker(1)
    broker.home.error = UnavailableError("gone") if lost else None
    await broker.round()
    broker.home.error = None
    assert (await broker.round())[0] == ({1: 100} if lost else {})
    broker.telling.forget("home")
    assert (await broker.round())[0] == {1: 100}
