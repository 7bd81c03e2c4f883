"""The drills' clients: lexicast's own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import lexicast
from lexicast.actors.client.address import RUN_FILE
from lexicast.cluster.errors import LexicastError, UnavailableError

from .audit import Audit, Party
from .brokers import END_S, FILTER, HOME_S, TURN_S, DrillPace

ANSWER_S: Final = 3.0


class PythonClient:
    """lexicast's client, publisher and subscriber of the same name."""

    def __init__(self, party: Party, audit: Audit, pace: DrillPace, run_folder: Path) -> None:
        self.party = party
        self._audit = audit
        self._pace = pace
        self._bus = lexicast.connect(data_dir=run_folder, client_id=party.name)
        self._run = run_folder / RUN_FILE
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscribed = asyncio.Event()

    @property
    def at(self) -> str:
        with suppress(OSError, ValueError):  # while it is being written
            addresses = json.loads(self._run.read_text())["brokers"].get(self._bus.broker_name, [])
            return next((a.split(":")[1] for a in addresses if a.startswith("tcp:")), "")
        return ""

    @property
    def at_home(self) -> bool:
        """Anywhere: it chooses its brokers itself."""
        return True

    async def start(self) -> None:
        await self._bus.open()
        for work in (self._read(), self._publish()):
            self._keep(work)
        await self._subscribed.wait()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self) -> None:
        async with self._bus.subscribe(FILTER, where=self.party.where or None) as stream:
            self._subscribed.set()
            async for message in stream:
                self._audit.arrived(self.party.name, message.payload, time.monotonic())

    async def _publish(self) -> None:
        while True:
            if self._pace.due(self.party.name, time.monotonic()):
                number, topic, payload = self._audit.publish(self.party.name, time.monotonic())
                self._keep(self._publish_one(number, topic, payload))
            await asyncio.sleep(TURN_S)

    async def _publish_one(self, number: int, topic: str, payload: bytes) -> None:
        try:
            await self._bus.publish(topic, payload, qos=self.party.qos)
            self._audit.acknowledged(self.party.name, number)
        except lexicast.PublishRefusedError:
            self._audit.refused(self.party.name, number)

    async def go_home(self) -> None:
        """Returns when a broker serves it, which is what its name tells of. Raises UnavailableError."""
        until = time.monotonic() + HOME_S
        while time.monotonic() < until:
            with suppress(LexicastError, TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    await self._bus.status()
                    return
            await asyncio.sleep(TURN_S)
        raise UnavailableError(f"no broker serves {self.party.name} after {HOME_S:.0f} s")

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(LexicastError, TimeoutError):
            async with asyncio.timeout(END_S):
                await self._bus.close()
