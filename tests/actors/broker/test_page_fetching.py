"""Requests for pages of the past: one for all groups that wait, two where an answer has no room for all of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from lexicast.actors.broker.catching_up.fetching import PageFetching
from lexicast.actors.broker.catching_up.pages import Page, Stand
from lexicast.actors.broker.dictionaries.waiting_blocks import WaitingBlocks
from lexicast.actors.broker.pipelines.pipeline import Pipeline
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.cluster.errors import UnavailableError

END = 50


class Fetching:
    """Groups of END offsets, ten to a page; requests are answered by the test."""

    def __init__(self, groups: int) -> None:
        self.asked: list[tuple[Any, dict[int, int]]] = []
        self.again: list[int] = []
        self.came: list[tuple[int, int]] = []
        self.failed: list[int] = []
        self.stands = {group: Stand(0) for group in range(groups)}
        self.pipeline = cast(Pipeline, self)
        member = cast(Subscriber, _Member())
        for stand in self.stands.values():
            stand.members.add(member)
        # Where this broker stands itself, and up to where it was said to.
        self.heads: dict[int, int] = {}
        self.reached: dict[int, int] = {}
        broker: Any = SimpleNamespace(
            pipeline_of=lambda group: self.pipeline,
            version=1,
            reached=self.reached.__setitem__,
            head=self.heads.get,
        )
        waiting = cast(WaitingBlocks, _NoneWait())
        self.fetching = PageFetching(broker, waiting, self._took, self._went_on, self.failed.append)
        self.member = SimpleNamespace(name="coordinator-0")

    def call(self, done: Any, name: str, cursor: dict[int, int], *rest: Any) -> None:
        self.asked.append((done, dict(cursor)))

    def _took(self, page: Page) -> None:
        self.came.append((page.group, page.start))
        stand = self.stands[page.group]
        stand.offset = page.end
        if page.end == END:
            stand.members.clear()

    def _went_on(self, group: int) -> None:
        self.again.append(group)

    async def need(self) -> None:
        """All groups that have not been read to their ends are needed."""
        for group, stand in self.stands.items():
            if stand.offset < END:
                self.fetching.need(group, stand)
        await turned()

    async def answer(self, room: int, live: bool = False) -> None:
        """The oldest request is answered, with pages of so many groups; `live`: to where live delivery goes on."""
        done, cursor = self.asked.pop(0)
        ends = {group: start + 10 for group, start in list(cursor.items())[:room]}
        done(None, {"blocks": [], "cursor": ends, "live": list(ends) * live, "whole": list(ends), "first": {}})
        await turned()

    @property
    def under_way(self) -> list[set[int]]:
        """The groups of each request under way."""
        return [set(cursor) for _, cursor in self.asked]


class _Member:
    def __init__(self) -> None:
        self.subscriptions: dict[bytes, None] = {}


class _NoneWait:
    def missing(self, blocks: object) -> bool:
        return False

    def __contains__(self, group: int) -> bool:
        return False


async def turned() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_request_asks_for_all_groups_while_answers_have_room_for_them() -> None:
    log = Fetching(8)
    await log.need()
    assert log.under_way == [set(range(8))]
    await log.answer(8)
    await log.need()
    assert log.under_way == [set(range(8))]


async def test_where_answers_are_too_small_two_requests_are_under_way_for_groups_of_their_own() -> None:
    log = Fetching(8)
    await log.need()
    await log.answer(1)
    await log.need()
    while log.asked:
        remaining = {group for group, stand in log.stands.items() if stand.offset < END}
        first, second = log.under_way if len(log.asked) == 2 else (*log.under_way, set())
        assert not first & second
        assert first | second >= remaining
        if len(remaining) > 2:
            assert second
        await log.need()  # others come by: nothing is asked for twice
        assert len(log.asked) <= 2
        await log.answer(1)
        await log.need()
    assert sorted(log.came) == [(group, start) for group in range(8) for start in range(0, END, 10)]


async def test_a_request_that_fails_leaves_the_other_one_and_what_waits_going_on() -> None:
    log = Fetching(4)
    await log.need()
    await log.answer(1)
    await log.need()
    done, cursor = log.asked.pop(0)
    done(UnavailableError("gone"), None)
    await turned()
    assert log.failed == list(cursor)
    await log.need()
    while log.asked:
        await log.answer(1)
        await log.need()
    assert sorted(log.came) == [(group, start) for group in range(4) for start in range(0, END, 10)]


async def test_who_comes_from_further_on_does_not_take_a_broker_past_what_it_lacks() -> None:
    """Its coordinator is cut off, and answers that nothing has come since; others have led on."""
    log = Fetching(3)
    log.heads |= {0: 5, 1: 4}  # of group 2 nothing is known yet
    for stand in log.stands.values():
        stand.offset = 5
    await log.need()
    await log.answer(3, live=True)
    assert log.reached == {0: 15, 2: 15}
