"""Back-end subscriptions: sessions that return together share their requests, and fail or leave alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lexicast.actors.broker import filters as filters_module
from lexicast.actors.broker.filters import Filters
from lexicast.cluster.errors import UnavailableError

from ...support.harness import eventually


class Coordinator:
    """What a coordinator was asked; each answer is the number of requests until then, or `error`."""

    def __init__(self) -> None:
        self.asked: list[list[bytes]] = []
        self.ended: list[list[bytes]] = []
        self.error: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def ask(self, pipeline: object, take: Callable[[Any], None], method: str, *arguments: Any) -> None:
        assert (pipeline, method) == (self, "subscribe")
        self.asked.append(list(arguments[0]))
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        take(len(self.asked))

    def call(self, done: object, method: str, filters: list[bytes]) -> None:
        assert method == "unsubscribe"
        self.ended.append(filters)

    def filters(self) -> Filters:
        return Filters([], lambda topic_filter: [self], self.ask)  # type: ignore[list-item]  # of a pipeline it is `call`


async def returns(filters: Filters, names: list[bytes], got: list[Any]) -> None:
    await filters.place(filters.hold(names), True, lambda part, answer: got.append((part, answer)))
    filters.placed(names)


async def test_sessions_that_return_in_one_turn_share_a_request() -> None:
    coordinator, got = Coordinator(), list[Any]()
    filters = coordinator.filters()
    await asyncio.gather(*[returns(filters, names, got) for names in ([b"a/#"], [], [b"b/#", b"c"])])
    assert coordinator.asked == [[b"a/#", b"b/#", b"c"]]
    assert got == [([b"a/#"], 1), ([], 1), ([b"b/#", b"c"], 1)]


async def test_a_shared_request_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters_module, "RETURNS_AT_ONCE", 3)
    monkeypatch.setattr(filters_module, "FILTERS_MAX", 4)
    coordinator, got = Coordinator(), list[Any]()
    filters = coordinator.filters()
    wanted = [[b"%d" % (10 * n + at) for at in range(count)] for n, count in enumerate((3, 2, 0, 0, 9))]
    await asyncio.gather(*[returns(filters, names, got) for names in wanted])
    assert sorted(map(len, coordinator.asked)) == [1, 2, 3, 4, 4]
    assert sorted(name for part, _ in got for name in part) == sorted(name for names in wanted for name in names)


async def test_what_fails_fails_for_all_who_share_it() -> None:
    coordinator, got = Coordinator(), list[Any]()
    filters = coordinator.filters()
    coordinator.error = UnavailableError("gone")
    work = [returns(filters, [name], got) for name in (b"a/#", b"b/#")]
    failed = await asyncio.gather(*work, return_exceptions=True)
    assert [type(error) for error in failed] == [UnavailableError] * 2
    assert not got


async def test_who_leaves_meanwhile_leaves_no_interest_behind_and_the_others_go_on() -> None:
    coordinator, got = Coordinator(), list[Any]()
    filters = coordinator.filters()
    coordinator.answers.clear()
    leaving, staying = [asyncio.create_task(returns(filters, [name], got)) for name in (b"a/#", b"b/#")]
    await eventually(lambda: bool(coordinator.asked), "the request")
    leaving.cancel()
    await asyncio.wait([leaving])
    filters.release([b"a/#"])
    coordinator.ended.clear()
    coordinator.answers.set()
    await staying
    await eventually(lambda: bool(coordinator.ended), "the end of what nobody wants")
    assert coordinator.ended == [[b"a/#"]]
    assert got == [([b"b/#"], 1)]


@pytest.mark.parametrize("turns", [0, 3])
async def test_who_waits_when_the_broker_stops_is_told_and_not_cancelled(turns: int) -> None:
    coordinator = Coordinator()
    coordinator.answers.clear()
    filters = coordinator.filters()
    waiting = asyncio.ensure_future(returns(filters, [b"a/#"], []))
    for _ in range(turns + 1):
        await asyncio.sleep(0)
    assert bool(coordinator.asked) is bool(turns)
    filters.close()
    with pytest.raises(UnavailableError, match="stopping"):
        await waiting
