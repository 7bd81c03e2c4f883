"""Those who wait for what a coordinator has placed: a broker for the results of a PUBLISH, others for one record."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from ..link.link import Link

Done: TypeAlias = Callable[[Exception | None], None]
# group -> (offset, who waits for it), in the order of the offsets.
Waiters: TypeAlias = dict[int, deque[tuple[int, Done]]]


def wake(waiters: deque[tuple[int, Done]] | None, below: int) -> None:
    """Tell those who wait for something before `below`."""
    while waiters and waiters[0][0] < below:
        waiters.popleft()[1](None)


# The result of an entry that was not placed because its group is led elsewhere: it is to be sent there.
ELSEWHERE: Final[tuple[Any, ...]] = ()


class Ticket:
    """One PUBLISH of a broker: results of its entries, an ACK when the last is there. `answered`: to be sent."""

    __slots__ = ("answered", "left", "link", "results", "tag")

    def __init__(self, link: Link, tag: int, entries: int, answered: list[Ticket]) -> None:
        self.link = link
        self.answered = answered
        self.tag = tag
        self.results: list[Any] = [None] * entries
        self.left = entries

    def result(self, index: int, value: Any) -> None:
        """The result of one entry."""
        self.results[index] = value
        self.left -= 1
        if self.left == 0:
            self.answered.append(self)
