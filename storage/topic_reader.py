"""The reader of the past of few topics, through the index: DualDB says in which blocks they are, the log has these.

What it gives is what a scan of the log gives, cut to these topics. Every method looks for a millisecond or two and says
how far it has come, in short read transactions, on any thread; where the index cannot tell (it is damaged, or being
made anew) the answer is None, and the log is looked through instead.

An entry of the index names where a topic's first publication in a block lies: entries are never wrong, a block may have
left the log since. So what was looked up once stays good for as long as somebody reads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from lexicast.cluster.blocks import CONTROL, Block
from lexicast.cluster.clock import Clock

from .dualdb.rows import U64, RowColumns
from .environment.guard import Guard
from .file.keys import log_key
from .file.sealing import DamageError
from .index.log_index import LogIndex
from .log.block_cuts import cut, pieces_of
from .log.block_format import Head
from .log.block_log import Log
from .log.lone_blocks import lone_first, lone_publication
from .log_reader import ReadResult
from .tables.databases import Databases
from .tables.groups import StoredGroup
from .tables.matching_topics import FoundTopic, matching_topics
from .tables.topic_levels import topic_level

if TYPE_CHECKING:
    import lmdb

# Looks at names in one step of finding topics: about 1 ms.
NAMES_A_STEP: Final = 256
# Topics looked up in one step at first, and segments of the index that a step touches after that: about 1 ms.
_TOPICS_AT_FIRST: Final = 8
_SEGMENTS_A_STEP: Final = 24
# Entries that one look takes, of all topics together, and of each at least.
_ENTRIES_A_LOOK: Final = 8_192
_ENTRIES_A_TOPIC: Final = 8

Wanted = Callable[[bytes], bool]


class TopicReader:
    """See the module's docstring. One of each store."""

    def __init__(
        self,
        databases: Databases,
        guard: Guard,
        log: Log,
        index: LogIndex,
        groups: dict[int, StoredGroup],
        clock: Clock,
    ) -> None:
        self._databases = databases
        self._guard = guard
        self._log = log
        self._index = index
        self._groups = groups
        self.clock = clock

    # finding topics

    def known(self) -> int:
        """How many topics the store knows."""
        with self._guard.reading() as txn:
            entries: int = txn.stat(self._databases.names.database)["entries"]
            return entries

    def find(
        self, topic_filter: bytes, after: bytes | None = None, steps: int = NAMES_A_STEP, *, pass_over: bool = False
    ) -> tuple[list[FoundTopic], bytes | None] | None:
        """Topics that a filter matches, beyond the place `after`, in about `steps` looks at names; and where to go on.

        None: the tables cannot tell, or the index cannot. `pass_over`, for whoever has no log to look through instead:
        a topic whose row is damaged is noted and left out, as damage is elsewhere, and the tables can always tell.
        """
        if not self._index.whole:
            return None
        with self._guard.reading() as txn:
            try:
                note = self._log.ledger.note if pass_over else None
                return matching_topics(self._databases, txn, topic_filter, after, steps, note)
            except DamageError as error:
                self._log.ledger.note(error)
                return None

    def level(self, prefix: bytes, start: bytes, most: int) -> list[tuple[bytes, bool]]:
        """See `topic_levels.topic_level`."""
        with self._guard.reading() as txn:
            return topic_level(self._databases, txn, prefix, start, most)

    # reading forward

    def span(self, group: int, topic_ids: Sequence[int], wanted: Wanted) -> TopicSpan:
        """The past of topics of `group`, to be read from any offset on; `wanted` accepts their names, and no others."""
        return TopicSpan(self, group, np.sort(np.array(topic_ids, np.uint64)), wanted)

    # for spans

    def first_kept(self, group: int) -> int:
        """The first offset of a group that retention has not discarded."""
        known = self._groups.get(group)
        return known.first_kept if known is not None else 0

    def entries_from(self, group: int, topic_ids: U64, first: int, last: int, most: int) -> Looked | None:
        """Offsets of entries of topics from the block that holds `first` on, up to `last`; see `LogIndex.entries`."""
        recent = self._index.memory.recent(topic_ids)
        with self._guard.reading() as txn:
            head = self._log.head_at(txn, group, first)
            # Of a block that began before, a topic's entry lies before.
            low = first if head is None else min(first, head.first)
            found = self._index.entries(txn, recent, topic_ids, low, last, most)
            return None if found is None else Looked(found.rows.seq, found.rows.tag, found.upto, found.touched)

    def last_entries(self, group: int, topic_id: int, before: int, most: int) -> RowColumns | None:
        """The last entries of a topic that begin below an offset; see `LogIndex.last_entries`."""
        recent = self._index.memory.recent(np.array([topic_id], np.uint64))
        with self._guard.reading() as txn:
            return self._index.last_entries(txn, recent, topic_id, before, most)

    def alive(self, group: int, entries: RowColumns, first: int, last: int, wanted: Wanted) -> list[int]:
        """Of each entry of one topic how many publications lie from offset `first` to `last` and have not expired.

        Told by the heads of their blocks; the metas are looked at where these do not say. Payloads are not.
        """
        now_us = self.clock.time_us()
        found: list[int] = []
        with self._guard.reading() as txn, txn.cursor(self._log.database) as cursor:
            for offset, records in zip(entries.seq.tolist(), entries.tag.tolist(), strict=True):
                value, head = self._block(cursor, group, offset)
                if value is None or head is None or 0 < head.expire_all_us < now_us:
                    found.append(0)
                elif first <= head.first and head.last <= last and not 0 < head.expire_first_us < now_us:
                    found.append(records)
                else:
                    meta = self._log.meta(value, head)
                    pieces = pieces_of(meta, head.first, head.time_us, first, last, now_us, wanted) if meta else []
                    found.append(sum([piece.records for piece in pieces]))
        return found

    def offset_behind(self, group: int, offset: int, records: int, first: int, last: int, wanted: Wanted) -> int | None:
        """The offset of the publication that follows on so many from offset `first` on, of those that `alive` counts in
        the block that holds `offset`; None where there is none."""
        now_us = self.clock.time_us()
        with self._guard.reading() as txn, txn.cursor(self._log.database) as cursor:
            value, head = self._block(cursor, group, offset)
            meta = None if value is None or head is None else self._log.meta(value, head)
            if meta is None or head is None:
                return None
            for piece in pieces_of(meta, head.first, head.time_us, first, last, now_us, wanted):
                if records < piece.records:
                    return piece.offset + records
                records -= piece.records
        return None

    def _block(
        self, cursor: lmdb.Cursor[memoryview], group: int, offset: int
    ) -> tuple[memoryview, Head] | tuple[None, None]:
        """The block that holds an offset; nothing where it has left the log, or is damaged."""
        return self._block_here(cursor, group, offset) if cursor.set_range(log_key(group, offset)) else (None, None)

    def _block_here(
        self, cursor: lmdb.Cursor[memoryview], group: int, offset: int
    ) -> tuple[memoryview, Head] | tuple[None, None]:
        """The same where the cursor stands, if that holds the offset."""
        key, value = cursor.item()
        head = self._log.sound_head(value, key)
        return (value, head) if head is not None and head.group == group and head.first <= offset else (None, None)

    def blocks_at(
        self, group: int, offsets: Sequence[int], first: int, last: int, bytes_max: int, read_s: float, wanted: Wanted
    ) -> tuple[list[Block], int]:
        """The blocks that hold `offsets`, cut to what is wanted from offset `first` to `last`; and how many offsets of
        them are dealt with: one at least, and all up to `first`."""
        now_us, until = self.clock.time_us(), self.clock.monotonic() + read_s
        blocks: list[Block] = []
        at = size = 0
        with self._guard.reading() as txn, txn.cursor(self._log.database) as cursor:
            while at < len(offsets):
                # Looked at first: where retention was there may be thousands of entries without a block.
                full = size >= bytes_max or self.clock.monotonic() >= until
                if full and at and offsets[at] > first:
                    break
                offset = offsets[at]
                at += 1
                if not cursor.set_range(key := log_key(group, offset)):
                    continue
                held, value = cursor.item()
                block = lone_publication(value, group, offset, key) if held == key else None
                if block is None:
                    block, at = self._part_here(cursor, group, offsets, at, first, last, now_us, wanted)
                elif not _lone_wanted(block, first, last, wanted):
                    continue
                if block is not None:
                    blocks.append(block)
                    size += block.size_bytes
        return blocks, at

    def _part_here(
        self,
        cursor: lmdb.Cursor[memoryview],
        group: int,
        offsets: Sequence[int],
        at: int,
        first: int,
        last: int,
        now_us: int,
        wanted: Wanted,
    ) -> tuple[Block | None, int]:
        """The block where the cursor stands, if it holds the offset before place `at`, cut to what is wanted; and the
        place of the first offset beyond it."""
        value, head = self._block_here(cursor, group, offsets[at - 1])
        if value is None or head is None:
            return None, at
        return self._part(value, head, first, last, now_us, wanted), bisect_right(offsets, head.last, at)

    def count_at(
        self,
        group: int,
        offsets: Sequence[int],
        records: Sequence[int],
        first: int,
        last: int,
        read_s: float,
        wanted: Wanted,
    ) -> tuple[int, int]:
        """How many publications the blocks that hold `offsets` have of what is wanted, from offset `first` to `last`.

        By their heads where these say so. And how many offsets are dealt with, as `blocks_at`.
        """
        now_us, until = self.clock.time_us(), self.clock.monotonic() + read_s
        found = at = 0
        with self._guard.reading() as txn, txn.cursor(self._log.database) as cursor:
            while at < len(offsets):
                if at and offsets[at] > first and self.clock.monotonic() >= until:
                    break
                start, offset = at, offsets[at]
                at += 1
                if not cursor.set_range(key := log_key(group, offset)):
                    continue
                held, value = cursor.item()
                begun = lone_first(value, offset, key) if held == key else None
                if begun is not None and first <= begun and offset <= last:
                    found += records[start]
                    continue
                here, head = self._block_here(cursor, group, offset)
                if here is None or head is None:
                    continue
                at = bisect_right(offsets, head.last, at)
                if 0 < head.expire_all_us < now_us:
                    continue
                if first <= head.first and head.last <= last and not 0 < head.expire_first_us < now_us:
                    found += sum(records[start:at])
                elif (meta := self._log.meta(here, head)) is not None:
                    pieces = pieces_of(meta, head.first, head.time_us, first, last, now_us, wanted)
                    found += sum([piece.records for piece in pieces])
        return found, at

    def _part(self, value: memoryview, head: Head, first: int, last: int, now_us: int, wanted: Wanted) -> Block | None:
        if head.kind == CONTROL or 0 < head.expire_all_us < now_us:
            return None
        meta = self._log.meta(value, head)
        if meta is None:
            return None
        pieces = pieces_of(meta, head.first, head.time_us, first, last, now_us, wanted)
        if not pieces:
            return None
        ending = pieces[-1].offset + pieces[-1].records - 1
        block = self._log.sound(value, head, pieces[0].offset, ending, meta)
        if block is None or sum([piece.records for piece in pieces]) == head.records == block.count:
            return block
        return cut(block, first, last, now_us, wanted)


def _lone_wanted(block: Block, first: int, last: int, wanted: Wanted) -> bool:
    """The one publication of a block lies from offset `first` to `last` and is wanted."""
    meta = block.meta
    run = meta.runs[0]
    return first <= block.first + run.skip <= last and wanted(meta.topics[run.topic])


class Looked(NamedTuple):
    """Offsets of entries and the publications of each, complete up to offset `upto`; and what the look touched."""

    offsets: U64
    records: U64
    upto: int
    touched: int


class TopicSpan:
    """Topics of one group on their way out of the log: `look` until it has found what comes next, then `read` that.

    It is looked up for some thousand entries at once, a few topics a step.
    """

    def __init__(self, reader: TopicReader, group: int, topic_ids: U64, wanted: Wanted) -> None:
        self._reader = reader
        self._group = group
        self._ids = topic_ids
        self._wanted = wanted
        self._most = max(_ENTRIES_A_TOPIC, _ENTRIES_A_LOOK // max(1, len(topic_ids)))
        self._a_step = _TOPICS_AT_FIRST
        # A look under way: from where on, up to where, of how many topics, and what it has found.
        self._from = self._upto = -1
        self._looked_at = 0
        self._parts: list[Looked] = []
        # What was found: entries from `_known_from` up to `_known_upto`.
        self._offsets: list[int] = []
        self._records: list[int] = []
        self._known_from, self._known_upto = 0, -1

    def look(self, offset: int, last: int, look_s: float) -> bool | None:
        """Find what comes from `offset` on, up to `last`, for `look_s` seconds. True: `read` will go on from there.

        None: the index cannot tell.
        """
        if self._known_from <= offset <= self._known_upto:
            return True
        if offset != self._from:
            self._from, self._upto, self._looked_at, self._parts = offset, last, 0, []
        clock = self._reader.clock
        until = clock.monotonic() + look_s
        while self._looked_at < len(self._ids):
            some = self._ids[self._looked_at : self._looked_at + self._a_step]
            found = self._reader.entries_from(self._group, some, offset, self._upto, self._most)
            if found is None:
                return None
            self._parts.append(found)
            self._upto = min(self._upto, found.upto)
            self._looked_at += len(some)
            if found.touched < _SEGMENTS_A_STEP // 2:
                self._a_step *= 2
            elif found.touched > _SEGMENTS_A_STEP:
                self._a_step = max(1, self._a_step // 2)
            if self._looked_at < len(self._ids) and clock.monotonic() >= until:
                return False
        self._offsets, self._records = [], []
        if self._parts:
            offsets = np.concatenate([part.offsets for part in self._parts])
            order = np.argsort(offsets)
            order = order[: int(np.count_nonzero(offsets <= np.uint64(max(0, self._upto))))]
            self._offsets = offsets[order].tolist()
            self._records = np.concatenate([part.records for part in self._parts])[order].tolist()
        self._known_from, self._known_upto, self._from = offset, self._upto, -1
        return True

    def count(self, offset: int, last: int, read_s: float) -> tuple[int, int]:
        """How many publications `look` has found from `offset` on, up to `last`, and where to go on. Payloads are not
        looked at."""
        at, end, upto = self._between(offset, last)
        found, done = self._reader.count_at(
            self._group, self._offsets[at:end], self._records[at:end], offset, upto, read_s, self._wanted
        )
        return found, self._following(at + done, end, upto)

    def _between(self, offset: int, last: int) -> tuple[int, int, int]:
        """The places of the entries that `look` has found from `offset` on; and up to which offset these are all."""
        upto = min(last, self._known_upto)
        at = 0 if offset == self._known_from else bisect_left(self._offsets, offset)
        return at, bisect_right(self._offsets, upto), upto

    def _following(self, at: int, end: int, upto: int) -> int:
        """Where to go on. Before the next entry its block has nothing that is wanted."""
        return self._offsets[at] if at < end else upto + 1

    def read(self, offset: int, bytes_max: int, last: int, read_s: float) -> ReadResult:
        """What `look` has found from `offset` on, up to `last`; as `Store.read`, cut to the topics."""
        at, end, upto = self._between(offset, last)
        blocks, done = self._reader.blocks_at(
            self._group, self._offsets[at:end], offset, upto, bytes_max, read_s, self._wanted
        )
        return ReadResult(blocks, self._following(at + done, end, upto), self._reader.first_kept(self._group))
