"""The histogram of a number: ranges with counts, uniform within each; what lies outside costs its distance.

    number below the first range   symbol 0, then how many bits its distance has, then these bits
    number in range i              symbol i, then the place in the range
    number beyond the last range   the last symbol, distance as above

So every integer of up to 62 bits can be said, also by a model that never saw its like (a counter that went on).
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from lexicast.cluster.errors import DictionaryError

from .entropy import Step, SymbolTable, Unfolding

RANGES_MAX: Final = 256
NUMBER_MAX: Final = 1 << 62
_DISTANCES: Final = SymbolTable([max(1, 32 >> bits // 2) for bits in range(64)])
"""How many bits a distance has: 2.5 bits for a near one, 7.5 for a far one."""


class Histogram:
    """Ranges `edges[i]` to below `edges[i + 1]`, with `counts` of below, each range, and beyond."""

    __slots__ = ("edges", "table")

    def __init__(self, edges: Sequence[int], counts: Sequence[int]) -> None:
        """Raises DictionaryError when edges do not rise or are too many or far, or the counts are no table for them."""
        if not 2 <= len(edges) <= RANGES_MAX + 1 or len(counts) != len(edges) + 1:
            raise DictionaryError(f"a histogram of a field model has {len(edges)} edges and {len(counts)} counts")
        for lower, upper in itertools.pairwise(edges):
            if lower >= upper:
                raise DictionaryError("the edges of a histogram of a field model do not rise")
        if max(-edges[0], edges[-1]) > NUMBER_MAX:
            raise DictionaryError("the edges of a histogram of a field model are too far away")
        self.edges = list(edges)
        self.table = SymbolTable(counts)

    def put(self, number: int, steps: list[Step]) -> None:
        """Append the steps of a number."""
        edges, symbols = self.edges, self.table.steps
        at = bisect_right(edges, number)
        steps.append(symbols[at])
        if 0 < at < len(edges):
            lower = edges[at - 1]
            width = edges[at] - lower
            if width > 1:
                steps.append((number - lower, 1, width))
            return
        distance = edges[0] - number if at == 0 else number - edges[-1] + 1
        bits = distance.bit_length()
        steps.append(_DISTANCES.steps[bits - 1])
        if bits > 1:
            steps.append((distance - (1 << bits - 1), 1, 1 << bits - 1))

    def take(self, unfolding: Unfolding) -> int:
        """The number that the next steps say."""
        edges = self.edges
        at = unfolding.symbol(self.table)
        if 0 < at < len(edges):
            lower = edges[at - 1]
            width = edges[at] - lower
            return lower + unfolding.uniform(width) if width > 1 else lower
        bits = unfolding.symbol(_DISTANCES)
        distance = (1 << bits) + (unfolding.uniform(1 << bits) if bits else 0)
        return edges[0] - distance if at == 0 else edges[-1] + distance - 1
