"""A console beside a cluster in one event loop, and what asks it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from lexicast.actors.console.server import ConsoleServer
from lexicast.actors.console.sql.program import NO_SQL, SqlProgram
from lexicast.actors.status.cluster_status import cannot_ask
from lexicast.bench.stage.ports import free_port
from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.membership import CONSOLE, Member

from .harness import TEST_NODE, Cluster


@asynccontextmanager
async def console(cluster: Cluster, *, sql: SqlProgram = NO_SQL, **knobs: Any) -> AsyncIterator[ConsoleServer]:
    """A console of the harness' node; `sql`: what answers questions in SQL; `knobs`: http__operators=("ada",)."""
    config = cluster.config.replaced(http__port=free_port(), node__name=TEST_NODE, **knobs)

    async def register() -> None:
        await cluster.coordination.register(CONSOLE, Member("console-0", 0, (), TEST_NODE, 0))

    async def nobody() -> dict[str, Any]:
        raise UnavailableError("no broker answers, and there is no Ray")

    info = await cluster.coordination.cluster()
    server = ConsoleServer("console-0", config, info, cluster.coordination, cannot_ask, nobody, register, sql)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class Asking:
    """Someone who asks a console."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self.session = session
        self.base = f"http://127.0.0.1:{port}"

    async def get(self, path: str, status: int = 200, **options: Any) -> Any:
        """The JSON that a path gives."""
        async with self.session.get(self.base + path, **options) as answer:
            assert answer.status == status, (answer.status, await answer.text())
            return await answer.json()

    async def text(self, path: str, **options: Any) -> str:
        """The text that a path gives."""
        async with self.session.get(self.base + path, **options) as answer:
            assert answer.status == 200, (answer.status, await answer.text())
            return await answer.text()

    async def post(self, path: str, body: Any = None, status: int = 200, **options: Any) -> Any:
        """The JSON that a path answers to what is sent."""
        async with self.session.post(self.base + path, json=body, **options) as answer:
            assert answer.status == status, (answer.status, await answer.text())
            return await answer.json()


@asynccontextmanager
async def asking(server: ConsoleServer) -> AsyncIterator[Asking]:
    """Someone on the same machine, who has not logged in."""
    jar = aiohttp.CookieJar(unsafe=True)  # by address
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        yield Asking(session, server.http.port)
