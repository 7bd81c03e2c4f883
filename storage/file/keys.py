"""Keys: how groups, offsets and names stand in them. Big-endian, so that rows of a group lie together, in order."""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final

from .sealing import Value, unpacked

_KEY = struct.Struct(">HQ")
_EXPIRY_BYTES: Final = 8

# LMDB keys end at 511 bytes, MQTT names at 65,535: a longer name is known by its digest.
_NAME_BYTES_MAX: Final = 480
_NAME_DIGEST_BYTES: Final = 32

MAX_OFFSET: Final = 2**64 - 1


def log_key(group: int, offset: int) -> bytes:
    """The key of the block whose last offset is `offset`."""
    return _KEY.pack(group, offset)


def parse_log_key(key: Value, table: str = "log") -> tuple[int, int]:
    """(group, last offset) of a key of the log, or of another table by position. Raises DamageError."""
    group, offset = unpacked(_KEY, key, table)
    return group, offset


def group_prefix(group: int) -> bytes:
    """What every row of `group` in a table by group starts with."""
    return group.to_bytes(2, "big")


def name_key(name: bytes) -> bytes:
    """`name` as part of a key: itself, or its digest where it is too long for LMDB."""
    if len(name) <= _NAME_BYTES_MAX:
        return b"\0" + name
    return b"\1" + blake2b(name, digest_size=_NAME_DIGEST_BYTES).digest()


def key_name(key: bytes) -> bytes | None:
    """The inverse of `name_key`; None for a digest."""
    return key[1:] if key[:1] == b"\0" else None


def expiry_key(group: int, last: int, expire_all_us: int) -> bytes:
    """The key of a block in `expiry`: when all of it has expired, then its own."""
    return expire_all_us.to_bytes(_EXPIRY_BYTES, "big") + log_key(group, last)


def parse_expiry_key(key: bytes) -> tuple[int, bytes]:
    """(when all of a block has expired, its own key) of a key of `expiry`, unverified."""
    return int.from_bytes(key[:_EXPIRY_BYTES], "big"), key[_EXPIRY_BYTES:]
