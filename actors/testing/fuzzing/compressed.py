"""Compressed payloads: tagged ones, topic streams, a link's past, packed dictionaries and field models.

Dictionaries that are packed carry a checksum, which an input would not guess: it is put right before it is read, since
whoever may publish a dictionary can do that too.
"""

from __future__ import annotations

import binascii
from contextlib import suppress
from functools import cache
from typing import Final, NamedTuple

from lexicast.cluster.blocks import DEFLATE, RAW
from lexicast.cluster.errors import DictionaryError
from lexicast.compression.codecs import CODECS
from lexicast.compression.deflate import Deflate
from lexicast.compression.dictionary import Dictionary, unpack_dictionary
from lexicast.compression.fields.codec import FIELDS, FieldsCodec
from lexicast.compression.link_history import HistoryReader, HistoryWriter
from lexicast.compression.streams.readers import StreamReaders
from lexicast.compression.streams.topic_stream import TopicStream
from lexicast.compression.training import train
from lexicast.compression.wire import FIRST_ALIAS, Binding, Bindings, Encoded, Recoder

from .target import FuzzTarget, must

FAMILY: Final = b"plant/+/t"
PAYLOAD_BYTES_MAX: Final = 10_000
SIZE: Final = 2_048
CHECKSUM_BYTES: Final = 4


def _samples() -> list[bytes]:
    """What a few devices say."""
    return [
        b'{"id":"d%d","n":%d,"t":%d.%d,"on":%s}' % (n % 5, n, 20 + n % 7, n % 10, b"true" if n % 3 else b"false")
        for n in range(120)
    ]


class _Known(NamedTuple):
    dictionaries: dict[int, Dictionary]
    recoder: Recoder
    aliases: dict[int, int]


@cache
def _known() -> _Known:
    """One dictionary of each codec, held and bound."""
    made = [train(_samples(), SIZE, codec, family=FAMILY) for codec in CODECS]
    recoder = Recoder(payload_bytes_max=PAYLOAD_BYTES_MAX)
    for dictionary in made:
        recoder.add(dictionary)
    aliases = {FIRST_ALIAS + index: dictionary.id for index, dictionary in enumerate(made)}
    return _Known({dictionary.id: dictionary for dictionary in made}, recoder, aliases)


def _attempt_tagged(data: bytes) -> None:
    """The first byte: how many bytes of bindings follow; the rest is a tagged payload."""
    known = _known()
    bindings = Bindings()
    bindings.bind(b"".join([Binding(0, alias, id).pack() for alias, id in known.aliases.items()]))
    at = 1 + data[0] if data else 0
    with suppress(DictionaryError):
        bindings.bind(data[1:at])
    try:
        taken = known.recoder.from_aware(data[at:], bindings)
        raw = known.recoder.to_raw(*taken)
    except DictionaryError:
        return
    must(taken.encoding == RAW or len(raw) <= PAYLOAD_BYTES_MAX, f"{len(raw)} bytes came out")


def _attempt_frames(data: bytes) -> None:
    """Frames of one topic, each behind two bytes with its length."""
    known = _known()
    readers = StreamReaders(known.dictionaries.get, PAYLOAD_BYTES_MAX)
    for frame in _parts(data):
        try:
            payload = readers.decode(b"plant/1/t", frame)
        except DictionaryError:
            continue
        must(len(payload) <= PAYLOAD_BYTES_MAX, f"{len(payload)} bytes came out")


def _attempt_history(data: bytes) -> None:
    """Frames of one connection that refer to what came before them on it."""
    reader = HistoryReader()
    for frame in _parts(data):
        try:
            payload = reader.payload(frame, bytes_max=PAYLOAD_BYTES_MAX)
        except DictionaryError:
            return
        must(len(payload) <= PAYLOAD_BYTES_MAX, f"{len(payload)} bytes came out")


def _parts(data: bytes) -> list[bytes]:
    parts: list[bytes] = []
    at = 0
    while at + 2 <= len(data) and len(parts) < 64:
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        parts.append(data[at + 2 : end])
        at = end
    return parts


def _framed(parts: list[bytes]) -> bytes:
    return b"".join([len(part).to_bytes(2, "big") + part for part in parts])


def _attempt_dictionary(data: bytes) -> None:
    """A packed dictionary without its checksum. What can be read is used."""
    known = _known()
    packed = data + binascii.crc32(data).to_bytes(CHECKSUM_BYTES, "big")
    try:
        dictionary = unpack_dictionary(packed, known.dictionaries.get)
    except DictionaryError:
        return
    again = unpack_dictionary(dictionary.pack())
    must(again == dictionary, "packed again it is another one")
    _use(dictionary)


def _attempt_fields(data: bytes) -> None:
    """The content of a field model; the first two bytes: how long a frame stands at the end."""
    size = int.from_bytes(data[:2], "big")
    content, frame = (data[2:-size], data[-size:]) if 0 < size < len(data) - 2 else (data[2:], b"")
    if not 0 < len(content) <= CODECS[FIELDS].content_bytes_max:
        return
    _use(Dictionary(FAMILY, FIELDS, content), frame)


def _use(dictionary: Dictionary, frame: bytes = b"") -> None:
    """What is compressed with it comes back; what is no frame of it is refused."""
    codec = dictionary.build()
    for message in (b'{"id":"d1","n":5,"t":20.5,"on":true}', b"\xff\0"):
        try:
            packed = codec.compress(message)
        except DictionaryError:
            return  # it is none
        must(codec.decompress(packed) == message, "what was compressed is something else")
    for bad in (frame, b"\1\2\3\4\5\6\7\10\11", b"\xf0" * 40):
        _decompress(dictionary, bad)


def _decompress(dictionary: Dictionary, frame: bytes) -> None:
    codec = dictionary.build()
    try:
        out = codec.decompress(frame, bytes_max=PAYLOAD_BYTES_MAX)
    except DictionaryError:
        pass
    else:
        must(len(out) <= PAYLOAD_BYTES_MAX, f"{len(out)} bytes came out")
    if isinstance(codec, FieldsCodec):
        stream = codec.stream()
        try:
            for number in range(3):
                stream.decompress(frame, number, bytes_max=PAYLOAD_BYTES_MAX)
        except DictionaryError:
            pass


def _tagged_seeds() -> tuple[bytes, ...]:
    known, message = _known(), _samples()[3]
    found = [b"\0" + bytes((RAW,)) + message, b"\0" + bytes((DEFLATE,)) + Deflate().compress(message * 9)]
    for alias, id in known.aliases.items():
        encoded: Encoded = known.recoder.encode(message, known.dictionaries[id])
        found.append(b"\0" + bytes((alias,)) + encoded.data)
        binding = Binding(0, alias + 9, id).pack()
        found.append(bytes((len(binding),)) + binding + bytes((alias + 9,)) + encoded.data)
    return tuple(found)


def _frame_seeds() -> tuple[bytes, ...]:
    found = []
    for dictionary in (None, *_known().dictionaries.values()):
        stream = TopicStream()
        stream.begin(dictionary)
        found.append(_framed(stream.encode(_samples()[:5], 0)[0]))
    stream = TopicStream()
    stream.begin(None, of_zstd=True)
    messages = [b"".join(_samples()), b"", b"a" * PAYLOAD_BYTES_MAX, _samples()[0], b"".join(_samples())]
    found.append(_framed(stream.encode(messages, 0)[0]))
    return tuple(found)


def _history_seeds() -> tuple[bytes, ...]:
    writer = HistoryWriter()
    frames = [writer.frame(message * 3) for message in _samples()[:5]]
    return (_framed([frame for frame in frames if frame is not None]),)


def _field_seeds() -> tuple[bytes, ...]:
    found = []
    for size in (500, SIZE):
        dictionary = train(_samples(), size, FIELDS, family=FAMILY)
        frame = dictionary.build().compress(_samples()[7])
        found.append(len(frame).to_bytes(2, "big") + dictionary.content + frame)
    return tuple(found)


def tagged() -> FuzzTarget:
    """Payloads of dictionary-aware clients, and their bindings."""
    return FuzzTarget(_attempt_tagged, _tagged_seeds())


def frames() -> FuzzTarget:
    """Topic streams, as receivers read them."""
    return FuzzTarget(_attempt_frames, _frame_seeds())


def link_past() -> FuzzTarget:
    """A publisher's link's own past."""
    return FuzzTarget(_attempt_history, _history_seeds())


def dictionaries() -> FuzzTarget:
    """Packed dictionaries."""
    known = _known().dictionaries.values()
    packed = [dictionary.pack()[:-CHECKSUM_BYTES] for dictionary in known]
    first, *others = known
    packed += [replaced.pack(first)[:-CHECKSUM_BYTES] for replaced in others if replaced.codec == first.codec]
    return FuzzTarget(_attempt_dictionary, tuple(packed), 8_192)


def fields() -> FuzzTarget:
    """Field models, and frames made with them."""
    return FuzzTarget(_attempt_fields, _field_seeds())
