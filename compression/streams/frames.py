"""Frames of topic streams: what they look like, what compresses them, and the past of a topic that both ends have.

    224 + check, data                             the next frame
    255, 0, check, data                           a key frame: the stream begins anew, with nothing
    255, 1, check, 8 dictionary id, data          a key frame that begins with a dictionary
    255, 2, check, varint length, past, data      a key frame that brings the topic's past along, as raw DEFLATE
    255, 3, check, data                           a key frame: the stream begins anew as one of zstd, with nothing

`data` is raw DEFLATE to a byte boundary; where the dictionary is a field model a frame of its stream (`fields.codec`);
in a stream of zstd its blocks (`zstd_blocks`). The data of the third kind of key frame is that of the next frame:
DEFLATE looks no further back than the last PAST_BYTES of what it has compressed, so whoever has these can read on, and
the stream goes on as it is for everybody else.

The check is a CRC-32 of the payload on top of the check before, modulo CHECKS. So one byte, which is the tag on MQTT
(`wire`, rule 9), says that it is a frame and that it follows; two ends that differ, by whatever mistake, get an error
at once, or (1 in 31) with the next frame.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from lexicast.cluster.errors import DictionaryError

from ..codecs import FIELDS
from ..dictionary import Dictionary
from ..fields.codec import FieldsCodec, FieldsStream
from .zstd_blocks import ZstdReader, ZstdWriter

FIRST_FRAME_TAG: Final = 224
KEY_TAG: Final = 255
CHECKS: Final = KEY_TAG - FIRST_FRAME_TAG

PAST_BYTES: Final = 32 * 1024 - 262
"""As far back as zlib's DEFLATE looks."""

_PLAIN_KEY: Final = 0
_DICTIONARY_KEY: Final = 1
_PAST_KEY: Final = 2
_ZSTD_KEY: Final = 3
_HEAD_BYTES: Final = 3
_ID: Final = struct.Struct(">Q")
_WINDOW_BITS: Final = -15
_MEMORY_LEVEL: Final = 6
_FLUSH_END: Final = b"\x00\x00\xff\xff"
"""How a sync flush ends; it is not sent (as in permessage-deflate, RFC 7692)."""


class Deflating:
    """One DEFLATE stream that has seen `past`: a block to a byte boundary each message."""

    def __init__(self, past: bytes = b"") -> None:
        parameters = (9, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL, zlib.Z_DEFAULT_STRATEGY)
        past = past[-PAST_BYTES:]
        self._compressor = zlib.compressobj(*parameters, past) if past else zlib.compressobj(*parameters)

    def compress(self, payload: bytes, number: int) -> bytes:
        """The next frame's data."""
        data = self._compressor.compress(payload) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        return data.removesuffix(_FLUSH_END)


class Inflating:
    """The receiver's side of it."""

    def __init__(self, past: bytes = b"") -> None:
        self._inflater = zlib.decompressobj(_WINDOW_BITS, past[-PAST_BYTES:])

    def decompress(self, data: bytes, number: int, *, bytes_max: int) -> bytes:
        """The next payload. Raises DictionaryError; the stream is of no use then."""
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


Compressing = Deflating | FieldsStream | ZstdWriter
Decompressing = Inflating | FieldsStream | ZstdReader


def fields_codec(dictionary: Dictionary | None) -> FieldsCodec | None:
    """Its codec where it is a field model."""
    codec = dictionary.build() if dictionary is not None and dictionary.codec == FIELDS else None
    return codec if isinstance(codec, FieldsCodec) else None


def compressing(dictionary: Dictionary | None, of_zstd: bool = False) -> Compressing:
    """The sender's side of a stream that begins with a dictionary, or with nothing, as one of zstd always does."""
    if of_zstd:
        return ZstdWriter()
    fields = fields_codec(dictionary)
    if fields is not None:
        return fields.stream()
    return Deflating(dictionary.content if dictionary is not None else b"")


def decompressing(dictionary: Dictionary | None) -> Decompressing:
    """The receiver's side of it. Raises DictionaryError for a field model that is none."""
    fields = fields_codec(dictionary)
    if fields is not None:
        return fields.stream()
    return Inflating(dictionary.content if dictionary is not None else b"")


class StreamPast:
    """The last PAST_BYTES that a stream had seen before a batch, and what their frames took, about.

    Memory: twice PAST_BYTES, however long payloads are, and however many have no byte at all.
    """

    def __init__(self, begin: bytes = b"") -> None:
        self._before = _Tail()
        self._batch = _Tail()
        self._before.add(begin, len(begin) // 2)

    def __len__(self) -> int:
        return len(self._before.content)

    @property
    def frame_bytes(self) -> int:
        """Of the frames that brought it."""
        return self._before.frame_bytes

    def add(self, payload: bytes, frame_bytes: int) -> None:
        """It was sent in this batch."""
        self._batch.add(payload, frame_bytes)

    def end_batch(self) -> None:
        """What comes next is another batch."""
        batch = self._batch
        if batch.content:
            self._before.add(batch.content, batch.frame_bytes)
            self._batch = _Tail()

    def content(self) -> bytes:
        """What was seen before the batch."""
        return bytes(self._before.content)


class _Tail:
    """The last PAST_BYTES of payloads, and their share of what frames took."""

    __slots__ = ("content", "frame_bytes")

    def __init__(self) -> None:
        self.content = bytearray()
        self.frame_bytes = 0

    def add(self, payload: bytes | bytearray, frame_bytes: int) -> None:
        """It comes last."""
        if not payload:
            return
        content = self.content
        content += payload
        self.frame_bytes += frame_bytes
        over = len(content) - PAST_BYTES
        if over > 0:
            self.frame_bytes = self.frame_bytes * PAST_BYTES // len(content)
            del content[:over]


def check_of(payload: bytes, before: int) -> int:
    """The check of a payload after the check `before`."""
    return zlib.crc32(payload, before) % CHECKS


def next_frame(check: int, data: bytes) -> bytes:
    """A frame."""
    return bytes((FIRST_FRAME_TAG + check,)) + data


def key_frame(check: int, dictionary: Dictionary | None, data: bytes, of_zstd: bool = False) -> bytes:
    """A key frame that begins with a dictionary, or with nothing."""
    if dictionary is None or of_zstd:
        return bytes((KEY_TAG, _ZSTD_KEY if of_zstd else _PLAIN_KEY, check)) + data
    return bytes((KEY_TAG, _DICTIONARY_KEY, check)) + _ID.pack(dictionary.id) + data


def past_frame(frame: bytes, past: bytes) -> bytes:
    """The key frame for who has not the past that the next frame `frame` refers to."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL)
    packed = compressor.compress(past) + compressor.flush()
    head = bytearray((KEY_TAG, _PAST_KEY, frame[0] - FIRST_FRAME_TAG))
    length = len(packed)
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + packed + frame[1:]


def is_frame(payload: bytes) -> bool:
    """Whether a tagged payload is a frame."""
    return payload[:1] >= b"\xe0"


def is_key_frame(frame: bytes) -> bool:
    """Whether whoever has none of the frames before can read it."""
    return frame[:1] == b"\xff"


def key_frame_dictionary(frame: bytes) -> int | None:
    """The id of the dictionary that a key frame begins with; None for other frames, and for one without."""
    if len(frame) < _HEAD_BYTES + _ID.size or frame[0] != KEY_TAG or frame[1] != _DICTIONARY_KEY:
        return None
    return int(_ID.unpack_from(frame, _HEAD_BYTES)[0])


class KeyFrame(NamedTuple):
    """A key frame taken apart. `past`: what the stream has seen, where it brings that along."""

    check: int
    dictionary: int | None
    brings_past: bool
    past: bytes
    data: bytes
    of_zstd: bool = False


def split_key_frame(frame: bytes) -> KeyFrame:
    """Its parts. Raises DictionaryError for one that is cut short, of no known kind or with too long a past."""
    if len(frame) < _HEAD_BYTES or frame[2] >= CHECKS:
        raise DictionaryError("cut short")
    kind, check, rest = frame[1], frame[2], frame[_HEAD_BYTES:]
    if kind == _ZSTD_KEY:
        return KeyFrame(check, None, False, b"", rest, True)
    if not rest:
        raise DictionaryError("cut short")
    if kind == _PLAIN_KEY:
        return KeyFrame(check, None, False, b"", rest)
    if kind == _DICTIONARY_KEY:
        if len(rest) <= _ID.size:
            raise DictionaryError("cut short")
        return KeyFrame(check, int(_ID.unpack_from(rest)[0]), False, b"", rest[_ID.size :])
    if kind == _PAST_KEY:
        past, data = _split_past(rest)
        return KeyFrame(check, None, True, past, data)
    raise DictionaryError(f"a key frame of kind {kind}, which is not known")


def _split_past(rest: bytes) -> tuple[bytes, bytes]:
    length = shift = at = 0
    while True:
        if at >= len(rest) or shift > 14:
            raise DictionaryError("cut short")
        length |= (rest[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not rest[at - 1] & 0x80:
            break
    if at + length > len(rest):
        raise DictionaryError("cut short")
    inflater = zlib.decompressobj(_WINDOW_BITS)
    try:
        past = inflater.decompress(rest[at : at + length], PAST_BYTES + 1)
    except zlib.error as error:
        raise DictionaryError(str(error)) from None
    if len(past) > PAST_BYTES or not inflater.eof or inflater.unused_data:
        raise DictionaryError("the past that it brings along is cut short or too long")
    return past, rest[at + length :]
