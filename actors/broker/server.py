"""The broker: an engine between its listeners and its pipelines. It runs without Ray; `broker_actor` wraps it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from lexicast.cluster.clock import Clock
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import LexicastError, UnavailableError
from lexicast.cluster.files import make_folder
from lexicast.cluster.membership import BROKER, Coordination, Member, Members

from ..link.link import Link, listen
from ..loop.background import keep_going, stop_loops
from ..mqtt.listener import MqttListener
from ..status.cluster_status import AskActor, ClusterStatus, cannot_ask
from ..status.meters import Meter, Since
from .engine import BrokerEngine
from .pipeline import Pipeline
from .python_clients import ClientPort

log = logging.getLogger(__name__)

MEMBERS_WAIT_S = 5.0
MEASURE_S = 1.0
# Who is behind is looked at so seldom; who is for less than BEHIND_TOLD_S came back, or had a burst.
BEHIND_TICKS = 5
BEHIND_TOLD_S = 60.0
RETRY_S = 0.2
COMPLETE_TIMEOUT_S = 60.0


class BrokerServer:
    """One broker. `start` returns once it serves."""

    def __init__(
        self,
        name: str,
        config: Config,
        coordination: Coordination,
        clock: Clock,
        run_dir: Path,
        ask_actor: AskActor = cannot_ask,
    ) -> None:
        """`run_dir`: where its socket lies; `ask_actor`: see `ClusterStatus`."""
        self.name = name
        self.config = config
        self.addresses: tuple[str, ...] = ()
        self.incarnation = 0
        self.coordination = coordination
        self._ask_actor = ask_actor
        self._meter, self._behind = Meter(), Since()
        self._measuring: asyncio.Task[None] | None = None
        self._clock = clock
        self._run_dir = run_dir
        self._servers: list[asyncio.AbstractServer] = []
        self._watching: asyncio.Task[None] | None = None
        self.engine: BrokerEngine = None  # type: ignore[assignment]  # set by start
        self.clients: ClientPort = None  # type: ignore[assignment]  # set by start
        self.mqtt: MqttListener = None  # type: ignore[assignment]  # set by start
        self.link_info: dict[str, Any] = {}
        self.key = b""
        self.cluster_id = ""

    async def start(self) -> None:
        """Listen, register, reach every coordinator, open the MQTT port. Raises LexicastError."""
        info = await self.coordination.cluster()
        self.key, self.cluster_id = info.key, info.cluster_id
        payload_max = self.config.mqtt.packet_bytes_max
        self.link_info = {
            "groups": info.groups,
            "broker": self.name,
            "cluster_id": info.cluster_id,
            "payload_bytes_max": payload_max,
            "optout": list(self.config.compression.optout),
        }
        host = self.config.node.host
        for address in (f"unix:{self._run_dir}/{self.name}.sock", f"tcp:{host}:0"):
            beats = self.config.link.beats()
            server, real = await listen(address, info.key, info.cluster_id, self.opened, self.link_info, beats)
            self._servers.append(server)
            self.addresses += (real,)
        member = Member(self.name, 0, self.addresses, os.uname().nodename, os.getpid())
        self.incarnation = await self.coordination.register(BROKER, member)
        self.engine = BrokerEngine(self.name, self.incarnation, info.groups, self.config, self._clock)
        self.engine.room = self._room
        await self._reach_coordinators()
        await self.engine.learn_dictionaries()
        cluster = ClusterStatus(self.name, self.status, info, self.coordination, self.engine.pipelines, self._ask_actor)
        self.clients = ClientPort(self.engine, payload_max, self.status, cluster.snapshot, self.clients_list)
        self.mqtt = MqttListener(
            self.engine, self.config.mqtt, self.config.compression.enabled, self.config.broker.session_save_s
        )
        self.clients.mqtt_publishers = self.mqtt.publishers_of
        await self.mqtt.start(self.config.mqtt.host or host, self.config.mqtt.port, info.cluster_id)
        self._measuring = keep_going(self._measure(), "measuring")

    async def _reach_coordinators(self) -> None:
        version = -1
        async with asyncio.timeout(COMPLETE_TIMEOUT_S):
            while not self.engine.complete:
                members = await self.coordination.members(version, MEMBERS_WAIT_S)
                version = members.version
                self._apply(members)
            await asyncio.gather(*[pipeline.wait_linked() for pipeline in self.engine.pipelines.values()])
        self._watching = keep_going(self._watch(version), "following the membership")

    def _apply(self, members: Members) -> None:
        self.engine.set_coordinators(members.coordinators.values(), self._pipeline)

    def _pipeline(self, member: Member) -> Pipeline:
        link = self.config.link
        return Pipeline(
            self.engine,
            member,
            ("broker", self.name, self.incarnation),
            (self.key, self.cluster_id),
            producer=hashlib.blake2b(self.name.encode(), digest_size=8).digest(),
            window_batches=link.window_batches,
            batch_bytes_max=link.batch_bytes_max,
            queue_bytes_max=link.queue_bytes_max,
            beats=link.beats(),
        )

    async def _watch(self, version: int) -> None:
        """Follow the membership; while the coordination server is down, data flows on."""
        while True:
            try:
                members = await self.coordination.members(version, MEMBERS_WAIT_S)
            except LexicastError as error:
                log.debug("membership: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            if members.version != version:
                version = members.version
                self._apply(members)

    async def _measure(self) -> None:
        """Rates, and who has been behind for long. Runs until cancelled."""
        loop, ticks = asyncio.get_running_loop(), 0
        while True:
            now_s, engine = loop.time(), self.engine
            counters = {name: getattr(engine, name) for name in ("published_records", "delivered_records")}
            self._meter.sample(now_s, counters)
            if ticks % BEHIND_TICKS == 0:
                self._behind.look(now_s, {*self.mqtt.lagging(), *self.clients.lagging()})
            ticks += 1
            await asyncio.sleep(MEASURE_S)

    def clients_list(self, count: int) -> list[dict[str, Any]]:
        """The clients that are connected, at most `count` of them."""
        return [*self.mqtt.clients(count), *self.clients.list(count)][:count]

    def opened(self, link: Link) -> Any:
        """A Python client's link."""
        return None if self.clients is None else self.clients.opened(link)

    def _room(self) -> None:
        self.mqtt.room()
        self.clients.room()

    async def stop(self) -> None:
        """Say farewell to clients, save their sessions, close the links."""
        await stop_loops(*[task for task in (self._watching, self._measuring) if task is not None])
        if self.mqtt is not None:
            await self.mqtt.stop()
        for server in self._servers:
            server.close()
        if self.engine is not None:
            await self.engine.close()
        with suppress(LexicastError):
            await self.coordination.leave(BROKER, self.name)

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        if self.mqtt is None:
            raise UnavailableError(f"{self.name} does not serve yet")
        engine = self.engine
        now_s = asyncio.get_running_loop().time()
        return {
            "name": self.name,
            "pid": os.getpid(),
            "incarnation": self.incarnation,
            "published_records": engine.published_records,
            "delivered_records": engine.delivered_records,
            "streamed_records": engine.streamer.records if engine.streamer is not None else 0,
            "stored": engine.storing.status(),
            "unanswered_bytes": sum([p.unanswered_bytes for p in engine.pipelines.values()]),
            "undeliverable": engine.undeliverable,
            "rates": self._meter.rates(),
            "catching_up": engine.catching_up.running,
            "long_behind": len(self._behind.longer_than(BEHIND_TOLD_S, now_s)),
            "filters": len(engine.filters),
            "clients": len(self.clients.sessions),
            "dictionaries": len(engine.dictionaries.families.dictionaries()),
            "mqtt": self.mqtt.status(),
        }


def run_directory(config: Config) -> Path:
    """Where this node's link sockets lie, made if need be: a short path, since a socket's may have 107 bytes.

    Raises UnavailableError when somebody else has made it: /tmp is everybody's.
    """
    tag = hashlib.blake2b(str(config.node.data_path()).encode(), digest_size=6).hexdigest()
    path = Path("/tmp") / f"lexicast-{os.getuid()}-{tag}"
    make_folder(path)
    made = path.lstat()
    if made.st_uid != os.getuid() or not stat.S_ISDIR(made.st_mode) or made.st_mode & 0o077:
        raise UnavailableError(f"{path} is not this user's own folder: remove it, it is where link sockets go")
    return path
