"""The store that the damage driver damages, which holds every kind of row, and a whole cluster served from a folder."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

import lexicast
from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.client.client import Client
from lexicast.actors.coordination.server import LocalCoordination
from lexicast.actors.coordinator.server import CoordinatorServer
from lexicast.actors.link.sockets import listen
from lexicast.actors.mqtt.codec import PacketReader, encode_packet
from lexicast.actors.mqtt.codec.packets import (
    V5,
    AckRun,
    ConnAck,
    Connect,
    Disconnect,
    Publish,
    PublishRun,
    SubAck,
    Subscribe,
    SubscriptionOptions,
)
from lexicast.cluster.blocks import control_block
from lexicast.cluster.clock import ManualClock, SystemClock
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import PeerError, UnavailableError
from lexicast.cluster.membership import COORDINATOR, Member
from lexicast.cluster.records import ControlRecord, DictionaryStored, ProducerSeen, Released, Subscribed, pack_record
from lexicast.storage.environment.environment import DATA_FILE
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.store import Store

from .file_rows import FileRows

GROUPS: Final = 4
COORDINATOR_NAME: Final = "coordinator-0"
COORDINATION: Final = "coordination"
SESSIONS: Final = 6
# Rows of `superseded` at least, which compaction takes away when it is due.
SUPERSEDED: Final = 2
RETAINED: Final = 12
TOPICS: Final = 24
EXPIRY_S: Final = 100_000.0
# Ids that only a damaged row could lose: none of the families that they name is ever used.
DICTIONARIES: Final = range(1, 5)
FOREVER_US: Final = 2**62
SESSION_EXPIRY: Final = 17
PACKET_BYTES_MAX: Final = 1 << 20

_MIB: Final = 1 << 20
OPTIONS: Final = StoreOptions(
    map_bytes=64 * _MIB, quota_bytes=48 * _MIB, reserve_bytes=_MIB, retention_s=3_600, index_step_topics=32
)

P = TypeVar("P")


class SilentClient:
    """An MQTT 5 client that acknowledges nothing, so that what it gets stays in flight."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._stream = reader
        self._writer = writer
        self._reader = PacketReader(PACKET_BYTES_MAX, from_client=False, version=V5)
        self._packets: deque[Any] = deque()
        self.connack = ConnAck()
        self.missing: set[str] = set()

    @classmethod
    async def connect(cls, port: int, client_id: str, clean: bool = False) -> Self:
        """CONNECT with a session that outlives the connection, and its CONNACK."""
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        client.send(Connect(V5, client_id, clean, properties={SESSION_EXPIRY: int(EXPIRY_S)}))
        client.connack = await client.expect(ConnAck)
        return client

    def send(self, packet: Any) -> None:
        """A packet."""
        self._writer.write(encode_packet(packet, V5))

    async def expect(self, kind: type[P]) -> P:
        """The next packet of `kind`; others are dropped. Raises UnavailableError when the broker closes."""
        while True:
            while self._packets:
                packet = self._packets.popleft()
                if isinstance(packet, kind):
                    return packet
            data = await self._stream.read(1 << 16)
            if not data:
                raise UnavailableError("the broker has closed an MQTT connection")
            self._packets.extend(self._reader.feed(data))

    async def subscribe(self, name: str, qos: int) -> None:
        """SUBSCRIBE to one filter. Raises PeerError when it is refused."""
        self.send(Subscribe(1, [(name.encode(), SubscriptionOptions(qos))]))
        answer = await self.expect(SubAck)
        if answer.reason_codes[0] > 2:
            raise PeerError(f"SUBSCRIBE {name} was refused with {answer.reason_codes[0]:#x}")

    async def topics(self, wanted: set[str]) -> set[str]:
        """Of the wanted topics those of which a publication arrives before everything has; `missing` are the others."""
        self.missing = set(wanted)
        while self.missing:
            run = await self.expect(PublishRun)
            self.missing.discard(run.topic.decode())
        return wanted

    async def close(self) -> None:
        """DISCONNECT."""
        self.send(Disconnect(0))
        self._writer.close()
        await self._writer.wait_closed()


def _nothing(store: Store) -> None:
    """Nobody looks at it."""


class Served(NamedTuple):
    """A running cluster."""

    server: CoordinatorServer
    broker: BrokerServer
    bus: Client


@asynccontextmanager
async def served(
    folder: Path, coordination: LocalCoordination, opened: Callable[[Store], None] = _nothing
) -> AsyncIterator[Served]:
    """A coordinator over the store in `folder`, a broker and a client; `opened` sees the store before they start.

    Raises LexicastError.
    """
    clock = SystemClock()
    info = await coordination.cluster()
    known = await asyncio.to_thread(folder.exists)
    store = Store.open(
        folder, cluster_id=info.cluster_id, member=COORDINATOR_NAME, groups=info.groups, options=OPTIONS, clock=clock
    )
    opened(store)
    tails = {group: tail.epoch for group, tail in store.tails().items()}
    states = await coordination.open_groups(COORDINATOR_NAME, tails, info.cluster_id if known else None)
    server = CoordinatorServer(COORDINATOR_NAME, store, clock)
    with tempfile.TemporaryDirectory(prefix="lexicast-damage-") as run:
        await server.start(states)
        listener, address = await listen(f"unix:{run}/c", info.key, info.cluster_id, server.opened, {})
        member = Member(COORDINATOR_NAME, 0, (address,), "node", os.getpid(), tuple(sorted(states)))
        await coordination.register(COORDINATOR, member)
        config = Config().replaced(mqtt__port=0)
        broker = await BrokerServer.start("broker-0", config, coordination, clock, Path(run))
        try:
            async with lexicast.connect(f"link:{broker.sockets.addresses[0]}", key=info.key, compress=False) as bus:
                yield Served(server, broker, bus)
        finally:
            await broker.stop()
            listener.close()
            await server.stop()


def record_payload(topic: str, number: int) -> bytes:
    """What record `number` of a topic holds."""
    return f"{topic} {number} ".encode() * (1 + number % 7)


async def fill_store(folder: Path) -> None:
    """Fill `folder` with a store and its coordination: all kinds of publications, sessions with messages in flight,
    QoS 2 marks, producers, dictionaries, subscriptions, index segments, and retained records that outlived their block.
    """
    coordination = LocalCoordination(folder / COORDINATION, GROUPS, (COORDINATOR_NAME,))
    store = folder / COORDINATOR_NAME
    try:
        async with served(store, coordination) as cluster:
            for number in range(RETAINED):
                await cluster.bus.publish(f"kept/{number}", record_payload("kept", number), qos=1, retain=True)
        await _outlive(store, coordination)
        async with served(store, coordination) as cluster:
            await _fill(cluster)
        while _superseded(store) < SUPERSEDED:  # compaction was due just before all stopped
            async with served(store, coordination) as cluster:
                await _subscribe_broker(cluster)
        await _follow(store, coordination)
    finally:
        coordination.close()


async def _outlive(folder: Path, coordination: LocalCoordination) -> None:
    """Let retention take everything so far: retained records are rescued."""
    info = await coordination.cluster()
    clock = ManualClock(SystemClock().time_us())
    store = Store.open(
        folder, cluster_id=info.cluster_id, member=COORDINATOR_NAME, groups=GROUPS, options=OPTIONS, clock=clock
    )
    store.flush()
    while store.stats().blocks:
        clock.advance(1_800)  # a step that no clock is suspected of
        store.reclaim(clock.time_us())
    store.close()


async def _follow(folder: Path, coordination: LocalCoordination) -> None:
    """Leave what a follower has when it stops: promises, and records of which it does not know that they count."""
    info = await coordination.cluster()
    store = Store.open(
        folder,
        cluster_id=info.cluster_id,
        member=COORDINATOR_NAME,
        groups=GROUPS,
        options=OPTIONS,
        clock=SystemClock(),
    )
    released = pack_record(Released(b"nobody", (1,)))
    blocks = []
    for group, tail in store.tails().items():
        for at in (1, 2):
            blocks.append(control_block(group, tail.epoch + 1, tail.last + at, tail.time_us, [released]))
    store.promise({block.group: block.epoch for block in blocks})
    store.commit(blocks, {})
    store.close()


async def _fill(cluster: Served) -> None:
    bus, port = cluster.bus, cluster.broker.mqtt.port
    for number in range(TOPICS):
        topic = f"data/{number}"
        await bus.publish_many([(topic, record_payload(topic, n)) for n in range(12)], qos=number % 3)
        await bus.publish(f"state/{number}", record_payload("state", number), qos=1, retain=True)
        await bus.publish(f"expiring/{number}", b"soon", qos=1, expiry_s=EXPIRY_S)
    records: list[ControlRecord] = [DictionaryStored(i, f"family/{i}", bytes(range(200))) for i in DICTIONARIES]
    records.append(ProducerSeen(b"restated", 1, 5))
    for group in range(GROUPS):
        for record in records:
            await _append(cluster.server, group, record)
    await _subscribe_broker(cluster)
    # Last: of what they supersede some is left when all stops.
    for number in range(SESSIONS):
        device = await SilentClient.connect(port, f"device-{number}")
        await device.subscribe(f"command/{number}", 1 + number % 2)
        for n in range(3):
            await bus.publish(f"command/{number}", record_payload("command", n), qos=2)
        await device.topics({f"command/{number}"})
        device.send(Publish(b"data/marked", b"not released", 2, packet_id=7))
        await device.expect(AckRun)
        await device.close()


async def _subscribe_broker(cluster: Served) -> None:
    """Subscriptions of a broker in all groups, which supersede those that it had."""
    for group in range(GROUPS):
        for name in (*[f"data/{i}" for i in range(6)], "data/#"):
            await _append(cluster.server, group, Subscribed("broker-9", 1, name, 0, FOREVER_US))


def _superseded(store: Path) -> int:
    rows = FileRows((store / DATA_FILE).read_bytes())
    return len([row for row in rows if row.table == "superseded"])


async def _append(server: CoordinatorServer, group: int, record: ControlRecord) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(error: Exception | None) -> None:
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    server.led.append_control(group, record, answered)
    await done
