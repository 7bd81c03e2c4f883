"""What streams gain, learned from consecutive samples: what comes again, what is near what was before, by which key.

A stream is one topic's, so what was before is the sample before of the same topic, where topics are known. Topics
differ: rates follow the stream from where the model begins (`model.FieldState`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from operator import eq
from typing import Final, NamedTuple

from .histograms import Histogram
from .model import RATE_ONE
from .plan import FieldPlan, mean_bits
from .ranges import RANGE_BITS, learn_histogram, number_bits
from .structure import MessageStructure, Node

_KEY_VALUES_MIN: Final = 2
_KEY_COMES_AGAIN: Final = 2
_KEY_SAVES_MIN: Final = 0.05
_KEY_BITS_MIN: Final = 0.5


class Recurrence(NamedTuple):
    """How a field goes on in a stream. `rate`: of repetition, of RATE_ONE; `histogram`: of differences to before."""

    repeats: bool = False
    rate: int = 1
    by_key: bool = False
    is_key: bool = False
    histogram: Histogram | None = None


class _Option(NamedTuple):
    cost: float
    recurrence: Recurrence


class Comings:
    """Which value each one follows: on its topic, and where a key was the same. What does not depend on the weight is
    found out once for all models."""

    def __init__(self, learned: MessageStructure) -> None:
        self._topics = learned.topics
        self._before: dict[int, list[int]] = {}
        self._same: dict[int, list[bool]] = {}
        self._gained: dict[tuple[int, int], int] = {}
        self._effort = learned.effort

    def before(self, node: Node) -> list[int]:
        """For each value the index of the one before on its topic; -1: none. The same for all fields of a pattern."""
        before = self._before.get(node.place)
        if before is None:
            last: dict[bytes, int] = {}
            before = self._before[node.place] = []
            for at, message in enumerate(node.messages):
                before.append(last.get(self._topics[message], -1))
                last[self._topics[message]] = at
        return before

    def before_by_key(self, node: Node, key: Node) -> list[int]:
        """The index of the value in the topic's last message with the same key, else of the one before."""
        keys = dict(zip(key.messages, key.values, strict=True))
        last: dict[tuple[bytes, bytes | None], int] = {}
        before = self.before(node).copy()
        for at, message in enumerate(node.messages):
            known = (self._topics[message], keys.get(message))
            before[at] = last.get(known, before[at])
            last[known] = at
        return before

    def same(self, node: Node) -> list[bool]:
        """Of each value whether it is the one before."""
        same = self._same.get(node.id)
        if same is None:
            values = node.values
            pairs = zip(self.before(node), values, strict=True)
            same = self._same[node.id] = [at >= 0 and values[at] == value for at, value in pairs]
        return same

    def best_key(self, plans: Sequence[FieldPlan], inside: Sequence[int]) -> int:
        """Of the fields `inside` a pattern the one by which remembering saves most, if it saves a share of what they
        cost; -1: none."""
        best, most = -1, _KEY_SAVES_MIN * sum([sum(plans[id].bits) for id in inside])
        bits = [mean_bits(plans[id]) for id in inside]
        bits = [each if each >= _KEY_BITS_MIN else 0.0 for each in bits]
        # what remembering by any field could save of those from each one on
        could = [0.0]
        for id, each in zip(reversed(inside), reversed(bits), strict=True):
            same = self.same(plans[id].node) if each else []
            could.append(could[-1] + each * (len(same) - sum(same)))
        could.reverse()
        for at, id in enumerate(inside):
            if could[at + 1] <= most or self._effort.used_up:
                break
            saved = self._saved(plans, inside, at, bits, could, most) if _may_be_key(plans[id].node) else 0.0
            if saved > most:
                best, most = id, saved
        return best

    def _saved(
        self,
        plans: Sequence[FieldPlan],
        inside: Sequence[int],
        at: int,
        bits: Sequence[float],
        could: Sequence[float],
        least: float,
    ) -> float:
        """What remembering by a field saves of those behind it; 0 where it is not more than `least`."""
        key = plans[inside[at]].node
        moved: dict[int, tuple[list[int], list[int]]] = {}
        saved = 0.0
        for other in range(at + 1, len(inside)):
            if saved + could[other] <= least:
                return 0.0
            if bits[other]:
                saved += bits[other] * max(0, self._gain(key, plans[inside[other]].node, moved))
        return saved

    def _gain(self, key: Node, node: Node, moved: dict[int, tuple[list[int], list[int]]]) -> int:
        """How many more values come again where the message before is the last one with the same key. `moved`: by the
        places of fields, what it is so far which others are before, and of which values."""
        gained = self._gained.get((key.id, node.id))
        if gained is not None:
            return gained
        if self._effort.used_up:
            return 0
        pairs = moved.get(node.place)
        if pairs is None:
            pairs = moved[node.place] = self._moved(node, key)
        others, at = pairs
        self._effort.spend(len(at))
        values, same = node.values, self.same(node)
        by_key: int = sum(map(eq, map(values.__getitem__, others), map(values.__getitem__, at)))
        gained = self._gained[key.id, node.id] = by_key - sum(map(same.__getitem__, at))
        return gained

    def _moved(self, node: Node, key: Node) -> tuple[list[int], list[int]]:
        """Where the value before is another one by a key: its index, and that of the value."""
        self._effort.spend(len(node.messages))
        by_key, plain = self.before_by_key(node, key), self.before(node)
        at = [index for index, (one, other) in enumerate(zip(by_key, plain, strict=True)) if one != other]
        return [by_key[index] for index in at], at


def learn_recurrence(plans: Sequence[FieldPlan], comings: Comings, weight: float) -> list[Recurrence]:
    """One a plan. `comings`: of the structure that they are of."""
    keys: dict[int, int] = {}
    for _, fields in plans[0].node.patterns:
        inside = _within(plans, [field.id for field in fields])
        key = comings.best_key(plans, inside)
        keys |= {id: key for id in inside if key >= 0}
    found: list[Recurrence] = []
    for plan in plans:
        id = plan.node.id
        options = _options(plan, comings.before(plan.node), False, weight)
        key = keys.get(id, -1)
        if 0 <= key < id:
            options += _options(plan, comings.before_by_key(plan.node, plans[key].node), True, weight)
        best = min(options, key=lambda option: option.cost).recurrence
        found.append(best._replace(is_key=key == id))
    return found


def _within(plans: Sequence[FieldPlan], ids: list[int]) -> list[int]:
    """These fields and all within them, in order."""
    inside: list[int] = []
    for id in ids:
        inside.append(id)
        for _, fields in plans[id].node.patterns:
            inside += _within(plans, [field.id for field in fields])
    return inside


def _may_be_key(node: Node) -> bool:
    """Whether it tells who a message is of: several, each of which comes again."""
    return len(node.counted) >= _KEY_VALUES_MIN and len(node.values) >= _KEY_COMES_AGAIN * len(node.counted)


def _options(plan: FieldPlan, before: Sequence[int], by_key: bool, weight: float) -> list[_Option]:
    values, count = plan.node.values, len(plan.node.values)
    again = [at >= 0 and values[at] == value for at, value in zip(before, values, strict=True)]
    rate = min(RATE_ONE - 1, max(1, round(RATE_ONE * sum(again) / max(1, count))))
    share = rate / RATE_ONE
    flags = sum([-log2(share if same else 1 - share) for same in again])
    ways: list[tuple[Histogram | None, list[float]]] = [(None, plan.bits)]
    changes = _changes(plan, before, weight)
    if changes is not None:
        ways.append(changes)
    options = []
    for histogram, bits in ways:
        told = RANGE_BITS * len(histogram.edges) / weight if histogram is not None else 0.0
        uses_key = by_key and histogram is not None
        options.append(_Option(told + sum(bits), Recurrence(False, 1, uses_key, False, histogram)))
        fresh = sum([one for one, same in zip(bits, again, strict=True) if not same])
        options.append(_Option(told + flags + fresh, Recurrence(True, rate, by_key, False, histogram)))
    return options


def _changes(plan: FieldPlan, before: Sequence[int], weight: float) -> tuple[Histogram, list[float]] | None:
    """The histogram of a number's changes, and what each value costs with it; None where it is no number."""
    node = plan.node
    if plan.histogram is None or plan.context >= 0:
        return None
    numbers = [node.numbers.get(value) for value in node.values]
    known = [None if at < 0 else numbers[at] for at in before]
    changes = [
        None if number is None or base is None else number - base for number, base in zip(numbers, known, strict=True)
    ]
    seen = [change for change in changes if change is not None]
    if len(seen) < len(numbers) // 2 or not seen:
        return None
    histogram = learn_histogram(seen, weight)
    bits = [plan.bits[at] if change is None else number_bits(histogram, change) for at, change in enumerate(changes)]
    return histogram, bits
