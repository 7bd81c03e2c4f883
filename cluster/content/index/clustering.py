"""Boxes along a z-curve: which block a box goes into, so that what lies close together is in one block.

A directory says where on the curve each block begins. Where a block gets more boxes than it has room for, its boxes and
a neighbour's are shared out anew along the curve, among as many blocks as are well filled by them: a B*-tree's leaves
(Knuth, volume 3, section 6.2.4), which so stay fuller than a B-tree's. Boxes never leave the order of the curve: put
into a neighbour that had room, out of order, they cost three times as many blocks an event.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .bit_blocks import BLOCK, FREE, BitBlocks
from .box_rows import BoxRows
from .ranks import Floats, Integers, Places, Ranks, Words

# What blocks hold at most after boxes were shared out: four places are free. (With ten free, entering and matching take
# as long, and a box 3 bytes more.)
_FILLED: Final = 60


class Clustering:
    """The blocks of some rows, by the cuts of `ranks`. It keeps the rows' slots."""

    def __init__(self, rows: BoxRows, dimensions: int, ranks: Ranks) -> None:
        self.ranks = ranks
        self.held = 0
        self._rows = rows
        self._blocks = BitBlocks(dimensions)
        self._order = self._blocks.append(1)
        self._starts: Words = np.zeros(1, np.uint64)
        empty = np.zeros((1, BLOCK, dimensions), np.int32)
        self._blocks.write(self._order, np.full((1, BLOCK), FREE), empty, empty)

    @property
    def nbytes(self) -> int:
        """What it takes of memory."""
        return self._blocks.nbytes + self._order.nbytes + self._starts.nbytes + self.ranks.nbytes

    @property
    def room(self) -> int:
        """How many boxes its blocks have room for, those that they hold included."""
        return self._blocks.count * BLOCK

    def place(self, rows: Integers, blocks_max: int) -> Integers:
        """Take rows in, and share out the boxes of some `blocks_max` blocks at most for it; the rows that would take
        more than that, which stay out."""
        ranked = self._ranked(rows)
        at = np.searchsorted(self._starts, ranked.codes, "right") - 1
        order = np.argsort(at, kind="stable")
        ranked, at = ranked.take(order), at[order]
        firsts = np.flatnonzero(np.diff(at, prepend=-1))
        places, counts = at[firsts], np.diff(firsts, append=len(at))
        over = places[self._blocks.held(self._order[places]) + counts > BLOCK]
        shared = over[: max(1, blocks_max // 2)]
        # Each with the next one, the last with the one before; those of a run are shared out together.
        last = len(self._order) - 1
        shared = np.unique(np.concatenate([shared, np.where(shared < last, shared + 1, max(0, last - 1))]))
        within, waits = np.isin(at, shared), np.isin(at, over)
        self._insert(ranked.take(~(within | waits)), at[~(within | waits)])
        if len(shared):
            self._share_out(shared, ranked.take(within), at[within])
        left: Integers = ranked.rows[waits & ~within]
        self.held += len(rows) - len(left)
        return left

    def holds(self, slot: int, row: int) -> bool:
        """Whether it is this one that has the row there."""
        return self._blocks.holds(slot, row)

    def remove(self, slot: int) -> None:
        """Let go of a row."""
        self._blocks.remove(slot)
        self.held -= 1

    def take(self, most: int) -> Integers:
        """Let go of the rows of the last blocks, of at least one and as many as hold up to `most`. Nothing can be
        placed from then on."""
        count = self._blocks.count
        blocks = np.arange(count - min(count, max(1, most // BLOCK)), count)
        rows = self._blocks.rows(blocks)
        self._blocks.cut(count - len(blocks))
        taken: Integers = rows[rows != FREE]
        self.held -= len(taken)
        return taken

    def candidates(self, values: Floats) -> tuple[Integers, Integers]:
        """(events, rows) that may match: all that do. values: [events x dimensions]."""
        return self._blocks.candidates(self.ranks.of_all(values))

    def _ranked(self, rows: Integers) -> _RankedBoxes:
        low, high = self.ranks.of_all(self._rows.low(rows)), self.ranks.of_all(self._rows.high(rows))
        return _RankedBoxes(rows, low, high, self.ranks.z_codes(low, high))

    def _insert(self, boxes: _RankedBoxes, at: Integers) -> None:
        """Into blocks that have room for them. at: of these in the directory."""
        blocks = self._order[at]
        order = np.argsort(blocks, kind="stable")
        boxes, blocks = boxes.take(order), blocks[order]
        self._rows.slots.array[boxes.rows] = self._blocks.insert(blocks, boxes.rows, boxes.low, boxes.high)

    def _share_out(self, places: Integers, more: _RankedBoxes, at: Integers) -> None:
        """Share out the boxes of each run of blocks anew, with more boxes for some of them.

        places: of these blocks in the directory, ascending; at: for each of the others.
        """
        runs = np.cumsum(np.diff(places, prepend=places[0]) > 1)
        blocks = self._order[places]
        rows = self._blocks.rows(blocks)
        taken = rows != FREE
        boxes = self._ranked(rows[taken]).and_(more)
        run = np.concatenate([runs[np.nonzero(taken)[0]], runs[np.searchsorted(places, at)]])
        order = np.lexsort((boxes.codes, run))
        boxes, run = boxes.take(order), run[order]

        counts, of = np.bincount(run), np.bincount(runs)
        among = np.maximum(of, -(-counts // _FILLED))
        nth = np.arange(len(run)) - (np.cumsum(counts) - counts)[run]
        parts = (np.cumsum(among) - among)[run] + nth * among[run] // counts[run]
        firsts = np.flatnonzero(np.diff(parts, prepend=-1))
        nth = np.arange(len(run)) - np.repeat(firsts, np.diff(firsts, append=len(run)))

        # The first parts of a run go into its blocks, the others into new ones.
        old = np.arange(among.sum()) - np.repeat(np.cumsum(among) - among, among) < np.repeat(of, among)
        targets = np.empty(len(old), np.int64)
        targets[old], targets[~old] = blocks, self._blocks.append(int((~old).sum()))
        self._blocks.write(targets, *_in_blocks(boxes, parts, nth, len(targets)))
        self._rows.slots.array[boxes.rows] = targets[parts] * BLOCK + nth

        # A run begins where it began, however its first box came there.
        starts = boxes.codes[firsts]
        begins = np.cumsum(among) - among
        starts[begins] = self._starts[places[np.cumsum(of) - of]]
        self._starts[places] = starts[old]
        behind = np.repeat(places[np.cumsum(of) - 1] + 1, among - of)
        self._order = np.insert(self._order, behind, targets[~old])
        self._starts = np.insert(self._starts, behind, starts[~old])


class _RankedBoxes(NamedTuple):
    """Rows, their ranks [rows x dimensions] and their places on the curve."""

    rows: Integers
    low: Places
    high: Places
    codes: Words

    def take(self, chosen: NDArray[Any]) -> _RankedBoxes:
        return _RankedBoxes(self.rows[chosen], self.low[chosen], self.high[chosen], self.codes[chosen])

    def and_(self, more: _RankedBoxes) -> _RankedBoxes:
        return _RankedBoxes(
            np.concatenate([self.rows, more.rows]),
            np.concatenate([self.low, more.low]),
            np.concatenate([self.high, more.high]),
            np.concatenate([self.codes, more.codes]),
        )


def _in_blocks(boxes: _RankedBoxes, blocks: Integers, nth: Integers, count: int) -> tuple[Integers, Places, Places]:
    """Rows and ranks as blocks have them: [blocks x 64 ...]."""
    rows = np.full((count, BLOCK), FREE, np.int64)
    rows[blocks, nth] = boxes.rows
    low, high = [np.zeros((count, BLOCK, boxes.low.shape[1]), np.int32) for _ in range(2)]
    low[blocks, nth], high[blocks, nth] = boxes.low, boxes.high
    return rows, low, high
