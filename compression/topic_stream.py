"""The topic stream with key frames: one DEFLATE stream a topic, from a broker to its subscribers. Never stored.

Compressed once for all subscribers of a topic, each message sees those before it; every `KEY_INTERVAL` messages the
stream starts anew from the family's dictionary (a *key frame*), so a session can join there. What it costs and brings:
one compression a message as for standalone payloads, and nearly the reduction of a stream a subscriber (mean over 17
sets of messages: 74.6% with a key frame every 100, 74.5% for a stream each, 69.0% standalone).

    frame = 1 key frame number (modulo 256), 1 index (0: the key frame itself), raw DEFLATE to a byte boundary

The tag byte before it is the alias of the stream. A session gets frames only while it has had all since a key frame:
one that missed a frame (dropped, conflated, filtered, joined late, catching up) gets standalone payloads until the
next. `TopicStreamReader` checks the numbers and refuses a frame that does not follow, so a mistake there is an error
and never wrong bytes.

A topic whose messages do better standalone (long ones, a zstd dictionary) is not streamed: what a standalone payload
costs is known without work, it is what was stored. After an interval in which the stream lost, it is tried again only
after `_REST_INTERVALS`.

Memory: 117 KiB a stream (broker), 42 KiB a reader (client): `TopicStreams` bounds their number.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from lexicast.cluster.errors import DictionaryError

from .codecs import PAYLOAD_BYTES_MAX

KEY_INTERVAL: Final = 100
STREAMS_MAX: Final = 256
HEADER_BYTES: Final = 2

_REST_INTERVALS: Final = 7
_WINDOW_BITS: Final = -15
_MEMORY_LEVEL: Final = 6
_WINDOW_BYTES_MAX: Final = 32 * 1024 - 262
_FLUSH_END: Final = b"\x00\x00\xff\xff"
"""How a sync flush ends; it is not sent (as in permessage-deflate, RFC 7692)."""

Key = TypeVar("Key", bound=Hashable)


class TopicStream:
    """The sender's side of one stream."""

    def __init__(self, dictionary: bytes = b"", *, key_interval: int = KEY_INTERVAL) -> None:
        """`dictionary`: content that every receiver holds. Raises ValueError when the interval is not 1 to 256."""
        if not 1 <= key_interval <= 256:
            raise ValueError(f"a key frame every 1 to 256 messages, not {key_interval}")
        parameters = (9, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL, zlib.Z_DEFAULT_STRATEGY)
        preset = dictionary[-_WINDOW_BYTES_MAX:]
        self._primed = zlib.compressobj(*parameters, preset) if preset else zlib.compressobj(*parameters)
        self._compressor = self._primed
        self._key_interval = key_interval
        self._key = -1
        self._index = key_interval
        self._rest = 0
        self._gained = 0

    @property
    def at_key_frame(self) -> bool:
        """Whether the next frame, if there is one, is a key frame: whoever has none of the others may join."""
        return self._index == self._key_interval

    def encode(self, payload: bytes, standalone_bytes: int) -> bytes | None:
        """The frame for every session that is in step; None: send the standalone form (of `standalone_bytes`).

        None happens only where a key frame would be due, so no session falls out of step by it.
        """
        if self.at_key_frame and not self._begin():
            return None
        data = self._compressor.compress(payload) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        frame = bytes((self._key & 0xFF, self._index)) + data.removesuffix(_FLUSH_END)
        self._index += 1
        self._gained += standalone_bytes - len(frame)
        return frame

    def _begin(self) -> bool:
        """A new interval; False while the stream rests."""
        if self._gained < 0:
            self._gained = 0
            self._rest = _REST_INTERVALS * self._key_interval
        if self._rest:
            self._rest -= 1
            return False
        self._gained = 0
        self._key += 1
        self._index = 0
        self._compressor = self._primed.copy()
        return True


class TopicStreamReader:
    """The receiver's side of one stream; `label` names it in errors."""

    def __init__(self, dictionary: bytes = b"", *, label: str = "a topic stream") -> None:
        self._dictionary = dictionary[-_WINDOW_BYTES_MAX:]
        self._label = label
        self._inflater: zlib._Decompress | None = None
        self._key = -1
        self._next = 0

    def decode(self, frame: bytes, *, bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
        """The payload of the next frame.

        Raises DictionaryError for a frame that does not follow the last one, is damaged or longer than `bytes_max`;
        after that only a key frame is accepted.
        """
        if len(frame) <= HEADER_BYTES:
            raise self._lost("cut short")
        key, index = frame[0], frame[1]
        if index == 0:
            self._inflater = zlib.decompressobj(_WINDOW_BITS, self._dictionary)
        elif self._inflater is None or (key, index) != (self._key, self._next):
            raise self._lost(f"frame {key}/{index} does not follow {self._key}/{self._next - 1}")
        self._key, self._next = key, index + 1
        return self._inflate(frame[HEADER_BYTES:] + _FLUSH_END, bytes_max)

    def _inflate(self, data: bytes, bytes_max: int) -> bytes:
        inflater = self._inflater
        if inflater is None:
            raise self._lost("it has no key frame")
        try:
            payload = inflater.decompress(data, bytes_max + 1)
        except zlib.error as error:
            raise self._lost(str(error)) from None
        if len(payload) > bytes_max or inflater.unconsumed_tail:
            raise self._lost(f"more than {bytes_max} bytes")
        if inflater.eof:
            raise self._lost("the stream ends within a frame")
        return payload

    def _lost(self, reason: str) -> DictionaryError:
        self._inflater = None
        return DictionaryError(f"{self._label}: the frame cannot be decompressed: {reason}")


class TopicStreams(Generic[Key]):
    """A broker's streams by key (topic and class of session): at most `streams_max`, the least recently used out first.

    A stream that went out begins anew with a key frame: sessions in step with the old one are not with the new one.
    """

    def __init__(self, streams_max: int = STREAMS_MAX) -> None:
        if streams_max < 1:
            raise ValueError("at least one stream")
        self._streams_max = streams_max
        self._streams: OrderedDict[Key, tuple[int | None, TopicStream]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._streams)

    def stream(self, key: Key, dictionary: int | None = None, content: bytes = b"") -> TopicStream:
        """The stream of `key` over the dictionary with this id and content; a new one when the dictionary changed."""
        held = self._streams.get(key)
        if held is None or held[0] != dictionary:
            held = (dictionary, TopicStream(content))
            self._streams[key] = held
        self._streams.move_to_end(key)
        if len(self._streams) > self._streams_max:
            self._streams.popitem(last=False)
        return held[1]
