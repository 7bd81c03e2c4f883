"""Dictionaries: what a family's publishers and subscribers share, and the form in which it travels and is stored.

**Identity.** A dictionary is known by a 64-bit id: the first 8 bytes of BLAKE2b over the codec's name (which carries
its parameters) and the content. Times are not part of it, so a dictionary whose life is prolonged keeps its id. Ids 0
and 1 do not occur: they are the encodings RAW and DEFLATE.

**Packed form**; it counts as |DC| in every figure, and with P publishers it crosses P + S links, so every byte of it
was weighed (22 fewer than fixed-width fields took):

    2 magic "SD", 1 version, 1 codec number, 1 how the content is packed, then as varints (7 bits a byte, low first)
    created_us, expires_us (0: never, else 1 + zigzag of its distance from created_us), samples, content length,
    family length; family; [8 id of the previous dictionary]; content; 4 CRC-32 (big-endian) of all before it

The content travels as it is, as a zstd-19 frame, as raw DEFLATE, or as a zstd-19 frame against the previous
dictionary's content, whichever is shortest. The last only where the sender knows that the receiver holds that one: a
retained dictionary, which late comers read, never refers to another. The id is not sent: it is what the content gives.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Final, TypeAlias

import zstandard

from lexicast.cluster.errors import DictionaryError

from .codecs import CODECS, Codec, Deflate
from .opening import unpacked_frame

NEVER_US: Final = 2**63 - 1

VERSION: Final = 2
FAMILY_BYTES_MAX: Final = 65_535
CONTENT_BYTES_MAX: Final = 256 * 1024
PACKED_BYTES_MAX: Final = CONTENT_BYTES_MAX + FAMILY_BYTES_MAX + 1024

Held: TypeAlias = Callable[[int], "Dictionary | None"]
"""Looks a dictionary up by id: None when it is not held."""

_HEADER: Final = struct.Struct(">2sBBB")
_MAGIC: Final = b"SD"
_ID: Final = struct.Struct(">Q")
_CHECKSUM: Final = struct.Struct(">I")
_OF_PUBLISHERS: Final = 1 << 31
_SAMPLES_BITS: Final = 20
PUBLISHERS_MAX: Final = 0x7FF
_CODEC_NAMES: Final = {spec.number: name for name, spec in CODECS.items()}
_PLAIN, _ZSTD, _DEFLATE, _DIFFERENCE = range(4)


@dataclass(frozen=True)
class Dictionary:
    """One dictionary of one family. Two with the same id decompress alike.

    `family` is the topic filter whose messages share it; `created_us` orders the dictionaries of a family;
    publishers stop using it at `expires_us`, receivers never do. `publishers`: so many at least have sent whatever is
    in it (`shared_text`); 0: not known. Raises DictionaryError when a field is out of range.
    """

    family: bytes
    codec: str
    content: bytes
    created_us: int = 0
    expires_us: int = NEVER_US
    samples: int = 0
    publishers: int = 0

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise DictionaryError(f"family {shown(self.family)}: unknown codec {self.codec!r}: update lexicast")
        if not 0 < len(self.family) <= FAMILY_BYTES_MAX:
            raise DictionaryError(f"a family's name has 1 to {FAMILY_BYTES_MAX} bytes, not {len(self.family)}")
        limit = CODECS[self.codec].content_bytes_max
        if not 0 < len(self.content) <= limit:
            raise DictionaryError(f"{self.label}: {len(self.content)} bytes of content: 1 to {limit} are allowed")
        if not (
            0 <= self.created_us <= NEVER_US and 0 <= self.expires_us <= NEVER_US and 0 <= self.samples < _OF_PUBLISHERS
        ):
            raise DictionaryError(f"{self.label}: times or samples out of range")
        if not 0 <= self.publishers <= PUBLISHERS_MAX:
            raise DictionaryError(f"{self.label}: {self.publishers} publishers: 0 to {PUBLISHERS_MAX} can be told")

    @cached_property
    def id(self) -> int:
        """The 64-bit content id."""
        return content_id(self.codec, self.content)

    @property
    def label(self) -> str:
        """Family and id, for messages."""
        return f"family {shown(self.family)}, dictionary {self.id:016x}"

    def build(self) -> Codec:
        """A new codec bound to this dictionary (up to 300 KiB once it is used: `wire.Recoder` bounds their number)."""
        return CODECS[self.codec].build(self.label, self.content)

    def pack(self, previous: Dictionary | None = None) -> bytes:
        """The packed form (see the module's docstring); `previous`: one that every receiver of these bytes holds.

        The one without is made once: a broker sends it to each of its sessions, and squeezing it takes 1 to 26 ms.
        """
        return self._packed if previous is None else self._pack(previous)

    @cached_property
    def _packed(self) -> bytes:
        return self._pack(None)

    def _pack(self, previous: Dictionary | None) -> bytes:
        how, content = self._packed_content(previous)
        life = 0 if self.expires_us == NEVER_US else 1 + _zigzag(self.expires_us - self.created_us)
        numbers = (self.created_us, life, self._made_of, len(self.content), len(self.family))
        header = _HEADER.pack(_MAGIC, VERSION, CODECS[self.codec].number, how)
        body = header + b"".join(map(_varint, numbers)) + self.family + content
        return body + _CHECKSUM.pack(zlib.crc32(body))

    @property
    def _made_of(self) -> int:
        """Samples and publishers as one number: who does not know of the latter sees many samples."""
        if not self.publishers:
            return self.samples
        return _OF_PUBLISHERS | self.publishers << _SAMPLES_BITS | min(self.samples, (1 << _SAMPLES_BITS) - 1)

    def packed_bytes_about(self, previous: Dictionary | None = None) -> int:
        """The length of `pack(previous)` within some percent, at a twentieth of its CPU: for trials."""
        known = previous.content[-_DEFLATE_WINDOW:] if previous is not None else b""
        deflate = zlib.compressobj(6, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, known)
        return _PACKED_BYTES_ABOUT + len(self.family) + len(deflate.compress(self.content)) + len(deflate.flush())

    def _packed_content(self, previous: Dictionary | None) -> tuple[int, bytes]:
        """(how, bytes): the shortest way."""
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
        forms = [
            (_PLAIN, self.content),
            (_ZSTD, _squeezer().compress(self.content)),
            (_DEFLATE, deflate.compress(self.content) + deflate.flush()),
        ]
        if previous is not None:
            difference = _squeezer(previous.content).compress(self.content)
            forms.append((_DIFFERENCE, _ID.pack(previous.id) + difference))
        return min(forms, key=lambda form: len(form[1]))


def _squeezer(prefix: bytes | None = None) -> zstandard.ZstdCompressor:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        19,
        window_log=_WINDOW_LOG,
        format=zstandard.FORMAT_ZSTD1_MAGICLESS,
        write_content_size=False,
        write_checksum=False,
        write_dict_id=False,
    )
    known = None if prefix is None else zstandard.ZstdCompressionDict(prefix, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    return zstandard.ZstdCompressor(compression_params=parameters, dict_data=known)


_DEFLATE_WINDOW: Final = 32 * 1024 - 262
_PACKED_BYTES_ABOUT: Final = 23

# Reaches over a whole previous content and its successor.
_WINDOW_LOG: Final = 19


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _unzigzag(number: int) -> int:
    return number >> 1 if not number & 1 else -((number + 1) >> 1)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def shown(family: bytes) -> str:
    """A family's name for messages: quoted, cut after 80 bytes."""
    return repr(family[:80].decode(errors="backslashreplace") + ("..." if len(family) > 80 else ""))


def content_id(codec: str, content: bytes) -> int:
    """The id of `content` used with `codec`: never 0 or 1."""
    name = codec.encode()
    digest = blake2b(len(name).to_bytes(2, "big") + name + content, digest_size=8).digest()
    number = int.from_bytes(digest, "big")
    return number if number > 1 else number + 2


def unpack_dictionary(packed: bytes, held: Held | None = None) -> Dictionary:
    """The inverse of `Dictionary.pack`; `held` finds the previous dictionary where `packed` is a difference to one.

    Raises DictionaryError when `packed` is too long, cut short, damaged, of a newer version, of an unknown codec, or a
    difference to a dictionary that is not held.
    """
    if len(packed) > PACKED_BYTES_MAX:
        raise DictionaryError(f"a packed dictionary of {len(packed)} bytes: at most {PACKED_BYTES_MAX} are allowed")
    if len(packed) < _HEADER.size + _CHECKSUM.size or packed[:2] != _MAGIC:
        raise DictionaryError(f"not a packed dictionary ({len(packed)} bytes)")
    if packed[2] != VERSION:
        raise DictionaryError(f"a dictionary of format version {packed[2]}, this lexicast reads {VERSION}: update it")
    body = packed[: -_CHECKSUM.size]
    if _CHECKSUM.unpack(packed[-_CHECKSUM.size :])[0] != zlib.crc32(body):
        raise DictionaryError("a packed dictionary is damaged: its checksum does not fit")
    return _unpack_body(body, held or _nothing)


def _nothing(id: int) -> None:
    """Holds no dictionary."""


def _unpack_body(body: bytes, held: Held) -> Dictionary:
    _, _, number, how = _HEADER.unpack_from(body)
    (created_us, life, samples, length, family_length), at = _varints(body, _HEADER.size, 5)
    family, packed = body[at : at + family_length], body[at + family_length :]
    label = f"family {shown(family)}, a packed dictionary"
    if number not in _CODEC_NAMES:
        raise DictionaryError(f"{label}: unknown codec number {number}: update lexicast")
    if length > CONTENT_BYTES_MAX:
        raise DictionaryError(f"{label}: {length} bytes of content: at most {CONTENT_BYTES_MAX} are allowed")
    content = _unpack_content(how, packed, length, label, held)
    if len(content) != length:
        raise DictionaryError(f"{label}: {length} bytes of content are announced, {len(content)} came")
    expires_us = NEVER_US if life == 0 else created_us + _unzigzag(life - 1)
    publishers = 0
    if samples & _OF_PUBLISHERS:
        publishers = samples >> _SAMPLES_BITS & PUBLISHERS_MAX
        samples &= (1 << _SAMPLES_BITS) - 1
    return Dictionary(family, _CODEC_NAMES[number], content, created_us, expires_us, samples, publishers)


def _varints(data: bytes, at: int, count: int) -> tuple[list[int], int]:
    """`count` varints from `at` on, of at most 10 bytes each, and where they end."""
    numbers: list[int] = []
    number = shift = 0
    while len(numbers) < count:
        if at >= len(data) or shift > 63:
            raise DictionaryError("a packed dictionary's header is not one")
        number |= (data[at] & 0x7F) << shift
        shift += 7
        if not data[at] & 0x80:
            numbers.append(number)
            number = shift = 0
        at += 1
    return numbers, at


def _unpack_content(how: int, packed: bytes, length: int, label: str, held: Held) -> bytes:
    if how == _PLAIN:
        return packed
    if how == _DEFLATE:
        return Deflate(label).decompress(packed, bytes_max=length)
    if how == _ZSTD:
        return _inflate_content(packed, length, label, None)
    if how != _DIFFERENCE or len(packed) < _ID.size:
        raise DictionaryError(f"{label}: its content is packed in an unknown way ({how}): update lexicast")
    (id,) = _ID.unpack_from(packed)
    previous = held(id)
    if previous is None:
        raise DictionaryError(f"{label}: it is the difference to dictionary {id:016x}, which is not held")
    return _inflate_content(packed[_ID.size :], length, label, previous.content)


def _inflate_content(data: bytes, length: int, label: str, prefix: bytes | None) -> bytes:
    known = None if prefix is None else zstandard.ZstdCompressionDict(prefix, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    inflater = zstandard.ZstdDecompressor(dict_data=known, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
    try:
        return unpacked_frame(inflater, data, length, 0 if prefix is None else len(prefix))
    except DictionaryError as error:
        raise DictionaryError(f"{label}: the content cannot be decompressed: {error}") from None
