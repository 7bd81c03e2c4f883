"""Changes of subscriptions, SUBSCRIBE and UNSUBSCRIBE: each filter decided by the session and placed by the engine."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

from lexicast.cluster.bridges.hops import check_share_of_client
from lexicast.cluster.content.parsed import predicate
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.errors import LexicastError, LimitError, TopicError, UsageError
from lexicast.cluster.points_in_time import FOREVER_US
from lexicast.cluster.topics.names import SHARE_PREFIX, check_filter, share_filter, shared

from ..broker.encoding import Grant
from ..broker.feeds.retained_feed import RetainedFeed
from ..loop.turns import Turns
from .codec.packets import (
    IMPLEMENTATION_SPECIFIC_ERROR,
    NO_SUBSCRIPTION_EXISTED,
    NOT_AUTHORIZED,
    QUOTA_EXCEEDED,
    SUCCESS,
    TOPIC_FILTER_INVALID,
    UNSPECIFIED_ERROR,
    Properties,
    SubAck,
    Subscribe,
    SubscriptionOptions,
    UnsubAck,
    Unsubscribe,
)
from .codec.properties import REASON_STRING, USER_PROPERTY
from .owning.owned_sessions import Owner
from .services import MqttServices
from .session import SessionSubscription
from .share_subscriptions import CLIENT_SHARES_MAX, join_again, join_share
from .subscriber import MqttSubscriber
from .window_subscriptions import Window, place, window_of

WHERE = "where"

log = logging.getLogger(__name__)

# Grants of different options and identifiers of which one object is enough for all subscriptions.
GRANTS_KEPT = 1_024


@lru_cache(maxsize=GRANTS_KEPT)
def grant_of(subscription: SessionSubscription) -> Grant:
    """A subscription as the fan-out knows it; mostly they are alike."""
    identifier = subscription.identifier
    return Grant(
        subscription.qos,
        subscription.retain_as_published,
        subscription.no_local,
        () if identifier is None else (identifier,),
        where=_predicate(subscription.where),
    )


def _predicate(where: str) -> Predicate | None:
    return predicate(where) if where else None


def _grant(options: SubscriptionOptions, identifier: int | None, where: str) -> Grant:
    """The same for a subscription that is the connection's, not the session's."""
    ids = () if identifier is None else (identifier,)
    return Grant(options.qos, options.retain_as_published, options.no_local, ids, where=_predicate(where))


def where_of(properties: Properties | None) -> str:
    """The condition that a SUBSCRIBE's user property `where` asks for; "": none. Raises UsageError."""
    asked = [value for name, value in (properties or {}).get(USER_PROPERTY, ()) if name == WHERE]
    if len(asked) > 1:
        raise UsageError(f"{len(asked)} user properties {WHERE!r}: give one, with AND or OR between the conditions")
    for condition in asked:
        predicate(condition)
    return asked[0] if asked else ""


def _shares_of(names: Iterable[bytes]) -> int:
    return sum([name.startswith(SHARE_PREFIX) for name in names])


class SubscribingClient(Owner, Protocol):
    """Whose subscriptions change: a session that is served."""

    @property
    def is_open(self) -> bool:
        """Whether it still is."""

    @property
    def is_bridge(self) -> bool:
        """Whether the client is another broker: it gets nothing of its own, and what is retained as such."""

    def answer(self, packet: SubAck | UnsubAck) -> bool:
        """Answer by the client's terms; False when it takes none so large: the connection ends."""


async def change_subscriptions(
    services: MqttServices, client: SubscribingClient, packets: list[Subscribe | Unsubscribe]
) -> None:
    """Place or remove every filter of `packets` in their order, and answer each. A session that outlives its connection
    is saved first, once for all of them, so that what is acknowledged survives this broker.

    Raises LexicastError, TimeoutError when it could not be saved.
    """
    answers: list[SubAck | UnsubAck] = []
    retained: list[tuple[RetainedFeed, dict[bytes, Grant]]] = []
    news: dict[bytes, Grant] = {}
    left = deque(packets)
    while left and client.is_open:
        packet = left.popleft()
        if isinstance(packet, Unsubscribe):
            answers.append(await _unsubscribe(services, client, packet))
            continue
        change = _Subscribing(services, client)
        await change.decide(packet)
        # Those that follow are placed in the same requests, unless one replaces another.
        while left and isinstance(following := left[0], Subscribe) and change.may_take(following):
            left.popleft()
            await change.decide(following)
        answers += await change.placed()
        if change.feed is not None:
            retained.append((change.feed, change.wanted))
            news.update({name: change.wanted[name] for name in change.feed.filters})
    if client.is_open and client.session.expiry_s:
        await services.sessions.save_now(client.session.client_id, client)
    for answer in answers:
        if not client.is_open or not client.answer(answer):
            return
    for feed, grants in retained:
        client.session.owe(feed.filters)
        client.subscriber.send_retained(feed, grants)
    services.sys_topics.subscribed(client.subscriber, news)


def send_owed(services: MqttServices, client: SubscribingClient) -> None:
    """An earlier connection ended while it was sent what is retained on these filters: all of it comes, from the
    beginning."""
    session, subscriptions = client.session, services.engine.subscriptions
    if session.owed:
        stands = subscriptions.cursor_of(client.subscriber)
        grants = {name: grant_of(session.subscriptions[name]) for name in session.owed}
        client.subscriber.send_retained(subscriptions.retained(dict.fromkeys(grants, stands)), grants)


async def join_shares(services: MqttServices, client: SubscribingClient) -> None:
    """A session is taken up again: it is a member again of the shares that it subscribes to.

    Raises LexicastError, TimeoutError.
    """
    session = client.session
    grants = {name: grant_of(each) for name, each in session.subscriptions.items() if name.startswith(SHARE_PREFIX)}
    await join_again(services.engine, client.subscriber, grants)


class _Subscribing:
    """SUBSCRIBEs that are placed together: each filter decided by the session, all asked for at once."""

    def __init__(self, services: MqttServices, client: SubscribingClient) -> None:
        self._services = services
        self._client = client
        self._answers: list[SubAck] = []
        # filter -> the answer, and the place in it, of those that are to be placed.
        self._places: dict[bytes, tuple[SubAck, int]] = {}
        self._retained: list[bytes] = []
        self.wanted: dict[bytes, Grant] = {}
        self.feed: RetainedFeed | None = None

    def may_take(self, packet: Subscribe) -> bool:
        """Whether a packet names none of these filters again."""
        return self.wanted.keys().isdisjoint([name for name, _ in packet.filters])

    async def decide(self, packet: Subscribe) -> None:
        """What becomes of each filter of a packet."""
        turns = Turns()
        answer = SubAck(packet.packet_id, [])
        self._answers.append(answer)
        try:
            window = window_of(packet.properties, self._services.engine.clock.time_us())
            where = where_of(packet.properties)
            if where:
                self._services.engine.predicates.check(predicate(where))
        except UsageError as error:
            code = QUOTA_EXCEEDED if isinstance(error, LimitError) else IMPLEMENTATION_SPECIFIC_ERROR
            answer.reason_codes = [code] * len(packet.filters)
            answer.properties = {REASON_STRING: str(error)}
            return
        for name, options in packet.filters:
            code = await self._decide(answer, name, options, packet.subscription_id, window, where)
            answer.reason_codes.append(code)
            await turns.give_way()

    async def _decide(
        self,
        answer: SubAck,
        name: bytes,
        options: SubscriptionOptions,
        identifier: int | None,
        window: Window | None,
        where: str,
    ) -> int:
        """The reason code of one filter, if it can be placed."""
        session, subscriber = self._client.session, self._client.subscriber
        if self._client.is_bridge and not name.startswith(SHARE_PREFIX):
            options = replace(options, no_local=True, retain_as_published=True)
        try:
            check_filter(name)
            share = shared(name)
            if share is not None:
                check_filter(share[1])
                check_share_of_client(share[0])
        except TopicError as error:
            log.info("client %r: %s", session.client_id, error)
            return TOPIC_FILTER_INVALID
        rights = subscriber.rights
        if rights is not None and not rights.may_subscribe(share_filter(name), window is not None and window.has_past):
            rights.refuse("subscribe", name)
            return NOT_AUTHORIZED
        if share is not None:
            return await self._share(name, options, identifier, window, where)
        if window is not None:
            return await _in_window(self._services, subscriber, name, _grant(options, identifier, where), window)
        subscribed = session.subscribe(name, options, identifier, where=where)
        if subscribed.reason_code < UNSPECIFIED_ERROR:
            self.wanted[name] = grant_of(session.subscriptions[name])
            self._places[name] = (answer, len(answer.reason_codes))
            if subscribed.send_retained:
                self._retained.append(name)
        return subscribed.reason_code

    async def _share(
        self, name: bytes, options: SubscriptionOptions, identifier: int | None, window: Window | None, where: str
    ) -> int:
        """The reason code of a shared subscription, placed; nothing that is retained is sent for it. `window`: from
        when on the share begins, if it is new."""
        engine, session, subscriber = self._services.engine, self._client.session, self._client.subscriber
        if window is not None and (window.last is not None or window.until_us != FOREVER_US):
            return IMPLEMENTATION_SPECIFIC_ERROR  # a share is everybody's: it neither ends nor counts
        if name not in session.subscriptions and _shares_of(session.subscriptions) >= CLIENT_SHARES_MAX:
            log.warning(
                "client %r: has %d shared subscriptions, no more are taken", session.client_id, CLIENT_SHARES_MAX
            )
            return QUOTA_EXCEEDED
        subscribed = session.subscribe(name, options, identifier, shared=True, where=where)
        if subscribed.reason_code >= UNSPECIFIED_ERROR:
            return subscribed.reason_code
        try:
            since = None
            if window is not None and window.since_us is not None:
                since = await engine.coordinators.offsets_at([share_filter(name)], window.since_us)
            await join_share(engine, subscriber, name, grant_of(session.subscriptions[name]), since)
        except (LexicastError, TimeoutError) as error:
            log.warning("client %r: shared subscription %r failed: %s", session.client_id, name, error)
            session.unsubscribe(name)
            return QUOTA_EXCEEDED if isinstance(error, LimitError) else UNSPECIFIED_ERROR
        return subscribed.reason_code

    async def placed(self) -> list[SubAck]:
        """Place them; the answers."""
        session, subscriber, subscriptions = (
            self._client.session,
            self._client.subscriber,
            self._services.engine.subscriptions,
        )
        if not self.wanted:
            return self._answers
        try:
            cuts = await subscriptions.subscribe(subscriber, self.wanted)
            asked = {name: cuts[name] for name in self._retained if name in cuts}
            self.feed = subscriptions.retained(asked) if asked else None
        except (LexicastError, TimeoutError) as error:
            some = next(iter(self.wanted))
            log.warning(
                "client %r: %d subscriptions (%r ...) failed: %s", session.client_id, len(self.wanted), some, error
            )
            for name, (answer, at) in self._places.items():
                session.unsubscribe(name)
                answer.reason_codes[at] = UNSPECIFIED_ERROR
            await subscriptions.unsubscribe_all(subscriber, list(self._places))
        return self._answers


async def _in_window(
    services: MqttServices, subscriber: MqttSubscriber, name: bytes, grant: Grant, window: Window
) -> int:
    """The reason code of a filter with a window in time, placed."""
    if len(subscriber.windows) >= services.config.subscriptions_per_session_max:
        return QUOTA_EXCEEDED
    try:
        await place(services.engine, subscriber, name, grant, window)
    except (LexicastError, TimeoutError) as error:
        log.warning("client %r: subscription to %r failed: %s", subscriber.session.client_id, name, error)
        return UNSPECIFIED_ERROR
    return grant.qos


async def _unsubscribe(services: MqttServices, client: SubscribingClient, packet: Unsubscribe) -> UnsubAck:
    """The UNSUBACK."""
    codes, gone, subscriber = [], list[bytes](), client.subscriber
    turns = Turns()
    for name in packet.filters:
        known = client.session.unsubscribe(name)
        if known:
            gone.append(name)
        if name in subscriber.windows:
            subscriber.windows.pop(name).unsubscribed()
            known = True
        codes.append(SUCCESS if known else NO_SUBSCRIPTION_EXISTED)
        await turns.give_way()
    await services.engine.subscriptions.unsubscribe_all(subscriber, gone)
    return UnsubAck(packet.packet_id, codes)
