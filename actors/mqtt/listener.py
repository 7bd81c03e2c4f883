"""The MQTT listener: accepts connections, sweeps for silence, saves sessions, resumes paused publishers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from lexicast.cluster.config.tables import MqttConfig
from lexicast.cluster.errors import UnavailableError
from lexicast.compression.dictionary import Dictionary

from ..broker.pipelines.pipeline import Pipeline
from ..broker.port_claim import PortClaim, claim_port, reuse_port_socket
from ..loop.background import keep_going, stop_loops
from .codec.packets import V5
from .connection import MqttConnection
from .owned_sessions import RETRY_S, OwnedSessions

if TYPE_CHECKING:
    from ..broker.engine import BrokerEngine
    from .publishing import Publishing

log = logging.getLogger(__name__)

BACKLOG = 4096
SWEEP_S = 1.0
# How long a stopping broker waits for clients to take its farewell.
FAREWELL_S = 0.5


class MqttListener:
    """All MQTT connections of one broker."""

    def __init__(self, engine: BrokerEngine, config: MqttConfig, compression: bool, session_save_s: float) -> None:
        self.engine = engine
        self.config = config
        self.compression = compression
        self.sessions = OwnedSessions(engine)
        self.connections: set[MqttConnection] = set()
        self._since_us: dict[MqttConnection, int] = {}
        # Connections refused, by CONNACK's reason code or the name of the limit.
        self.refused: Counter[str] = Counter()
        self.waiting: set[MqttConnection] = set()
        self.port = 0
        # Publications and wills of clients on topics below `$`, which are not theirs.
        self.dropped_dollar = 0
        self._session_save_s = session_save_s
        self._server: asyncio.AbstractServer | None = None
        self._claim: PortClaim | None = None
        self._lost = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._periodic: list[asyncio.Task[None]] = []
        engine.dictionaries.listeners.add(self._new_dictionary)

    async def start(self, host: str, port: int, cluster_id: str) -> int:
        """Listen; the port. Raises UnavailableError when the port is in use."""
        self._claim = claim_port(host, port, cluster_id)
        self.port = self._claim.port
        sock = reuse_port_socket(host, self.port)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: MqttConnection(self), sock=sock, backlog=BACKLOG)
        self._periodic = [
            keep_going(self._sweep(), "looking for silent clients"),
            keep_going(self._save(), "saving sessions"),
        ]
        return self.port

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something for a connection."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("work for a connection failed", exc_info=task.exception())

    # -- for connections

    def made(self, connection: MqttConnection) -> None:
        """A connection was accepted; beyond `connections_max` it is closed at once."""
        if len(self.connections) >= self.config.connections_max:
            self.refused["connections_max"] += 1
            log.warning("mqtt.connections_max = %d is reached: a connection is refused", self.config.connections_max)
            connection.transport.abort()
            return
        self.connections.add(connection)
        self._since_us[connection] = self.engine.clock.time_us()

    def lost(self, connection: MqttConnection) -> None:
        """A connection has ended."""
        if connection.client_id:
            log.info("client %r has disconnected", connection.client_id)
        self.connections.discard(connection)
        self._since_us.pop(connection, None)
        self._lost.set()
        self.waiting.discard(connection)

    def room(self) -> None:
        """The pipelines have room again."""
        waiting, self.waiting = self.waiting, set()
        for connection in waiting:
            connection.make_room()

    async def release(self, uid: bytes, wanted: Mapping[int | None, list[int]]) -> None:
        """Have groups (None: all) forget QoS 2 packet ids; returns when that is durable.

        Raises LexicastError, TimeoutError.
        """
        engine = self.engine
        work = []
        for group, ids in wanted.items():
            if group is None:
                work += [self._release(pipeline, None, uid, ids) for pipeline in engine.coordinators.pipelines.values()]
            elif (pipeline := engine.coordinators.pipeline_of(group)) is not None:
                work.append(self._release(pipeline, [group], uid, ids))
        async with asyncio.timeout(engine.config.link.request_timeout_s):
            await asyncio.gather(*work)

    async def _release(self, pipeline: Pipeline, groups: list[int] | None, uid: bytes, ids: list[int]) -> None:
        while True:
            try:
                await pipeline.request("release", groups, uid, ids)
                return
            except UnavailableError:
                await asyncio.sleep(RETRY_S)  # its link broke: what it had not done it does now

    def _new_dictionary(self, dictionary: Dictionary) -> None:
        for publisher in self._publishers():
            publisher.new_dictionary(dictionary)

    def publishers_of(self, family: bytes) -> int:
        """How many connections get dictionaries of the family because they publish to it."""
        return sum([publisher.publishes_to(family) for publisher in self._publishers()])

    def _publishers(self) -> list[Publishing]:
        return [publisher for connection in self.connections if (publisher := connection.publisher) is not None]

    # -- periodic

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            self._look_at_all(loop.time())

    def _look_at_all(self, now_s: float) -> None:
        """Not in `_sweep`, whose variables would keep the last connection until the next time."""
        for connection in list(self.connections):
            connection.check_keep_alive(now_s)

    async def _save(self) -> None:
        while True:
            await asyncio.sleep(self._session_save_s)
            await self.sessions.round()

    async def stop(self) -> None:
        """Stop accepting, say farewell, save the sessions, give the port back."""
        await stop_loops(*self._periodic)
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.shut_down()
        await self.sessions.close()
        await self._hung_up()
        for task in list(self._tasks):
            task.cancel()
        if self._claim is not None:
            self._claim.close()

    async def _hung_up(self) -> None:
        """Returns when all connections have ended: clients have a moment to take the farewell, who reads nothing does
        not hold the broker up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                while self.connections:
                    self._lost.clear()
                    await self._lost.wait()
        for connection in list(self.connections):
            connection.transport.abort()

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {
            "port": self.port,
            "connections": len(self.connections),
            "sessions": len(self.sessions.owners),
            "paused_publishers": len(self.waiting),
            "dropped_dollar": self.dropped_dollar,
            "publishers": sum([publisher.records > 0 for publisher in self._publishers()]),
            "aware": sum([s.kind.aware for c in self.connections if (s := c.subscriber) is not None]),
            "refused": dict(self.refused),
        }

    def lagging(self) -> list[object]:
        """Connections whose session has something to catch up with."""
        return [c for c in self.connections if c.subscriber is not None and c.subscriber.lagging]

    def clients(self, count: int) -> Iterator[dict[str, Any]]:
        """For the list of clients, at most `count`."""
        for connection in islice([c for c in self.connections if c.subscriber is not None], count):
            subscriber, publisher = connection.subscriber, connection.publisher
            assert subscriber is not None
            peer = connection.transport.get_extra_info("peername")
            yield {
                "id": connection.client_id,
                "kind": "MQTT 5" if connection.version == V5 else "MQTT 3.1.1",
                "address": f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "",
                "since_us": self._since_us.get(connection, 0),
                "subscriptions": len(subscriber.subscriptions),
                "published_records": publisher.records if publisher is not None else 0,
                "behind": bool(subscriber.lagging),
            }
