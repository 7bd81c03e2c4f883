"""Blocks of 64 boxes as bitsets: for each dimension and segment a word says which boxes of the block reach into it.

The segments of a block are its own: its *frame* cuts the ranks between its boxes' least and greatest ends into equal
parts; what lies beyond belongs to the first or the last one. So a block tells its boxes apart as well when they lie
close together as when they lie far apart, by the same BIT_WORDS words. In front of that a *summary* has, for each
dimension and segment of all ranks, a bit a block: which blocks have a box there at all. Bits say too much (a box that
reaches into a segment need not fill it), never too little.

A batch of events, one rank a dimension each: the summaries' words are ANDed, then the bitsets of each block that is
left; the boxes that are left after that are candidates. It costs by events times blocks / 64, then by what is left.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .growing import GrowingArray
from .pairs import joined_pairs
from .ranks import RANK_BITS, RANKS, Integers, Places, Words

BLOCK: Final = 64
BIT_WORDS: Final = 128
"""Words a block, shared by its dimensions: 16 bytes a box. (Below 256: segments are told as bytes.)"""
SUMMARY_WORDS: Final = 512
"""Words a 64 blocks, shared by the dimensions: 1 byte a box."""
FREE: Final = -1

_WORD_BITS: Final = 64
# A frame maps ranks to segments by a multiplication and a shift: both stay below 2**31.
_FRAME_BITS: Final = 16
# Words of the summary times events that are looked at together: they stay in the processor's cache.
_SUMMARY_AT_ONCE: Final = 1 << 14
_FACTOR_MAX: Final = (1 << (31 - RANK_BITS)) - 1


class BitBlocks:
    """Blocks 0 to `count` - 1 of up to 64 boxes each, which are known by row numbers (below 2**31).

    A *slot* is block * 64 + place in it. Boxes are told as ranks [boxes x dimensions] of their low and their high ends.
    """

    def __init__(self, dimensions: int) -> None:
        self.count = 0
        self._dimensions = dimensions
        self._segments = BIT_WORDS // dimensions
        self._summary_segments = SUMMARY_WORDS // dimensions
        # Where a dimension's words begin, among a block's and among the summary's.
        self._bases = np.arange(dimensions) * self._segments
        self._summary_bases = np.arange(dimensions) * self._summary_segments
        self._bits = GrowingArray(np.uint64, BIT_WORDS)
        self._rows = GrowingArray(np.int32, BLOCK)
        self._held = GrowingArray(np.uint8)
        # Frames: the rank where they begin, segments a rank << _FRAME_BITS.
        self._first_ranks = GrowingArray(np.int32, dimensions)
        self._factors = GrowingArray(np.int32, dimensions)
        self._summary = GrowingArray(np.uint64, SUMMARY_WORDS)

    @property
    def nbytes(self) -> int:
        """What they take of memory."""
        return self._summary.nbytes + sum([each.nbytes for each in self._by_block])

    @property
    def _by_block(self) -> tuple[GrowingArray, ...]:
        return self._bits, self._rows, self._held, self._first_ranks, self._factors

    def rows(self, blocks: Integers) -> Integers:
        """The row at each place [... x 64], or FREE."""
        return self._rows.array[blocks].astype(np.int64)

    def held(self, blocks: Integers) -> Integers:
        """How many boxes each block holds."""
        return self._held.array[blocks].astype(np.int64)

    def append(self, blocks: int) -> Integers:
        """New blocks, to be written before anything else; their numbers."""
        first, self.count = self.count, self.count + blocks
        for each in self._by_block:
            each.reserve(self.count)
        words, new_words = -(-first // _WORD_BITS), -(-self.count // _WORD_BITS)
        self._summary.reserve(new_words)
        self._summary.array[words:new_words] = 0
        return np.arange(first, self.count)

    def cut(self, count: int) -> None:
        """Drop all blocks from `count` on."""
        self.count = count
        for each in self._by_block:
            each.shrink(count)
        words, left = -(-count // _WORD_BITS), count % _WORD_BITS
        if left:
            self._summary.array[words - 1] &= np.uint64((1 << left) - 1)
        self._summary.shrink(words)

    def write(self, blocks: Integers, rows: Integers, low: Places, high: Places) -> None:
        """What blocks hold from now on: rows [blocks x 64], FREE where a place is; ranks [blocks x 64 x dimensions], of
        which those of free places do not matter."""
        taken = rows != FREE
        self._rows.array[blocks] = rows
        self._held.array[blocks] = taken.sum(axis=1)
        self._frame(blocks, taken, low, high)
        segments = np.arange(self._segments, dtype=np.uint8)[:, None]
        first, last = [self._segments_of(blocks[:, None], ranks).astype(np.uint8) for ranks in (low, high)]
        first[~taken] = self._segments
        for dimension, base in enumerate(self._bases.tolist()):
            own = first[:, None, :, dimension], last[:, None, :, dimension]
            # [blocks x segments x 64], the 64 packed into a word
            inside = (own[0] <= segments) & (segments <= own[1])
            words = np.packbits(inside, axis=2, bitorder="little").view(np.uint64)[:, :, 0]
            self._bits.array[blocks, base : base + self._segments] = words
        at, places = np.nonzero(taken)
        self._summarise_anew(blocks, at, low[at, places], high[at, places])

    def insert(self, blocks: Integers, rows: Integers, low: Places, high: Places) -> Integers:
        """Enter boxes, in ascending order of blocks, which have room for them; returns their slots."""
        firsts = np.flatnonzero(np.diff(blocks, prepend=-1))
        counts = np.diff(firsts, append=len(blocks))
        nth = np.arange(len(blocks)) - np.repeat(firsts, counts)
        free = np.cumsum(self._rows.array[blocks[firsts]] == FREE, axis=1, dtype=np.uint8)
        places: Integers = (free[np.repeat(np.arange(len(firsts)), counts)] <= nth[:, None]).sum(axis=1)
        self._rows.array[blocks, places] = rows
        self._held.array[blocks[firsts]] += counts.astype(np.uint8)
        masks = np.uint64(1) << places.astype(np.uint64)
        first, last = self._segments_of(blocks, low), self._segments_of(blocks, high)
        words, which = _spans((blocks * BIT_WORDS)[:, None] + self._bases + first, last - first + 1)
        np.bitwise_or.at(self._bits.array.reshape(-1), words, masks.take(which // self._dimensions))
        self._summarise(blocks, low, high)
        return blocks * BLOCK + places

    def holds(self, slot: int, row: int) -> bool:
        """Whether the row is in that place."""
        block, place = divmod(slot, BLOCK)
        return block < self.count and bool(self._rows.array[block, place] == row)

    def remove(self, slot: int) -> None:
        """Free the place of a box."""
        block, place = divmod(slot, BLOCK)
        self._rows.array[block, place] = FREE
        self._held.array[block] -= 1
        self._bits.array[block] &= ~np.uint64(1 << place)

    def candidates(self, ranks: Places) -> tuple[Integers, Integers]:
        """(events, rows) that may match: all that do, in no order. ranks: of the events [events x dimensions]."""
        summary = self._summary.array[: -(-self.count // _WORD_BITS)]
        segments = (self._summary_segments_of(ranks) + self._summary_bases).T
        at_once = max(1, _SUMMARY_AT_ONCE // len(ranks))
        events, slots = joined_pairs(
            [
                self._in_blocks(_all_of(summary[first : first + at_once], segments), first, ranks)
                for first in range(0, len(summary), at_once)
            ]
        )
        return events, self._rows.array.reshape(-1).take(slots).astype(np.int64)

    def _in_blocks(self, left: Words, first: int, ranks: Places) -> tuple[Integers, Integers]:
        """(events, slots) that may match, of the blocks that are left [words x events], from word `first` on."""
        at, bits = _set_bits(left.reshape(-1))
        words = at // left.shape[1]
        events = at - words * left.shape[1]
        blocks = (words + first) * _WORD_BITS + bits
        at, places = _set_bits(self._boxes(blocks, ranks.take(events, axis=0)))
        return events.take(at), blocks.take(at) * BLOCK + places

    def _boxes(self, blocks: Integers, ranks: Places) -> Words:
        """For each pair of a block and an event's ranks, the boxes that may match, as bits."""
        at = self._segments_of(blocks, ranks) + self._bases
        at += (blocks * BIT_WORDS)[:, None]
        words = self._bits.array.reshape(-1).take(at)
        found: Words = words[:, 0].copy()
        for dimension in range(1, self._dimensions):
            found &= words[:, dimension]
        return found

    def _frame(self, blocks: Integers, taken: NDArray[np.bool_], low: Places, high: Places) -> None:
        """Set the frames for boxes [blocks x 64 x dimensions]."""
        # Where an interval is open no box differs from another: the frame need not reach there.
        least = np.where(low > 0, low, high).min(axis=1, where=taken[:, :, None], initial=RANKS - 1)
        most = np.where(high < RANKS - 1, high, low).max(axis=1, where=taken[:, :, None], initial=0)
        nothing = most < least
        least[nothing], most[nothing] = 0, RANKS - 1
        factors = np.minimum((self._segments << _FRAME_BITS) // (most - least + 1), _FACTOR_MAX)
        self._first_ranks.array[blocks], self._factors.array[blocks] = least, factors

    def _segments_of(self, blocks: Integers, ranks: Places) -> Places:
        """The segments of ranks [... x dimensions] in the frames of blocks [...]."""
        segments: Places = ranks - self._first_ranks.array.take(blocks, axis=0)
        segments *= self._factors.array.take(blocks, axis=0)
        segments >>= _FRAME_BITS
        np.maximum(segments, 0, out=segments)
        return np.minimum(segments, self._segments - 1, out=segments)

    def _summary_segments_of(self, ranks: Places) -> Places:
        return ranks * self._summary_segments >> RANK_BITS

    def _summarise_anew(self, blocks: Integers, at: Integers, low: Places, high: Places) -> None:
        """Set the summary of blocks that hold these boxes and no others. at: of which of the blocks each is."""
        own = np.uint64(1) << (blocks % _WORD_BITS).astype(np.uint64)
        np.bitwise_and.at(self._summary.array, blocks // _WORD_BITS, ~own[:, None])
        # How many boxes begin in a segment less those that ended before it: their sum up to it are those in it.
        size = self._summary_segments + 1
        base = (at * self._dimensions)[:, None] + np.arange(self._dimensions)
        places = len(blocks) * self._dimensions * size
        begin, end = [
            np.bincount((base * size + self._summary_segments_of(ranks)).reshape(-1) + behind, minlength=places)
            for ranks, behind in ((low, 0), (high, 1))
        ]
        inside = np.cumsum((begin - end).reshape(len(blocks), self._dimensions, size), axis=2) > 0
        which, dimensions, segments = np.nonzero(inside)
        words = blocks[which] // _WORD_BITS * SUMMARY_WORDS + self._summary_bases[dimensions] + segments
        np.bitwise_or.at(self._summary.array.reshape(-1), words, own[which])

    def _summarise(self, blocks: Integers, low: Places, high: Places) -> None:
        first, last = self._summary_segments_of(low), self._summary_segments_of(high)
        base = (blocks // _WORD_BITS * SUMMARY_WORDS)[:, None] + self._summary_bases
        words, which = _spans(base + first, last - first + 1)
        masks = np.uint64(1) << (blocks % _WORD_BITS).astype(np.uint64)
        np.bitwise_or.at(self._summary.array.reshape(-1), words, masks.take(which // self._dimensions))


def _all_of(summary: Words, segments: Places) -> Words:
    """The blocks that have all these segments [dimensions x events], as bits [words x events]."""
    left: Words = summary.take(segments[0], axis=1)
    for own in segments[1:]:
        left &= summary.take(own, axis=1)
    return left


def _spans(starts: Integers, counts: NDArray[Any]) -> tuple[Integers, Integers]:
    """The numbers start, start + 1, ... of each span one after the other, and which span each is of."""
    counts = counts.reshape(-1)
    which = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    return np.arange(len(which)) + (starts.reshape(-1) - ends + counts).take(which), which


def _set_bits(words: Words) -> tuple[Integers, Integers]:
    """(which word, which of its bits) of all bits that are set."""
    at = words.nonzero()[0]
    bits = np.unpackbits(words.take(at).view(np.uint8), bitorder="little").view(np.bool_)
    found = bits.nonzero()[0]
    return at.take(found >> 6), found & 63
