"""A segment: a few thousand sorted rows as one LMDB value, read in place.

Little-endian: crc u32 over all that follows, version u16, spare u16, rows u32, a crc u32 of the head, the first and the
last key (what is known of a segment before it is touched), the rows' bounds (i64 a number; so a run that has expired as
a whole is dropped unread), then the columns key, seq, low, high, tag (8 bytes a
row each) and a check a row (u32, `checksums`). The columns start at a multiple of 8, so NumPy reads them from the map.

The checksum over the whole is compared when a segment is first touched after it was written or opened; the checks a row
say which rows a damaged one has lost.
"""

from __future__ import annotations

import struct
from binascii import crc32
from typing import Final, NamedTuple

import numpy as np

from ..file.sealing import DamageError
from .checksums import row_checks
from .rows import ROW_BYTES, Bounds, RowColumns, bounds_of

SEGMENT_VERSION: Final = 2

_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<HHIIQqqq")
_START: Final = 48
_CHECK_BYTES: Final = 4


class SegmentHead(NamedTuple):
    """The fixed part of a segment."""

    version: int
    spare: int
    rows: int
    head_crc: int
    seq_max: int
    low_max: int
    high_min: int
    high_max: int

    @property
    def bounds(self) -> Bounds:
        """The bounds of the rows."""
        return Bounds(self.seq_max, self.low_max, self.high_min, self.high_max)


def encode_segment(rows: RowColumns) -> bytes:
    """Sorted rows as the value that is stored."""
    fields = SegmentHead(SEGMENT_VERSION, 0, rows.size, 0, *bounds_of(rows))
    head = _HEAD.pack(*fields._replace(head_crc=_head_crc(fields, rows)))
    covered = b"".join((head, *[np.ascontiguousarray(column).data for column in rows], row_checks(*rows).data))
    return _CRC.pack(crc32(covered)) + covered


def _head_crc(head: SegmentHead, rows: RowColumns) -> int:
    """Over the head and the keys at both ends."""
    ends = np.ascontiguousarray(rows.key[[0, -1]] if rows.size else rows.key)
    return crc32(ends.data, crc32(_HEAD.pack(*head._replace(head_crc=0))))


def verified_segment_head(value: memoryview) -> SegmentHead:
    """The fixed part, believed without touching the rows between the first and the last. Raises DamageError."""
    head = segment_head(value)
    if head.head_crc != _head_crc(head, segment_rows(value, verify=False)):
        raise DamageError("runs", -1, -1, "the head of the segment does not match its checksum")
    return head


def segment_head(value: memoryview) -> SegmentHead:
    """The fixed part, unverified but for its length. Raises DamageError."""
    if len(value) < _START:
        raise DamageError("runs", -1, -1, "the segment is cut short")
    head = SegmentHead(*_HEAD.unpack_from(value, _CRC.size))
    if head.version != SEGMENT_VERSION or len(value) != _START + head.rows * (ROW_BYTES + _CHECK_BYTES):
        raise DamageError("runs", -1, -1, f"a segment of version {head.version} with {head.rows} rows was expected")
    return head


def segment_rows(value: memoryview, verify: bool) -> RowColumns:
    """The rows, in place: valid as long as `value` is. Raises DamageError."""
    count = segment_head(value).rows
    if verify and crc32(value[_CRC.size :]) != _CRC.unpack_from(value)[0]:
        raise DamageError("runs", -1, -1, "the segment does not match its checksum")
    columns = np.frombuffer(value, np.uint64, 5 * count, _START).reshape(5, count)
    return RowColumns(columns[0], columns[1], columns[2].view(np.int64), columns[3].view(np.int64), columns[4])


def salvaged_rows(value: memoryview) -> RowColumns:
    """The undamaged rows of a segment whose checksum disagrees, sorted anew; those that its length says are there."""
    count = max(0, len(value) - _START) // (ROW_BYTES + _CHECK_BYTES)
    columns = np.frombuffer(value, np.uint64, 5 * count, _START).reshape(5, count)
    rows = RowColumns(columns[0], columns[1], columns[2].view(np.int64), columns[3].view(np.int64), columns[4])
    stored = np.frombuffer(value, np.uint32, count, _START + count * ROW_BYTES)
    kept = rows.take(row_checks(*rows) == stored)
    return kept.take(np.argsort(kept.key))
