"""A whole cluster in one thread and in no time: a seed decides every delay, crash and cut, so that a failure replays.

Real: coordinators (sequencer, committer, routing, requests, copies), the coordination server, pipelines, links,
engines, fan-out, subscribers, caches. Some stories have several copies of each group, and coordinators that are lost,
or only taken for lost. Simulated: the clock (`virtual.SimLoop`: time passes when nothing is left to do), disks (`Gate`
and `MemoryStore`: slow, sometimes full, and a crash loses what was not committed), wires (`virtual.Wire`: delays,
pieces, cuts). No sockets, no threads, no real time.

`run(seed)` plays one story and raises `Violation` when a guarantee of DESIGN section 3 is broken:

    order       within a group every subscriber sees offsets ascend, and all see the same record at an offset
    once        nothing is stored twice, no subscriber sees a position twice
    kept        nothing acknowledged at QoS 1 or 2 is lost: it is in the log, and every subscriber gets what is
    committed   a publication of QoS 1 or 2 is never seen before it is durable in every member of its in-sync set
    alike       in the end each group has its copies again, with the same records at the same places
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import msgpack

from lexicast.actors.broker.coordinator_events import CoordinatorEvents
from lexicast.actors.broker.encoding import LINK, Grant, Kind
from lexicast.actors.broker.engine import BrokerEngine
from lexicast.actors.broker.pipelines import pipeline as pipeline_module
from lexicast.actors.broker.pipelines.entries import GroupEntryBuilder, SealedEntry
from lexicast.actors.broker.pipelines.pipeline import Pipeline
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.actors.coordination.server import CoordinationServer
from lexicast.actors.coordinator import committer as committer_module
from lexicast.actors.coordinator.server import CoordinatorServer
from lexicast.actors.link.handshake import DiallerLink, ListenerLink
from lexicast.actors.link.link import Link, LinkUser
from lexicast.actors.loop import turns as turns_module
from lexicast.cluster.blocks import PUBLICATIONS, QOS_MASK, Block
from lexicast.cluster.clock import Clock
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import LexicastError, StoreError, StoreFullError, UnavailableError
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import COORDINATOR, Member, Members
from lexicast.cluster.positions import topic_group
from lexicast.cluster.topics.names import matches
from lexicast.storage.file.damage import Ledger
from lexicast.storage.log.stored_block import StoredBlock

from .memory_store import MemoryStore
from .virtual import SimLoop, Wire

GROUPS = 3
TOPICS = [b"a", b"b/1", b"b/2", b"c"]
FILTERS = [b"#", b"b/+", b"a", b"c", b"b/1"]
STORY_S = 3.0
HEAL_S = 120.0
PATIENCE_S = 0.05
KEY, CLUSTER_ID = b"k" * 32, "simulated"


class Violation(AssertionError):
    """A guarantee that did not hold."""


class Gate:
    """A process's way to its disk: dead with the process."""

    def __init__(self, store: MemoryStore, world: World) -> None:
        self._store = store
        self._world = world
        self.alive = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _usable(self) -> None:
        if not self.alive:
            raise StoreError("dead")

    def commit(self, blocks: Sequence[Block | StoredBlock], apply: Mapping[int, int] | None = None) -> None:
        """Durable at once, unless the disk is full or the process is dead."""
        self._usable()
        found = [each.block if isinstance(each, StoredBlock) else each for each in blocks]
        if self._store.full and any(block.kind == PUBLICATIONS for block in found):
            raise StoreFullError("full")
        self._store.commit(blocks, apply)

    def promise(self, epochs: Mapping[int, int]) -> None:
        """As the store's."""
        self._usable()
        self._store.promise(epochs)

    def truncate(self, group: int, last: int) -> None:
        """As the store's."""
        self._usable()
        self._store.truncate(group, last)

    def install(self, group: int, page: Any) -> None:
        """As the store's."""
        self._usable()
        self._store.install(group, page)


class MemoryRegistry:
    """As `storage.registry.Registry`: what is committed is durable."""

    def __init__(self) -> None:
        self._rows: dict[str, Any] = {}
        self.damage = Ledger()

    def get(self, key: str) -> Any:
        """As `Registry.get`."""
        return self._rows.get(key)

    def is_damaged(self, key: str) -> bool:
        """Nothing is."""
        return False

    def items(self, prefix: str) -> dict[str, Any]:
        """As `Registry.items`."""
        return {key: value for key, value in self._rows.items() if key.startswith(prefix)}

    def commit(self, changes: Mapping[str, Any]) -> None:
        """As `Registry.commit`."""
        self._rows.update(changes)

    def close(self) -> None:
        """Nothing to close."""


class SimulatedCoordination(CoordinationServer):
    """A coordination server that answers after a while."""

    def __init__(self, world: World, names: Sequence[str]) -> None:
        registry: Any = MemoryRegistry()
        super().__init__(registry, GROUPS, names)
        self._world = world
        self._claims = {name: ({}, None) for name in names}
        self._found()

    async def _later(self) -> None:
        await asyncio.sleep(self._world.choose.random() * 0.02)

    async def members(self, known_version: int, wait_s: float) -> Members:
        """See `Coordination`."""
        await self._later()
        found = await super().members(known_version, wait_s)
        await self._later()
        return found

    async def change_groups(self, changes: dict[int, tuple[GroupState, GroupState]]) -> dict[int, GroupState]:
        """See `Coordination`; sometimes the answer is lost."""
        await self._later()
        held = await super().change_groups(changes)
        await self._later()
        if self._world.choose.random() < 0.1:
            raise UnavailableError("the answer was lost")
        return held


class Reader:
    """A client that reads one filter: what it has seen, whichever brokers it got it from."""

    def __init__(self, topic_filter: bytes, since: dict[int, int]) -> None:
        self.filter = topic_filter
        self.since = since
        self.places: set[tuple[int, int]] = set()
        self.last: dict[int, int] = {}


class Stream(Subscriber):
    """A reader at one broker. It checks what it gets, and now and then has no room."""

    __slots__ = ("cursor", "reader", "world")

    def __init__(self, world: World, engine: BrokerEngine, reader: Reader) -> None:
        super().__init__(engine.subscriptions, Kind(LINK))
        self.world = world
        self.reader = reader
        self.cursor: dict[int, int] = {}

    def write(self, data: bytes) -> None:
        """Take one block."""
        block = Block.from_wire(msgpack.unpackb(data, use_list=False))
        for record in block.records():
            if record.offset <= self.reader.last.get(block.group, -1):
                self.world.broken.append(f"order: {block.group}:{record.offset} after {self.reader.last[block.group]}")
            self.reader.last[block.group] = record.offset
            self.reader.places.add((block.group, record.offset))
            self.world.delivered(block.group, record.offset, record.flags, record.payload)
        self.cursor[block.group] = block.last + 1
        if self.world.choose.random() < 0.1:
            self.block()
            self.world.loop.call_later(self.world.choose.random() * 0.1, self.go_on)

    def go_on(self) -> None:
        """There is room again."""
        if not self.closed:
            self.unblock()


class World:
    """One story."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.loop = SimLoop(random.Random(seed + 1))
        self._dialled: dict[str, int] = {}
        self.seed = seed
        self.config = Config().replaced(
            broker__cache_bytes_max=self.choose.choice([0, 300, 1 << 20]), link__batch_bytes_max=4096
        )
        self.names = ["coordinator-0", "coordinator-1", "coordinator-2"][: self.choose.randint(1, 3)]
        self.copies = min(len(self.names), self.choose.choice([1, 2, 2, 3]))
        self.stores = {name: MemoryStore(GROUPS) for name in self.names}
        for store in self.stores.values():
            store.when_applied = self.applied
        self.coordination = SimulatedCoordination(self, self.names)
        self.incarnation_of: dict[str, int] = {}
        self.gates: dict[str, Gate] = {}
        self.servers: dict[str, CoordinatorServer] = {}
        self.engines: dict[str, BrokerEngine] = {}
        self.incarnations: dict[str, int] = {}
        self.starting: dict[str, CoordinatorServer] = {}
        self.wires: list[Wire] = []
        self.served: list[tuple[CoordinatorServer, Wire]] = []
        self.places: dict[bytes, tuple[int, int]] = {}
        self.records: dict[tuple[int, int], bytes] = {}
        self.acknowledged: set[bytes] = set()
        self.readers: list[Reader] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.broken: list[str] = []

    # -- the clock

    def time_us(self) -> int:
        """`Clock.time_us`."""
        return int(self.loop.time() * 1e6) + 1

    def monotonic(self) -> float:
        """`Clock.monotonic`."""
        return self.loop.time()

    # -- what is checked at once

    def applied(self, block: Block) -> None:
        """A block counts, as one of its copies has it."""
        if block.kind == PUBLICATIONS:
            for record in block.records():
                place = (block.group, record.offset)
                if self.places.setdefault(record.payload, place) != place:
                    self.broken.append(f"once: {record.payload!r} at {place} and {self.places[record.payload]}")

    def is_committed(self, group: int, offset: int, payload: bytes) -> bool:
        """Whether every member of the group's in-sync set has this record there."""
        members = self.coordination._leadership[group].in_sync
        return all(self.stores[name].has(group, offset, payload) for name in members)

    def delivered(self, group: int, offset: int, flags: int, payload: bytes) -> None:
        """A subscriber got a record."""
        if flags & QOS_MASK and not self.is_committed(group, offset, payload):
            self.broken.append(f"committed: {payload!r} was seen at {group}:{offset} before it was durable")
        if self.records.setdefault((group, offset), payload) != payload:
            self.broken.append(f"order: {group}:{offset} is {payload!r} and {self.records[group, offset]!r}")

    # -- processes

    async def open(self, name: str) -> None:
        """Start a coordinator over its store."""
        gate = self.gates[name] = Gate(self.stores[name], self)
        clock: Clock = self
        store: Any = gate
        server = CoordinatorServer(name, store, clock)
        known = self.stores[name].known_epochs()
        # Only for a first start the store may be an empty one.
        cluster_id = self.coordination._cluster["id"] if known or name in self.incarnation_of else None
        states = await self.coordination.open_groups(name, known, cluster_id)
        if self.copies > 1:
            server.share(self.coordination, self.copies, partial(self.dial_peer, name))
        self.starting[name] = server
        await server.start(states)
        if self.starting.get(name) is not server:
            return  # killed meanwhile
        del self.starting[name]
        self.servers[name] = server
        self.incarnation_of[name] = await self.coordination.register(COORDINATOR, Member(name, 0, (name,), name, 0))

    def kill(self, name: str) -> None:
        """Kill a coordinator; the transaction under way may just have made it."""
        server, gate = self.servers.pop(name), self.gates[name]
        if server._copies is not None:
            self.tasks.append(self.loop.create_task(server._copies.stop()))
        for future, (handle, func, arguments) in list(self.loop.calls.items()):
            if getattr(func, "__self__", None) is server.led.committer:
                handle.cancel()
                del self.loop.calls[future]
                if self.choose.random() < 0.5:
                    with suppress(LexicastError):
                        func(*arguments)
        gate.alive = False
        server.led.committer.error = StoreError("dead")  # a dead process writes no more, and ends no loop by that
        for task in [*server._tasks, *server.past._bringing_up.values()]:
            task.cancel()
        for served, wire in self.served:
            if served is server:
                wire.abort()

    async def dial_peer(self, name: str, member: Member, user: Any) -> Link:
        """A coordinator dials another one."""
        return await self.dial(member.addresses, KEY, CLUSTER_ID, ("coordinator", name, 1), lambda link: user, None)

    async def dial(
        self,
        addresses: Sequence[str],
        key: bytes,
        cluster_id: str,
        hello: Any,
        opened: Callable[[Link], LinkUser],
        beats: Any,
    ) -> Link:
        """`pipeline.dial_any`."""
        await asyncio.sleep(0.001)
        server = self.servers.get(addresses[0])
        if server is None:
            raise OSError("nobody listens")
        dialler, listener = (
            DiallerLink(key, cluster_id, hello, opened),
            ListenerLink(KEY, CLUSTER_ID, server.opened, {}),
        )
        # By the dialler's own count: the order in which several dial in one instant must not matter.
        self._dialled[hello[1]] = count = self._dialled.get(hello[1], 0) + 1
        seeds = [random.Random(f"{self.seed}/{hello}/{count}/{side}") for side in ("dialler", "listener")]
        sides = [Wire(self.loop, seeds[0], dialler), Wire(self.loop, seeds[1], listener)]
        sides[0].peer, sides[1].peer = sides[1], sides[0]
        self.wires += sides
        self.served.append((server, sides[1]))
        listener.connection_made(sides[1])
        dialler.connection_made(sides[0])
        return await dialler.wait_open()

    def connect(self, name: str) -> BrokerEngine:
        """Start a broker, or start it again."""
        self.incarnations[name] = incarnation = self.incarnations.get(name, 0) + 1
        clock: Clock = self
        engine = self.engines[name] = BrokerEngine(name, incarnation, GROUPS, self.config, clock)
        events = CoordinatorEvents(engine, {}, lambda pipeline: None, lambda: None)

        def make(member: Member) -> Pipeline:
            hello = ("broker", name, incarnation)
            return Pipeline(
                events,
                member,
                hello,
                (KEY, CLUSTER_ID),
                producer=name.encode(),
                window_batches=2,
                batch_bytes_max=4_096,
                queue_bytes_max=65_536,
            )

        leaders = {group: state.leader for group, state in self.coordination._leadership.states().items()}
        engine.coordinators.follow([Member(n, 0, (n,), "", 0) for n in self.names], make, leaders)
        return engine

    # -- clients

    def any_engine(self) -> BrokerEngine:
        """A broker that runs."""
        return self.engines[self.choose.choice(sorted(self.engines))]

    def answered(self, payloads: Sequence[bytes], result: Any) -> None:
        """The result of an entry: a text is a refusal."""
        if not isinstance(result, str):
            self.acknowledged.update(payloads)

    def publish(self, payload: bytes) -> None:
        """Somebody publishes once. What the broker has not answered before it died is nobody's promise."""
        qos = self.choose.randint(0, 1)
        payloads = [payload + b"/%d" % i for i in range(self.choose.choice([1, 1, 5]))]
        kept = payloads if qos else []
        topic = self.choose.choice(TOPICS)
        self.any_engine().coordinators.publish(
            topic, qos, payloads, "origin", lambda result: self.answered(kept, result)
        )

    def publish_marked(self, payload: bytes, packet_id: int) -> None:
        """A QoS 2 publication, sent again over other brokers and never released."""
        topic = self.choose.choice(TOPICS)

        def send() -> None:
            mark = (b"session", [packet_id])
            done = lambda result: self.answered([payload], result)  # noqa: E731 - read where it is used
            self.any_engine().coordinators.publish(topic, 2, [payload], "origin", done, mark)

        for _ in range(self.choose.randint(1, 3)):
            self.loop.call_later(self.choose.random() * 0.5, send)

    def publish_again(self, producer: bytes, sequence: int, count: int) -> None:
        """A client that is its own producer sends an entry, and again, perhaps over another broker."""
        topic = self.choose.choice(TOPICS)
        builder = GroupEntryBuilder(topic_group(topic, GROUPS))
        payloads = [b"%s-%d" % (producer, sequence + i) for i in range(count)]
        builder.add(topic, 1, payloads, "client")
        sealed = builder.seal(producer, 1, sequence)

        def send() -> None:
            done = lambda result: self.answered(payloads, result)  # noqa: E731 - read where it is used
            self.any_engine().coordinators.forward(SealedEntry(sealed.wire, [done], (), sealed.size_bytes), count)

        for _ in range(self.choose.randint(1, 3)):
            self.loop.call_later(self.choose.random() * 0.5, send)

    async def read(self, topic_filter: bytes) -> None:
        """A reader from its start to the end of the story, at one broker after the other."""
        groups = range(GROUPS) if topic_filter in (b"#", b"b/+") else [topic_group(topic_filter, GROUPS)]
        start = dict.fromkeys(groups, 0) if self.choose.random() < 0.6 else None
        reader = Reader(topic_filter, start or {})
        while True:
            engine = self.any_engine()
            stream = Stream(self, engine, reader)
            stream.block()
            try:
                async with asyncio.timeout(1.0):
                    await engine.subscriptions.subscribe(stream, {topic_filter: Grant()}, start=start)
            except (LexicastError, TimeoutError):
                engine.subscriptions.leave(stream)
                continue
            stream.cursor = engine.subscriptions.cursor_of(stream)
            if reader not in self.readers:
                reader.since = start or dict(stream.cursor)
                self.readers.append(reader)
            stream.unblock()
            until = self.loop.time() + self.choose.random() * 4
            for _ in range(round((STORY_S + HEAL_S) / PATIENCE_S)):
                await asyncio.sleep(PATIENCE_S)
                if self.engines[engine.name] is not engine or until < self.loop.time() < STORY_S:
                    break
            engine.subscriptions.leave(stream)
            start = dict(stream.cursor)

    # -- the story

    def disturb(self) -> None:
        """One mishap."""
        mishaps = ["coordinator", "broker", "cut", "cut", "full"]
        match self.choose.choice([*mishaps, "coordinator", "suspected"] if self.copies > 1 else mishaps):
            case "coordinator" if self.servers:
                name = self.choose.choice(sorted(self.servers))
                self.kill(name)
                self.loop.call_later(self.choose.random() * 0.2, self.suspect, name)
                self.later(self.choose.random() * 0.6, self.open, name)
            case "suspected" if self.servers:
                # It serves, but the coordination server takes it for lost, and finds it again.
                name = self.choose.choice(sorted(self.servers))
                self.suspect(name)
                self.loop.call_later(self.choose.random() * 0.3, self.find, name)
            case "broker":
                engine = self.any_engine()
                self.tasks.append(self.loop.create_task(engine.close()))
                self.connect(engine.name)
            case "cut" if self.wires:
                self.choose.choice(self.wires).abort()
            case "full":
                store = self.stores[self.choose.choice(self.names)]
                store.full = True
                self.loop.call_later(self.choose.random() * 0.2, setattr, store, "full", False)

    def suspect(self, name: str) -> None:
        """The coordination server takes a coordinator for lost."""
        self.coordination.lost(COORDINATOR, name, self.incarnation_of.get(name, 0))

    def find(self, name: str) -> None:
        """It can be reached again."""
        self.coordination.found(COORDINATOR, name, self.incarnation_of.get(name, 0))

    def later(self, delay_s: float, work: Callable[..., Any], *arguments: Any) -> None:
        """Start a coroutine after a while."""
        self.loop.call_later(delay_s, lambda: self.tasks.append(self.loop.create_task(work(*arguments))))

    async def play(self) -> None:
        """The whole story."""
        choose = self.choose

        def at() -> float:
            return choose.random() * STORY_S

        for name in self.names:
            await self.open(name)
        for i in range(choose.randint(1, 3)):
            self.connect(f"broker-{i}")
        for i in range(choose.randint(10, 40)):
            self.loop.call_at(at(), self.publish, b"once-%d" % i)
        for i in range(choose.randint(0, 6)):
            self.loop.call_at(at(), self.publish_marked, b"marked-%d" % i, i + 1)
        for producer in (b"p", b"q"):
            sequence = 1
            for when in sorted(at() for _ in range(choose.randint(0, 10))):
                count = choose.randint(1, 3)
                self.loop.call_at(when, self.publish_again, producer, sequence, count)
                sequence += count
        for _ in range(choose.randint(1, 5)):
            self.later(at() * 0.7, self.read, choose.choice(FILTERS))
        for _ in range(choose.randint(0, 8)):
            self.loop.call_at(at(), self.disturb)
        await asyncio.sleep(STORY_S + 1.0)
        await self.healed()

    async def healed(self) -> None:
        """Nothing disturbs any more: everything has to come right. Raises Violation."""
        until = self.loop.time() + HEAL_S
        while (lacking := self.lacking()) and not self.broken:
            if self.loop.time() > until:
                raise Violation(f"kept: {lacking}")
            await asyncio.sleep(0.5)
        lost = self.acknowledged - self.places.keys()
        if lost:
            self.broken.append(f"kept: {sorted(lost)} were acknowledged and are not stored")
        self.broken += self.loop.errors
        if self.broken:
            raise Violation(self.broken[0])

    def lacking(self) -> str:
        """What is still to come."""
        for engine in self.engines.values():
            for pipeline in engine.coordinators.pipelines.values():
                if pipeline.unanswered_bytes:
                    return f"{engine.name} has {pipeline.unanswered_bytes} bytes unanswered at {pipeline.member.name}"
        for reader in self.readers:
            wanted = {
                (group, offset)
                for store in self.stores.values()
                for group, offset, topic, _, _ in store.records()
                if group in reader.since and offset >= reader.since[group] and matches(reader.filter, topic)
            }
            if not wanted <= reader.places:
                missing = sorted(wanted - reader.places)
                return f"the reader of {reader.filter!r} since {reader.since} lacks {missing[:3]} of {len(missing)}"
        for group, state in self.coordination._leadership.states().items():
            if len(state.in_sync) < self.copies:
                return f"group {group} has {len(state.in_sync)} copies"
            if len({tuple(self.stores[name].publications(group)) for name in state.in_sync}) > 1:
                return f"the copies of group {group} at {state.in_sync} are not alike"
        return ""


def run(seed: int) -> World:
    """Play the story of `seed`. Raises Violation, which names the seed."""
    world = World(seed)
    with (
        patch.object(pipeline_module, "dial_any", world.dial),
        patch.object(committer_module, "monotonic", world.loop.time),
        patch.object(turns_module, "now_s", world.loop.time),
    ):
        try:
            world.loop.run_until_complete(world.play())
        except Violation as violation:
            raise Violation(f"seed {seed}: {violation}") from None
        finally:
            for task in asyncio.all_tasks(world.loop):
                task.cancel()
            world.loop.run_until_complete(asyncio.sleep(1.0))
            world.loop.close()
    return world
