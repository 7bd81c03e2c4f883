"""What a console answers about topics and what is published to them: the tree, the past, what comes, publishing.

Everybody may ask; rules decide what each visitor gets, as they do over MQTT.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final

from aiohttp import web
from cryptography.fernet import Fernet, InvalidToken

from lexicast.cluster.content.parsed import predicate
from lexicast.cluster.errors import DictionaryError, LexicastError, LimitError, TopicError, UsageError
from lexicast.cluster.topics.names import check_filter, check_topic
from lexicast.storage.tables.topic_levels import beyond

from ..broker.security.rights import ClientRights
from ..client.client import Client
from ..client.messages import Message
from ..client.subscription import Subscription
from .answers import VISITOR, body_of, json_answer, limit_of, number_of, page_of
from .broker_lines import BrokerLines
from .message_json import message_json
from .topic_rates import TopicRates
from .visitors import NotLetInError, Visitor

FILTERS_MAX: Final = 16
# A history that is looked through for so long is given as far as it came.
HISTORY_S: Final = 10.0
# Read at once, each page by page; whoever comes then waits within that time.
HISTORIES_MAX: Final = 8
HISTORY_SINCE: Final = "1h"
# 100,000 topics of one message each give so many in 0.1 s.
HISTORY_MAX: Final = 500
# A live stream: so many messages a second at the most, in so many events; what is more is counted.
STREAMED_PER_S: Final = 100
EVENT_S: Final = 0.1
STREAM_BUFFER_BYTES: Final = 256 * 1024
# Something is sent at least so often, so that who is gone is noticed.
SILENCE_S: Final = 10.0
# Who does not take what is sent for so long is gone, too.
STALLED_S: Final = 30.0
TOPIC_LEVELS_LIMIT: Final = 100


class TopicRequests:
    """See the module's docstring."""

    def __init__(self, client: Client, lines: BrokerLines, optout: Iterable[str], streams_max: int) -> None:
        """`optout`: filters of topics that are never sampled."""
        self._client = client
        self._lines = lines
        self._optout = [each.encode() for each in optout]
        self._streams_max = streams_max
        self._streams = 0
        self._histories = asyncio.Semaphore(HISTORIES_MAX)
        self._places = _Places(lines.cluster.key)
        self.rates = TopicRates(client)

    def routes(self) -> list[web.AbstractRouteDef]:
        """What is served."""
        return [
            web.get("/api/v1/topics", self.topics),
            web.get("/api/v1/history", self.history),
            web.get("/api/v1/stream", self.stream, allow_head=False),
            web.post("/api/v1/publish", self.publish),
        ]

    # -- the tree

    async def topics(self, request: web.Request) -> web.Response:
        """One level of the tree of topics."""
        rights, prefix = request[VISITOR].rights, request.query.get("under", "")
        if prefix and not prefix.endswith("/"):
            raise UsageError(f'under={prefix!r}: it ends with "/"')
        limit = limit_of(request, TOPIC_LEVELS_LIMIT, 200)
        start = self._places.opened(request.query.get("after", ""), rights.restricted)
        if not rights.may_subscribe(prefix.encode() + b"#", False):
            return json_answer({"rows": [], "next": None, "missing": []})
        told = await self._lines.ask_nearest("topics", prefix.encode(), start, limit + 1)
        found = [(bytes(name), bool(stands_for_all)) for name, stands_for_all in told["topics"]]
        page = page_of(found, limit, lambda row: self._places.told(beyond(*row), rights.restricted))
        shown = [row for row in page["rows"] if _may_see(rights, *row)]
        names = [name.decode(errors="replace") for name, _ in shown]
        # A topic may end in "/" as well, and then is not what stands for all below it.
        per_s = self.rates.per_s(names, rights.may_read)
        rows = [
            {"name": name, "has_topics_below": stands_for_all, "per_s": rate}
            for name, (_, stands_for_all), rate in zip(names, shown, per_s, strict=True)
        ]
        return json_answer({"rows": rows, "next": page["next"], "missing": told["missing"]})

    # -- the past

    async def history(self, request: web.Request) -> web.Response:
        """What was published, oldest first within each topic group."""
        query, rights = request.query, request[VISITOR].rights
        filters = self._filters(request, past=True)
        limit, last = limit_of(request, most=HISTORY_MAX), number_of(request, "last", 0, 0, 1_000)
        messages = self._client.history(
            filters,
            since=query.get("since") or HISTORY_SINCE,
            until=query.get("until") or None,
            last=last or None,
            where=query.get("where") or None,
        )
        found: list[dict[str, Any]] = []
        complete = True
        try:
            async with asyncio.timeout(HISTORY_S), self._histories:
                async for message in messages:
                    if rights.may_read_past(message.topic.encode()):
                        found.append(message_json(message))
                    if len(found) > limit:
                        break
        except TimeoutError:
            complete = False
        finally:
            await messages.aclose()
        page = page_of(found, limit, lambda row: row["position"])
        return json_answer({**page, "complete": complete})

    def _filters(self, request: web.Request, past: bool) -> list[str]:
        """The filters that are asked for. Raises UsageError, TopicError; NotLetInError where rules let none bring
        anything."""
        filters = request.query.getall("filter", [])
        if not 1 <= len(filters) <= FILTERS_MAX:
            raise UsageError(f"{len(filters)} filters: give 1 to {FILTERS_MAX}, as in ?filter=flights/%23")
        rights = request[VISITOR].rights
        for each in filters:
            check_filter(each.encode())
        if not any([rights.may_subscribe(each.encode(), past) for each in filters]):
            raise NotLetInError(403, "the rules let you read none of that")
        return filters

    # -- what comes

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """What is published from now on, as server-sent events."""
        where = request.query.get("where") or None
        filters = self._filters(request, past=False)
        if where is not None:
            predicate(where)
        if self._streams >= self._streams_max:
            raise LimitError(f"{self._streams:,} streams are looked at already (http.streams_max)")
        self._streams += 1
        try:
            async with self._subscription(filters, where) as messages:
                return await self._send(request, request[VISITOR], messages)
        finally:
            self._streams -= 1

    def _subscription(self, filters: list[str], where: str | None) -> Subscription:
        """A sample, so that a flood costs the broker and this console little; else what a condition or an exception
        from sampling makes few."""
        exempt = any([_meet(each.encode(), other) for each in filters for other in self._optout])
        if where is None and not exempt:
            return self._client.subscribe(filters, sample_records_per_s=STREAMED_PER_S)
        return self._client.subscribe(filters, where=where, slow="drop", buffer_bytes=STREAM_BUFFER_BYTES)

    async def _send(self, request: web.Request, visitor: Visitor, messages: Subscription) -> web.StreamResponse:
        """Until it goes, does not take what it gets, or may not stay; or the cluster has no more to give."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        await response.prepare(request)
        room, loop = float(STREAMED_PER_S), asyncio.get_running_loop()
        then_s = loop.time()
        with suppress(ConnectionResetError, LexicastError):
            await _write(request, response, b"retry: 2000\n\n: it begins here\n\n")
            async for batch in _batches(messages):
                if not visitor.may_stay():
                    break
                allowed = [each for each in batch if visitor.rights.may_read(each.topic.encode())]
                now_s = loop.time()
                room, then_s = min(STREAMED_PER_S, room + (now_s - then_s) * STREAMED_PER_S), now_s
                shown = allowed[max(0, len(allowed) - int(room)) :]
                room -= len(shown)
                event = {"messages": [message_json(each) for each in shown], "left_out": len(allowed) - len(shown)}
                said = b"data: " + json.dumps(event).encode() if allowed else b": still here"
                await _write(request, response, said + b"\n\n")
        return response

    # -- publishing

    async def publish(self, request: web.Request) -> web.Response:
        """Publish one message."""
        visitor = request[VISITOR]
        body = await body_of(request, topic=str, payload=str, qos=int, retain=bool)
        if "topic" not in body:
            raise UsageError('give "topic" and "payload"')
        topic = str(body["topic"]).encode(errors="replace")
        check_topic(topic)
        if topic.startswith(b"$"):
            raise TopicError("topics below $ are the cluster's own")
        if not visitor.rights.may_write(topic):
            visitor.rights.refuse("publish", topic)
            raise NotLetInError(403, "the rules do not let you publish there")
        position = await self._client.publish(
            body["topic"], body.get("payload", ""), qos=body.get("qos", 1), retain=body.get("retain", False)
        )
        return json_answer({"position": str(position)})


async def _batches(messages: Subscription) -> AsyncIterator[list[Message]]:
    """What comes, an event's at a time, but for what cannot be read; nothing, where nothing has come for SILENCE_S."""
    while True:
        batch: list[Message] = []
        try:
            async with asyncio.timeout(SILENCE_S):
                batch = await messages.next_batch()
        except StopAsyncIteration:
            return
        except (TimeoutError, DictionaryError):
            pass
        yield batch
        await asyncio.sleep(EVENT_S)


async def _write(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Raises ConnectionResetError, also where the peer takes nothing."""
    try:
        async with asyncio.timeout(STALLED_S):
            await response.write(data)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError from None


class _Places:
    """Where the next page of a level begins, as visitors are told it. The name there may be one that rules keep from
    them: then it is sealed, by a key that all consoles of the cluster have."""

    def __init__(self, cluster_key: bytes) -> None:
        key = blake2b(b"http places", key=cluster_key[:64], digest_size=32).digest()
        self._seal = Fernet(base64.urlsafe_b64encode(key))

    def told(self, place: bytes, sealed: bool) -> str:
        return self._seal.encrypt(place).decode() if sealed else place.decode(errors="replace")

    def opened(self, text: str, sealed: bool) -> bytes:
        """Raises UsageError."""
        if not (text and sealed):
            return text.encode()
        try:
            return self._seal.decrypt(text.encode())
        except InvalidToken:
            raise UsageError(f'after={text!r}: give what an answer had under "next"') from None


def _may_see(rights: ClientRights, name: bytes, stands_for_all: bool) -> bool:
    if stands_for_all:
        return rights.may_subscribe(name + b"#", False) if len(name) < 65_535 else True
    return rights.may_read(name)


def _meet(one: bytes, other: bytes) -> bool:
    """Whether two filters may match one topic, as far as their levels tell: rather yes than no."""
    for mine, yours in zip(one.split(b"/"), other.split(b"/"), strict=False):
        if b"#" in (mine, yours):
            return True
        if b"+" not in (mine, yours) and mine != yours:
            return False
    return True
