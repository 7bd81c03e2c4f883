"""The sampling broker: learns dictionaries from the stream and publishes them (DESIGN.md, "Sampling broker").

It is a Python client like any other: subscribes (with the policy `drop`, so it never holds anybody up), looks at no
more than a budget of messages a second, feeds the maintenance algorithm of each family, trains in a thread, and
publishes each new dictionary, retained, on its family's `$sdc/` topic. After a restart it takes up the dictionaries
that are retained there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from lexicast.cluster.clock import Clock
from lexicast.cluster.config import Compression
from lexicast.cluster.errors import LexicastError
from lexicast.cluster.topics import dictionary_topic
from lexicast.compression.accounting import TrafficCounters
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.families import Families
from lexicast.compression.maintenance import FirstSamples, Maintenance
from lexicast.compression.training import fulfil
from lexicast.compression.wire import Recoder

from .client import Client
from .client_messages import Message

log = logging.getLogger(__name__)

# What a message may cost of the budget of bytes, before the budget of messages is spent.
SAMPLE_BYTES = 512


def default_maintenance() -> Maintenance:
    """The algorithm of each family."""
    return FirstSamples()


class SamplingServer:
    """Runs over an open client until cancelled."""

    def __init__(
        self,
        client: Client,
        config: Compression,
        clock: Clock,
        maintenance: Callable[[], Maintenance] = default_maintenance,
    ) -> None:
        self._client = client
        self._config = config
        self._clock = clock
        self._make = maintenance
        self._families = Families(
            [name.encode() for name in config.families], opted_out=[name.encode() for name in config.optout]
        )
        self._maintained: OrderedDict[bytes, Maintenance] = OrderedDict()
        self._current: dict[bytes, Dictionary] = {}
        self._training: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._recoder = Recoder()
        self.counters = TrafficCounters()
        self.observed = 0
        self.published = 0

    async def run(self) -> None:
        """Sample until cancelled."""
        await self._take_up()
        budget = self._config.sampling_records_per_s * SAMPLE_BYTES
        # "0s": from now on, without what is retained.
        subscription = self._client.subscribe("#", "0s", slow="drop", sample_bytes_per_s=budget)
        spent, second = 0, 0
        async with subscription:
            async for message in subscription:
                now = int(self._clock.monotonic())
                if now != second:
                    second, spent = now, 0
                spent += 1
                if spent <= self._config.sampling_records_per_s:
                    self._observe(message)

    async def _take_up(self) -> None:
        """Go on with the dictionaries that an earlier sampling broker left: the broker announces them at once."""
        await self._client.status()
        for dictionary in self._client.dictionaries():
            self._current[dictionary.family] = dictionary
            self._maintenance_of(dictionary.family).adopt(dictionary)

    def _maintenance_of(self, family: bytes) -> Maintenance:
        maintained = self._maintained.get(family)
        if maintained is None:
            maintained = self._maintained[family] = self._make()
            if len(self._maintained) > self._config.families_max:
                self._maintained.popitem(last=False)
        return maintained

    def _observe(self, message: Message) -> None:
        topic = message.topic.encode()
        family = self._families.family_of(topic)
        if family is None:
            return
        self.observed += 1
        self._account(family, message)
        maintained = self._maintenance_of(family)
        maintained.observe(message.payload, self._clock.time_us())
        if family not in self._training and maintained.due() is not None:
            self._training.add(family)
            task = asyncio.create_task(self._train(family, maintained))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _account(self, family: bytes, message: Message) -> None:
        """What the family costs with its dictionary, on a dictionary-aware link (tag byte included)."""
        encoded = self._recoder.encode(message.payload, self._current.get(family))
        self.counters.add(family, len(message.payload), len(encoded.data) + 1)

    async def _train(self, family: bytes, maintained: Maintenance) -> None:
        try:
            due = maintained.due()
            assert due is not None
            now_us = self._clock.time_us()
            made = await asyncio.to_thread(lambda: fulfil(due, family=family, now_us=now_us))
            if made is not None and len(made.content) <= self._config.dictionary_bytes_max:
                packed = made.pack()
                await self._client.publish(dictionary_topic(family).decode(), packed, qos=1, retain=True)
                self._current[family] = made
                self.counters.add_dictionary(family, len(packed))
                self.published += 1
            maintained.adopt(made)
        except LexicastError as error:
            log.warning("family %s: no new dictionary: %s", family.decode(), error)
            maintained.adopt(None)
        finally:
            self._training.discard(family)

    def status(self) -> dict[str, Any]:
        """For `lexicast status`: bytes saved for each family, of the messages looked at."""
        families = {}
        for family, traffic in self.counters.snapshot().items():
            current = self._current.get(family)
            families[family.decode()] = {
                "messages": traffic.messages,
                "raw_bytes": traffic.raw_bytes,
                "sent_bytes": traffic.sent_bytes,
                "dictionary_bytes": traffic.dictionary_bytes,
                "reduction_percent": round(traffic.reduction_percent(), 2),
                "codec": current.codec if current else None,
                "dictionary": f"{current.id:016x}" if current else None,
            }
        return {"observed": self.observed, "dictionaries_published": self.published, "families": families}
