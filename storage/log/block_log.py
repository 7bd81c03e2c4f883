"""The log: blocks by position, the record of everything (DESIGN: the log is the record).

What is damaged is passed over and noted (see `damage`): a block whose head cannot be believed as a whole, a payload
alone. A searched place is always that of a block with a sound head.
"""

from __future__ import annotations

from collections.abc import Iterator

from lexicast.cluster.blocks import Block, Meta, unpack_meta, unpack_topics
from lexicast.cluster.errors import PeerError

from ..file.damage import Ledger
from ..file.keys import MAX_OFFSET, log_key, parse_log_key
from ..file.sealing import DamageError
from ..file.table import AnyTransaction, Database, ReadTransaction, WriteTransaction
from .block_cuts import cut
from .block_format import Head, meta_of, sound_block, verified_head


class Log:
    """Blocks of one LMDB database under (group, last offset)."""

    def __init__(self, database: Database, ledger: Ledger) -> None:
        self.database = database
        self.ledger = ledger

    def put(self, txn: WriteTransaction, group: int, last: int, value: bytes) -> None:
        """Store an encoded block."""
        txn.put(log_key(group, last), value, db=self.database)

    def delete(self, txn: WriteTransaction, group: int, last: int) -> None:
        """Delete the block that ends at `last`."""
        txn.delete(log_key(group, last), db=self.database)

    def sound_head(self, value: bytes | memoryview, key: bytes | memoryview, table: str = "log") -> Head | None:
        """The verified head of the block under `key` in the log, or in `kept`; None when it is damaged (noted)."""
        try:
            return verified_head(value, *parse_log_key(key), key)
        except DamageError as error:
            self.ledger.note(DamageError(table, error.group, error.offset, error.what))
            return None

    def sound(
        self,
        value: bytes | memoryview,
        head: Head,
        first: int = 0,
        last: int = MAX_OFFSET,
        meta: Meta | None = None,
    ) -> Block | None:
        """The block without its damaged records, as far as they lie from offset `first` to `last`; None: none is left.

        The others are not looked at in vain: a reader cuts them off. `meta`: its meta, where that is unpacked already.
        """
        block, damaged = sound_block(value, head, first, last, meta)
        for error in damaged:
            self.ledger.note(error)
        return block

    def meta(self, value: bytes | memoryview, head: Head) -> Meta | None:
        """The meta of a block, without copying the body; None where it cannot be read."""
        try:
            return unpack_meta(meta_of(value, head))
        except PeerError as error:
            self.ledger.note(DamageError("log", head.group, head.first, str(error)))
            return None

    def topics(self, value: bytes | memoryview, head: Head) -> tuple[bytes, ...]:
        """The topics of a block's publications, without unpacking its meta; none where they cannot be read."""
        try:
            return unpack_topics(meta_of(value, head))
        except PeerError as error:
            self.ledger.note(DamageError("log", head.group, head.first, str(error)))
            return ()

    def from_offset(self, txn: ReadTransaction, group: int, offset: int) -> Iterator[tuple[Head, memoryview]]:
        """(head, value) of each block from the one that holds `offset` (or the next one) on.

        The value is valid until the iterator moves on or the transaction ends.
        """
        with txn.cursor(self.database) as cursor:
            there = cursor.set_range(log_key(group, offset))
            while there:
                value = cursor.value()
                head = self.sound_head(value, cursor.key())
                if head is not None:
                    if head.group != group:
                        return
                    yield head, value
                there = cursor.next()

    def head_at(self, txn: AnyTransaction, group: int, offset: int) -> Head | None:
        """The head of the block that holds `offset`, or of the next one; None beyond the end."""
        with txn.cursor(self.database) as cursor:
            there = cursor.set_range(log_key(group, offset))
            while there:
                head = self.sound_head(cursor.value(), cursor.key())
                if head is not None:
                    return head if head.group == group else None
                there = cursor.next()
        return None

    def end(self, txn: AnyTransaction, group: int) -> tuple[Head | None, list[int]]:
        """The head of the group's last sound block, and the last offsets that damaged ones beyond it claim."""
        claimed: list[int] = []
        with txn.cursor(self.database) as cursor:
            there = cursor.set_range(log_key(group + 1, 0))
            there = cursor.prev() if there else cursor.last()
            while there:
                head = self.sound_head(cursor.value(), cursor.key())
                if head is not None:
                    return head if head.group == group else None, claimed[::-1]
                claimed += [last for found, last in _claims(cursor.key()) if found == group]
                there = cursor.prev()
        return None, claimed[::-1]

    def youngest(self, txn: AnyTransaction, group: int, limit: int) -> list[tuple[Head | None, bytes]]:
        """The last blocks of a group, the youngest first, with their keys; no head of a damaged one."""
        found: list[tuple[Head | None, bytes]] = []
        with txn.cursor(self.database) as cursor:
            there = cursor.set_range(log_key(group + 1, 0))
            there = cursor.prev() if there else cursor.last()
            while there and len(found) < limit:
                key = bytes(cursor.key())
                if group not in [claimed for claimed, _ in _claims(key)]:
                    break
                found.append((self.sound_head(cursor.value(), key), key))
                there = cursor.prev()
        return found

    def groups(self, txn: AnyTransaction) -> list[int]:
        """The groups that have blocks."""
        found = []
        with txn.cursor(self.database) as cursor:
            there = cursor.first()
            while there:
                head = self.sound_head(cursor.value(), cursor.key())
                if head is None:
                    there = cursor.next()
                    continue
                found.append(head.group)
                there = cursor.set_range(log_key(head.group + 1, 0))
        return found

    def block_at(self, txn: AnyTransaction, group: int, offset: int, upto: int = MAX_OFFSET) -> Block | None:
        """The block that holds `offset`, without records damaged up to `upto`; None: the log does not hold it."""
        with txn.cursor(self.database) as cursor:
            there = cursor.set_range(log_key(group, offset))
            while there:
                value = cursor.value()
                head = self.sound_head(value, cursor.key())
                if head is not None:
                    inside = head.group == group and head.first <= offset
                    return self.sound(value, head, offset, upto) if inside else None
                there = cursor.next()
        return None

    def record(self, txn: AnyTransaction, kept: Database, group: int, offset: int) -> Block | None:
        """The record at `offset` as a block of its own: from the log, or from the `kept` table."""
        key = log_key(group, offset)
        value = txn.get(key, None, kept)
        head = None if value is None else self.sound_head(value, key, "kept")
        if value is not None and head is not None:
            return self.sound(value, head)
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


def _claims(key: bytes | memoryview) -> list[tuple[int, int]]:
    """What a damaged block's key says, where it can be read."""
    try:
        return [parse_log_key(key)]
    except DamageError:
        return []
