"""What `lexicast top` shows, gathered by the questions that `lexicast status` and a node's console ask."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from lexicast.cluster.errors import LexicastError

from ...client.client import Client
from ...client.known_brokers import Endpoint, Resolve
from ...console.cluster_overview import family_rows, lagging_rows, overview
from ...console.topic_rates import TopicRates
from ...status.over_link import ask_broker
from ...status.report import saved_bytes
from .sections import Figures

ROWS_MAX: Final = 100
RETRY_S: Final = 1.0
# A broker that is asked for its clients is waited for so long.
ANSWER_S: Final = 2.0
# One look at the rates of topics: how long a sample is waited for, and how long it is looked at.
SAMPLE_WAIT_S: Final = 10.0
SAMPLE_S: Final = 2.0


class TopFigures:
    """See the module's docstring. To be entered: `async with TopFigures(...) as figures:`."""

    def __init__(self, resolve: Resolve, snapshot: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        """`resolve` finds the brokers, `snapshot` is what `lexicast status` tells."""
        self._resolve = resolve
        self._snapshot = snapshot
        self._client: Client | None = None
        self._topics: TopicRates | None = None
        self._opening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> TopFigures:
        self._opening = asyncio.get_running_loop().create_task(self._open())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._topics is not None:
            self._topics.close()
        if self._client is not None:
            await self._client.close()

    async def _open(self) -> None:
        """A client, for a sample of what is published: as soon as there is a broker, the rest is told before."""
        while self._client is None:
            client = Client(self._resolve, client_id=f"top-{secrets.token_hex(4)}", compress=False)
            try:
                self._client = await client.open()
            except (LexicastError, OSError):
                await asyncio.sleep(RETRY_S)
        self._topics = TopicRates(self._client)
        self._topics.busiest(0)  # it looks from now on

    async def sampled(self) -> None:
        """Wait until there is something to be said about topics; not for ever."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SAMPLE_WAIT_S):
                while self._busiest() is None:  # noqa: ASYNC110 - a sample tells nobody that it has begun
                    await asyncio.sleep(SAMPLE_S / 20)
        if self._busiest() is not None:
            await asyncio.sleep(SAMPLE_S)

    async def now(self) -> Figures:
        """`cluster_overview.overview`, and "families", "topics" (None: not known yet), "lagging" (clients), "missing"
        (brokers that do not tell of theirs). Raises LexicastError."""
        told, (lagging, missing) = await asyncio.gather(self._snapshot(), self._lagging())
        families = sorted(family_rows(told), key=lambda row: -saved_bytes(row))
        topics = self._busiest()
        return {
            **overview(told),
            "families": families[:ROWS_MAX],
            "topics": None if topics is None else [{"name": name, "per_s": per_s} for name, per_s in topics],
            "lagging": lagging,
            "missing": missing,
        }

    def _busiest(self) -> list[tuple[str, float]] | None:
        return None if self._topics is None else self._topics.busiest(ROWS_MAX)

    async def _lagging(self) -> tuple[list[dict[str, Any]], list[str]]:
        try:
            endpoints = await self._resolve()
        except LexicastError:
            return [], []
        answers = await asyncio.gather(*map(_lagging_of, endpoints))
        rows = [row for answer in answers for row in answer or ()]
        missing = [each.name for each, answer in zip(endpoints, answers, strict=True) if answer is None]
        return lagging_rows(rows, ROWS_MAX), sorted(missing)


async def _lagging_of(endpoint: Endpoint) -> list[dict[str, Any]] | None:
    """One broker's clients that lag; None: it does not say."""
    try:
        async with asyncio.timeout(ANSWER_S):
            rows = await ask_broker(endpoint, "clients_lagging", ROWS_MAX)
    except (LexicastError, OSError, TimeoutError):
        return None
    return [{"broker": endpoint.name, **row} for row in rows]
