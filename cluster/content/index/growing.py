"""Arrays that grow by their address space, not by a copy: a million rows get room for one more within a microsecond.

An anonymous private mapping grows by `mremap`, which moves the tables of its pages and none of the bytes (mmap(2),
mremap(2)). So no call of the index takes long because an array was full.
"""

from __future__ import annotations

import mmap
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

# A mapping grows by this part of itself: what may lie idle.
_GROWTH: Final = 32


class GrowingArray:
    """Rows of one shape; `array` holds `capacity` of them.

    Growing and shrinking replace `array`; a view of it that somebody still holds is not one of the new array. What rows
    hold that nobody has written is not said.
    """

    def __init__(self, dtype: Any, *row_shape: int) -> None:
        self._dtype: np.dtype[Any] = np.dtype(dtype)
        self._row_shape = row_shape
        self._row_bytes = self._dtype.itemsize * int(np.prod(row_shape))
        self._memory = _mapping(mmap.PAGESIZE)
        self.array: NDArray[Any]
        self._map()

    @property
    def nbytes(self) -> int:
        """What it takes of memory, what lies idle included."""
        return len(self._memory)

    def reserve(self, rows: int) -> None:
        """Have room for so many rows."""
        if rows > len(self.array):
            self._resize(max(rows * self._row_bytes, len(self._memory) + len(self._memory) // _GROWTH))

    def shrink(self, rows: int) -> None:
        """Give back what is not needed for so many rows, where that is worth it."""
        needed = rows * self._row_bytes
        if len(self._memory) - needed > max(mmap.PAGESIZE, 2 * (needed // _GROWTH)):
            self._resize(needed)

    def _resize(self, size: int) -> None:
        pages = max(1, -(-size // mmap.PAGESIZE)) * mmap.PAGESIZE
        del self.array
        try:
            self._memory.resize(pages)
        except BufferError:  # there is a view, as in an exception's traceback: only now a copy
            old, self._memory = self._memory, _mapping(pages)
            kept = min(len(old), pages)
            self._memory[:kept] = old[:kept]
        self._map()

    def _map(self) -> None:
        rows = len(self._memory) // self._row_bytes
        flat = np.frombuffer(self._memory, self._dtype, rows * self._row_bytes // self._dtype.itemsize)
        self.array = flat.reshape(rows, *self._row_shape)


def _mapping(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
