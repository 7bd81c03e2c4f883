"""The publications of one MQTT client: into the engine, and their acknowledgements out in the order of the wire.

An object of its own, made at a connection's first PUBLISH, so that connections that only subscribe do not pay for it.
The order of the wire [MQTT-4.6.0-2] is kept whatever group the publications belong to.

MQTT 3.1.1 has no negative acknowledgement: only a closed connection says "not stored". From the turn on in which a
publication is refused, nothing that this client sends is published: it sends the refused one again, and newer ones of
that topic would be stored before it. The connection is closed when what was published before is answered, so that it is
not sent again, or after a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from lexicast.cluster.blocks import FIRST_DICTIONARY, QOS_MASK, RAW, RETAIN
from lexicast.cluster.errors import DictionaryError, LexicastError
from lexicast.cluster.properties import carried
from lexicast.cluster.topics.names import DICTIONARY_PREFIX, SYS_PREFIX, matches
from lexicast.compression.link_dictionaries import NONE
from lexicast.compression.link_history import HistoryReader
from lexicast.compression.opening import NoRoomError, Room
from lexicast.compression.streams.batches import BATCH_TAG, take_apart
from lexicast.compression.wire import ALIAS_TOPIC, HISTORY_TAG, LOST_TOPIC, Bindings

from ..broker.pipelines.entries import Done
from .client_line import ClientLine
from .codec import encode_acks, encode_packet
from .codec.packets import (
    NO_MATCHING_SUBSCRIBERS,
    NOT_AUTHORIZED,
    PAYLOAD_FORMAT_INVALID,
    PUBACK,
    PUBREC,
    QUOTA_EXCEEDED,
    SUCCESS,
    UNSPECIFIED_ERROR,
    V5,
    AckRun,
    MqttProtocolError,
    PubAck,
    PublishRun,
    PubRec,
)
from .codec.properties import expiry_ms
from .releases import Releases
from .services import MqttServices
from .subscriber import MqttSubscriber

log = logging.getLogger(__name__)

_RAW: Final = bytes((RAW,))
_BATCH: Final = bytes((BATCH_TAG,))
TOPICS_PUBLISHED_MAX: Final = 1_000
# Unknown dictionaries that are fetched for one binding message; more are no honest client's.
FETCHED_MAX: Final = 8
# So long an MQTT 3.1.1 client that is refused is kept for what it published before.
REFUSED_S: Final = 1.0


# What a PUBLISH packet's properties say: when it expires (ms, 0: never), and what travels with it.
Like = tuple[int, dict[int, Any] | None]
NOTHING: Like = (0, None)


class Slot:
    """Publications that wait for their acknowledgement, in the order of the wire. It is called with their result: one
    object for each that waits, and not a closure beside it."""

    __slots__ = ("_publishing", "ids", "qos", "ready", "reason_code", "topic")

    def __init__(self, publishing: Publishing, qos: int, ids: list[int], topic: bytes) -> None:
        self._publishing = publishing
        self.qos = qos
        self.topic = topic
        self.ids = ids
        self.ready = False
        self.reason_code = SUCCESS

    def __call__(self, result: Any) -> None:
        self._publishing.committed(self, result)


class Publishing:
    """See the module's docstring. Of a connection that is open."""

    __slots__ = (
        "_acks_scheduled",
        "_aliases",
        "_coordinators",
        "_engine",
        "_history",
        "_line",
        "_refused",
        "_releases",
        "_rights",
        "_room",
        "_services",
        "_session",
        "_slots",
        "_subscriber",
        "_topics",
        "_write",
        "records",
    )

    def __init__(
        self,
        services: MqttServices,
        line: ClientLine,
        subscriber: MqttSubscriber,
        releases: Releases,
    ) -> None:
        """`releases`: the connection's."""
        self._services = services
        self._engine = services.engine
        self._coordinators = services.engine.coordinators
        self._line = line
        self._write = subscriber.send
        self._session = subscriber.session
        self._subscriber = subscriber
        self._rights = subscriber.rights
        self._releases = releases
        self._slots: deque[Slot] = deque()
        self._acks_scheduled = False
        # A publication of an MQTT 3.1.1 client is refused: its connection is about to end.
        self._refused = False
        self._aliases = Bindings() if subscriber.kind.aware else None
        # What came as frames of this link's own past; made with the first of them.
        self._history: HistoryReader | None = None
        self._room: Room | None = None
        self._topics: set[bytes] = set()
        self.records = 0

    # -- publications

    def publish(self, run: PublishRun, batched_bytes: int = 0, is_batch: bool = True) -> None:
        """Publications of one topic. Raises MqttProtocolError, UnavailableError. `batched_bytes`: what each took of a
        batch that they came in; `is_batch`: they may be batches."""
        if self._refused:
            return
        topic = run.topic
        payloads, ids = run.payloads, run.packet_ids
        sizes = 0
        if self._aliases is not None and not topic.startswith(DICTIONARY_PREFIX):
            if is_batch and self._reads_batches and ids is None and any([each[:1] == _BATCH for each in payloads]):
                self._publish_batches(run)
                return
            # Before repeats are left out: they are part of the link's past.
            sizes = batched_bytes * len(payloads) or sum(map(len, payloads))
            if self._reads_history:
                payloads = self._unfolded(payloads)
        if ids is not None:
            arrived = self._session.on_publishes(run.qos, ids, self._coordinators.group_of(topic))
            if arrived.replies:  # in the order of the wire too [MQTT-4.6.0-3]
                self._answer(2, [i for again in arrived.replies if isinstance(again, AckRun) for i in again.packet_ids])
            if arrived.fresh is not None:
                payloads = [payloads[i] for i in arrived.fresh]
                ids = [ids[i] for i in arrived.fresh]
                if not ids:
                    return
        self.records += len(payloads)
        if topic.startswith(b"$"):
            self._publish_dollar(run, ids)
            return
        if self._rights is not None and not self._rights.may_write(topic):
            self._rights.refuse("publish", topic, len(payloads))
            self._not_published(run.qos, ids, NOT_AUTHORIZED, topic)
            return
        flags = run.qos | (RETAIN if run.retain else 0)
        like: Like = NOTHING
        if run.properties:
            like = expiry_ms(run.properties), carried(run.properties)
        if self._aliases is None:
            self._publish_run(topic, flags, payloads, ids, RAW, None, like)
        else:
            self._publish_tagged(topic, flags, payloads, ids, like, sizes // len(run.payloads))

    def _publish_batches(self, run: PublishRun) -> None:
        """Publications of which some came as batches: as if each had come by itself. Raises MqttProtocolError."""
        recoder, aliases = self._engine.recoder, self._aliases
        assert aliases is not None
        unfold: Callable[[list[bytes]], list[bytes]] = self._unfolded if self._reads_history else list
        for payload in run.payloads:
            if payload[:1] != _BATCH:
                self.publish(replace(run, payloads=[payload]), 0, is_batch=False)
                continue
            try:
                room = self._room_of_read()
                messages = take_apart(payload, recoder, aliases, lambda tagged: unfold([tagged])[0], room)
            except NoRoomError as error:
                raise MqttProtocolError(QUOTA_EXCEEDED, "$sdc", str(error)) from None
            except DictionaryError as error:
                raise MqttProtocolError(PAYLOAD_FORMAT_INVALID, "$sdc", str(error)) from None
            mean_bytes = -(-len(payload) // len(messages))
            for at_most_once, some in groupby(messages, lambda message: not message.packet_id):
                part = list(some)
                payloads = [_RAW + message.payload for message in part]
                ids = None if at_most_once else [message.packet_id for message in part]
                single = PublishRun(run.topic, 0 if at_most_once else 1, False, False, run.properties, payloads, ids)
                self.publish(single, mean_bytes, is_batch=False)

    @property
    def _reads_batches(self) -> bool:
        own = self._subscriber.dictionaries
        return own is not None and own.reads_batches

    @property
    def _reads_history(self) -> bool:
        own = self._subscriber.dictionaries
        return own is not None and own.reads_history

    def _publish_run(
        self,
        topic: bytes,
        flags: int,
        payloads: list[bytes],
        ids: list[int] | None,
        encoding: int,
        dictionary: int | None,
        like: Like,
    ) -> None:
        session = self._session
        done = mark = None
        if ids is not None:
            done = self._expecting(flags & QOS_MASK, ids, topic)
            if flags & QOS_MASK == 2:
                mark = (session.uid, session.generation, ids)
        origin = session.client_id
        if flags & RETAIN and self._rights is not None:
            origin = self._rights.author()
        expiry, properties = like
        pipeline = self._coordinators.publish(
            topic, flags, payloads, origin, done, mark, encoding, dictionary, expiry, properties
        )
        if pipeline.full:
            self._services.wait_for_room(self._line)

    def _expecting(self, qos: int, ids: list[int], topic: bytes) -> Done:
        """What is to be called with the result of these."""
        slot = Slot(self, qos, ids, topic)
        self._slots.append(slot)
        return slot

    def committed(self, slot: Slot, result: Any) -> None:
        """These have their place, or (a text) were refused."""
        if isinstance(result, str):
            self._refuse(slot, QUOTA_EXCEEDED)
            if self._session.version != V5 and not self._refused:
                self._refused = True
                asyncio.get_running_loop().call_later(REFUSED_S, self._line.disconnect, QUOTA_EXCEEDED)
            log.warning("client %r: publications refused: %s", self._session.client_id, result)
        else:
            slot.ready = True
        if not self._acks_scheduled:
            self._slots_ready()

    def _publish_tagged(
        self, topic: bytes, flags: int, payloads: list[bytes], ids: list[int] | None, like: Like, mean_bytes: int
    ) -> None:
        """Publications of a dictionary-aware session: passed through untouched, run by run of one encoding. On the link
        they had about `mean_bytes` each."""
        recoder, aliases = self._engine.recoder, self._aliases
        assert aliases is not None
        start = 0
        try:
            encoded = [recoder.from_aware(payload, aliases) for payload in payloads]
        except DictionaryError as error:
            raise MqttProtocolError(PAYLOAD_FORMAT_INVALID, "$sdc", str(error)) from None
        for end in range(1, len(encoded) + 1):
            if end < len(encoded) and encoded[end][:2] == encoded[start][:2]:
                continue
            encoding, dictionary = encoded[start][:2]
            data = [e.data for e in encoded[start:end]]
            own = None if ids is None else ids[start:end]
            self._publish_run(topic, flags, data, own, min(encoding, FIRST_DICTIONARY), dictionary, like)
            self._account(topic, encoding, dictionary, data, mean_bytes)
            start = end
        if len(self._topics) < TOPICS_PUBLISHED_MAX:
            self._topics.add(topic)

    def _unfolded(self, payloads: list[bytes]) -> list[bytes]:
        """Tagged payloads; those that came as frames of the link's own past are raw. Raises MqttProtocolError."""
        if all([not payload or payload[0] != HISTORY_TAG for payload in payloads]):
            return payloads
        history = self._history
        if history is None:
            history = self._history = HistoryReader()
        limit, room = self._engine.recoder.payload_bytes_max, self._room_of_read()
        unfolded: list[bytes] = []
        try:
            for payload in payloads:
                if payload and payload[0] == HISTORY_TAG:
                    payload = bytes((RAW,)) + history.payload(payload[1:], bytes_max=room.limit(limit))
                    room.take(len(payload))
                unfolded.append(payload)
        except DictionaryError as error:
            code = QUOTA_EXCEEDED if room.left_bytes < limit else PAYLOAD_FORMAT_INVALID
            raise MqttProtocolError(code, "$sdc", str(error)) from None
        return unfolded

    def _room_of_read(self) -> Room:
        """For what one read off the socket becomes."""
        if self._room is None:
            self._room = self._engine.recoder.room()
            asyncio.get_running_loop().call_soon(self._read_over)
        return self._room

    def _read_over(self) -> None:
        self._room = None

    def _account(
        self, topic: bytes, encoding: int, dictionary: int | None, payloads: list[bytes], mean_bytes: int
    ) -> None:
        """What this link carries earns it dictionaries (wire rule 6)."""
        own, engine = self._subscriber.dictionaries, self._engine
        if own is None or engine.dictionaries.opted_out(topic):
            return
        used = NONE if dictionary is None else dictionary
        with suppress(DictionaryError):  # one that cannot be decompressed is its subscribers' affair
            own.published(
                topic,
                used,
                payloads,
                mean_bytes * len(payloads),
                len(payloads),
                lambda payload: engine.recoder.to_raw(min(encoding, FIRST_DICTIONARY), dictionary, payload),
            )

    def publishes_to(self, family: bytes) -> bool:
        """Whether it gets dictionaries of the family, once they pay."""
        return any(matches(family, topic) for topic in self._topics)

    def _publish_dollar(self, run: PublishRun, ids: list[int] | None) -> None:
        """`$sdc/alias` binds aliases, `$sdc/streams` names topics whose stream cannot be read; nothing else below `$`
        is for clients to publish.

        What is on `$SYS/` is dropped as if nobody had subscribed to it: bridges announce themselves there.
        """
        if self._aliases is not None and run.topic == ALIAS_TOPIC and run.qos == 0:
            try:
                bound = [dictionary for payload in run.payloads for dictionary in self._aliases.bind(payload)]
            except DictionaryError as error:
                raise MqttProtocolError(PAYLOAD_FORMAT_INVALID, "$sdc", str(error)) from None
            missing = [dictionary for dictionary in bound if dictionary not in self._engine.recoder]
            if self._subscriber.dictionaries is not None:
                for dictionary in bound:
                    self._subscriber.dictionaries.named(dictionary)
            if missing:
                self._line.work(self._fetch(missing[:FETCHED_MAX]), first=True)
            return
        if self._aliases is not None and run.topic == LOST_TOPIC and run.qos == 0:
            if self._engine.streamer is not None:
                for payload in run.payloads:
                    self._engine.streamer.lost(self._subscriber, payload)
            return
        self._services.dropped_dollar += len(run.payloads)
        log.info("client %r may not publish to %r", self._session.client_id, run.topic[:100])
        sys = run.topic.startswith(SYS_PREFIX)
        self._not_published(run.qos, ids, NO_MATCHING_SUBSCRIBERS if sys else NOT_AUTHORIZED)

    def _not_published(self, qos: int, ids: list[int] | None, reason_code: int, topic: bytes = b"") -> None:
        """Say that publications were dropped, as far as it can be said. `topic`: where they may be those of an earlier
        connection that were not."""
        if ids is None:
            return  # QoS 0: there is no way to say it, and the standard asks for none (4.7.2)
        if self._session.version == V5:
            self._answer(qos, ids, reason_code, topic)
        else:
            # 3.1.1 has no negative answer: "a positive acknowledgement, according to the normal QoS rules, or close"
            # [MQTT-3.3.5-2]; a client that only tries is not worth a closed connection.
            self._answer(qos, ids)

    def _answer(self, qos: int, ids: list[int], reason_code: int = SUCCESS, topic: bytes = b"") -> None:
        """Acknowledge in its turn what nobody has to commit."""
        slot = Slot(self, qos, ids, topic)
        self._slots.append(slot)
        if reason_code < UNSPECIFIED_ERROR:
            slot.ready, slot.reason_code = True, reason_code
        else:
            self._refuse(slot, reason_code)
        if not self._acks_scheduled:
            self._slots_ready()

    def _refuse(self, slot: Slot, reason_code: int) -> None:
        """Once the client is told, ids of QoS 2 mean other publications [MQTT-4.3.3-9]: whatever the topic's group has
        of an earlier connection under them is forgotten first, or those others would be taken for it. (No group has
        anything of a topic where no client may publish: the slot's is empty.)"""
        slot.reason_code = reason_code

        def forgotten() -> None:
            slot.ready = True
            if not self._acks_scheduled:
                self._slots_ready()

        if slot.qos == 2 and slot.topic and self._session.version == V5:
            slot.ready = not self._releases.refuse(slot.ids, self._coordinators.group_of(slot.topic), forgotten)
        else:
            slot.ready = True

    async def _fetch(self, dictionaries: list[int]) -> None:
        """The client uses dictionaries that this broker does not hold (it was restarted, or they are older than any
        that it was told of)."""
        for dictionary in dictionaries:
            # Where nobody has it, or it cannot be read, the first payload that needs it is refused.
            with suppress(LexicastError, TimeoutError):
                await self._engine.dictionary_fetching.fetch(dictionary)

    # -- acknowledgements

    @property
    def is_answered(self) -> bool:
        """Whether nothing waits for its acknowledgement."""
        return not self._slots

    def _slots_ready(self) -> None:
        """What is acknowledged is sent at the end of the turn, that of all connections together."""
        self._acks_scheduled = True
        self._services.acknowledge_soon(self._send_acks)

    def _send_acks(self) -> None:
        """Everything that is acknowledged by now and next in order, as one write."""
        self._acks_scheduled = False
        slots = self._slots
        if not self._line.is_open:
            slots.clear()  # nobody is to be told, and they lead back here
            return
        parts: list[bytes] = []
        stored: list[int] = []  # of QoS 1, behind `parts`: packet ids that are acknowledged together
        while slots:
            slot = slots[0]
            if not slot.ready:
                break
            slots.popleft()
            code = slot.reason_code
            if code == SUCCESS and slot.qos == 1:
                stored += slot.ids
                continue
            if stored:
                parts.append(self._pubacks(stored))
                stored = []
            if code < UNSPECIFIED_ERROR:
                self._session.committed(slot.qos, slot.ids)
            else:
                self._session.refused(slot.qos, slot.ids)
                if self._session.version != V5:
                    self._write(b"".join(parts))
                    self._line.disconnect(code)
                    slots.clear()
                    return
            if code == SUCCESS:
                parts.append(encode_acks(PUBREC, slot.ids))
            else:
                answer = PubAck if slot.qos == 1 else PubRec
                parts += [encode_packet(answer(packet_id, code), V5) for packet_id in slot.ids]
        if stored:
            parts.append(self._pubacks(stored))
        if parts:
            self._write(parts[0] if len(parts) == 1 else b"".join(parts))

    def _pubacks(self, ids: list[int]) -> bytes:
        """PUBACKs of what is stored."""
        self._session.committed(1, ids)
        return encode_acks(PUBACK, ids)
