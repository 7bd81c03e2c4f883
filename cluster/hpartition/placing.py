"""Which top clusters hold a cell: those nearest to what its name hashes to (SREM, section 4.2). Pure.

The first copy lies at the cluster nearest to H(cell), each further one at that nearest to H(cell, copy) which has none
yet. Prefix routing finds the nearest one without knowing all; who knows all clusters finds it here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, count, islice
from typing import Final

from ..errors import UsageError
from ..skipcloud.identifiers import CloudShape
from .partition import CellId

# Cells whose clusters are remembered.
_REMEMBERED_MAX: Final = 65_536
# After so many hashes a copy that every cluster but one has already goes there: chance alone could take long.
_HASHES_A_CLUSTER: Final = 4
# No digit is above it.
_LAST: Final = b"\xff"


class CellPlaces:
    """The top clusters that there are, for the cells of a partition."""

    def __init__(self, shape: CloudShape, clusters: Iterable[bytes]) -> None:
        """Raises UsageError: no clusters."""
        self.shape = shape
        self.clusters = tuple(sorted(set(clusters)))
        if not self.clusters:
            raise UsageError("cells need a cluster to lie at")
        self._homes = lru_cache(_REMEMBERED_MAX)(self._found)

    def nearest(self, target: bytes) -> bytes:
        """The cluster at which prefix routing to `target` ends: least by `remoteness`, found digit by digit."""
        clusters, levels = self.clusters, self.shape.levels
        low, high, prefix = 0, len(clusters), b""
        for at in range(levels):
            found = bisect_left(clusters, prefix + target[at : at + 1], low, high)
            prefix = clusters[low if found == high else found][: at + 1]
            low = bisect_left(clusters, prefix, low, high)
            high = bisect_right(clusters, prefix + _LAST * (levels - at - 1), low, high)
        return clusters[low]

    def homes(self, cell: CellId, copies: int = 1) -> tuple[bytes, ...]:
        """The clusters of so many copies, the first copy's first; fewer where there are fewer clusters."""
        return self._homes(cell, min(copies, len(self.clusters)))

    def _found(self, cell: CellId, copies: int) -> tuple[bytes, ...]:
        chosen: dict[bytes, None] = {}
        for cluster in chain(islice(self._hashed(cell), _HASHES_A_CLUSTER * len(self.clusters)), self.clusters):
            chosen[cluster] = None
            if len(chosen) == copies:
                break
        return tuple(chosen)

    def _hashed(self, cell: CellId) -> Iterator[bytes]:
        for copy in count():
            name = f"{cell.group} {cell.number} {cell.halves} {copy}"
            yield self.nearest(self.shape.hashed(name.encode()))
