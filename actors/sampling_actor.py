"""The Ray actor around `SamplingServer`."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Any

from lexicast.cluster.clock import SystemClock
from lexicast.cluster.errors import LexicastError, UnavailableError

from .client import Client
from .client_address import resolver
from .handles import SAMPLER, Member, RayCoordination
from .sampling import SamplingServer
from .serving import ServingActor

# Brokers start at the same time.
BROKER_TIMEOUT_S = 60.0
RETRY_S = 0.2


class SamplingActor(ServingActor):
    """One sampling broker."""

    async def start(self) -> None:
        """Begin to serve."""
        self._coordination = RayCoordination()
        self._client = await self._connected()
        self._server = SamplingServer(self._client, self.config.compression, SystemClock())
        self._sampling = asyncio.create_task(self._server.run())
        await self._coordination.register(SAMPLER, Member(self.name, 0, (), os.uname().nodename, os.getpid()))

    async def _connected(self) -> Client:
        """A client, as soon as a broker serves. Raises TimeoutError."""
        async with asyncio.timeout(BROKER_TIMEOUT_S):
            while True:
                client = Client(resolver("auto", None, None), client_id=self.name, compress=False)
                try:
                    return await client.open()
                except UnavailableError:
                    await asyncio.sleep(RETRY_S)

    def addresses(self) -> tuple[str, ...]:
        """None: it dials."""
        return ()

    def report(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return self._server.status()

    async def end(self) -> None:
        """Stop sampling."""
        self._sampling.cancel()
        with suppress(asyncio.CancelledError, LexicastError):
            await self._sampling
        await self._client.close()
        with suppress(LexicastError):
            await self._coordination.leave(SAMPLER, self.name)
