"""A batch of operations: columns in, one LMDB value out. It is the log of the stand-alone DualDB.

The value, little-endian: crc u32 over all but the payloads, then HEAD (version, spare, operations, publications, first
seq, now_us, keep_until_us, bytes of payloads), the columns id, time, low, high, tag (8 bytes an operation each), kind
(1 byte), a check an operation (u32, over its columns and its payload's crc32), the lengths of the payloads (u32 a
publication) and the payloads. So a damaged operation is named, and the others of its batch are kept.

A payload is stored here and nowhere else; the lists hold positions (seq).
"""

from __future__ import annotations

import struct
from binascii import crc32
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lexicast.cluster.errors import StoreFormatError, UsageError

from ..file.sealing import DamageError, unpacked_head
from .checksums import U32, row_checks
from .rows import EVER_US, I64, ID_LIMIT, U64

PUBLISH: Final = 0
SUBSCRIBE: Final = 1
RENEW: Final = 2
UNSUBSCRIBE: Final = 3
# What a repair leaves of a damaged operation: the number, so that the others keep theirs.
LOST: Final = 4

BATCH_VERSION: Final = 1
# One value and one transaction; an operation takes 45 bytes and its payload.
BATCH_OPERATIONS_MAX: Final = 1_000_000
BATCH_PAYLOAD_BYTES_MAX: Final = 256 << 20

_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<HHIIQqqQ")
_START: Final = 48
_WIDE_BYTES: Final = 40


class OperationBatch(NamedTuple):
    """Operations in their order. `low`, `high`: T_min, T_max; `time`: T_P or T_S."""

    kind: NDArray[np.uint8]
    id: U64
    time: I64
    low: I64
    high: I64
    tag: U64
    payloads: Sequence[bytes]

    @property
    def size(self) -> int:
        """How many operations."""
        return len(self.kind)


class BatchHead(NamedTuple):
    """The fixed part of a stored batch."""

    version: int
    spare: int
    operations: int
    publications: int
    first: int
    now_us: int
    keep_until_us: int
    body_bytes: int


def admitted(batch: OperationBatch) -> OperationBatch:
    """`batch` itself. Raises UsageError when its columns contradict each other or are out of range."""
    columns: tuple[NDArray[np.integer], ...] = (batch.kind, batch.id, batch.time, batch.low, batch.high, batch.tag)
    if any(len(column) != batch.size for column in columns):
        raise UsageError("the columns of a batch have different lengths")
    if not 0 < batch.size <= BATCH_OPERATIONS_MAX:
        raise UsageError(f"a batch has 1 to {BATCH_OPERATIONS_MAX} operations, not {batch.size}")
    wanted = (np.uint8, np.uint64, np.int64, np.int64, np.int64, np.uint64)
    if any(column.dtype != kind for column, kind in zip(columns, wanted, strict=True)):
        raise UsageError("a batch has columns kind u8, id u64, time i64, low i64, high i64, tag u64")
    if int(batch.kind.max()) > UNSUBSCRIBE:
        raise UsageError(f"operations are numbered {PUBLISH} to {UNSUBSCRIBE}, not {int(batch.kind.max())}")
    if int(batch.id.max()) >= ID_LIMIT:
        raise UsageError(f"IDs are numbers below 2^63, not {int(batch.id.max())}: make one of a name with id_of")
    publications = int(np.count_nonzero(batch.kind == PUBLISH))
    if publications != len(batch.payloads):
        raise UsageError(f"{publications} publications have {len(batch.payloads)} payloads")
    if sum(map(len, batch.payloads)) > BATCH_PAYLOAD_BYTES_MAX:
        raise UsageError(f"the payloads of a batch exceed {BATCH_PAYLOAD_BYTES_MAX} bytes: split it")
    return batch


def encode_batch(batch: OperationBatch, first: int, now_us: int) -> bytes:
    """The value to store. `first` is the number of its first operation, `now_us` the store's time after it."""
    publications = batch.kind == PUBLISH
    lengths = np.fromiter(map(len, batch.payloads), np.uint32, len(batch.payloads))
    keep = int(batch.high[publications].max()) if len(lengths) else EVER_US
    head = _HEAD.pack(
        BATCH_VERSION, 0, batch.size, len(lengths), first, now_us, keep, int(lengths.sum(dtype=np.uint64))
    )
    wide = (batch.id, batch.time, batch.low, batch.high, batch.tag)
    checks = _checks(batch, publications)
    covered = b"".join((head, *[np.ascontiguousarray(c).data for c in (*wide, batch.kind, checks, lengths)]))
    return b"".join((_CRC.pack(crc32(covered)), covered, *batch.payloads))


def _checks(batch: OperationBatch, publications: NDArray[np.bool_]) -> U32:
    crcs = np.zeros(batch.size, np.uint64)
    if int(publications.sum()) != len(batch.payloads):
        return np.zeros(batch.size, np.uint32)  # a kind is damaged: whose payload is whose cannot be told
    crcs[publications] = np.fromiter(map(crc32, batch.payloads), np.uint32, len(batch.payloads))
    return row_checks(batch.id, batch.time, batch.low, batch.high, batch.tag, batch.kind, crcs)


class _Ends(NamedTuple):
    """Where the parts of a stored batch end."""

    wide: int
    kind: int
    checks: int
    lengths: int
    body: int


def _ends(head: BatchHead) -> _Ends:
    wide = _START + _WIDE_BYTES * head.operations
    kind = wide + head.operations
    checks = kind + 4 * head.operations
    lengths = checks + 4 * head.publications
    return _Ends(wide, kind, checks, lengths, lengths + head.body_bytes)


def batch_head(value: memoryview, first: int) -> BatchHead:
    """The verified fixed part. Raises DamageError naming the batch by `first`, StoreFormatError when it is newer."""
    if len(value) < _START:
        raise DamageError("batches", -1, first, "the batch is cut short")
    head = BatchHead(*_HEAD.unpack_from(value, _CRC.size))
    ends = _ends(head)
    if ends.body != len(value) or crc32(value[_CRC.size : ends.lengths]) != _CRC.unpack_from(value)[0]:
        raise DamageError("batches", -1, first, "the columns of the batch do not match their checksum")
    if head.version > BATCH_VERSION:
        raise StoreFormatError(f"batch {first} has format {head.version}, this lexicast reads up to {BATCH_VERSION}")
    return head


def keep_until(value: memoryview) -> int:
    """When the last publication of a stored batch expires, unverified. Raises DamageError when it is cut short."""
    return BatchHead(*unpacked_head(_HEAD, value[_CRC.size :], "batches")).keep_until_us


def decode_batch(value: memoryview, head: BatchHead) -> OperationBatch:
    """The operations, their payloads unverified."""
    count, ends = head.operations, _ends(head)
    wide = np.frombuffer(value, np.uint64, 5 * count, _START).reshape(5, count).copy()
    kind = np.frombuffer(value, np.uint8, count, ends.wide).copy()
    lengths = np.frombuffer(value[ends.checks : ends.lengths], np.uint32)
    body = bytes(value[ends.lengths :])
    stops = list(accumulate(map(int, lengths), initial=0))
    payloads = [body[a:b] for a, b in pairwise(stops)]
    return OperationBatch(
        kind, wide[0], wide[1].view(np.int64), wide[2].view(np.int64), wide[3].view(np.int64), wide[4], payloads
    )


def undamaged(value: memoryview, head: BatchHead, batch: OperationBatch) -> NDArray[np.bool_]:
    """Which operations of a decoded batch match their checks, payloads included."""
    ends = _ends(head)
    stored = np.frombuffer(value[ends.kind : ends.checks], np.uint32)
    return np.asarray(_checks(batch, batch.kind == PUBLISH) == stored)


def salvaged(value: memoryview, first: int) -> tuple[bytes | None, list[int]]:
    """A stored batch with its damaged operations LOST, and their numbers; no batch where nothing of it can be told."""
    try:
        head = batch_head(value, first)
    except DamageError:
        if len(value) < _START:
            return None, []
        head = BatchHead(*_HEAD.unpack_from(value, _CRC.size))
        if head.version != BATCH_VERSION or head.first != first or _ends(head).body != len(value):
            return None, []
    batch = decode_batch(value, head)
    if sum(map(len, batch.payloads)) != head.body_bytes:
        return None, []
    good = undamaged(value, head, batch)
    if good.all():
        return bytes(value), []
    publications = np.flatnonzero(batch.kind == PUBLISH)
    if len(publications) != len(batch.payloads):
        return None, []
    kept = [payload for payload, ok in zip(batch.payloads, good[publications].tolist(), strict=True) if ok]
    kind = np.where(good, batch.kind, np.uint8(LOST)).astype(np.uint8)
    lost = (np.flatnonzero(~good) + first).tolist()
    return encode_batch(batch._replace(kind=kind, payloads=kept), first, head.now_us), lost


def payloads_at(value: memoryview, head: BatchHead, places: Sequence[int]) -> list[bytes]:
    """The payloads of the publications at these places of the batch. Raises DamageError naming a damaged one."""
    batch = decode_batch(value, head)
    good = undamaged(value, head, batch)
    index = np.cumsum(batch.kind == PUBLISH) - 1
    found = []
    for place in places:
        if not 0 <= place < batch.size or batch.kind[place] != PUBLISH:
            raise UsageError(f"operation {head.first + place} is no publication")
        if not good[place]:
            raise DamageError("batches", -1, head.first + place, "the publication does not match its checksum")
        found.append(batch.payloads[int(index[place])])
    return found
