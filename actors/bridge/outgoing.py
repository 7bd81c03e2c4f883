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
from lexicast.cluster.bridges.topic_map import TopicMap
from lexicast.cluster.errors import DictionaryError, LexicastError
from lexicast.cluster.points_in_time import parse_since

from ..client.client import Client
from ..client.subscription import Subscription
from ..mqtt.codec import encode_acks
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
    AckRun,
    PubAck,
    PubComp,
    PubRec,
)
from .counters import BridgeCounters
from .dealt_positions import DealtPositions, Place
from .dealt_records import DealtRecords
from .handshake import RemoteTerms
from .link_encoder import LinkEncoder
from .outbound_forms import OutboundForms
from .remote_link import RemoteLink
from .sent_publications import Outbound, Sent, SentPublications
from .share_feed import BridgeFeed

RETRY_FIRST_S: Final = 0.5
RETRY_MOST_S: Final = 30.0
READ_AGAIN_S: Final = 0.5
# Of one write; acknowledgements come in between.
PART: Final = 1_024
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
        self._forms = OutboundForms(self._topics, own_id, client.internals.clock, counters)
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
        self._echoing = False
        self._open = asyncio.Event()
        # Of a new connection: what is sent again once the other side has room for it.
        self._later: list[Sent] = []
        self._refused: list[Outbound] = []
        self._retry_s = RETRY_FIRST_S
        self._resting: asyncio.TimerHandle | None = None
        self._flushing: asyncio.TimerHandle | None = None

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
        self._link, self._terms, self._encoder, self._echoing = link, terms, encoder, echoing
        self._forms.connected(terms, version, remote_id)
        self._settle_all(self.sent.connected(terms.receive_max, terms.session_present))
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
            records = DealtRecords(number)
            try:
                await feed.take_records(records, PART)
            except LexicastError as error:
                self._tell_unread(error)
                if not isinstance(error, DictionaryError):  # the cluster is not all there, or the share is refused
                    await asyncio.sleep(READ_AGAIN_S)
                continue
            await self._send(self._fresh(records))

    def _tell_unread(self, error: LexicastError) -> None:
        if isinstance(error, DictionaryError):
            self._counters.damaged += 1
            self._counters.error(f"a message cannot be read: {error}")
        else:
            self._counters.error(f"nothing can be read here: {error}")

    def _fresh(self, records: DealtRecords) -> DealtRecords:
        """What is to be sent. What was done lately is told so again, the rest is under way."""
        places = records.places
        fresh = self._dealt.take(places)
        if all(fresh):
            return records
        again = [place for place, is_fresh in zip(places, fresh, strict=True) if not is_fresh]
        self._feeds[records.number].settle_places([place for place in again if self._dealt.is_done(place)])
        return records.those(fresh)

    async def _send(self, records: DealtRecords) -> None:
        at = 0
        while at < len(records):
            await self._open.wait()
            if not self._open.is_set():  # others were there first, or something was refused
                continue
            link = self._link
            if link is None or not link.is_writable:
                if link is not None:
                    await link.wait_writable()
                await asyncio.sleep(0)
                continue
            end = min(at + PART, at + self.sent.room, len(records))
            outbound, passed = self._forms.outbound(records, at, end)
            at = end
            sent = self.sent.add(outbound)
            self._write(sent)
            self._settle(passed, counts=False)
            self._settle([message.place for packet_id, message in sent if packet_id == 0])
            self._look_for_room()

    def _write(self, part: Sequence[Sent], dup: bool = False) -> None:
        link, encoder = self._link, self._encoder
        if not part or link is None or encoder is None:
            return
        now_s = asyncio.get_running_loop().time()
        if self._echoing and not dup:  # else it is counted already, and one too many would take another's
            for _, message in part:
                topic = message.form.topic
                if self._comes_back.mapped(topic) is not None:
                    self._echoes.published(topic, message.payload, now_s)
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
            self._settle_all(self.sent.acknowledged(packet_ids))
        elif kind == PUBCOMP:
            self._settle_all(self.sent.completed(packet_ids))
        else:
            self.sent.taken(packet_ids)
            if self._link is not None:
                self._link.send(encode_acks(PUBREL, packet_ids))
        if not self._refused:
            self._retry_s = RETRY_FIRST_S

    def _refusal(self, packet_id: int, reason_code: int) -> None:
        refused = self.sent.acknowledged([packet_id])
        for message in refused:
            topic = message.form.topic.decode(errors="replace")
            self._counters.error(f"the other broker refuses {topic!r}: 0x{reason_code:02x}")
        if reason_code in LASTING:
            self._counters.refused_out += len(refused)
            self._settle([message.place for message in refused], counts=False)
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
        refused.sort(key=lambda message: message.place)
        room = self.sent.room
        self._write(self.sent.add(refused[:room]))
        self._refused = refused[room:]
        if self._refused:
            self._resting = asyncio.get_running_loop().call_later(RETRY_FIRST_S, self._retry)
        self._look_for_room()

    def _settle_all(self, messages: Iterable[Outbound]) -> None:
        self._settle([message.place for message in messages])

    def _settle(self, places: list[Place], counts: bool = True) -> None:
        """They are done: the share is told."""
        if not places:
            return
        self._dealt.done(places)
        for number, feed in enumerate(self._feeds):
            mine = places if len(self._feeds) == 1 else [place for place in places if place[0] == number]
            if mine:
                feed.settle_places(mine)
        if counts:
            self._counters.sent += len(places)
