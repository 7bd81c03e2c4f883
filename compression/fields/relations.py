"""Numbers that follow from earlier numbers of the message: the same one again, a sum, seconds of milliseconds.

A number is tried as the difference to each earlier one (times or over a few factors that units bring), then what is
left as the difference to a second one, by the slope that most pairs of messages have. The guess of what differences
cost is rough; whoever asks compares what histograms cost in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import log2
from typing import Final, TypeAlias

from .model import Reference
from .number_formats import decimals_of
from .ranges import RANGE_BITS
from .structure import MessageStructure, Node

EARLIER_MAX: Final = 40
_SAMPLES: Final = 100
_BEST: Final = 3
_GAIN_BITS_MIN: Final = 0.3
_OVERS: Final = (60, 100, 1000)
_SLOPE_MAX: Final = 10**6
_PAIRS: Final = 24

_Ranked: TypeAlias = tuple[float, tuple[Reference, ...]]


class Relations:
    """Of the numbers of one structure."""

    def __init__(self, learned: MessageStructure, weight: float) -> None:
        self._nodes = learned.nodes
        self._weight = weight
        self._by_message: list[dict[int, int]] = []
        self.ancestors: list[set[int]] = [set() for _ in learned.nodes]
        """Fields around a field, by its id."""
        for node in learned.nodes:
            known: dict[int, int] = {}
            for message, value in zip(node.messages, node.values, strict=True):
                number = node.numbers.get(value)
                if number is not None:
                    known[message] = number
            self._by_message.append(known)
            for _, fields in node.patterns:
                for field in fields:
                    self.ancestors[field.id] = self.ancestors[node.id] | {node.id}

    def best(self, node: Node, at: Sequence[int]) -> tuple[Reference, ...]:
        """The references that make the values with the indices `at` cheapest, by a guess; none when none helps."""
        sampled = [index for index in at if node.values[index] in node.numbers]
        sampled = sampled[:: max(1, len(sampled) // _SAMPLES)]
        plain = self._guess(node, (), sampled)
        earlier = self._earlier(node)
        if plain < 1 or not earlier:
            return ()
        ranked: list[_Ranked] = [(plain, ())]
        singles = self._singles(node, earlier)
        ranked += sorted([(self._guess(node, one, sampled), one) for one in singles])[:_BEST]
        first = dict.fromkeys([one for _, one in ranked] + [one for one in singles if one[0].over == 1])
        pairs = [pair for one in first for pair in self._pairs(node, one, earlier, sampled)]
        ranked += [(self._guess(node, pair, sampled) + _GAIN_BITS_MIN, pair) for pair in pairs]
        cost, references = min(ranked)
        return references if cost + _GAIN_BITS_MIN < plain else ()

    def _earlier(self, node: Node) -> list[int]:
        """Fields of numbers that mostly stand before in the same message, and are not all the same."""
        earlier = []
        for other in self._nodes[max(0, node.id - EARLIER_MAX) : node.id]:
            known = self._by_message[other.id]
            varies = len(other.numbers) > 1 and other.id not in self.ancestors[node.id]
            if varies and 10 * sum([message in known for message in node.messages]) >= 9 * len(node.messages):
                earlier.append(other.id)
        return earlier

    def _singles(self, node: Node, earlier: Sequence[int]) -> list[tuple[Reference, ...]]:
        mine = _decimals(node)
        singles: list[tuple[Reference, ...]] = []
        for id in earlier:
            theirs = _decimals(self._nodes[id])
            times, over = int(10 ** max(0, mine - theirs)), int(10 ** max(0, theirs - mine))
            singles.append((Reference(id, times, over),))
            if max(map(abs, self._nodes[id].numbers.values())) > _OVERS[0]:
                singles += [(Reference(id, times, over * each),) for each in _OVERS]
        return singles

    def _pairs(
        self, node: Node, one: tuple[Reference, ...], earlier: Sequence[int], at: Sequence[int]
    ) -> list[tuple[Reference, ...]]:
        at = at[: _PAIRS + 1]
        left = self.differences(node, one, at)
        pairs: list[tuple[Reference, ...]] = []
        rest: tuple[Reference, ...]
        for id in earlier:
            slope = self._slope(left, [self._by_message[id].get(node.messages[index], 0) for index in at])
            if one and one[0].field == id and one[0].over == 1:
                slope, rest = slope + one[0].times, ()
            else:
                rest = one
            if slope:
                pairs.append((*rest, Reference(id, slope, 1)))
        return pairs

    def _slope(self, left: Sequence[int], other: Sequence[int]) -> int:
        """The whole number that most changes of `left` are of those of `other`; 0: none."""
        slopes: Counter[int] = Counter()
        for (one, x), (two, y) in pairwise(zip(left, other, strict=True)):
            if x != y and (two - one) % (y - x) == 0:
                slopes[(two - one) // (y - x)] += 1
        if not slopes:
            return 0
        slope, count = slopes.most_common(1)[0]
        return slope if abs(slope) <= _SLOPE_MAX and count > _PAIRS // 3 else 0

    def differences(self, node: Node, references: Sequence[Reference], at: Sequence[int]) -> list[int]:
        """The numbers with these indices, less what the references foretell; what is no number is left out."""
        out: list[int] = []
        for index in at:
            number = node.numbers.get(node.values[index])
            if number is not None:
                for reference in references:
                    known = self._by_message[reference.field].get(node.messages[index], 0)
                    number -= known * reference.times // reference.over
                out.append(number)
        return out

    def _guess(self, node: Node, references: Sequence[Reference], at: Sequence[int]) -> float:
        """About what a number costs with a histogram: by how often each comes, or by how far they lie apart."""
        numbers = self.differences(node, references, at)
        if not numbers:
            return 64.0
        counted = Counter(numbers)
        total = len(numbers)
        entropy = sum([count * log2(total / count) for count in counted.values()]) / total
        middle = sorted(numbers)[total // 2]
        spread = sum([log2(1 + 2 * abs(number - middle)) for number in numbers]) / total
        return min(entropy + RANGE_BITS * len(counted) / (total * self._weight), spread + 1)


def _decimals(node: Node) -> int:
    return 0 if node.format is None else decimals_of(*node.format)
