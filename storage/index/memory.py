"""The memory table of the index: entries that are durable in the log and not yet in a run, in columns.

A block's entries are kept as they come, and every eighth of a table is brought into columns and into order when it is
complete. When a table is full it is *frozen* and another one begun; while the frozen one is written, a segment a step,
both answer.

Before: a dictionary with a row of bytes for each topic. What a block of 100 topics touched of it was in no cache any
more, and took 100 us. (Nor is NumPy's code: columns for each block took as long as the rows of bytes.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..dualdb.rows import NEVER_US, U64, RowColumns, empty, joined
from ..environment.options import StoreOptions
from .runs import row_places

# Pieces of a table that are brought into order one by one: an entry is looked for in each of them. And the most rows
# of one, however large a table may become: 4 ms.
_PIECES: Final = 8
_PIECE_ROWS_MAX: Final = 65_536
# Up to so many topics are looked for one by one among entries without order.
_ONE_BY_ONE: Final = 8


class IndexEntry(NamedTuple):
    """The publications of one topic in one block."""

    offset: int
    records: int
    time_us: int
    expires_us: int


class BlockEntries(NamedTuple):
    """The entries of one block, in columns: topic ids, first offsets, publications of each topic, when the last of
    them expires. `expires_us` is None where none does, and 0 for never."""

    topic_ids: list[int]
    firsts: list[int]
    records: list[int]
    expires_us: list[int] | None
    time_us: int


class _Table:
    """Entries as rows: complete pieces in order, and the blocks entered since."""

    def __init__(self, piece_rows: int) -> None:
        self._piece_rows = piece_rows
        self.pieces: list[RowColumns] = []
        self._blocks: list[BlockEntries] = []
        self._count = 0
        # The first of these blocks as rows, for the next question: which list they are of, how many.
        self._known: tuple[list[BlockEntries], int, RowColumns] = (self._blocks, 0, empty())

    def add(self, block: BlockEntries) -> None:
        """Enter a block; a topic's offsets ascend."""
        self._blocks.append(block)
        self._count += len(block.topic_ids)
        if self._count >= self._piece_rows:
            self.settle()

    def settle(self) -> None:
        """Bring the youngest entries into order, as a piece."""
        if self._count:
            rows = _rows_of(self._blocks)
            self.pieces.append(rows.take(np.lexsort((rows.seq, rows.key))))
            self._blocks, self._count = [], 0

    def _young(self) -> RowColumns:
        """The entries of blocks that are not in a piece, as they came."""
        blocks, count = self._blocks, len(self._blocks)
        known_blocks, known, rows = self._known
        if known_blocks is not blocks:
            known, rows = 0, empty()
        if known < count:
            rows = joined([rows, _rows_of(blocks[known:count])])
            self._known = (blocks, count, rows)
        return rows

    def of(self, topic_ids: U64) -> list[RowColumns]:
        """The entries of topics; some of them twice, while a piece is brought into order."""
        # In this order: what is brought into order in between is missed by neither.
        young = self._young()
        found = []
        for piece in list(self.pieces):
            starts, counts = _runs_in(piece, topic_ids)
            if counts.any():
                found.append(piece.take(row_places(starts, counts)))
        own = np.flatnonzero(_of_any(young.key, topic_ids))
        return [*found, young.take(own)] if len(own) else found

    def held(self, topic_ids: U64) -> NDArray[np.bool_]:
        """Of each topic: there is an entry of it."""
        found = np.isin(topic_ids, self._young().key)
        for piece in list(self.pieces):
            found |= _runs_in(piece, topic_ids)[1] > 0
        return found


def _rows_of(blocks: Sequence[BlockEntries]) -> RowColumns:
    """The entries of blocks, one block after the other."""
    counts = [len(block.topic_ids) for block in blocks]
    total = sum(counts)

    def column(parts: Iterable[Iterable[int]]) -> U64:
        # By way of a list: a quarter less than from the chain.
        return np.fromiter(list(chain.from_iterable(parts)), np.uint64, total)

    if all([block.expires_us is None for block in blocks]):
        high: NDArray[np.int64] = np.full(total, NEVER_US, np.int64)
    else:
        until = [repeat(0, n) if b.expires_us is None else b.expires_us for b, n in zip(blocks, counts, strict=True)]
        high = np.fromiter(chain.from_iterable(until), np.int64, total)
        high[high == 0] = NEVER_US
    return RowColumns(
        column([block.topic_ids for block in blocks]),
        column([block.firsts for block in blocks]),
        np.repeat(np.array([block.time_us for block in blocks], np.int64), counts),
        high,
        column([block.records for block in blocks]),
    )


def _runs_in(piece: RowColumns, topic_ids: U64) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where the rows of each topic begin in a piece, and how many they are."""
    starts = piece.key.searchsorted(topic_ids)
    return starts, piece.key.searchsorted(topic_ids, "right") - starts


def _of_any(keys: U64, topic_ids: U64) -> NDArray[np.bool_]:
    if len(topic_ids) > _ONE_BY_ONE:
        return np.isin(keys, topic_ids)
    found: NDArray[np.bool_] = np.zeros(len(keys), np.bool_)
    for topic_id in topic_ids:
        found |= keys == topic_id
    return found


class FrozenTable(NamedTuple):
    """A full memory table on its way to disk, and how far the log was when it was frozen."""

    table: _Table
    below: dict[int, int]


class IndexMemory:
    """See the module's docstring. Changed by the writer thread; looked at by any."""

    def __init__(self, options: StoreOptions) -> None:
        self._segment_rows = options.index_step_topics
        self._entries_max = options.index_entries_max
        self._log_bytes_max = options.index_log_bytes_max
        self._piece_rows = max(1, min(self._entries_max // _PIECES, _PIECE_ROWS_MAX))
        self._active = _Table(self._piece_rows)
        self.frozen: FrozenTable | None = None
        self.entries = 0
        self._log_bytes = 0

    def add(self, block: BlockEntries) -> None:
        """Enter the publications of a block that is durable in the log."""
        self._active.add(block)
        self.entries += len(block.topic_ids)

    def logged(self, size_bytes: int) -> None:
        """Count log bytes beyond the watermark."""
        self._log_bytes += size_bytes

    @property
    def due(self) -> bool:
        """There is something to write."""
        return self.frozen is not None or self.entries >= self._entries_max or self._log_bytes >= self._log_bytes_max

    @property
    def overdue(self) -> bool:
        """The table is at twice its limit: see `steps_owed`."""
        return self.entries >= 2 * self._entries_max

    def steps_owed(self, topics: int) -> int:
        """Steps of writing that a commit with so many entries takes itself, because the table is overdue.

        Twice what it brings: so that a table fills to four times its limit at most, and no commit waits for all of it.
        """
        return 1 + 2 * topics // self._segment_rows if self.overdue else 0

    def freeze(self, below: dict[int, int]) -> None:
        """Begin another table; `below`: a watermark a group, all below it entered in this one or before."""
        self._active.settle()
        # In this order: a reader that looks at the active table, then at the frozen one, misses nothing.
        self.frozen = FrozenTable(self._active, below)
        self._active = _Table(self._piece_rows)
        self.entries = 0
        self._log_bytes = 0

    def frozen_pieces(self) -> list[RowColumns]:
        """The frozen table: pieces, each by topic and offset."""
        return [] if self.frozen is None else self.frozen.table.pieces

    def written(self) -> None:
        """The frozen table is durable: a run answers, it is let go of."""
        self.frozen = None

    def recent(self, topic_ids: U64) -> RowColumns:
        """The entries of topics, some of them twice. Look here before opening the snapshot for `LogIndex.entries`."""
        active = self._active
        found = active.of(topic_ids)
        frozen = self.frozen
        if frozen is not None and frozen.table is not active:  # it was not frozen in between
            found += frozen.table.of(topic_ids)
        return joined(found)

    def held(self, topic_ids: U64) -> NDArray[np.bool_]:
        """Of each topic: there is an entry of it."""
        found = self._active.held(topic_ids)
        return found if self.frozen is None else found | self.frozen.table.held(topic_ids)

    def clear(self) -> None:
        """Forget everything."""
        self._active, self.frozen, self.entries, self._log_bytes = _Table(self._piece_rows), None, 0, 0
