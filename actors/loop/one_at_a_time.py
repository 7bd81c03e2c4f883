"""Who has to do with the same thing does so one at a time, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class OneAtATime(Generic[Key]):
    """See the module's docstring. A turn is a future that is done when it is over."""

    def __init__(self) -> None:
        # The last one's turn of each key.
        self._last: dict[Key, asyncio.Future[None]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._last

    def __len__(self) -> int:
        return len(self._last)

    def begin(self, key: Key) -> asyncio.Future[None]:
        """A turn that begins when all before it are over; `end` it."""
        turn = self._last[key] = asyncio.get_running_loop().create_future()
        return turn

    def end(self, key: Key, turn: asyncio.Future[None]) -> None:
        """The turn is over."""
        turn.set_result(None)
        if self._last[key] is turn:
            del self._last[key]

    @asynccontextmanager
    async def of(self, key: Key) -> AsyncIterator[None]:
        """A turn, waited for."""
        before = self._last.get(key)
        turn = self.begin(key)
        try:
            if before is not None:
                await asyncio.wait([before])
            yield
        finally:
            if before is None or before.done():
                self.end(key, turn)
            else:  # given up: who comes next waits for the one before
                before.add_done_callback(lambda _: self.end(key, turn))
