"""From this cluster to the other broker: what the bridge's shares are dealt goes out, and is done once the other broker
has acknowledged it.

Nothing is queued here but what a share has dealt (`share_feed.WINDOW`). What the other broker refuses because it has no
room is sent again, in order and before anything else, after a pause that grows to RETRY_MOST_S; what it will never take
(a topic that this user may not publish to) is told, and done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from lexicast.cluster.bridges.definitions import BridgedTopic, start_of
from lexicast.cluster.bridges.echoes import Echoes
from lexicast.cluster.bridges.hops import UserProperties, onward
from lexicast.cluster.bridges.topic_map import TopicMap
from lexicast.cluster.errors import DictionaryError, LexicastError
from lexicast.cluster.points_in_time import parse_since
from lexicast.cluster.properties import USER_PROPERTY

from ..client.client import Client
from ..client.entries import EXPIRY_S_MAX
from ..client.messages import Message, Properties, pack_properties
from ..client.subscription import Subscription
from ..mqtt.codec import encode_acks, publish_size, write_properties
from ..mqtt.codec.packets import (
    NOT_AUTHORIZED,
    PACKET_TOO_LARGE,
    PAYLOAD_FORMAT_INVALID,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    QOS_NOT_SUPPORTED,
    RETAIN_NOT_SUPPORTED,
    TOPIC_NAME_INVALID,
    V5,
    AckRun,
    PubAck,
    PubComp,
    PubRec,
)
from ..mqtt.codec.properties import MESSAGE_EXPIRY_S
from .counters import BridgeCounters
from .dealt_positions import DealtPositions, ranges
from .handshake import RemoteTerms
from .link_encoder import LinkEncoder, Sent
from .remote_link import RemoteLink
from .sent_publications import Outbound, SentPublications
from .share_feed import BridgeFeed, ExpiringMessage

RETRY_FIRST_S: Final = 0.5
RETRY_MOST_S: Final = 30.0
READ_AGAIN_S: Final = 0.5
# Of one write; acknowledgements come in between.
PART: Final = 1_024
PROPERTIES_KNOWN_MAX: Final = 1_000
# These will not be otherwise the next time.
LASTING: Final = frozenset(
    (
        NOT_AUTHORIZED,
        TOPIC_NAME_INVALID,
        PACKET_TOO_LARGE,
        PAYLOAD_FORMAT_INVALID,
        RETAIN_NOT_SUPPORTED,
        QOS_NOT_SUPPORTED,
    )
)


class OutgoingTopics:
    """See the module's docstring."""

    def __init__(
        self,
        client: Client,
        bridge: str,
        topics: Sequence[BridgedTopic],
        own_id: str,
        inflight_max: int,
        counters: BridgeCounters,
        echoes: Echoes,
        comes_back: TopicMap,
    ) -> None:
        """`comes_back`: the topics of the other side that are subscribed to there."""
        self._client = client
        self._bridge = bridge
        self._topics = [topic for topic in topics if topic.goes_out]
        self._maps = [TopicMap([topic.local_side()]) for topic in self._topics]
        self._own_id = own_id
        self._counters = counters
        self._echoes = echoes
        self._comes_back = comes_back
        self.sent = SentPublications(inflight_max)
        self._dealt = DealtPositions()
        self._feeds: list[BridgeFeed] = []
        self._subscriptions: list[Subscription] = []
        self._link: RemoteLink | None = None
        self._encoder: LinkEncoder | None = None
        self._terms: RemoteTerms | None = None
        self._remote_id = ""
        # The user properties of what was published here.
        self._first: UserProperties | None = None
        self._version = V5
        self._echoing = False
        self._open = asyncio.Event()
        # Of a new connection: what is sent again once the other side has room for it.
        self._later: list[Sent] = []
        self._refused: list[Outbound] = []
        self._retry_s = RETRY_FIRST_S
        self._resting: asyncio.TimerHandle | None = None
        self._flushing: asyncio.TimerHandle | None = None
        self._known: dict[UserProperties, bytes] = {}

    @property
    def has_qos2(self) -> bool:
        """Whether publications of QoS 2 go out."""
        return any(topic.qos == 2 for topic in self._topics)

    @property
    def under_way(self) -> int:
        """Dealt, and not acknowledged by the other broker."""
        return len(self._dealt)

    @property
    def refused_waiting(self) -> int:
        """Refused by the other broker, and to be sent again before anything else."""
        return len(self._refused)

    @property
    def repeats(self) -> int:
        """Dealt again, and not sent again."""
        return self._dealt.repeats

    def loops(self) -> list[Any]:
        """What has to run for ever."""
        for topic in self._topics:
            name = topic.local_side().filter
            filters, group = self._client.internals.filters_of(name)
            since = parse_since(start_of(topic), time.time_ns() // 1_000, group)
            feed = BridgeFeed(self._client.internals, self._bridge, filters[0], since)
            self._feeds.append(feed)
            subscription = Subscription(feed)
            self._subscriptions.append(subscription)
            self._client.internals.add(subscription)
        return [self._pump(number) for number in range(len(self._topics))]

    # -- a connection

    def connected(
        self, link: RemoteLink, terms: RemoteTerms, encoder: LinkEncoder, version: int, remote_id: str, echoing: bool
    ) -> None:
        """A connection is there: what is under way goes out again, then what follows. `echoing`: what is published
        there comes back."""
        self._link, self._terms, self._encoder, self._version = link, terms, encoder, version
        self._remote_id, self._echoing = remote_id, echoing
        self._first = onward((), self._own_id, remote_id)
        self._known.clear()
        self._settle(self.sent.connected(terms.receive_max, terms.session_present))
        released, published = self.sent.again()
        if released:
            link.send(encode_acks(PUBREL, released))
        # Never more than the other side takes, which may be less than before.
        within = published[: max(0, terms.receive_max - len(released))]
        self._write(within, dup=terms.session_present)
        self._later = published[len(within) :]
        self._look_for_room()

    def lost(self) -> None:
        """It is over."""
        self._link = self._encoder = None
        self._open.clear()
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None

    def _look_for_room(self) -> None:
        while self._later and self._link is not None and self._terms is not None:
            under_way = len(self.sent) - len(self._later)
            room = self._terms.receive_max - under_way
            if room <= 0:
                break
            part, self._later = self._later[:room], self._later[room:]
            self._write(part, dup=self._terms.session_present)
        is_open = self._link is not None and not self._refused and not self._later and self.sent.room > 0
        (self._open.set if is_open else self._open.clear)()

    # -- from the cluster

    async def _pump(self, number: int) -> None:
        feed = self._feeds[number]
        while True:
            try:
                messages = await feed.take()
            except DictionaryError as error:
                self._counters.damaged += 1
                self._counters.error(f"a message cannot be read: {error}")
                continue
            except LexicastError as error:  # the cluster is not all there, or the share is refused
                self._counters.error(f"nothing can be read here: {error}")
                await asyncio.sleep(READ_AGAIN_S)
                continue
            fresh = [each for each in messages if self._is_fresh(number, each)]
            for at in range(0, len(fresh), PART):
                await self._send(number, fresh[at : at + PART])

    def _is_fresh(self, number: int, message: Message) -> bool:
        group, _, offset = message.position
        if self._dealt.take((number, group, offset)):
            return True
        if self._dealt.is_done((number, group, offset)):
            self._feeds[number].settle([(group, offset, offset)])
        return False

    async def _send(self, number: int, messages: list[Message]) -> None:
        at = 0
        while at < len(messages):
            await self._open.wait()
            link = self._link
            if link is None or not link.is_writable:
                if link is not None:
                    await link.wait_writable()
                await asyncio.sleep(0)
                continue
            part: list[Sent] = []
            passed: list[Outbound] = []
            room = self.sent.room
            while at < len(messages) and room > 0:
                outbound = self._outbound(number, messages[at])
                at += 1
                if outbound is None:
                    continue
                if outbound.qos:
                    part.append((self.sent.add(outbound), outbound))
                    room -= 1
                else:
                    part.append((0, outbound))
                    passed.append(outbound)
            self._write(part)
            self._settle(passed)
            self._look_for_room()

    def _outbound(self, number: int, message: Message) -> Outbound | None:
        """A message as it goes there; None where it does not, and is done."""
        topic, (group, _, offset) = self._topics[number], message.position
        terms, properties = self._terms, message.properties
        assert terms is not None  # a connection is there
        user = self._first if properties is None else onward(properties.user, self._own_id, self._remote_id)
        qos = min(message.qos, topic.qos, terms.qos_max)
        left_s = self._left_s(message)
        plain = qos < 2 and not message.retain and left_s is None and (properties is None or _only_user(properties))
        name = self._maps[number].encoded(message.topic)
        encoded = b"" if user is None else self._encoded(user, properties, plain, left_s)
        outbound = Outbound(
            name,
            message.payload,
            qos,
            message.retain and terms.keeps_retained,
            encoded,
            plain,
            number,
            group,
            offset,
        )
        if left_s == 0:
            pass  # it has waited for longer than anybody is to get it
        elif user is None:
            self._counters.looped_out += 1
        elif not name:
            self._counters.refused_out += 1
            self._counters.error(f"{message.topic!r} has no name there: `local` taken off, `remote` put before it")
        elif self._too_large(outbound, terms):
            self._counters.refused_out += 1
            self._counters.error(f"{message.topic!r}: {len(message.payload):,} bytes are too many for the other broker")
        else:
            return outbound
        self._settle([outbound], counts=False)
        return None

    def _left_s(self, message: Message) -> int | None:
        """Whole seconds until nobody is to get it, rounded up; 0: that is over; None: it does not expire."""
        if not isinstance(message, ExpiringMessage):
            return None
        left_us = message.expires_us - self._client.internals.clock.time_us()
        return max(0, -(-left_us // 1_000_000))

    def _too_large(self, outbound: Outbound, terms: RemoteTerms) -> bool:
        if not terms.packet_bytes_max:
            return False
        size = publish_size(
            self._version, len(outbound.topic), len(outbound.payload), outbound.qos, outbound.properties
        )
        return size + terms.aware > terms.packet_bytes_max  # a payload to a lexicast has a tag

    def _encoded(self, user: UserProperties, properties: Properties | None, plain: bool, left_s: int | None) -> bytes:
        """The properties of a PUBLISH; nothing in 3.1.1."""
        if self._version != V5:
            return b""
        if left_s is not None or (not plain and properties is not None):
            packed = pack_properties(properties) or {}
            expiry = {} if left_s is None else {MESSAGE_EXPIRY_S: min(left_s, EXPIRY_S_MAX)}
            return write_properties({**packed, **expiry, USER_PROPERTY: list(user)})
        known = self._known.get(user)
        if known is None:
            if len(self._known) >= PROPERTIES_KNOWN_MAX:
                self._known.clear()
            known = self._known[user] = write_properties({USER_PROPERTY: list(user)})
        return known

    def _write(self, part: Sequence[Sent], dup: bool = False) -> None:
        link, encoder = self._link, self._encoder
        if not part or link is None or encoder is None:
            return
        now_s = asyncio.get_running_loop().time()
        if self._echoing and not dup:  # else it is counted already, and one too many would take another's
            for _, message in part:
                if self._comes_back.mapped(message.topic) is not None:
                    self._echoes.published(message.topic, message.payload, now_s)
        link.send(encoder.encode(part, now_s, time.time_ns() // 1_000, dup))
        if encoder.due_s is not None and self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(max(0.0, encoder.due_s - now_s), self._flush)

    def _flush(self) -> None:
        self._flushing = None
        if self._link is not None and self._encoder is not None:
            self._link.send(self._encoder.flush(time.time_ns() // 1_000))

    # -- acknowledgements

    def acknowledged(self, ack: AckRun | PubAck | PubRec | PubComp) -> None:
        """PUBACK, PUBREC or PUBCOMP."""
        if isinstance(ack, AckRun):
            self._plainly(ack.kind, ack.packet_ids)
        elif isinstance(ack, PubComp):
            self._plainly(PUBCOMP, [ack.packet_id])
        elif ack.reason_code < 0x80:
            self._plainly(PUBACK if isinstance(ack, PubAck) else PUBREC, [ack.packet_id])
        else:
            self._refusal(ack.packet_id, ack.reason_code)
        self._look_for_room()

    def _plainly(self, kind: int, packet_ids: list[int]) -> None:
        if kind == PUBACK:
            self._settle(self.sent.acknowledged(packet_ids))
        elif kind == PUBCOMP:
            self._settle(self.sent.completed(packet_ids))
        else:
            self.sent.taken(packet_ids)
            if self._link is not None:
                self._link.send(encode_acks(PUBREL, packet_ids))
        if not self._refused:
            self._retry_s = RETRY_FIRST_S

    def _refusal(self, packet_id: int, reason_code: int) -> None:
        refused = self.sent.acknowledged([packet_id])
        for message in refused:
            topic = message.topic.decode(errors="replace")
            self._counters.error(f"the other broker refuses {topic!r}: 0x{reason_code:02x}")
        if reason_code in LASTING:
            self._counters.refused_out += len(refused)
            self._settle(refused, counts=False)
            return
        self._counters.retried_out += len(refused)
        self._refused += refused
        if self._resting is None:
            self._resting = asyncio.get_running_loop().call_later(self._retry_s, self._retry)
            self._retry_s = min(2 * self._retry_s, RETRY_MOST_S)

    def _retry(self) -> None:
        """What was refused goes out again, in order; it waits for what is under way to be answered."""
        self._resting = None
        if not self._refused:
            return
        if self._link is None or len(self.sent):
            self._resting = asyncio.get_running_loop().call_later(RETRY_FIRST_S, self._retry)
            return
        refused, self._refused = self._refused, []
        refused.sort(key=lambda message: (message.topic_number, message.group, message.offset))
        room = self.sent.room
        self._write([(self.sent.add(message), message) for message in refused[:room]])
        self._refused = refused[room:]
        if self._refused:
            self._resting = asyncio.get_running_loop().call_later(RETRY_FIRST_S, self._retry)
        self._look_for_room()

    def _settle(self, messages: Iterable[Outbound], counts: bool = True) -> None:
        """They are done: the share is told."""
        by_topic: dict[int, list[tuple[int, int]]] = {}
        for message in messages:
            by_topic.setdefault(message.topic_number, []).append((message.group, message.offset))
        for number, places in by_topic.items():
            self._dealt.done([(number, group, offset) for group, offset in places])
            self._feeds[number].settle(ranges(places))
            if counts:
                self._counters.sent += len(places)


def _only_user(properties: Properties) -> bool:
    """Whether it has user properties alone."""
    return not (
        properties.content_type
        or properties.response_topic
        or properties.correlation_data
        or properties.payload_is_text
    )
