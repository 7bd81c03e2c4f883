"""Where the boxes of a key are, in 5 to 10 bytes a box: a dictionary of Python's would take ten times that.

Extendible hashing (Fagin, Nievergelt, Pippenger, Strong: Extendible hashing, 1979): buckets of BUCKET places, and a
directory that says by the last bits of a key's hash which one is its. A full bucket is split in two, so no step touches
more than one bucket and, when it doubles, the directory (4 bytes a bucket). Beside a place is a byte of the hash; the
keys themselves are where the places say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .growing import GrowingArray

BUCKET: Final = 64

_WORD: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E37_79B9_7F4A_7C15  # 2**64 / golden ratio: multiplicative hashing (Knuth, volume 3, section 6.4)
_TAG_SHIFT: Final = 24
"""The tag is the first byte of the 32 that a hash has; there are fewer buckets than the others tell apart."""


class KeyPlaces:
    """A multimap from keys to places, which are numbers below 2**32. key_at: whose place one is."""

    def __init__(self, key_at: Callable[[int], int]) -> None:
        self._key_at = key_at
        self._reset()

    def _reset(self) -> None:
        self._directory: NDArray[Any] = np.zeros(1, np.int32)
        self._places = GrowingArray(np.uint32, BUCKET)
        self._tags = GrowingArray(np.uint8, BUCKET)
        self._counts: list[int] = [0]
        self._depths: list[int] = [0]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """What it takes of memory; the two small lists of buckets as pointers to small integers."""
        return self._directory.nbytes + self._places.nbytes + self._tags.nbytes + 2 * 8 * len(self._counts)

    def add(self, key: int, place: int) -> None:
        """Enter a place of `key`, which `key_at` knows already."""
        hashed = _hash(key)
        bucket = self._bucket(hashed)
        while self._counts[bucket] == BUCKET:
            self._split(bucket)
            bucket = self._bucket(hashed)
        at = self._counts[bucket]
        self._places.array[bucket, at] = place
        self._tags.array[bucket, at] = hashed >> _TAG_SHIFT
        self._counts[bucket] += 1
        self._count += 1

    def find(self, key: int) -> list[int]:
        """All places of `key`."""
        hashed = _hash(key)
        bucket = self._bucket(hashed)
        alike = (self._tags.array[bucket, : self._counts[bucket]] == hashed >> _TAG_SHIFT).nonzero()[0]
        if not len(alike):
            return []
        return [place for place in self._places.array[bucket, alike].tolist() if self._key_at(place) == key]

    def remove(self, key: int, place: int) -> None:
        """Forget a place of `key` that was entered."""
        bucket = self._bucket(_hash(key))
        places, tags = self._places.array[bucket], self._tags.array[bucket]
        last = self._counts[bucket] - 1
        at = int((places[: last + 1] == place).nonzero()[0][0])
        places[at], tags[at] = places[last], tags[last]
        self._counts[bucket] = last
        self._count -= 1
        if not self._count:
            self._reset()

    def _bucket(self, hashed: int) -> int:
        return int(self._directory[hashed & (len(self._directory) - 1)])

    def _split(self, bucket: int) -> None:
        """Half of a full bucket's places go to a new one, by the next bit of their keys' hashes."""
        depth = self._depths[bucket]
        if 1 << depth == len(self._directory):
            self._directory = np.concatenate([self._directory, self._directory])
        other = len(self._counts)
        for each in (self._places, self._tags):
            each.reserve(other + 1)
        places, tags = self._places.array[bucket].copy(), self._tags.array[bucket].copy()
        goes = np.array([_hash(self._key_at(place)) >> depth & 1 for place in places.tolist()], np.bool_)
        for number, own in ((bucket, ~goes), (other, goes)):
            count = int(own.sum())
            self._places.array[number, :count], self._tags.array[number, :count] = places[own], tags[own]
        self._counts[bucket] = BUCKET - int(goes.sum())
        self._counts.append(int(goes.sum()))
        self._depths[bucket] = depth + 1
        self._depths.append(depth + 1)
        mine = np.flatnonzero(self._directory == bucket)
        self._directory[mine[(mine >> depth & 1).astype(np.bool_)]] = other


def _hash(key: int) -> int:
    """32 bits."""
    return ((key ^ key >> 32) * _GOLDEN & _WORD) >> 32
