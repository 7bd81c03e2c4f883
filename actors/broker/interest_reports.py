"""What a broker tells the coordination server of its subscribers, so that it gets backups whose subscribers want the
same (`ft.interest_sample`): a sample when its filters have changed, and in between that it lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from lexicast.cluster.errors import LexicastError
from lexicast.cluster.membership import OperatedCoordination
from lexicast.ft.interest_sample import hash_of, sampled

from ..loop.turns import Turns
from .filters import Filters

log = logging.getLogger(__name__)

REPORT_S: Final = 5.0


class InterestReports:
    """See the module's docstring. `subscribers()`: how many the broker serves; `capacity`: how many it may."""

    def __init__(
        self,
        name: str,
        coordination: OperatedCoordination,
        filters: Filters,
        subscribers: Callable[[], int],
        capacity: int,
    ) -> None:
        self._name = name
        self._coordination = coordination
        self._filters = filters
        self._subscribers = subscribers
        self._capacity = capacity
        self._told: tuple[int, int, int] | None = None

    async def run(self) -> None:
        """Every REPORT_S, until cancelled."""
        while True:
            try:
                await self.report()
            except LexicastError as error:
                log.debug("what subscribers want is told later: %s", error)
            await asyncio.sleep(REPORT_S)

    async def report(self) -> None:
        """Once. Raises UnavailableError."""
        now = self._filters.version, len(self._filters), self._subscribers()
        sample = None if now == self._told else await self._sample()
        known = await self._coordination.broker_lives(self._name, sample)
        self._told = now if known else None

    async def _sample(self) -> tuple[Any, ...]:
        hashes, turns = [], Turns()
        for topic_filter in self._filters.names():
            if not topic_filter.startswith(b"$"):  # what every broker subscribes to tells them apart in nothing
                hashes.append(hash_of(topic_filter))
            await turns.give_way()
        return tuple(sampled(hashes, self._subscribers(), self._capacity))
