"""The HTTP server of a console: who asks is found out first, answers carry the headers that keep pages to themselves,
and what goes wrong is one line. It runs without Ray; `console.actor` wraps it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import LexicastError

from ..broker.port_claim import PortClaim, claim_port, reuse_port_socket
from ..mqtt.login.admission import is_encrypted_console
from ..tls.door import TlsDoor
from .answers import HEADERS, VISITOR, Handler, body_of, json_answer, refused, status_of
from .cluster_requests import ClusterRequests
from .page_files import PageFiles
from .visitors import COOKIE, SESSION_S, NotLetInError, Visitor, Visitors

log = logging.getLogger(__name__)

PORT_KNOB: Final = "http.port"
BODY_BYTES_MAX: Final = 1024 * 1024
BACKLOG: Final = 1_024
HANDSHAKE_TIMEOUT_S: Final = 10.0
KEEP_ALIVE_S: Final = 75.0
# How long answers under way may take when it stops.
SHUTDOWN_S: Final = 0.5
# What needs no visitor: probes, the page's own files, and logging in.
OPEN: Final = frozenset({"/health/live", "/health/ready", "/api/v1/login", "/api/v1/logout"})


class HttpServer:
    """See the module's docstring. `port`: 0 before `start`."""

    def __init__(
        self,
        config: Config,
        visitors: Visitors,
        cluster: ClusterRequests,
        routes: list[web.AbstractRouteDef],
        files: PageFiles,
    ) -> None:
        self._config = config
        self._visitors = visitors
        self._cluster = cluster
        self._files = files
        self._encrypted = bool(config.tls.certificate) and is_encrypted_console(config)
        app = web.Application(middlewares=[self._answered], client_max_size=BODY_BYTES_MAX)
        app.on_response_prepare.append(_with_headers)
        app.add_routes([*cluster.routes(), *routes, *self._own_routes(), *files.routes()])
        self._runner = web.AppRunner(
            app, access_log=None, keepalive_timeout=KEEP_ALIVE_S, shutdown_timeout=SHUTDOWN_S, handle_signals=False
        )
        self._claim: PortClaim | None = None
        self._server: asyncio.AbstractServer | None = None
        self._door: TlsDoor | None = None
        self.port = 0

    def _own_routes(self) -> list[web.AbstractRouteDef]:
        return [
            web.get("/health/live", self._cluster.live),
            web.get("/health/ready", self._ready),
            web.get("/api/v1/me", self._me),
            web.post("/api/v1/login", self._log_in),
            web.post("/api/v1/logout", self._log_out),
        ]

    # -- life

    async def start(self, cluster_id: str) -> None:
        """Listen. Raises UnavailableError when the port is in use, OSError."""
        await self._runner.setup()
        host, port, made = self._config.http.host, self._config.http.port, self._runner.server
        assert made is not None
        if self._encrypted:
            self._door = TlsDoor(
                self._config.tls, made, self._transports, self._left, HANDSHAKE_TIMEOUT_S, port_knob=PORT_KNOB
            )
            await self._door.start(host, port, cluster_id)
            self._door.open()
            self.port = self._door.port
            return
        self._claim = claim_port(host, port, cluster_id, PORT_KNOB)
        loop = asyncio.get_running_loop()
        sock = reuse_port_socket(host, self._claim.port)
        self._server = await loop.create_server(self._bounded(made), sock=sock, backlog=BACKLOG)
        self.port = self._claim.port

    def _bounded(self, made: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """`made`, but where there are `http.connections_max` already: then one that closes at once."""
        return lambda: made() if self._left() > 0 else _Closed()

    def _left(self) -> int:
        server = self._runner.server
        return self._config.http.connections_max - (0 if server is None else len(server.connections))

    def _transports(self) -> list[asyncio.Transport]:
        server = self._runner.server
        made = [] if server is None else [each.transport for each in server.connections]
        return [transport for transport in made if isinstance(transport, asyncio.Transport)]

    async def stop(self) -> None:
        """Answer nobody any more, give the port back."""
        if self._server is not None:
            self._server.close()
        if self._door is not None:
            await self._door.close()
        await self._runner.cleanup()
        if self._claim is not None:
            self._claim.close()

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        server = self._runner.server
        return {
            "port": self.port,
            "encrypted": self._encrypted,
            "connections": 0 if server is None else len(server.connections),
            "requests": 0 if server is None else server.requests_count,
            "tls": None if self._door is None else self._door.status(),
        }

    # -- every request

    @property
    def _answered(self) -> Any:
        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await self._handled(request, handler)
            except NotLetInError as error:
                return refused(error.status, str(error))
            except web.HTTPException as error:
                return refused(error.status, error.reason)
            except LexicastError as error:
                return refused(status_of(error), " ".join(str(error).split()))
            except (asyncio.CancelledError, ConnectionResetError):
                raise
            except Exception:
                log.exception("%s %s failed", request.method, request.path)
                return refused(500, "a defect: the log of this console says where")

        return middleware

    async def _handled(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method == "POST":
            _check_origin(request)
        if request.path not in OPEN and not self._files.has(request.path):
            request[VISITOR] = await self._visitors.visitor(request)
        return await handler(request)

    # -- who somebody is

    async def _ready(self, request: web.Request) -> web.Response:
        try:
            is_known = (await self._visitors.visitor(request)).is_operator
        except NotLetInError:
            is_known = False
        return await self._cluster.ready(request, is_known)

    async def _me(self, request: web.Request) -> web.Response:
        """Who is asking."""
        return json_answer(_told(request[VISITOR]))

    async def _log_in(self, request: web.Request) -> web.Response:
        """Log in by a user of the cluster, or (user "") the operators' token."""
        body = await body_of(request, user=str, password=str)
        cookie, visitor = await self._visitors.log_in(request, body.get("user", ""), body.get("password", ""))
        response = json_answer(_told(visitor))
        response.set_cookie(
            COOKIE, cookie, max_age=int(SESSION_S), httponly=True, secure=request.secure, samesite="Strict"
        )
        return response

    async def _log_out(self, request: web.Request) -> web.Response:
        """Forget who it was."""
        self._visitors.log_out(request)
        response = json_answer({})
        response.del_cookie(COOKIE)
        return response


class _Closed(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def _with_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Of every answer, streams too."""
    response.headers.update(HEADERS)


def _told(visitor: Visitor) -> dict[str, Any]:
    rights = visitor.rights
    who = {"user": visitor.user, "operator": visitor.is_operator, "cookie": visitor.by_cookie}
    return {**who, "restricted": rights.restricted}


def _check_origin(request: web.Request) -> None:
    """Another site's page asks nothing of us. Raises NotLetInError."""
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("Host", ""):
        raise NotLetInError(403, "asked for by a page of another site")
