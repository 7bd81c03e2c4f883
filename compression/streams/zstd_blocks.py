"""Streams of zstd: blocks over a window of 128 KiB, where they are shorter than DEFLATE's (`topic_stream` tries it).

    data    nothing, for no byte; or the content of one compressed block, whose header follows from its length; or
            FULL_FRAME, which no compressed block begins with (`codecs`), and blocks with their headers (RFC 8878,
            section 3.1.1.2), none of which is the last one

The header of the frame is never sent: both sides know it, so no sender can ask for another window. A block may use the
tables of the one before, so whoever comes later cannot read on, whatever past it is sent: the stream begins anew for
them, which for messages of 3.7 KB, every 100 messages, costs 0.4 points.

Memory: 360 KiB for a sender and 300 KiB for a receiver (measured, 3 KB a message; zlib's are 160 and 40); so at most
ZSTD_STREAMS_MAX of a sender's 256 streams are such.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

import zstandard

from lexicast.cluster.errors import DictionaryError

from ..codecs import FULL_FRAME

ZSTD_STREAMS_MAX: Final = 32

_WINDOW_LOG: Final = 17
_FRAME_HEADER: Final = bytes((0, _WINDOW_LOG - 10 << 3))
"""No checksum, no dictionary, and the window (RFC 8878, section 3.1.1.1)."""
_HEADER_BYTES: Final = 3
_RUN: Final = 1
_COMPRESSED: Final = 2
_RESERVED: Final = 3
_BLOCK_BYTES_MAX: Final = 128 * 1024
_WRITE_BYTES: Final = 16 * 1024


@cache
def _parameters(level: int | None) -> zstandard.ZstdCompressionParameters:
    """None: about level 6 with smaller tables (665 KiB instead of 1.1 MiB), and no match of less than 6 bytes: shorter
    ones take more than they save in hexadecimal and decimal digits (6 points of Bitcoin transactions, 13 of taxi
    rides), and were 0.1 to 0.3 points elsewhere."""
    known = {
        "format": zstandard.FORMAT_ZSTD1_MAGICLESS,
        "write_content_size": False,
        "write_checksum": False,
        "write_dict_id": False,
        "window_log": _WINDOW_LOG,
    }
    if level is not None:
        return zstandard.ZstdCompressionParameters.from_level(level, source_size=1 << _WINDOW_LOG, **known)
    return zstandard.ZstdCompressionParameters(
        strategy=zstandard.STRATEGY_LAZY2,
        hash_log=15,
        chain_log=15,
        search_log=4,
        min_match=6,
        target_length=8,
        **known,
    )


class ZstdWriter:
    """The sender's side. `level`: of zstd; None: as brokers make it."""

    def __init__(self, level: int | None = None) -> None:
        self._compressor = zstandard.ZstdCompressor(compression_params=_parameters(level)).compressobj()
        self._header = len(_FRAME_HEADER)

    def compress(self, payload: bytes, number: int) -> bytes:
        """The next frame's data."""
        compressor = self._compressor
        blocks = compressor.compress(payload) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        if self._header and blocks:
            blocks, self._header = blocks[self._header :], 0
        head = int.from_bytes(blocks[:_HEADER_BYTES], "little")
        if head & 7 == _COMPRESSED << 1 and head >> 3 == len(blocks) - _HEADER_BYTES:
            return blocks[_HEADER_BYTES:]
        return FULL_FRAME + blocks if blocks else b""


class ZstdReader:
    """The receiver's side."""

    def __init__(self) -> None:
        decompressor = zstandard.ZstdDecompressor(
            max_window_size=1 << _WINDOW_LOG, format=zstandard.FORMAT_ZSTD1_MAGICLESS
        )
        self._decompressor = decompressor.decompressobj(write_size=_WRITE_BYTES)
        self._decompressor.decompress(_FRAME_HEADER)

    def decompress(self, data: bytes, number: int, *, bytes_max: int) -> bytes:
        """The next payload. Raises DictionaryError; the stream is of no use then. A block more than `bytes_max` may be
        decompressed, no more."""
        payload = bytearray()
        try:
            for block in _blocks(data):
                payload += self._decompressor.decompress(block)
                if len(payload) > bytes_max:
                    raise DictionaryError(f"more than {bytes_max} bytes")
        except (zstandard.ZstdError, MemoryError) as error:
            raise DictionaryError(str(error)) from None
        return bytes(payload)


def _blocks(data: bytes) -> Iterator[bytes]:
    """The blocks with their headers, as a decompressor takes them. Raises DictionaryError for what are none."""
    if not data.startswith(FULL_FRAME):
        if len(data) > _BLOCK_BYTES_MAX:
            raise DictionaryError(f"a block of {len(data)} bytes")
        if data:
            yield (len(data) << 3 | _COMPRESSED << 1).to_bytes(_HEADER_BYTES, "little") + data
        return
    at = len(FULL_FRAME)
    while at < len(data):
        head = int.from_bytes(data[at : at + _HEADER_BYTES], "little")
        kind, size = head >> 1 & 3, head >> 3
        if head & 1 or kind == _RESERVED or size > _BLOCK_BYTES_MAX:
            raise DictionaryError("a block that is the last one, too long or of a kind that is not known")
        end = at + _HEADER_BYTES + (1 if kind == _RUN else size)
        if end > len(data):
            raise DictionaryError("cut short")
        yield data[at:end]
        at = end
