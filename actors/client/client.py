"""The Python client: publish to and subscribe from a lexicast cluster.

    async with lexicast.connect() as bus:
        position = await bus.publish("flights/JFK", b"...")
        async for message in bus.subscribe("flights/+", since="10m"):
            print(message.topic, message.payload)

One client is one link to one broker (found again, or replaced by another broker's, when it breaks) and belongs to the
event loop that opened it: used from another one, or from another thread, it raises UsageError. Publications are
acknowledged once committed, and stored once however often they had to be sent; a subscription gives each message once,
in order within a topic group. What waits is bounded everywhere: see `publisher` and `subscription_feed`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final

from lexicast.cluster.clock import Clock
from lexicast.cluster.content.parsed import predicate
from lexicast.cluster.errors import AuthenticationError, UnavailableError, UsageError
from lexicast.cluster.points_in_time import (
    FOREVER_US,
    TIME,
    Since,
    Until,
    WireSince,
    parse_last,
    parse_since,
    parse_time,
)
from lexicast.cluster.positions import Position
from lexicast.cluster.protocol.requests import GROUP_WINDOW, GROUP_WINDOW_MAX
from lexicast.cluster.topics.names import check_share_name
from lexicast.compression.dictionary import Dictionary

from .entries import Kind, make_kind
from .group_feed import GroupFeed, SettledFeed
from .history_pages import HistoryPages, LastPages, Pages, counted
from .internals import ClientInternals
from .known_brokers import Resolve
from .messages import Message, Properties, as_properties, pack_properties
from .publisher import BATCH_BYTES
from .replies import Requester, to_requester
from .subscription import Subscription
from .subscription_feed import BUFFER_BYTES, CATCH_UP, DROP, SubscriptionFeed

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
        batch_s: float = 0.0,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        # for lexicast's own parts; everything below is the user's
        self.internals = ClientInternals(resolve, client_id, compress, give_up_s, clock, batch_s, batch_bytes)
        self._requester = Requester(self.client_id, partial(self.subscribe, since="now"), self.publish)

    # -- life

    async def open(self) -> Client:
        """Connect. Raises UnavailableError (no cluster, no broker), AuthenticationError, PeerError, ConfigError."""
        await self.internals.open()
        return self

    async def close(self) -> None:
        """Wait up to 10 s for what was published to be acknowledged, then disconnect; subscriptions end."""
        await self.internals.close()

    async def __aenter__(self) -> Client:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """What names this client as a publisher."""
        return self.internals.client_id

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
        return await self.internals.publisher.put(topic, payload, self._kind(qos, retain, expiry_s, properties))

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
        return await self.internals.publisher.put_many(messages, self._kind(qos, retain, expiry_s, properties))

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
        self.internals.publisher.put_nowait(topic, payload, self._kind(qos, retain, expiry_s, properties))

    async def flush(self) -> None:
        """Return when everything published so far is acknowledged, refused or given up."""
        self.internals.check_open()
        await self.internals.publisher.drain()

    def _kind(
        self, qos: int, retain: bool, expiry_s: float | None, properties: Properties | Mapping[str, str] | None
    ) -> Kind:
        self.internals.check_open()
        if properties is None and expiry_s is None and not retain and qos == 1:
            return _PLAIN
        return make_kind(qos, retain, expiry_s, pack_properties(properties))

    async def request(
        self,
        topic: str,
        payload: bytes | str,
        *,
        timeout_s: float = 10.0,
        qos: int = 1,
        properties: Properties | Mapping[str, str] | None = None,
    ) -> Message:
        """Publish a request and return the first reply to it, whoever replies: a Python client by `reply`, any client
        of MQTT 5 by its response topic and correlation data.

        The request expires when nobody waits for it any more. Replies come to a topic of this client's own below
        `replies/CLIENT_ID/`, which it subscribes to with the first request (users need the right to read there, who
        replies the right to write). Both are publications like any other, ordered and kept; with QoS 0 they do not wait
        for the disk.

        Raises NoReplyError (none within `timeout_s`), NotAuthorizedError, and as `publish`.
        """
        self.internals.check_open()
        return await self._requester.request(topic, payload, timeout_s, qos, as_properties(properties))

    async def reply(
        self,
        request: Message,
        payload: bytes | str,
        *,
        qos: int = 1,
        expiry_s: float | None = None,
        properties: Properties | Mapping[str, str] | None = None,
    ) -> Position:
        """Publish the reply to a request that came by a subscription, where it asks for it to go.

        Raises UsageError (it asks for none), and as `publish`. (Where there are users, what a request may have
        published in the replying one's name is what that one may write.)
        """
        topic, carried = to_requester(request, properties)
        return await self.publish(topic, payload, qos=qos, expiry_s=expiry_s, properties=carried)

    def dictionaries(self) -> tuple[Dictionary, ...]:
        """The newest dictionary of each family, as the broker has announced them: with `compress` and over TCP those
        that pay on this client's link, else all."""
        return self.internals.dictionaries.announced()

    # -- subscribing and the past

    def subscribe(
        self,
        filter: str | Iterable[str],
        since: Since = None,
        *,
        qos: int = 1,
        until: Until = None,
        where: str | None = None,
        slow: str = CATCH_UP,
        buffer_bytes: int = BUFFER_BYTES,
        sample_records_per_s: int | None = None,
        group: str | None = None,
        group_window: int = GROUP_WINDOW,
        manual_ack: bool = False,
    ) -> Subscription:
        """The messages whose topic matches `filter`: to be iterated, or entered (`async with`) and iterated.

        Of several filters (up to 1,000) what matches any of them, each message once, in one order a topic group.

        `since` None: the retained messages, then what is published from now on. Else nothing retained, and
        everything from there on, past and future in one order: a Position (what came after it; exact topics only), a
        subscription's `cursor`, a datetime, seconds since 1970 (from 2001 on: 10 may be meant as a duration, and is
        refused), a duration ("10m", timedelta), "beginning".
        `until`: the time at which it ends. `where`: only messages for which this condition holds, such as "delay > 30
        AND carrier IN ('UA', 'AA')" (docs/content.md). `qos`: the highest the subscriber asks for; with `slow="drop"`
        what does not fit into `buffer_bytes` is dropped (counted in `dropped`); with "catch-up" it is read later from
        storage. `sample_records_per_s`: of what is published from now on the broker sends about so many, each topic
        family its fair share, and leaves the rest out: to look at a stream rather than have it (`since`, `slow` and
        retained messages have no part in it).

        `group`: be a member of the consumer group of that name on this one filter, as MQTT clients are that subscribe
        to `$share/GROUP/FILTER`: each message goes to one member, at least once, and none retained (docs/mqtt.md). It
        is done when the next one is asked for (of `next_batch` the whole batch), or the `async with` block ends without
        an error; with `manual_ack` when `Subscription.ack` says so. What is not goes to another member, when this one
        goes. `since`: where the group begins if it is new; it keeps its place. `group_window`: messages that are dealt
        to this member and not done, at most. Only `where` goes with it.

        Raises TopicError, UsageError.
        """
        names, exact = self.internals.filters_of(filter)
        now_us = self.internals.clock.time_us()
        start = parse_since(since, now_us, exact)
        if group is not None:
            plain = until is None and slow == CATCH_UP and sample_records_per_s is None
            return self._group_member(group, names, start, where, group_window, plain, manual_ack)
        _check_plain(slow, qos, buffer_bytes, manual_ack)
        feed = SubscriptionFeed(
            self.internals,
            names,
            start,
            None if until is None else parse_time(until, now_us),
            {"slow": slow, "qos": qos, "sample_records_per_s": sample_records_per_s, "where": _condition(where)},
            buffer_bytes,
        )
        subscription = Subscription(feed)
        self.internals.add(subscription)
        return subscription

    def _group_member(
        self,
        group: str,
        names: tuple[bytes, ...],
        since: WireSince,
        where: str | None,
        window: int,
        plain: bool,
        manual_ack: bool,
    ) -> Subscription:
        if len(names) != 1 or not plain:
            raise UsageError(f"group={group!r}: a group has one filter, and neither until, slow nor samples")
        check_share_name(group)
        if type(window) is not int or not 0 < window <= GROUP_WINDOW_MAX:
            raise UsageError(f"group_window={window!r}: give a number from 1 to {GROUP_WINDOW_MAX}")
        options = {"where": _condition(where), "window": window}
        kind = SettledFeed if manual_ack else GroupFeed
        subscription = Subscription(kind(self.internals, group, names[0], since, options))
        self.internals.add(subscription)
        return subscription

    async def history(
        self,
        filter: str | Iterable[str],
        since: Since = "beginning",
        until: Until = None,
        limit: int | None = None,
        *,
        last: int | None = None,
        where: str | None = None,
    ) -> AsyncGenerator[Message, None]:
        """What was published to topics that match `filter`, as long as retention has kept it.

        From `since` (as in `subscribe`) to `until` (None: to the end, as of the last page), at most `limit` messages;
        in order within each topic group, one group's pages after or between another's. With `last`, of each topic the
        last so many of these (1 to 65,535), a topic after the other, each in order (while a damaged index is being
        made anew that waits for it, as long as `give_up_s` allows). With `where`, those of all that for which the
        condition holds, as in `subscribe`. `Message.retain` is as published. A payload that
        cannot be decompressed costs itself: its message has an empty one and says why in `Message.damaged`;
        `statistics` counts them. Raises TopicError, UsageError, UnavailableError.
        """
        names, group = self.internals.filters_of(filter)
        now_us = self.internals.clock.time_us()
        start = parse_since(since, now_us, group) or (TIME, 0)
        until_us = FOREVER_US if until is None else parse_time(until, now_us)
        if limit is not None and limit < 0:
            raise UsageError(f"limit={limit!r}: give a number from 0, or None")
        condition = _condition(where)
        pages: Pages = HistoryPages(self.internals, names, start, until_us, condition)
        if last is not None:
            pages = LastPages(self.internals, names, start, until_us, parse_last(last), condition)
        left = limit
        while left != 0 and (page := await pages.next()) is not None:
            for block in page:
                at = block.first
                while at <= block.last:
                    messages, _, at = await self.internals.decoder.decode_all(block, at)
                    for message in messages if left is None else messages[:left]:
                        if message.damaged:
                            self.internals.undecodable += 1
                        yield message
                    if left is not None:
                        left -= min(left, len(messages))
                        if left == 0:
                            return

    async def count(
        self,
        filter: str | Iterable[str],
        since: Since = "beginning",
        until: Until = None,
        *,
        where: str | None = None,
    ) -> int:
        """How many messages `history` has for these arguments; none of them is sent.

        (Those whose payload is damaged on the disk are counted too.) Raises as `history`.
        """
        names, group = self.internals.filters_of(filter)
        now_us = self.internals.clock.time_us()
        start = parse_since(since, now_us, group) or (TIME, 0)
        until_us = FOREVER_US if until is None else parse_time(until, now_us)
        return await counted(self.internals, names, start, until_us, _condition(where))

    # -- the cluster

    async def status(self) -> Any:
        """What the broker that serves this client says about itself (of all actors: `lexicast status --json`)."""
        self.internals.check_open()
        return await self.internals.request("status")

    @property
    def broker(self) -> Any:
        """The raw Ray actor handle of the broker that serves this client: `await bus.broker.status.remote()`.

        Raises UnavailableError where there is none (connected to a link address, without Ray).
        """
        endpoint = self.internals.connection.endpoint
        if endpoint is None or endpoint.handle is None:
            raise UnavailableError("this client has no actor handle: connect with a Ray address, such as 'auto'")
        return endpoint.handle

    @property
    def broker_name(self) -> str:
        """The broker that serves this client now, or did last."""
        return self.internals.connection.endpoint.name if self.internals.connection.endpoint is not None else ""

    @property
    def statistics(self) -> dict[str, int]:
        """Counts since `open`: publications, links, the payload bytes that dictionaries saved on the way out, and the
        payloads of the history that could not be decompressed."""
        return {
            **self.internals.publisher.counts(),
            "links": self.internals.connection.links,
            "bytes_saved": self.internals.dictionaries.bytes_saved,
            "undecodable": self.internals.undecodable,
        }


def _check_plain(slow: str, qos: int, buffer_bytes: int, manual_ack: bool) -> None:
    """Raises UsageError: a subscription without a group cannot be made so."""
    if manual_ack:
        raise UsageError("manual_ack=True: what has no group is not acknowledged; keep the subscription's cursor")
    if slow not in (CATCH_UP, DROP):
        raise UsageError(f"slow={slow!r}: it is {CATCH_UP!r} or {DROP!r}")
    if qos not in (0, 1, 2) or buffer_bytes < 1:
        raise UsageError(f"qos={qos!r}, buffer_bytes={buffer_bytes!r}: qos is 0, 1 or 2, buffer_bytes above 0")


def _condition(where: str | None) -> str | None:
    """A condition, looked at. Raises UsageError."""
    if where is not None:
        predicate(where)
    return where


_PLAIN: Final = make_kind(1, False, None, None)


__all__ = ["AuthenticationError", "Client", "Message", "Properties", "Subscription"]
