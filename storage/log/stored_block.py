"""A block together with the very bytes under which it is stored: made once, shipped and stored as they are.

Whoever takes such bytes from another store verifies all of them first: what is stored under a checksum of ours is what
somebody has looked at.
"""

from __future__ import annotations

from binascii import crc32
from typing import Final, NamedTuple

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import LexicastError, PeerError

from ..file.keys import MAX_OFFSET
from .block_format import IS_KEPT, block_of, encode_block, sound_block, verified_head
from .block_outline import Outline, outline


class StoredBlock(NamedTuple):
    """What a commit has to know of a block, and its value in the log."""

    outline: Outline
    value: bytes

    @property
    def block(self) -> Block:
        """The block itself."""
        return self.outline.block


def sealed(block: Block) -> StoredBlock:
    """`block` as it is stored. Raises UsageError when its parts contradict each other."""
    found = outline(block)
    return StoredBlock(found, encode_block(block, found.flags, found.expire_first_us, found.expire_all_us))


# From so many records on one checksum over a value is cheaper than all those of its records.
RECORDS_FOR_CHECKSUM: Final = 4


def shipped_checksum(stored: StoredBlock) -> int | None:
    """What whoever takes a block that was just made compares, where that is cheaper: see `stored_block`."""
    return crc32(stored.value) if stored.block.count >= RECORDS_FOR_CHECKSUM else None


def stored_block(group: int, last: int, value: bytes, checksum: int | None = None) -> StoredBlock:
    """The block of a value from another store, which ends at offset `last`. `checksum`: of the whole value, made where
    its payloads had just been sealed, so that each need not be looked at; what was read from a disk has none.

    Raises PeerError: it is damaged, of another group or format, or contradicts itself.
    """
    try:
        if not 0 <= last < MAX_OFFSET:
            raise PeerError(f"offset {last} is out of range")
        head = verified_head(value, group, last)
        if head.flags & IS_KEPT:
            raise PeerError("it is of another table")
        if checksum is None:
            block, damaged = sound_block(value, head)
            if block is None or damaged:
                raise PeerError(str(damaged[0]))
        elif crc32(value) != checksum:
            raise PeerError("it does not match the checksum that came with it")
        else:
            block = block_of(value, head)
        return StoredBlock(outline(block), value)
    except LexicastError as error:
        raise PeerError(f"group {group}: the block that ends at offset {last} cannot be taken: {error}") from None
