"""Publications as they go over one connection to the other broker: as MQTT has them, or, to a lexicast, compressed and
in batches. No I/O and no clock.

A batch is what is at hand of a topic, with the same user properties, and no property else, of QoS 0 or 1 and not to be
retained; with `batch_s` it waits for more. What cannot be in a batch goes behind what waits of its topic. No batch is
larger than the other side takes a packet.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from lexicast.compression.session import ClientSession, Outgoing
from lexicast.compression.streams.batches import MESSAGES_MAX, Batched
from lexicast.compression.wire import ALIAS_TOPIC

from ..mqtt.codec import encode_publish, encode_qos0_run
from ..mqtt.codec.packets import PUBLISH, V5, PublishRun
from ..mqtt.codec.wire import encode_varint, pack_u16
from .sent_publications import Form, Sent

# Topics of which a batch waits; beyond it all go.
WAITING_TOPICS_MAX: Final = 256
# Beside the messages at most: of a message its length and packet id, of a batch what stands before its topic and its
# content.
MESSAGE_HEAD_BYTES: Final = 7
BATCH_HEAD_BYTES: Final = 16
# Of so many is remembered how their packets begin.
FORMS_MAX: Final = 10_000
# Packet ids of which the bytes are at hand.
IDS_MAX: Final = 65_536
# Lengths of payloads of one form.
HEADS_MAX: Final = 64
# What is remembered of all forms together, about; and of a head beside its topic. (Anybody may have topics of 64 KiB.)
HEADS_BYTES_MAX: Final = 16 * 1024 * 1024
HEAD_MEMORY_BYTES: Final = 150
DUP: Final = 0x08

# What is on its way in: the run that it came in, its packet id, and the number of the connection.
Arrived: TypeAlias = tuple[PublishRun, int, int]
Session: TypeAlias = ClientSession[Arrived]


class _Packets:
    """What packets of a form have alike: what stands before the packet id, by the length of the payload, and between
    that and the payload."""

    __slots__ = ("heads", "tail")

    def __init__(self, tail: bytes) -> None:
        self.heads: dict[int, bytes] = {}
        self.tail = tail


class LinkEncoder:
    """Of one connection. `session`: of one to a lexicast that speaks dictionaries, else None; `packet_bytes_max`: what
    the other side takes, 0: any."""

    def __init__(
        self,
        version: int,
        session: Session | None,
        batches: bool,
        batch_bytes: int,
        batch_s: float,
        packet_bytes_max: int = 0,
    ) -> None:
        self._version = version
        self._session = session
        self._batches = batches and batch_bytes > 0
        self._batch_bytes = batch_bytes
        self._batch_s = batch_s
        self._packet_bytes_max = packet_bytes_max
        self._waiting: OrderedDict[tuple[bytes, bytes], list[Sent]] = OrderedDict()
        self._waiting_bytes: dict[tuple[bytes, bytes], int] = {}
        self._packets: dict[Form, _Packets] = {}
        self._heads_bytes = 0
        self._ids: list[bytes] = []
        # When what waits has to go; None: nothing waits.
        self.due_s: float | None = None

    def encode(self, messages: Sequence[Sent], now_s: float, now_us: int, dup: bool = False) -> bytes:
        """Packets, joined; what waits for others is in a later answer."""
        if self._session is None:
            return self._plainly(messages, dup)
        parts: list[bytes] = []
        for message in messages:
            if self._batches and message[1].form.is_plain and not dup:
                self._gather(message, parts, now_s, now_us)
                continue
            parts += self._flush_topic(message[1].form.topic, now_us)
            parts.append(self._alone(self._session, message, now_us, dup))
        if not self._batch_s or len(self._waiting) > WAITING_TOPICS_MAX:
            parts.append(self.flush(now_us))
        return b"".join(parts)

    def flush(self, now_us: int) -> bytes:
        """What waits."""
        parts = [self._batch(key, now_us) for key in list(self._waiting)]
        self.due_s = None
        return b"".join(parts)

    # -- as MQTT has them

    def _plainly(self, messages: Iterable[Sent], dup: bool) -> bytes:
        """A packet each. (Their topics alternate: runs would be of one.)"""
        parts: list[bytes] = []
        known, ids = self._packets, self._ids
        for packet_id, (form, payload, _) in messages:
            packets = known.get(form)
            if packets is None:
                packets = self._packets_of(form)
            size = len(payload)
            head = packets.heads.get(size)
            if head is None:
                head = self._head(form, packets, size)
            if not form.qos:
                parts += (head, packets.tail, payload)
                continue
            if packet_id >= len(ids):
                self._add_ids(packet_id)
            if dup:
                head = bytes((head[0] | DUP,)) + head[1:]
            parts += (head, ids[packet_id], packets.tail, payload)
        return b"".join(parts)

    def _packets_of(self, form: Form) -> _Packets:
        packets = _Packets((form.properties or b"\0") if self._version == V5 else b"")
        if form.is_usual:
            if len(self._packets) >= FORMS_MAX:
                self._packets.clear()
            self._packets[form] = packets
        return packets

    def _head(self, form: Form, packets: _Packets, payload_bytes: int) -> bytes:
        """Fixed header and topic name."""
        size = 2 + len(form.topic) + (2 if form.qos else 0) + len(packets.tail) + payload_bytes
        if len(packets.heads) >= HEADS_MAX:
            packets.heads.clear()
        if form.is_usual:
            self._heads_bytes += HEAD_MEMORY_BYTES + len(form.topic)
            if self._heads_bytes > HEADS_BYTES_MAX:
                self._packets.clear()
                self._heads_bytes = 0
        first = PUBLISH | form.qos << 1 | form.retain
        head = packets.heads[payload_bytes] = (
            bytes((first,)) + encode_varint(size) + pack_u16(len(form.topic)) + form.topic
        )
        return head

    def _add_ids(self, upto: int) -> None:
        """Each a power of two at a time: few are under way at most brokers."""
        ids = self._ids
        ids += [pack_u16(number) for number in range(len(ids), min(IDS_MAX, 2 << upto.bit_length()))]

    # -- to a lexicast

    def _gather(self, message: Sent, parts: list[bytes], now_s: float, now_us: int) -> None:
        topic, properties = message[1].form.topic, message[1].form.properties
        key, size = (topic, properties), MESSAGE_HEAD_BYTES + len(message[1].payload)
        waiting = self._waiting.get(key)
        if waiting is not None and self._waiting_bytes[key] + size > self._content_bytes_max(key):
            parts.append(self._batch(key, now_us))
            waiting = None
        if waiting is None:
            parts += self._flush_topic(topic, now_us)  # what has other properties is before it
            waiting = self._waiting[key] = []
            self._waiting_bytes[key] = 0
            if self.due_s is None:
                self.due_s = now_s + self._batch_s
        waiting.append(message)
        self._waiting_bytes[key] += size
        if self._waiting_bytes[key] >= self._batch_bytes or len(waiting) >= MESSAGES_MAX:
            parts.append(self._batch(key, now_us))

    def _content_bytes_max(self, key: tuple[bytes, bytes]) -> int:
        most = self._batch_bytes
        if self._packet_bytes_max:
            most = min(most, self._packet_bytes_max - BATCH_HEAD_BYTES - len(key[0]) - len(key[1]))
        return most

    def _flush_topic(self, topic: bytes, now_us: int) -> list[bytes]:
        if not self._waiting:
            return []
        return [self._batch(key, now_us) for key in [key for key in self._waiting if key[0] == topic]]

    def _batch(self, key: tuple[bytes, bytes], now_us: int) -> bytes:
        messages = self._waiting.pop(key)
        del self._waiting_bytes[key]
        session, (topic, properties) = self._session, key
        assert session is not None  # nothing is gathered without one
        if len(messages) == 1 or not session.batches(topic):
            return b"".join([self._alone(session, message, now_us, False) for message in messages])
        batched = [Batched(message.payload, packet_id) for packet_id, message in messages]
        outgoing = session.outgoing_batch(topic, batched, now_us)
        return _bound(outgoing) + encode_qos0_run(self._version, topic, [outgoing.payload], False, properties)

    def _alone(self, session: Session, sent: Sent, now_us: int, dup: bool) -> bytes:
        packet_id, message = sent
        outgoing = session.outgoing(message.form.topic, message.payload, now_us)
        return _bound(outgoing) + self._plainly([(packet_id, message._replace(payload=outgoing.payload))], dup)


def _bound(outgoing: Outgoing) -> bytes:
    return bindings_packets(outgoing.bindings)


def bindings_packets(bindings: Iterable[bytes]) -> bytes:
    """What binds a connection's aliases to dictionaries."""
    return b"".join([encode_publish(V5, ALIAS_TOPIC, binding) for binding in bindings])
