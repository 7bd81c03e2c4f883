"""The Python client: publish to and subscribe from a lexicast cluster.

    async with lexicast.connect() as bus:
        position = await bus.publish("flights/JFK", b"...")
        async for message in bus.subscribe("flights/+", since="10m"):
            print(message.topic, message.payload)

One client is one link to one broker (found again, or replaced by another broker's, when it breaks) and belongs to the
event loop that opened it: used from another one, or from another thread, it raises UsageError. Publications are
acknowledged once committed, and stored once however often they had to be sent; a subscription gives each message once,
in order within a topic group. What waits is bounded everywhere: see `client_publisher` and `client_subscription`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final

from lexicast.cluster.clock import Clock, SystemClock
from lexicast.cluster.errors import (
    AuthenticationError,
    DictionaryError,
    LexicastError,
    PeerError,
    TopicError,
    UnavailableError,
    UsageError,
)
from lexicast.cluster.messages import ACK, DELIVER, DICTIONARY
from lexicast.cluster.positions import Position, topic_group
from lexicast.cluster.topics import check_filter, is_wildcard, shared
from lexicast.compression.dictionary import Dictionary

from .client_connection import Connection, Resolve
from .client_decoder import Decoder
from .client_dictionaries import Dictionaries
from .client_entries import Kind, make_kind
from .client_messages import (
    FOREVER_US,
    TIME,
    Message,
    Properties,
    Since,
    Until,
    pack_properties,
    parse_since,
    parse_time,
)
from .client_publisher import Publisher
from .client_subscription import BUFFER_BYTES, CATCH_UP, DROP, HistoryPages, Subscription, closed_error
from .link import REQUEST_TIMEOUT_S, Link

CLOSE_TIMEOUT_S: Final = 10.0
CLIENT_ID_BYTES_MAX: Final = 65_535
INCARNATION_BITS: Final = 48

log = logging.getLogger("lexicast.client")


class Client:
    """A connection to a cluster; made by `lexicast.connect`. Use it as `async with`, or `open` and `close` it.

    Every method may raise UnavailableError: the client is closed, or what it waits for (a broker, an acknowledgement,
    an answer) has not come for `give_up_s` seconds; and UsageError in another event loop or thread than `open`.
    """

    def __init__(
        self,
        resolve: Resolve,
        *,
        client_id: str | None = None,
        compress: bool = True,
        give_up_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.client_id = client_id or f"python-{secrets.token_hex(8)}"
        if len(self.client_id.encode(errors="replace")) > CLIENT_ID_BYTES_MAX:
            raise UsageError(f"client_id has more than {CLIENT_ID_BYTES_MAX} bytes")
        self.clock: Clock = clock or SystemClock()
        self._dictionaries = Dictionaries(self.clock)
        self.decoder = Decoder(self._dictionaries, self._fetch_dictionary)
        if give_up_s is not None and not give_up_s > 0:
            raise UsageError(f"give_up_s={give_up_s!r}: give seconds above 0, or None to wait for ever")
        self._give_up_s = give_up_s
        compressor = self._dictionaries.compressor if compress else None
        self._publisher = Publisher(self.client_id, compressor, self._send, give_up_s)
        self._connection = Connection(resolve, self.client_id, secrets.randbits(INCARNATION_BITS), self, give_up_s)
        self._streams: weakref.WeakValueDictionary[int, Subscription] = weakref.WeakValueDictionary()
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self._held: set[Subscription] = set()
        self._next_stream = 1
        self._groups = 0
        self._cluster_id = ""
        self._undecodable = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    # -- life

    async def open(self) -> Client:
        """Connect. Raises UnavailableError (no cluster, no broker), AuthenticationError, PeerError, ConfigError."""
        if self._closed or self._loop is not None:
            raise UsageError("a client is opened once: call connect() again")
        self._loop = asyncio.get_running_loop()
        try:
            async with self._limited("connecting"):
                await self._connection.open()
        except BaseException:
            self._closed = True
            await self._connection.close()
            raise
        return self

    async def close(self) -> None:
        """Wait up to 10 s for what was published to be acknowledged, then disconnect; subscriptions end."""
        if self._closed:
            return
        self.check_loop()
        self._closed = True
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._publisher.drain()
        except TimeoutError:
            log.warning("closed with %d publications not acknowledged", self._publisher.unacknowledged)
        finally:
            self._publisher.fail(closed_error())
            for subscription in list(self._subscriptions):
                await subscription.close()
            await self._connection.close()

    async def __aenter__(self) -> Client:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- publishing

    async def publish(
        self,
        topic: str,
        payload: bytes | str,
        *,
        qos: int = 1,
        retain: bool = False,
        expiry_s: float | None = None,
        properties: Properties | Mapping[str, str] | None = None,
    ) -> Position:
        """Publish one message; returns its position once it is acknowledged: committed (QoS 1, 2) or ordered (QoS 0).

        Sent again over a new link where one breaks, and stored once whatever happens: QoS 1 and 2 are the same here.
        (Offset 0 of epoch 0: it was stored, so long ago that the group has forgotten where.) `retain` keeps it as the
        topic's retained message; an empty payload clears that. `expiry_s`: seconds after which nobody gets it any
        more. `properties`: user properties {name: value}, or `Properties`. Many at once: use tasks or `publish_many`.

        Raises TopicError, UsageError (payload too long or of a wrong type, values out of range), PublishRefusedError
        (refused and not stored: disk reserve reached), UnavailableError. Cancelling does not unpublish.
        """
        return await self._publisher.put(topic, payload, self._kind(qos, retain, expiry_s, properties))

    async def publish_many(
        self,
        messages: Iterable[tuple[str, bytes | str]],
        *,
        qos: int = 1,
        retain: bool = False,
        expiry_s: float | None = None,
        properties: Properties | Mapping[str, str] | None = None,
    ) -> list[Position]:
        """Publish (topic, payload) pairs in order, as `publish`; returns their positions once all are acknowledged.

        The iterable is read as there is room, 2,048 pairs at a time. Raises as `publish`; PublishManyRefusedError
        where some were refused (its `positions` tells which). A wrong pair raises when it is reached: what lies 2,048
        and more before it has been published.
        """
        return await self._publisher.put_many(messages, self._kind(qos, retain, expiry_s, properties))

    def publish_nowait(
        self,
        topic: str,
        payload: bytes | str,
        *,
        qos: int = 0,
        retain: bool = False,
        expiry_s: float | None = None,
        properties: Properties | Mapping[str, str] | None = None,
    ) -> None:
        """Publish without waiting for anything; sent again like any other. Of a refusal only `statistics` tells.

        Raises UnavailableError when 65,536 publications (or 16 MiB) wait already, TopicError, UsageError.
        """
        self._publisher.put_nowait(topic, payload, self._kind(qos, retain, expiry_s, properties))

    async def flush(self) -> None:
        """Return when everything published so far is acknowledged, refused or given up."""
        self._check_open()
        await self._publisher.drain()

    def _kind(
        self, qos: int, retain: bool, expiry_s: float | None, properties: Properties | Mapping[str, str] | None
    ) -> Kind:
        self._check_open()
        if properties is None and expiry_s is None and not retain and qos == 1:
            return _PLAIN
        return make_kind(qos, retain, expiry_s, pack_properties(properties))

    def dictionaries(self) -> tuple[Dictionary, ...]:
        """The newest dictionary of each family, as the broker has announced them."""
        return self._dictionaries.announced()

    # -- subscribing and the past

    def subscribe(
        self,
        filter: str,
        since: Since = None,
        *,
        qos: int = 1,
        until: Until = None,
        slow: str = CATCH_UP,
        buffer_bytes: int = BUFFER_BYTES,
        sample_records_per_s: int | None = None,
    ) -> Subscription:
        """The messages whose topic matches `filter`: to be iterated, or entered (`async with`) and iterated.

        `since` None: the retained messages, then what is published from now on. Else nothing retained, and
        everything from there on, past and future in one order: a Position (what came after it; exact topics only), a
        subscription's `cursor`, a datetime, seconds since 1970 (from 2001 on: 10 may be meant as a duration, and is
        refused), a duration ("10m", timedelta), "beginning".
        `until`: the time at which it ends. `qos`: the highest the subscriber asks for; with `slow="drop"` what
        does not fit into `buffer_bytes` is dropped (counted in `dropped`); with "catch-up" it is read later from
        storage. `sample_records_per_s`: of what is published from now on the broker sends about so many, each topic
        family its fair share, and leaves the rest out: to look at a stream rather than have it (`since`, `slow` and
        retained messages have no part in it). Raises TopicError, UsageError.
        """
        name, group = self._filter(filter)
        now_us = self.clock.time_us()
        if slow not in (CATCH_UP, DROP):
            raise UsageError(f"slow={slow!r}: it is {CATCH_UP!r} or {DROP!r}")
        if qos not in (0, 1, 2) or buffer_bytes < 1:
            raise UsageError(f"qos={qos!r}, buffer_bytes={buffer_bytes!r}: qos is 0, 1 or 2, buffer_bytes above 0")
        subscription = Subscription(
            self,
            name,
            parse_since(since, now_us, group),
            None if until is None else parse_time(until, now_us),
            {"slow": slow, "qos": qos, "sample_records_per_s": sample_records_per_s},
            buffer_bytes,
        )
        self._subscriptions.add(subscription)
        return subscription

    async def history(
        self, filter: str, since: Since = "beginning", until: Until = None, limit: int | None = None
    ) -> AsyncIterator[Message]:
        """What was published to topics that match `filter`, as long as retention has kept it.

        From `since` (as in `subscribe`) to `until` (None: to the end, as of the last page), at most `limit` messages;
        in order within each topic group, one group's pages after or between another's. `Message.retain` is as
        published. A payload that cannot be decompressed costs itself: its message has an empty one and says why in
        `Message.damaged`; `statistics` counts them. Raises TopicError, UsageError, UnavailableError.
        """
        name, group = self._filter(filter)
        now_us = self.clock.time_us()
        start = parse_since(since, now_us, group) or (TIME, 0)
        until_us = FOREVER_US if until is None else parse_time(until, now_us)
        if limit is not None and limit < 0:
            raise UsageError(f"limit={limit!r}: give a number from 0, or None")
        pages, left = HistoryPages(self, name, start, until_us), limit
        while left != 0 and (page := await pages.next()) is not None:
            for block in page:
                messages = await self.decoder.decode_all(block)
                for message in messages if left is None else messages[:left]:
                    if message.damaged:
                        self._undecodable += 1
                    yield message
                if left is not None:
                    left -= min(left, len(messages))
                    if left == 0:
                        return

    def _filter(self, filter: str) -> tuple[bytes, int | None]:
        """A filter's bytes, and its group if it is an exact topic."""
        self._check_open()
        try:
            name = filter.encode()
        except (UnicodeEncodeError, AttributeError):
            raise UsageError(f"filter {filter!r} must be a text without lone surrogates") from None
        check_filter(name)
        if shared(name) is not None:
            raise UsageError(f"filter {filter!r}: shared subscriptions are for MQTT clients")
        return name, None if is_wildcard(name) else topic_group(name, self._groups)

    # -- the cluster

    async def status(self) -> Any:
        """The broker's view of the cluster (what `lexicast status --json` prints)."""
        self._check_open()
        return await self.request("status")

    @property
    def broker(self) -> Any:
        """The raw Ray actor handle of the broker that serves this client: `await bus.broker.status.remote()`.

        Raises UnavailableError where there is none (connected to a link address, without Ray).
        """
        endpoint = self._connection.endpoint
        if endpoint is None or endpoint.handle is None:
            raise UnavailableError("this client has no actor handle: connect with a Ray address, such as 'auto'")
        return endpoint.handle

    @property
    def broker_name(self) -> str:
        """The broker that serves this client now, or did last."""
        return self._connection.endpoint.name if self._connection.endpoint is not None else ""

    @property
    def statistics(self) -> dict[str, int]:
        """Counts since `open`: publications, links, the payload bytes that dictionaries saved on the way out, and the
        payloads of the history that could not be decompressed."""
        return {
            "published": self._publisher.published,
            "refused": self._publisher.refused,
            "given_up": self._publisher.given_up,
            "unacknowledged": self._publisher.unacknowledged,
            "links": self._connection.links,
            "bytes_saved": self._dictionaries.bytes_saved,
            "undecodable": self._undecodable,
        }

    def _check_open(self) -> None:
        if self._closed:
            raise closed_error()
        self.check_loop()

    def check_loop(self) -> None:
        """See Host. Nothing here may be touched from elsewhere: a future of one event loop never wakes another one."""
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
    async def _limited(self, what: str) -> AsyncIterator[None]:
        """`give_up_s` for all that happens inside. Raises UnavailableError."""
        try:
            async with asyncio.timeout(self._give_up_s):
                yield
        except TimeoutError:
            raise UnavailableError(f"{what} has not come to an end within {self._give_up_s or 0:.1f} s") from None

    # -- what subscriptions need (client_subscription.Host)

    @property
    def give_up_s(self) -> float | None:
        """See Host."""
        return self._give_up_s

    @property
    def takes_streams(self) -> bool:
        """Whether topic streams are worth their CPU on the present link."""
        return not self._connection.is_local

    def open_stream(self, subscription: Subscription) -> int:
        """See Host."""
        stream = self._next_stream
        self._next_stream += 1
        self._streams[stream] = subscription
        return stream

    def close_stream(self, stream: int) -> None:
        """See Host."""
        self._streams.pop(stream, None)
        link = self._connection.link
        if link is not None and not link.closed:
            link.request("unsubscribe", stream).add_done_callback(_heard)

    def abandon(self, stream: int) -> None:
        """See Host."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.close_stream, stream)

    def hold(self, subscription: Subscription) -> None:
        """See Host."""
        self._held.add(subscription)

    def release(self, subscription: Subscription) -> None:
        """See Host."""
        self._held.discard(subscription)

    async def request_once(self, method: str, *arguments: Any) -> Any:
        """See Host."""
        link = await self._connection.wait_link()
        try:
            limit_s = min(REQUEST_TIMEOUT_S, self._give_up_s or REQUEST_TIMEOUT_S)
            return await link.request(method, *arguments, timeout_s=limit_s)
        except LexicastError as error:
            if link.closed:
                raise ConnectionResetError(str(error)) from None
            raise

    async def request(self, method: str, *arguments: Any) -> Any:
        """See Host."""
        async with self._limited(f"the request {method!r}"):
            while True:
                try:
                    return await self.request_once(method, *arguments)
                except ConnectionResetError:
                    continue

    async def _fetch_dictionary(self, dictionary: int) -> bytes | None:
        packed = await self.request("dictionary", dictionary)
        return packed if isinstance(packed, bytes) else None

    # -- the link (client_connection.ConnectionUser)

    def on_open(self, link: Link) -> None:
        """See ConnectionUser."""
        try:
            groups, cluster_id = int(link.info["groups"]), str(link.info["cluster_id"])
            payload_bytes_max = int(link.info["payload_bytes_max"])
            self._dictionaries.limit(payload_bytes_max)
            self._dictionaries.opt_out([str(topic_filter).encode() for topic_filter in link.info.get("optout", ())])
        except (KeyError, TypeError, ValueError, TopicError) as error:
            raise PeerError(f"the broker's welcome cannot be read: {error!r}") from None
        if self._groups and (groups, cluster_id) != (self._groups, self._cluster_id):
            raise PeerError("another cluster answers at this cluster's address: connect anew")
        self._groups, self._cluster_id = groups, cluster_id
        self._publisher.connected(groups, payload_bytes_max)

    def on_message(self, message: tuple[Any, ...]) -> None:
        """See ConnectionUser."""
        kind = message[0]
        if kind == DELIVER:
            subscription = self._streams.get(message[1])
            if subscription is not None:
                subscription.deliver(message[2])
        elif kind == ACK:
            self._publisher.acknowledged(message[1], message[2])
        elif kind == DICTIONARY:
            try:
                self._dictionaries.announce(message[1])
            except DictionaryError as error:
                log.warning("a pushed dictionary is not used: %s", error)
        else:
            raise PeerError(f"a client does not take messages of kind {kind!r}")

    def on_lost(self) -> None:
        """See ConnectionUser."""
        self._publisher.disconnected()
        streams = list(self._streams.values())
        self._streams.clear()
        for subscription in streams:
            subscription.link_lost()

    def on_writable(self) -> None:
        """See ConnectionUser."""
        self._publisher.writable()

    def on_failure(self, error: LexicastError) -> None:
        """See ConnectionUser."""
        self._publisher.fail(error)
        for subscription in list(self._subscriptions):
            subscription.fail(error)

    def _send(self, message: tuple[Any, ...]) -> bool:
        link = self._connection.link
        if link is None:
            return False
        link.send(message)
        return link.writable


_PLAIN: Final = make_kind(1, False, None, None)


def _heard(future: asyncio.Future[Any]) -> None:
    """An answer that nobody waits for; its error is of no interest."""
    if not future.cancelled():
        future.exception()


__all__ = ["AuthenticationError", "Client", "Message", "Properties", "Subscription"]
