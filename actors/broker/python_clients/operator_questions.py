"""What consoles ask a broker, and what they have it do: in answers that stay small, whatever there is.

A page costs a look at each client or filter, some ms where there are 10,000, and nothing while nobody asks.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable
from itertools import chain
from math import inf
from typing import Any, Final

from lexicast.cluster.errors import LexicastError

from ...mqtt.codec.packets import ADMINISTRATIVE_ACTION
from ...mqtt.listener import MqttListener
from ...status.cluster_status import ClusterStatus
from ...status.lagging_clients import LaggingClient, furthest_behind
from ..engine import BrokerEngine
from .session import Answers

# Rows of one page, the one of them that says that there are more, and names of actors in one question.
PAGE_MAX: Final = 1_001
ACTORS_MAX: Final = 256
ASK_TIMEOUT_S: Final = 2.0


class OperatorQuestions:
    """See the module's docstring."""

    def __init__(
        self,
        engine: BrokerEngine,
        mqtt: MqttListener,
        cluster: ClusterStatus,
        is_leaving: Callable[[], bool],
        lagging: Callable[[], Iterable[LaggingClient]],
    ) -> None:
        """`is_leaving`: whether this broker sends its clients elsewhere; `lagging`: its Python clients that lag."""
        self._engine = engine
        self._mqtt = mqtt
        self._cluster = cluster
        self._is_leaving = is_leaving
        self._lagging = lagging

    def answers(self) -> Answers:
        """By request (`cluster.protocol.requests`)."""
        return {
            "health": self.health,
            "actors": self.actors,
            "clients_page": self.clients_page,
            "clients_lagging": self.clients_lagging,
            "filters_page": self.filters_page,
            "topics": self.topics,
            "disconnect": self.disconnect,
        }

    async def health(self) -> dict[str, Any]:
        """{"listens": MQTT clients are let in, "leaving", "groups_waiting": topic groups that have no leader which can
        be reached, "waits_for": the coordinators that are to lead them, "unanswered_s": for how long the oldest
        publications have been on their way}."""
        coordinators = self._engine.coordinators
        gone = {each for each in coordinators.leading() if each.link is None or not each.link.is_heard()}
        now_s, since_s, aside = asyncio.get_running_loop().time(), inf, set[int]()
        for pipeline in coordinators.pipelines.values():
            oldest_s, groups = pipeline.unanswered()
            since_s = min(since_s, oldest_s)
            aside.update(groups)
        waiting = 0
        if gone or aside or coordinators.unled or not coordinators.complete:
            led = {group: coordinators.pipeline_of(group) for group in range(coordinators.groups)}
            waiting = sum([led[group] is None or led[group] in gone or group in aside for group in led])
        return {
            "listens": self._mqtt.port != 0 and not self._is_leaving(),
            "leaving": self._is_leaving(),
            "groups_waiting": waiting,
            "waits_for": sorted([pipeline.member.name for pipeline in gone]),
            "unanswered_s": max(0.0, now_s - since_s),
        }

    async def actors(self, names: tuple[str, ...]) -> dict[str, Any]:
        """What these coordinators, or this broker, say about themselves, by name; see `report.gather` for those that
        say nothing."""
        return await self._cluster.some(names[:ACTORS_MAX])

    async def clients_page(self, part: str, after: str, count: int) -> list[dict[str, Any]]:
        """MQTT clients whose ids hold `part` and lie behind `after`, in the order of their ids."""
        return self._mqtt.clients_behind(part, after, min(count, PAGE_MAX))

    async def clients_lagging(self, count: int) -> list[dict[str, Any]]:
        """MQTT and Python clients that have something to catch up with: see `furthest_behind`."""
        lagging = chain(self._mqtt.lagging_clients(), self._lagging())
        return furthest_behind(lagging, self._engine.live.heads, min(count, PAGE_MAX))

    async def filters_page(self, after: bytes, count: int) -> list[tuple[bytes, int]]:
        """(filter, subscribers here) of those behind `after`, in order."""
        filters = self._engine.subscriptions.filters
        found = heapq.nsmallest(min(count, PAGE_MAX), [name for name in filters.names() if name > after])
        return [(name, filters.count(name)) for name in found]

    async def topics(self, prefix: bytes, start: bytes, count: int) -> dict[str, Any]:
        """{"topics": see `topic_levels.topic_level`, of all coordinators, "missing": those that do not answer}."""
        links = {p.member.name: p.link for p in self._engine.coordinators.leading()}
        asked = {
            name: link.request("topics", prefix, start, count, timeout_s=ASK_TIMEOUT_S)
            for name, link in links.items()
            if link is not None
        }
        answers = dict(zip(asked, await asyncio.gather(*asked.values(), return_exceptions=True), strict=True))
        found: set[tuple[bytes, bool]] = set()
        for answer in answers.values():
            if not isinstance(answer, BaseException):
                found.update(_rows(answer))
        silent = {name for name, answer in answers.items() if isinstance(answer, LexicastError)}
        return {
            "topics": heapq.nsmallest(min(count, PAGE_MAX), found),
            "missing": sorted(silent | (links.keys() - asked.keys())),
        }

    async def disconnect(self, client_id: str) -> bool:
        """End an MQTT client's connection; whether it had one here."""
        return self._mqtt.disconnect_client(client_id, ADMINISTRATIVE_ACTION)


def _rows(answer: Any) -> Iterable[tuple[bytes, bool]]:
    return [(bytes(name), bool(stands_for_all)) for name, stands_for_all in answer]
