"""Dictionary-aware clients of a broker over real connections, old ones and new, and dictionaries for them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import Any

from lexicast.actors.client.client import Client
from lexicast.actors.client.known_brokers import Endpoint
from lexicast.cluster.topics.names import DICTIONARY_PREFIX, dictionary_topic
from lexicast.compression.codecs import ZSTD_DENSE
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.session import ClientSession, Deliver
from lexicast.compression.training import train
from lexicast.compression.wire import ALIAS_TOPIC, HISTORY_PROPERTY, STREAMS_PROPERTY, USER_PROPERTY

from .mqtt_harness import WAIT_S, Message, Raw, Served, unique

USER = 38


def reading(seed: int) -> bytes:
    draw = random.Random(seed)
    fields = {"device": f"d-{draw.randrange(10_000)}", "temperature": round(draw.gauss(20, 5), 2), "unit": "celsius"}
    return json.dumps(fields | {"firmware": "4.17.2", "state": draw.choice(["running", "idle", "failed"])}).encode()


class Aware:
    """A dictionary-aware MQTT client on a raw connection, which decodes what it gets."""

    def __init__(self, client: Raw) -> None:
        self.client = client
        self.session: ClientSession[None] = ClientSession()
        told = [tuple(pair) for pair in (client.connack.properties or {}).get(USER, ())]
        self.session.connected(
            USER_PROPERTY in told, streams=STREAMS_PROPERTY in told, history=HISTORY_PROPERTY in told
        )

    async def take(self, count: int) -> list[bytes]:
        """The next publications of the program's topics."""
        got: list[bytes] = []
        while len(got) < count:
            got += self.read(await self.client.expect(Message))
        return got

    def read(self, message: Message) -> list[bytes]:
        """What the program gets of one that has come."""
        steps = self.session.incoming(None, message.topic.encode(), message.payload, 0.0)
        got = [step.payload for step in steps if isinstance(step, Deliver)]
        assert len(got) == len(steps), steps
        return got


class Device(Aware):
    """One that publishes, too: `wire` keeps payloads as they crossed the connection."""

    def __init__(self, client: Raw) -> None:
        super().__init__(client)
        self.wire: list[bytes] = []
        self.dictionaries: list[bytes] = []

    async def publish(self, topic: str, *payloads: bytes) -> None:
        for payload in payloads:
            bindings, sent = self.session.outgoing(topic.encode(), payload, 0)
            for binding in bindings:
                await self.client.publish(ALIAS_TOPIC.decode(), binding)
            self.wire.append(sent)
            await self.client.publish(topic, sent, qos=1)
            await self.look()

    async def look(self) -> None:
        """Take what has come: dictionaries."""
        for packet in await self.client.ping():
            assert isinstance(packet, Message)
            assert self.read(packet) == []

    def read(self, message: Message) -> list[bytes]:
        if not message.topic.startswith(DICTIONARY_PREFIX.decode()):
            self.wire.append(message.payload)
        elif message.topic != ALIAS_TOPIC.decode():
            self.dictionaries.append(message.payload)
        return super().read(message)

    @property
    def tags(self) -> list[int]:
        return [payload[0] for payload in self.wire]


async def device(there: Served, *properties: tuple[str, str]) -> Device:
    return Device(await Raw.connect(there.port, _38=[USER_PROPERTY, *(properties or (HISTORY_PROPERTY,))]))


async def old_device(there: Served) -> Device:
    """Of a release before links' pasts."""
    return Device(await Raw.connect(there.port, _38=[USER_PROPERTY]))


def python_client(there: Served, **options: Any) -> Client:
    """One that reaches the broker by TCP alone, as from another machine."""
    coordination = there.cluster.coordination

    async def resolve() -> list[Endpoint]:
        members, info = await coordination.members(-1, 0), await coordination.cluster()
        return [
            Endpoint(m.name, tuple([a for a in m.addresses if a.startswith("tcp:")]), info.cluster_id, info.key)
            for m in members.brokers.values()
        ]

    return Client(resolve, **options)


async def learn(
    there: Served,
    family: str,
    created_us: int = 1,
    of: Callable[[int], bytes] = reading,
    size: int = 1_000,
    codec: str = ZSTD_DENSE,
) -> Dictionary:
    samples = [of(-n) for n in range(1, 300)]
    made = train(samples, size, codec, family=family.encode(), created_us=created_us)

    async def announce() -> None:
        async with python_client(there, client_id=unique("sampling"), compress=False) as client:
            await client.publish(dictionary_topic(made.family).decode(), made.pack(), retain=True)
        until = time.monotonic() + WAIT_S
        while there.broker().engine.dictionaries.families.newest(made.family) != made:
            assert time.monotonic() < until
            await asyncio.sleep(0.002)

    await asyncio.to_thread(lambda: there.run(announce()))
    return made
