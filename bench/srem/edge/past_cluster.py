"""A coordinator and a broker's engine in one process, each in a thread of its own, so that each one's CPU is known.

Without Ray: a real store, a real link over a Unix socket, and the parts that the actors wrap. The coordinator has an
event loop in its thread; the broker is in the caller's.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Self

from lexicast.actors.broker.coordinator_events import CoordinatorEvents
from lexicast.actors.broker.engine import BrokerEngine
from lexicast.actors.broker.pipelines.pipeline import Pipeline
from lexicast.actors.coordination.server import LocalCoordination
from lexicast.actors.coordinator.server import CoordinatorServer
from lexicast.actors.link.sockets import listen
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.config.tables import Config
from lexicast.cluster.membership import BROKER, COORDINATOR, ClusterInfo, Member, Members
from lexicast.cluster.positions import DEFAULT_GROUPS
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.store import Store

from ...data.flights import Event

COORDINATOR_NAME: Final = "coordinator-0"
BROKER_NAME: Final = "broker-0"
NODE: Final = "bench"
# Publications that are under way at a time.
WINDOW: Final = 2_000
START_S: Final = 60.0


class CoordinatorThread:
    """A coordinator over a store in `folder`, in a thread; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._served = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self.info: ClusterInfo | None = None
        self.members: Members | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._served.wait(START_S):
            raise TimeoutError("the coordinator did not start")
        return self

    def __exit__(self, *unused: object) -> None:
        if self._loop is not None and self._end is not None:
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        clock = SystemClock()
        coordination = LocalCoordination(self._folder / "coordination", DEFAULT_GROUPS, (COORDINATOR_NAME,))
        info = self.info = await coordination.cluster(wait=True)
        store = Store.open(
            self._folder / COORDINATOR_NAME,
            cluster_id=info.cluster_id,
            member=COORDINATOR_NAME,
            groups=info.groups,
            options=StoreOptions(),
            clock=clock,
        )
        states = await coordination.open_groups(COORDINATOR_NAME, store.known_epochs(), None)
        server = CoordinatorServer(COORDINATOR_NAME, store, clock)
        await server.start(states)
        path = f"unix:{self._folder / 'link'}"
        listener, address = await listen(path, info.key, info.cluster_id, server.opened, {})
        member = Member(COORDINATOR_NAME, 0, (address,), NODE, os.getpid(), tuple(sorted(states)))
        await coordination.register(COORDINATOR, member)
        await coordination.register(BROKER, Member(BROKER_NAME, 0, (), NODE, os.getpid()))
        self.members = await coordination.members(-1, 0)
        self._served.set()
        await self._end.wait()
        listener.close()
        await server.stop()
        coordination.close()


async def linked_engine(coordinator: CoordinatorThread) -> BrokerEngine:
    """A broker's engine with a link to the coordinator that stands."""
    info, members = coordinator.info, coordinator.members
    assert info is not None
    assert members is not None
    config = Config()
    engine = BrokerEngine(BROKER_NAME, 1, info.groups, config, SystemClock())
    events = CoordinatorEvents(engine, {}, lambda pipeline: None, lambda: None)

    def make(member: Member) -> Pipeline:
        return Pipeline(
            events,
            member,
            ("broker", engine.name, engine.incarnation),
            (info.key, info.cluster_id),
            producer=engine.name.encode(),
            window_batches=config.link.window_batches,
            batch_bytes_max=config.link.batch_bytes_max,
            queue_bytes_max=config.link.queue_bytes_max,
        )

    engine.coordinators.follow(
        members.coordinators.values(), make, {group: state.leader for group, state in members.groups.items()}
    )
    async with asyncio.timeout(START_S):
        await asyncio.gather(*[pipeline.wait_linked() for pipeline in engine.coordinators.pipelines.values()])
    return engine


async def publish_all(engine: BrokerEngine, events: Iterable[Event]) -> None:
    """Publish with QoS 1, and wait until all is durable."""
    room = asyncio.Semaphore(WINDOW)
    refused: list[Any] = []

    def done(result: Any) -> None:
        if type(result) is str:
            refused.append(result)
        room.release()

    for event in events:
        await room.acquire()
        engine.coordinators.publish(event.topic.encode(), 1, [event.payload], event.publisher, done, None)
    for _ in range(WINDOW):
        await room.acquire()
    if refused:
        raise RuntimeError(f"{len(refused)} publications were refused: {refused[0]}")
