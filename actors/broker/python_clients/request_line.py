"""The requests of a user's client: a few at a time, the others wait in their order, and the link is not read meanwhile.

An answer may have megabytes, and who asks for thousands at once and reads none would have the broker hold them all. So
nothing is begun either while the client takes no answers. What waits has been read at once: one read at the most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from ...link.link import Link

AT_ONCE: Final = 16


class RequestLine:
    """See the module's docstring."""

    def __init__(self, link: Link, at_once: int = AT_ONCE) -> None:
        self._link = link
        self._at_once = at_once
        self._waiting: deque[tuple[int, Callable[[], Awaitable[Any]]]] = deque()
        self._running = 0
        self._holds = False

    @property
    def is_full(self) -> bool:
        """Whether something waits, so that the link is not to be read."""
        return bool(self._waiting)

    def take(self, number: int, work: Callable[[], Awaitable[Any]]) -> None:
        """Answer a REQUEST with what `work` gives, when it is its turn."""
        self._waiting.append((number, work))
        self.go_on()
        if self._waiting and not self._holds:
            self._holds = True
            self._link.pause_reading()

    def go_on(self) -> None:
        """Begin what may begin: something has ended, or the client has taken answers."""
        while self._waiting and self._running < self._at_once and self._link.writable and not self._link.closed:
            number, work = self._waiting.popleft()
            self._running += 1
            self._link.answer(number, self._run(work))
        if self._holds and not self._waiting:
            self._holds = False
            self._link.resume_reading()

    async def _run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await work()
        finally:
            self._running -= 1
            self.go_on()

    def clear(self) -> None:
        """The client has gone."""
        self._waiting.clear()
