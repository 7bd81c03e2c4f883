"""What a console answers to questions in SQL about the past: to operators, by each one's own rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from aiohttp import web

from lexicast.cluster.errors import UnavailableError, UsageError
from lexicast.cluster.security.files import rules_text
from lexicast.cluster.topics.names import check_filter

from ...broker.security.rights import ClientRights
from ..answers import LIMIT, LIMIT_MAX, VISITOR, body_of, json_answer, operators_only
from ..visitors import NotLetInError
from .program import SqlProcess

SINCE: Final = "1h"
# How often it is looked whether somebody still waits for the answer.
LOOK_S: Final = 0.25


async def _while_connected(request: web.Request, asking: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """The answer. Where whoever asked is gone nobody is to wait behind that question: it is ended."""
    task = asyncio.create_task(asking)
    try:
        while not task.done() and request.transport is not None and not request.transport.is_closing():
            await asyncio.wait([task], timeout=LOOK_S)
    finally:
        if not task.done():
            task.cancel()
    return await task


class SqlRequests:
    """See the module's docstring. `rules`: the acl file of the cluster, None: it has none, or it is not known."""

    def __init__(self, process: SqlProcess, rules: Callable[[], bytes | None]) -> None:
        self._process = process
        self._rules = rules

    def routes(self) -> list[web.AbstractRouteDef]:
        """What is served."""
        return [
            web.get("/api/v1/sql", operators_only(self.state)),
            web.post("/api/v1/sql", operators_only(self.ask)),
        ]

    async def state(self, _: web.Request) -> web.Response:
        """Whether questions can be answered, and what is missing."""
        why_not = await self._process.why_not()
        return json_answer({"available": not why_not, "why_not": why_not, "running": self._process.is_running})

    async def ask(self, request: web.Request) -> web.Response:
        """One question."""
        body = await body_of(request, statement=str, filter=str, since=str, until=str, where=str, schema=str, limit=int)
        if not body.get("statement", "").strip():
            raise UsageError('give "statement": a question in SQL about the table history')
        limit = body.get("limit", LIMIT)
        if not 1 <= limit <= LIMIT_MAX:
            raise UsageError(f"limit={limit}: give a number from 1 to {LIMIT_MAX:,}")
        topic_filter = body.get("filter") or "#"
        check_filter(topic_filter.encode(errors="replace"))
        rights = request[VISITOR].rights
        if not rights.may_subscribe(topic_filter.encode(), past=True):
            raise NotLetInError(403, "the rules let you read nothing of that past")
        question = {
            "statement": body["statement"],
            "filter": topic_filter,
            "since": body.get("since") or SINCE,
            "until": body.get("until") or None,
            "where": body.get("where") or None,
            "schema": body.get("schema") or None,
            "limit": limit,
            "reader": self._reader(rights),
        }
        begun_s = asyncio.get_running_loop().time()
        told = await _while_connected(request, self._process.ask(question))
        return json_answer({**told, "took_s": round(asyncio.get_running_loop().time() - begun_s, 1)})

    def _reader(self, rights: ClientRights) -> tuple[Any, ...] | None:
        """Whose rules hold: user, client id and all rules; None: nobody's. Raises UnavailableError."""
        if not rights.restricted:
            return None
        rules = self._rules()
        if rules is None:
            raise UnavailableError("the rules are not known yet: try again in a moment")
        return rights.user, rights.client_id, rules_text(rules)
