"""What the bytes on disk mean. Settled: a change here needs a new FORMAT_VERSION and an upgrade rule.

A block is one value (one put and one copy a batch) under the key (group u16, last offset u64), big-endian, so that
`set_range` on any offset finds the block that holds it. The value, little-endian:

    crc u32            crc32 of head, meta, lengths and crcs: who is who, without which no record can be named
    head               HEAD: version, kind, flags, group, spare, epoch, first, last, time_us, expire_first_us,
                       expire_all_us, records, bytes of meta, bytes of body
    meta               msgpack (`cluster.blocks`)
    lengths            u32 a record
    crcs               u32 a record: crc32 of its payload, so that a damaged record is named and the others are kept
    body               the payloads, joined

`expire_first_us` is when the first record of the block expires (0: none does), `expire_all_us` when the last one has
(0: some never do): readers and the reclaimer decide from the head alone whether there is anything to look at.

Rows of the tables are sealed: crc32 of key and data, then the data.
"""

from __future__ import annotations

import struct
from array import array
from binascii import crc32
from hashlib import blake2b
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

from lexicast.cluster.blocks import CONTROL, U32, Block
from lexicast.cluster.errors import PeerError, StoreError, StoreFormatError
from lexicast.cluster.selection import select

FORMAT_VERSION: Final = 1

HAS_RETAINED: Final = 1
HAS_MARKS: Final = 2

_KEY = struct.Struct(">HQ")
_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<BBHHHQQQqQQIIQ")
HEAD_BYTES: Final = _CRC.size + _HEAD.size

# LMDB keys end at 511 bytes, MQTT names at 65,535: a longer name is known by its digest.
_NAME_BYTES_MAX: Final = 480
# Of a key or row that cannot be read, as much is shown.
_SHOWN_BYTES: Final = 32
_NAME_DIGEST_BYTES: Final = 32

MAX_OFFSET: Final = 2**64 - 1

Value: TypeAlias = bytes | memoryview


class DamageError(StoreError):
    """Bytes on disk are not those that were written. Names the table, the group and the offset (-1: not known)."""

    def __init__(self, table: str, group: int, offset: int, what: str) -> None:
        super().__init__(
            f"damaged: {table}, group {group}, offset {offset}: {what}; "
            "run `python -m lexicast.storage.check` on this store"
        )
        self.table = table
        self.group = group
        self.offset = offset
        self.what = what


class Head(NamedTuple):
    """The fixed part of a stored block."""

    version: int
    kind: int
    flags: int
    group: int
    spare: int
    epoch: int
    first: int
    last: int
    time_us: int
    expire_first_us: int
    expire_all_us: int
    records: int
    meta_bytes: int
    body_bytes: int


def log_key(group: int, offset: int) -> bytes:
    """The key of the block whose last offset is `offset`."""
    return _KEY.pack(group, offset)


def unpacked(layout: struct.Struct, data: Value, table: str) -> tuple[Any, ...]:
    """The fields of a key or row of that layout. Raises DamageError naming its table when the size is another."""
    if len(data) != layout.size:
        what = f"{len(data)} bytes ({bytes(data[:_SHOWN_BYTES])!r}) where {layout.size} were expected"
        raise DamageError(table, -1, -1, what)
    return layout.unpack(data)


def unpacked_head(layout: struct.Struct, data: Value, table: str) -> tuple[Any, ...]:
    """The same of a row that goes on after that layout."""
    return unpacked(layout, data[: layout.size], table)


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


def seal(key: bytes, data: bytes) -> bytes:
    """`data` with a checksum over it and its key."""
    return _CRC.pack(crc32(data, crc32(key))) + data


def unseal(table: str, key: Value, value: Value) -> bytes:
    """The inverse of `seal`. Raises DamageError when the checksum disagrees."""
    data = bytes(value[_CRC.size :])
    if len(value) < _CRC.size or _CRC.unpack_from(value)[0] != crc32(data, crc32(key)):
        raise DamageError(table, -1, -1, f"the row {bytes(key)!r} does not match its checksum")
    return data


def encode_block(block: Block, flags: int, expire_first_us: int, expire_all_us: int) -> bytes:
    """`block` as the value that is stored."""
    crcs = array("I", map(crc32, block.payloads())).tobytes()
    head = _HEAD.pack(
        FORMAT_VERSION,
        block.kind,
        flags,
        block.group,
        0,
        block.epoch,
        block.first,
        block.last,
        block.time_us,
        expire_first_us,
        expire_all_us,
        block.count,
        len(block.meta_bytes),
        len(block.body),
    )
    covered = b"".join((head, block.meta_bytes, block.lengths, crcs))
    return b"".join((_CRC.pack(crc32(covered)), covered, block.body))


def peek_head(value: Value, group: int, last: int) -> Head:
    """The head, unverified: for searches that look at many blocks and return none."""
    if len(value) < HEAD_BYTES:
        raise DamageError("log", group, last, "the block is cut short")
    return Head(*_HEAD.unpack_from(value, _CRC.size))


def _parts(head: Head) -> tuple[int, int, int, int]:
    """Ends of meta, lengths, crcs and body within the value."""
    meta = HEAD_BYTES + head.meta_bytes
    lengths = meta + U32 * head.records
    crcs = lengths + U32 * head.records
    return meta, lengths, crcs, crcs + head.body_bytes


def verified_head(value: Value, group: int, last: int) -> Head:
    """The head after its checksum (over head, meta, lengths and crcs). Raises DamageError, StoreFormatError."""
    head = peek_head(value, group, last)
    _, _, covered, end = _parts(head)
    if end != len(value) or crc32(value[_CRC.size : covered]) != _CRC.unpack_from(value)[0]:
        raise DamageError("log", group, last, "the head of the block does not match its checksum")
    if head.group != group or head.last != last:
        raise DamageError("log", group, last, f"the block says it is group {head.group} offset {head.last}")
    if head.version > FORMAT_VERSION:
        raise StoreFormatError(
            f"group {group} offset {last} has format {head.version}, this lexicast reads up to {FORMAT_VERSION}: "
            "use the lexicast that wrote it, or a newer one"
        )
    return head


def meta_of(value: Value, head: Head) -> bytes:
    """The meta's bytes, without copying the body."""
    return bytes(value[HEAD_BYTES : HEAD_BYTES + head.meta_bytes])


def block_of(value: Value, head: Head) -> Block:
    """The block, its payloads unverified."""
    meta, lengths, crcs, end = _parts(head)
    return Block(
        head.group,
        head.epoch,
        head.first,
        head.last,
        head.time_us,
        head.kind,
        bytes(value[HEAD_BYTES:meta]),
        bytes(value[meta:lengths]),
        bytes(value[crcs:end]),
    )


def damaged_records(value: Value, head: Head) -> list[int]:
    """Indexes of the records whose payload does not match its checksum."""
    meta, lengths, crcs, end = _parts(head)
    stored = array("I", bytes(value[lengths:crcs]))
    body = bytes(value[crcs:end])
    sizes = memoryview(bytes(value[meta:lengths])).cast("I")
    ends = accumulate(sizes)
    found = [crc32(body[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    return [i for i, (a, b) in enumerate(zip(found, stored, strict=True)) if a != b]


def sound_block(
    value: Value, head: Head, first: int = 0, last: int = MAX_OFFSET
) -> tuple[Block | None, list[DamageError]]:
    """The block without those records from offset `first` to `last` whose payload is damaged, and what they are.

    None when none is left. Damage outside these offsets is no concern of a reader that is going to cut it off.
    """
    _, lengths, crcs, _ = _parts(head)
    block = block_of(value, head)
    try:
        if array("I", map(crc32, block.payloads())).tobytes() == value[lengths:crcs]:
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
