"""Opening what others have compressed: how much memory it may take, one frame and many together.

Every payload, frame and dictionary that is not from here is opened by one of these. A frame costs what its reader
allows it and no more, whatever it says of itself: a frame of zstd of 9 bytes may ask for a window, or announce a
content, of 128 MiB, and a decoder that believes it reserves that before it has looked at a byte.

Frames are mostly opened many at a time: all of a read off a socket, of a link's message, of a block, of a page. What
they become *together* is bounded by a `Room`, else 1 MiB of small frames, each of them allowed, becomes 1 GiB.
"""

from __future__ import annotations

import zlib
from typing import Final

import zstandard

from lexicast.cluster.errors import DictionaryError

AT_ONCE_BYTES_MAX: Final = 64 * 1024 * 1024
"""What comes out of what came at once, or as much as one payload may have where that is more (`Recoder.room`). The
messages of a link have about 256 KiB: this is 256 times as much."""

WINDOW_BYTES_MIN: Final = 512 * 1024
"""A window that any frame of zstd may have: dictionaries are packed with it, whatever their length."""

DEFLATE_RATIO_MAX: Final = 1_032
"""Bytes that DEFLATE makes of one at the most: 258 of each two bits."""

_RAW_WINDOW_BITS: Final = -15
_UNKNOWN: Final = zstandard.CONTENTSIZE_UNKNOWN


class NoRoomError(DictionaryError):
    """Too much came out of what came at once. Opened by itself, it may be right."""


class Room:
    """What may still come out of what came at once. `refused`: so many payloads had no room."""

    __slots__ = ("_bytes_max", "left_bytes", "refused")

    def __init__(self, bytes_max: int = AT_ONCE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.left_bytes = bytes_max
        self.refused = 0

    def limit(self, bytes_max: int) -> int:
        """How long the next payload may be, of which each may have `bytes_max`. Raises NoRoomError."""
        if self.left_bytes <= 0:
            self.refused += 1
            raise no_room(self._bytes_max)
        return min(bytes_max, self.left_bytes)

    def take(self, size_bytes: int) -> None:
        """So much has come out."""
        self.left_bytes -= size_bytes

    def failed(self, data_bytes: int, limit: int, bytes_max: int) -> None:
        """Nothing came out of so many bytes within `limit`, but the work was done.

        Raises NoRoomError where this room was the limit, not what each payload may have (`bytes_max`).
        """
        if limit < bytes_max:
            self.left_bytes = 0
            self.refused += 1
            raise no_room(self._bytes_max) from None
        self.left_bytes -= min(limit, DEFLATE_RATIO_MAX * data_bytes)


def no_room(bytes_max: int) -> NoRoomError:
    """What is said of a payload behind those that have taken all of a room."""
    return NoRoomError(f"the payload is not decompressed: what came with it has become {bytes_max} bytes already")


def inflated(data: bytes, bytes_max: int, preset: bytes = b"") -> bytes:
    """What raw DEFLATE (RFC 1951) says, at most `bytes_max` bytes, `preset` before it. Raises DictionaryError."""
    inflater = zlib.decompressobj(_RAW_WINDOW_BITS, preset)
    try:
        payload = inflater.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise DictionaryError(str(error)) from None
    if len(payload) > bytes_max:
        raise DictionaryError(f"more than {bytes_max} bytes")
    if not inflater.eof:
        raise DictionaryError("cut short")
    if inflater.unused_data:
        raise DictionaryError(f"{len(inflater.unused_data)} bytes follow its end")
    return payload


def unpacked_frame(
    decompressor: zstandard.ZstdDecompressor, frame: bytes, bytes_max: int, dictionary_bytes: int = 0
) -> bytes:
    """What a frame of zstd without magic number says, at most `bytes_max` bytes. Raises DictionaryError: why not.

    Its header (RFC 8878, section 3.1.1.1) is looked at before: it may ask for a window over all that it can refer to,
    its own content and the dictionary, as encoders do, and for no more.
    """
    room = max(bytes_max, 1)
    try:
        header = zstandard.get_frame_parameters(frame, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
        window_bytes_max = max(WINDOW_BYTES_MIN, 1 << (room + dictionary_bytes - 1).bit_length())
        if header.window_size > window_bytes_max:
            raise DictionaryError(f"a window of {header.window_size} bytes, at most {window_bytes_max} are allowed")
        if header.content_size != _UNKNOWN and header.content_size > room:
            raise DictionaryError(f"{header.content_size} bytes of content (room for {bytes_max} bytes)")
    except zstandard.ZstdError as error:
        raise DictionaryError(f"{error} (room for {bytes_max} bytes)") from None
    return unpacked_own_frame(decompressor, frame, bytes_max)


def unpacked_own_frame(decompressor: zstandard.ZstdDecompressor, frame: bytes, bytes_max: int) -> bytes:
    """The same of a frame whose header was put before it here. Raises DictionaryError: why not."""
    try:
        return decompressor.decompress(frame, max_output_size=max(bytes_max, 1), allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:
        raise DictionaryError(f"{error} (room for {bytes_max} bytes)") from None
