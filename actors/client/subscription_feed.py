"""The feed of a subscription: the blocks that its broker sends, buffered and decoded, as a cursor that moves.

Three states, one rule. *Live*: the broker sends blocks of stream n. *Away*: no stream (not begun, the link broke, or
the buffer was full and the feed let go of the stream). *Past*: `until` is over, the rest is read as history. Whoever
takes from it moves it: when the buffer has drained and the feed is away, it subscribes again from the cursor of
what it has received. So a slow consumer costs the others nothing, holds no more than `buffer_bytes`, and misses
nothing; what arrives twice is known by its offset and dropped.

Invariants: `_received[group]` is the next offset wanted from the broker, never less than what was delivered;
`_consumed[group]` is the next offset the user wants; the buffer holds exactly what lies between them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from lexicast.cluster.blocks import BLOCK_MEMORY_BYTES, PUBLICATIONS, Block
from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import LexicastError, PeerError, UnavailableError
from lexicast.cluster.points_in_time import CURSOR, US_PER_S, WireSince
from lexicast.cluster.positions import Cursor
from lexicast.compression.wire import STREAMS_VERSION, ZSTD_VERSION

from .decoder import Decoder, Frames
from .history_pages import HistoryPages, Requests
from .messages import Message

BUFFER_BYTES: Final = 8 * 1024 * 1024
# What a record costs in the buffer beside its own bytes.
RECORD_BYTES: Final = 32
# A record may be stamped before `until` and committed a moment after it.
SETTLE_S: Final = 0.5
RETRY_FIRST_S: Final = 0.05
RETRY_MOST_S: Final = 1.0
# After so many messages without waiting the event loop gets a turn, so that a busy consumer starves nobody.
TURN_MESSAGES: Final = 2_048

# Of one subscription: the broker looks at each for every topic that it has not seen yet.
FILTERS_MAX: Final = 1_000

CATCH_UP: Final = "catch-up"
DROP: Final = "drop"


class FeedHost(Requests, Protocol):
    """What a feed needs of its client."""

    decoder: Decoder
    clock: Clock

    @property
    def give_up_s(self) -> float | None:
        """How long anything may wait; None: for ever."""
        ...

    def check_loop(self) -> None:
        """Raises UsageError in another event loop or thread than the client's."""

    @property
    def takes_streams(self) -> bool:
        """Whether topic streams are worth their CPU on the present link."""
        ...

    def open_stream(self, feed: SubscriptionFeed) -> int:
        """A new stream number; its DELIVERs go to `feed.deliver`."""

    def close_stream(self, stream: int) -> None:
        """Let go of a stream; the broker is told."""

    async def request_once(self, method: str, *arguments: Any) -> Any:
        """A request on the present link, waiting for one. Raises ConnectionResetError when the link ends first."""

    def abandon(self, stream: int) -> None:
        """`close_stream` for a feed that is being collected, in whatever thread."""

    def hold(self, feed: SubscriptionFeed) -> None:
        """Somebody waits on it: keep it alive."""

    def release(self, feed: SubscriptionFeed) -> None:
        """The inverse of `hold`."""


class _Piece(NamedTuple):
    """A block in the buffer. `start`: the first offset wanted of it; `cut`: retained, and wanted before that offset.

    `frames`: reads the frames of topic streams in it.
    """

    block: Block
    start: int
    cut: int | None
    frames: Frames | None = None

    @property
    def size(self) -> int:
        """What it counts in the buffer: about what it takes in memory."""
        return BLOCK_MEMORY_BYTES + self.block.size_bytes + RECORD_BYTES * self.block.count


# More than 25 methods: what its client tells it and who takes of it asks moves one cursor.
class SubscriptionFeed:
    """See the module's docstring. `dropped` counts messages for which there was no room, `repeats` those that came
    twice."""

    # Whether each message that the user has done with is told (`given`).
    tells_given = False
    # Whether `Message.retain` says that it was published as retained.
    retain_as_published = False

    def __init__(
        self,
        host: FeedHost,
        filters: tuple[bytes, ...],
        since: WireSince,
        until_us: int | None,
        options: dict[str, Any],
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self.filters = filters
        self._host = host
        self._since = since
        self._until_us = until_us
        self._options = options
        self._drops = options.get("slow") == DROP
        self._buffer_bytes = buffer_bytes
        self._buffer: deque[_Piece] = deque()
        self._buffered = 0
        self._stream = 0
        # Of the present stream: with another one all topic streams begin anew.
        self._frames: Frames | None = None
        self._registered = False
        self._received: Cursor = dict(since[1]) if since is not None and since[0] == CURSOR else {}
        self._consumed: Cursor = {}
        self._pieces: list[tuple[int, int]] = []
        # What was taken and not given: the next `take` gives it.
        self._rest: list[Message] = []
        self._error: LexicastError | None = None
        self._failure: LexicastError | None = None
        self._closed = False
        self._pages: HistoryPages | None = None
        self._ended = False
        self._turn = 0
        # For what is taken at once.
        self._room = host.decoder.room()
        self._arrived = asyncio.Event()
        self.dropped = 0
        self.repeats = 0

    def __del__(self) -> None:
        if self._stream:
            self._host.abandon(self._stream)

    # -- for the client

    def deliver(self, blocks: list[Any]) -> None:
        """DELIVER of this subscription's stream. Raises PeerError for what is no block."""
        for wire in blocks:
            block = Block.from_wire(wire)
            start = self._received.get(block.group, 0)
            if block.kind != PUBLICATIONS:
                continue
            if block.last < start:
                self.repeats += block.count
                continue
            if self._drops and self._buffered > self._buffer_bytes:
                self.dropped += block.count
            else:
                self._put(_Piece(block, max(start, block.first), None, self._frames))
            self._received[block.group] = block.last + 1
        if self._buffered > self._buffer_bytes and not self._drops:
            self._let_go()
        self._arrived.set()

    def link_lost(self) -> None:
        """The link and with it the stream are gone."""
        self._stream = 0
        self._arrived.set()

    def fail(self, error: LexicastError) -> None:
        """The client has given up or is closed: what is buffered is still given, then `error` raised."""
        self._failure = error
        self._stream = 0
        self._arrived.set()

    # -- for who takes the messages

    async def register(self) -> None:
        """Fix the cut between past and future, if it is not yet. Raises what ended the feed."""
        self._host.check_loop()
        if self._stream == 0:
            await self._begin()
        if self._failure is not None:
            raise self._failure

    def cursor_after(self, last: Message | None) -> Cursor:
        """{group: next offset} when `last` has been given, and all that was taken before it."""
        cursor = dict(self._consumed)
        if last is not None and not last.retain:
            group, _, offset = last.position
            cursor[group] = max(offset + 1, cursor.get(group, 0))
        return cursor

    async def take(self) -> list[Message]:
        """The next messages, at least one; they count as given when more are taken. At the end StopAsyncIteration."""
        self._host.check_loop()
        if self._rest:
            rest, self._rest = self._rest, []
            return rest
        await self._give_way()
        while True:
            await self._ready()
            if self._buffer and (messages := await self._decode()):
                self._turn += len(messages)
                return messages

    async def _give_way(self) -> None:
        """After TURN_MESSAGES, to whatever else there is to do."""
        if self._turn >= TURN_MESSAGES:
            self._turn = 0
            await asyncio.sleep(0)

    async def _ready(self) -> None:
        """What was taken has been given; wait for more, unless there is some. Raises what ends it."""
        self.finish()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._closed or (self._ended and not self._buffer):
            raise StopAsyncIteration
        low = self._stream == 0 and not self._ended and self._buffered < self._buffer_bytes // 2
        if low or not self._buffer:
            await self._fill()
        self._room = self._host.decoder.room()

    async def add_at_hand(self, messages: list[Message], most: int) -> None:
        """Add to `messages` what is in the buffer, until there are `most`, which are given then; what lies behind them
        is given back."""
        room, last = self._room, list[tuple[int, int]]()
        while (
            self._buffer and self._error is None and not self._closed and len(messages) < most and room.left_bytes > 0
        ):
            before = len(self._pieces)
            messages += await self._decode()
            last = self._pieces[before:]
        self._handed_over(last if len(messages) > most else [])

    def give_back(self, messages: list[Message]) -> None:
        """Messages that were taken last and not given: the next `take` gives them."""
        self._rest = messages + self._rest

    def _handed_over(self, kept: list[tuple[int, int]]) -> None:
        """All that was taken is with the user, but for a part of the last piece where that is `kept`."""
        del self._pieces[len(self._pieces) - len(kept) :]
        self.finish()
        self._pieces += kept

    def given(self, messages: Sequence[Message]) -> None:
        """The user asks for the next ones after these: of those that `tells_given`."""

    def finish(self) -> None:
        """All that was taken has been given."""
        for group, reached in self._pieces:
            self._consumed[group] = max(reached, self._consumed.get(group, 0))
        self._pieces.clear()

    def close(self) -> None:
        """End it: nothing more comes."""
        self._host.check_loop()
        self._closed = True
        self._let_go()
        self._rest = []
        self._buffer.clear()
        self._buffered = 0
        self._arrived.set()

    # -- moving

    def _put(self, piece: _Piece) -> None:
        self._buffer.append(piece)
        self._buffered += piece.size

    def _let_go(self) -> None:
        stream, self._stream = self._stream, 0
        if stream:
            self._host.close_stream(stream)

    async def _decode(self) -> list[Message]:
        """The messages of the buffer's first piece, which leaves the buffer only once they are there."""
        piece = self._buffer[0]
        block, start, cut, _ = piece
        if self._until_us is not None and block.time_us >= self._until_us:
            self._drop_first(piece)
            self._pieces.append((block.group, block.last + 1))
            return []
        retain = None if self.retain_as_published else cut is not None
        try:
            decoded = await self._host.decoder.decode(block, start, retain=retain, frames=piece.frames, room=self._room)
        except PeerError:
            self._drop_first(piece)
            raise
        self._drop_first(piece)
        if self._closed:
            return []
        self._error = decoded.error
        if piece.frames is not None and piece.frames.lost and piece.frames is self._frames:
            self._begin_anew(block.group, decoded.resume)
        elif decoded.resume <= block.last:
            self._buffer.appendleft(piece._replace(start=decoded.resume))
            self._buffered += piece.size
        if cut is None:
            self._pieces.append((block.group, decoded.resume))
            return decoded.messages
        return [message for message in decoded.messages if message.position.offset < cut]

    def _begin_anew(self, group: int, resume: int) -> None:
        """A topic's stream cannot be read any further: what is not decoded yet is asked for again, standalone."""
        self._let_go()
        received, frames = self._received, self._frames
        received[group] = min(resume, received[group])
        for piece in [piece for piece in self._buffer if piece.frames is frames]:
            received[piece.block.group] = min(piece.start, received[piece.block.group])
            self._buffer.remove(piece)
            self._buffered -= piece.size
        self._frames = None

    def _drop_first(self, piece: _Piece) -> None:
        if self._buffer and self._buffer[0] is piece:
            self._buffer.popleft()
            self._buffered -= piece.size

    async def _fill(self) -> None:
        """Return when the buffer has something, or raise what ends the iteration."""
        if self._pages is not None:
            await self._next_page()
        elif self._failure is not None:
            if not self._buffer:
                raise self._failure
        elif self._stream == 0:
            await self._begin()
        else:
            await self._wait()

    async def _wait(self) -> None:
        left_s = self._left_s()
        if left_s == 0:
            self._let_go()
            self._read_past()
            return
        self._arrived.clear()
        self._host.hold(self)
        try:
            async with asyncio.timeout(left_s):
                await self._arrived.wait()
        except TimeoutError:
            return
        finally:
            self._host.release(self)

    def _left_s(self) -> float | None:
        """Seconds until `until` is over; None without one."""
        if self._until_us is None:
            return None
        return max(0.0, (self._until_us - self._host.clock.time_us()) / US_PER_S + SETTLE_S)

    def _read_past(self) -> None:
        """From here on the rest up to `until` is read as history."""
        assert self._until_us is not None
        since = (CURSOR, dict(self._received)) if self._registered else self._since
        if since is None:
            self._ended = True
        else:
            self._pages = HistoryPages(self._host, self.filters, since, self._until_us)

    async def _next_page(self) -> None:
        assert self._pages is not None
        page = await self._pages.next()
        if page is None:
            self._ended = True
            return
        for block in page:
            start = max(self._received.get(block.group, 0), block.first)
            if start <= block.last:
                self._put(_Piece(block, start, None))
                self._received[block.group] = block.last + 1

    async def _begin(self) -> None:
        """Register, or register again from what was received; returns when it is live (or reads the past)."""
        if self._left_s() == 0:
            self._read_past()
            return
        pause, started = RETRY_FIRST_S, time.monotonic()
        while self._stream == 0 and self._failure is None and not self._closed:
            try:
                await self._register()
            except ConnectionResetError:
                continue
            except UnavailableError:
                # A new subscription is refused; one that the user already holds outlives a broker's bad moment.
                give_up_s = self._host.give_up_s
                late = give_up_s is not None and time.monotonic() - started >= give_up_s
                if not self._registered or self._failure is not None or late:
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_MOST_S)

    async def _register(self) -> None:
        self._stream = self._host.open_stream(self)
        since = (CURSOR, dict(self._received)) if self._registered else self._since
        # What is dropped for want of room would be a hole in a topic stream.
        streams = self._host.takes_streams and not self._drops
        self._frames = self._host.decoder.frames() if streams else None
        options = {
            **self._options,
            "streams": STREAMS_VERSION if streams else 0,
            "zstd": ZSTD_VERSION if streams else 0,
        }
        self._host.hold(self)
        try:
            reply = await self._host.request_once("subscribe", self._stream, self.filters, since, options)
            pages = [reply]
            while pages[-1].get("more"):
                pages.append(await self._host.request_once("retained", self._stream))
            self._begun(reply, pages)
        except BaseException:
            self._let_go()
            raise
        finally:
            self._host.release(self)

    def _begun(self, reply: Any, pages: list[Any]) -> None:
        try:
            cuts = {int(group): int(offset) for group, offset in reply["cursor"].items()}
            retained = [Block.from_wire(wire) for page in pages for wire in page["retained"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PeerError(f"the broker's answer to a subscription cannot be read: {error!r}") from None
        if not self._registered and self._since is None:
            # What stands after the cut arrives by itself; a block of retained messages may hold both.
            for block in reversed(retained):
                cut = cuts.get(block.group, 0)
                if block.first < cut:
                    piece = _Piece(block, block.first, cut)
                    self._buffer.appendleft(piece)
                    self._buffered += piece.size
        for group, offset in cuts.items():
            self._received[group] = max(offset, self._received.get(group, 0))
            if not self._registered:
                self._consumed.setdefault(group, offset)
        self._registered = True
