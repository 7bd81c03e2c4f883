"""PacketReader: a whole socket read becomes runs of publications and single packets (the hot path of the broker).

Theory of operation. One loop walks over the packets of a read. A PUBLISH opens a *run*: its topic is checked, its
properties are parsed. The packets after it join the run for as long as the bytes between their remaining length and
their payload (topic; for QoS 0 the properties too) equal the run's, which one `startswith` decides. When several
in a row had the same length, blocks of BLOCK packets are cut by one `struct` call, whose fields
also hold every packet's complete header for comparison; nothing is believed unseen. Packets of 16 KiB and more are
runs of their own. Plain acknowledgements are
gathered likewise, into AckRuns. Anything else is decoded by `decode`.

Measured (Python 3.11, 2-core machine, reads of 400 messages of 140 B; us a message, 3.1.1 / 5):
    QoS 0, one topic, one length             0.07 / 0.07
    QoS 0, one topic, lengths vary           0.31 / 0.31
    QoS 0, topics alternate (runs of one)    0.59 / 0.60
    QoS 1, one topic, one length             0.11 / 0.11
    QoS 1, one topic, lengths vary           0.51 / 0.51
    QoS 1, topics alternate                  0.79 / 0.84
    plain PUBACKs                            0.06 / 0.06

Errors do not raise: `feed` returns what came before the error, sets `error`, and from then on returns nothing.
Memory: a partial packet of at most `packet_bytes_max` is kept; topic aliases are bounded by `topic_alias_max`; the
caches of checked topics and of compiled structs belong to the process and are bounded by the constants below.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from lexicast.cluster.errors import TopicError, UsageError
from lexicast.cluster.topics.names import check_topic

from .decode import decode_connect, decode_packet, protocol_error, protocol_level
from .packets import (
    CONNECT,
    PACKET_TOO_LARGE,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    V5,
    AckRun,
    MqttProtocolError,
    Properties,
    PublishRun,
    Received,
)
from .properties import TOPIC_ALIAS, check_publish_properties, read_properties
from .wire import Body, decode_text, malformed

# A fixed header and a packet id fit into anything; below this not even a CONNECT would.
PACKET_BYTES_MIN: Final = 128

# Room for a will's largest payload, and for 64 KiB beside it: who is not known yet is not read further, so that all of
# `mqtt.connections_max` hold 2.3 GB at most, and not 18.
CONNECT_BYTES_MAX: Final = 128 * 1024

# Packets cut by one struct call, and how many of one length have to come first: an attempt that fails costs about
# 1 us, so that it must not be made at every second packet.
BLOCK: Final = 16
STREAK: Final = 8

# Topics checked once and remembered as one shared object (whose hash is then computed once too): at most about 11 MB
# a process. Longer topics are checked every time.
TOPICS_CACHED_MAX: Final = 16_384
TOPIC_CACHED_BYTES_MAX: Final = 256
# Compiled structs, about 2 KB each.
STRUCTS_CACHED_MAX: Final = 1_024

_PLAIN_ACKS: Final = frozenset((PUBACK, PUBREC, PUBREL, PUBCOMP))
# First bytes of publications that are sent for the first time: QoS 0, 1 and 2, retained or not.
_FIRST_PUBLISHES: Final = frozenset(PUBLISH | qos << 1 | retain for qos in (0, 1, 2) for retain in (0, 1))
_ACKS_STRUCT: Final = Struct(">" + "HH" * BLOCK)

# The topic field of a PUBLISH, length included, to the topic.
_topics: dict[bytes, bytes] = {}
_structs: dict[tuple[int, int, int], Struct] = {}


def _checked_topic(field: bytes) -> bytes:
    """The topic in `field` (its length first) if it may be published to, as the one shared object.

    Raises MqttProtocolError.
    """
    known = _topics.get(field)
    if known is not None:
        return known
    topic = field[2:]
    decode_text(topic)  # [MQTT-3.3.2-1]
    try:
        check_topic(topic)
    except TopicError as error:
        raise malformed("MQTT-3.3.2-2", str(error)) from None
    if len(topic) <= TOPIC_CACHED_BYTES_MAX:
        if len(_topics) >= TOPICS_CACHED_MAX:
            _topics.clear()
        _topics[field] = topic
    return topic


def _block_struct(prefix: int, properties: int, payload: int) -> Struct:
    """BLOCK packets of QoS 1 or 2 (prefix, id, properties, payload), or with `properties` -1 of QoS 0."""
    key = (prefix, properties, payload)
    block = _structs.get(key)
    if block is None:
        if len(_structs) >= STRUCTS_CACHED_MAX:
            _structs.clear()
        middle = f"H{properties}s" if properties >= 0 else ""
        block = _structs[key] = Struct(">" + f"{prefix}s{middle}{payload}s" * BLOCK)
    return block


def _check_connect(first: int) -> None:
    """Raise MqttProtocolError unless a connection's first packet is a CONNECT."""
    if first & 0xF0 != CONNECT:
        raise protocol_error("MQTT-3.1.0-1", "the first packet is not CONNECT")
    if first != CONNECT:
        raise malformed("MQTT-2.1.3-1", f"CONNECT with reserved flags 0x{first & 15:x}")


class PacketReader:
    """Incremental parser of one connection's incoming bytes.

    `from_client` says whose packets come: a broker reads a client's (the first must be CONNECT, which sets `version`,
    also when the rest of it is wrong), a client reads a server's and states the `version` itself.
    `packet_bytes_max` bounds a whole packet, header included, and CONNECT_BYTES_MAX the first one of a client.
    `topic_alias_max` is what this side announced.
    Raises UsageError for a `packet_bytes_max` below PACKET_BYTES_MIN or a client without a version.
    """

    __slots__ = (
        "_aliases",
        "_bytes_max",
        "_from_client",
        "_need",
        "_tail",
        "error",
        "packet_bytes_max",
        "topic_alias_max",
        "version",
    )

    def __init__(
        self, packet_bytes_max: int, *, topic_alias_max: int = 0, from_client: bool = True, version: int = 0
    ) -> None:
        if packet_bytes_max < PACKET_BYTES_MIN:
            raise UsageError(f"packet_bytes_max is {packet_bytes_max}: it must be at least {PACKET_BYTES_MIN}")
        if not version and not from_client:
            raise UsageError("reading a server's packets needs the protocol version that CONNECT asked for")
        self.packet_bytes_max = packet_bytes_max
        self.topic_alias_max = topic_alias_max
        self.version = version
        self.error: MqttProtocolError | None = None
        self._from_client = from_client
        self._bytes_max = packet_bytes_max if version else min(packet_bytes_max, CONNECT_BYTES_MAX)
        self._aliases: dict[int, bytes] | None = None
        self._tail: bytearray | None = None
        self._need = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a partial packet held."""
        return 0 if self._tail is None else len(self._tail)

    def feed(self, data: bytes) -> list[Received]:
        """The packets completed by `data`, in the order on the wire. Look at `error` after each call."""
        if self.error is not None:
            return []
        if self._tail is not None:
            self._tail += data
            if len(self._tail) < self._need:
                return []
            data, self._tail = bytes(self._tail), None
        items: list[Received] = []
        try:
            pos = self._parse(data, items)
        except MqttProtocolError as error:
            self.error = error
            return items
        if pos < len(data):
            self._tail = bytearray(data[pos:])
        return items

    def _parse(self, data: bytes, items: list[Received]) -> int:
        """Append what `data` holds to `items`; return where the first incomplete packet begins."""
        pos, size = 0, len(data)
        while size - pos >= 2:
            first = data[pos]
            if first in _FIRST_PUBLISHES and self.version:
                # Topics checked before are known at once: of a device's reads, one message each, nearly all.
                at, pos = pos, (self._qos_runs if first & 6 else self._qos0_runs)(data, pos, first, items)
                if pos != at:
                    continue
            body, end = self._frame(data, pos, size)
            if not end:
                return pos
            if first & 0xF0 == PUBLISH and self.version:
                pos = self._publishes(data, first, body, end, items)
            elif first in _PLAIN_ACKS and end - body == body - pos == 2 and self.version:
                pos = self._acks(data, pos, size, items)
            else:
                items.append(self._other(first, data, body, end))
                pos = end
        self._need = 2
        return pos

    def _publishes(self, data: bytes, first: int, body: int, end: int, items: list[Received]) -> int:
        """Take a PUBLISH and those after it that are alike; return where the next packet begins."""
        at, middle, run = self._open_run(data, first, body, end)
        items.append(run)
        if run.packet_ids is None:
            return self._qos0_runs(data, end, first, items, data[body:at], run)
        return self._qos_runs(data, end, first, items, (data[body:middle], data[middle + 2 : at]), run)

    def _qos0_runs(
        self, data: bytes, pos: int, first: int, items: list[Received], head: bytes = b"", run: PublishRun | None = None
    ) -> int:
        """Continue a run of QoS 0 (`head`: its topic and properties), if any, and open others of checked topics.

        Returns at the first packet that is anything but complete, short enough and plain; `_parse` looks at it.
        """
        size, remaining_max, head_size = len(data), self.packet_bytes_max - 3, len(head)
        v5, retain = self.version == V5, first & 1 == 1
        payloads = [] if run is None else run.payloads
        open_topic: bytes | None = None
        joined = run is not None  # while topics alternate, `head` is neither compared nor cut
        length = streak = 0
        while size - pos > 3 and data[pos] == first:
            body, remaining = pos + 2, data[pos + 1]
            if remaining >= 128:
                high = data[body]
                if not 0 < high < 128:
                    return pos
                body, remaining = pos + 3, (high << 7) + remaining - 128
            end = body + remaining
            if end > size or remaining > remaining_max:
                return pos
            if joined and data.startswith(head, body, end):
                payloads.append(data[body + head_size : end])
                if end - pos != length:
                    length, streak = end - pos, 0
                elif (streak := streak + 1) == STREAK:
                    end = self._qos0_blocks(data, end, data[pos : body + head_size], length, payloads)
                    streak = 0
                pos = end
                continue
            middle = body + 2 + (data[body] << 8 | data[body + 1])
            topic = _topics.get(data[body:middle])
            if topic is None or middle >= end or (v5 and data[middle]):
                return pos
            at = middle + v5
            if joined := topic is open_topic:
                head, head_size = data[body:at], at - body
                payloads.append(data[at:end])
            else:
                payloads = [data[at:end]]
                items.append(PublishRun(topic, 0, retain, False, None, payloads, None))
                open_topic = topic
            pos = end
        return pos

    def _qos_runs(
        self,
        data: bytes,
        pos: int,
        first: int,
        items: list[Received],
        fixed: tuple[bytes, bytes] = (b"", b""),
        run: PublishRun | None = None,
    ) -> int:
        """`_qos0_runs` for QoS 1 and 2. `fixed`: what stands before (topic) and after (properties) the packet id."""
        size, remaining_max = len(data), self.packet_bytes_max - 3
        head, tail = fixed
        head_size, tail_size = len(head), len(tail)
        payloads, ids = ([], []) if run is None else (run.payloads, run.packet_ids or [])
        v5, qos, retain, dup = self.version == V5, first >> 1 & 3, first & 1 == 1, first & 8 == 8
        length = streak = 0
        while size - pos > 3 and data[pos] == first:
            body, remaining = pos + 2, data[pos + 1]
            if remaining >= 128:
                high = data[body]
                if not 0 < high < 128:
                    return pos
                body, remaining = pos + 3, (high << 7) + remaining - 128
            end = body + remaining
            if end > size or remaining > remaining_max:
                return pos
            joins = head_size > 0 and data.startswith(head, body, end)
            at = body + head_size if joins else body + 2 + (data[body] << 8 | data[body + 1])
            if at + 2 > end or not (packet_id := data[at] << 8 | data[at + 1]):
                return pos
            if joins and data.startswith(tail, at + 2, end):
                ids.append(packet_id)
                payloads.append(data[at + 2 + tail_size : end])
                if end - pos != length:
                    length, streak = end - pos, 0
                elif (streak := streak + 1) == STREAK:
                    end = self._qos_blocks(data, end, data[pos:at], length, tail, payloads, ids)
                    streak = 0
                pos = end
                continue
            new_head = data[body:at]
            topic = _topics.get(new_head)
            if topic is None or (v5 and (at + 2 == end or data[at + 2])):
                return pos
            head, head_size = new_head, at - body
            tail, tail_size = (b"\0", 1) if v5 else (b"", 0)
            payloads, ids = [data[at + 2 + v5 : end]], [packet_id]
            items.append(PublishRun(topic, qos, retain, dup, None, payloads, ids))
            pos = end
        return pos

    def _frame(self, data: bytes, pos: int, size: int) -> tuple[int, int]:
        """Where the body of the packet at `pos` begins and ends; (0, 0) when it is incomplete (`_need` is set)."""
        body, remaining = pos + 2, data[pos + 1]
        if remaining >= 128:
            body = self._long_length(data, pos, size)
            if not body:
                return 0, 0
            remaining = sum((data[pos + 1 + i] & 127) << 7 * i for i in range(body - pos - 1))
        end = body + remaining
        if end > size or end - pos > self._bytes_max:
            self._check_size(data, pos, end)
            return 0, 0
        return body, end

    def _long_length(self, data: bytes, pos: int, size: int) -> int:
        """Where the body begins after a remaining length of several bytes; 0 when that is incomplete."""
        end = pos + 2
        while end < size and data[end - 1] >= 128 and end - pos < 5:
            end += 1
        if data[end - 1] >= 128:
            if end - pos >= 5:
                raise malformed("MQTT-1.5.5-1", "the remaining length has more than four bytes")
            self._need = end - pos + 1
            return 0
        if data[end - 1] == 0 and self.version != 4:  # 3.1.1 has no such statement
            raise malformed("MQTT-1.5.5-1", "the remaining length is longer than necessary")
        return end

    def _check_size(self, data: bytes, pos: int, end: int) -> None:
        """Refuse a packet over the limit as soon as its length is known; else remember how much is needed."""
        if not self.version:
            _check_connect(data[pos])
        if end - pos > self._bytes_max:
            raise MqttProtocolError(
                PACKET_TOO_LARGE,
                "MQTT-3.2.2-15",
                f"a packet of {end - pos} bytes is over the limit of {self._bytes_max}",
            )
        self._need = end - pos

    def _open_run(self, data: bytes, first: int, body: int, end: int) -> tuple[int, int, PublishRun]:
        """Decode a PUBLISH completely: where its payload begins, where its topic ends, its run."""
        at = body + 2
        if at > end or (at := at + (data[body] << 8 | data[body + 1])) > end:
            raise malformed("MQTT-3.3.2-1", "a PUBLISH ends within its topic")
        topic: bytes | None = None
        if at > body + 2 or self.version != V5:  # version 5 may leave the topic to an alias
            topic = _checked_topic(data[body:at])
        middle, ids = at, None
        if first & 0x0E:
            ids = self._packet_ids(data, first, at, end)
            if ids is not None:
                at += 2
        properties: Properties | None = None
        if self.version == V5:
            if at < end and data[at] == 0 and topic is not None:
                at += 1
            else:
                at, topic, properties = self._publish_properties(data, at, end, topic)
        if topic is None:
            raise protocol_error("MQTT 5.0 3.3.2.1", "a PUBLISH without topic and topic alias")
        run = PublishRun(topic, first >> 1 & 3, first & 1 == 1, first & 8 == 8, properties, [data[at:end]], ids)
        return at, middle, run

    def _packet_ids(self, data: bytes, first: int, at: int, end: int) -> list[int] | None:
        """Check QoS and DUP; the first packet id of a run of QoS 1 or 2."""
        if first & 6 == 6:
            raise malformed("MQTT-3.3.1-4", "a PUBLISH with QoS 3")
        if not first & 6:
            raise malformed("MQTT-3.3.1-2", "DUP on a PUBLISH with QoS 0")
        if at + 2 > end:
            raise malformed("MQTT-2.2.1-3", "a PUBLISH ends before its packet id")
        packet_id = data[at] << 8 | data[at + 1]
        if not packet_id:
            raise protocol_error("MQTT-2.2.1-3", "a PUBLISH with packet id 0")
        return [packet_id]

    def _publish_properties(
        self, data: bytes, at: int, end: int, topic: bytes | None
    ) -> tuple[int, bytes | None, Properties | None]:
        """MQTT 5 properties of a PUBLISH; resolves its topic alias. Returns the payload's place, topic, properties."""
        rest = Body(data, at, end)
        properties = read_properties(rest, PUBLISH)
        alias: int | None = None
        if properties is not None:
            check_publish_properties(properties, self._from_client, self.topic_alias_max)
            alias = properties.pop(TOPIC_ALIAS, None)
        if alias is None:
            return rest.pos, topic, properties
        if self._aliases is None:
            self._aliases = {}
        if topic is None:
            topic = self._aliases.get(alias)
            if topic is None:
                raise protocol_error("MQTT 5.0 3.3.2.3.4", f"topic alias {alias} is not set")
        else:
            self._aliases[alias] = topic
        return rest.pos, topic, properties or None

    def _qos0_blocks(self, data: bytes, pos: int, prefix: bytes, length: int, payloads: list[bytes]) -> int:
        """Take as many blocks of packets of one `prefix` and `length` as there are; return where they end."""
        last, span, size = (BLOCK - 1) * length, BLOCK * length, len(data)
        if pos + span > size or not data.startswith(prefix, pos + last):
            return pos
        unpack = _block_struct(len(prefix), -1, length - len(prefix)).unpack_from
        while pos + span <= size:
            fields = unpack(data, pos)
            if fields[::2].count(prefix) != BLOCK:
                break
            payloads += fields[1::2]
            pos += span
        return pos

    def _qos_blocks(
        self, data: bytes, pos: int, prefix: bytes, length: int, tail: bytes, payloads: list[bytes], ids: list[int]
    ) -> int:
        """`_qos0_blocks` for QoS 1 and 2; `tail`: the bytes between packet id and payload."""
        last, span, size = (BLOCK - 1) * length, BLOCK * length, len(data)
        if pos + span > size or not data.startswith(prefix, pos + last):
            return pos
        unpack = _block_struct(len(prefix), len(tail), length - len(prefix) - 2 - len(tail)).unpack_from
        while pos + span <= size:
            fields = unpack(data, pos)
            found = fields[1::4]
            if fields[::4].count(prefix) != BLOCK or fields[2::4].count(tail) != BLOCK or 0 in found:
                break
            ids += found
            payloads += fields[3::4]
            pos += span
        return pos

    def _acks(self, data: bytes, pos: int, size: int, items: list[Received]) -> int:
        """Take the plain acknowledgements of one kind from `pos` on; return where they end."""
        header = data[pos : pos + 2]
        word = header[0] << 8 | 2
        ids: list[int] = []
        items.append(AckRun(header[0], ids))
        while pos + 4 <= size and data.startswith(header, pos):
            if pos + 4 * BLOCK <= size:
                fields = _ACKS_STRUCT.unpack_from(data, pos)
                if fields[::2].count(word) == BLOCK and 0 not in fields[1::2]:
                    ids += fields[1::2]
                    pos += 4 * BLOCK
                    continue
            packet_id = data[pos + 2] << 8 | data[pos + 3]
            if not packet_id:
                raise protocol_error("MQTT-2.2.1-5", "an acknowledgement with packet id 0")
            ids.append(packet_id)
            pos += 4
        return pos

    def _other(self, first: int, data: bytes, body: int, end: int) -> Received:
        """Decode any other packet; CONNECT must be the first and only that."""
        if self.version:
            if first == CONNECT and self._from_client:
                raise protocol_error("MQTT-3.1.0-2", "a second CONNECT")
            return decode_packet(first, Body(data, body, end), self.version, self._from_client)
        _check_connect(first)
        rest = Body(data, body, end)
        # Set before anything else can fail: the farewell is in the client's version.
        self.version, bridge = protocol_level(rest)
        self._bytes_max = self.packet_bytes_max
        return decode_connect(rest, self.version, bridge)
