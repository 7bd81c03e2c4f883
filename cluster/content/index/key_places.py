"""Where the boxes of a key are, in some 12 bytes a box: a dictionary of Python's would take ten times that.

Extendible hashing (Fagin, Nievergelt, Pippenger, Strong: Extendible hashing, 1979): buckets of BUCKET entries, and a
directory that says by the last bits of a key's hash which one is its. A full bucket is split in two, so no step touches
more than one bucket and, when it doubles, the directory (4 bytes a bucket).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .growing import GrowingArray

PLACE_BITS: Final = 32
"""A place is a number below 2**32."""
BUCKET: Final = 64

_PLACE: Final = (1 << PLACE_BITS) - 1
_WORD: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E37_79B9_7F4A_7C15  # 2**64 / golden ratio: multiplicative hashing (Knuth, volume 3, section 6.4)


class KeyPlaces:
    """A multimap from keys to places. It holds hashes, not keys: `find` may tell places of other keys too."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._directory: NDArray[Any] = np.zeros(1, np.int32)
        self._entries = GrowingArray(np.uint64, BUCKET)
        self._counts: list[int] = [0]
        self._depths: list[int] = [0]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """What it takes of memory; the two small lists of buckets as pointers to small integers."""
        return self._directory.nbytes + self._entries.nbytes + 2 * 8 * len(self._counts)

    def add(self, key: int, place: int) -> None:
        """Enter a place of `key`."""
        hashed = _hash(key)
        bucket = self._bucket(hashed)
        while self._counts[bucket] == BUCKET:
            self._split(bucket)
            bucket = self._bucket(hashed)
        self._entries.array[bucket, self._counts[bucket]] = hashed << PLACE_BITS | place
        self._counts[bucket] += 1
        self._count += 1

    def find(self, key: int) -> list[int]:
        """All places of `key`, and hardly ever one of another key."""
        hashed = _hash(key)
        bucket = self._bucket(hashed)
        entries = self._entries.array[bucket, : self._counts[bucket]]
        found = entries[entries >> np.uint64(PLACE_BITS) == hashed]
        return [entry & _PLACE for entry in found.tolist()]

    def remove(self, key: int, place: int) -> None:
        """Forget a place of `key` that was entered."""
        hashed = _hash(key)
        bucket = self._bucket(hashed)
        entries = self._entries.array[bucket]
        last = self._counts[bucket] - 1
        at = int(np.flatnonzero(entries[: last + 1] == np.uint64(hashed << PLACE_BITS | place))[0])
        entries[at] = entries[last]
        self._counts[bucket] = last
        self._count -= 1
        if not self._count:
            self._reset()

    def _bucket(self, hashed: int) -> int:
        return int(self._directory[hashed & (len(self._directory) - 1)])

    def _split(self, bucket: int) -> None:
        """Half of a full bucket's hashes go to a new one, by the next bit."""
        depth = self._depths[bucket]
        if 1 << depth == len(self._directory):
            self._directory = np.concatenate([self._directory, self._directory])
        other = len(self._counts)
        self._entries.reserve(other + 1)
        entries = self._entries.array[bucket].copy()
        goes = (entries >> np.uint64(PLACE_BITS + depth) & np.uint64(1)).astype(np.bool_)
        for number, some in ((bucket, entries[~goes]), (other, entries[goes])):
            self._entries.array[number, : len(some)] = some
        self._counts[bucket] = BUCKET - int(goes.sum())
        self._counts.append(int(goes.sum()))
        self._depths[bucket] = depth + 1
        self._depths.append(depth + 1)
        mine = np.flatnonzero(self._directory == bucket)
        self._directory[mine[(mine >> depth & 1).astype(np.bool_)]] = other


def _hash(key: int) -> int:
    """32 bits."""
    return ((key ^ key >> 32) * _GOLDEN & _WORD) >> 32
