"""The turns of long work in an event loop: it gives way to everything else that waits every TURN_S."""

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


class LoopWatch:
    """How long the event loop's longest turn was: a timer that asks every PERIOD_S how late it is."""

    PERIOD_S: Final = 0.01

    def __init__(self) -> None:
        self._longest_s = 0.0

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            due_s = now_s() + self.PERIOD_S
            await asyncio.sleep(self.PERIOD_S)
            self._longest_s = max(self._longest_s, now_s() - due_s)

    def longest_ms(self) -> float:
        """The longest turn since this was last asked, as far as the timer could see it."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return round(longest_s * 1_000, 1)
