"""The internals of the Python client, behind `Client`: one link to one broker, and what goes over it both ways.

They are what the parts of the client know of each other (`subscription_feed.FeedHost`, `connection.ConnectionUser`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

from lexicast.cluster.blocks import unpack_meta
from lexicast.cluster.clock import Clock, SystemClock
from lexicast.cluster.errors import (
    DictionaryError,
    IndexNotReadyError,
    LexicastError,
    PeerError,
    TopicError,
    UnavailableError,
    UsageError,
)
from lexicast.cluster.positions import topic_group
from lexicast.cluster.protocol.messages import ACK, DELIVER, DICTIONARY, PACKED, PUBLISH, TURNED_AWAY
from lexicast.cluster.protocol.requests import LINK_DICTIONARIES
from lexicast.cluster.topics.names import check_filter, is_wildcard, shared
from lexicast.compression.streams.batches import pack_entry_columns

from ..link.link import REQUEST_TIMEOUT_S, Link
from .connection import Connection
from .decoder import Decoder
from .dictionaries import Dictionaries
from .entries import Compress
from .known_brokers import Resolve
from .publisher import BATCH_BYTES, Publisher
from .subscription import Subscription
from .subscription_feed import FILTERS_MAX, SubscriptionFeed

CLOSE_TIMEOUT_S: Final = 10.0
# An index that is being made anew is asked again so often.
INDEX_RETRY_S: Final = 0.5
CLIENT_ID_BYTES_MAX: Final = 65_535
INCARNATION_BITS: Final = 48
# Dictionaries that it says it has from earlier links, those announced last.
HELD_TOLD_MAX: Final = 256
# Ranges of records in one message, which a broker takes of users too.
RANGES_TOLD_MAX: Final = 1_000

log = logging.getLogger("lexicast.client")


# More than 25 methods: eight are what feeds ask of it, six what its connection tells.
class ClientInternals:
    """See the module's docstring; what each argument is, `lexicast.connect` says."""

    def __init__(
        self,
        resolve: Resolve,
        client_id: str | None,
        compress: bool,
        give_up_s: float | None,
        clock: Clock | None,
        batch_s: float = 0.0,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self.client_id = client_id or f"python-{secrets.token_hex(8)}"
        if len(self.client_id.encode(errors="replace")) > CLIENT_ID_BYTES_MAX:
            raise UsageError(f"client_id has more than {CLIENT_ID_BYTES_MAX} bytes")
        self.clock: Clock = clock or SystemClock()
        self.dictionaries = Dictionaries(self.clock)
        self.decoder = Decoder(self.dictionaries, self._fetch_dictionary)
        if give_up_s is not None and not give_up_s > 0:
            raise UsageError(f"give_up_s={give_up_s!r}: give seconds above 0, or None to wait for ever")
        self._give_up_s = give_up_s
        if not (batch_s >= 0 and batch_bytes >= 1):
            raise UsageError(f"batch_s={batch_s!r}, batch_bytes={batch_bytes!r}: give seconds from 0, and bytes from 1")
        self._compresses = compress
        # Whether what it sends is packed, an entry as one.
        self._packs = False
        self._batches = compress and batch_s > 0

        def compressor() -> Compress | None:
            return self.dictionaries.compressor() if self._compresses and not self._packs else None

        self.publisher = Publisher(self.client_id, compressor, self._send, give_up_s, batch_s, batch_bytes)
        self.connection = Connection(resolve, self.client_id, secrets.randbits(INCARNATION_BITS), self, give_up_s)
        self._streams: weakref.WeakValueDictionary[int, SubscriptionFeed] = weakref.WeakValueDictionary()
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()
        # Of subscriptions that are gone too, while somebody still waits on their feeds.
        self._feeds: weakref.WeakSet[SubscriptionFeed] = weakref.WeakSet()
        self._held: set[SubscriptionFeed] = set()
        self._next_stream = 1
        self._groups = 0
        self._cluster_id = ""
        self.undecodable = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    # -- life

    async def open(self) -> None:
        """See `Client.open`."""
        if self._closed or self._loop is not None:
            raise UsageError("a client is opened once: call connect() again")
        self._loop = asyncio.get_running_loop()
        try:
            async with self._limited("connecting"):
                await self.connection.open()
        except BaseException:
            self._closed = True
            await self.connection.close()
            raise

    async def close(self) -> None:
        """See `Client.close`."""
        if self._closed:
            return
        self.check_loop()
        self._closed = True
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.publisher.drain()
        except TimeoutError:
            log.warning("closed with %d publications not acknowledged", self.publisher.counts()["unacknowledged"])
        finally:
            self.publisher.fail(closed_error())
            for subscription in list(self._subscriptions):
                await subscription.close()
            for feed in list(self._feeds):
                feed.close()
            await self.connection.close()

    def check_open(self) -> None:
        """Raises UnavailableError (closed), UsageError (not open, or another event loop)."""
        if self._closed:
            raise closed_error()
        self.check_loop()

    def check_loop(self) -> None:
        """See FeedHost. Nothing may be touched from elsewhere: a future of one event loop never wakes another one."""
        if self._loop is None:
            raise UsageError("the client is not connected: use `async with lexicast.connect() as bus:`")
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not self._loop:
            raise UsageError(
                "the client belongs to the event loop in which it was opened: open another one here, or use "
                "lexicast.sync, whose client serves all threads"
            )

    @asynccontextmanager
    async def _limited(self, what: str) -> AsyncIterator[list[UnavailableError]]:
        """`give_up_s` for all that happens inside. Raises UnavailableError: the one that was put into what it gives,
        where that says why."""
        reasons: list[UnavailableError] = []
        try:
            async with asyncio.timeout(self._give_up_s):
                yield reasons
        except TimeoutError:
            if reasons:
                raise reasons[0] from None
            raise UnavailableError(f"{what} has not come to an end within {self._give_up_s or 0:.1f} s") from None

    def filters_of(self, filter: str | Iterable[str]) -> tuple[tuple[bytes, ...], int | None]:
        """The filters' bytes, each once, and the group if it is one exact topic. Raises TopicError, UsageError."""
        self.check_open()
        given = [filter] if isinstance(filter, str) else list(filter)
        names = tuple(dict.fromkeys([_filter_of(each) for each in given]))
        if not 1 <= len(names) <= FILTERS_MAX:
            raise UsageError(f"{len(names)} filters: give 1 to {FILTERS_MAX}")
        exact = len(names) == 1 and not is_wildcard(names[0])
        return names, topic_group(names[0], self._groups) if exact else None

    def add(self, subscription: Subscription) -> None:
        """A subscription that ends with the client at the latest."""
        self._subscriptions.add(subscription)
        self._feeds.add(subscription.feed)

    # -- what feeds need (subscription_feed.FeedHost)

    @property
    def give_up_s(self) -> float | None:
        """See FeedHost."""
        return self._give_up_s

    @property
    def takes_streams(self) -> bool:
        """Whether topic streams are worth their CPU on the present link."""
        return not self.connection.is_local

    def open_stream(self, feed: SubscriptionFeed) -> int:
        """See FeedHost."""
        stream = self._next_stream
        self._next_stream += 1
        self._streams[stream] = feed
        return stream

    def close_stream(self, stream: int) -> None:
        """See FeedHost."""
        self._streams.pop(stream, None)
        link = self.connection.link
        if link is not None and not link.closed:
            link.request("unsubscribe", stream).add_done_callback(_heard)

    def tell_done(self, stream: int, ranges: list[tuple[int, int, int]]) -> None:
        """See GroupHost."""
        link = self.connection.link
        if link is not None and not link.closed:
            for at in range(0, len(ranges), RANGES_TOLD_MAX):
                link.request("group_done", stream, ranges[at : at + RANGES_TOLD_MAX]).add_done_callback(_heard)

    def abandon(self, stream: int) -> None:
        """See FeedHost."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.close_stream, stream)

    def hold(self, feed: SubscriptionFeed) -> None:
        """See FeedHost."""
        self._held.add(feed)

    def release(self, feed: SubscriptionFeed) -> None:
        """See FeedHost."""
        self._held.discard(feed)

    async def request_once(self, method: str, *arguments: Any) -> Any:
        """See FeedHost."""
        link = await self.connection.wait_link()
        try:
            limit_s = min(REQUEST_TIMEOUT_S, self._give_up_s or REQUEST_TIMEOUT_S)
            return await link.request(method, *arguments, timeout_s=limit_s)
        except LexicastError as error:
            if link.closed:
                raise ConnectionResetError(str(error)) from None
            raise

    async def request(self, method: str, *arguments: Any) -> Any:
        """See FeedHost."""
        async with self._limited(f"the request {method!r}") as reasons:
            while True:
                try:
                    return await self.request_once(method, *arguments)
                except ConnectionResetError:
                    continue
                except IndexNotReadyError as error:
                    if not reasons:
                        log.info("waiting: %s", error)
                    reasons[:] = [error]
                await asyncio.sleep(INDEX_RETRY_S)

    async def _fetch_dictionary(self, dictionary: int) -> bytes | None:
        packed = await self.request("dictionary", dictionary)
        return packed if isinstance(packed, bytes) else None

    # -- the link (connection.ConnectionUser)

    def on_open(self, link: Link) -> None:
        """See ConnectionUser."""
        try:
            groups, cluster_id = int(link.info["groups"]), str(link.info["cluster_id"])
            payload_bytes_max = int(link.info["payload_bytes_max"])
            self.dictionaries.limit(payload_bytes_max)
            self.dictionaries.opt_out([str(topic_filter).encode() for topic_filter in link.info.get("optout", ())])
        except (KeyError, TypeError, ValueError, TopicError) as error:
            raise PeerError(f"the broker's welcome cannot be read: {error!r}") from None
        if self._groups and (groups, cluster_id) != (self._groups, self._cluster_id):
            raise PeerError("another cluster answers at this cluster's address: connect anew")
        self._groups, self._cluster_id = groups, cluster_id
        self.dictionaries.deflates = False
        self._packs = self._batches and not self.connection.is_local and link.info.get("unpacks") is True
        if self._compresses and self.takes_streams:
            self._ask_for_dictionaries(link)
        self.publisher.connected(groups, payload_bytes_max)

    def _ask_for_dictionaries(self, link: Link) -> None:
        """Where bytes count a dictionary is to come when it pays on this link. A broker of an older release refuses,
        and tells of all that there are."""

        def answered(future: asyncio.Future[Any]) -> None:
            if not future.cancelled() and future.exception() is None:
                self.dictionaries.deflates = True

        held = tuple([dictionary.id for dictionary in self.dictionaries.announced()])
        link.request(LINK_DICTIONARIES, held[-HELD_TOLD_MAX:]).add_done_callback(answered)

    def on_message(self, message: tuple[Any, ...]) -> None:
        """See ConnectionUser."""
        kind = message[0]
        if kind == DELIVER:
            feed = self._streams.get(message[1])
            if feed is not None:
                feed.deliver(message[2])
        elif kind == ACK:
            self.publisher.acknowledged(message[1], message[2])
        elif kind == DICTIONARY:
            try:
                self.dictionaries.announce(message[1])
            except DictionaryError as error:
                log.warning("a pushed dictionary is not used: %s", error)
        elif kind == TURNED_AWAY:
            log.warning("the broker ends the connection: %s", message[1])
        else:
            raise PeerError(f"a client does not take messages of kind {kind!r}")

    def on_lost(self) -> None:
        """See ConnectionUser."""
        self.publisher.disconnected()
        streams = list(self._streams.values())
        self._streams.clear()
        for feed in streams:
            feed.link_lost()

    def on_writable(self) -> None:
        """See ConnectionUser."""
        self.publisher.writable()

    def on_failure(self, error: LexicastError) -> None:
        """See ConnectionUser."""
        self.publisher.fail(error)
        for feed in list(self._feeds):
            feed.fail(error)

    def _send(self, message: tuple[Any, ...]) -> bool:
        link = self.connection.link
        if link is None:
            return False
        packs = self._packs and message[0] == PUBLISH
        link.send(_packed(message, self.dictionaries.opted_out) if packs else message)
        return link.writable


def _packed(message: tuple[Any, ...], opted_out: Callable[[bytes], bool]) -> tuple[Any, ...]:
    """A PUBLISH as a PACKED, unless something in it is not to be compressed."""
    _, tag, entries = message
    topics = [topic for _, meta, _, _ in entries for topic in unpack_meta(meta).topics]
    if any(map(opted_out, topics)):
        return message
    return PACKED, tag, [(group, meta, *pack_entry_columns(lengths, body)) for group, meta, lengths, body in entries]


def closed_error() -> UnavailableError:
    """What everyone who waits on a closed client gets."""
    return UnavailableError("the client is closed: publications not yet acknowledged may or may not be stored")


def _filter_of(filter: str) -> bytes:
    try:
        name = filter.encode()
    except (UnicodeEncodeError, AttributeError):
        raise UsageError(f"filter {filter!r} must be a text without lone surrogates") from None
    check_filter(name)
    if shared(name) is not None:
        raise UsageError(f"filter {filter!r}: give the filter alone, and group='NAME'")
    return name


def _heard(future: asyncio.Future[Any]) -> None:
    """An answer that nobody waits for; its error is of no interest."""
    if not future.cancelled():
        future.exception()
