"""Which filters choose, as coordinators are told: a subscription counts when all that need to know have answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from lexicast.actors.broker.encoding import Grant
from lexicast.actors.broker.engine import BrokerEngine
from lexicast.actors.broker.matching.choosing_filters import SETTLES_S, ChoosingFilters
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.config.tables import Config
from lexicast.cluster.content.parsed import predicate

from ...support.harness import Stream

NAME = b"f/#"


class FakePipeline:
    """A link to a coordinator: what it was asked, and how it is answered."""

    def __init__(self) -> None:
        self.link = object()
        self.asked: list[tuple[Any, ...]] = []
        self._waiting: list[Callable[[Exception | None, Any], None]] = []

    def call(self, done: Callable[[Exception | None, Any], None], method: str, *arguments: Any) -> None:
        """Asked."""
        self.asked.append((method, *arguments))
        self._waiting.append(done)

    def answer(self) -> None:
        """All that was asked is answered."""
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(None, None)


class Around:
    """What is tested, a broker's engine around it, and one coordinator."""

    def __init__(self) -> None:
        self.engine = BrokerEngine("broker", 1, 4, Config().replaced(node__matchers=1), SystemClock())
        told = self.engine.subscriptions.told_conditions
        assert told is not None
        self.filters = self.engine.subscriptions.filters
        self.pipeline: Any = FakePipeline()
        self.choosing = ChoosingFilters(told, self.filters, lambda: [self.pipeline])

    def subscriber(self) -> Stream:
        """A new one."""
        return Stream(self.engine)

    def comes(self, subscriber: Subscriber, where: str = "") -> asyncio.Task[None]:
        """It subscribes; done when it counts."""
        wanted = {NAME: Grant(where=predicate(where) if where else None)}
        self.filters.placed(self.filters.hold([NAME]))
        self.choosing.held(subscriber, wanted, [NAME])
        return asyncio.get_running_loop().create_task(self.choosing.prepare(subscriber, wanted))

    async def settled(self) -> list[tuple[Any, ...]]:
        """What was asked when all has settled, and answered."""
        await asyncio.sleep(SETTLES_S * 1.5)
        self.pipeline.answer()
        asked, self.pipeline.asked = self.pipeline.asked, []
        return list(asked)


@pytest.fixture
async def around() -> AsyncIterator[Around]:
    made = Around()
    yield made
    made.choosing.close()
    await made.engine.close()


async def waits(task: asyncio.Task[None]) -> bool:
    """Whether it is not done by itself."""
    for _ in range(5):
        await asyncio.sleep(0)
    return not task.done()


async def test_a_filter_chooses_when_all_its_subscribers_do(around: Around) -> None:
    assert not await waits(around.comes(around.subscriber(), "delay > 1"))
    assert await around.settled() == [("choose", [NAME], [], 1, False)]
    assert await around.settled() == []


async def test_all_that_come_without_a_condition_wait_until_coordinators_know(around: Around) -> None:
    """Not the first one alone: the second's publications would be held back as well."""
    around.comes(around.subscriber(), "delay > 1")
    await around.settled()
    first, second = around.comes(around.subscriber()), around.comes(around.subscriber())
    assert await waits(first)
    assert await waits(second)
    assert ("choose", [], [NAME], 1, False) in around.pipeline.asked
    around.pipeline.answer()
    assert not await waits(first)
    assert not await waits(second)
    assert not await waits(around.comes(around.subscriber())), "they know by now"


async def test_a_condition_that_comes_while_its_filter_ceases_to_choose_waits_too(around: Around) -> None:
    around.comes(around.subscriber(), "delay > 1")
    await around.settled()
    plain, fresh = around.comes(around.subscriber()), around.comes(around.subscriber(), "delay > 2")
    assert await waits(plain)
    assert await waits(fresh)
    around.pipeline.answer()
    assert not await waits(fresh)


async def test_a_new_condition_waits_and_a_known_one_does_not(around: Around) -> None:
    around.comes(around.subscriber(), "delay > 1")
    await around.settled()
    fresh = around.comes(around.subscriber(), "delay > 2")
    assert await waits(fresh)
    assert around.pipeline.asked[-1] == ("choose", [], [], 2, False)
    around.pipeline.answer()
    assert not await waits(fresh)
    assert not await waits(around.comes(around.subscriber(), "delay > 2"))


async def test_who_gives_up_waiting_leaves_nothing_behind(around: Around) -> None:
    around.comes(around.subscriber(), "delay > 1")
    await around.settled()
    task = around.comes(around.subscriber())
    assert await waits(task)
    task.cancel()
    assert not await waits(task)
    another = around.comes(around.subscriber())
    assert await waits(another), "nobody has answered yet"
    around.pipeline.answer()
    assert not await waits(another)
    assert not await waits(around.comes(around.subscriber())), "nobody is waited for any more"
