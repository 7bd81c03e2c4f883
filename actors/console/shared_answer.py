"""An answer that many ask for at once is made once, and given for a moment to whoever asks next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedAnswer(Generic[T]):
    """See the module's docstring. `make` may raise LexicastError, which then all who wait get, and nobody else."""

    def __init__(self, make: Callable[[], Awaitable[T]], fresh_s: float) -> None:
        """`fresh_s`: for how long an answer is given on."""
        self._make = make
        self._fresh_s = fresh_s
        self._made: tuple[float, T] | None = None
        self._making: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """The answer. Whoever goes away meanwhile takes nothing from the others."""
        now_s = asyncio.get_running_loop().time()
        if self._made is not None and now_s - self._made[0] < self._fresh_s:
            return self._made[1]
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._make_once())
            self._making.add_done_callback(self._done)
        return await asyncio.shield(self._making)

    async def _make_once(self) -> T:
        begun_s = asyncio.get_running_loop().time()
        answer = await self._make()
        self._made = begun_s, answer
        return answer

    def _done(self, task: asyncio.Task[T]) -> None:
        self._making = None
        if not task.cancelled():
            task.exception()  # heard, where everybody has gone
