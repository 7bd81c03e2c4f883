"""The MQTT listener of a broker: it accepts connections, looks for silent ones, has sessions saved, lists clients."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from lexicast.cluster.config.tables import MqttConfig, TlsConfig
from lexicast.cluster.security.connection_places import ConnectionPlaces
from lexicast.compression.link_dictionaries import LinkDictionaries

from ..link.link import Link
from ..loop.background import keep_going, stop_loops
from ..loop.turns import Turns
from ..status.lagging_clients import LaggingClient
from ..tls.decrypted_reads import DecryptedReads
from ..tls.identity import is_encrypted
from .codec.packets import SERVER_SHUTTING_DOWN, V5
from .connection import MqttConnection
from .doors.mqtt_doors import MqttDoors, way_of
from .doors.proxied import unnamed
from .login.admission import lets_strangers_in
from .login.logins import end_of
from .open_session import OpenSession
from .publishing import Publishing
from .services import MqttServices
from .websocket.line import WebSocketServices, is_websocket

if TYPE_CHECKING:
    from ..broker.engine import BrokerEngine

log = logging.getLogger(__name__)

SWEEP_S = 1.0
# How long a stopping broker waits for clients to take its farewell.
FAREWELL_S = 0.5
# Clients that are sent to other brokers: so many a step, so that those are not stormed; who waits for acknowledgements
# for longer is sent without them.
SENT_AWAY_AT_ONCE = 100
SENT_AWAY_EVERY_S = 0.1
SENT_AWAY_WAIT_S = 1.0


# More than 25 methods: five are what broker, console and command line ask of its clients, four what connections tell.
class MqttListener:
    """All MQTT connections of one broker."""

    def __init__(
        self,
        engine: BrokerEngine,
        config: MqttConfig,
        compression: bool,
        session_save_s: float,
        tls: TlsConfig,
    ) -> None:
        """`tls`: how its ports for TLS are, where it has some."""
        self._clock = engine.clock
        self._config = config
        self._services = MqttServices(
            engine, config, compression, lambda: [served.subscriber for _, served in self._served()]
        )
        self.sessions = self._services.sessions
        self.logins = self._services.logins
        self.connections: set[MqttConnection] = set()
        self._places = ConnectionPlaces(config)
        self._since_us: dict[MqttConnection, int] = {}
        # Python clients' links, which come to the same ports: what makes one, and those that there are.
        self.link: Callable[[Callable[[Link], None]], Link] | None = None
        self.links_of_users: set[Link] = set()
        websockets = WebSocketServices(config.ws_origins, self._connection, self._services.refused)

        def transports() -> list[asyncio.Transport]:
            links = [link.transport for link in self.links_of_users if link.transport is not None]
            return [*[connection.transport for connection in self.connections], *links]

        self.doors = MqttDoors(config, tls, self._connection, websockets, transports, lambda: len(self._places))
        self._admits = True
        self._session_save_s = session_save_s
        self._lost = asyncio.Event()
        self._checking_logins = False
        self._periodic: list[asyncio.Task[None]] = []

    @property
    def port(self) -> int:
        """That of TCP without TLS; 0 before `start`."""
        return self.doors.tcp.port

    @property
    def received_bytes(self) -> int:
        """What clients have sent since this broker began."""
        return self._services.received_bytes

    async def start(self, host: str, port: int, cluster_id: str) -> int:
        """Listen; the port without TLS. Raises UnavailableError when a port is in use."""
        self._services.cluster_id = cluster_id
        await self.doors.start(host, port, cluster_id)
        if self._admits:
            await self.admit()
        self._periodic = [
            keep_going(self._sweep(), "looking for silent clients"),
            keep_going(self._save(), "saving sessions"),
        ]
        if self._config.sys_interval_s:
            self._periodic.append(keep_going(self._services.sys_topics.run(), "telling $SYS"))
        return self.port

    async def admit(self) -> None:
        """Let clients connect (again), from the start on. Raises OSError."""
        self._admits = True
        if self.port:
            await self.doors.open()

    async def send_away(self, hosts: Sequence[str]) -> None:
        """Let nobody connect, and have those that are connected go to other brokers, `hosts` where they can be told, a
        few at a time, each once what it published is answered."""
        self._admits = False
        self.doors.shut()
        loop = asyncio.get_running_loop()
        while self.connections:
            going = list(self.connections)[:SENT_AWAY_AT_ONCE]
            until_s = loop.time() + SENT_AWAY_WAIT_S
            while True:
                now = loop.time() >= until_s
                going = [each for each in going if not each.send_away(self._reference(hosts, each), now)]
                if not going:
                    break
                await asyncio.sleep(SENT_AWAY_EVERY_S / 10)
            await asyncio.sleep(SENT_AWAY_EVERY_S)

    def _reference(self, hosts: Sequence[str], connection: MqttConnection) -> str:
        """Where a client is to go: a server reference [MQTT-3.14.2.2.5], host:port, with spaces between."""
        port = self.doors.port_of(connection.transport)
        return " ".join([f"{host}:{port}" for host in hosts])

    # -- connections

    def _connection(self) -> MqttConnection:
        return MqttConnection(self._services, self)

    def made(self, connection: MqttConnection) -> None:
        """A connection was accepted; where there is no place for it (`ConnectionPlaces`) it is closed at once."""
        addressed = unnamed(connection.transport)
        if limit := self._places.take(connection, None if addressed else end_of(connection.transport, "peername")):
            self._refuse(connection, limit)
            return
        if addressed:
            addressed.when_named = partial(self._named, connection)
        self.connections.add(connection)
        self._services.sys_topics.connections += 1
        self._since_us[connection] = self._clock.time_us()

    def _named(self, connection: MqttConnection) -> None:
        """A proxy has said whose connection it is."""
        if limit := self._places.name(connection, end_of(connection.transport, "peername")):
            self._refuse(connection, limit)

    def _refuse(self, connection: MqttConnection, limit: str) -> None:
        self._services.refused[limit] += 1
        address = end_of(connection.transport, "peername")
        self.logins.note("connection_refused", f"mqtt.{limit} is reached", "", "", address)
        connection.transport.abort()

    def lost(self, connection: MqttConnection) -> None:
        """A connection has ended."""
        if connection.client_id:
            log.info("client %r has disconnected", connection.client_id)
        self.connections.discard(connection)
        self._places.give_back(connection)
        self._since_us.pop(connection, None)
        self._lost.set()
        self._services.waiting.discard(connection)

    def becomes_link(self, connection: MqttConnection, data: bytes) -> None:
        """See `Connections`."""
        self.connections.discard(connection)
        self._since_us.pop(connection, None)
        transport = connection.transport
        if self.link is None or is_websocket(transport):
            self._places.give_back(connection)
            transport.abort()
            return

        def lost(link: Link) -> None:
            self.links_of_users.discard(link)
            self._places.give_back(link)

        link = self.link(lost)
        self.links_of_users.add(link)
        self._places.hand_over(connection, link)
        before = transport.get_protocol()
        if isinstance(before, DecryptedReads):
            before.hand_over(link)
        else:
            transport.set_protocol(link)
        link.connection_made(transport)
        if data:
            link.data_received(data)

    def check_logins(self) -> None:
        """The users have changed: disconnect those who may not stay, a few at a time."""
        if not self._checking_logins:
            self._checking_logins = True
            self._services.spawn(self._check_logins())

    async def _check_logins(self) -> None:
        self._checking_logins = False  # of a change from here on somebody else takes care
        turns, ended = Turns(), 0
        for connection in list(self.connections):
            ended += connection.check_login()
            await turns.give_way()
        if ended:
            log.warning("%d clients were disconnected: their users are gone, or have another password", ended)

    def room(self) -> None:
        """The pipelines have room again."""
        self._services.room()

    def publishers_of(self, family: bytes) -> int:
        """How many connections get dictionaries of the family because they publish to it."""
        return sum([publisher.publishes_to(family) for publisher in self._publishers()])

    def links(self) -> list[LinkDictionaries]:
        """Those of dictionary-aware connections."""
        return [own.link for _, served in self._served() if (own := served.subscriber.dictionaries) is not None]

    def _publishers(self) -> list[Publishing]:
        return [publisher for _, served in self._served() if (publisher := served.publisher) is not None]

    def _served(self) -> list[tuple[MqttConnection, OpenSession]]:
        return [(connection, served) for connection in self.connections if (served := connection.served) is not None]

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
        self.doors.shut()
        for link in list(self.links_of_users):
            link.close()
        for connection in list(self.connections):
            # Closed without the client's word, so its will is due [MQTT-3.1.2-8].
            connection.disconnect(SERVER_SHUTTING_DOWN)
        await self.sessions.close()
        await self._hung_up()
        self._services.cancel()
        await self.doors.close()

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

    async def reload_certificates(self) -> str:
        """Take the files of [tls] as they are now; "", or why they cannot be used."""
        return self.doors.reload_certificates()

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        services, transports = self._services, [connection.transport for connection in self.connections]
        return {
            **self.doors.status(),
            "open": lets_strangers_in(services.engine.config),
            "connections": len(self.connections),
            "sessions": len(self.sessions.owners),
            "paused_publishers": len(services.waiting),
            "dropped_dollar": services.dropped_dollar,
            "publishers": sum([publisher.records > 0 for publisher in self._publishers()]),
            "aware": sum([served.subscriber.kind.aware for _, served in self._served()]),
            "refused": dict(services.refused),
            "logins": services.logins.status(),
            "encrypted": sum(map(is_encrypted, transports)),
            "websockets": sum(map(is_websocket, transports)),
        }

    def lagging(self) -> list[object]:
        """Connections whose session has something to catch up with."""
        return [connection for connection, served in self._served() if served.subscriber.lagging]

    def lagging_clients(self) -> Iterator[LaggingClient]:
        """The clients of these connections."""
        for connection, served in self._served():
            if served.subscriber.lagging:
                yield LaggingClient(partial(self._described, connection, served), [served.subscriber.lagging])

    def clients(self, count: int) -> Iterator[dict[str, Any]]:
        """For the list of clients, at most `count`."""
        for connection, served in islice(self._served(), count):
            yield self._described(connection, served)

    def clients_behind(self, part: str, after: str, count: int) -> list[dict[str, Any]]:
        """The first `count` clients whose ids hold `part` and lie behind `after`, in the order of their ids."""
        found = [each for each in self._served() if part in each[0].client_id and each[0].client_id > after]
        first = heapq.nsmallest(count, found, key=lambda each: each[0].client_id)
        return [self._described(connection, served) for connection, served in first]

    def disconnect_client(self, client_id: str, reason_code: int) -> bool:
        """End the connection of a client; whether there was one."""
        found = [connection for connection in self.connections if connection.client_id == client_id]
        for connection in found:
            connection.disconnect(reason_code)
        return bool(found)

    def _described(self, connection: MqttConnection, served: OpenSession) -> dict[str, Any]:
        subscriber, publisher = served.subscriber, served.publisher
        peer = connection.transport.get_extra_info("peername")
        return {
            "id": connection.client_id,
            "kind": ("MQTT 5" if served.session.version == V5 else "MQTT 3.1.1") + way_of(connection.transport),
            "address": f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "",
            "since_us": self._since_us.get(connection, 0),
            "subscriptions": len(subscriber.subscriptions),
            "published_records": publisher.records if publisher is not None else 0,
            "behind": bool(subscriber.lagging),
        }
