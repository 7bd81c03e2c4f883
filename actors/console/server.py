"""The console of a node, without Ray: what it knows of the cluster, who may see it, and the server that answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from lexicast.cluster.config.tables import Config
from lexicast.cluster.membership import ClusterInfo, Members, OperatedCoordination
from lexicast.cluster.security.files import SecurityContents, SecurityFiles

from ..broker.security.following import SecurityFollowing
from ..broker.security.rights import Rights
from ..client.client import Client
from ..client.known_brokers import Endpoint
from ..loop.background import keep_going, stop_loops
from ..loop.turns import LoopWatch
from ..mqtt.login.logins import Logins
from ..status.cluster_status import AskActor
from .broker_lines import BrokerLines
from .cluster_requests import ClusterRequests
from .cluster_view import ConsoleView
from .family_requests import FamilyRequests
from .http_server import HttpServer
from .page_files import PageFiles
from .sql.program import NO_SQL, SqlProcess, SqlProgram
from .sql.requests import SqlRequests
from .topic_requests import TopicRequests
from .visitors import Visitors

# Brokers start at the same time.
BROKER_TIMEOUT_S: Final = 60.0
# What visitors wait for at the most, when no broker serves.
GIVE_UP_S: Final = 10.0


class ConsoleServer:
    """See the module's docstring. `start` makes one that serves."""

    def __init__(
        self,
        name: str,
        config: Config,
        cluster: ClusterInfo,
        coordination: OperatedCoordination,
        ask_actor: AskActor,
        without_brokers: Callable[[], Awaitable[dict[str, Any]]],
        register: Callable[[], Awaitable[object]],
        sql: SqlProgram = NO_SQL,
    ) -> None:
        """`ask_actor`, `without_brokers`: see `ConsoleView`; `register`: tells the coordination server that this
        console serves; `sql`: what answers questions in SQL."""
        self.name = name
        self._cluster = cluster
        self._register = register
        self._serves = False
        self._has_brokers = asyncio.Event()
        self._rights = Rights(has_rules=config.security.acl_file != "")
        self._logins = Logins(config)
        self._security = SecurityFollowing(config.security, coordination, self._take_security)
        self._lines = BrokerLines(config.node.own_name(), cluster)
        self.view = ConsoleView(self._lines, coordination, ask_actor, without_brokers, self._told, self._stay)
        self._client = Client(self._endpoints, client_id=name, compress=False, give_up_s=GIVE_UP_S)
        http = config.http
        self._topics = TopicRequests(self._client, self._lines, config.compression.optout, http.streams_max)
        self._sql = SqlProcess(sql)
        families, questions = FamilyRequests(self._client), SqlRequests(self._sql, self._acl)
        visitors = Visitors(config, self._logins, self._rights, cluster.key)
        requests = ClusterRequests(self.view, config.cluster.copies)
        routes = [*self._topics.routes(), *families.routes(), *questions.routes()]
        self.http = HttpServer(config, visitors, requests, routes, PageFiles())
        self._watch = LoopWatch()
        self._loops: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Serve. Raises LexicastError, OSError, TimeoutError, and leaves nothing behind then."""
        try:
            self._loops = [
                keep_going(self.view.follow(), "following the membership"),
                keep_going(self._watch.run(), "watching the event loop"),
            ]
            async with asyncio.timeout(BROKER_TIMEOUT_S):
                await self._security.ready()
                await self._connect()
            self._loops.append(keep_going(self._security.run(), "following the files of security"))
            self._loops.append(keep_going(self.view.gather_rates(), "gathering rates"))
            await self.http.start(self._cluster.cluster_id)
            await self._register()
            self._serves = True
        except BaseException:
            await self.stop()
            raise

    async def _connect(self) -> None:
        """As soon as a broker serves."""
        await self._has_brokers.wait()
        await self._client.open()

    async def _endpoints(self) -> list[Endpoint]:
        return self._lines.endpoints()

    def _told(self, members: Members) -> None:
        self._security.follow(members.security)
        if members.brokers:
            self._has_brokers.set()

    async def _stay(self, members: Members) -> None:
        """A coordination server that has lost its registry does not know this console any more."""
        if self._serves and self.name not in members.consoles:
            await self._register()

    def _take_security(self, files: SecurityFiles, found: SecurityContents) -> None:
        """These are the users and the rules from now on. Raises ConfigError, and nothing has changed then."""
        self._rights.take(found.rules, files.version)
        self._logins.update(found.passwords, found.likenesses, found.token_keys)

    def _acl(self) -> bytes | None:
        return self._security.files.rules

    async def stop(self) -> None:
        """Serve no more."""
        self._topics.rates.close()
        await self.http.stop()
        await self._sql.close()
        await stop_loops(*self._loops)
        self._logins.close()
        self._lines.close()
        await self._client.close()

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {"name": self.name, "loop_ms": self._watch.longest_ms(), **self.http.status()}
