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

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .growing import GrowingArray
from .ranks import RANK_BITS, RANKS, Integers, Words

BLOCK: Final = 64
BIT_WORDS: Final = 128
"""Words a block, shared by its dimensions: 16 bytes a box."""
SUMMARY_WORDS: Final = 512
"""Words a 64 blocks, shared by the dimensions: 1 byte a box."""
FREE: Final = -1

_WORD_BITS: Final = 64
# A frame maps ranks to segments by a multiplication and a shift: both stay below 2**31.
_FRAME_BITS: Final = 16
_FACTOR_MAX: Final = 1 << (31 - RANK_BITS)


class BitBlocks:
    """Blocks 0 to `count` - 1 of up to 64 boxes each, which are known by row numbers (below 2**31).

    A *slot* is block * 64 + place in it. Boxes are told as ranks [boxes x dimensions] of their low and their high ends.
    """

    def __init__(self, dimensions: int) -> None:
        self.count = 0
        self._dimensions = dimensions
        self._segments = BIT_WORDS // dimensions
        self._summary_segments = SUMMARY_WORDS // dimensions
        self._bits = GrowingArray(np.uint64, BIT_WORDS)
        self._frames = GrowingArray(np.int32, dimensions, 2)
        self._rows = GrowingArray(np.int32, BLOCK)
        self._held = GrowingArray(np.uint8)
        self._summary = GrowingArray(np.uint64, SUMMARY_WORDS)

    @property
    def nbytes(self) -> int:
        """What they take of memory."""
        return sum([each.nbytes for each in (self._bits, self._frames, self._rows, self._held, self._summary)])

    def rows(self, blocks: Integers) -> NDArray[np.int32]:
        """The row at each place [blocks x 64], or FREE."""
        return self._rows.array[blocks]

    def held(self, blocks: Integers) -> Integers:
        """How many boxes each block holds."""
        return self._held.array[blocks].astype(np.int64)

    def append(self, blocks: int) -> Integers:
        """New blocks, to be written before anything else; their numbers."""
        first, self.count = self.count, self.count + blocks
        for each in (self._bits, self._frames, self._rows, self._held):
            each.reserve(self.count)
        words, new_words = -(-first // _WORD_BITS), -(-self.count // _WORD_BITS)
        self._summary.reserve(new_words)
        self._summary.array[words:new_words] = 0
        return np.arange(first, self.count)

    def cut(self, count: int) -> None:
        """Drop all blocks from `count` on."""
        self.count = count
        for each in (self._bits, self._frames, self._rows, self._held):
            each.shrink(count)
        words, left = -(-count // _WORD_BITS), count % _WORD_BITS
        if left:
            self._summary.array[words - 1] &= np.uint64((1 << left) - 1)
        self._summary.shrink(words)

    def write(self, blocks: Integers, rows: Integers, low: Integers, high: Integers) -> None:
        """What blocks hold from now on: rows [blocks x 64], FREE where a place is; ranks [blocks x 64 x dimensions], of
        which those of free places do not matter."""
        taken = rows != FREE
        self._rows.array[blocks] = rows
        self._held.array[blocks] = taken.sum(axis=1)
        self._frames.array[blocks] = frames = self._framed(taken[:, :, None], low, high)
        first, last = self._segment(frames[:, None], low), self._segment(frames[:, None], high)
        first[~taken] = self._segments
        segments = np.arange(self._segments)[:, None]
        # [blocks x dimensions x segments x 64], the 64 packed into a word
        first, last = first.transpose(0, 2, 1)[:, :, None], last.transpose(0, 2, 1)[:, :, None]
        packed = np.packbits((first <= segments) & (segments <= last), axis=3, bitorder="little").view(np.uint64)
        self._bits.array[blocks, : self._dimensions * self._segments] = packed.reshape(len(blocks), -1)
        self._clear_summary(blocks)
        at, places = np.nonzero(taken)
        self._summarise(blocks[at], low[at, places], high[at, places])

    def insert(self, blocks: Integers, rows: Integers, low: Integers, high: Integers) -> Integers:
        """Enter boxes, in ascending order of blocks, which have room for them; returns their slots."""
        firsts = np.flatnonzero(np.diff(blocks, prepend=-1))
        counts = np.diff(firsts, append=len(blocks))
        nth = np.arange(len(blocks)) - np.repeat(firsts, counts)
        free = np.cumsum(self._rows.array[blocks[firsts]] == FREE, axis=1)
        places: Integers = (free[np.repeat(np.arange(len(firsts)), counts)] <= nth[:, None]).sum(axis=1)
        self._rows.array[blocks, places] = rows
        self._held.array[blocks[firsts]] += counts.astype(np.uint8)
        frames = self._frames.array[blocks]
        first, last = self._segment(frames, low), self._segment(frames, high)
        base = blocks[:, None] * BIT_WORDS + np.arange(self._dimensions) * self._segments
        words, which = _spans(base + first, last - first + 1)
        masks = np.uint64(1) << places.astype(np.uint64)
        np.bitwise_or.at(self._bits.array.reshape(-1), words, masks[which // self._dimensions])
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

    def candidates(self, ranks: Sequence[Integers]) -> tuple[Integers, Integers]:
        """(events, rows) that may match: all that do, in no order. ranks: of the events, for each dimension."""
        left = self._summary.array[: -(-self.count // _WORD_BITS)].take(self._summary_segment(ranks[0]), axis=1)
        for dimension in range(1, self._dimensions):
            segments = self._summary_segment(ranks[dimension]) + dimension * self._summary_segments
            left &= self._summary.array[: len(left)].take(segments, axis=1)
        at, bits = _set_bits(left.reshape(-1))
        words, events = np.divmod(at, len(ranks[0]))
        blocks = words * _WORD_BITS + bits
        boxes = self._boxes(blocks, [each.take(events) for each in ranks])
        at, places = _set_bits(boxes)
        return events.take(at), self._rows.array.reshape(-1).take(blocks.take(at) * BLOCK + places)

    def _boxes(self, blocks: Integers, ranks: Sequence[Integers]) -> Words:
        """For each pair of a block and an event, the boxes that may match, as bits."""
        bits = self._bits.array.reshape(-1)
        found = None
        for dimension, own in enumerate(ranks):
            frames = self._frames.array[:, dimension].take(blocks, axis=0)
            words = bits.take(self._segment(frames, own) + blocks * BIT_WORDS + dimension * self._segments)
            found = words if found is None else np.bitwise_and(found, words, out=found)
        assert found is not None
        return found

    def _framed(self, taken: NDArray[np.bool_], low: Integers, high: Integers) -> NDArray[np.int32]:
        """The frames [blocks x dimensions x 2], (first rank, factor), for boxes [blocks x 64 x dimensions]."""
        # Where an interval is open no box differs from another: the frame need not reach there.
        least = np.where(low > 0, low, high)
        most = np.where(high < RANKS - 1, high, low)
        first = least.min(axis=1, where=taken, initial=RANKS - 1)
        last = most.max(axis=1, where=taken, initial=0)
        nothing = last < first
        first[nothing], last[nothing] = 0, RANKS - 1
        span = last - first + 1
        factor = np.minimum((self._segments << _FRAME_BITS) // span, _FACTOR_MAX - 1)
        return np.stack([first, factor], axis=-1).astype(np.int32)

    def _segment(self, frames: NDArray[np.int32], ranks: Integers) -> Integers:
        """The segments of ranks [...] in frames [... x 2]."""
        scaled: Integers = (ranks - frames[..., 0]) * frames[..., 1] >> _FRAME_BITS
        return scaled.clip(0, self._segments - 1)

    def _summary_segment(self, ranks: Integers) -> Integers:
        return ranks * self._summary_segments >> RANK_BITS

    def _clear_summary(self, blocks: Integers) -> None:
        masks = ~(np.uint64(1) << (blocks % _WORD_BITS).astype(np.uint64))
        np.bitwise_and.at(self._summary.array, blocks // _WORD_BITS, masks[:, None])

    def _summarise(self, blocks: Integers, low: Integers, high: Integers) -> None:
        first, last = self._summary_segment(low), self._summary_segment(high)
        base = (blocks // _WORD_BITS * SUMMARY_WORDS)[:, None] + np.arange(self._dimensions) * self._summary_segments
        words, which = _spans(base + first, last - first + 1)
        masks = np.uint64(1) << (blocks % _WORD_BITS).astype(np.uint64)
        np.bitwise_or.at(self._summary.array.reshape(-1), words, masks[which // self._dimensions])


def _spans(starts: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """The numbers start, start + 1, ... of each span one after the other, and which span each is of."""
    counts = counts.reshape(-1)
    which = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + (starts.reshape(-1) - ends + counts)[which], which


def _set_bits(words: Words) -> tuple[Integers, Integers]:
    """(which word, which of its bits) of all bits that are set."""
    at = np.flatnonzero(words)
    bits: NDArray[Any] = np.unpackbits(words.take(at).view(np.uint8), bitorder="little").view(np.bool_)
    found = np.flatnonzero(bits)
    return at.take(found >> 6), found & 63
