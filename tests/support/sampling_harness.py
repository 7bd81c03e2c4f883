"""Sampling brokers over a cluster of the harness: real links, real stores, no Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.client.client import Client
from lexicast.actors.client.known_brokers import Endpoint
from lexicast.actors.sampling.server import SamplingServer, default_maintenance
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.config.tables import Config
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.maintenance import Maintenance

from .harness import Cluster, eventually


def reading(device: int, number: int) -> bytes:
    """A message of a family that compresses well."""
    return json.dumps({"device": device, "kind": "telemetry", "temperature": 20 + number % 7, "n": number}).encode()


class Sampled:
    """A cluster, and sampling brokers over it."""

    def __init__(self, cluster: Cluster, broker: BrokerServer) -> None:
        self.cluster = cluster
        self.broker = broker

    def client(self, name: str, compress: bool = False) -> Client:
        """A client of the broker."""

        async def resolve() -> list[Endpoint]:
            members = await self.cluster.coordination.members(-1, 0)
            info = await self.cluster.coordination.cluster()
            return [Endpoint(m.name, m.addresses, info.cluster_id, info.key) for m in members.brokers.values()]

        return Client(resolve, client_id=name, compress=compress)

    @asynccontextmanager
    async def sampler(
        self,
        name: str = "sampling-0",
        make: Callable[[], Maintenance] = default_maintenance,
        others: str = "",
        rules: bool = False,
    ) -> AsyncIterator[SamplingServer]:
        """A sampling broker, sampling; killed at the end (nothing is saved or said)."""
        before = self._sampling()
        async with self.client(name) as client:
            server = SamplingServer(client, self.cluster.config.compression, SystemClock(), make, rules=rules)
            server.set_members({name, *others.split()})
            task = asyncio.create_task(server.run())
            await eventually(lambda: self._sampling() > before)
            try:
                yield server
            finally:
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    task.result()

    def _sampling(self) -> int:
        return sum(subscriber.samples for subscriber, _ in self.broker.engine.fanout.fan(b"any"))

    def dictionary(self, topic: bytes) -> Dictionary | None:
        """What the broker has for a topic."""
        return self.broker.engine.dictionaries.newest(topic)


@asynccontextmanager
async def sampled(folder: Path, **knobs: Any) -> AsyncIterator[Sampled]:
    async with Cluster(folder, config=Config().replaced(**knobs)) as cluster:
        await cluster.start_coordinator()
        yield Sampled(cluster, await cluster.start_broker("broker-0"))


async def publish(bus: Client, pattern: str, count: int, start: int = 0) -> None:
    numbers = range(start, start + count)
    await bus.publish_many([(pattern.format(1_000_000 + n % 5), reading(n % 5, n)) for n in numbers])
