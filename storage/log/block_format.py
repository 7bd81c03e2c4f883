"""The form of blocks on disk. Settled: a change here needs a new FORMAT_VERSION and an upgrade rule.

A block is one value (one put and one copy a batch) under the key (group u16, last offset u64), big-endian, so that
`set_range` on any offset finds the block that holds it. The value, little-endian:

    crc u32            crc32 of key, head, meta, lengths and crcs: who is who, without which no record can be named
    head               version u8, kind u8, flags u8, epoch u32, span u32 (last offset less the first), time_us i64,
                       records u32, bytes of meta u32, bytes of body u32; where a record expires (flag EXPIRES) also
                       expire_first_us u64, expire_all_us u64
    meta               msgpack (`cluster.blocks`)
    lengths            u32 a record
    crcs               u32 a record: crc32 of its payload, so that a damaged record is named and the others are kept
    body               the payloads, joined

Group and last offset are the key's. A device's message is often a block of its own, so each byte of this counts: it was
76 and is 35. `expire_first_us` is when the first record of the block expires (0: none does), `expire_all_us` when the
last one has (0: some never do): readers and the reclaimer decide from the head alone whether there is anything to look
at.
"""

from __future__ import annotations

import struct
from array import array
from binascii import crc32
from itertools import accumulate
from typing import Final, NamedTuple

from lexicast.cluster.blocks import CONTROL, U32, Block, Meta
from lexicast.cluster.errors import PeerError, StoreFormatError, UsageError
from lexicast.cluster.selection import select

from ..file.keys import MAX_OFFSET, log_key
from ..file.sealing import DamageError, Value

FORMAT_VERSION: Final = 3

HAS_RETAINED: Final = 1
HAS_MARKS: Final = 2
# The head has fields for expiry.
EXPIRES: Final = 8
# The block lies in `kept`, not in the log.
IS_KEPT: Final = 4

_CRC: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<BBBIIqIII")
_EXPIRY: Final = struct.Struct("<QQ")
HEAD_BYTES: Final = _CRC.size + _HEAD.size
_EXPIRY_BYTES: Final = _EXPIRY.size
_U32_END: Final = 2**32


class Head(NamedTuple):
    """What is known of a stored block before its content; see the module's docstring."""

    version: int
    kind: int
    flags: int
    group: int
    epoch: int
    first: int
    last: int
    time_us: int
    expire_first_us: int
    expire_all_us: int
    records: int
    meta_bytes: int
    body_bytes: int


def encode_block(block: Block, flags: int, expire_first_us: int, expire_all_us: int) -> bytes:
    """`block` as the value that is stored. Raises UsageError when its epoch or its span of offsets has no room."""
    span = block.last - block.first
    if not (0 <= block.epoch < _U32_END and 0 <= span < _U32_END):
        raise UsageError(
            f"group {block.group}: epoch {block.epoch}, offsets {block.first} to {block.last} cannot be stored"
        )
    expiry = b""
    if expire_first_us or expire_all_us:
        flags |= EXPIRES
        expiry = _EXPIRY.pack(expire_first_us, expire_all_us)
    crcs = array("I", map(crc32, block.payloads())).tobytes()
    sizes = (block.count, len(block.meta_bytes), len(block.body))
    head = _HEAD.pack(FORMAT_VERSION, block.kind, flags, block.epoch, span, block.time_us, *sizes)
    covered = b"".join((head, expiry, block.meta_bytes, block.lengths, crcs))
    return b"".join((_CRC.pack(crc32(covered, crc32(log_key(block.group, block.last)))), covered, block.body))


def peek_head(value: Value, group: int, last: int) -> Head:
    """The head of the block under the key (group, last), unverified: for searches that look at many blocks and return
    none. Raises DamageError when there is none, StoreFormatError when it is of another format."""
    if len(value) < HEAD_BYTES:
        raise DamageError("log", group, last, "the block is cut short")
    version, kind, flags, epoch, span, time_us, records, meta, body = _HEAD.unpack_from(value, _CRC.size)
    expire_first_us = expire_all_us = 0
    if flags & EXPIRES:
        if len(value) < HEAD_BYTES + _EXPIRY_BYTES:
            raise DamageError("log", group, last, "the block is cut short")
        expire_first_us, expire_all_us = _EXPIRY.unpack_from(value, HEAD_BYTES)
    first = max(last - span, 0)
    return Head(
        version, kind, flags, group, epoch, first, last, time_us, expire_first_us, expire_all_us, records, meta, body
    )


def head_bytes(head: Head) -> int:
    """Bytes before the meta."""
    return HEAD_BYTES + _EXPIRY_BYTES if head.flags & EXPIRES else HEAD_BYTES


def _parts(head: Head) -> tuple[int, int, int, int, int]:
    """Where meta, lengths, crcs and body begin within the value, and where it ends."""
    meta = HEAD_BYTES + _EXPIRY_BYTES if head.flags & EXPIRES else HEAD_BYTES
    lengths = meta + head.meta_bytes
    crcs = lengths + U32 * head.records
    body = crcs + U32 * head.records
    return meta, lengths, crcs, body, body + head.body_bytes


def verified_head(value: Value, group: int, last: int, key: Value | None = None) -> Head:
    """The head after its checksum (over key, head, meta, lengths and crcs). `key`: group and last offset as they stand
    in the log, where that is at hand. Raises DamageError, StoreFormatError."""
    head = peek_head(value, group, last)
    _, _, _, covered, end = _parts(head)
    seed = crc32(log_key(group, last) if key is None else key)
    if end != len(value) or crc32(value[_CRC.size : covered], seed) != _CRC.unpack_from(value)[0]:
        raise DamageError("log", group, last, "the head of the block does not match its checksum")
    if head.version > FORMAT_VERSION:
        raise StoreFormatError(
            f"group {group} offset {last} has format {head.version}, this lexicast reads up to {FORMAT_VERSION}: "
            "use the lexicast that wrote it, or a newer one"
        )
    return head


def meta_of(value: Value, head: Head) -> bytes:
    """The meta's bytes, without copying the body."""
    start = head_bytes(head)
    return bytes(value[start : start + head.meta_bytes])


def block_of(value: Value, head: Head, unpacked_meta: Meta | None = None) -> Block:
    """The block, its payloads unverified; with its meta, where that is unpacked already and fits."""
    return _block_of(value, head, _parts(head), unpacked_meta)


def _block_of(value: Value, head: Head, parts: tuple[int, int, int, int, int], unpacked_meta: Meta | None) -> Block:
    meta, lengths, crcs, body, end = parts
    if unpacked_meta is not None and sum([run.count for run in unpacked_meta.runs]) != head.records:
        unpacked_meta = None
    return Block(
        head.group,
        head.epoch,
        head.first,
        head.last,
        head.time_us,
        head.kind,
        bytes(value[meta:lengths]),
        bytes(value[lengths:crcs]),
        bytes(value[body:end]),
        unpacked_meta,
    )


def damaged_records(value: Value, head: Head) -> list[int]:
    """Indexes of the records whose payload does not match its checksum."""
    _, lengths, crcs, start, end = _parts(head)
    stored = array("I", bytes(value[crcs:start]))
    body = bytes(value[start:end])
    sizes = memoryview(bytes(value[lengths:crcs])).cast("I")
    ends = accumulate(sizes)
    found = [crc32(body[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    return [i for i, (a, b) in enumerate(zip(found, stored, strict=True)) if a != b]


def sound_block(
    value: Value, head: Head, first: int = 0, last: int = MAX_OFFSET, meta: Meta | None = None
) -> tuple[Block | None, list[DamageError]]:
    """The block without those records from offset `first` to `last` whose payload is damaged, and what they are.

    None when none is left. Damage outside these offsets is no concern of a reader that is going to cut it off.
    """
    parts = _parts(head)
    _, _, crcs, body, _ = parts
    block = _block_of(value, head, parts, meta)
    try:
        if head.records == 1 and len(block.body) == _CRC.unpack(block.lengths)[0]:
            if crc32(block.body) == _CRC.unpack_from(value, crcs)[0]:
                return block, []
        elif array("I", map(crc32, block.payloads())).tobytes() == value[crcs:body]:
            return block, []
        damaged = damaged_records(value, head)
        offsets = [record_offset(block, at) for at in damaged]
    except (PeerError, ValueError) as error:
        return None, [DamageError("log", head.group, head.first, str(error))]
    gone = {at: offset for at, offset in zip(damaged, offsets, strict=True) if first <= offset <= last}
    what = "the payload does not match its checksum"
    errors = [DamageError("log", head.group, offset, what) for offset in gone.values()]
    if not gone:
        return block, []
    # Control records must fill their block's offsets: a reader gets all of it or nothing.
    keep = [at not in gone for at in range(head.records)]
    return None if block.kind == CONTROL else select(block, keep), errors


def record_offset(block: Block, index: int) -> int:
    """The offset of the record at `index` of `block`."""
    if block.kind == CONTROL:
        return block.first + index
    offset, at = block.first, 0
    for run in block.meta.runs:
        offset += run.skip
        if index < at + run.count:
            return offset + index - at
        at += run.count
        offset += run.count
    return offset
