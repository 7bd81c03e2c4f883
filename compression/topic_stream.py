"""The topic stream with key frames: one DEFLATE stream a topic, from a broker to its subscribers. Never stored.

Compressed once for all subscribers of a topic, each message sees those before it; after `KEY_INTERVAL` messages the
stream starts anew from the family's dictionary (a *key frame*), so a session can join there. What it costs and brings:
one compression a message as for standalone payloads, and nearly the reduction of a stream a subscriber (mean over 17
sets of messages: 74.6% with a key frame every 100, 74.5% for a stream each, 69.0% standalone).

    key frame  0, number, 8 dictionary id (0: none), raw DEFLATE to a byte boundary
    frame      number, raw DEFLATE to a byte boundary

Where the dictionary is a field model (`fields-1`), what follows the id is a frame of its stream (`fields.codec`), and
the other frames are such frames alone, which never begin with 0 and have 3 bits of their number inside: what repeats
costs a part of a bit, numbers what they changed by, and a byte would be much.

The stream is named by the topic that its frames come with. Numbers go 1 to 255 and round again, across key frames. The
link keeps the order and loses nothing, so whoever has had all frames since a key frame can read the next; one that
missed a frame (dropped, conflated, filtered, joined late, catching up) gets standalone payloads until the next key
frame. The sender knows who that is: each `FrameBatch` says which one it follows (`follows`). `TopicStreamReader` checks
the numbers and refuses a frame that does not follow, so that a mistake there is an error and not wrong bytes. One byte
a frame does for that (a second one cost 0.3 to 1.1 points of reduction on messages of 90 to 300 B).

A topic whose messages do better standalone (long ones, a zstd dictionary of 64 KiB) is not streamed: what a standalone
payload costs is known without work, it is what was stored. Where the stream has lost after `_TRIAL_FRAMES` of an
interval, or at its end, it is tried again only after `_REST_INTERVALS`, and after twice as long each time that it loses
again.

Memory: 117 KiB a stream and 117 KiB a dictionary (broker), 42 KiB a reader (client). `TopicStreams` bounds their number
and `StreamReaders` follows: both put the least recently used out first, so a reader is never gone before its stream.
"""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from lexicast.cluster.errors import DictionaryError

from .codecs import FIELDS, PAYLOAD_BYTES_MAX
from .dictionary import Dictionary, Held, shown
from .fields.codec import FieldsCodec, FieldsStream

KEY_INTERVAL: Final = 100
STREAMS_MAX: Final = 256
"""Readers that every receiver keeps, and so the most streams that a sender may have."""

FRAMES_MAX: Final = 256
"""From key frame to key frame at the most, however long a batch is."""

_REST_INTERVALS: Final = 7
_REST_INTERVALS_MAX: Final = 112
_TRIAL_FRAMES: Final = 25
_NUMBERS: Final = 255
_KEY: Final = struct.Struct(">BBQ")
_WINDOW_BITS: Final = -15
_MEMORY_LEVEL: Final = 6
_WINDOW_BYTES_MAX: Final = 32 * 1024 - 262
_FLUSH_END: Final = b"\x00\x00\xff\xff"
"""How a sync flush ends; it is not sent (as in permessage-deflate, RFC 7692)."""


class _Deflating:
    """One DEFLATE stream: a block to a byte boundary each message."""

    def __init__(self, compressor: zlib._Compress) -> None:
        self._compressor = compressor

    def compress(self, payload: bytes, number: int) -> bytes:
        data = self._compressor.compress(payload) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        return data.removesuffix(_FLUSH_END)


class _Inflating:
    """The receiver's side of it."""

    def __init__(self, content: bytes) -> None:
        self._inflater = zlib.decompressobj(_WINDOW_BITS, content)

    def decompress(self, data: bytes, number: int, *, bytes_max: int) -> bytes:
        inflater = self._inflater
        try:
            payload = inflater.decompress(data + _FLUSH_END, bytes_max + 1)
        except zlib.error as error:
            raise DictionaryError(str(error)) from None
        if len(payload) > bytes_max or inflater.unconsumed_tail:
            raise DictionaryError(f"more than {bytes_max} bytes")
        if inflater.eof:
            raise DictionaryError("the stream ends within a frame")
        return payload


class Primed:
    """A compressor that has seen `dictionary`, which every receiver holds or can get: key frames begin with a copy."""

    def __init__(self, dictionary: Dictionary | None = None) -> None:
        self.dictionary = dictionary
        self.id = dictionary_id(dictionary)
        self._fields = _fields_codec(dictionary)
        content = _window(dictionary) if self._fields is None else b""
        parameters = (9, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL, zlib.Z_DEFAULT_STRATEGY)
        self._compressor = zlib.compressobj(*parameters, content) if content else zlib.compressobj(*parameters)

    def compressor(self) -> _Deflating | FieldsStream:
        """A new one."""
        if self._fields is not None:
            return self._fields.stream()
        return _Deflating(self._compressor.copy())


def _fields_codec(dictionary: Dictionary | None) -> FieldsCodec | None:
    """Its codec where it is a field model."""
    codec = dictionary.build() if dictionary is not None and dictionary.codec == FIELDS else None
    return codec if isinstance(codec, FieldsCodec) else None


class FrameBatch(NamedTuple):
    """Consecutive frames of one stream.

    `slot`: the stream's place among its sender's (below `streams_max`); `number`, unique among all batches of a sender,
    and that of the stream's batch before. `dictionary`: what a key frame among the frames refers to.
    """

    frames: list[bytes]
    slot: int
    number: int
    before: int
    is_key: bool
    dictionary: Dictionary | None

    def follows(self, taken: dict[int, int]) -> bool:
        """Whether a session that took these batches (slot -> number) can read this one."""
        return self.is_key or taken.get(self.slot) == self.before


class TopicStream:
    """The sender's side of one stream."""

    def __init__(self, primed: Primed, *, key_interval: int = KEY_INTERVAL) -> None:
        """Raises ValueError when the interval is not 1 to FRAMES_MAX."""
        if not 1 <= key_interval <= FRAMES_MAX:
            raise ValueError(f"a key frame every 1 to {FRAMES_MAX} messages, not {key_interval}")
        self.primed = primed
        self._compressor = primed.compressor()
        self._key_interval = key_interval
        self._number = 0
        self._frames = key_interval
        self._rest = 0
        self._rest_intervals = _REST_INTERVALS
        self._gained = 0

    @property
    def at_key_frame(self) -> bool:
        """Whether the next batch, if there is one, begins with a key frame: whoever has none of the others may join."""
        return self._frames >= self._key_interval

    def rests(self, messages: int) -> bool:
        """Whether the next batch, of so many messages, is to be sent standalone to all; to be asked before each.

        Whoever was in step stays so: what is sent standalone to all is no part of the stream.
        """
        if self._gained < 0 and (self.at_key_frame or self._frames >= _TRIAL_FRAMES):
            self._frames = self._key_interval
            self._rest = self._rest_intervals * self._key_interval
            self._rest_intervals = min(2 * self._rest_intervals, _REST_INTERVALS_MAX)
        if not self.at_key_frame:
            return False
        if self._gained > 0:
            self._rest_intervals = _REST_INTERVALS
        self._gained = 0
        resting = self._rest > 0
        self._rest = max(0, self._rest - messages)
        return resting

    def encode(self, payloads: Sequence[bytes], standalone_bytes: int) -> list[bytes]:
        """The frames for every session in step. `standalone_bytes`: what the standalone forms have together.

        A key frame is due at the beginning of a batch only (but for batches of more than FRAMES_MAX): so a session
        gets all of a batch in one form.
        """
        key_due = self.at_key_frame
        frames = []
        for payload in payloads:
            frames.append(self._frame(payload, key_due or self._frames >= FRAMES_MAX))
            key_due = False
        self._gained += standalone_bytes - sum(map(len, frames))
        return frames

    def _frame(self, payload: bytes, is_key: bool) -> bytes:
        self._number = self._number % _NUMBERS + 1
        if is_key:
            self._compressor = self.primed.compressor()
            self._frames = 0
        self._frames += 1
        data = self._compressor.compress(payload, self._number)
        if is_key:
            return _KEY.pack(0, self._number, self.primed.id) + data
        return data if isinstance(self._compressor, FieldsStream) else bytes((self._number,)) + data


def _window(dictionary: Dictionary | None) -> bytes:
    """What of its content a stream of DEFLATE begins with."""
    return dictionary.content[-_WINDOW_BYTES_MAX:] if dictionary is not None else b""


def dictionary_id(dictionary: Dictionary | None) -> int:
    """Its id; 0: there is none."""
    return dictionary.id if dictionary is not None else 0


def key_frame_dictionary(frame: bytes) -> int | None:
    """The id of the dictionary that a key frame begins with; None for other frames, and for one without."""
    if len(frame) < _KEY.size or frame[0]:
        return None
    return int(_KEY.unpack_from(frame)[2]) or None


class TopicStreamReader:
    """The receiver's side of one stream; `topic` names it in errors."""

    def __init__(self, topic: bytes = b"") -> None:
        self._label = f"topic stream of {shown(topic)}"
        self._dictionary = "no family, no dictionary"
        self._stream: _Inflating | FieldsStream | None = None
        self._number = 0

    def decode(
        self, frame: bytes, dictionary: Dictionary | None = None, *, bytes_max: int = PAYLOAD_BYTES_MAX
    ) -> bytes:
        """The payload of the next frame. `dictionary`: the one that a key frame refers to (`key_frame_dictionary`).

        Raises DictionaryError for a frame that does not follow the last one, is damaged or longer than `bytes_max`, and
        for a key frame without its dictionary; after that only a key frame is accepted.
        """
        if not frame or (frame[0] == 0 and len(frame) <= _KEY.size):
            raise self._lost("cut short")
        if frame[0] == 0:
            return self._read(self._begin(frame, dictionary), bytes_max)
        number = self._number % _NUMBERS + 1
        if not isinstance(self._stream, FieldsStream):
            if self._stream is None or frame[0] != number or len(frame) < 2:
                raise self._lost(f"frame {frame[0]} of {len(frame)} bytes does not follow frame {self._number}")
            frame = frame[1:]
        self._number = number
        return self._read(frame, bytes_max)

    def _begin(self, frame: bytes, dictionary: Dictionary | None) -> bytes:
        _, self._number, named = _KEY.unpack_from(frame)
        self._dictionary = dictionary.label if dictionary is not None else f"family unknown, dictionary {named:016x}"
        if named != dictionary_id(dictionary):
            raise self._lost(f"a key frame needs dictionary {named:016x}, which is not held")
        fields = _fields_codec(dictionary)
        try:
            self._stream = fields.stream() if fields is not None else _Inflating(_window(dictionary))
        except DictionaryError as error:
            raise self._lost(str(error)) from None
        return frame[_KEY.size :]

    def _read(self, data: bytes, bytes_max: int) -> bytes:
        if self._stream is None:
            raise self._lost("it has no key frame")
        try:
            return self._stream.decompress(data, self._number, bytes_max=bytes_max)
        except DictionaryError as error:
            raise self._lost(str(error)) from None

    def _lost(self, reason: str) -> DictionaryError:
        self._stream = None
        return DictionaryError(f"{self._dictionary}, {self._label}: the frame cannot be decompressed: {reason}")


@dataclass(slots=True)
class _Place:
    """A topic's stream among its sender's. `number`: of its last batch."""

    slot: int
    stream: TopicStream
    used_us: int
    number: int = 0


class TopicStreams:
    """A sender's streams by topic: at most `streams_max`, the least recently used out first.

    A topic gets a stream when it has had `ADMITTED_AFTER` messages while it was among the last `_CANDIDATES_MAX`
    topics, and only in the place of one that nothing was sent on for `IDLE_US`: so a multitude of topics with a message
    each now and then gets none, instead of a key frame a message. One that went out begins anew with a key frame.
    """

    ADMITTED_AFTER: Final = 16
    IDLE_US: Final = 10_000_000
    _CANDIDATES_MAX: Final = 4 * STREAMS_MAX

    def __init__(self, streams_max: int = STREAMS_MAX) -> None:
        """Raises ValueError unless `streams_max` is 1 to STREAMS_MAX: receivers keep no more readers."""
        if not 1 <= streams_max <= STREAMS_MAX:
            raise ValueError(f"1 to {STREAMS_MAX} streams, not {streams_max}")
        self._slots = list(range(streams_max))
        self._streams: OrderedDict[bytes, _Place] = OrderedDict()
        self._candidates: OrderedDict[bytes, int] = OrderedDict()
        self._primed: WeakValueDictionary[int, Primed] = WeakValueDictionary()
        self._batches = 0

    def __len__(self) -> int:
        return len(self._streams)

    def forget(self, topic: bytes) -> None:
        """End the topic's stream, if it has one: the next one has nothing of its past."""
        place = self._streams.pop(topic, None)
        if place is not None:
            self._slots.append(place.slot)

    def takes(self, topic: bytes, messages: int, dictionary: Dictionary | None, now_us: int) -> bool:
        """Whether the topic's next batch, of so many messages, goes as frames: to be asked once before `encode`.

        `dictionary`: the family's newest; another one than before makes the batch begin with a key frame.
        """
        place = self._streams.get(topic) or self._admit(topic, messages, dictionary, now_us)
        if place is None:
            return False
        if place.stream.primed.id != dictionary_id(dictionary):
            place.stream = self._made(dictionary)
        return not place.stream.rests(messages)

    def encode(self, topic: bytes, payloads: Sequence[bytes], standalone_bytes: int, now_us: int) -> FrameBatch:
        """The batch that `takes` was asked for. `standalone_bytes`: what the standalone forms have together."""
        place = self._streams[topic]
        stream = place.stream
        is_key = stream.at_key_frame
        frames = stream.encode(payloads, standalone_bytes)
        self._streams.move_to_end(topic)
        self._batches += 1
        before, place.number, place.used_us = place.number, self._batches, now_us
        with_key = is_key or any([frame[0] == 0 for frame in frames])
        return FrameBatch(
            frames, place.slot, place.number, before, is_key, stream.primed.dictionary if with_key else None
        )

    def _admit(self, topic: bytes, messages: int, dictionary: Dictionary | None, now_us: int) -> _Place | None:
        seen = self._candidates.pop(topic, 0) + messages
        if seen >= self.ADMITTED_AFTER and (self._slots or self._leave(now_us)):
            place = self._streams[topic] = _Place(self._slots.pop(), self._made(dictionary), now_us)
            return place
        self._candidates[topic] = seen
        if len(self._candidates) > self._CANDIDATES_MAX:
            self._candidates.popitem(last=False)
        return None

    def _leave(self, now_us: int) -> bool:
        """Whether a place was made free."""
        topic, place = next(iter(self._streams.items()))
        if now_us - place.used_us < self.IDLE_US:
            return False
        del self._streams[topic]
        self._slots.append(place.slot)
        return True

    def _made(self, dictionary: Dictionary | None) -> TopicStream:
        primed = self._primed.get(dictionary_id(dictionary))
        if primed is None:
            primed = self._primed[dictionary_id(dictionary)] = Primed(dictionary)
        return TopicStream(primed)


class StreamReaders:
    """A receiver's streams by topic. `held`: looks a dictionary up; no payload becomes longer than `payload_bytes_max`.

    At most STREAMS_MAX readers (42 KiB each), the least recently used out first.
    """

    def __init__(self, held: Held, payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
        self._held = held
        self._payload_bytes_max = payload_bytes_max
        self._readers: OrderedDict[bytes, TopicStreamReader] = OrderedDict()

    def __len__(self) -> int:
        return len(self._readers)

    def decode(self, topic: bytes, frame: bytes) -> bytes:
        """The payload of a frame that came with `topic`. Raises DictionaryError as `TopicStreamReader.decode`."""
        reader = self._readers.get(topic)
        if reader is None:
            reader = self._readers[topic] = TopicStreamReader(topic)
            if len(self._readers) > STREAMS_MAX:
                self._readers.popitem(last=False)
        self._readers.move_to_end(topic)
        named = key_frame_dictionary(frame)
        dictionary = None if named is None else self._held(named)
        return reader.decode(frame, dictionary, bytes_max=self._payload_bytes_max)
