"""The peers that need no shared dictionary: DEFLATE, a deflate stream a subscriber, VCDIFF (by xdelta3, or a model).

All count as the thesis does (section 5.4.3): no dictionary, one tag byte where a receiver has to tell forms apart.
"""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Final

from lexicast.compression.accounting import reduction_percent
from lexicast.compression.codecs import Deflate

_VCDIFF_FILE_HEADER_BYTES: Final = 5
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


def vcdiff_reduction(messages: Sequence[bytes], *, measured: int | None = None, xdelta3: str | None = None) -> float:
    """Each message as the VCDIFF of the one before it, or raw where that is shorter; no tag byte, no file header.

    `measured`: about so many of them, spread over all, stand for all. `xdelta3`: the program that makes them; None: a
    model of their size.
    """
    stride = max(1, len(messages) // (measured or len(messages)))
    sent = raw = 0
    with TemporaryDirectory() as folder:
        for at in range(0, len(messages), stride):
            previous, message = messages[at - 1] if at else b"", messages[at]
            size = (
                vcdiff_bytes(previous, message) if xdelta3 is None else _by_xdelta3(xdelta3, folder, previous, message)
            )
            sent += min(len(message), size)
            raw += len(message)
    return reduction_percent(raw, sent)


def xdelta3_program() -> str | None:
    """The program, where it is installed (Debian's package xdelta3)."""
    return which("xdelta3")


def _by_xdelta3(program: str, folder: str, source: bytes, target: bytes) -> int:
    """What it makes: its best compression, no checksum, no application header, small windows so that it begins fast."""
    before, after, made = (Path(folder) / name for name in ("before", "after", "made"))
    before.write_bytes(source)
    after.write_bytes(target)
    window = ["-W", "16384", "-B", "524288", "-P", "16384"]
    subprocess.run(
        [program, "-e", "-f", "-9", "-S", "none", "-A", "-n", *window, "-s", before, after, made], check=True
    )
    return made.stat().st_size - _VCDIFF_FILE_HEADER_BYTES


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
