"""The publisher of a client: publications become entries (columns for one group), entries become PUBLISH messages.

Rules:

1. At most `WINDOW` PUBLISH messages are unacknowledged (`sent_window`); what is published meanwhile joins the next one.
   No timers: an idle publisher sends at the end of the event loop's present round. With `batch_s` it waits so long for
   more, or until it has `batch_bytes`.
2. Each group's records carry consecutive sequence numbers of this producer, given when an entry is made. An entry is
   never changed afterwards and is sent again as it is, in order, over a new link: the group stores nothing twice.
3. What waits is bounded by `QUEUE_RECORDS_MAX` and `QUEUE_BYTES_MAX`; whoever publishes beyond it waits.
4. With `give_up_s`, what has not been acknowledged for so long (sent, queued, or waiting for room) is given up: whoever
   waits for it gets an UnavailableError, and it may or may not be stored. Its place in the window is free again, so a
   topic group without a coordinator does not hold the others up for longer.

Pure but for the futures it settles: bytes leave through `send`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from lexicast.cluster.errors import LexicastError, UnavailableError, UsageError
from lexicast.cluster.positions import Position, topic_group
from lexicast.cluster.protocol.messages import PUBLISH
from lexicast.cluster.topics.names import check_topic

from .awaited_positions import AwaitedPositions, forget_positions, gather_positions
from .entries import Compressor, Entry, EntryBuilder, Kind, Queued
from .sent_window import WINDOW, SentWindow

# A message of 4,096 records is enough to make its fixed costs (0.1 ms on both sides) vanish; a codec that takes 20 us
# a record then holds the event loop for 80 ms at most.
MESSAGE_RECORDS_MAX: Final = 4_096
MESSAGE_BYTES_MAX: Final = 1024 * 1024
QUEUE_RECORDS_MAX: Final = 65_536
QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024
# Looked at so many times within `give_up_s`: it is exceeded by a quarter at most.
LOOKS: Final = 4
# Topics whose bytes and group are remembered (about 300 bytes each); beyond it they are forgotten all at once.
TOPICS_MAX: Final = 100_000
CHUNK: Final = 2_048
BATCH_BYTES: Final = 64 * 1024


class Publisher:
    """See the module's docstring. `send` hands a message to the link and says whether it may be given more."""

    def __init__(
        self,
        client_id: str,
        compressor: Compressor | None,
        send: Callable[[tuple[Any, ...]], bool],
        give_up_s: float | None = None,
        batch_s: float = 0.0,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self._batch_s = batch_s
        self._batch_bytes = batch_bytes
        self._drains = 0
        self._later: asyncio.TimerHandle | None = None
        self._compressor = compressor
        self._send = send
        self.builder = EntryBuilder(client_id)
        self._groups = 0
        self._payload_bytes_max = 0
        self._topics: dict[str, tuple[bytes, int]] = {}
        self._queue: deque[Queued] = deque()
        self._queue_bytes = 0
        self._sent = SentWindow()
        self._give_up_s = give_up_s
        self._looking: asyncio.TimerHandle | None = None
        self._connected = False
        self._writable = True
        self._scheduled = False
        self._room: asyncio.Event = asyncio.Event()
        self._idle: asyncio.Event = asyncio.Event()
        self._error: LexicastError | None = None
        self._given_up = 0
        self._room.set()
        self._idle.set()

    # -- publishing

    def topic(self, topic: str) -> tuple[bytes, int]:
        """A topic's bytes and group. Raises TopicError."""
        known = self._topics.get(topic)
        if known is None:
            try:
                name = topic.encode()
            except (UnicodeEncodeError, AttributeError):
                raise UsageError(f"topic {topic!r} must be a text without lone surrogates") from None
            check_topic(name)
            if len(self._topics) >= TOPICS_MAX:
                self._topics.clear()
            known = self._topics[topic] = (name, topic_group(name, self._groups))
        return known

    def put_nowait(self, topic: str, payload: bytes | str, kind: Kind) -> None:
        """Queue one publication and do not wait. Raises UnavailableError when the queue is full."""
        self._check_open()
        if not self._room.is_set():
            raise UnavailableError(f"{len(self._queue)} publications wait already: publish slower, or await publish()")
        self._put(topic, payload, kind, AwaitedPositions(1, None, asyncio.get_running_loop().time()))

    async def put(self, topic: str, payload: bytes | str, kind: Kind) -> Position:
        """Queue one publication, waiting for room, and return its position when it is acknowledged."""
        self._check_open()
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        if not self._room.is_set():
            await self._wait_room(since_s)
        awaited = AwaitedPositions(1, loop.create_future(), since_s)
        self._put(topic, payload, kind, awaited)
        assert awaited.future is not None
        return (await awaited.future)[0]

    async def put_many(self, items: Iterable[tuple[str, bytes | str]], kind: Kind) -> list[Position]:
        """Queue many, waiting for room, and return their positions, in order, when all are acknowledged."""
        iterator = iter(items)
        loop = asyncio.get_running_loop()
        calls: list[AwaitedPositions] = []
        try:
            while chunk := list(islice(iterator, CHUNK)):
                self._check_open()
                since_s = loop.time()
                if not self._room.is_set():
                    await self._wait_room(since_s)
                awaited = AwaitedPositions(len(chunk), loop.create_future(), since_s)
                self._put_chunk(chunk, kind, awaited)
                calls.append(awaited)
        except BaseException:
            forget_positions(calls)
            raise
        return await gather_positions(calls)

    async def _wait_room(self, since_s: float) -> None:
        """Return when the queue has room. Raises UnavailableError when it has none for as long as is allowed."""
        loop = asyncio.get_running_loop()
        while not self._room.is_set():
            left_s = None if self._give_up_s is None else since_s + self._give_up_s - loop.time()
            try:
                async with asyncio.timeout(left_s):
                    await self._room.wait()
            except TimeoutError:
                raise UnavailableError(
                    f"{len(self._queue)} publications have waited for {self._give_up_s:.1f} s"
                ) from None
            self._check_open()

    def _put(self, topic: str, payload: bytes | str, kind: Kind, awaited: AwaitedPositions) -> None:
        name, group = self._topics.get(topic) or self.topic(topic)
        data = payload if type(payload) is bytes else _bytes_of(payload)
        if len(data) > self._payload_bytes_max:
            raise _too_long(topic, data, self._payload_bytes_max)
        self._queue.append((group, name, data, kind, awaited, 0))
        self._queued(len(data))

    def _put_chunk(self, chunk: list[tuple[str, bytes | str]], kind: Kind, awaited: AwaitedPositions) -> None:
        """Queue a chunk whole, or raise and queue nothing of it."""
        if isinstance(chunk[0], str):  # topics alone: one of two letters would be taken for a topic and a payload
            raise _no_pair(chunk[0])
        queued: list[Queued] = []
        topics, most, size = self._topics, self._payload_bytes_max, 0
        for index, pair in enumerate(chunk):
            try:
                topic, payload = pair
            except (TypeError, ValueError):
                raise _no_pair(pair) from None
            name, group = topics.get(topic) or self.topic(topic)
            if type(payload) is not bytes:
                payload = _bytes_of(payload)
            if len(payload) > most:
                raise _too_long(topic, payload, most)
            size += len(payload)
            queued.append((group, name, payload, kind, awaited, index))
        self._queue.extend(queued)
        self._queued(size)

    def _queued(self, size: int) -> None:
        self._queue_bytes += size
        self._idle.clear()
        if self._queue_bytes > QUEUE_BYTES_MAX or len(self._queue) > QUEUE_RECORDS_MAX:
            self._room.clear()
        self._flush_soon()
        self._look_later()

    def _check_open(self) -> None:
        if self._error is not None:
            raise type(self._error)(*self._error.args)

    # -- the link

    def connected(self, groups: int, payload_bytes_max: int) -> None:
        """A link is open: everything unacknowledged goes out again, unchanged and in order."""
        self._groups = groups
        self._payload_bytes_max = payload_bytes_max
        self._connected = self._writable = True
        for tag, entries in self._sent.again():
            self._writable = self._send((PUBLISH, tag, entries))
        self._flush_soon()

    def writable(self) -> None:
        """The link can take more."""
        self._writable = True
        self._flush_soon()

    def disconnected(self) -> None:
        """The link ended."""
        self._connected = False

    def flush(self) -> None:
        """Send what the window and the link allow."""
        self._scheduled = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._may_send():
            entries, waiting = self._take()
            self._writable = self._send((PUBLISH, self._sent.add(entries, waiting), entries))
            self._flush_soon()

    def _may_send(self) -> bool:
        return bool(self._queue) and self._connected and self._writable and len(self._sent) < WINDOW

    def _flush_soon(self) -> None:
        if self._scheduled or not self._may_send():
            return
        if self._batch_s and self._queue_bytes < self._batch_bytes and not self._drains:
            if self._later is None:
                self._later = asyncio.get_running_loop().call_later(self._batch_s, self.flush)
            return
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self.flush)

    def _take(self) -> tuple[list[Entry], list[list[Queued]]]:
        """The next message's entries, off the queue."""
        groups: dict[int, list[Queued]] = {}
        pop, size = self._queue.popleft, 0
        for _ in range(min(len(self._queue), MESSAGE_RECORDS_MAX)):
            record = pop()
            size += len(record[2])
            mine = groups.get(record[0])
            if mine is None:
                groups[record[0]] = [record]
            else:
                mine.append(record)
            if size >= MESSAGE_BYTES_MAX:
                break
        self._queue_bytes -= size
        self._made_room()
        compress = None if self._compressor is None else self._compressor()
        build = self.builder.build
        return [build(group, records, compress) for group, records in groups.items()], list(groups.values())

    def _made_room(self) -> None:
        if self._queue_bytes <= QUEUE_BYTES_MAX // 2 and len(self._queue) <= QUEUE_RECORDS_MAX // 2:
            self._room.set()

    def acknowledged(self, tag: int, results: Any) -> None:
        """An ACK arrived. Raises PeerError when it does not fit what was sent."""
        self._sent.acknowledged(tag, results)
        self._flush_soon()
        if not self._sent and not self._queue:
            self._idle.set()

    # -- giving up

    def _look_later(self) -> None:
        if self._give_up_s is not None and self._looking is None and (self._sent or self._queue):
            self._looking = asyncio.get_running_loop().call_later(self._give_up_s / LOOKS, self._look)

    def _look(self) -> None:
        """Give up what has waited for too long (rule 4). Without a link the connection gives up, and knows why."""
        assert self._give_up_s is not None
        self._looking = None
        if not self._connected:
            self._look_later()
            return
        oldest_s = asyncio.get_running_loop().time() - self._give_up_s
        late = self._sent.give_up(oldest_s)
        while self._queue and self._queue[0][4].since_s <= oldest_s:
            late.append(self._queue.popleft())
            self._queue_bytes -= len(late[-1][2])
        if late:
            self._give_up(late, self._give_up_s)
        self._look_later()

    def _give_up(self, late: list[Queued], give_up_s: float) -> None:
        self._given_up += len(late)
        topic = late[0][1].decode()
        error = UnavailableError(
            f"not acknowledged for {give_up_s:.1f} s: {len(late)} publications, the first to {topic!r}, which may or "
            "may not be stored; a coordinator may be gone (`lexicast status` tells)"
        )
        for record in late:
            record[4].fail(error)
        self._made_room()
        self._flush_soon()
        if not self._sent and not self._queue:
            self._idle.set()

    # -- the end

    async def drain(self) -> None:
        """Return when everything that was published is acknowledged."""
        self._drains += 1
        try:
            self._flush_soon()
            await self._idle.wait()
        finally:
            self._drains -= 1

    def counts(self) -> dict[str, int]:
        """How many publications have their positions, were refused, were given up, and wait or are under way."""
        return {
            "published": self._sent.published,
            "refused": self._sent.refused,
            "given_up": self._given_up,
            "unacknowledged": len(self._queue) + self._sent.count(),
        }

    def fail(self, error: LexicastError) -> None:
        """The client is closed or has given up: everyone who waits is told."""
        self._error = error
        if self._looking is not None:
            self._looking.cancel()
        for record in (*self._sent.records(), *self._queue):
            record[4].fail(error)
        self._sent.clear()
        self._queue.clear()
        self._queue_bytes = 0
        self._room.set()
        self._idle.set()


def _bytes_of(payload: object) -> bytes:
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise UsageError(f"a payload is bytes or text, not {type(payload).__name__}: encode it first (json.dumps?)")


def _too_long(topic: str, payload: bytes, most: int) -> UsageError:
    return UsageError(f"the payload for {topic!r} has {len(payload)} bytes: this cluster takes {most}")


def _no_pair(given: object) -> UsageError:
    return UsageError(f"{given!r:.80} is no (topic, payload) pair: publish_many([('a/b', 'hello'), ...])")
