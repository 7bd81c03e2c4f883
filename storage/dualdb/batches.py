"""A batch of operations: columns in, one LMDB value out. It is the log of the stand-alone DualDB.

The value, little-endian: crc u32 over all but the payloads, then HEAD (version, spare, operations, publications, first
seq, now_us, keep_until_us, bytes of payloads), the columns id, time, low, high, tag (8 bytes an operation each), kind
(1 byte), a check an operation (u32, over its columns and its payload's crc32), the lengths of the payloads (u32 a
publication) and the payloads. So a damaged operation is named, and the others of its batch are kept.

A payload is stored here and nowhere else; the lists hold positions (seq).
"""

from __future__ import annotations

import operator
import struct
from binascii import crc32
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from lexicast.cluster.errors import StoreFormatError, UsageError

from ..file.sealing import DamageError, Value, unpacked_head
from .checksums import U32, row_check, row_checks
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

_KINDS: Final = tuple(map(np.dtype, (np.uint8, np.uint64, np.int64, np.int64, np.int64, np.uint64)))
_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<HHIIQqqQ")
# A whole batch of one operation, up to its payload.
_ROW = struct.Struct("<HHIIQqqQQqqqQBI")
_PUBLICATION = struct.Struct("<HHIIQqqQQqqqQBII")
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


class RowOperation(NamedTuple):
    """One operation of a batch."""

    kind: int
    id: int
    time: int
    low: int
    high: int
    tag: int


def whole(number: SupportsIndex) -> int:
    """An integer of any library as Python's own: NumPy's overflow in arithmetic. Raises UsageError where it is none."""
    try:
        return operator.index(number)
    except TypeError as error:
        raise UsageError(f"a number is not a whole one: {error}") from None


def row_operation(kind: int, *numbers: SupportsIndex) -> RowOperation:
    """An operation of that kind; `numbers`: id, time, low, high, tag. Raises UsageError (not a whole number)."""
    return RowOperation(kind, *map(whole, numbers))


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


def in_columns(batch: OperationBatch) -> OperationBatch:
    """`batch` itself. Raises UsageError when its columns are not those of one batch."""
    size = len(batch.kind)
    if not (size == len(batch.id) == len(batch.time) == len(batch.low) == len(batch.high) == len(batch.tag)):
        raise UsageError("the columns of a batch have different lengths")
    if not 0 < size <= BATCH_OPERATIONS_MAX:
        raise UsageError(f"a batch has 1 to {BATCH_OPERATIONS_MAX} operations, not {size}")
    columns: tuple[NDArray[Any], ...] = (batch.kind, batch.id, batch.time, batch.low, batch.high, batch.tag)
    for column, wanted in zip(columns, _KINDS, strict=True):
        if column.dtype != wanted:
            raise UsageError("a batch has columns kind u8, id u64, time i64, low i64, high i64, tag u64")
    return batch


def admitted(batch: OperationBatch) -> OperationBatch:
    """A well-formed `batch` itself. Raises UsageError when what it says contradicts itself or is out of range."""
    publications = int(np.count_nonzero(batch.kind == PUBLISH))
    _admitted(int(batch.kind.max()), int(batch.id.max()), publications, batch.payloads)
    return batch


def admitted_rows(rows: Sequence[RowOperation], payloads: Sequence[bytes]) -> None:
    """The same of operations row by row."""
    publications = 0
    kind_max = id_max = 0
    for row in rows:
        kind_max, id_max = max(kind_max, row.kind), max(id_max, row.id)
        publications += row.kind == PUBLISH
    _admitted(kind_max, id_max, publications, payloads)


def _admitted(kind_max: int, id_max: int, publications: int, payloads: Sequence[bytes]) -> None:
    if kind_max > UNSUBSCRIBE:
        raise UsageError(f"operations are numbered {PUBLISH} to {UNSUBSCRIBE}, not {kind_max}")
    if id_max >= ID_LIMIT:
        raise UsageError(f"IDs are numbers below 2^63, not {id_max}: make one of a name with id_of")
    if publications != len(payloads):
        raise UsageError(f"{publications} publications have {len(payloads)} payloads")
    if sum(map(len, payloads)) > BATCH_PAYLOAD_BYTES_MAX:
        raise UsageError(f"the payloads of a batch exceed {BATCH_PAYLOAD_BYTES_MAX} bytes: split it")


def operations_of(batch: OperationBatch) -> list[RowOperation]:
    """The operations of a batch, row by row."""
    columns = (batch.kind, batch.id, batch.time, batch.low, batch.high, batch.tag)
    return [RowOperation(*row) for row in zip(*[column.tolist() for column in columns], strict=True)]


def joined_batches(parts: Sequence[OperationBatch]) -> OperationBatch:
    """The operations of at least one batch, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return OperationBatch(
        np.concatenate([part.kind for part in parts]),
        np.concatenate([part.id for part in parts]),
        np.concatenate([part.time for part in parts]),
        np.concatenate([part.low for part in parts]),
        np.concatenate([part.high for part in parts]),
        np.concatenate([part.tag for part in parts]),
        [payload for part in parts for payload in part.payloads],
    )


def last_expiry(batch: OperationBatch) -> int:
    """When the last of its publications expires; EVER_US when it has none."""
    return int(batch.high[batch.kind == PUBLISH].max()) if batch.payloads else EVER_US


def encode_batch(batch: OperationBatch, first: int, now_us: int) -> bytes:
    """The value to store. `first` is the number of its first operation, `now_us` the store's time after it."""
    publications = batch.kind == PUBLISH
    lengths = np.fromiter(map(len, batch.payloads), np.uint32, len(batch.payloads))
    body_bytes = int(lengths.sum(dtype=np.uint64))
    head = _HEAD.pack(BATCH_VERSION, 0, batch.size, len(lengths), first, now_us, last_expiry(batch), body_bytes)
    wide = (batch.id, batch.time, batch.low, batch.high, batch.tag)
    checks = _checks(batch, publications)
    covered = b"".join((head, *[np.ascontiguousarray(c).data for c in (*wide, batch.kind, checks, lengths)]))
    return b"".join((_CRC.pack(crc32(covered)), covered, *batch.payloads))


def encode_rows(rows: Sequence[RowOperation], payloads: Sequence[bytes], first: int, now_us: int) -> bytes:
    """What `encode_batch` gives, made row by row: cheaper for a few. Raises struct.error (a number out of range)."""
    if len(rows) == 1:
        return _encode_row(rows[0], payloads, first, now_us)
    checks = []
    keep, at = EVER_US, 0
    for kind, id, time, low, high, tag in rows:
        crc = 0
        if kind == PUBLISH:
            crc = crc32(payloads[at])
            keep = max(keep, high)
            at += 1
        checks.append(row_check(id, time, low, high, tag, kind, crc))
    lengths = [len(payload) for payload in payloads]
    count = len(rows)
    head = (BATCH_VERSION, 0, count, len(lengths), first, now_us, keep, sum(lengths))
    kinds, ids, times, lows, highs, tags = zip(*rows, strict=True)
    layout = f"<HHIIQqqQ{count}Q{3 * count}q{count}Q{count}B{count + len(lengths)}I"
    covered = struct.pack(layout, *head, *ids, *times, *lows, *highs, *tags, *kinds, *checks, *lengths)
    return b"".join((_CRC.pack(crc32(covered)), covered, *payloads))


def _encode_row(row: RowOperation, payloads: Sequence[bytes], first: int, now_us: int) -> bytes:
    kind, id, time, low, high, tag = row
    if kind == PUBLISH:
        payload = payloads[0]
        check, size = row_check(id, time, low, high, tag, kind, crc32(payload)), len(payload)
        covered = _PUBLICATION.pack(
            BATCH_VERSION, 0, 1, 1, first, now_us, high, size, id, time, low, high, tag, kind, check, size
        )
        return _CRC.pack(crc32(covered)) + covered + payload
    check = row_check(id, time, low, high, tag, kind, 0)
    covered = _ROW.pack(BATCH_VERSION, 0, 1, 0, first, now_us, EVER_US, 0, id, time, low, high, tag, kind, check)
    return _CRC.pack(crc32(covered)) + covered


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


def unverified_outline(value: memoryview, first: int) -> BatchHead:
    """The fixed part, unverified but for the size. Raises DamageError naming the batch by `first`, StoreFormatError."""
    if len(value) < _START:
        raise DamageError("batches", -1, first, "the batch is cut short")
    head = BatchHead(*_HEAD.unpack_from(value, _CRC.size))
    if _ends(head).body != len(value):
        raise DamageError("batches", -1, first, "the columns of the batch do not match their checksum")
    if head.version > BATCH_VERSION:
        raise StoreFormatError(f"batch {first} has format {head.version}, this lexicast reads up to {BATCH_VERSION}")
    return head


def batch_head(value: memoryview, first: int) -> BatchHead:
    """The verified fixed part. Raises DamageError naming the batch by `first`, StoreFormatError when it is newer."""
    head = unverified_outline(value, first)
    if crc32(value[_CRC.size : _ends(head).lengths]) != _CRC.unpack_from(value)[0]:
        raise DamageError("batches", -1, first, "the columns of the batch do not match their checksum")
    return head


def unverified_span(value: Value) -> tuple[int, int] | None:
    """The first operation of a stored batch and how many there are; None when it is cut short."""
    if len(value) < _START:
        return None
    head = BatchHead(*_HEAD.unpack_from(value, _CRC.size))
    return head.first, head.operations


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
    """The payloads of the publications at these places of the batch, verified one by one, whatever the others are.

    Raises DamageError naming a damaged one, UsageError where there is no publication.
    """
    count, ends = head.operations, _ends(head)
    wide = np.frombuffer(value, np.uint64, 5 * count, _START).reshape(5, count)
    published = np.frombuffer(value, np.uint8, count, ends.wide) == PUBLISH
    stored = np.frombuffer(value[ends.kind : ends.checks], np.uint32)
    lengths = np.frombuffer(value[ends.checks : ends.lengths], np.uint32)
    index = np.cumsum(published) - 1
    stops = np.cumsum(lengths, dtype=np.int64) + ends.lengths
    found = []
    for place in places:
        if not 0 <= place < count or not published[place]:
            raise UsageError(f"operation {head.first + place} is no publication")
        at = int(index[place])
        if at < len(stops):
            payload = bytes(value[int(stops[at]) - int(lengths[at]) : int(stops[at])])
            id, time, low, high, tag = wide[:, place].tolist()
            if row_check(id, time, low, high, tag, PUBLISH, crc32(payload)) == stored[place]:
                found.append(payload)
                continue
        raise DamageError("batches", -1, head.first + place, "the publication does not match its checksum")
    return found
