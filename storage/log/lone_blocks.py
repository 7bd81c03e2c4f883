"""Blocks of one publication, as devices' messages mostly are: read as one, in a third of the time of any block's way.

What the general way does one by one (head, meta, payload, each verified and taken apart by itself) is done here in one
go where the block is of the plainest kind and sound. Whatever else it may be is not told: look at it the general way
(`block_format`, `block_cuts`), which also notes what is damaged.
"""

from __future__ import annotations

import struct
from binascii import crc32
from typing import Final

from lexicast.cluster.blocks import PUBLICATIONS, U32, Block, unpack_meta
from lexicast.cluster.errors import PeerError

from ..file.sealing import Value
from .block_format import EXPIRES, FORMAT_VERSION, HEAD_BYTES

# The checksum and the head of a block that does not expire, then what stands behind its meta: see `block_format`.
_HEAD = struct.Struct("<IBBBIIqIII")
_CRC_BYTES: Final = 4
_RECORD = struct.Struct("<II")


def lone_publication(value: Value, group: int, last: int, key: bytes) -> Block | None:
    """The block under `key` (group, last offset), verified as a whole, where it holds one publication, which does not
    expire; else None."""
    head = _sound_head(value, key)
    if head is None:
        return None
    epoch, span, time_us, lengths, body_bytes = head
    data = bytes(value)
    payload = data[lengths + _RECORD.size :]
    if _RECORD.unpack_from(data, lengths) != (body_bytes, crc32(payload)):
        return None
    packed = data[HEAD_BYTES:lengths]
    try:
        meta = unpack_meta(packed)
    except PeerError:
        return None
    runs = meta.runs
    if len(runs) != 1 or runs[0].count != 1 or runs[0].expiry_ms:
        return None
    first = last - span if last > span else 0
    size = data[lengths : lengths + U32]
    return Block(group, epoch, first, last, time_us, PUBLICATIONS, packed, size, payload, meta)


def lone_first(value: Value, last: int, key: bytes) -> int | None:
    """The first offset of that block, its head verified (the payload is not); else None."""
    head = _sound_head(value, key)
    return None if head is None else max(last - head[1], 0)


def _sound_head(value: Value, key: bytes) -> tuple[int, int, int, int, int] | None:
    """Of that block: epoch, span, time, where its length stands, bytes of its payload; None where it is another."""
    if len(value) < HEAD_BYTES:
        return None
    crc, version, kind, flags, epoch, span, time_us, records, meta_bytes, body_bytes = _HEAD.unpack_from(value)
    if records != 1 or kind != PUBLICATIONS or flags & EXPIRES or version > FORMAT_VERSION:
        return None
    lengths = HEAD_BYTES + meta_bytes
    body = lengths + _RECORD.size
    if len(value) != body + body_bytes or crc32(value[_CRC_BYTES:body], crc32(key)) != crc:
        return None
    return epoch, span, time_us, lengths, body_bytes
