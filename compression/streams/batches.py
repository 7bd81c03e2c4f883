"""Batches: several publications of a topic that cross a publisher's link as one compressed unit (thesis, 4.3.4). Pure.

What machines send repeats from message to message; compressed together they take much less than one by one, and packet
headers and topic are sent once. The price is that a message waits for those after it: at most `batch_s`. It is an
encoding of one link: the broker takes it apart when it comes, and everybody gets single messages.

    batch      BATCH_TAG, 0, a tagged payload as `wire` has them, which is the content
               BATCH_TAG, 1, alias of a field model, the content: its messages are frames of a stream that begins here
    content    for each message: varint length * 2 + q, its packet id (2 bytes) if q, its bytes

q says that it is of QoS 1, under a packet id of its own: it is acknowledged, and sent again, like any other. The unit
itself is a PUBLISH of QoS 0.

Python clients gather the same way; there a batch is an entry, of one topic group, whose columns, lengths and payloads,
are compressed as one (`pack_entry_columns`).
"""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from lexicast.cluster.errors import DictionaryError

from ..fields.codec import FieldsCodec
from .frames import fields_codec

if TYPE_CHECKING:
    from ..opening import Room
    from ..wire import Bindings, Recoder

BATCH_TAG: Final = 254
LAST_BATCHING_ALIAS: Final = BATCH_TAG - 1
"""Of a client that sends batches."""

MESSAGES_MAX: Final = 1_000
"""Of a batch; a larger one is refused, and a client sends it before."""

TOPICS_MAX: Final = 64
"""With messages that wait; beyond it the oldest batch goes."""

AS_ONE: Final = 0
AS_STREAM: Final = 1
_ONE_HEAD_BYTES: Final = 2
_STREAM_HEAD_BYTES: Final = 3
_ID_BYTES: Final = 2
_LENGTH_SHIFT_MAX: Final = 28
_COLUMNS_HEAD: Final = struct.Struct(">I?")

Entry = TypeVar("Entry")


class Batched(NamedTuple):
    """A message of a batch. `packet_id` 0: of QoS 0."""

    payload: bytes
    packet_id: int


def join_batch(messages: Sequence[Batched]) -> bytes:
    """The content. Raises ValueError when there is no message or are too many."""
    if not 1 <= len(messages) <= MESSAGES_MAX:
        raise ValueError(f"a batch has 1 to {MESSAGES_MAX} messages, not {len(messages)}")
    out = bytearray()
    for payload, packet_id in messages:
        length = 2 * len(payload) + (packet_id > 0)
        while length > 0x7F:
            out.append(length & 0x7F | 0x80)
            length >>= 7
        out.append(length)
        if packet_id:
            out += packet_id.to_bytes(_ID_BYTES, "big")
        out += payload
    return bytes(out)


def split_batch(content: bytes) -> list[Batched]:
    """The inverse of `join_batch`. Raises DictionaryError when `content` is not one."""
    messages = list(_messages(content))
    if not messages:
        raise DictionaryError("not a batch: it is empty")
    return messages


def _messages(content: bytes) -> Iterator[Batched]:
    at = count = 0
    while at < len(content):
        head, at = _length(content, at)
        length, packet_id = head >> 1, 0
        if head & 1:
            packet_id = int.from_bytes(content[at : at + _ID_BYTES], "big")
            at += _ID_BYTES
            if not packet_id:
                raise DictionaryError(f"not a batch: message {count} has packet id 0")
        count += 1
        if len(content) - at < length or count > MESSAGES_MAX:
            raise DictionaryError(f"not a batch: message {count} is cut short, or there are too many")
        yield Batched(content[at : at + length], packet_id)
        at += length


def _length(content: bytes, at: int) -> tuple[int, int]:
    length = shift = 0
    while at < len(content) and shift <= _LENGTH_SHIFT_MAX:
        length |= (content[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not content[at - 1] & 0x80:
            return length, at
    raise DictionaryError("not a batch: a length is not one")


def as_stream(messages: Sequence[Batched], codec: FieldsCodec) -> list[Batched]:
    """The messages as frames of a field model's stream."""
    stream = codec.stream()
    return [Batched(stream.compress(payload, number), id) for number, (payload, id) in enumerate(messages)]


def from_stream(frames: Sequence[Batched], codec: FieldsCodec, bytes_max: int) -> list[Batched]:
    """The inverse of `as_stream`; all payloads together are no longer than `bytes_max`. Raises DictionaryError."""
    stream, left, messages = codec.stream(), bytes_max, []
    for number, (frame, packet_id) in enumerate(frames):
        payload = stream.decompress(frame, number, bytes_max=left)
        left -= len(payload)
        messages.append(Batched(payload, packet_id))
    return messages


def take_apart(
    payload: bytes, recoder: Recoder, bindings: Bindings, unfold: Callable[[bytes], bytes], room: Room
) -> list[Batched]:
    """A batch's messages. `unfold`: a tagged payload that refers to the link's own past, as one that does not; `room`:
    for what came at once, this and others.

    Raises DictionaryError for what is none, or longer than the recoder's payloads may be; NoRoomError.
    """
    if payload[1:2] == bytes((AS_ONE,)):
        encoded = recoder.from_aware(unfold(payload[_ONE_HEAD_BYTES:]), bindings)
        return split_batch(recoder.to_raw(*encoded, room))
    if payload[1:2] != bytes((AS_STREAM,)) or len(payload) <= _STREAM_HEAD_BYTES:
        raise DictionaryError("a batch of a kind that is not known")
    codec = fields_codec(recoder.get(bindings.dictionary_id(payload[2])))
    if codec is None:
        raise DictionaryError("a batch names a dictionary that is no field model, or not held")
    frames, bytes_max = split_batch(payload[_STREAM_HEAD_BYTES:]), recoder.payload_bytes_max
    limit = room.limit(bytes_max)
    try:
        messages = from_stream(frames, codec, limit)
    except DictionaryError:
        room.failed(len(payload), limit, bytes_max)
        raise
    room.take(sum([len(message.payload) for message in messages]))
    return messages


def pack_entry_columns(lengths: bytes, body: bytes) -> tuple[bytes, bytes]:
    """(head, packed) in the place of an entry's columns on one link: as they are where that is shorter."""
    columns = lengths + body
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = deflate.compress(columns) + deflate.flush()
    head = _COLUMNS_HEAD.pack(len(lengths), len(packed) < len(columns))
    return head, packed if len(packed) < len(columns) else columns


def unpack_entry_columns(head: bytes, packed: bytes, bytes_max: int) -> tuple[bytes, bytes]:
    """The inverse of `pack_entry_columns`. Raises DictionaryError for what is none, or longer than `bytes_max`."""
    if len(head) != _COLUMNS_HEAD.size:
        raise DictionaryError("not the head of packed columns")
    length, is_packed = _COLUMNS_HEAD.unpack(head)
    columns = packed
    if is_packed:
        inflater = zlib.decompressobj(-15)
        try:
            columns = inflater.decompress(packed, bytes_max + 1)
        except zlib.error as error:
            raise DictionaryError(f"packed columns: {error}") from None
        if len(columns) <= bytes_max and (not inflater.eof or inflater.unused_data):
            raise DictionaryError("packed columns are cut short, or something follows them")
    if len(columns) > bytes_max or length > len(columns):
        raise DictionaryError(f"columns of more than {bytes_max} bytes, or lengths that they do not have")
    return columns[:length], columns[length:]


class DueBatch(NamedTuple, Generic[Entry]):
    """A topic's messages that are due."""

    topic: bytes
    entries: list[Entry]


class _Gathering(Generic[Entry]):
    __slots__ = ("bytes", "due_s", "entries")

    def __init__(self, due_s: float) -> None:
        self.entries: list[Entry] = []
        self.bytes = 0
        self.due_s = due_s


class Batcher(Generic[Entry]):
    """Gathers the messages of each topic until they have `batch_bytes`, are `messages_max`, or the first has waited
    `batch_s`. At most TOPICS_MAX topics and `batch_bytes` of each wait. Times are monotonic."""

    def __init__(self, batch_s: float, batch_bytes: int, *, messages_max: int = MESSAGES_MAX) -> None:
        """Raises ValueError for bounds that are none."""
        if not (batch_s > 0 and batch_bytes >= 1 and 1 <= messages_max <= MESSAGES_MAX):
            raise ValueError(f"batch_s > 0, batch_bytes >= 1 and 1 to {MESSAGES_MAX} messages")
        self._batch_s = batch_s
        self.batch_bytes = batch_bytes
        self._messages_max = messages_max
        self._topics: OrderedDict[bytes, _Gathering[Entry]] = OrderedDict()

    @property
    def due_s(self) -> float | None:
        """When `due` has to be asked at the latest; None: nothing waits."""
        return next(iter(self._topics.values())).due_s if self._topics else None

    def add(self, topic: bytes, entry: Entry, size: int, now_s: float) -> list[DueBatch[Entry]]:
        """A message of so many bytes waits, or is due with those before it. What is due now."""
        gathering = self._topics.get(topic)
        due: list[DueBatch[Entry]] = []
        if gathering is not None and gathering.bytes + size > self.batch_bytes:
            due, gathering = self.flush(topic), None
        if gathering is None:
            if len(self._topics) >= TOPICS_MAX:
                due += self.flush(next(iter(self._topics)))
            gathering = self._topics[topic] = _Gathering(now_s + self._batch_s)
        gathering.entries.append(entry)
        gathering.bytes += size
        if gathering.bytes >= self.batch_bytes or len(gathering.entries) >= self._messages_max:
            due += self.flush(topic)
        return due

    def due(self, now_s: float) -> list[DueBatch[Entry]]:
        """What has waited long enough."""
        found: list[DueBatch[Entry]] = []
        while self._topics and (first := next(iter(self._topics.items())))[1].due_s <= now_s:
            found += self.flush(first[0])
        return found

    def flush(self, topic: bytes) -> list[DueBatch[Entry]]:
        """What waits of a topic."""
        gathering = self._topics.pop(topic, None)
        return [] if gathering is None else [DueBatch(topic, gathering.entries)]

    def flush_all(self) -> list[DueBatch[Entry]]:
        """All that waits."""
        found, self._topics = self._topics, OrderedDict()
        return [DueBatch(topic, gathering.entries) for topic, gathering in found.items()]
