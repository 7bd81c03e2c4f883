"""A block together with the very bytes under which it is stored: made once, shipped and stored as they are.

Whoever takes such bytes from another store verifies all of them first: what is stored under a checksum of ours is what
somebody has looked at.
"""

from __future__ import annotations

from typing import NamedTuple

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import LexicastError, PeerError

from ..file.keys import MAX_OFFSET
from .block_format import IS_KEPT, encode_block, sound_block, verified_head
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


def stored_block(group: int, last: int, value: bytes) -> StoredBlock:
    """The block of a value from another store, which ends at offset `last`. Raises PeerError: it is damaged, of another
    group or format, or contradicts itself."""
    try:
        if not 0 <= last < MAX_OFFSET:
            raise PeerError(f"offset {last} is out of range")
        head = verified_head(value, group, last)
        if head.flags & IS_KEPT:
            raise PeerError("it is of another table")
        block, damaged = sound_block(value, head)
        if block is None or damaged:
            raise PeerError(str(damaged[0]))
        return StoredBlock(outline(block), value)
    except LexicastError as error:
        raise PeerError(f"group {group}: the block that ends at offset {last} cannot be taken: {error}") from None
