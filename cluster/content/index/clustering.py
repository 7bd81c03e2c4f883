"""Boxes along a z-curve: which block a box goes into, so that what lies close together is in one block.

A directory says where on the curve each block begins. A box goes into the block of its place, or, where that is full,
into a neighbour that has room; where none has, the block is split at its middle. (As in a B*-tree, whose leaves are so
fuller than a B-tree's: Knuth, volume 3, section 6.2.4. The order is for speed alone, so a box in the neighbour's block
needs nothing that would find it there.)
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from .bit_blocks import BLOCK, FREE, BitBlocks
from .box_rows import BoxRows
from .ranks import Integers, Ranks, Words

# The block itself, then those on either side of it.
_NEIGHBOURS: Final = (0, 1, -1)


class Clustering:
    """The blocks of some rows, by the cuts of `ranks`. It keeps the rows' slots."""

    def __init__(self, rows: BoxRows, dimensions: int, ranks: Ranks) -> None:
        self.ranks = ranks
        self.held = 0
        self._rows = rows
        self._dimensions = dimensions
        self._blocks = BitBlocks(dimensions)
        self._order = self._blocks.append(1)
        self._starts: Words = np.zeros(1, np.uint64)
        empty = np.zeros((1, BLOCK, dimensions), np.int64)
        self._blocks.write(self._order, np.full((1, BLOCK), FREE), empty, empty)

    @property
    def nbytes(self) -> int:
        """What it takes of memory."""
        return self._blocks.nbytes + self._order.nbytes + self._starts.nbytes + self.ranks.nbytes

    @property
    def room(self) -> int:
        """How many boxes its blocks have room for, those that they hold included."""
        return self._blocks.count * BLOCK

    def place(self, rows: Integers) -> None:
        """Take rows in."""
        low, high = self.ranks.of_bounds(self._rows.bounds(rows))
        codes = self.ranks.z_codes(low, high)
        order = np.argsort(codes)
        rows, low, high, codes = rows[order], low[order], high[order], codes[order]
        self.held += len(rows)
        while len(rows):
            for step in _NEIGHBOURS:
                at = np.searchsorted(self._starts, codes, "right") - 1 + step
                left = ~self._fill(self._order[np.clip(at, 0, len(self._order) - 1)], rows, low, high)
                rows, low, high, codes = rows[left], low[left], high[left], codes[left]
            if len(rows):
                self._split(np.unique(np.searchsorted(self._starts, codes, "right") - 1))

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
        self._blocks.cut(int(blocks[0]) if len(blocks) else 0)
        taken: Integers = rows[rows != FREE].astype(np.int64)
        self.held -= len(taken)
        return taken

    def candidates(self, values_ranks: list[Integers]) -> tuple[Integers, Integers]:
        """(events, rows) that may match; see BitBlocks."""
        return self._blocks.candidates(values_ranks)

    def _fill(self, blocks: Integers, rows: Integers, low: Integers, high: Integers) -> NDArray[np.bool_]:
        """Enter what there is room for; which rows that were."""
        order = np.argsort(blocks, kind="stable")
        own = blocks[order]
        firsts = np.flatnonzero(np.diff(own, prepend=-1))
        nth = np.arange(len(own)) - np.repeat(firsts, np.diff(firsts, append=len(own)))
        entered = order[nth + self._blocks.held(own) < BLOCK]
        if len(entered):
            slots = self._blocks.insert(blocks[entered], rows[entered], low[entered], high[entered])
            self._rows.slots.array[rows[entered]] = slots
        done = np.zeros(len(rows), np.bool_)
        done[entered] = True
        return done

    def _split(self, places: Integers) -> None:
        """The second half, along the curve, of each of these full blocks goes to a new one.

        places: of the blocks in the directory, ascending.
        """
        blocks = self._order[places]
        new = self._blocks.append(len(blocks))
        rows = self._blocks.rows(blocks).astype(np.int64)
        low, high = self.ranks.of_bounds(self._rows.bounds(rows))
        codes = self.ranks.z_codes(low, high)
        order = np.argsort(codes, axis=1)
        half = BLOCK // 2
        for some, chosen in ((blocks, order[:, :half]), (new, order[:, half:])):
            at = np.arange(len(blocks))[:, None], np.concatenate([chosen, chosen], axis=1)
            own = rows[at]
            own[:, half:] = FREE
            self._blocks.write(some, own, low[at], high[at])
            self._rows.slots.array[own[:, :half]] = some[:, None] * BLOCK + np.arange(half)
        middle = np.take_along_axis(codes, order[:, half : half + 1], axis=1)[:, 0]
        # Boxes of neighbours are among them: what begins here must not begin before or behind.
        after = np.append(self._starts, np.uint64(2**64 - 1))[places + 1]
        starts = np.clip(middle, self._starts[places], after)
        self._order = np.insert(self._order, places + 1, new)
        self._starts = np.insert(self._starts, places + 1, starts)
