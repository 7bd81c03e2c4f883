"""Codecs: what turns one payload into fewer bytes and back, given a dictionary that both sides hold.

| name        | wire                  | when it wins (mean over 17 sets of messages, tag byte counted)       |
| ----------- | --------------------- | ---------------------------------------------------------------------- |
| `zstd-3`    | alias of a dictionary | CPU: 1 to 3 us a message                                               |
| `zstd-13`   | alias of a dictionary | large dictionaries of recent messages: 3 points more; 7 to 20 us       |
| `deflate-9` | alias of a dictionary | messages of 25 to 130 B (bit-level headers), small dictionaries; 10-50 us |
| `fields-1`  | alias of a dictionary | what machines wrote: templates and numbers (`fields`); 15 to 80 us        |
| DEFLATE     | tag 1, no dictionary  | before the first dictionary; what every receiver can read              |

No codec wins everywhere, so `training` chooses one for each family by trial. All of them compress each message alone.
(The two zstd codecs differ in the compressor's effort alone. Mean reduction over 12 sets of messages with 32 KiB of
recent messages as content: level 3 73.5%, 5 to 12 up to 75.7%, 13 76.6%, 16 76.9% at 3 to 7 times the CPU of 13.)

**Stripped zstd frames.** A frame without magic number, content size, checksum and dictionary id still spends 5 bytes
on headers. With one compressed block, all of them follow from the length, so only the block's content is sent, after
one check byte (the low byte of the payload's CRC-32). The check byte costs 0.1 to 1 points of reduction and buys this:
of 21,000 payloads cut short, zstd took 0.7% for good without it (the block's length is implied, so a shorter block
is well formed), and a wrong dictionary of the same topic gave silent wrong output in 0.3% of cases. Other frames
(more than 128 KiB, a run of one byte) are sent whole behind FULL_FRAME, which cannot begin a compressed block (it
would announce a literals section of 1,048,575 bytes where 131,072 are the most: RFC 8878, section 3.1.1.3.1.1), and
the payload's length in 4 bytes. (With a buffer of exactly that length python-zstandard notices bytes behind the frame;
with a longer one it did not, allow_extra_data or no.)

DEFLATE needs no check against a cut: its last block says that it is the last. Against a wrong dictionary it has none;
what protects both codecs is that the tag names the dictionary by a hash of its content.

A codec object is not safe for use by two threads at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

import zstandard

from lexicast.cluster.errors import DictionaryError

from .deflate import PAYLOAD_BYTES_MAX, Codec, Deflate, DictionaryDeflate, payload_bytes_max
from .fields.codec import CONTENT_BYTES_MAX, FIELDS, FieldsCodec
from .opening import unpacked_frame, unpacked_own_frame

__all__ = [
    "CODECS",
    "DEFLATE_PRESET",
    "FIELDS",
    "FULL_FRAME",
    "PAYLOAD_BYTES_MAX",
    "ZSTD",
    "ZSTD_DENSE",
    "Codec",
    "CodecSpec",
    "Deflate",
    "DenseZstd",
    "DictionaryZstd",
    "payload_bytes_max",
]

FULL_FRAME: Final = b"\xfd\xff\xff"

# Frame header: no content size, no checksum, no dictionary id; window 128 KiB, which one block cannot exceed.
_FRAME_HEADER: Final = b"\x00\x38"
_HEADER_BYTES: Final = 5
_BLOCK_BYTES_MAX: Final = 128 * 1024
_LAST_COMPRESSED: Final = 0b101
_LENGTH_BYTES: Final = 4


class DictionaryZstd(Codec):
    """`zstd-3`: zstd level 3 with a trained or finalized dictionary (or raw content), stripped frames."""

    level: ClassVar[int] = 3

    def __init__(self, label: str, content: bytes) -> None:
        super().__init__(label)
        self._content = content

    @cached_property
    def _compressor(self) -> zstandard.ZstdCompressor:
        parameters = zstandard.ZstdCompressionParameters.from_level(
            self.level,
            format=zstandard.FORMAT_ZSTD1_MAGICLESS,
            write_content_size=False,
            write_checksum=False,
            write_dict_id=False,
        )
        dictionary = self._dictionary()
        dictionary.precompute_compress(compression_params=parameters)
        return zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters)

    @cached_property
    def _decompressor(self) -> zstandard.ZstdDecompressor:
        return zstandard.ZstdDecompressor(dict_data=self._dictionary(), format=zstandard.FORMAT_ZSTD1_MAGICLESS)

    def _dictionary(self) -> zstandard.ZstdCompressionDict:
        return zstandard.ZstdCompressionDict(self._content, dict_type=zstandard.DICT_TYPE_AUTO)

    def compress(self, payload: bytes) -> bytes:
        try:
            frame = self._compressor.compress(payload)
        except (zstandard.ZstdError, MemoryError) as error:
            raise DictionaryError(f"{self.label}: the dictionary cannot be used: {error}") from None
        block = _strip(frame)
        if block is None:
            block = FULL_FRAME + len(payload).to_bytes(_LENGTH_BYTES, "big") + frame
        return bytes((zlib.crc32(payload) & 0xFF,)) + block

    def decompress(self, data: bytes, *, bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
        if len(data) < 2:
            raise self._refuse("cut short")
        payload = self._whole(data, bytes_max) if data.startswith(FULL_FRAME, 1) else self._block(data, bytes_max)
        if zlib.crc32(payload) & 0xFF != data[0]:
            raise self._refuse("its check byte does not fit (cut short, damaged, or of another dictionary)")
        return payload

    def _block(self, data: bytes, bytes_max: int) -> bytes:
        """The payload of a stripped frame: one block, so at most 128 KiB."""
        if len(data) > 1 + _BLOCK_BYTES_MAX:
            raise self._refuse(f"a block of {len(data) - 1} bytes")
        header = _FRAME_HEADER + (len(data) - 1 << 3 | _LAST_COMPRESSED).to_bytes(3, "little")
        payload = self._opened(unpacked_own_frame, header + data[1:], min(bytes_max, _BLOCK_BYTES_MAX))
        if len(payload) > bytes_max:
            raise self._refuse(f"more than {bytes_max} bytes")
        return payload

    def _whole(self, data: bytes, bytes_max: int) -> bytes:
        """The payload of a whole frame, whose length is told and checked before memory is taken for it."""
        at = 1 + len(FULL_FRAME)
        length = int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
        if length > bytes_max:
            raise self._refuse(f"{length} bytes are announced, at most {bytes_max} are allowed")
        payload = self._opened(self._unpacked, data[at + _LENGTH_BYTES :], length)
        if len(payload) != length:
            raise self._refuse(f"{length} bytes are announced, {len(payload)} came")
        return payload

    def _unpacked(self, decompressor: zstandard.ZstdDecompressor, frame: bytes, room: int) -> bytes:
        return unpacked_frame(decompressor, frame, room, len(self._content))

    def _opened(
        self, unpack: Callable[[zstandard.ZstdDecompressor, bytes, int], bytes], frame: bytes, room: int
    ) -> bytes:
        try:
            return unpack(self._decompressor, frame, room)
        except (DictionaryError, zstandard.ZstdError, MemoryError) as error:
            raise self._refuse(str(error)) from None


class DenseZstd(DictionaryZstd):
    """`zstd-13`: the same bytes on the wire as `zstd-3`, found with more effort."""

    level = 13


def _strip(frame: bytes) -> bytes | None:
    """What of a magicless frame has to be sent; None when it is not one compressed block."""
    head = int.from_bytes(frame[2:_HEADER_BYTES], "little")
    plain = frame[0] == 0 and head & 7 == _LAST_COMPRESSED and head >> 3 == len(frame) - _HEADER_BYTES
    return frame[_HEADER_BYTES:] if plain else None


class CodecSpec(NamedTuple):
    """A codec that dictionaries name: `number` is written in packed dictionaries and never given to another codec."""

    number: int
    content_bytes_max: int
    build: Callable[[str, bytes], Codec]
    handicap_percent: float
    """A trial counts this share of the raw bytes against the codec: what its CPU has to save at least."""


# The name carries every parameter that changes what the bytes mean: it goes into the dictionary's id.
ZSTD: Final = "zstd-3"
ZSTD_DENSE: Final = "zstd-13"
DEFLATE_PRESET: Final = "deflate-9"

CODECS: Final[Mapping[str, CodecSpec]] = MappingProxyType(
    {
        ZSTD: CodecSpec(1, 256 * 1024, DictionaryZstd, 0.0),
        DEFLATE_PRESET: CodecSpec(2, 32 * 1024 - 262, DictionaryDeflate, 0.5),
        ZSTD_DENSE: CodecSpec(3, 256 * 1024, DenseZstd, 0.25),
        FIELDS: CodecSpec(4, CONTENT_BYTES_MAX, FieldsCodec, 0.5),
    }
)
"""Codec by name. 32,506 bytes: zlib's window less the look-ahead it keeps free, so no preset byte is out of reach."""
