"""Positions: where a publication stands, and how far a reader has come (DESIGN: Position = (group, epoch, offset)).

A topic belongs to exactly one topic group; within a group every record has an offset, and offsets never go back.
Every opening of a group to lead takes a new epoch and starts beyond every offset that the epoch before may have
handed out (`EPOCH_OFFSET_GAP`), so an offset names one record for ever and the epoch only says who gave it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

DEFAULT_GROUPS: Final = 100

# A coordinator keeps at most this many records of a group handed out and not yet durable; a new epoch starts this
# far beyond the last durable offset, so that no offset is given twice although QoS 0 goes out before it is durable.
EPOCH_OFFSET_GAP: Final = 1 << 20


class Position(NamedTuple):
    """The place of one record: unique in the cluster, ordered within its group."""

    group: int
    epoch: int
    offset: int

    def __str__(self) -> str:
        return f"{self.group}:{self.epoch}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """`"group:epoch:offset"` back to a Position. Raises ValueError on anything else."""
        group, epoch, offset = (int(part) for part in text.split(":"))
        if min(group, epoch, offset) < 0:
            raise ValueError(f"not a position: {text!r}")
        return cls(group, epoch, offset)


# group -> offset of the next record that the reader wants
Cursor: TypeAlias = dict[int, int]


def topic_group(topic: bytes, groups: int) -> int:
    """The group of a topic: first 8 bytes of BLAKE2b(topic), big-endian, mod `groups` (never Python's salted hash)."""
    return int.from_bytes(blake2b(topic, digest_size=8).digest(), "big") % groups
