"""What a client finds out about one publication: where it is, and the hops of a marked one, in times of its own clock.

Operators ask every broker, over links of their own; a user, who has one link, asks the broker that serves it.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from lexicast.cluster.errors import LexicastError, UsageError
from lexicast.cluster.points_in_time import CURSOR, FOREVER_US
from lexicast.cluster.positions import Position
from lexicast.cluster.protocol.requests import TRACE_MARK
from lexicast.cluster.topics.names import check_topic

from ..client.client import Client
from ..client.history_pages import HistoryPages
from ..client.messages import Message
from ..link.link import Link
from ..status.over_link import dial_broker
from .clocks import SAME_CLOCK, ClockOffset, clock_offset

# How often a broker is asked for its time before a marked publication: the quickest answer counts.
CLOCK_ASKED: Final = 5
ANSWER_TIMEOUT_S: Final = 15.0
_POSITION: Final = re.compile(r"\d{1,5}:\d{1,19}:\d{1,19}", re.ASCII)


class Hop(NamedTuple):
    """A step of a marked publication: `what` (see `report.HOPS`), at whom, and when, after it was sent."""

    what: str
    at: str
    after_us: int


@asynccontextmanager
async def broker_links(bus: Client, unreached: dict[str, str]) -> AsyncIterator[dict[str, Link]]:
    """A link to each broker by name, the client's own first; of those that cannot be dialled `unreached` says why."""
    own = await bus.internals.connection.wait_link()
    links = {str(own.info.get("broker", bus.broker_name)): own}
    dialled: list[Link] = []
    try:
        for endpoint in bus.internals.connection.endpoints:
            if endpoint.login is None and endpoint.name not in (*links, bus.broker_name):
                try:
                    link = await dial_broker(endpoint)
                except (LexicastError, OSError) as error:
                    unreached[endpoint.name] = str(error)
                else:
                    dialled.append(link)
                    links[endpoint.name] = link
        yield links
    finally:
        for link in dialled:
            link.close()
        await asyncio.sleep(0)  # what was closed is gone before its event loop is


# -- where a publication is


async def find_publication(bus: Client, target: str) -> Message:
    """The last publication of a topic, or the one at a position. Raises UsageError: there is none; TopicError,
    NotAuthorizedError, UnavailableError."""
    if not _POSITION.fullmatch(target):
        check_topic(target.encode())
        async for message in bus.history(target, last=1):
            return message
        raise UsageError(f"nothing was published to {target!r}, as far as the history goes")
    position = Position.parse(target)
    pages = HistoryPages(bus.internals, (b"#",), (CURSOR, {position.group: position.offset}), FOREVER_US)
    while (page := await pages.next()) is not None:
        for block in page:
            if block.first > position.offset:
                raise _nothing_at(position)
            if block.last >= position.offset:
                messages, _, _ = await bus.internals.decoder.decode_all(block, position.offset)
                if messages and messages[0].position == position:
                    return messages[0]
                raise _nothing_at(position)
    raise _nothing_at(position)


def _nothing_at(position: Position) -> UsageError:
    return UsageError(
        f"no publication is at {position}: retention has taken it, it has expired, its topic is one of the cluster's "
        "own ($...), or the position is wrong"
    )


async def whereabouts(bus: Client, message: Message) -> dict[str, Any]:
    """Where a publication is: "group" (see `GroupTraces.trace`; None: nobody leads it), and of each of "brokers"
    whether it is "subscribed", was "sent" it, and its "subscribers" (see `BrokerTraces.where`), as far as it was asked.
    """
    unreached: dict[str, str] = {}
    topic, offset = message.topic.encode(), message.position.offset
    async with broker_links(bus, unreached) as links:
        asked = [
            link.request("trace", topic, offset, index == 0, timeout_s=ANSWER_TIMEOUT_S)
            for index, link in enumerate(links.values())
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
    told: dict[str, Any] = {}
    for index, (name, answer) in enumerate(zip(links, answers, strict=True)):
        if isinstance(answer, LexicastError) and index:
            unreached[name] = str(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            told[name] = answer
    leader = next(iter(told.values()))["leader"]
    sent = leader["brokers"] if leader is not None else {}
    brokers = {
        name: {
            "subscribed": name in sent,
            "sent": sent.get(name),
            **({"subscribers": told[name]["subscribers"]} if name in told else {}),
        }
        for name in sorted({*told, *sent})
    }
    group = None if leader is None else {key: leader[key] for key in leader if key not in ("brokers", "shares")}
    return {
        "topic": message.topic,
        "position": str(message.position),
        "time": message.time.isoformat(),
        "publisher": message.publisher,
        "qos": message.qos,
        "retain": message.retain,
        "bytes": len(message.payload),
        "group": group,
        "brokers": brokers,
        "shares": {} if leader is None else leader["shares"],
        "unreached": unreached,
    }


# -- a marked one


async def send_marked(bus: Client, topic: str, payload: bytes | None) -> dict[str, Any]:
    """Publish one marked publication, QoS 1: its "position", its "hops" in the order of their times, how far each of
    "clocks" is ahead of this one's, and why some are "missing". `payload` None: JSON that says what it is.

    Raises TopicError, NotAuthorizedError, LimitError, PublishRefusedError, UnavailableError.
    """
    check_topic(topic.encode())
    mark = secrets.token_hex(8)
    if payload is None:
        payload = json.dumps({TRACE_MARK: mark}).encode()
    missing: dict[str, str] = {}
    async with broker_links(bus, missing) as links:
        return await _Sending(bus, topic, mark, links, missing).run(payload)


class _Sending:
    """One marked publication on its way. The first of `links` publishes it."""

    def __init__(self, bus: Client, topic: str, mark: str, links: dict[str, Link], missing: dict[str, str]) -> None:
        self._time_us = bus.internals.clock.time_us
        self._topic = topic
        self._mark = mark
        self._links = links
        self._missing = missing
        self._own = next(iter(links))
        self._clocks: dict[str, ClockOffset] = {}
        self._began_us = 0
        self._hops: list[Hop] = []

    async def run(self, payload: bytes) -> dict[str, Any]:
        for name in list(self._links)[::-1]:  # the one whose coordinator watches last
            await self._begin(name)
        own, mark = self._links[self._own], self._mark
        seen = {name: self._ask(link, "trace_seen", mark) for name, link in self._links.items()}
        self._began_us = self._time_us()
        published, answered_us = await self._ask(own, "trace_publish", mark, payload)
        self._hop("sent", "", self._began_us)
        self._hop("received", self._own, published["received_us"], self._own)
        self._hop("acknowledged", self._own, published["acknowledged_us"], self._own)
        self._hop("answered", self._own, answered_us)
        position = await self._delivered(seen)
        return {
            "topic": self._topic,
            "mark": mark,
            "position": position,
            "hops": [hop._asdict() for hop in sorted(self._hops, key=lambda hop: hop.after_us)],
            "clocks": {name: clock._asdict() for name, clock in self._clocks.items()},
            "missing": self._missing,
        }

    async def _begin(self, name: str) -> None:
        link = self._links[name]
        try:
            asked = []
            for _ in range(CLOCK_ASKED):
                began_us = self._time_us()
                said_us, came_us = await self._ask(link, "clock")
                asked.append((began_us, said_us, came_us))
            self._clocks[name] = clock_offset(asked)
            await self._ask(link, "trace_begin", self._mark, self._topic.encode(), name == self._own)
        except LexicastError as error:
            if name == self._own:
                raise
            self._missing[name] = str(error)
            del self._links[name]

    async def _delivered(self, seen: Mapping[str, asyncio.Future[tuple[Any, int]]]) -> str | None:
        """What brokers and the leader have seen of it; its position."""
        position: str | None = None
        for name, answer in seen.items():
            try:
                told, came_us = await answer
            except LexicastError as error:
                self._missing[name] = str(error)
                continue
            self._hop("given", name, told["delivered_us"], name)
            self._hop("arrived", name, came_us)
            if name == self._own:
                position = await self._committed(told)
        return position

    async def _committed(self, told: dict[str, int]) -> str | None:
        try:
            watched, _ = await self._ask(self._links[self._own], "trace_end", self._mark)
        except LexicastError as error:
            self._missing["commit"] = str(error)
            return None
        leader = watched["coordinator"]
        own = self._clocks.get(self._own, SAME_CLOCK)
        self._clocks[leader] = clock_offset([tuple(watched["clock"])]).beyond(own)
        self._hop("placed", leader, told["placed_us"], leader)
        for member, at_us in watched["copies"].items():
            self._hop("durable", member, at_us, leader)
        if watched["committed_us"] is not None:
            self._hop("committed", leader, watched["committed_us"], leader)
        return f"{watched['group']}:{told['epoch']}:{told['offset']}"

    def _hop(self, what: str, at: str, time_us: int, clock: str = "") -> None:
        """`clock`: whose clock said so; "": this one."""
        ours = self._clocks.get(clock, SAME_CLOCK).ours(time_us)
        self._hops.append(Hop(what, at, ours - self._began_us))

    def _ask(self, link: Link, method: str, *arguments: Any) -> asyncio.Future[tuple[Any, int]]:
        """The answer, and when it came."""
        future: asyncio.Future[tuple[Any, int]] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None, result: Any) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result((result, self._time_us()))

        future.add_done_callback(_heard)
        link.call(done, method, *arguments, timeout_s=ANSWER_TIMEOUT_S)
        return future


def _heard(future: asyncio.Future[tuple[Any, int]]) -> None:
    """An answer that nobody waits for any more."""
    if not future.cancelled():
        future.exception()
