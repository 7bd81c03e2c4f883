"""What a console answers about the cluster: to operators, but for health, which is for probes too."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
from aiohttp import web
from prometheus_client.exposition import choose_encoder

from lexicast.cluster.errors import LexicastError, UnavailableError, UsageError
from lexicast.cluster.placement import wanted_copies

from .answers import json_answer, limit_of, number_of, operators_only, page_of
from .cluster_overview import family_rows, group_rows_behind, lagging_rows, overview
from .cluster_view import ConsoleView
from .metrics import NodeMetrics


class ClusterRequests:
    """See the module's docstring."""

    def __init__(self, view: ConsoleView, copies: int) -> None:
        """`copies`: as configured."""
        self._view = view
        self._copies = copies
        self._lines = view.lines
        self._metrics = NodeMetrics()

    def routes(self) -> list[web.AbstractRouteDef]:
        """What is served."""
        pages = {
            "status": self.status,
            "groups": self.groups,
            "sessions": self.sessions,
            "lagging": self.lagging,
            "subscriptions": self.subscriptions,
            "families": self.families,
            "events": self.events,
            "rates": self.rates,
        }
        return [
            web.get("/metrics", operators_only(self.metrics)),
            *[web.get(f"/api/v1/{name}", operators_only(handler)) for name, handler in pages.items()],
            web.post("/api/v1/sessions/disconnect", operators_only(self.disconnect)),
        ]

    # -- health

    async def live(self, _: web.Request) -> web.Response:
        """The console answers."""
        return json_answer({"live": True})

    async def ready(self, request: web.Request, is_known: bool) -> web.Response:
        """Whether this node serves; why not is told to those who are `is_known`."""
        found = await self._view.health()
        answer: dict[str, Any] = {"ready": found.ready, "checks": found.checks}
        if is_known:
            answer["reasons"] = found.reasons
        return json_answer(answer, 200 if found.ready else 503)

    # -- metrics

    async def metrics(self, request: web.Request) -> web.Response:
        """This node's, as Prometheus takes them."""
        actors, health = await asyncio.gather(self._view.own_actors(), self._view.health())
        members = self._lines.members
        node = {
            "ready": health.ready,
            "coordination_away_s": self._view.coordination_away_s(),
            "groups_without_leader": sum([not state.leader for state in members.groups.values()]),
        }
        told = {name: (kind, self._with_what_is_known(name, kind, said)) for name, (kind, said) in actors.items()}
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        body = encode(self._metrics.of(told, node))
        return web.Response(body=body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})

    def _with_what_is_known(self, name: str, kind: str, said: dict[str, Any]) -> dict[str, Any]:
        members = self._lines.members
        found = {**said, "up": {kind: int("error" not in said)}, **_process(said.get("pid"))}
        if kind == "coordinator":
            led = [state for state in members.groups.values() if state.leader == name]
            wanted = wanted_copies(self._copies, members.sites().values())
            found["newest_epoch"] = max([state.epoch for state in led], default=0)
            found["few_copies"] = sum([len(state.in_sync) < wanted for state in led])
            found["taken_over"] = self._view.events.taken_over[name]
        return found

    # -- the cluster

    async def status(self, _: web.Request) -> web.Response:
        """What is wrong, then a row an actor and a node."""
        now = overview(await self._view.status())
        health = await self._view.health()
        now["node"] = {"name": self._lines.node, **health._asdict()}
        return json_answer(now)

    async def groups(self, request: web.Request) -> web.Response:
        """Topic groups: who leads each."""
        after = number_of(request, "after", -1, -1, 1 << 16)
        rows = group_rows_behind(await self._view.status(), after)
        return json_answer(page_of(rows, limit_of(request), lambda row: row["group"]))

    async def sessions(self, request: web.Request) -> web.Response:
        """MQTT clients that are connected, by id."""
        limit, query = limit_of(request), request.query
        part, after = query.get("search", ""), query.get("after", "")
        rows, silent = await self._of_brokers(query.get("broker", ""), "clients_page", part, after, limit + 1)
        rows.sort(key=lambda row: (row["id"], row["broker"]))
        return json_answer({**page_of(rows, limit, lambda row: row["id"]), "missing": silent})

    async def lagging(self, request: web.Request) -> web.Response:
        """MQTT and Python clients that have something to catch up with, most first."""
        limit = limit_of(request)
        told, silent = await self._of_brokers(request.query.get("broker", ""), "clients_lagging", limit)
        return json_answer({"rows": lagging_rows(told, limit), "next": None, "missing": silent})

    async def subscriptions(self, request: web.Request) -> web.Response:
        """Topic filters, and how many are subscribed to each (a broker's own clients are one to others)."""
        limit, query = limit_of(request), request.query
        after = query.get("after", "").encode(errors="replace")
        told, silent = await self._of_brokers(
            query.get("broker", ""), "filters_page", after, limit + 1, row=_filter_row
        )
        counts: Counter[str] = Counter()
        for row in told:
            counts[row["filter"]] += row["subscribers"]
        rows = [{"filter": name, "subscribers": counts[name]} for name in sorted(counts)]
        return json_answer({**page_of(rows, limit, lambda row: row["filter"]), "missing": silent})

    async def _of_brokers(
        self, broker: str, method: str, *arguments: Any, row: Callable[[Any], dict[str, Any]] = dict
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """The rows of all brokers, or of one; those that do not answer. Raises UnavailableError: none does."""
        brokers = [broker] if broker else self._lines.nearest()
        asked: list[Awaitable[Any]] = [self._lines.ask(name, method, *arguments) for name in brokers]
        answers = dict(zip(brokers, await asyncio.gather(*asked, return_exceptions=True), strict=True))
        for error in answers.values():
            if isinstance(error, BaseException) and not isinstance(error, LexicastError):
                raise error
        silent = sorted([name for name, answer in answers.items() if isinstance(answer, LexicastError)])
        if len(silent) == len(brokers):
            raise UnavailableError(f"no broker answers ({', '.join(silent) or 'none serves'})")
        told = {name: answer for name, answer in answers.items() if not isinstance(answer, BaseException)}
        return [{"broker": name, **row(each)} for name, rows in told.items() for each in rows], silent

    async def disconnect(self, request: web.Request) -> web.Response:
        """End the connections of an MQTT client."""
        client_id = request.query.get("id", "")
        if not client_id:
            raise UsageError("say whose connection is to be ended: ?id=CLIENT")
        brokers = self._lines.nearest()
        asked: list[Awaitable[Any]] = [self._lines.ask(name, "disconnect", client_id) for name in brokers]
        answers = dict(zip(brokers, await asyncio.gather(*asked, return_exceptions=True), strict=True))
        silent = [name for name, answer in answers.items() if isinstance(answer, BaseException)]
        disconnected = any([answer is True for answer in answers.values()])
        if silent and not disconnected:
            raise UnavailableError(f"whether it was connected there is not known: {', '.join(silent)} does not answer")
        return json_answer({"disconnected": disconnected})

    async def families(self, request: web.Request) -> web.Response:
        """Topic families: what was seen of each, and what dictionaries save."""
        after = request.query.get("after", "")
        rows = [row for row in family_rows(await self._view.status()) if row["name"] > after]
        return json_answer(page_of(rows, limit_of(request), lambda row: row["name"]))

    async def events(self, request: web.Request) -> web.Response:
        """What has happened, the newest first."""
        after = number_of(request, "after", 0, 0, 1 << 53)
        return json_answer({"rows": self._view.events.page(after, limit_of(request)), "next": None})

    async def rates(self, _: web.Request) -> web.Response:
        """The last hour."""
        return json_answer({"rows": list(self._view.rates), "next": None})


def _process(pid: Any) -> dict[str, float]:
    """What an actor of this node takes of it."""
    if not isinstance(pid, int):
        return {}
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return {"resident_bytes": float(process.memory_info().rss), "cpu_s": float(times.user + times.system)}
    except psutil.Error:
        return {}


def _filter_row(row: Any) -> dict[str, Any]:
    name, count = row
    return {"filter": bytes(name).decode(errors="replace"), "subscribers": count}
