"""Numbers that follow from earlier numbers of the message: the same one again, a sum, seconds of milliseconds.

A number is tried as the difference to each earlier one (times or over a few factors that units bring), then what is
left as the difference to a second one, by the slope that most pairs of messages have. The guess of what differences
cost is rough; whoever asks compares what histograms cost in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from math import log2
from operator import itemgetter, sub
from typing import Final, NamedTuple, TypeAlias

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
    """Of the numbers of one structure. What does not depend on the weight is found out once for all models."""

    def __init__(self, learned: MessageStructure) -> None:
        self._nodes = learned.nodes
        self.effort = learned.effort
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
        self._of_values: dict[tuple[int, tuple[int, ...]], _OfValues] = {}
        self._numbers: dict[int, list[int | None]] = {}
        self._beside: dict[tuple[int, int], list[int]] = {}

    def best(self, node: Node, at: Sequence[int], weight: float) -> tuple[Reference, ...]:
        """The references that make the values with the indices `at` cheapest, by a guess; none when none helps.
        `weight`: how many messages a sample stands for."""
        if self.effort.used_up:
            return ()
        sampled = [index for index in at if node.values[index] in node.numbers]
        sampled = sampled[:: max(1, len(sampled) // _SAMPLES)]
        key = node.id, tuple(sampled)
        values = self._of_values.get(key)
        if values is None:
            values = self._of_values[key] = _OfValues(self, node, sampled)
        return values.best(weight)

    def earlier(self, node: Node) -> list[int]:
        """Fields of numbers that mostly stand before in the same message, and are not all the same."""
        earlier = []
        for other in self._nodes[max(0, node.id - EARLIER_MAX) : node.id]:
            known = self._by_message[other.id]
            varies = len(other.numbers) > 1 and other.id not in self.ancestors[node.id]
            if varies and 10 * sum([message in known for message in node.messages]) >= 9 * len(node.messages):
                earlier.append(other.id)
        return earlier

    def singles(self, node: Node, earlier: Sequence[int]) -> list[tuple[Reference, ...]]:
        """References to one earlier number each."""
        mine = _decimals(node)
        singles: list[tuple[Reference, ...]] = []
        for id in earlier:
            theirs = _decimals(self._nodes[id])
            times, over = int(10 ** max(0, mine - theirs)), int(10 ** max(0, theirs - mine))
            singles.append((Reference(id, times, over),))
            if max(map(abs, self._nodes[id].numbers.values())) > _OVERS[0]:
                singles += [(Reference(id, times, over * each),) for each in _OVERS]
        return singles

    def beside(self, node: Node, id: int) -> list[int]:
        """The numbers of a field in the messages of another one's values, 0 where it has none."""
        numbers = self._beside.get((node.place, id))
        if numbers is None:
            known = self._by_message[id]
            numbers = self._beside[node.place, id] = [known.get(message, 0) for message in node.messages]
        return numbers

    def _own(self, node: Node) -> list[int | None]:
        """The numbers of a field's values."""
        own = self._numbers.get(node.id)
        if own is None:
            own = self._numbers[node.id] = [node.numbers.get(value) for value in node.values]
        return own

    def differences(self, node: Node, references: Sequence[Reference], at: Sequence[int]) -> list[int]:
        """The numbers with these indices, less what the references foretell; what is no number is left out."""
        own = self._own(node)
        seen = [(index, number) for index in at if (number := own[index]) is not None]
        out = [number for _, number in seen]
        for reference in references:
            beside, times, over = self.beside(node, reference.field), reference.times, reference.over
            if over == 1:
                told = [beside[index] * times for index, _ in seen]
            else:
                told = [beside[index] * times // over for index, _ in seen]
            out = list(map(sub, out, told))
        return out


class _OfValues:
    """Of some values of one field, all of them numbers."""

    def __init__(self, relations: Relations, node: Node, sampled: Sequence[int]) -> None:
        self._relations = relations
        self._node = node
        self._sampled = sampled
        self._few = sampled[: _PAIRS + 1]
        self._earlier = relations.earlier(node)
        self._guessed: dict[tuple[Reference, ...], _Guess] = {}
        self._paired: dict[tuple[Reference, ...], list[tuple[Reference, ...]]] = {}

    def best(self, weight: float) -> tuple[Reference, ...]:
        """See `Relations.best`."""
        plain = self._guess((), weight)
        if plain < 1 or not self._earlier:
            return ()
        ranked: list[_Ranked] = [(plain, ())]
        ranked += sorted([(self._guess(one, weight), one) for one in self._singles])[:_BEST]
        first = dict.fromkeys([one for _, one in ranked] + [one for one in self._singles if one[0].over == 1])
        pairs = [pair for one in first for pair in self._pairs(one)]
        ranked += [(self._guess(pair, weight) + _GAIN_BITS_MIN, pair) for pair in pairs]
        cost, references = min(ranked)
        return references if cost + _GAIN_BITS_MIN < plain else ()

    @cached_property
    def _singles(self) -> list[tuple[Reference, ...]]:
        return self._relations.singles(self._node, self._earlier)

    @cached_property
    def _changes(self) -> dict[int, list[int]]:
        """Of the earlier numbers."""
        changes: dict[int, list[int]] = {}
        for id in self._earlier:
            beside = self._relations.beside(self._node, id)
            changes[id] = _changes([beside[index] for index in self._few])
        return changes

    def _pairs(self, one: tuple[Reference, ...]) -> list[tuple[Reference, ...]]:
        pairs = self._paired.get(one)
        if pairs is None:
            pairs = self._paired[one] = self._with_second(one)
        return pairs

    def _with_second(self, one: tuple[Reference, ...]) -> list[tuple[Reference, ...]]:
        self._relations.effort.spend(len(self._few) * len(self._earlier))
        left = _changes(self._relations.differences(self._node, one, self._few))
        pairs: list[tuple[Reference, ...]] = []
        rest: tuple[Reference, ...]
        for id in self._earlier:
            slope = _slope(left, self._changes[id])
            if one and one[0].field == id and one[0].over == 1:
                slope, rest = slope + one[0].times, ()
            else:
                rest = one
            if slope:
                pairs.append((*rest, Reference(id, slope, 1)))
        return pairs

    def _guess(self, references: tuple[Reference, ...], weight: float) -> float:
        """About what a number costs with a histogram: by how often each comes, or by how far they lie apart."""
        guess = self._guessed.get(references)
        if guess is None:
            differences = self._relations.differences(self._node, references, self._sampled)
            guess = self._guessed[references] = _guess(differences)
            self._relations.effort.spend(len(differences))
        return min(guess.entropy + guess.table_bits / (guess.observed * weight), guess.spread)


class _Guess(NamedTuple):
    """Bits a number, of so many `observed`: by a table, which itself takes `table_bits`, and by how far it lies."""

    entropy: float
    table_bits: float
    spread: float
    observed: int


def _guess(numbers: Sequence[int]) -> _Guess:
    if not numbers:
        return _Guess(64.0, 0.0, 64.0, 1)
    counted = Counter(numbers)
    total = len(numbers)
    entropy = sum([count * log2(total / count) for count in counted.values()]) / total
    middle = sorted(numbers)[total // 2]
    spread = sum([log2(1 + 2 * abs(number - middle)) for number in numbers]) / total
    return _Guess(entropy, RANGE_BITS * len(counted), spread + 1, total)


def _changes(numbers: Sequence[int]) -> list[int]:
    """From each to the next."""
    return list(map(sub, numbers[1:], numbers))


def _slope(changes: Sequence[int], others: Sequence[int]) -> int:
    """The whole number that most of `changes` are of those of another field in the same messages; 0: none."""
    slopes: dict[int, int] = {}
    for change, other in zip(changes, others, strict=True):
        if other and not change % other:
            slope = change // other
            slopes[slope] = slopes.get(slope, 0) + 1
    if not slopes:
        return 0
    slope, count = max(slopes.items(), key=itemgetter(1))
    return slope if abs(slope) <= _SLOPE_MAX and count > _PAIRS // 3 else 0


def _decimals(node: Node) -> int:
    return 0 if node.format is None else decimals_of(*node.format)
