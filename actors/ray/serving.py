"""The life that all serving actors share: constructed by Ray (again after a crash), starting, ready, stopped.

Constructing never fails, else Ray would restart the actor for ever; what went wrong is kept, raised by `ready` and told
by `status`. An actor that Ray restarted starts serving by itself: nobody calls `ready` then. So a start that failed for
a reason that may pass is tried again, by itself, for ever: who was started while the disk was full, or before the rest
of the cluster, serves a moment later. One of its loops that ends ends the process (`background`).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from abc import ABC, abstractmethod
from typing import Any

from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import (
    AuthenticationError,
    LexicastError,
    StoreError,
    StoreFormatError,
    StorePoisonedError,
    UnavailableError,
    UsageError,
)

from ..loop.background import end_process_on
from .errors import LOG_HINT

log = logging.getLogger(__name__)

# A full collection stops everything: with Ray's own objects and a cache that fills 35, 47, 80 ms within 15 s of 5,000
# messages/s (p99.9 of the latency 50 ms, without them 2). What start-up has made lives as long as the process and is
# left out (`gc.freeze`); after that a full one comes after 2.1 million new containers that stayed, not 70,000. Blocks
# in caches need none, and closed connections neither (tested): references count them. The others come rarely too: what
# is under way between two commits is thousands of containers that live for a tenth of a second, and looking through
# 700 of them at a time took a sixth of a coordinator's time in the interpreter, where groups have two copies. 20,000
# are looked through in half a millisecond.
GC_THRESHOLDS = (10_000, 1, 105)


# A start that failed for a reason that may pass is tried again after so long, twice as long each time.
RETRY_FIRST_S = 0.5
RETRY_MOST_S = 30.0
# Reasons that do not pass by themselves: somebody has to change something first.
LASTING = (UsageError, AuthenticationError, StoreFormatError, StorePoisonedError)


class ServingActor(ABC):
    """Base of the coordinator, broker and sampling actors."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        """`config`: a whole Config as plain values; `node.data_dir` must be set."""
        self.name = name
        self.config = Config.from_dict(config)
        logging.basicConfig(level=logging.WARNING, format=f"{name}: %(levelname)s %(message)s")
        logging.getLogger("lexicast").setLevel(self.config.node.log_level.upper())
        # Why it does not serve (now); None: it serves, or has not tried yet.
        self._error: LexicastError | None = None
        self._tried = asyncio.Event()
        self._stopped = False
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(end_process_on(name))
        self._starting = loop.create_task(self._start())

    async def _start(self) -> None:
        """Start; after a reason that may pass (a disk that was full, a cluster that was not complete) again."""
        pause_s = RETRY_FIRST_S
        while True:
            error = await self._try_start()
            self._error = error
            self._tried.set()
            if error is None or isinstance(error, LASTING):
                return
            log.warning("%s is tried again in %.1f s", self.name, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MOST_S)

    async def _try_start(self) -> LexicastError | None:
        """One try; why it failed, told in the log."""
        error: LexicastError
        try:
            await self.start()
            settle_garbage_collector()
            return None
        except LexicastError as reason:
            error = reason
        except TimeoutError as reason:
            error = UnavailableError(str(reason) or f"{self.name}: the rest of the cluster did not answer in time")
        except OSError as reason:
            error = StoreError(f"{self.name}: {reason}")
        except Exception as defect:
            log.exception("%s cannot start", self.name)
            error = UnavailableError(f"{self.name} cannot start ({type(defect).__name__}: {defect}): {LOG_HINT}")
        log.error("%s", error)
        return error

    @abstractmethod
    async def start(self) -> None:
        """Begin to serve; returns once it does. It may be called again after it has raised, so it leaves nothing behind
        then."""

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
        await self._tried.wait()
        self.check_serving()
        return {"pid": os.getpid(), "addresses": list(self.addresses()), "mqtt_port": self.mqtt_port()}

    async def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        self.check_serving()
        return self.report()

    def check_serving(self) -> None:
        """Raises why it does not serve, UnavailableError while it starts."""
        if self._error is not None:
            raise self._error
        if not self._tried.is_set():
            raise UnavailableError(f"{self.name} is starting: try again in a moment")

    async def stop(self) -> None:
        """Stop serving; every later call raises UnavailableError."""
        if self._stopped:
            return
        self._stopped = True
        if not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
        elif self._error is None:
            await self.end()
        self._error = UnavailableError(f"{self.name} has stopped")
        self._tried.set()


def settle_garbage_collector() -> None:
    """Leave what lives now out of all later collections, and make full ones rare; see GC_THRESHOLDS."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
