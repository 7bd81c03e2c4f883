"""`fields-1`: messages as fields where they fit, with a dictionary for DEFLATE beside for what does not.

    content   share; varint length of the preset dictionary, that; the model (`serialised`)
    payload   a state (`entropy`), least significant byte first, none at the end that is 0; or 255, raw DEFLATE

A state's first byte is never 255: its outermost step takes 255 of 256 slots, 0.006 bits. So a message that has no
pattern, or is longer than MESSAGE_BYTES_MAX, costs one byte more than with a dictionary alone, in the same family under
the same alias. Where the fields take more than share / 256 of the message, both ways are tried; training sets the share
by what won in its samples.

Like DEFLATE this has no check against another model's payload: the tag names the model by a hash of its content. A
frame that was cut or extended is refused where the state does not end with the message; by chance alone it does. (A
check byte costs a message of 9 bytes a tenth.)

**In a stream** (`FieldsStream`) the same state is followed by both sides from message to message: values repeat,
numbers are near those before. What fits no pattern goes by DEFLATE, standalone, and leaves the state alone. A frame
that would be longer than FRAME_BYTES_MAX, as only a malicious model makes them, goes by DEFLATE too, behind a second
255: both sides begin anew then.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from lexicast.cluster.blocks import FIRST_DICTIONARY
from lexicast.cluster.errors import DictionaryError

from ..deflate import PAYLOAD_BYTES_MAX, Codec, Deflate
from .entropy import Unfolding, fold
from .model import MESSAGE_BYTES_MAX, FieldsModel, FieldState
from .serialised import MODEL_BYTES_MAX, load_model

FIELDS: Final = "fields-1"

CONTENT_BYTES_MAX: Final = MODEL_BYTES_MAX
PRESET_BYTES_MAX: Final = 32 * 1024 - 262
FRAME_BYTES_MAX: Final = 2 * MESSAGE_BYTES_MAX
"""Of a state: what is longer was not made here, since DEFLATE would have been shorter."""

SHARE_ONE: Final = 256
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
        return self.put(payload, None)

    def put(self, payload: bytes, state: FieldState | None) -> bytes:
        """`payload` compressed; `state`: of the stream that it goes on with, if it does."""
        share, model, deflate = self._parts
        if len(payload) > MESSAGE_BYTES_MAX:
            return _OTHER_BYTE + deflate.compress(payload)
        if state is None:
            data = frame_of(payload, model, FieldState(model, False))
            if len(data) * SHARE_ONE <= share * len(payload):
                return data
            other = _OTHER_BYTE + deflate.compress(payload)
            return other if len(other) < len(data) else data
        if not model.fits(payload):
            return _OTHER_BYTE + deflate.compress(payload)
        data = frame_of(payload, model, state)
        if len(data) <= FRAME_BYTES_MAX:
            return data
        state.begin(model)
        return _OTHER_BYTE + _ANEW_BYTE + deflate.compress(payload)

    def stream_state(self) -> FieldState:
        """That of a stream before its first message."""
        return FieldState(self._parts[1], True)

    def decompress(self, data: bytes, *, bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
        return self.take(data, None, bytes_max)

    def take(self, data: bytes, state: FieldState | None, bytes_max: int) -> bytes:
        """The inverse of `put`. Raises DictionaryError as `decompress`."""
        _, model, deflate = self._parts
        if not data:
            raise self._refuse("cut short")
        if data[0] == _OTHER:
            if state is not None and data[1:2] == _ANEW_BYTE:
                state.begin(model)
                data = data[1:]
            return deflate.decompress(data[1:], bytes_max=bytes_max)
        if len(data) > FRAME_BYTES_MAX or (data[-1] == 0 and len(data) > 1):
            raise self._refuse(f"{len(data)} bytes are no frame of fields")
        high, low = divmod(int.from_bytes(data, "little"), SHARE_ONE)
        unfolding = Unfolding(high * _OTHER + low, min(bytes_max, MESSAGE_BYTES_MAX))
        try:
            return model.message(unfolding, FieldState(model, False) if state is None else state)
        except DictionaryError as error:
            raise self._refuse(str(error)) from None


def frame_of(payload: bytes, model: FieldsModel, state: FieldState) -> bytes:
    """The frame of a payload of at most MESSAGE_BYTES_MAX bytes."""
    high, low = divmod(fold(model.steps(payload, state)), _OTHER)
    number = high * SHARE_ONE + low
    return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "little")


class FieldsStream:
    """One side of a stream of messages, sending or receiving."""

    def __init__(self, codec: FieldsCodec) -> None:
        """Raises DictionaryError when the codec's content is none."""
        self._codec = codec
        self._state = codec.stream_state()

    def compress(self, payload: bytes) -> bytes:
        """The next frame."""
        return self._codec.put(payload, self._state)

    def decompress(self, data: bytes, *, bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
        """The payload of the next frame. Raises DictionaryError; the stream is of no use then."""
        return self._codec.take(data, self._state, bytes_max)
