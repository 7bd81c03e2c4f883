"""A question to whoever leads certain groups, answered in pages, while groups move from one coordinator to another.

A part of the question is asked of one coordinator: that leads all its groups. Where several do by now, the part is one
for each of them from then on, each at the place where the last page has ended: places go by names of topics, so they
mean the same everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar

from lexicast.cluster.errors import LedElsewhereError

from ..coordinators import ASK_AGAIN_S, Coordinators

T = TypeVar("T")
# What is asked, of which groups, and where to go on (None: at the beginning).
Part = tuple[T, tuple[int, ...], Any]
Arguments = Callable[[T, tuple[int, ...], Any], tuple[Any, ...]]
# Leaders that change while they are asked: longer than any succession takes.
SETTLE_S: Final = 30.0


class LedParts(Generic[T]):
    """See the module's docstring. `left`: what is still to be asked, in order."""

    def __init__(self, coordinators: Coordinators, parts: Iterable[Part[T]]) -> None:
        self._coordinators = coordinators
        self.left: list[Part[T]] = [part for part in parts if part[1]]

    async def ask(self, method: str, arguments: Arguments[T]) -> tuple[T, Any]:
        """The next page, as a coordinator answers `method` with `arguments(what, groups, place)`, and of what it is.

        The page counts with `took`: one that is interrupted is asked for again. Raises UnavailableError when no
        coordinator answers in time, IndexNotReadyError.
        """
        until_s = asyncio.get_running_loop().time() + SETTLE_S
        while True:
            self._split()
            what, groups, place = self.left[0]
            answers: list[Any] = []
            pipeline = self._coordinators.leader_of(groups[0])
            try:
                await self._coordinators.ask(pipeline, answers.append, method, *arguments(what, groups, place))
            except LedElsewhereError:
                if asyncio.get_running_loop().time() > until_s:
                    raise
                await asyncio.sleep(ASK_AGAIN_S)
            else:
                return what, answers[0]

    def _split(self) -> None:
        what, groups, place = self.left[0]
        for group in groups:
            self._coordinators.leader_of(group)
        by_leader = self._coordinators.by_leader(groups)
        if len(by_leader) > 1:
            self.left[:1] = [(what, tuple(led), place) for led in by_leader.values()]

    def took(self, after: Any) -> None:
        """The page is taken; `after`: where the next one of this part begins, None where there is none."""
        what, groups, _ = self.left.pop(0)
        if after is not None:
            self.left.insert(0, (what, groups, after))
