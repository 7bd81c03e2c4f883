"""The log: blocks by position, the record of everything (DESIGN: the log is the record)."""

from __future__ import annotations

from collections.abc import Iterator

from lexicast.cluster.blocks import Block

from .cut import cut
from .format import MAX_OFFSET, Head, decode_block, log_key, parse_log_key, peek_head, verified_head
from .table import AnyTransaction, Database, ReadTransaction, WriteTransaction


class Log:
    """Blocks of one LMDB database under (group, last offset)."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def put(self, txn: WriteTransaction, group: int, last: int, value: bytes) -> None:
        """Store an encoded block."""
        txn.put(log_key(group, last), value, db=self.database)

    def delete(self, txn: WriteTransaction, group: int, last: int) -> None:
        """Delete the block that ends at `last`."""
        txn.delete(log_key(group, last), db=self.database)

    def from_offset(self, txn: ReadTransaction, group: int, offset: int) -> Iterator[tuple[int, memoryview]]:
        """(last offset, value) of each block from the one that holds `offset` (or the next one) on.

        The value is valid until the iterator moves on or the transaction ends.
        """
        with txn.cursor(self.database) as cursor:
            there = cursor.set_range(log_key(group, offset))
            while there:
                found, last = parse_log_key(cursor.key())
                if found != group:
                    return
                yield last, cursor.value()
                there = cursor.next()

    def head_at(self, txn: AnyTransaction, group: int, offset: int) -> Head | None:
        """The unverified head of the block that holds `offset`, or of the next one; None beyond the end."""
        with txn.cursor(self.database) as cursor:
            if not cursor.set_range(log_key(group, offset)):
                return None
            found, last = parse_log_key(cursor.key())
            return peek_head(cursor.value(), group, last) if found == group else None

    def end(self, txn: AnyTransaction, group: int) -> Head | None:
        """The unverified head of the group's last block."""
        with txn.cursor(self.database) as cursor:
            there = cursor.set_range(log_key(group + 1, 0))
            if not (cursor.prev() if there else cursor.last()):
                return None
            found, last = parse_log_key(cursor.key())
            return peek_head(cursor.value(), group, last) if found == group else None

    def groups(self, txn: AnyTransaction) -> list[int]:
        """The groups that have blocks."""
        found = []
        with txn.cursor(self.database) as cursor:
            there = cursor.first()
            while there:
                group = parse_log_key(cursor.key())[0]
                found.append(group)
                there = cursor.set_range(log_key(group, MAX_OFFSET)) and (
                    parse_log_key(cursor.key())[0] != group or cursor.next()
                )
        return found

    def block_at(self, txn: AnyTransaction, group: int, offset: int, upto: int = MAX_OFFSET) -> Block | None:
        """The whole block that holds `offset`, verified up to `upto`; None when the offset is not in the log."""
        with txn.cursor(self.database) as cursor:
            if not cursor.set_range(log_key(group, offset)):
                return None
            found, last = parse_log_key(cursor.key())
            if found != group:
                return None
            value = cursor.value()
            head = verified_head(value, group, last)
            return decode_block(value, head, offset, upto) if head.first <= offset else None

    def record(self, txn: AnyTransaction, kept: Database, group: int, offset: int) -> Block | None:
        """The record at `offset` as a block of its own: from the log, or from the `kept` table."""
        value = txn.get(log_key(group, offset), None, kept)
        if value is not None:
            return decode_block(value, verified_head(value, group, offset))
        block = self.block_at(txn, group, offset, offset)
        return None if block is None else cut(block, offset, offset)

    def offset_at(self, txn: AnyTransaction, group: int, time_us: int, first: int, last: int) -> int:
        """The first offset from `first` on whose block's time is at or after `time_us`, or `last` + 1.

        A binary search over offsets (at most 64 heads are looked at): times ascend with offsets.
        """
        low, high = first, last + 1
        while low < high:
            middle = (low + high) // 2
            head = self.head_at(txn, group, middle)
            if head is None or head.first > last:
                high = middle
            elif head.time_us >= time_us:
                high = middle if head.first >= middle else max(low, head.first)
            else:
                low = head.last + 1
        head = self.head_at(txn, group, low) if low <= last else None
        return last + 1 if head is None else max(low, head.first)
