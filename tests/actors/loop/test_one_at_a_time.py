"""One at a time, in the order in which they came, whoever gives up meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from lexicast.actors.loop.one_at_a_time import OneAtATime


async def test_each_waits_for_all_before_it_and_those_who_give_up_let_nobody_in_early() -> None:
    turns: OneAtATime[str] = OneAtATime()
    first = turns.begin("a")
    had: list[int] = []

    async def have(number: int) -> None:
        async with turns.of("a"):
            had.append(number)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(have(number)) for number in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    with suppress(asyncio.CancelledError):
        await tasks[1]
    async with turns.of("b"):  # another one waits for nobody
        assert had == []
    turns.end("a", first)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert had == [0, 2, 3]
    assert len(turns) == 0
    assert "a" not in turns
