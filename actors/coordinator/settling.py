"""Waiting until what was delivered before a question is in the store, where the answer is then looked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from .led_groups import LedGroups


async def settled(led: LedGroups, numbers: Iterable[int]) -> None:
    """Return once what these groups have delivered by now is committed, or refused by the disk."""
    groups = led.sequencer.groups
    behind = [n for n in numbers if n in groups and groups[n].committed < groups[n].delivered]
    if behind:
        await asyncio.wait([_committed(led, number, groups[number].delivered - 1) for number in behind])


def _committed(led: LedGroups, group: int, offset: int) -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        # What the disk refused is no past either.
        if not future.done():
            future.set_result(None)

    led.when_committed(group, offset, done)
    return future
