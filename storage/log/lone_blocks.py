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


def lone_publication(value: Value, group: int, last: int, key: Value) -> Block | None:
    """The block under `key` (group, last offset), verified as a whole, where it holds one publication, which does not
    expire; else None."""
    if len(value) < HEAD_BYTES:
        return None
    crc, version, kind, flags, epoch, span, time_us, records, meta_bytes, body_bytes = _HEAD.unpack_from(value)
    if records != 1 or kind != PUBLICATIONS or flags & EXPIRES or version > FORMAT_VERSION:
        return None
    data = bytes(value)
    lengths = HEAD_BYTES + meta_bytes
    body = lengths + _RECORD.size
    if len(data) != body + body_bytes or crc32(data[_CRC_BYTES:body], crc32(key)) != crc:
        return None
    payload = data[body:]
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
    return Block(
        group, epoch, max(last - span, 0), last, time_us, kind, packed, data[lengths : lengths + U32], payload, meta
    )
