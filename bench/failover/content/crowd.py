"""Subscribers beside those who are audited: so many conditions that matchers share them out by cells. Most are around
a hot spot.

A part of them can be moved to another hot spot while all goes on: cells there become hot, and are split or copied. What
they get is looked at (`unwanted`), not what they do not get: that is the audit's, whose few lie in the same cells.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import aiomqtt

from lexicast.cluster.errors import UnavailableError

from ..aiomqtt_client import QUIET
from ..brokers import END_S, KEEP_ALIVE_S, Brokers
from ..mqtt5_properties import with_condition
from .hot_spots import CrowdBox, boxes_around

START_S: Final = 60.0
AGAIN_S: Final = 0.5
MOVED: Final = 3
"""One session of so many is moved."""


class CrowdSession:
    """One MQTT 5 client: a box for each of all topics. Its session ends with its connection, so it never has a past."""

    def __init__(self, name: str, brokers: Brokers) -> None:
        self._name = name
        self._brokers = brokers
        # By topic all that there were: what a condition was true of may still be under way.
        self._boxes: dict[str, list[CrowdBox]] = {}
        self._changed = asyncio.Event()
        self._told: dict[str, CrowdBox] = {}
        self.delivered = 0
        self.unwanted = 0

    def want(self, boxes: Mapping[str, CrowdBox]) -> None:
        """These instead of those before, by topic."""
        for topic, box in boxes.items():
            self._boxes.setdefault(topic, []).append(box)
        self._changed.set()

    @property
    def conditions(self) -> int:
        """How many it has, or is to have."""
        return len(self._boxes)

    @property
    def has_all(self) -> bool:
        """Whether all conditions are subscribed to."""
        return bool(self._boxes) and all([self._told.get(topic) is boxes[-1] for topic, boxes in self._boxes.items()])

    async def run(self) -> None:
        """Connect again and again, until cancelled."""
        while True:
            with suppress(aiomqtt.MqttError, OSError, TimeoutError):
                async with self._client() as client:
                    telling = asyncio.create_task(self._tell(client))
                    try:
                        async for message in client.messages:
                            self.arrived(str(message.topic), message.payload)
                    finally:
                        telling.cancel()
                        await asyncio.gather(telling, return_exceptions=True)
            self._told.clear()
            self._brokers.failed()
            await asyncio.sleep(AGAIN_S)

    def _client(self) -> aiomqtt.Client:
        return aiomqtt.Client(
            self._brokers.host,
            self._brokers.port,
            identifier=self._name,
            protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=True,
            keepalive=KEEP_ALIVE_S,
            timeout=END_S,
            logger=QUIET,
        )

    async def _tell(self, client: aiomqtt.Client) -> None:
        """Subscribe to what is wanted, and again to what is wanted otherwise."""
        while True:
            self._changed.clear()
            for topic, boxes in self._boxes.items():
                if self._told.get(topic) is not boxes[-1]:
                    box = boxes[-1]
                    await client.subscribe(topic, 0, properties=with_condition(box.where))
                    self._told[topic] = box
            await self._changed.wait()

    def arrived(self, topic: str, payload: bytes) -> None:
        """A message has come."""
        self.delivered += 1
        found = json.loads(payload)
        self.unwanted += not any([box.holds(found) for box in self._boxes[topic]])


class ConditionsCrowd:
    """See the module's docstring."""

    def __init__(self, hosts: Sequence[str], port: int, topics: Sequence[str], conditions: int, seed: int) -> None:
        """`conditions`: at least so many, as many to each topic."""
        self._topics = topics
        self._seed = seed
        sessions = -(-conditions // len(topics))
        self._sessions = [CrowdSession(f"crowd-{n}", Brokers(hosts, n, port)) for n in range(sessions)]
        self._tasks: list[asyncio.Task[None]] = []
        self._want(self._sessions, 0)

    def _want(self, sessions: Sequence[CrowdSession], turn: int) -> None:
        boxes = iter(boxes_around(turn, len(sessions) * len(self._topics), self._seed))
        for session in sessions:
            session.want(dict(zip(self._topics, boxes, strict=False)))

    async def start(self) -> None:
        """Returns when all have subscribed. Raises UnavailableError."""
        self._tasks = [asyncio.create_task(session.run()) for session in self._sessions]
        until = time.monotonic() + START_S
        while lacking := sum([not session.has_all for session in self._sessions]):
            if time.monotonic() > until:
                raise UnavailableError(f"{lacking} of the crowd's sessions have not subscribed in {START_S:.0f} s")
            await asyncio.sleep(AGAIN_S)

    def move(self, turn: int) -> None:
        """One of MOVED wants what is around another hot spot."""
        self._want(self._sessions[turn % MOVED :: MOVED], turn + 1)

    @property
    def conditions(self) -> int:
        """How many there are."""
        return sum([session.conditions for session in self._sessions])

    @property
    def delivered(self) -> int:
        """What all have got."""
        return sum([session.delivered for session in self._sessions])

    @property
    def unwanted(self) -> int:
        """Of that what no condition was true of."""
        return sum([session.unwanted for session in self._sessions])

    async def stop(self) -> None:
        """All end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
