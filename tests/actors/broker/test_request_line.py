"""The requests of a user's client: a few at a time, none while it takes no answers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

from lexicast.actors.broker.python_clients.request_line import RequestLine
from lexicast.actors.link.link import Link


class FakeLink:
    """What the line asks of a link."""

    def __init__(self) -> None:
        self.writable = True
        self.closed = False
        self.reads = True
        self.answers: list[asyncio.Task[Any]] = []

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def answer(self, number: int, work: Any) -> None:
        self.answers.append(asyncio.get_running_loop().create_task(work))


async def test_a_few_at_a_time_in_their_order() -> None:
    link = FakeLink()
    line = RequestLine(cast(Link, link), 2)
    gates, began = [asyncio.Event() for _ in range(5)], list[int]()

    async def work(number: int) -> None:
        began.append(number)
        await gates[number].wait()

    for number in range(5):
        line.take(number, partial(work, number))
    await asyncio.sleep(0)
    assert (began, link.reads, line.is_full) == ([0, 1], False, True)
    gates[1].set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert (began, link.reads) == ([0, 1, 2], False)
    for gate in gates:
        gate.set()
    await asyncio.gather(*link.answers)
    for task in link.answers:
        await task
    assert (began, link.reads, line.is_full) == ([0, 1, 2, 3, 4], True, False)


async def test_nothing_begins_while_no_answers_are_taken() -> None:
    link = FakeLink()
    line = RequestLine(cast(Link, link), 2)
    done: list[int] = []

    async def work() -> None:
        done.append(1)

    link.writable = False
    line.take(1, work)
    assert (link.answers, link.reads) == ([], False)
    link.writable = True
    line.go_on()
    await asyncio.gather(*link.answers)
    assert (done, link.reads) == ([1], True)


async def test_who_does_not_wait_does_not_touch_the_reading() -> None:
    """It may be held up by a full pipeline."""
    link = FakeLink()
    line = RequestLine(cast(Link, link), 2)
    link.pause_reading()

    async def work() -> None:
        """Nothing."""

    line.take(1, work)
    await asyncio.gather(*link.answers)
    assert not link.reads


async def test_of_who_has_gone_nothing_begins() -> None:
    link = FakeLink()
    line = RequestLine(cast(Link, link), 1)
    gate = asyncio.Event()

    async def work() -> None:
        await gate.wait()

    line.take(1, work)
    line.take(2, work)
    link.closed = True
    line.clear()
    gate.set()
    await asyncio.gather(*link.answers)
    assert len(link.answers) == 1
