"""Histograms learned from numbers: ranges that are split as long as it saves more bits than it costs to tell.

n of N numbers in a range of width w cost n (log2 w + log2 N/n) bits. A split is tried at each number that was seen, the
best one is taken, and so on in both halves. A single number that is frequent would be found by two splits alone, of
which the first may not pay: those are set apart before.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from math import log2
from typing import Final, NamedTuple

from .histograms import NUMBER_MAX, Histogram

RANGE_BITS: Final = 18
"""What an edge and a count cost in a model, packed."""
_LEARNED_MAX: Final = 64
_OUTSIDE: Final = 128
"""Of so many numbers one is taken to lie outside though none did."""


class _Seen:
    """The numbers that were seen, in order, with how many there are up to each."""

    def __init__(self, numbers: Sequence[int]) -> None:
        counted = sorted(Counter(numbers).items())
        self.values = [value for value, _ in counted]
        self.counts = [count for _, count in counted]
        self.before = [0]
        for count in self.counts:
            self.before.append(self.before[-1] + count)
        self.total = self.before[-1]


class _Range(NamedTuple):
    gain: float
    first: int
    last: int
    lower: int
    upper: int
    at: int
    edge: int
    """The best split: numbers from `first` on to before `at` lie below `edge`."""


def _bits(count: int, width: int) -> float:
    return count * log2(width / count) if count else 0.0


def _best_split(seen: _Seen, first: int, last: int, lower: int, upper: int) -> _Range:
    """Numbers first..last-1 lie in lower..upper-1."""
    values, before = seen.values, seen.before
    whole = _bits(before[last] - before[first], upper - lower)
    best, best_at, best_edge = 0.0, first, lower
    for at in range(first, last + 1):
        left, right = before[at] - before[first], before[last] - before[at]
        for edge in (values[at - 1] + 1 if at > first else lower, values[at] if at < last else upper):
            if lower < edge < upper:
                gain = whole - _bits(left, edge - lower) - _bits(right, upper - edge)
                if gain > best:
                    best, best_at, best_edge = gain, at, edge
    return _Range(-best, first, last, lower, upper, best_at, best_edge)


def _frequent(seen: _Seen, price: float) -> list[int]:
    """Edges around numbers that pay for a range of their own."""
    width = seen.values[-1] + 1 - seen.values[0]
    edges: list[int] = []
    for value, count in zip(seen.values, seen.counts, strict=True):
        if count * log2(width * count / seen.total) > 2 * price and count > 2:
            edges += (value, value + 1)
    return sorted(set(edges))[: _LEARNED_MAX // 2]


def learn_histogram(numbers: Sequence[int], weight: float) -> Histogram:
    """The histogram of numbers of less than NUMBER_MAX, one at the least, where each stands for `weight` messages."""
    seen = _Seen(numbers)
    price = RANGE_BITS / weight
    edges = sorted({seen.values[0], *_frequent(seen, price), seen.values[-1] + 1})
    open_ranges: list[_Range] = []
    for lower, upper in itertools.pairwise(edges):
        first, last = bisect_left(seen.values, lower), bisect_left(seen.values, upper)
        heappush(open_ranges, _best_split(seen, first, last, lower, upper))
    while open_ranges and len(edges) < _LEARNED_MAX:
        best = heappop(open_ranges)
        if -best.gain <= price:
            break
        edges.append(best.edge)
        heappush(open_ranges, _best_split(seen, best.first, best.at, best.lower, best.edge))
        heappush(open_ranges, _best_split(seen, best.at, best.last, best.edge, best.upper))
    return _histogram(seen, sorted(edges), _beyond(numbers))


def _histogram(seen: _Seen, edges: list[int], beyond: int) -> Histogram:
    least = max(1, seen.total // _OUTSIDE)
    counts = [least]
    for lower, upper in itertools.pairwise(edges):
        first, last = bisect_left(seen.values, lower), bisect_left(seen.values, upper)
        counts.append(max(1, seen.before[last] - seen.before[first]))
    return Histogram(edges, [*counts, max(least, beyond)])


def _beyond(numbers: Sequence[int]) -> int:
    """How many of the newer half went beyond all before: a counter's next numbers lie outside, too."""
    most = max(numbers[: len(numbers) // 2 + 1])
    records = 0
    for number in numbers[len(numbers) // 2 + 1 :]:
        if number > most:
            most = number
            records += 1
    return max(1, 2 * records) if records > len(numbers) // 16 else 1


def number_bits(histogram: Histogram, number: int) -> float:
    """What a number costs."""
    steps: list[tuple[int, ...]] = []
    if abs(number) > NUMBER_MAX:
        return 128.0
    histogram.put(number, steps)
    return sum([log2(total / count) for _, count, total in steps])


def histogram_cost(histogram: Histogram, numbers: Sequence[int], weight: float) -> float:
    """What numbers cost with a histogram, and it in a model."""
    told = RANGE_BITS * len(histogram.edges) / weight
    return told + sum([number_bits(histogram, number) for number in numbers])
