"""The broker: an engine between its listeners and its pipelines. It runs without Ray; `broker.actor` wraps it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from lexicast.cluster.clock import Clock
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import LexicastError
from lexicast.cluster.membership import BROKER, ClusterInfo, Member, Members, OperatedCoordination
from lexicast.cluster.protocol.broker_list import BrokerList, broker_list, brokers_of_users, standing_in
from lexicast.cluster.security.files import SecurityContents, SecurityFiles

from ..link.link import Link, LinkUser
from ..loop.background import keep_going, stop_loops
from ..loop.turns import LoopWatch
from ..mqtt.listener import MqttListener
from ..status.cluster_status import AskActor, ClusterStatus, cannot_ask
from ..status.installed import installed_version
from ..status.meters import Meter, Since
from ..tls.identity import is_encrypted
from .coordinator_events import CoordinatorEvents
from .engine import BrokerEngine
from .interest_reports import InterestReports
from .link_sockets import LinkSockets
from .matching.cell_reports import CellReports
from .pipelines.pipeline import Pipeline
from .python_clients.operator_questions import OperatorQuestions
from .python_clients.port import ClientPort
from .python_clients.user_port import UserPort
from .security.following import SecurityFollowing

log = logging.getLogger(__name__)

MEMBERS_WAIT_S = 5.0
MEASURE_S = 1.0
# Who is behind is looked at so seldom; who is for less than BEHIND_TOLD_S came back, or had a burst.
BEHIND_TICKS = 5
BEHIND_TOLD_S = 60.0
RETRY_S = 0.2
# How long is waited for who leads, before it is looked whether that is another one by now.
LINKED_S = 0.5
COMPLETE_TIMEOUT_S = 60.0
# A broker that starts waits so long for groups that nobody is known to lead.
UNLED_WAIT_S = 10.0


class BrokerServer:
    """One broker. `start` makes one that serves."""

    def __init__(
        self,
        engine: BrokerEngine,
        cluster: ClusterInfo,
        coordination: OperatedCoordination,
        sockets: LinkSockets,
        ask_actor: AskActor = cannot_ask,
    ) -> None:
        """`ask_actor`: see `ClusterStatus`."""
        config = engine.config
        self.name = engine.name
        self.config = config
        self.engine = engine
        self.cluster = cluster
        self.coordination = coordination
        self.sockets = sockets
        enabled, save_s = config.compression.enabled, config.broker.session_save_s
        self.mqtt = MqttListener(engine, config.mqtt, enabled, save_s, config.tls)
        coordinators = engine.coordinators
        status = ClusterStatus(self.name, self.status, cluster, coordination, coordinators.pipelines, ask_actor)
        self._watch_loop = LoopWatch()
        asked = OperatorQuestions(engine, self.mqtt, status, self._is_leaving, lambda: self.clients.lagging_clients())
        self.clients = ClientPort(
            engine,
            config.mqtt.packet_bytes_max,
            self.mqtt.publishers_of,
            self.status,
            status.snapshot,
            self.list_clients,
            {
                "brokers": self._tell_brokers,
                "node_drain": coordination.drain_node,
                "node_remove": coordination.remove_node,
                "tls_reload": self.mqtt.reload_certificates,
                "security_give": coordination.give_security,
                "security_refuse": coordination.refuse_security,
                **asked.answers(),
            },
            self._brokers_of_users,
        )
        self.users = UserPort(
            self.mqtt.logins,
            self.clients.opened_by_user,
            sockets.greeting,
            engine.recoder.payload_bytes_max,
            config.link.beats(),
        )
        self.mqtt.link = self.users.link
        sessions = self.mqtt.sessions
        self._events = CoordinatorEvents(engine, sessions.requests, sessions.resumed, self._room)
        self._cells = self._cell_reports()
        self._security = SecurityFollowing(config.security, coordination, self._take_security)
        self._meter, self._behind = Meter(), Since()
        self._loops: list[asyncio.Task[None]] = []
        self._checking: asyncio.Task[None] | None = None
        self._leaving = False
        # Where Python clients may go: empty until this broker knows who serves.
        self._brokers = BrokerList({}, ())
        self._hosts: list[str] = []
        self._sending_away: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        name: str,
        config: Config,
        coordination: OperatedCoordination,
        clock: Clock,
        run_dir: Path,
        ask_actor: AskActor = cannot_ask,
    ) -> BrokerServer:
        """A broker that listens, is registered, has reached every coordinator and opened the MQTT port.

        `run_dir`: where its socket lies. Raises LexicastError, OSError, TimeoutError, and leaves nothing behind then.
        """
        cluster = await coordination.cluster()
        sockets = LinkSockets(name, cluster, config)
        try:
            await sockets.open(run_dir)
            node = config.node
            member = Member(name, 0, sockets.addresses, node.own_name(), os.getpid(), location=node.location)
            incarnation = await coordination.register(BROKER, member)
        except BaseException:
            sockets.close()
            with suppress(LexicastError):
                await coordination.leave(BROKER, name)
            raise
        engine = BrokerEngine(name, incarnation, cluster.groups, config, clock)
        broker = cls(engine, cluster, coordination, sockets, ask_actor)
        try:
            await broker._serve()
        except BaseException:
            await broker.stop()
            raise
        return broker

    async def _serve(self) -> None:
        await self._reach_coordinators()
        await self.engine.dictionary_fetching.learn_newest()
        await self._security.ready()
        self._loops.append(keep_going(self._security.run(), "following the files of security"))
        self.sockets.admit(self._opened)
        mqtt = self.config.mqtt
        await self.mqtt.start(mqtt.host or self.config.node.host, mqtt.port, self.cluster.cluster_id)
        self._loops.append(keep_going(self._measure(), "measuring"))
        self._loops.append(keep_going(self._watch_loop.run(), "watching the event loop"))
        self._loops.append(keep_going(self._reports().run(), "telling what subscribers want"))
        if self._cells is not None:
            self._loops.append(keep_going(self._cells.run(), "reporting conditions"))

    def _opened(self, link: Link) -> LinkUser | None:
        """A link was opened: by a client, or by a matcher, which is told what subscribers' conditions are."""
        if link.role != "matcher":
            return self.clients.opened(link)
        told = self.engine.subscriptions.told_conditions
        return None if told is None else told.opened(link)

    def _cell_reports(self) -> CellReports | None:
        """None where there are no matchers."""
        told, columns = self.engine.subscriptions.told_conditions, self.engine.event_columns
        return None if told is None or columns is None else CellReports(self.name, self.coordination, told, columns)

    def _reports(self) -> InterestReports:
        filters, most = self.engine.subscriptions.filters, self.config.mqtt.connections_max
        return InterestReports(self.name, self.coordination, filters, lambda: len(self.mqtt.connections), most)

    async def _reach_coordinators(self) -> None:
        version, coordinators = -1, self.engine.coordinators
        loop = asyncio.get_running_loop()
        patient_s = loop.time() + UNLED_WAIT_S
        async with asyncio.timeout(COMPLETE_TIMEOUT_S):
            while not (coordinators.complete or (loop.time() > patient_s and self._only_unled_lack())):
                members = await self.coordination.members(version, MEMBERS_WAIT_S)
                version = members.version
                self._apply(members)
            self._loops.append(keep_going(self._watch(version), "following the membership"))
            leading: set[Pipeline] = set()
            while leading != coordinators.leading():  # who leads may be another one meanwhile
                leading = coordinators.leading()
                waits = [asyncio.ensure_future(pipeline.wait_linked()) for pipeline in leading]
                _, left = await asyncio.wait(waits, timeout=LINKED_S)
                for wait in left:
                    wait.cancel()
                if left:
                    leading = set()

    def _only_unled_lack(self) -> bool:
        """Whether every group has a coordinator but those that nobody is known to lead."""
        found = self.engine.coordinators
        return all(found.pipeline_of(group) is not None for group in {*range(found.groups)} - found.unled)

    def _apply(self, members: Members) -> None:
        leaders = {group: state.leader for group, state in members.groups.items()}
        self.engine.coordinators.follow(members.coordinators.values(), self._pipeline, leaders)
        self._brokers = broker_list(members, self.name)
        self._hosts = self._elsewhere(members)
        self._security.follow(members.security)
        if self._cells is not None:
            self._cells.follow(members.version, members.cells)
        leaving = self.config.node.own_name() in members.leaving
        if leaving != self._leaving:
            self._leaving = leaving
            if self._sending_away is not None:
                self._sending_away.cancel()
            work = self._send_away(self._elsewhere(members)) if leaving else self._admit()
            self._sending_away = asyncio.get_running_loop().create_task(work)

    def _take_security(self, files: SecurityFiles, found: SecurityContents) -> None:
        """These are the users and the rules from now on. Raises ConfigError, and nothing has changed then."""
        self.engine.rights.take(found.rules, files.version)
        self.mqtt.logins.update(found.passwords, found.likenesses, found.token_keys)
        self.mqtt.check_logins()
        self._checking = asyncio.get_running_loop().create_task(self.users.check_logins())

    def _elsewhere(self, members: Members) -> list[str]:
        """Where MQTT clients find brokers of other nodes, this one's backups first."""
        found = [a for member in standing_in(members, self.name) for a in member.addresses]
        hosts = [a.split(":", 1)[1].rpartition(":")[0] for a in found if a.startswith("tcp:")]
        return list(dict.fromkeys(hosts))

    def _is_leaving(self) -> bool:
        return self._leaving

    async def _tell_brokers(self) -> BrokerList:
        return self._brokers

    def _brokers_of_users(self, link: Link) -> BrokerList:
        """Where a user's client may go: to the ports of MQTT, as the one that it has come to."""
        if link.transport is None:
            return BrokerList({}, ())
        return brokers_of_users(self._hosts, self.mqtt.doors.port_of(link.transport), is_encrypted(link.transport))

    async def _send_away(self, hosts: list[str]) -> None:
        """This node is being drained: its clients go to other brokers."""
        log.warning("%s is being drained: clients go to %s", self.name, " ".join(hosts) or "other brokers")
        self.clients.send_away()
        await self.mqtt.send_away(hosts)

    async def _admit(self) -> None:
        """This node is drained no more."""
        self.clients.admit()
        await self.mqtt.admit()

    def _pipeline(self, member: Member) -> Pipeline:
        link = self.config.link
        return Pipeline(
            self._events,
            member,
            ("broker", self.name, self.engine.incarnation),
            (self.cluster.key, self.cluster.cluster_id),
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
                await self._register_again(members)

    async def _register_again(self, members: Members) -> None:
        """A coordination server that has lost its registry does not know this broker any more."""
        if self.name not in members.brokers:
            with suppress(LexicastError):  # the next change of the membership shows it again
                node, addresses = self.config.node, self.sockets.addresses
                member = Member(self.name, 0, addresses, node.own_name(), os.getpid(), location=node.location)
                await self.coordination.register(BROKER, member)

    async def _measure(self) -> None:
        """Rates, and who has been behind for long. Runs until cancelled."""
        loop, ticks = asyncio.get_running_loop(), 0
        while True:
            now_s = loop.time()
            self._meter.sample(now_s, self._counters())
            self.users.check_terms(now_s)
            if ticks % BEHIND_TICKS == 0:
                self._behind.look(now_s, {*self.mqtt.lagging(), *self.clients.lagging()})
            ticks += 1
            await asyncio.sleep(MEASURE_S)

    def _counters(self) -> dict[str, int]:
        live = self.engine.live
        return {
            "published_records": self.engine.coordinators.published_records,
            "delivered_records": live.delivered_records,
            "received_bytes": self.mqtt.received_bytes + self.clients.received_bytes,
            "sent_bytes": live.writes.sent_bytes,
        }

    def list_clients(self, count: int) -> list[dict[str, Any]]:
        """The clients that are connected, at most `count` of them."""
        return [*self.mqtt.clients(count), *self.clients.described(count)][:count]

    def _room(self) -> None:
        self.mqtt.room()
        self.clients.room()

    async def stop(self) -> None:
        """Say farewell to clients, save their sessions, close the links."""
        await stop_loops(*self._loops)
        if self._sending_away is not None:
            await stop_loops(self._sending_away)
        await self.mqtt.stop()
        self.sockets.close()
        await self.engine.close()
        with suppress(LexicastError):
            await self.coordination.leave(BROKER, self.name)

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        engine, subscriptions = self.engine, self.engine.subscriptions
        now_s = asyncio.get_running_loop().time()
        return {
            "name": self.name,
            "version": installed_version(),
            "pid": os.getpid(),
            "incarnation": engine.incarnation,
            **self._counters(),
            "streamed_records": engine.streamer.records if engine.streamer is not None else 0,
            "stored": engine.stored_compression.status(),
            "unanswered_bytes": sum([p.unanswered_bytes for p in engine.coordinators.pipelines.values()]),
            "undeliverable": engine.live.undeliverable,
            "rates": self._meter.rates(),
            "catching_up": subscriptions.catching_up,
            "long_behind": len(self._behind.longer_than(BEHIND_TOLD_S, now_s)),
            "filters": len(subscriptions.filters),
            "leaving": self._leaving,
            "loop_ms": self._watch_loop.longest_ms(),
            "clients": len(self.clients.sessions),
            "users": len(self.users),
            "dictionaries": len(engine.dictionaries.families.dictionaries()),
            "links": engine.dictionary_links.totals([*self.mqtt.links(), *self.clients.links()])._asdict(),
            "content": engine.content.status(),
            "overlay": None if (told := subscriptions.told_conditions) is None else told.far.status(),
            "security": self._security.status(),
            "rights": engine.rights.status(),
            "mqtt": self.mqtt.status(),
        }
