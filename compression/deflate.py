"""What a codec is, and the one that needs nothing else: raw DEFLATE (RFC 1951), alone or with a preset dictionary."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar, Final

from lexicast.cluster.blocks import DEFLATE, FIRST_DICTIONARY, RAW
from lexicast.cluster.errors import DictionaryError

from .opening import inflated

# The longest payload that comes out of decompression, whoever does it: a bomb costs so much memory, once.
PAYLOAD_BYTES_MAX: Final = 4 * 1024 * 1024
# It grows with the largest packet that a cluster takes, as which a payload may come compressed.
PACKETS_A_PAYLOAD: Final = 4

_RAW_WINDOW_BITS: Final = -15
# zlib's state is copied for every message: memory level 6 halves the copy, and 8 and 9 gave the same sizes.
_MEMORY_LEVEL: Final = 6
# So does a window of half the size, for what finds room in it: 9 us a message instead of 39, since an allocator gives
# a copy of 160 KiB back to the kernel and one of 80 not. zlib reaches its window less 262 bytes back.
_SMALL_WINDOW_BITS: Final = -14
_SMALL_WINDOW_BYTES: Final = (1 << 14) - 262


def payload_bytes_max(packet_bytes_max: int) -> int:
    """PAYLOAD_BYTES_MAX in a cluster whose largest packet is `packet_bytes_max` (`mqtt.packet_bytes_max`)."""
    return max(PAYLOAD_BYTES_MAX, PACKETS_A_PAYLOAD * packet_bytes_max)


class Codec(ABC):
    """One way to compress payloads, bound to one dictionary or to none."""

    kind: ClassVar[int] = FIRST_DICTIONARY

    def __init__(self, label: str) -> None:
        """`label` names the family and id in errors."""
        self.label = label

    @abstractmethod
    def compress(self, payload: bytes) -> bytes:
        """`payload` compressed, whatever comes out longer or shorter. Raises DictionaryError (unusable dictionary)."""

    @abstractmethod
    def decompress(self, data: bytes, *, bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
        """The payload that `compress` was given, of at most `bytes_max` bytes.

        Raises DictionaryError for everything else: cut short, garbage, too long, unusable dictionary.
        """

    def encode(self, payload: bytes) -> tuple[int, bytes]:
        """(kind, bytes) to send: compressed only where that is shorter, else (RAW, payload)."""
        data = self.compress(payload)
        return (self.kind, data) if len(data) < len(payload) else (RAW, payload)

    def _refuse(self, reason: str) -> DictionaryError:
        return DictionaryError(f"{self.label}: the payload cannot be decompressed: {reason}")


class Deflate(Codec):
    """Raw DEFLATE (RFC 1951), level 9, each message alone; with a preset dictionary where there is content."""

    kind = DEFLATE

    def __init__(self, label: str = "DEFLATE without dictionary", content: bytes = b"") -> None:
        super().__init__(label)
        self._content = content

    @cached_property
    def _compressor(self) -> zlib._Compress:
        """Primed once; a copy of it compresses one message."""
        return self._primed(_RAW_WINDOW_BITS)

    @cached_property
    def _small_compressor(self) -> zlib._Compress:
        """The same for messages that lie in the small window together with the content."""
        return self._primed(_SMALL_WINDOW_BITS)

    def _primed(self, window_bits: int) -> zlib._Compress:
        parameters = (9, zlib.DEFLATED, window_bits, _MEMORY_LEVEL, zlib.Z_DEFAULT_STRATEGY)
        return zlib.compressobj(*parameters, self._content) if self._content else zlib.compressobj(*parameters)

    def compress(self, payload: bytes) -> bytes:
        small = len(self._content) + len(payload) <= _SMALL_WINDOW_BYTES
        compressor = (self._small_compressor if small else self._compressor).copy()
        return compressor.compress(payload) + compressor.flush()

    def decompress(self, data: bytes, *, bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
        try:
            return inflated(data, bytes_max, self._content)
        except DictionaryError as error:
            raise self._refuse(str(error)) from None


class DictionaryDeflate(Deflate):
    """`deflate-9`: Deflate with a preset dictionary."""

    kind = FIRST_DICTIONARY
