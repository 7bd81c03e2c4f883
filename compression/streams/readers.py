"""The receiver's side of topic streams (`topic_stream`, `frames`)."""

from __future__ import annotations

from collections import OrderedDict

from lexicast.cluster.errors import DictionaryError

from ..codecs import PAYLOAD_BYTES_MAX
from ..dictionary import Dictionary, Held, shown
from .frames import (
    CHECKS,
    FIRST_FRAME_TAG,
    Decompressing,
    Inflating,
    check_of,
    decompressing,
    is_frame,
    is_key_frame,
    key_frame_dictionary,
    split_key_frame,
)
from .topic_streams import STREAMS_MAX
from .zstd_blocks import ZSTD_STREAMS_MAX, ZstdReader


class TopicStreamReader:
    """One stream; `topic` names it in errors."""

    def __init__(self, topic: bytes = b"") -> None:
        self._label = f"topic stream of {shown(topic)}"
        self._dictionary = "no family, no dictionary"
        self._stream: Decompressing | None = None
        self._check = 0
        self._number = 0
        # Whether its loss was told of: it goes on with a key frame, which has to be asked for once.
        self._told = False

    def decode(
        self, frame: bytes, dictionary: Dictionary | None = None, *, bytes_max: int = PAYLOAD_BYTES_MAX
    ) -> bytes:
        """The payload of the next frame. `dictionary`: the one that a key frame refers to (`key_frame_dictionary`).

        Raises DictionaryError for a frame that does not follow the last one, is damaged or longer than `bytes_max`, and
        for a key frame without its dictionary; after that only a key frame is accepted.
        """
        if not is_frame(frame):
            raise self._lost("cut short")
        try:
            return self._begin(frame, dictionary, bytes_max) if is_key_frame(frame) else self._next(frame, bytes_max)
        except DictionaryError as error:
            raise self._lost(str(error)) from None

    def _begin(self, frame: bytes, dictionary: Dictionary | None, bytes_max: int) -> bytes:
        parts = split_key_frame(frame)
        named = parts.dictionary
        self._dictionary = "no family, no dictionary"
        if named is not None:
            self._dictionary = f"family unknown, dictionary {named:016x}"
            if dictionary is None or dictionary.id != named:
                raise DictionaryError(f"a key frame needs dictionary {named:016x}, which is not held")
            self._dictionary = dictionary.label
        self._number = 1
        if parts.of_zstd:
            self._stream = ZstdReader()
        else:
            self._stream = decompressing(dictionary) if named is not None else Inflating(parts.past)
        payload = self._stream.decompress(parts.data, self._number, bytes_max=bytes_max)
        self._check = parts.check
        self._told = False
        if not parts.brings_past and check_of(payload, 0) != parts.check:
            raise DictionaryError("it is not what was sent")
        return payload

    def _next(self, frame: bytes, bytes_max: int) -> bytes:
        if self._stream is None:
            raise DictionaryError("the frame does not follow: no key frame has been read")
        self._number += 1
        payload = self._stream.decompress(frame[1:], self._number, bytes_max=bytes_max)
        self._check = check_of(payload, self._check)
        if frame[0] - FIRST_FRAME_TAG != self._check:
            raise DictionaryError(f"the frame does not follow what came before (check {self._check} of {CHECKS})")
        return payload

    @property
    def of_zstd(self) -> bool:
        """Whether it reads a stream of zstd."""
        return isinstance(self._stream, ZstdReader)

    @property
    def is_lost_anew(self) -> bool:
        """Whether it cannot go on, and this is the first time that it is asked since."""
        anew = self._stream is None and not self._told
        self._told = self._stream is None
        return anew

    def _lost(self, reason: str) -> DictionaryError:
        self._stream = None
        return DictionaryError(f"{self._dictionary}, {self._label}: the frame cannot be decompressed: {reason}")


class StreamReaders:
    """A receiver's streams by topic. `held`: looks a dictionary up; no payload becomes longer than `payload_bytes_max`.

    At most STREAMS_MAX readers (42 KiB each), ZSTD_STREAMS_MAX of them of zstd (300 KiB), the least recently used out
    first: as many as a sender has streams.
    """

    def __init__(self, held: Held, payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
        self._held = held
        self._payload_bytes_max = payload_bytes_max
        self._readers: OrderedDict[bytes, TopicStreamReader] = OrderedDict()
        # Topics whose streams are of zstd.
        self._of_zstd: OrderedDict[bytes, None] = OrderedDict()
        # Topics whose streams cannot be read any further, until a key frame: the sender has to be told of each.
        self.lost: list[bytes] = []

    def __len__(self) -> int:
        return len(self._readers)

    def decode(self, topic: bytes, frame: bytes) -> bytes:
        """The payload of a frame that came with `topic`. Raises DictionaryError as `TopicStreamReader.decode`."""
        reader = self._readers.get(topic)
        if reader is None:
            reader = self._readers[topic] = TopicStreamReader(topic)
            if len(self._readers) > STREAMS_MAX:
                gone, _ = self._readers.popitem(last=False)
                self._of_zstd.pop(gone, None)
        self._readers.move_to_end(topic)
        named = key_frame_dictionary(frame)
        dictionary = None if named is None else self._held(named)
        try:
            return reader.decode(frame, dictionary, bytes_max=self._payload_bytes_max)
        except DictionaryError:
            if reader.is_lost_anew:
                self.lost.append(topic)
            raise
        finally:
            self._of_zstd.pop(topic, None)
            if reader.of_zstd:
                self._keep_of_zstd(topic)

    def _keep_of_zstd(self, topic: bytes) -> None:
        self._of_zstd[topic] = None
        if len(self._of_zstd) > ZSTD_STREAMS_MAX:
            gone, _ = self._of_zstd.popitem(last=False)
            del self._readers[gone]
