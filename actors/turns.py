"""Long work in an event loop: it gives way to everything else that waits every TURN_S."""

from __future__ import annotations

import asyncio
import time
from typing import Final

TURN_S: Final = 0.002

# The event loop's own time stands still within a turn. (The simulator puts its own in this place.)
now_s = time.monotonic


class Turns:
    """`await give_way()` between steps of well under TURN_S each; a step's time counts from the last one that yielded.

    Several pieces of long work in one loop take turns by a lock of their own, or each would take TURN_S in one pass.
    """

    __slots__ = ("_until_s",)

    def __init__(self) -> None:
        self._until_s = now_s() + TURN_S

    @property
    def over(self) -> bool:
        """Whether it is time to give way."""
        return now_s() >= self._until_s

    @property
    def left_s(self) -> float:
        """What is left of this turn; never nothing, so that each step gets on."""
        return max(TURN_S / 10, self._until_s - now_s())

    async def give_way(self) -> None:
        """Let the loop do what waits, if this turn is over."""
        if now_s() >= self._until_s:
            await asyncio.sleep(0)
            self._until_s = now_s() + TURN_S
