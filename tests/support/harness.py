"""A cluster in one event loop without Ray: real stores, real Unix-socket links, real coordinators and brokers.

    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        stream = await broker.subscribe(b"a/#")
        await broker.publish(b"a/b", [b"1", b"2"])
        assert [r.payload for r in await stream.arrived(2)] == [b"1", b"2"]

A coordinator or broker can be crashed (links cut, nothing flushed) and started again over the same folder; its disk can
be held, so that a test decides what is durable when.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgpack

from lexicast.actors.broker.coordinator_events import CoordinatorEvents
from lexicast.actors.broker.encoding import LINK, Grant, Kind
from lexicast.actors.broker.engine import BrokerEngine
from lexicast.actors.broker.pipelines.pipeline import Pipeline
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.actors.coordination.server import LocalCoordination
from lexicast.actors.coordinator.replication.reporting import report_before_serving
from lexicast.actors.coordinator.server import CoordinatorServer
from lexicast.actors.coordinator.shares.led_shares import ShareRules
from lexicast.actors.link.link import BEATS, Link, LinkUser
from lexicast.actors.link.sockets import dial, listen
from lexicast.actors.loop.background import keep_going, stop_loops
from lexicast.actors.ray.following import follow_members
from lexicast.actors.status.cluster_status import AskActor, cannot_ask
from lexicast.cluster.blocks import Block
from lexicast.cluster.clock import Clock, SystemClock
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import StoreError
from lexicast.cluster.membership import BROKER, COORDINATOR, MATCHER, Member
from lexicast.storage.environment.identity import peek_identity
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.log.stored_block import StoredBlock
from lexicast.storage.store import Store

if TYPE_CHECKING:
    from lexicast.actors.broker.server import BrokerServer
    from lexicast.actors.matcher.server import MatcherServer
    from lexicast.actors.matcher.sockets import MatcherSockets
    from lexicast.cluster.skipcloud.identifiers import CloudShape

GROUPS = 4
WAIT_S = 60.0
MIB = 1 << 20
STORE = StoreOptions(map_bytes=256 * MIB, quota_bytes=200 * MIB, reserve_bytes=MIB)
TEST_NODE = "node"


async def eventually(
    true: Callable[[], Any], what: str = "what the test waits for", wait_s: float = WAIT_S, every_s: float = 0.001
) -> None:
    """Return once `true()`; fail after `wait_s`. The event loop turns meanwhile: no fixed sleeps in tests. `every_s`:
    how often it is looked, less often at what other processes do."""
    until = asyncio.get_running_loop().time() + wait_s
    while not true():
        assert asyncio.get_running_loop().time() < until, f"{what} did not come true within {wait_s:.0f} s"
        await asyncio.sleep(every_s)


def silence(link: Link) -> None:
    """The process at this end is dead: it says nothing any more."""
    for name in ("send", "send_packed"):
        setattr(link, name, lambda message: None)


class Shifted(SystemClock):
    """The machine's clock, and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def time_us(self) -> int:
        return super().time_us() + int(self.ahead_s * 1_000_000)

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


class Disk:
    """Between a coordinator and its store: holds commits back, or loses what was not committed."""

    def __init__(self, store: Store) -> None:
        # What writes when the disk is not held.
        self.write = store.commit
        self._open = threading.Event()
        self._open.set()
        self._dead = False
        self.commits = 0
        self.waiting = 0
        store.commit = self.commit  # type: ignore[method-assign]  # a disk whose speed the test decides

    def commit(self, blocks: Sequence[Block | StoredBlock], apply: Mapping[int, int] | None = None) -> None:
        """`Store.commit`, when the disk is not held."""
        self.waiting += 1
        self._open.wait()
        self.waiting -= 1
        if self._dead:
            raise StoreError("crashed before this was written")
        self.write(blocks, apply)
        self.commits += 1

    def hold(self) -> None:
        """The next commit waits."""
        self._open.clear()

    def release(self) -> None:
        """Commits go on."""
        self._open.set()

    def die(self) -> None:
        """What has not been committed never will be."""
        self._dead = True
        self._open.set()


class Coordinator:
    """A running coordinator and what it stands on."""

    def __init__(self, server: CoordinatorServer, listener: asyncio.AbstractServer, disk: Disk) -> None:
        self.server = server
        self.disk = disk
        self._listener = listener

    async def stop(self) -> None:
        """An orderly end."""
        self.disk.release()
        self._listener.close()
        await self.server.stop()

    async def crash(self) -> None:
        """As if the process had been killed: what is not durable is lost, nobody is told anything any more."""
        server = self.server
        self._listener.close()
        links = list(server._links)
        if server._reporting is not None:
            await server._reporting.stop()
        if server._copies is not None:
            await server._copies.stop()
        for task in server._tasks:
            task.cancel()
        for link in links:
            silence(link)
            link.abort()
        self.disk.die()
        server.led.committer._waiting.clear()
        await server.sessions.close()
        with suppress(StoreError):
            await server.led.committer.close()
        await asyncio.gather(*server._tasks, *server.past._bringing_up.values(), return_exceptions=True)
        await eventually(lambda: all(link.closed for link in links))
        server.store.guard.poison = "crashed"
        await asyncio.to_thread(server.store.close)


class Received(NamedTuple):
    """One publication as a subscriber got it."""

    group: int
    epoch: int
    offset: int
    topic: bytes
    payload: bytes


def numbered(start: int, count: int) -> list[bytes]:
    return [b"%d" % i for i in range(start, start + count)]


def in_order(received: list[Received]) -> bool:
    """Whether offsets ascend within each group."""
    last: dict[int, int] = {}
    for r in received:
        if r.offset <= last.get(r.group, -1):
            return False
        last[r.group] = r.offset
    return True


class Stream(Subscriber):
    """A subscriber that keeps what it gets, as a Python client's stream does; `room`: blocks until it blocks."""

    __slots__ = ("_arrived", "received", "room")

    def __init__(self, engine: BrokerEngine, drops: bool = False) -> None:
        super().__init__(engine.subscriptions, Kind(LINK), drops)
        self.received: list[Received] = []
        self.room = 1 << 62
        self._arrived = asyncio.Event()

    def write(self, data: bytes) -> None:
        """Take one packed block."""
        block = Block.from_wire(msgpack.unpackb(data, use_list=False))
        found = [Received(block.group, block.epoch, r.offset, r.topic, r.payload) for r in block.records()]
        self.received += found
        self._arrived.set()
        self.room -= 1
        if self.room <= 0:
            self.block()

    def give_room(self, blocks: int) -> None:
        """Take `blocks` more."""
        self.room = blocks
        self.unblock()

    async def arrived(self, count: int) -> list[Received]:
        """The first `count` publications, once they are there."""
        async with asyncio.timeout(WAIT_S):
            while len(self.received) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.received[:count]

    def payloads(self, topic: bytes | None = None) -> list[bytes]:
        """Payloads so far, of one topic or of all."""
        return [r.payload for r in self.received if topic is None or r.topic == topic]


class EngineNode:
    """A broker's engine and its pipelines, without listeners."""

    def __init__(self, engine: BrokerEngine, cluster: Cluster) -> None:
        self.engine = engine
        self.events = CoordinatorEvents(engine, {}, lambda pipeline: None, lambda: None)
        self._cluster = cluster

    def publish_later(self, topic: bytes, payloads: list[bytes], qos: int = 1, **more: Any) -> asyncio.Future[Any]:
        """Publish; the future gives the entry's result."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(result: Any) -> None:
            if not future.done():
                future.set_result(result)

        flags = qos | more.pop("retain", 0)
        self.engine.coordinators.publish(
            topic, flags, payloads, more.pop("origin", "tester"), done, more.pop("mark", None), **more
        )
        return future

    async def publish(self, topic: bytes, payloads: list[bytes], qos: int = 1, **more: Any) -> Any:
        """Publish and wait for the acknowledgement."""
        async with asyncio.timeout(WAIT_S):
            return await self.publish_later(topic, payloads, qos, **more)

    async def subscribe(
        self, *filters: bytes, start: dict[int, int] | None = None, drops: bool = False, room: int | None = None
    ) -> Stream:
        """A new subscriber to `filters`, from now or from `start` on."""
        stream = Stream(self.engine, drops)
        stream.block()
        for topic_filter in filters:
            cuts = await self.engine.subscriptions.subscribe(stream, {topic_filter: Grant()}, start=start)
            if start is None:
                for block in await self.engine.subscriptions.retained(cuts).all():
                    stream.write(msgpack.packb(block.to_wire()))
        stream.give_room(stream.room if room is None else room)
        return stream

    def cut_links(self) -> None:
        """All links break, as when a network does; the pipelines dial again."""
        for pipeline in self.engine.coordinators.pipelines.values():
            if pipeline.link is not None:
                pipeline.link.abort()

    async def linked(self) -> None:
        """Return when all links stand."""
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*[pipeline.wait_linked() for pipeline in self.engine.coordinators.pipelines.values()])

    async def close(self) -> None:
        """End the links; nothing else is told to anybody (a crash of the process looks the same from outside)."""
        await self.engine.close()


class Cluster:
    """See the module's docstring. Everything started is stopped at the end, in the right order."""

    def __init__(
        self,
        folder: Path,
        groups: int = GROUPS,
        coordinators: Iterable[str] = ("coordinator-0",),
        config: Config | None = None,
        options: StoreOptions = STORE,
        clock: Clock | None = None,
        copies: int = 1,
        slow_s: float = 60.0,
    ) -> None:
        """`copies`: members that each group is to have; `slow_s`: see `ClusterConfig`, here so long that tests may hold
        disks."""
        self.folder = folder
        self.copies = copies
        self.slow_s = slow_s
        self.config = (config or Config()).replaced(mqtt__port=0)
        self.options = options
        self.clock = clock or SystemClock()
        self.coordinators: dict[str, Coordinator] = {}
        self.nodes: dict[str, EngineNode | BrokerServer] = {}
        self.matchers: dict[str, MatcherServer] = {}
        # The shape of the overlay that matchers form beyond so many; None: each is linked to everybody.
        self.overlay: CloudShape | None = None
        self.overlay_beyond = 0
        self._following: dict[str, tuple[asyncio.Task[None], MatcherSockets]] = {}
        self.coordination = LocalCoordination(folder / "coordination", groups, tuple(coordinators))
        # A socket's path may have 107 bytes, pytest's folders are long.
        self._run = TemporaryDirectory(prefix="lexicast-test-")
        self._sockets = itertools.count()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for coordinator in self.coordinators.values():
            coordinator.disk.release()
        for name in list(self.matchers):
            await self.stop_matcher(name)
        for name in list(self.nodes):
            await self.stop_broker(name)
        for coordinator in self.coordinators.values():
            await coordinator.stop()
        self.coordination.close()
        self._run.cleanup()

    # -- coordinators

    async def start_coordinator(self, name: str = "coordinator-0", node: str = TEST_NODE) -> Coordinator:
        """Start a coordinator, or start it again over its store; returns once it serves."""
        folder = self.folder / name
        found = peek_identity(folder, self.options)
        info = await self.coordination.cluster(wait=found is None)
        identity = info.cluster_id if found is None else found.cluster_id
        store = Store.open(
            folder, cluster_id=identity, member=name, groups=info.groups, options=self.options, clock=self.clock
        )
        disk = Disk(store)
        if found is not None:
            await report_before_serving(self.coordination, name, identity, store)
            info = await self.coordination.cluster()
        told = None if found is None else identity
        states = await self.coordination.open_groups(name, store.known_epochs(), told)
        mqtt = self.config.mqtt
        shares = ShareRules(mqtt.share_strategy, mqtt.share_expiry_s)
        server = CoordinatorServer(name, store, self.clock, shares=shares)
        if self.copies > 1:
            server.share(self.coordination, self.copies, partial(self._dial, name), self.slow_s)
        await server.start(states)
        path = f"unix:{self._run.name}/{name}-{next(self._sockets)}"
        listener, address = await listen(path, info.key, info.cluster_id, server.opened, {})
        member = Member(name, 0, (address,), node, os.getpid(), tuple(sorted(states)))
        await self.coordination.register(COORDINATOR, member)
        server.report(self.coordination, info, member)
        coordinator = self.coordinators[name] = Coordinator(server, listener, disk)
        await self._tell_engines()
        return coordinator

    async def _dial(self, name: str, member: Member, user: LinkUser) -> Link:
        info = await self.coordination.cluster()
        hello = ("coordinator", name, 1)
        return await dial(member.addresses[0], info.key, info.cluster_id, hello, lambda link: user)

    async def lose_coordinator(self, name: str) -> None:
        """Kill it, and let the coordination server know."""
        incarnation = (await self.coordination.members(-1, 0)).coordinators[name].incarnation
        await self.crash_coordinator(name)
        self.coordination.lost(COORDINATOR, name, incarnation)

    async def crash_coordinator(self, name: str = "coordinator-0") -> None:
        """Kill it; see `Coordinator.crash`."""
        await self.coordinators.pop(name).crash()

    async def restart_coordinator(self, name: str = "coordinator-0") -> Coordinator:
        """Kill it and start it again."""
        await self.crash_coordinator(name)
        return await self.start_coordinator(name)

    # -- brokers

    async def start_engine(self, name: str) -> EngineNode:
        """A broker without listeners; returns once its links stand."""
        info = await self.coordination.cluster()
        incarnation = await self.coordination.register(BROKER, Member(name, 0, (), TEST_NODE, os.getpid()))
        node = EngineNode(BrokerEngine(name, incarnation, info.groups, self.config, self.clock), self)
        self.nodes[name] = node
        await self._tell_engines()
        await node.linked()
        return node

    async def start_broker(self, name: str, ask_actor: AskActor = cannot_ask, node: str = TEST_NODE) -> BrokerServer:
        """A whole broker, MQTT port and link address included; `ask_actor`: see `ClusterStatus`."""
        # Here, so that tests of the data path alone do not depend on the listeners.
        from lexicast.actors.broker.server import BrokerServer

        run = Path(self._run.name)
        config = self.config.replaced(node__name=node)
        broker = await BrokerServer.start(name, config, self.coordination, self.clock, run, ask_actor)
        self.nodes[name] = broker
        return broker

    async def start_matcher(self, name: str = "matcher-0") -> MatcherServer:
        """A matcher, linked to all who serve now; or one of an overlay (`overlay`), which follows the membership."""
        from lexicast.actors.matcher.server import MatcherServer, OverlaySetting
        from lexicast.actors.matcher.sockets import MatcherSockets

        info = await self.coordination.cluster()
        if self.overlay is None:
            incarnation = await self.coordination.register(MATCHER, Member(name, 0, (), TEST_NODE, os.getpid()))
            matcher = self.matchers[name] = MatcherServer(name, incarnation, info)
            matcher.follow(await self.coordination.members(-1, 0))
            return matcher
        sockets = MatcherSockets(name, info, BEATS)
        await sockets.open(Path(self._run.name), "127.0.0.1")
        member = Member(name, 0, sockets.addresses, TEST_NODE, os.getpid())
        incarnation = await self.coordination.register(MATCHER, member)
        setting = OverlaySetting(self.overlay_beyond, self.overlay, sockets.addresses)
        matcher = self.matchers[name] = MatcherServer(name, incarnation, info, BEATS, setting)
        sockets.admit(matcher.opened)
        following = follow_members(
            self.coordination, lambda members: True, lambda: asyncio.sleep(0), matcher.follow, matcher.asks
        )
        self._following[name] = keep_going(following, "following the membership"), sockets
        return matcher

    async def stop_matcher(self, name: str = "matcher-0") -> None:
        """Its process is gone."""
        if name in self._following:
            following, sockets = self._following.pop(name)
            await stop_loops(following)
            sockets.close()
            await self.coordination.leave(MATCHER, name)
        await self.matchers.pop(name).stop()

    async def crash_matcher(self, name: str) -> None:
        """A matcher of an overlay is gone without a word; the coordination server has not heard of it."""
        following, sockets = self._following.pop(name)
        await stop_loops(following)
        sockets.close()
        matcher = self.matchers.pop(name)
        if matcher.overlay is not None:
            matcher.overlay.neighbours.close()
            matcher.overlay = None
        await matcher.stop()

    async def stop_broker(self, name: str) -> None:
        """Stop a broker or engine in order."""
        node = self.nodes.pop(name)
        await (node.close() if isinstance(node, EngineNode) else node.stop())

    async def _tell_engines(self) -> None:
        """Tell engines without a membership watch of the coordinators."""
        info = await self.coordination.cluster()
        members = await self.coordination.members(-1, 0)
        for node in self.nodes.values():
            if isinstance(node, EngineNode):
                engine, events = node.engine, node.events

                def make(member: Member, engine: BrokerEngine = engine, events: CoordinatorEvents = events) -> Pipeline:
                    link = self.config.link
                    return Pipeline(
                        events,
                        member,
                        ("broker", engine.name, engine.incarnation),
                        (info.key, info.cluster_id),
                        producer=engine.name.encode(),
                        window_batches=link.window_batches,
                        batch_bytes_max=link.batch_bytes_max,
                        queue_bytes_max=link.queue_bytes_max,
                    )

                leaders = {group: state.leader for group, state in members.groups.items()}
                engine.coordinators.follow(members.coordinators.values(), make, leaders)
