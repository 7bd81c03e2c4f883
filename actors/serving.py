"""The life that all serving actors share: constructed by Ray (again after a crash), starting, ready, stopped.

Constructing never fails, else Ray would restart the actor for ever; what went wrong is kept and raised by `ready`.
An actor that Ray restarted starts serving by itself: nobody calls `ready` then.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from abc import ABC, abstractmethod
from typing import Any

from lexicast.cluster.config import Config
from lexicast.cluster.errors import LexicastError, StoreError, UnavailableError

log = logging.getLogger(__name__)

# A full collection stops everything: with Ray's own objects and a cache that fills 35, 47, 80 ms within 15 s of 5,000
# messages/s (p99.9 of the latency 50 ms, without them 2). What start-up has made lives as long as the process and is
# left out (`gc.freeze`); after that a full one comes after 2.1 million new containers that stayed, not 70,000. Blocks
# in caches need none, and closed connections neither (tested): references count them.
GC_THRESHOLDS = (700, 10, 300)


class ServingActor(ABC):
    """Base of the coordinator, broker and sampling actors."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        """`config`: a whole Config as plain values; `node.data_dir` must be set."""
        logging.basicConfig(level=logging.WARNING, format=f"{name}: %(levelname)s %(message)s")
        self.name = name
        self.config = Config.from_dict(config)
        self._error: LexicastError | None = None
        self._starting = asyncio.get_running_loop().create_task(self._start())

    async def _start(self) -> None:
        try:
            await self.start()
            settle_garbage_collector()
        except LexicastError as error:
            self._error = error
        except TimeoutError:
            self._error = UnavailableError(f"{self.name}: the rest of the cluster did not answer in time")
        except OSError as error:
            self._error = StoreError(f"{self.name}: {error}")
        if self._error is not None:
            log.error("%s", self._error)

    @abstractmethod
    async def start(self) -> None:
        """Begin to serve; returns once it does."""

    @abstractmethod
    async def end(self) -> None:
        """Stop serving, cleanly."""

    @abstractmethod
    def addresses(self) -> tuple[str, ...]:
        """Link addresses; empty when it has none."""

    @abstractmethod
    def report(self) -> dict[str, Any]:
        """What `status` answers while it serves."""

    def mqtt_port(self) -> int:
        """The MQTT port; 0 when it has none."""
        return 0

    async def ready(self) -> dict[str, Any]:
        """{"pid", "addresses", "mqtt_port"} once it serves. Raises why it does not."""
        await asyncio.shield(self._starting)
        if self._error is not None:
            raise self._error
        return {"pid": os.getpid(), "addresses": list(self.addresses()), "mqtt_port": self.mqtt_port()}

    async def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        self.check_serving()
        return self.report()

    def check_serving(self) -> None:
        """Raises why it does not serve, UnavailableError while it starts."""
        if self._error is not None:
            raise self._error
        if not self._starting.done():
            raise UnavailableError(f"{self.name} is starting: try again in a moment")

    async def stop(self) -> None:
        """Stop serving; every later call raises UnavailableError."""
        if self._error is None:
            if not self._starting.done():
                self._starting.cancel()
                await asyncio.wait([self._starting])
            await self.end()
            self._error = UnavailableError(f"{self.name} has stopped")


def settle_garbage_collector() -> None:
    """Leave what lives now out of all later collections, and make full ones rare; see GC_THRESHOLDS."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
