"""The line of newcomers: their sessions are opened a few at a time, so that what is delivered goes on between.

A broker that dies sends thousands of clients here at once. What one of them costs, some tenths of a millisecond in
three or four steps, would be thousands of steps in one turn of the event loop, before anything else is looked at: a
message took seconds then (docs/takeover.md). So PACE_LEAST to PACE_MOST are opened at a time, the others wait in the
order in which they came: more while the loop is in time, fewer while it is late, by its own work or since the machine
has too much to do. Fewer still waste commits of the sessions' homes, which answer all that have gathered at once.

Nobody holds a place for longer than PLACE_S: who waits for a home that does not answer, or for another broker that is
to let go, costs the loop nothing, and does not hold up those whose homes are there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

PACE_LEAST: Final = 32
PACE_MOST: Final = 96
PACE_STEP: Final = 4
# The loop is late from here on: a message passes two brokers and a coordinator, and is to arrive within 100 ms.
LATE_S: Final = 0.02
LOOK_S: Final = 0.01
PLACE_S: Final = 0.25

Opening: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class OpeningPace:
    """How many are opened at a time. Pure."""

    __slots__ = ("places",)

    def __init__(self) -> None:
        self.places = PACE_LEAST

    def look(self, late_s: float) -> None:
        """The loop came to something so much later than it was due."""
        if late_s > LATE_S:
            self.places = max(PACE_LEAST, self.places // 2)
        else:
            self.places = min(PACE_MOST, self.places + PACE_STEP)


class OpeningLine:
    """See the module's docstring. As long as the broker's `connections_max`."""

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """`spawn` runs what opens a session."""
        self._spawn = spawn
        self._pace = OpeningPace()
        self._waiting: deque[Opening] = deque()
        # Of each that is being opened, when its place is free again at the latest.
        self._places: dict[object, asyncio.TimerHandle] = {}
        self._look: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def enter(self, opening: Opening) -> None:
        """Have a session opened when it is its turn, at once where nobody waits."""
        self._waiting.append(opening)
        self._go_on()

    def close(self) -> None:
        """Open nothing more."""
        self._closed = True
        self._waiting.clear()
        for timer in [*self._places.values(), *([self._look] if self._look is not None else [])]:
            timer.cancel()

    def _go_on(self) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        while self._waiting and len(self._places) < self._pace.places:
            place = object()
            self._places[place] = loop.call_later(PLACE_S, self._left, place)
            self._spawn(self._run(self._waiting.popleft(), place))
        if self._waiting and self._look is None:
            self._look_soon(loop)

    async def _run(self, opening: Opening, place: object) -> None:
        try:
            await opening()
        finally:
            self._left(place)

    def _left(self, place: object) -> None:
        timer = self._places.pop(place, None)
        if timer is not None:
            timer.cancel()
            self._go_on()

    def _look_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        self._look = loop.call_later(LOOK_S, self._looked, loop.time() + LOOK_S)

    def _looked(self, due_s: float) -> None:
        """The loop's time is that of its turn's beginning: what the turn before has taken."""
        self._look = None
        self._pace.look(asyncio.get_running_loop().time() - due_s)
        self._go_on()
