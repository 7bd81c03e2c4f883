"""The reader of the log, by position; in short read transactions, on any thread. (By topic: `topic_reader`.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from lexicast.cluster.blocks import CONTROL, Block
from lexicast.cluster.clock import Clock

from .file.keys import MAX_OFFSET
from .file.table import ReadTransaction
from .log.block_cuts import cut, pieces_of
from .log.block_format import EXPIRES, Head
from .log.block_log import Log
from .tables.groups import StoredGroup

# A read transaction that finds little goes on for at most this long; LMDB cannot reuse pages freed meanwhile.
READ_S: Final = 0.25


class ReadResult(NamedTuple):
    """Blocks, the offset to go on from, and the first offset that retention has not discarded.

    Ask from `offset` < `first_kept`, and at most `first_kept - offset` records are missing. `expires`: some of the
    blocks found will be without some of their records one day.
    """

    blocks: list[Block]
    next_offset: int
    first_kept: int
    expires: bool = False


def anything(topic: bytes) -> bool:
    """Every topic is wanted; what has none, control records, is not. Metas need not be unpacked for that."""
    return True


class LogReader:
    """See the module's docstring."""

    def __init__(self, log: Log, groups: dict[int, StoredGroup], clock: Clock) -> None:
        self._log = log
        self._groups = groups
        self._clock = clock

    def first_kept(self, group: int) -> int:
        """The first offset of a group that retention has not discarded."""
        known = self._groups.get(group)
        return known.first_kept if known is not None else 0

    def read(
        self,
        txn: ReadTransaction,
        group: int,
        offset: int,
        bytes_max: int,
        upto: int | None,
        topics: Callable[[bytes], bool] | None,
        expired: bool,
        tail: int,
        read_s: float = READ_S,
    ) -> ReadResult:
        """See `Store.read`. `tail` is the group's last offset as it was before `txn` began."""
        end = MAX_OFFSET if upto is None else upto
        now_us = None if expired else self._clock.time_us()
        until = self._clock.monotonic() + read_s
        blocks: list[Block] = []
        size, at, expires = 0, offset, False
        for head, value in self._log.from_offset(txn, group, offset):
            if head.first > end:
                at = max(at, end + 1)
                break
            found = self._wanted(value, head, offset, end, now_us, topics)
            at = min(head.last, end) + 1
            if found is not None:
                blocks.append(found)
                size += found.size_bytes
                expires = expires or bool(head.flags & EXPIRES)
            if size >= bytes_max or at > end or self._clock.monotonic() >= until:
                break
        else:
            # Nothing further is stored: what once was, up to the tail, has expired and been reclaimed.
            at = max(at, min(tail, end) + 1)
        return ReadResult(blocks, at, self.first_kept(group), expires)

    def count(
        self, txn: ReadTransaction, group: int, offset: int, upto: int, topics: Callable[[bytes], bool], read_s: float
    ) -> tuple[int, int]:
        """See `Store.count`."""
        now_us, until = self._clock.time_us(), self._clock.monotonic() + read_s
        found, at = 0, offset
        for head, value in self._log.from_offset(txn, group, offset):
            if head.first > upto:
                break
            at = min(head.last, upto) + 1
            meta = None if head.kind == CONTROL or 0 < head.expire_all_us < now_us else self._log.meta(value, head)
            if meta is not None:
                pieces = pieces_of(meta, head.first, head.time_us, offset, upto, now_us, topics)
                found += sum([piece.records for piece in pieces])
            if at > upto or self._clock.monotonic() >= until:
                return found, at
        return found, upto + 1

    def _wanted(
        self,
        value: memoryview,
        head: Head,
        first: int,
        last: int,
        now_us: int | None,
        topics: Callable[[bytes], bool] | None,
    ) -> Block | None:
        """The block cut to what the reader wants; nothing is copied when that is nothing."""
        if now_us is not None and 0 < head.expire_all_us < now_us:
            return None
        if topics is not None:
            if head.kind == CONTROL:
                return None
            if topics is not anything and not any(map(topics, self._log.topics(value, head))):
                return None
        block = self._log.sound(value, head, first, last)
        if block is None:
            return None
        if now_us is not None and not 0 < head.expire_first_us < now_us:
            now_us = None
        if head.first >= first and head.last <= last and now_us is None:
            return block
        return cut(block, first, last, now_us)
