"""Dictionaries: what a family's publishers and subscribers share, and the form in which it travels and is stored.

**Identity.** A dictionary is known by a 64-bit id: the first 8 bytes of BLAKE2b over the codec's name (which carries
its parameters) and the content. Times are not part of it, so a dictionary whose life is prolonged keeps its id. Ids 0
and 1 do not occur: they are the encodings RAW and DEFLATE.

**Packed form**, big-endian; it counts as |DC| in every figure:

    2 magic "SD", 1 version, 1 codec number, 1 flags (bit 0: content compressed with zstd-19), 8 id, 8 created_us,
    8 expires_us, 4 samples, 4 content length, 2 family length, family, content, 4 CRC-32 of all before it
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Final

import zstandard

from lexicast.cluster.errors import DictionaryError

from .codecs import CODECS, Codec

NEVER_US: Final = 2**63 - 1

VERSION: Final = 1
FAMILY_BYTES_MAX: Final = 65_535
CONTENT_BYTES_MAX: Final = 256 * 1024
PACKED_BYTES_MAX: Final = CONTENT_BYTES_MAX + FAMILY_BYTES_MAX + 1024

_MAGIC: Final = b"SD"
_CONTENT_COMPRESSED: Final = 1
_HEADER: Final = struct.Struct(">2sBBBQqqIIH")
_CHECKSUM: Final = struct.Struct(">I")
_CODEC_NAMES: Final = {spec.number: name for name, spec in CODECS.items()}


@dataclass(frozen=True)
class Dictionary:
    """One dictionary of one family. Two with the same id decompress alike.

    `family` is the topic filter whose messages share it; `created_us` orders the dictionaries of a family;
    publishers stop using it at `expires_us`, receivers never do. Raises DictionaryError when a field is out of range.
    """

    family: bytes
    codec: str
    content: bytes
    created_us: int = 0
    expires_us: int = NEVER_US
    samples: int = 0

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise DictionaryError(f"family {shown(self.family)}: unknown codec {self.codec!r}: update lexicast")
        if not 0 < len(self.family) <= FAMILY_BYTES_MAX:
            raise DictionaryError(f"a family's name has 1 to {FAMILY_BYTES_MAX} bytes, not {len(self.family)}")
        limit = CODECS[self.codec].content_bytes_max
        if not 0 < len(self.content) <= limit:
            raise DictionaryError(f"{self.label}: {len(self.content)} bytes of content: 1 to {limit} are allowed")
        if not (0 <= self.created_us <= NEVER_US and 0 <= self.expires_us <= NEVER_US and 0 <= self.samples < 2**32):
            raise DictionaryError(f"{self.label}: times or samples out of range")

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

    def pack(self) -> bytes:
        """The packed form (see the module's docstring)."""
        squeezed = zstandard.ZstdCompressor(compression_params=_content_parameters()).compress(self.content)
        smaller = len(squeezed) < len(self.content)
        content, flags = (squeezed, _CONTENT_COMPRESSED) if smaller else (self.content, 0)
        header = _HEADER.pack(
            _MAGIC,
            VERSION,
            CODECS[self.codec].number,
            flags,
            self.id,
            self.created_us,
            self.expires_us,
            self.samples,
            len(self.content),
            len(self.family),
        )
        body = header + self.family + content
        return body + _CHECKSUM.pack(zlib.crc32(body))


def shown(family: bytes) -> str:
    """A family's name for messages: quoted, cut after 80 bytes."""
    return repr(family[:80].decode(errors="backslashreplace") + ("..." if len(family) > 80 else ""))


def content_id(codec: str, content: bytes) -> int:
    """The id of `content` used with `codec`: never 0 or 1."""
    name = codec.encode()
    digest = blake2b(len(name).to_bytes(2, "big") + name + content, digest_size=8).digest()
    number = int.from_bytes(digest, "big")
    return number if number > 1 else number + 2


def unpack(packed: bytes) -> Dictionary:
    """The inverse of `Dictionary.pack`.

    Raises DictionaryError when `packed` is too long, cut short, damaged, of a newer version, of an unknown codec, or
    when its content does not have the id that it claims.
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
    return _unpack_body(body)


def _unpack_body(body: bytes) -> Dictionary:
    _, _, number, flags, id, created_us, expires_us, samples, length, family_length = _HEADER.unpack_from(body)
    at = _HEADER.size + family_length
    family, content = body[_HEADER.size : at], body[at:]
    label = f"family {shown(family)}, dictionary {id:016x}"
    if number not in _CODEC_NAMES:
        raise DictionaryError(f"{label}: unknown codec number {number}: update lexicast")
    if length > CONTENT_BYTES_MAX:
        raise DictionaryError(f"{label}: {length} bytes of content: at most {CONTENT_BYTES_MAX} are allowed")
    if flags & _CONTENT_COMPRESSED:
        content = _inflate_content(content, length, label)
    dictionary = Dictionary(family, _CODEC_NAMES[number], content, created_us, expires_us, samples)
    if len(content) != length or dictionary.id != id:
        raise DictionaryError(f"{label}: the content is another one ({dictionary.id:016x}, {len(content)} bytes)")
    return dictionary


def _inflate_content(data: bytes, length: int, label: str) -> bytes:
    inflater = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS)
    try:
        return inflater.decompress(data, max_output_size=max(length, 1), allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:
        raise DictionaryError(f"{label}: the content cannot be decompressed: {error}") from None


def _content_parameters() -> zstandard.ZstdCompressionParameters:
    return zstandard.ZstdCompressionParameters.from_level(
        19,
        format=zstandard.FORMAT_ZSTD1_MAGICLESS,
        write_content_size=False,
        write_checksum=False,
        write_dict_id=False,
    )
