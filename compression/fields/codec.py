"""`fields-1`: messages as fields where they fit, with a dictionary for DEFLATE beside for what does not.

    content   share; varint length of the preset dictionary, that; the model (`serialised`)
    payload   a state (`entropy`), least significant byte first, none at the end that is 0; or 255, raw DEFLATE

A state's first byte is 1 to 254: its outermost step takes 254 of 256 slots, 0.011 bits. So a message that has no
pattern, or is longer than MESSAGE_BYTES_MAX, costs one byte more than with a dictionary alone, in the same family under
the same alias. Where the fields take more than share / 256 of the message, both ways are tried; training sets the share
by what won in its samples.

Like DEFLATE this has no check against another model's payload: the tag names the model by a hash of its content. A
frame that was cut or extended is refused where the state does not end with the message; by chance alone it does. (A
check byte costs a message of 9 bytes a tenth.)

**In a stream** (`FieldsStream`) the same state is followed by both sides from message to message: values repeat,
numbers are near those before. What fits no pattern goes by DEFLATE, standalone, and leaves the state alone. A frame
that would be longer than FRAME_BYTES_MAX, as only a malicious model makes them, goes by DEFLATE too, behind a second
255: both sides begin anew then. A frame is one of a stream by a number that its reader expects, of NUMBERS, in 3 bits
of the state, or after the 255.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from lexicast.cluster.blocks import FIRST_DICTIONARY
from lexicast.cluster.errors import DictionaryError

from ..deflate import PAYLOAD_BYTES_MAX, Codec, Deflate
from .entropy import Step, Unfolding, fold
from .model import MESSAGE_BYTES_MAX, FieldsModel, FieldState
from .serialised import MODEL_BYTES_MAX, load_model

FIELDS: Final = "fields-1"

CONTENT_BYTES_MAX: Final = MODEL_BYTES_MAX
PRESET_BYTES_MAX: Final = 32 * 1024 - 262
FRAME_BYTES_MAX: Final = 2 * MESSAGE_BYTES_MAX
"""Of a state: what is longer was not made here, since DEFLATE would have been shorter."""

SHARE_ONE: Final = 256
NUMBERS: Final = 8
"""How many frames have numbers of their own: so many that are lost in a row would not be noticed by them."""
_FIRST: Final = 1
_FIRSTS: Final = 254
_OTHER: Final = 255
_OTHER_BYTE: Final = bytes((_OTHER,))
_ANEW_BYTE: Final = b"\xff"
"""No raw DEFLATE begins with it: its blocks would be of type 3, which does not exist (RFC 1951, section 3.2.3)."""
_MODELS_MAX: Final = 64


class FieldsContent(NamedTuple):
    """What the content of a dictionary of this codec holds."""

    share: int
    preset: bytes
    model: bytes


def join_fields_content(share: int, preset: bytes, model: bytes) -> bytes:
    """The content."""
    length = len(preset)
    head = bytearray((share,))
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + preset + model


def split_fields_content(content: bytes) -> FieldsContent:
    """The inverse of `join_fields_content`. Raises DictionaryError when it is none."""
    at, length, shift = 1, 0, 0
    while True:
        if at >= len(content) or shift > 14:
            raise DictionaryError("a dictionary of fields is cut short")
        length |= (content[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not content[at - 1] & 0x80:
            break
    if length > PRESET_BYTES_MAX or at + length >= len(content):
        raise DictionaryError(f"a dictionary of fields announces {length} bytes that are none, or too many")
    return FieldsContent(content[0], content[at : at + length], content[at + length :])


@lru_cache(maxsize=_MODELS_MAX)
def held_model(model: bytes) -> FieldsModel:
    """The model, read once for all codecs and streams of a process. Raises DictionaryError when it is none."""
    return load_model(model)


class FieldsCodec(Codec):
    """`fields-1`, each message alone."""

    kind = FIRST_DICTIONARY

    def __init__(self, label: str, content: bytes) -> None:
        super().__init__(label)
        self._content = content

    @cached_property
    def _parts(self) -> tuple[int, FieldsModel, Deflate]:
        """The share, the model and the other way. Raises DictionaryError when the content is none."""
        try:
            share, preset, model = split_fields_content(self._content)
            return share, held_model(model), Deflate(self.label, preset)
        except DictionaryError as error:
            raise DictionaryError(f"{self.label}: {error}") from None

    def compress(self, payload: bytes) -> bytes:
        share, model, deflate = self._parts
        if len(payload) > MESSAGE_BYTES_MAX:
            return _OTHER_BYTE + deflate.compress(payload)
        data = frame_of(model.steps(payload, FieldState(model, False)))
        if len(data) * SHARE_ONE <= share * len(payload):
            return data
        other = _OTHER_BYTE + deflate.compress(payload)
        return other if len(other) < len(data) else data

    def decompress(self, data: bytes, *, bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
        _, model, deflate = self._parts
        if data[:1] == _OTHER_BYTE:
            return deflate.decompress(data[1:], bytes_max=bytes_max)
        try:
            return model.message(_unfolding(data, bytes_max), FieldState(model, False))
        except DictionaryError as error:
            raise self._refuse(str(error)) from None

    def stream(self) -> FieldsStream:
        """A side of a stream. Raises DictionaryError when the content is none."""
        _, model, deflate = self._parts
        return FieldsStream(model, deflate)


def frame_of(steps: list[Step]) -> bytes:
    """The frame that says these steps."""
    high, low = divmod(fold(steps), _FIRSTS)
    number = high * SHARE_ONE + low + _FIRST
    return number.to_bytes((number.bit_length() + 7) // 8, "little")


def _unfolding(data: bytes, bytes_max: int) -> Unfolding:
    """The steps of a frame. Raises DictionaryError for what none is like."""
    if not 0 < len(data) <= FRAME_BYTES_MAX or not _FIRST <= data[0] < _OTHER or not data[-1]:
        raise DictionaryError(f"{len(data)} bytes are no frame of fields")
    high, low = divmod(int.from_bytes(data, "little"), SHARE_ONE)
    return Unfolding(high * _FIRSTS + low - _FIRST, min(bytes_max, MESSAGE_BYTES_MAX))


class FieldsStream:
    """One side of a stream of messages, sending or receiving. Frames have numbers that both sides count."""

    def __init__(self, model: FieldsModel, deflate: Deflate) -> None:
        self._model = model
        self._deflate = deflate
        self._state = FieldState(model, True)

    def compress(self, payload: bytes, number: int) -> bytes:
        """The next frame, the one with this number."""
        number %= NUMBERS
        anew = b""
        if len(payload) <= MESSAGE_BYTES_MAX and self._model.fits(payload):
            steps = self._model.steps(payload, self._state)
            frame = frame_of([(number, 1, NUMBERS), *steps])
            if len(frame) <= FRAME_BYTES_MAX:
                return frame
            self._state.begin(self._model)
            anew = _ANEW_BYTE
        return bytes((_OTHER, number)) + anew + self._deflate.compress(payload)

    def decompress(self, frame: bytes, number: int, *, bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
        """The payload of the frame with this number. Raises DictionaryError; the stream is of no use then."""
        number %= NUMBERS
        if frame[:1] != _OTHER_BYTE:
            unfolding = _unfolding(frame, bytes_max)
            _check(unfolding.uniform(NUMBERS), number)
            return self._model.message(unfolding, self._state)
        _check(frame[1] if len(frame) > 1 else -1, number)
        data = frame[2:]
        if data[:1] == _ANEW_BYTE:
            self._state.begin(self._model)
            data = data[1:]
        return self._deflate.decompress(data, bytes_max=bytes_max)


def _check(told: int, expected: int) -> None:
    if told != expected:
        raise DictionaryError(f"a frame of fields with number {told} does not follow: {expected} is expected")
