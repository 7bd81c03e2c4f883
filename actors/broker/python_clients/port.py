"""The broker's side of Python clients: their links carry batches as they are, in both directions.

A client's entries go to the coordinators unchanged (it is its own producer); a stream's blocks come as stored, cut to
the records that its filter wants. What is spoken is in `cluster.protocol.messages`; how a client behaves, in
`client.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgpack

from lexicast.cluster.blocks import Block, unpack_meta
from lexicast.cluster.errors import LexicastError, PeerError, UnavailableError, UsageError
from lexicast.cluster.positions import topic_group
from lexicast.cluster.protocol.messages import ACK, DELIVER, DICTIONARY, PUBLISH, REQUEST, check_entry_columns
from lexicast.cluster.protocol.requests import CLIENT
from lexicast.cluster.protocol.shapes import check_request
from lexicast.cluster.selection import select_topics
from lexicast.cluster.topics.names import check_filter, check_topic, matches
from lexicast.compression.dictionary import Dictionary
from lexicast.storage.log.block_cuts import only_topic

from ...client.subscription_feed import FILTERS_MAX
from ...link.link import Link
from ..encoding import LINK, Grant, Kind
from ..pipelines.entries import SealedEntry
from ..retained_feed import RetainedFeed
from ..subscriber import Subscriber
from .sample_stream import SampleStream

if TYPE_CHECKING:
    from ..engine import BrokerEngine

STREAMS_MAX = 10_000
# Clients in one answer.
CLIENTS_LISTED_MAX = 10_000
# Who asks one question; see `asking`.
ASKING = "asking"
HISTORY_BYTES_MAX = 4 * 1024 * 1024
TOPICS_CHECKED_MAX = 100_000
LINK_KIND = Kind(LINK)
STREAMS_KIND = Kind(LINK, streams=True)
PACK = msgpack.Packer(autoreset=True).pack


class LinkStream(Subscriber):
    """One subscription of a Python client."""

    __slots__ = ("_client", "_prefix", "number")

    def __init__(
        self, engine: BrokerEngine, client: PythonClientSession, number: int, drops: bool, streams: bool
    ) -> None:
        super().__init__(engine.subscriptions, STREAMS_KIND if streams else LINK_KIND, drops)
        self._client = client
        self.number = number
        # (DELIVER, number, [block]): everything but the block, which is packed once for all.
        self._prefix = b"\x93" + PACK(DELIVER) + PACK(number) + b"\x91"

    def write(self, data: bytes) -> None:
        """Send one packed block."""
        self._client.send_packed(self._prefix + data)


class PythonClientSession:
    """One Python client's link."""

    def __init__(self, port: ClientPort, link: Link) -> None:
        self._port = port
        self._engine = port.engine
        self._link = link
        self._streams: dict[int, LinkStream | SampleStream] = {}
        self._feeds: dict[int, RetainedFeed] = {}
        self._since_us = port.engine.clock.time_us()
        self.published_records = 0
        self._requests: dict[str, Callable[..., Awaitable[Any]]] = {
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "retained": self._retained,
            "dictionary": self._dictionary,
            "audience": self._audience,
            "history": self._history,
            "status": self._status,
            "cluster": self._cluster,
            "clients": self._clients,
        }

    def start(self) -> None:
        """Tell the client of the dictionaries that there are, and of new ones from now on."""
        self._engine.dictionaries.listeners.add(self._tell)
        for dictionary in self._engine.dictionaries.families.dictionaries():
            self._tell(dictionary)

    def _tell(self, dictionary: Dictionary) -> None:
        self._link.send((DICTIONARY, dictionary.pack()))

    # -- LinkUser

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """One message of the client."""
        if message[0] == PUBLISH:
            self._publish(message[1], message[2])
        elif message[0] == REQUEST:
            work = self._requests.get(message[2])
            if work is None:
                link.reply(message[1], UsageError(f"no such request: {message[2]}"))
            else:
                check_request(CLIENT, message[2], message[3])
                link.answer(message[1], work(*message[3]))
        else:
            raise PeerError(f"a client sent a message of kind {message[0]}")

    def on_close(self, link: Link, error: Exception | None) -> None:
        """The client has gone; its cursors are its own."""
        self._engine.dictionaries.listeners.discard(self._tell)
        for stream in self._streams.values():
            self._engine.subscriptions.leave(stream)
        self._port.closed(self)

    def on_writable(self, link: Link) -> None:
        """The socket has drained."""
        for stream in list(self._streams.values()):
            stream.unblock()

    @property
    def writable(self) -> bool:
        """Whether the socket takes more."""
        return self._link.writable and not self._link.closed

    @property
    def samples(self) -> bool:
        """Whether this is a sampling broker's client."""
        return any(stream.samples for stream in self._streams.values())

    def shares(self, subscribers: Collection[Subscriber]) -> bool:
        """Whether one of these is a subscription of this client."""
        return any(stream in subscribers for stream in self._streams.values())

    def send_packed(self, data: bytes) -> None:
        """Send a packed message; a full socket puts all streams of this link behind."""
        self._link.send_packed(data)
        if not self._link.writable:
            for stream in self._streams.values():
                stream.block()

    def resume_reading(self) -> None:
        """The pipelines have room again."""
        self._link.resume_reading()

    # -- publishing

    def _publish(self, tag: int, wires: Any) -> None:
        results: list[Any] = [None] * len(wires)
        left = len(wires)

        def done(index: int, result: Any) -> None:
            nonlocal left
            results[index] = result
            left -= 1
            if left == 0:
                self._link.send((ACK, tag, results))

        if not wires:
            self._link.send((ACK, tag, ()))
        for index, wire in enumerate(wires):
            try:
                entry, count = self._entry(wire)
                entry.done.append(partial(done, index))
                pipeline = self._engine.coordinators.forward(entry, count)
                self.published_records += count
            except LexicastError as error:
                # Also what breaks the rules: its client would send it again on the next link, for ever.
                done(index, str(error))
                continue
            if pipeline.full:
                self._link.pause_reading()

    def _entry(self, wire: Any) -> tuple[SealedEntry, int]:
        """Raises PeerError for an entry that breaks the rules: the client library would not have sent it."""
        check_entry_columns(wire)
        group, meta, lengths, body = wire
        parsed = unpack_meta(meta)
        for topic in parsed.topics:
            self._port.check_topic(topic, group)
        largest = max(memoryview(lengths).cast("I"), default=0) if len(lengths) % 4 == 0 else 0
        if largest > self._port.payload_bytes_max:
            raise PeerError(f"a payload of {largest} bytes: at most {self._port.payload_bytes_max} are allowed")
        size = len(meta) + len(lengths) + len(body)
        return SealedEntry((group, meta, lengths, body), [], parsed.dictionaries, size), len(lengths) // 4

    # -- requests

    async def _subscribe(
        self, number: int, filters: tuple[bytes, ...], since: tuple[str, Any] | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        _check_filters(filters)
        if number in self._streams or len(self._streams) >= STREAMS_MAX:
            raise UsageError(f"stream {number} exists, or there are {STREAMS_MAX} already")
        stream = self._stream(number, options)
        # Nothing goes out before the reply; what comes meanwhile is caught up with.
        stream.block()
        self._streams[number] = stream
        try:
            # A sample begins now, also after a broken link.
            start = None if stream.samples else await self._start(filters, since)
            cuts = await self._engine.subscriptions.subscribe(stream, dict.fromkeys(filters, Grant(qos=0)), start=start)
            if since is None and not stream.samples and cuts:
                self._feeds[number] = self._engine.subscriptions.retained(cuts)
            cursor = self._engine.subscriptions.cursor_of(stream)
            page = await self._retained(number)
        except BaseException:
            self._engine.subscriptions.leave(stream)
            self._streams.pop(number, None)
            self._feeds.pop(number, None)
            raise
        if self._link.closed:
            self._engine.subscriptions.leave(stream)
        return {"cursor": cursor, **page}

    async def _retained(self, number: int) -> dict[str, Any]:
        """The next page of what is retained for a subscription, each topic once, and whether there are more; what is
        live follows the last one."""
        feed = self._feeds.get(number)
        found = await feed.page() if feed is not None and not feed.done else []
        if feed is not None and len(feed.filters) > 1:
            found = [
                (name, block)
                for name, block in found
                if next(each for each in feed.filters if matches(each, only_topic(block))) == name
            ]
        more = feed is not None and not feed.done
        if not more:
            self._feeds.pop(number, None)
            stream = self._streams.get(number)
            if stream is not None:
                asyncio.get_running_loop().call_soon(self._go, stream)
        return {"retained": [block.to_wire() for _, block in found], "more": more}

    def _stream(self, number: int, options: dict[str, Any]) -> LinkStream | SampleStream:
        records_per_s = options.get("sample_records_per_s")
        if records_per_s is None:
            streams = options.get("streams") is True and self._engine.streamer is not None
            return LinkStream(self._engine, self, number, options.get("slow") == "drop", streams)
        if not isinstance(records_per_s, int) or records_per_s < 1:
            raise UsageError(f"sample_records_per_s={records_per_s!r}: it is a number from 1")
        return SampleStream(
            self._engine.subscriptions, self, number, records_per_s, self._engine.dictionaries.opted_out
        )

    def _go(self, stream: LinkStream | SampleStream) -> None:
        """After the reply."""
        if not stream.closed and self._link.writable:
            stream.unblock()

    async def _start(self, filters: tuple[bytes, ...], since: tuple[str, Any] | None) -> dict[int, int] | None:
        if since is None:
            return None
        kind, value = since
        if kind == "cursor":
            return {group: value[group] for group in self._groups(filters) if group in value}
        if kind != "time":
            raise UsageError(f"since is of an unknown kind: {kind}")
        start: dict[int, int] = {}
        for topic_filter in filters:
            start |= await self._engine.coordinators.offsets_at(topic_filter, int(value))
        return start

    def _groups(self, filters: tuple[bytes, ...]) -> list[int]:
        return sorted(
            {group for topic_filter in filters for group in self._engine.coordinators.groups_of(topic_filter)}
        )

    async def _unsubscribe(self, number: int) -> None:
        self._feeds.pop(number, None)
        stream = self._streams.pop(number, None)
        if stream is not None:
            self._engine.subscriptions.leave(stream)

    async def _dictionary(self, dictionary: int) -> bytes:
        return (await self._engine.dictionary_fetching.fetch(dictionary)).pack()

    async def _audience(self, family: bytes, topics: tuple[bytes, ...]) -> tuple[int, int]:
        return self._port.audience(family, topics)

    async def _status(self) -> dict[str, Any]:
        return self._port.status()

    async def _cluster(self) -> dict[str, Any]:
        return await self._port.cluster()

    async def _clients(self, count: int) -> list[dict[str, Any]]:
        return self._port.clients(min(count, CLIENTS_LISTED_MAX))

    def described(self) -> dict[str, Any]:
        """For the list of clients."""
        link = self._link
        return {
            "id": link.name,
            "kind": "sampling broker" if self.samples else "Python",
            "address": link.peer_address,
            "since_us": self._since_us,
            "subscriptions": len(self._streams),
            "published_records": self.published_records,
            "behind": any(stream.lagging for stream in self._streams.values()),
        }

    def lagging(self) -> list[object]:
        """Its streams that have something to catch up with."""
        return [stream for stream in self._streams.values() if stream.lagging]

    async def _history(
        self,
        filters: tuple[bytes, ...],
        since: tuple[str, Any] | None,
        until_us: int,
        cursor: dict[int, int] | None,
        bytes_max: int,
    ) -> dict[str, Any]:
        """One page of the past: blocks before `until_us`, and the cursor to ask the next page with."""
        _check_filters(filters)
        if cursor is None:
            cursor = await self._start(filters, since) or dict.fromkeys(self._groups(filters), 0)
        for group in list(cursor):
            pipeline = self._engine.coordinators.pipeline_of(group)
            if pipeline is None:
                raise UnavailableError(f"no coordinator leads group {group} now")
            part = {g: at for g, at in cursor.items() if self._engine.coordinators.pipeline_of(g) is pipeline}
            room = min(bytes_max, HISTORY_BYTES_MAX)
            result = await pipeline.request("fetch", part, list(filters), room)
            return self._page(cursor, result, until_us, filters)
        return {"blocks": [], "cursor": {}, "done": True}

    @staticmethod
    def _page(
        cursor: dict[int, int], result: dict[str, Any], until_us: int, filters: tuple[bytes, ...]
    ) -> dict[str, Any]:
        left = dict(cursor)
        left.update(result["cursor"])
        blocks = []
        for wire in result["blocks"]:
            block = Block.from_wire(wire)
            if block.time_us >= until_us:
                left.pop(block.group, None)
                continue
            # A fetched block is one that holds something wanted, with its neighbours.
            part = select_topics(block, lambda topic: _match(filters, topic))
            if part is not None:
                blocks.append(part.to_wire())
        for group in result["live"]:
            left.pop(group, None)
        return {"blocks": blocks, "cursor": left, "done": not left}


class ClientPort:
    """All Python clients of a broker."""

    def __init__(
        self,
        engine: BrokerEngine,
        payload_bytes_max: int,
        mqtt_publishers: Callable[[bytes], int],
        status: Callable[[], dict[str, Any]],
        cluster: Callable[[], Awaitable[dict[str, Any]]],
        clients: Callable[[int], list[dict[str, Any]]],
    ) -> None:
        """`mqtt_publishers` counts those of a family that are told of dictionaries, `status` tells of this broker,
        `cluster` of all actors, `clients` lists so many of this broker's."""
        self.engine = engine
        self.cluster = cluster
        self.clients = clients
        self.payload_bytes_max = payload_bytes_max
        self.status = status
        self.sessions: set[PythonClientSession] = set()
        self._mqtt_publishers = mqtt_publishers
        self._checked: dict[bytes, int] = {}

    def opened(self, link: Link) -> PythonClientSession | None:
        """A link was opened; only clients have business here."""
        if link.role == ASKING:
            return PythonClientSession(self, link)  # it is gone in a moment, and no client of anything
        if link.role != "client":
            return None
        session = PythonClientSession(self, link)
        self.sessions.add(session)
        session.start()
        return session

    def closed(self, session: PythonClientSession) -> None:
        """A client has gone."""
        self.sessions.discard(session)

    def audience(self, family: bytes, topics: tuple[bytes, ...]) -> tuple[int, int]:
        """(publishers, subscribers) of this broker to which a dictionary of the family goes; `topics`: some of its own.

        A Python client that subscribes to none of them counts as a publisher: every one is told of dictionaries.
        """
        reached = [{s for s, _ in self.engine.fanout.fan(topic) if s.takes_dictionaries} for topic in topics]
        subscribers = set().union(*reached)
        silent = [session for session in self.sessions if not session.samples and not session.shares(subscribers)]
        return self._mqtt_publishers(family) + len(silent), len(subscribers)

    def lagging(self) -> list[object]:
        """The streams of all clients that have something to catch up with."""
        return [stream for session in self.sessions for stream in session.lagging()]

    def list(self, count: int) -> list[dict[str, Any]]:
        """Clients, at most `count`."""
        return [session.described() for session in islice(self.sessions, count)]

    def room(self) -> None:
        """The pipelines have room again."""
        for session in self.sessions:
            session.resume_reading()

    def check_topic(self, topic: bytes, group: int) -> None:
        """Raises PeerError unless `topic` is one and belongs to `group`."""
        known = self._checked.get(topic)
        if known is None:
            try:
                check_topic(topic)
            except LexicastError as error:
                raise PeerError(str(error)) from None
            if len(self._checked) >= TOPICS_CHECKED_MAX:
                self._checked.clear()
            known = self._checked[topic] = topic_group(topic, self.engine.groups)
        if known != group:
            raise PeerError(f"topic {topic[:80]!r} belongs to group {known}, not {group}")


def _check_filters(filters: tuple[bytes, ...]) -> None:
    """Raises TopicError, UsageError."""
    if not 1 <= len(filters) <= FILTERS_MAX:
        raise UsageError(f"{len(filters)} filters: give 1 to {FILTERS_MAX}")
    for topic_filter in filters:
        check_filter(topic_filter)


def _match(filters: Iterable[bytes], topic: bytes) -> bool:
    return any([matches(topic_filter, topic) for topic_filter in filters])
