"""The log of a stand-alone DualDB: every operation, and the payloads, in batches; small ones in the journal at first.

    journal     small batches, each durable by itself (`journal`), and in memory what they say
    LMDB        larger ones, and those of the journal moved there together, as one batch

A batch stays for as long as the lists need it after a crash, and until the last of its publications has expired.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from lexicast.cluster.errors import UsageError

from ..file.sealing import DamageError
from ..file.table import ReadTransaction, WriteTransaction
from .batches import (
    PUBLISH,
    OperationBatch,
    RowOperation,
    batch_head,
    decode_batch,
    encode_batch,
    joined_batches,
    keep_until,
    last_expiry,
    payloads_at,
    unverified_outline,
)
from .environment import DualEnvironment
from .journal import JournalEntry
from .recent import Recent

# A value of more bytes goes to LMDB at once: to write it twice costs more than to wait for the disk twice.
JOURNALED_BYTES_MAX: Final = 128 << 10
# So many operations, entered row by row, are in memory besides the memory table: 7 to 10 MB, short payloads included.
JOURNALED_OPERATIONS_MAX: Final = 16_384
_BATCHES_DELETED_A_STEP: Final = 8
_SEQ_BYTES: Final = 8


class OperationLog:
    """See the module's docstring. Methods raise lmdb.Error and OSError: after either nothing more may be written."""

    def __init__(self, environment: DualEnvironment, journal_bytes: int, operations_max: int) -> None:
        self._environment = environment
        self._journal = environment.journal
        self._bytes_max = journal_bytes
        self._operations_max = min(operations_max, JOURNALED_OPERATIONS_MAX)
        # What the journal holds: by columns, then row by row; and the payloads by the numbers of their publications.
        self._columns: list[OperationBatch] = []
        self.recent = Recent(0)
        self._payloads: dict[int, bytes] = {}
        self._first = 0
        self._next = 0
        # (first operation, when its last publication expires) of batches that are still the log of something; then,
        # the other way round, of those that are kept for their payloads alone.
        self._needed: deque[tuple[int, int]] = deque()
        self._until: list[tuple[int, int]] = []

    def recovered(self, txn: ReadTransaction, flushed: int) -> Iterator[tuple[int, OperationBatch]]:
        """The batches from operation `flushed` on, each with its first one's number. Raises DamageError.

        The journal's are joined into one: a full journal entered entry by entry cost eleven times the CPU.
        """
        self._next = flushed
        with txn.cursor(self._environment.batches) as cursor:
            for key, value in cursor:
                first = int.from_bytes(key, "big")
                if first < flushed:
                    heapq.heappush(self._until, (keep_until(value), first))
                    continue
                head = batch_head(value, first)
                self._needed.append((first, head.keep_until_us))
                self._next = first + head.operations
                yield first, decode_batch(value, head)
        self._first = self._next
        entries = self._journal.resume(self._next).entries
        if entries:
            batch = joined_batches([_batch_of(entry) for entry in entries])
            self.enter(batch)
            yield self._first, batch
        self.recent = Recent(self._next)

    @property
    def batches(self) -> int:
        """How many batches LMDB holds."""
        return len(self._needed) + len(self._until)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that only the journal holds."""
        return self._journal.end

    @property
    def waiting(self) -> int:
        """How many operations only the journal holds."""
        return self._next - self._first

    # the journal

    def takes_rows(self, batch: OperationBatch, few: int) -> bool:
        """A batch is small, and has at most so many operations."""
        return batch.size <= few and self.takes(sum(map(len, batch.payloads)))

    def takes(self, size_bytes: int) -> bool:
        """A batch of so many bytes, or with so many of payloads, is small."""
        return size_bytes <= min(JOURNALED_BYTES_MAX, self._bytes_max)

    def has_room(self, size_bytes: int, operations: int) -> bool:
        """There is room for a small batch; else the journal is to be moved first."""
        held = self.waiting
        return not held or (
            self._journal.end + size_bytes <= self._bytes_max and held + operations <= self._operations_max
        )

    def journal(self, value: bytes) -> None:
        """Make a batch durable in the journal; then it is to be entered."""
        self._journal.append(value)

    def enter(self, batch: OperationBatch) -> None:
        """The journal holds this batch now."""
        self._columns.append(batch)
        if batch.payloads:
            places = np.flatnonzero(batch.kind == PUBLISH) + self._next
            self._payloads.update(zip(places.tolist(), batch.payloads, strict=True))
        self._next += batch.size
        self.recent = Recent(self._next)

    def enter_row(self, operation: RowOperation, payload: bytes | None) -> None:
        """The journal holds this operation now; a payload comes with a publication."""
        self.recent.add(operation, payload)
        if payload is not None:
            self._payloads[self._next] = payload
        self._next += 1

    def close_recent(self) -> tuple[int, OperationBatch] | None:
        """What was entered row by row, from now on by columns, with its first number; None when that is nothing."""
        recent = self.recent
        if not recent.size:
            return None
        batch = recent.batch()
        self._columns.append(batch)
        self.recent = Recent(self._next)
        return recent.first, batch

    # LMDB

    def move(self, txn: WriteTransaction, now_us: int) -> None:
        """Write what the journal holds, `recent` being closed, as one batch; `moved` is to follow the commit."""
        if self._columns:
            batch = joined_batches(self._columns)
            txn.put(_seq_key(self._first), encode_batch(batch, self._first, now_us), db=self._environment.batches)

    def moved(self) -> None:
        """What the journal holds is durable in LMDB."""
        if self._columns:
            expiry = max([last_expiry(batch) for batch in self._columns])
            self._needed.append((self._first, expiry))
            self._columns, self._payloads = [], {}
            self._first = self._next
            self._journal.restart()

    def put(self, txn: WriteTransaction, value: bytes) -> None:
        """Write a batch to LMDB; `was_put` is to follow the commit, and `moved`."""
        txn.put(_seq_key(self._next), value, db=self._environment.batches, append=True)

    def was_put(self, batch: OperationBatch) -> None:
        """That batch is durable."""
        self._needed.append((self._next, last_expiry(batch)))
        self._next += batch.size
        self._first = self._next
        self.recent = Recent(self._next)

    def expire(self, txn: WriteTransaction, flushed: int, now_us: int) -> None:
        """Delete some batches that nothing needs any more: not the lists, from `flushed` on, nor a publication."""
        while self._needed and self._needed[0][0] < flushed:
            first, until_us = self._needed.popleft()
            heapq.heappush(self._until, (until_us, first))
        for _ in range(_BATCHES_DELETED_A_STEP):
            if not self._until or self._until[0][0] >= now_us:
                break
            txn.delete(_seq_key(heapq.heappop(self._until)[1]), db=self._environment.batches)

    # payloads

    def payloads(self, positions: Sequence[int]) -> list[bytes]:
        """The payloads of publications. Raises UsageError where there is none any more, DamageError (a damaged one)."""
        found = [self._payloads.get(position, b"") for position in positions]
        elsewhere = [at for at, position in enumerate(positions) if position not in self._payloads]
        if not elsewhere:
            return found
        batches: dict[int, list[int]] = {}
        with self._environment.snapshot() as txn, txn.cursor(self._environment.batches) as cursor:
            for at in elsewhere:
                known = 0 <= positions[at] < self._next
                there = known and cursor.set_range(_seq_key(positions[at] + 1))
                if not known or not (cursor.prev() if there else cursor.last()):
                    raise UsageError(f"there is no publication {positions[at]}")
                batches.setdefault(int.from_bytes(cursor.key(), "big"), []).append(at)
            for first, places in batches.items():  # each is decoded once
                cursor.set_key(_seq_key(first))
                value = cursor.value()
                wanted = [positions[at] - first for at in places]
                for at, payload in zip(
                    places, payloads_at(value, unverified_outline(value, first), wanted), strict=True
                ):
                    found[at] = payload
        return found


def _batch_of(entry: JournalEntry) -> OperationBatch:
    if not entry.whole:
        raise DamageError("journal", -1, entry.first, "an entry of the journal is damaged: repair the store")
    value = memoryview(entry.value)
    return decode_batch(value, batch_head(value, entry.first))


def _seq_key(seq: int) -> bytes:
    return seq.to_bytes(_SEQ_BYTES, "big")
