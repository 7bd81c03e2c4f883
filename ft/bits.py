"""Sets of subscriptions as rows of bits: a union or difference with a thousand others is one pass over few words.

A row has `words(subscriptions)` words of 64 bits, subscription k is bit k % 64 of word k // 64. Pure.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
"""One row [words], or one row a broker [brokers x words]."""
Integers = NDArray[np.int64]

WORD_BITS: Final = 64
# Rows that are looked at together: their copies stay in the processor's cache.
ROWS_AT_ONCE: Final = 64
# A row of which fewer words than this part are not zero is compared in those words alone.
_SPARSE_PART: Final = 4


def words(subscriptions: int) -> int:
    """How many words a row of so many subscriptions has."""
    return -(-subscriptions // WORD_BITS)


def packed(brokers: NDArray[Any], subscriptions: NDArray[Any], shape: tuple[int, int]) -> Words:
    """Rows [shape[0] x words(shape[1])] in which the bits (brokers[n], subscriptions[n]) are set."""
    rows = np.zeros((shape[0], words(shape[1])), np.uint64)
    bits = np.uint64(1) << (subscriptions % WORD_BITS).astype(np.uint64)
    np.bitwise_or.at(rows, (brokers, subscriptions // WORD_BITS), bits)
    return rows


def bits_set(rows: Words) -> Integers:
    """How many bits are set in each row [rows]."""
    return np.asarray(np.bitwise_count(rows).sum(axis=-1, dtype=np.int64))


def common(row: Words, rows: Words, chosen: Integers) -> Integers:
    """How many bits `row` has in common with each of rows[chosen]; [chosen]."""
    at = np.flatnonzero(row)
    if len(at) * _SPARSE_PART < len(row):
        return bits_set(rows[np.ix_(chosen, at)] & row[at])
    found = np.empty(len(chosen), np.int64)
    for first in range(0, len(chosen), ROWS_AT_ONCE):
        some = rows[chosen[first : first + ROWS_AT_ONCE]]
        some &= row
        # 32 bits are enough for a row, and are added twice as fast as 64.
        found[first : first + ROWS_AT_ONCE] = np.add.reduce(np.bitwise_count(some), axis=1, dtype=np.uint32)
    return found
