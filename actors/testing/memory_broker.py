"""A broker in memory: the client protocol's other side, without Ray, storage or other brokers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from lexicast.cluster.blocks import PUBLICATIONS, RETAIN, Block
from lexicast.cluster.clock import Clock, SystemClock
from lexicast.cluster.content.parsed import predicate
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.errors import DictionaryError, PeerError, UnavailableError, UsageError
from lexicast.cluster.positions import DEFAULT_GROUPS, Cursor
from lexicast.cluster.protocol.broker_list import BrokerList
from lexicast.cluster.protocol.messages import ACK, DELIVER, DICTIONARY, PUBLISH, REQUEST
from lexicast.cluster.selection import select
from lexicast.cluster.topics.names import matches
from lexicast.compression.dictionary import unpack_dictionary
from lexicast.compression.wire import LAST_BROKER_ALIAS, AliasTable, Recoder

from ..broker.content.choosing import chosen
from ..broker.encoding import BlockView, Encoder, Grant
from ..link.call_link import CallLinks
from ..link.link import Link
from ..link.sockets import listen

PAYLOAD_BYTES_MAX = 1024 * 1024
KEY_BYTES = 32

# (count, epoch, first offset) runs, or the reason of a refusal
Result = tuple[tuple[int, int, int], ...] | str


# More than 25 methods: one for each request of the protocol.
class MemoryBroker:
    """A broker with real links and real positions, and nothing durable.

        broker = lexicast.testing.MemoryBroker()
        await broker.listen("unix:/tmp/test.sock")
        async with lexicast.connect("link:unix:/tmp/test.sock", key=broker.key) as bus: ...

    Not bounded: it keeps everything that was published. `refuse` may give a reason to refuse an entry of a group.
    """

    def __init__(self, groups: int = DEFAULT_GROUPS, *, clock: Clock | None = None, name: str = "memory") -> None:
        self.groups = groups
        self.key = secrets.token_bytes(KEY_BYTES)
        self.cluster_id = secrets.token_hex(8)
        self.name = name
        self.epoch = 1
        self.refuse: Callable[[int], str | None] = lambda group: None
        self.dictionaries: dict[int, bytes] = {}
        self.links: list[Link] = []
        self.streams: dict[tuple[Link, int], tuple[bytes, ...]] = {}
        self._conditions: dict[tuple[Link, int], Predicate | None] = {}
        self._recoder = Recoder()
        self._encoder = Encoder(self._recoder, AliasTable(LAST_BROKER_ALIAS), lambda topic: None)
        self.requests: list[tuple[str, tuple[Any, ...]]] = []
        self.history_bytes = 1024 * 1024
        self._clock = clock or SystemClock()
        self._logs: dict[int, list[Block]] = {}
        self._next: dict[int, int] = {}
        self._retained: dict[bytes, Block] = {}
        self._producers: dict[tuple[int, bytes], list[tuple[int, int, int, int]]] = {}
        self._servers: list[asyncio.AbstractServer] = []
        self.calls = CallLinks(self.key, self.cluster_id, self.opened, self.info)

    @property
    def info(self) -> dict[str, Any]:
        """What WELCOME says."""
        return {
            "groups": self.groups,
            "broker": self.name,
            "cluster_id": self.cluster_id,
            "payload_bytes_max": PAYLOAD_BYTES_MAX,
        }

    async def listen(self, address: str) -> str:
        """Listen for clients ("unix:PATH", "tcp:HOST:0"); returns the real address."""
        server, real = await listen(address, self.key, self.cluster_id, self.opened, self.info)
        self._servers.append(server)
        return real

    def close(self) -> None:
        """Stop listening and cut every link."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        self.calls.close_all()
        self.cut()

    def cut(self) -> None:
        """Cut every link, as a crash would; clients come back."""
        for link in list(self.links):
            link.abort()

    # -- LinkUser

    def opened(self, link: Link) -> MemoryBroker:
        """See link.LinkUser: a client has come."""
        self.links.append(link)
        for packed in self.dictionaries.values():
            link.send((DICTIONARY, packed))
        return self

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """See link.LinkUser."""
        if message[0] == PUBLISH:
            self.publish(link, message[1], message[2])
        elif message[0] == REQUEST:
            self._request(link, *message[1:])
        else:
            raise PeerError(f"a broker does not take messages of kind {message[0]!r} from clients")

    def on_close(self, link: Link, error: Exception | None) -> None:
        """See link.LinkUser."""
        self.links.remove(link)
        self.streams = {key: filter for key, filter in self.streams.items() if key[0] is not link}

    def on_writable(self, link: Link) -> None:
        """See link.LinkUser. Nothing is held back here."""

    # -- publishing

    def publish(self, link: Link, tag: int, entries: Any) -> None:
        """PUBLISH: store, acknowledge, deliver. Tests override it to hold or lose acknowledgements."""
        link.send((ACK, tag, self.store(entries)))

    def store(self, entries: Any) -> list[Result]:
        """Give each entry its place and deliver it; repeats get their first place."""
        return [self._store(*entry) for entry in entries]

    def _store(self, group: int, meta: bytes, lengths: bytes, body: bytes) -> Result:
        reason = self.refuse(group)
        if reason is not None:
            return reason
        first = self._next.get(group, 1)
        block = Block(group, self.epoch, first, 0, self._clock.time_us(), PUBLICATIONS, meta, lengths, body)
        block.last = first + block.count - 1
        (producer, _, sequence, count), *_ = block.meta.producers
        known = self._producers.setdefault((group, producer), [])
        for at, length, epoch, offset in known:
            if at == sequence and length == count:
                return ((count, epoch, offset),)
        known.append((sequence, count, self.epoch, first))
        self._next[group] = block.last + 1
        self._logs.setdefault(group, []).append(block)
        self._retain(block)
        for (link, stream), filters in self.streams.items():
            kept = self._holding(self._select(block, filters), self._conditions.get((link, stream)))
            if kept is not None:
                link.send((DELIVER, stream, [kept.to_wire()]))
        return ((count, self.epoch, first),)

    def _retain(self, block: Block) -> None:
        if not any(run.flags & RETAIN for run in block.meta.runs):
            return
        for index, record in enumerate(block.records()):
            if record.flags & RETAIN:
                keep = [i == index for i in range(block.count)]
                kept = select(block, keep)
                self._retained.pop(record.topic, None)
                if record.payload and kept is not None:
                    self._retained[record.topic] = kept

    def announce(self, identifier: int, packed: bytes) -> None:
        """A new dictionary, pushed to every client."""
        self.dictionaries[identifier] = packed
        with suppress(DictionaryError):  # tests announce also what is none
            self._recoder.add(unpack_dictionary(packed))
        for link in self.links:
            link.send((DICTIONARY, packed))

    # -- requests

    def _request(self, link: Link, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        self.requests.append((method, arguments))
        handler = getattr(self, f"on_{method}", None)
        if handler is None:
            link.reply(number, UsageError(f"unknown request {method!r}"))
            return
        try:
            result = handler(link, *arguments)
        except UnavailableError as error:
            link.reply(number, error)
            return
        link.reply(number, None, result)
        if method == "subscribe":
            self._replay(link, arguments[0], arguments[1], result["cursor"], arguments[3].get("where"))

    def on_subscribe(
        self, link: Link, stream: int, filters: tuple[bytes, ...], since: Any, options: dict[str, Any]
    ) -> dict[str, Any]:
        """See `on_message`: register a stream; the past follows the reply."""
        where = options.get("where")
        self.streams[link, stream], self._conditions[link, stream] = filters, _condition(where)
        found = [b for t, b in self._retained.items() if _match(filters, t)] if since is None else []
        retained = [kept.to_wire() for b in found if (kept := self._holding(b, _condition(where))) is not None]
        return {"cursor": self._start(since), "retained": retained}

    def _start(self, since: Any) -> Cursor:
        heads = {group: self._next.get(group, 1) for group in range(self.groups)}
        if since is None:
            return heads
        if since[0] == "cursor":
            return {**heads, **since[1]}
        late = {g: [b.first for b in log if b.time_us >= since[1]] for g, log in self._logs.items()}
        return {group: min(late.get(group) or [head]) for group, head in heads.items()}

    def _replay(
        self, link: Link, stream: int, filters: tuple[bytes, ...], cursor: Cursor, where: str | None = None
    ) -> None:
        for block in self._past(filters, cursor, where):
            link.send((DELIVER, stream, [block.to_wire()]))

    def _past(self, filters: tuple[bytes, ...], cursor: Cursor, where: str | None) -> Iterator[Block]:
        for group, log in sorted(self._logs.items()):
            for block in log:
                found = self._select(block, filters, cursor[group]) if block.last >= cursor[group] else None
                kept = self._holding(found, _condition(where))
                if kept is not None:
                    yield kept

    def _holding(self, block: Block | None, condition: Predicate | None) -> Block | None:
        """What is left of a block with a condition."""
        if block is None or condition is None:
            return block
        grants = (Grant(where=condition),) * len(block.meta.topics)
        part = chosen(BlockView(block, self._clock.time_us()), grants, self._encoder)
        return None if part is None else part.view.block

    def on_unsubscribe(self, link: Link, stream: int) -> None:
        """See `on_message`: end a stream."""
        self.streams.pop((link, stream), None)
        self._conditions.pop((link, stream), None)

    def on_dictionary(self, link: Link, identifier: int) -> bytes | None:
        """See `on_message`: a dictionary by id."""
        return self.dictionaries.get(identifier)

    def on_brokers(self, link: Link) -> BrokerList:
        """See `on_message`: there is no other one."""
        return BrokerList({}, ())

    def on_status(self, link: Link) -> dict[str, Any]:
        """See `on_message`: a few counts."""
        return {"broker": self.name, "links": len(self.links), "streams": len(self.streams)}

    def on_history(
        self,
        link: Link,
        filters: tuple[bytes, ...],
        since: Any,
        until_us: int,
        cursor: Cursor | None,
        bytes_max: int,
        where: str | None = None,
    ) -> dict[str, Any]:
        """See `on_message`: a page of the past."""
        reached = dict(cursor) if cursor is not None else self._start(since)
        page: list[Any] = []
        size = 0
        for block in self._past(filters, dict(reached), where):
            if block.time_us >= until_us:
                continue
            if size >= min(bytes_max, self.history_bytes):
                return {"blocks": page, "cursor": reached, "done": False}
            page.append(block.to_wire())
            size += block.size_bytes
            reached[block.group] = block.last + 1
        return {"blocks": page, "cursor": reached, "done": True}

    def on_count(
        self,
        link: Link,
        filters: tuple[bytes, ...],
        since: Any,
        until_us: int,
        cursor: Cursor | None,
        where: str | None = None,
    ) -> dict[str, Any]:
        """See `on_message`: how many publications the past has."""
        blocks = [block for block in self._past(filters, self._start(since), where) if block.time_us < until_us]
        return {"count": sum([block.count for block in blocks]), "cursor": {}, "done": True}

    def on_last(
        self,
        link: Link,
        filters: tuple[bytes, ...],
        since: Any,
        until_us: int,
        count: int,
        after: Any,
        bytes_max: int,
        where: str | None = None,
    ) -> dict[str, Any]:
        """See `on_message`: the last publications of each topic, all in one page."""
        found: dict[bytes, list[Block]] = {}
        for block in self._past(filters, self._start(since), None):
            for topic in block.meta.topics if block.time_us < until_us else ():
                part = self._select(block, (topic,)) if _match(filters, topic) else None
                if part is not None:
                    single = [select(part, [i == at for i in range(part.count)]) for at in range(part.count)]
                    found.setdefault(topic, []).extend([one for one in single if one is not None])
        last = [block for topic in sorted(found) for block in found[topic][-count:]]
        kept = [self._holding(block, _condition(where)) for block in last]
        return {"blocks": [block.to_wire() for block in kept if block is not None], "after": None}

    @staticmethod
    def _select(block: Block, filters: tuple[bytes, ...], start: int = 0) -> Block | None:
        """The records of `block` that match, from offset `start` on."""
        meta = block.meta
        good = [_match(filters, topic) for topic in meta.topics]
        if all(good) and block.first >= start:
            return block
        keep: list[bool] = []
        for run in meta.runs:
            keep += [good[run.topic]] * run.count
        return select(block, [k and block.first + i >= start for i, k in enumerate(keep)])


def _condition(where: str | None) -> Predicate | None:
    return None if where is None else predicate(where)


def _match(filters: tuple[bytes, ...], topic: bytes) -> bool:
    return any([matches(filter, topic) for filter in filters])
