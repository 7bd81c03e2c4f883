"""The scanner of a store, beside its owner: for jobs that read much of the log and must not slow the writer.

Every read transaction is short (READ_S, BYTES_A_STEP): an old one would keep LMDB from reusing pages, and the file
would grow for good. What a transaction finds is copied out of it; the caller works on the copies. Retention may take
blocks between two transactions: they are missing then, as they would be a moment later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from lexicast.cluster.blocks import PUBLICATIONS, Block

from .environment.read_only import ReadOnlyStore
from .file.damage import Ledger
from .file.keys import group_prefix
from .file.table import ReadTransaction
from .log.block_format import Head, head_bytes
from .log.block_log import Log
from .tables.state import parse_dictionary_row, parse_subscription_row

READ_S: Final = 0.1
BYTES_A_STEP: Final = 4 << 20
HEADS_A_STEP: Final = 5_000
# LMDB lays larger values out on pages of their own; this is what a block's row costs beside its content.
_ROW_BYTES: Final = 64
_DICTIONARY_BYTES: Final = 8


class Extent(NamedTuple):
    """Neighbouring blocks of one group: offsets from `first` to before `end`, and what they hold."""

    group: int
    first: int
    end: int
    records: int
    stored_bytes: int


class LogScanner:
    """A store, opened read-only; use it as a context manager, in one thread."""

    def __init__(self, directory: Path) -> None:
        """Raises StoreFormatError when there is no store in `directory`, StoreError when it cannot be read now."""
        self.damage = Ledger(f"the store {directory}:")
        self._store = ReadOnlyStore(directory, damage=self.damage)
        self._databases = self._store.databases
        # take over the owner's map size: with its own, LMDB refuses to read once the file has outgrown it
        self._store.lmdb.set_mapsize(0)
        self._log = Log(self._databases.log, self.damage)

    def __enter__(self) -> LogScanner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.close()

    def extents(
        self, group: int, first: int, end: int, since_us: int, until_us: int, records: int, stored_bytes: int
    ) -> Iterator[Extent]:
        """The blocks of publications from offset `first` to before `end`, stored from `since_us` to before `until_us`.

        Cut into extents of whole blocks that hold about `records` records or `stored_bytes` bytes, one block more at
        most. Looks at heads alone.
        """
        found: Extent | None = None
        for head in self._heads(group, self._start(group, first, end, since_us), end):
            if head.time_us >= until_us:
                break  # times ascend with offsets
            if head.kind != PUBLICATIONS or head.time_us < since_us:
                continue
            size = head_bytes(head) + head.meta_bytes + head.body_bytes + 2 * 4 * head.records + _ROW_BYTES
            last = min(head.last + 1, end)
            if found is None:
                found = Extent(group, max(head.first, first), last, head.records, size)
            else:
                found = found._replace(
                    end=last, records=found.records + head.records, stored_bytes=found.stored_bytes + size
                )
            if found.records >= records or found.stored_bytes >= stored_bytes:
                yield found
                found = None
        if found is not None:
            yield found

    def _start(self, group: int, first: int, end: int, since_us: int) -> int:
        if since_us <= 0 or end <= first:
            return first
        with self._store.begin() as txn:
            return self._log.offset_at(txn, group, since_us, first, end - 1)

    def _heads(self, group: int, first: int, end: int) -> Iterator[Head]:
        at = first
        while at < end:
            heads: list[Head] = []
            with self._store.begin() as txn:
                for head, _ in self._log.from_offset(txn, group, at):
                    if head.first >= end:
                        break
                    heads.append(head)
                    if len(heads) >= HEADS_A_STEP:
                        break
            yield from heads
            if len(heads) < HEADS_A_STEP:
                return
            at = heads[-1].last + 1

    def blocks(
        self, group: int, first: int, end: int, since_us: int, until_us: int, wanted: Callable[[bytes], bool]
    ) -> Iterator[Block]:
        """The whole blocks that hold wanted publications between these offsets and times, what is sound of them.

        The first and the last one may hold records beyond `first` and `end`, and of other topics: the caller leaves
        them out. What is damaged is left out and counted (`damage`).
        """
        at = first
        while at < end:
            with self._store.begin() as txn:
                found, at = self._step(txn, group, at, end, (since_us, until_us), wanted)
            yield from found

    def _step(
        self,
        txn: ReadTransaction,
        group: int,
        at: int,
        end: int,
        times: tuple[int, int],
        wanted: Callable[[bytes], bool],
    ) -> tuple[list[Block], int]:
        found: list[Block] = []
        size = 0
        until = time.monotonic() + READ_S
        for head, value in self._log.from_offset(txn, group, at):
            if head.first >= end or head.time_us >= times[1]:
                return found, end
            at = head.last + 1
            wanted_here = head.kind == PUBLICATIONS and head.time_us >= times[0]
            if wanted_here and any(map(wanted, self._log.topics(value, head))):
                block = self._log.sound(value, head)
                if block is not None:
                    found.append(block)
                    size += block.size_bytes
            if size >= BYTES_A_STEP or time.monotonic() >= until:
                return found, at
        return found, end

    def dictionary(self, group: int, dictionary: int) -> bytes | None:
        """The packed dictionary that records of the group refer to by this id; None when it is not there."""
        key = group_prefix(group) + dictionary.to_bytes(_DICTIONARY_BYTES, "big")
        with self._store.begin() as txn:
            row = self._databases.dictionaries.get(txn, key)
        return None if row is None else parse_dictionary_row(row).content

    def subscriptions(self, group: int) -> list[str]:
        """The filters to which brokers are subscribed in the group, each once."""
        with self._store.begin() as txn:
            rows = self._databases.subscriptions.rows(txn, group_prefix(group), None, 1 << 20)
        return sorted({parse_subscription_row(row)[0].filter for _, row in rows})
