"""The peers that need no shared dictionary: DEFLATE, a deflate stream a subscriber, VCDIFF.

All count as the thesis does (section 5.4.3): no dictionary, one tag byte where a receiver has to tell forms apart.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

from lexicast.compression.accounting import reduction_percent
from lexicast.compression.codecs import Deflate

_COPY_MIN: Final = 4
_FLUSH_END: Final = 4


def deflate_reduction(messages: Sequence[bytes]) -> float:
    """Each message alone, or raw where that is shorter; one tag byte."""
    codec = Deflate()
    sent = sum(1 + len(codec.encode(message)[1]) for message in messages)
    return reduction_percent(sum(map(len, messages)), sent)


def stream_reduction(messages: Sequence[bytes]) -> float:
    """permessage-deflate with context takeover (RFC 7692), one stream a link, 32 KiB window; no tag byte."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15, 8)
    sent = sum(len(compressor.compress(m)) + len(compressor.flush(zlib.Z_SYNC_FLUSH)) - _FLUSH_END for m in messages)
    return reduction_percent(sum(map(len, messages)), sent)


def vcdiff_reduction(messages: Sequence[bytes]) -> float:
    """Each message as the VCDIFF of the one before it, or raw where that is shorter; no tag byte, no file header."""
    sent = 0
    previous = b""
    for message in messages:
        sent += min(len(message), vcdiff_bytes(previous, message))
        previous = message
    return reduction_percent(sum(map(len, messages)), sent)


def vcdiff_bytes(source: bytes, target: bytes) -> int:
    """The length of one VCDIFF window (RFC 3284): greedy copies from source and target, default code table.

    Sizes only: an instruction of the default table takes one byte while its size fits (ADD 1 to 17, COPY 4 to 18), an
    address one byte where the near or same cache has it (taken to be so within 127 bytes of the last one).
    """
    known = source + target
    places: dict[bytes, int] = {}
    for at in range(len(source) - _COPY_MIN + 1):
        places.setdefault(known[at : at + _COPY_MIN], at)
    instructions = addresses = added = literal = 0
    at = last = 0
    while at < len(target):
        found = places.get(target[at : at + _COPY_MIN]) if at + _COPY_MIN <= len(target) else None
        length = _common(known, found, len(source) + at) if found is not None else 0
        step = max(length, 1)
        if found is not None and length >= _COPY_MIN:
            instructions += _add_bytes(literal) + 1 + (0 if length <= 18 else _varint_bytes(length))
            addresses += 1 if abs(found - last) < 128 else _varint_bytes(found)
            last = found + length
            literal = 0
        else:
            literal += 1
            added += 1
        for here in range(at, min(at + step, len(target) - _COPY_MIN + 1)):
            places.setdefault(target[here : here + _COPY_MIN], len(source) + here)
        at += step
    instructions += _add_bytes(literal)
    sections = added + instructions + addresses
    lengths = sum(map(_varint_bytes, (len(source), 0, len(target), added, instructions, addresses)))
    return 1 + lengths + _varint_bytes(sections + 8) + 1 + sections


def _common(known: bytes, first: int, second: int) -> int:
    length = 0
    while second + length < len(known) and known[first + length] == known[second + length]:
        length += 1
    return length


def _add_bytes(literal: int) -> int:
    return 0 if literal == 0 else 1 if literal <= 17 else 1 + _varint_bytes(literal)


def _varint_bytes(number: int) -> int:
    return max(1, (number.bit_length() + 6) // 7)
