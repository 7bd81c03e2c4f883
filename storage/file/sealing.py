"""Seals: a checksum over a row's table, key and data, and the error of what does not match it.

Rows of the tables are sealed: crc32 of the table's name, key and data, then the data. So a row that is found where its
table cannot be told any more says itself which one it is of.
"""

from __future__ import annotations

import struct
from binascii import crc32
from functools import cache
from typing import Any, Final, TypeAlias

from lexicast.cluster.errors import StoreError

# Tables of few rows under words, which no other table has as keys, and which every format has to be able to read.
_BY_WORDS: Final = ("identity", "meta")

_CRC = struct.Struct("<I")
# Of a key or row that cannot be read, as much is shown.
_SHOWN_BYTES: Final = 32

Value: TypeAlias = bytes | memoryview


class DamageError(StoreError):
    """Bytes on disk are not those that were written. Names the table, the group and the offset (-1: not known)."""

    def __init__(self, table: str, group: int, offset: int, what: str) -> None:
        super().__init__(f"damaged: {table}, group {group}, offset {offset}: {what}")
        self.table = table
        self.group = group
        self.offset = offset
        self.what = what


def unpacked(layout: struct.Struct, data: Value, table: str) -> tuple[Any, ...]:
    """The fields of a key or row of that layout. Raises DamageError naming its table when the size is another."""
    if len(data) != layout.size:
        what = f"{len(data)} bytes ({bytes(data[:_SHOWN_BYTES])!r}) where {layout.size} were expected"
        raise DamageError(table, -1, -1, what)
    return layout.unpack(data)


def unpacked_head(layout: struct.Struct, data: Value, table: str) -> tuple[Any, ...]:
    """The same of a row that goes on after that layout."""
    return unpacked(layout, data[: layout.size], table)


@cache
def _seed(table: str) -> int:
    return 0 if table in _BY_WORDS else crc32(table.encode())


def seal(table: str, key: bytes, data: bytes) -> bytes:
    """`data` with a checksum over its table's name, its key and it."""
    return _CRC.pack(crc32(data, crc32(key, _seed(table)))) + data


def unseal(table: str, key: Value, value: Value) -> bytes:
    """The inverse of `seal`. Raises DamageError when the checksum disagrees."""
    data = bytes(value[_CRC.size :])
    if len(value) < _CRC.size or _CRC.unpack_from(value)[0] != crc32(data, crc32(key, _seed(table))):
        raise DamageError(table, -1, -1, f"the row {bytes(key)!r} does not match its checksum")
    return data
