"""SUBSCRIBE and UNSUBSCRIBE: each filter decided by the session, placed by the engine, answered in its own words."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import LexicastError, TopicError, UsageError
from lexicast.cluster.topics import check_filter, shared

from .encoding import Grant
from .mqtt_packets import (
    IMPLEMENTATION_SPECIFIC_ERROR,
    NO_SUBSCRIPTION_EXISTED,
    QUOTA_EXCEEDED,
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
    SUCCESS,
    TOPIC_FILTER_INVALID,
    UNSPECIFIED_ERROR,
    SubAck,
    Subscribe,
    SubscriptionOptions,
    UnsubAck,
    Unsubscribe,
)
from .mqtt_properties import REASON_STRING
from .mqtt_windows import Window, place, window_of
from .session import Subscription

if TYPE_CHECKING:
    from .mqtt_connection import MqttConnection
    from .mqtt_listener import MqttListener
    from .mqtt_subscriber import MqttSubscriber

log = logging.getLogger(__name__)


def grant_of(subscription: Subscription) -> Grant:
    """A subscription as the fan-out knows it."""
    identifier = subscription.identifier
    return Grant(
        subscription.qos,
        subscription.retain_as_published,
        subscription.no_local,
        () if identifier is None else (identifier,),
    )


def _grant(options: SubscriptionOptions, identifier: int | None) -> Grant:
    """The same for a subscription that is the connection's, not the session's."""
    ids = () if identifier is None else (identifier,)
    return Grant(options.qos, options.retain_as_published, options.no_local, ids)


async def change_subscriptions(
    listener: MqttListener, connection: MqttConnection, packets: list[Subscribe | Unsubscribe]
) -> None:
    """Place or remove every filter of `packets` in their order, and answer each. A session that outlives its connection
    is saved first, once for all of them, so that what is acknowledged survives this broker.

    Raises LexicastError, TimeoutError when it could not be saved.
    """
    answers = [await _change(listener, connection, packet) for packet in packets if connection.is_open]
    if connection.is_open and connection.session.expiry_s:
        await listener.sessions.save_now(connection.client_id, connection)
    for answer, retained in answers:
        if not connection.is_open or connection.subscriber is None or not connection.answer(answer):
            return
        for grant, blocks in retained:
            connection.subscriber.send_retained(blocks, grant)


async def _change(
    listener: MqttListener, connection: MqttConnection, packet: Subscribe | Unsubscribe
) -> tuple[SubAck | UnsubAck, list[tuple[Grant, list[Block]]]]:
    """(the answer, what is retained for the new subscriptions)."""
    if isinstance(packet, Unsubscribe):
        return _unsubscribe(listener, connection, packet), []
    try:
        window = window_of(packet.properties, listener.engine.clock.time_us())
    except UsageError as error:
        refused = SubAck(packet.packet_id, [IMPLEMENTATION_SPECIFIC_ERROR] * len(packet.filters))
        refused.properties = {REASON_STRING: str(error)}
        return refused, []
    placed = await asyncio.gather(
        *[_one(listener, connection, name, options, packet.subscription_id, window) for name, options in packet.filters]
    )
    retained = [(grant, blocks) for code, grant, blocks in placed if blocks and code < UNSPECIFIED_ERROR]
    codes = [code for code, _, _ in placed]
    return SubAck(packet.packet_id, codes), retained


async def _one(
    listener: MqttListener,
    connection: MqttConnection,
    name: bytes,
    options: SubscriptionOptions,
    identifier: int | None,
    window: Window | None,
) -> tuple[int, Grant, list[Block]]:
    """(reason code, grant, retained publications) of one filter."""
    refused = Grant()
    if connection.terms.bridge:
        options = replace(options, no_local=True, retain_as_published=True)
    try:
        check_filter(name)
        if shared(name) is not None:
            return SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, refused, []
    except TopicError as error:
        log.info("client %r: %s", connection.client_id, error)
        return TOPIC_FILTER_INVALID, refused, []
    session, subscriber = connection.session, connection.subscriber
    if window is not None and subscriber is not None:
        return await _in_window(listener, subscriber, name, _grant(options, identifier), window)
    subscribed = session.subscribe(name, options, identifier)
    if subscribed.reason_code >= UNSPECIFIED_ERROR or subscriber is None:
        return subscribed.reason_code, refused, []
    grant = grant_of(session.subscriptions[name])
    try:
        cuts = await listener.engine.subscribe(subscriber, {name: grant})
        found = await listener.engine.retained(name, cuts[name]) if subscribed.send_retained and cuts else []
    except (LexicastError, TimeoutError) as error:
        log.warning("client %r: subscription to %r failed: %s", connection.client_id, name, error)
        session.unsubscribe(name)
        listener.engine.unsubscribe(subscriber, name)
        return UNSPECIFIED_ERROR, refused, []
    return subscribed.reason_code, grant, found


async def _in_window(
    listener: MqttListener, subscriber: MqttSubscriber, name: bytes, grant: Grant, window: Window
) -> tuple[int, Grant, list[Block]]:
    """`_one` for a filter with a window in time."""
    if len(subscriber.windows) >= listener.config.subscriptions_per_session_max:
        return QUOTA_EXCEEDED, grant, []
    try:
        await place(listener.engine, subscriber, name, grant, window)
    except (LexicastError, TimeoutError) as error:
        log.warning("client %r: subscription to %r failed: %s", subscriber.session.client_id, name, error)
        return UNSPECIFIED_ERROR, grant, []
    return grant.qos, grant, []


def _unsubscribe(listener: MqttListener, connection: MqttConnection, packet: Unsubscribe) -> UnsubAck:
    """The UNSUBACK."""
    codes = []
    for name in packet.filters:
        known = connection.session.unsubscribe(name)
        subscriber = connection.subscriber
        if subscriber is not None and known:
            listener.engine.unsubscribe(subscriber, name)
        if subscriber is not None and name in subscriber.windows:
            subscriber.windows.pop(name).leave()
            known = True
        codes.append(SUCCESS if known else NO_SUBSCRIPTION_EXISTED)
    return UnsubAck(packet.packet_id, codes)
