"""Attempts at wrong bytes: payloads, frames and models of fields, as they come, mutated and made up, from a seed."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from lexicast.cluster.errors import DictionaryError
from lexicast.compression.codecs import FIELDS, PAYLOAD_BYTES_MAX
from lexicast.compression.dictionary_content import FIELDS_ALONE, FIELDS_AND_RECENT
from lexicast.compression.fields.codec import FieldsCodec, FieldsStream
from lexicast.compression.training import train

from ..data.corpora import Corpus

_SAMPLES: Final = 300
_CONTENT_BYTES: Final = 64 * 1024
_PRESET_BYTES: Final = 4 * 1024
_MESSAGES_A_STREAM: Final = 40
_MESSAGES_A_MODEL: Final = 4
_FRAMES_A_ROUND: Final = 40
_ROOM: Final = 5_000
_TOO_LONG_S: Final = 1.0
_PROBLEMS_MAX: Final = 10


class Attempts:
    """What was tried, by kind (`counted`), and what went wrong."""

    def __init__(self, corpora: Sequence[Corpus], seed: int) -> None:
        self._rng = random.Random(seed)
        self._messages: list[list[bytes]] = []
        self._contents: list[bytes] = []
        for corpus in corpora:
            samples = corpus.messages[:_SAMPLES]
            for source, size in ((FIELDS_ALONE, _CONTENT_BYTES), (FIELDS_AND_RECENT, _PRESET_BYTES)):
                self._contents.append(train(samples, size, FIELDS, source, family=b"bench/+").content)
                self._messages.append(corpus.messages[-_SAMPLES:])
        self._codecs = [FieldsCodec("an attempt", content) for content in self._contents]
        self.counted: Counter[str] = Counter()
        self.problems: list[str] = []
        self.wrong = 0

    def run(self, attempts: int) -> None:
        """So many, of all kinds in turn."""
        kinds: tuple[Callable[[], None], ...] = (self._stream, self._frames, self._alone, self._model)
        while self.counted.total() < attempts:
            for kind in kinds:
                kind()

    def _choose(self) -> tuple[FieldsCodec, list[bytes]]:
        at = self._rng.randrange(len(self._codecs))
        return self._codecs[at], self._messages[at]

    def _payload(self, messages: Sequence[bytes]) -> bytes:
        rng = self._rng
        kind = rng.randrange(4)
        if kind == 0:
            return rng.choice(messages)
        if kind == 1:
            return rng.randbytes(rng.randrange(200))
        return self._mutated(rng.choice(messages), rng.randrange(1, 8))

    def _mutated(self, data: bytes, times: int) -> bytes:
        rng = self._rng
        changed = bytearray(data)
        for _ in range(times):
            at = rng.randrange(len(changed) + 1)
            kind = rng.randrange(4)
            if kind == 0:
                changed[at : at + rng.randrange(9)] = rng.randbytes(rng.randrange(9))
            elif kind == 1:
                changed[at : at + 1] = bytes((rng.choice(b'0123456789"{}:,. -AZaz\x00\xff'),))
            elif kind == 2:
                changed[at:at] = changed[at : at + rng.randrange(30)]
            else:
                del changed[at : at + rng.randrange(20)]
        return bytes(changed)

    def _alone(self) -> None:
        codec, messages = self._choose()
        for _ in range(_MESSAGES_A_STREAM):
            payload = self._payload(messages)
            self._try("payload", payload, lambda payload: _same(codec.decompress(codec.compress(payload)), payload))

    def _stream(self) -> None:
        codec, messages = self._choose()
        self._through(codec, messages, _MESSAGES_A_STREAM, "payload in a stream")

    def _through(self, codec: FieldsCodec, messages: Sequence[bytes], count: int, kind: str) -> None:
        sender, receiver = codec.stream(), codec.stream()
        for number in range(count):
            self._try(kind, self._payload(messages), partial(_comes_through, sender, receiver, number))

    def _frames(self) -> None:
        """What comes out of them has a bound, and so has the time."""
        codec, messages = self._choose()
        rng = self._rng
        for _ in range(_FRAMES_A_ROUND):
            if rng.random() < 0.5:
                frame = self._mutated(codec.compress(rng.choice(messages)), rng.randrange(1, 3))
            else:
                frame = rng.randbytes(rng.randrange(60 if rng.random() < 0.95 else 9_000))
            self._try(
                "frame", frame, lambda frame: len(codec.decompress(frame, bytes_max=_ROOM)) <= _ROOM, refused=True
            )

    def _model(self) -> None:
        """A model that nobody learned is refused, or is as lossless as any."""
        rng = self._rng
        at = rng.randrange(len(self._contents))
        content = self._mutated(self._contents[at], rng.randrange(1, 4))
        codec = FieldsCodec("an attempt", content)
        try:
            codec.stream()
        except DictionaryError:
            self.counted["model, refused"] += 1
            return
        except Exception as error:
            self._problem("model", content, repr(error))
            return
        self.counted["model, taken"] += 1
        self._through(codec, self._messages[at], _MESSAGES_A_MODEL, "payload by a hostile model")
        frame = rng.randbytes(60)
        self._try("frame", frame, lambda frame: len(codec.decompress(frame)) <= PAYLOAD_BYTES_MAX, refused=True)

    def _try(self, kind: str, data: bytes, attempt: Callable[[bytes], bool], *, refused: bool = False) -> None:
        begun = time.process_time()
        self.counted[kind] += 1
        try:
            if not attempt(data):
                self._problem(kind, data, "something else came back")
        except DictionaryError as error:
            if not refused:
                self._problem(kind, data, str(error))
        except Exception as error:
            self._problem(kind, data, repr(error))
        if time.process_time() - begun > _TOO_LONG_S:
            self._problem(kind, data, f"took more than {_TOO_LONG_S:g} s")

    def _problem(self, kind: str, data: bytes, what: str) -> None:
        self.wrong += 1
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(f"{kind} {data[:200].hex()}: {what}")


def _comes_through(sender: FieldsStream, receiver: FieldsStream, number: int, payload: bytes) -> bool:
    return _same(receiver.decompress(sender.compress(payload, number), number), payload)


def _same(back: bytes, payload: bytes) -> bool:
    return back == payload
