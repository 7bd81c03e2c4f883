"""What streams gain, learned from consecutive samples: what comes again, what is near what was before, by which key.

A stream is one topic's, so what was before is the sample before of the same topic, where topics are known. Topics
differ: rates follow the stream from where the model begins (`model.FieldState`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Final, NamedTuple

from .histograms import Histogram
from .model import RATE_ONE
from .plan import FieldPlan, mean_bits
from .ranges import RANGE_BITS, learn_histogram, number_bits

_KEY_VALUES_MIN: Final = 2
_KEY_COMES_AGAIN: Final = 2
_KEY_SAVES_MIN: Final = 0.05


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


def learn_recurrence(plans: Sequence[FieldPlan], topics: Sequence[bytes], weight: float) -> list[Recurrence]:
    """One a plan. `topics`: of the messages."""
    keys: dict[int, int] = {}
    for _, fields in plans[0].node.patterns:
        inside = _within(plans, [field.id for field in fields])
        key = _key(plans, topics, inside)
        keys |= {id: key for id in inside if key >= 0}
    found: list[Recurrence] = []
    for plan in plans:
        id = plan.node.id
        options = _options(plan, _before(plan, topics), False, weight)
        key = keys.get(id, -1)
        if 0 <= key < id:
            options += _options(plan, _before_by_key(plan, topics, plans[key]), True, weight)
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


def _before(plan: FieldPlan, topics: Sequence[bytes]) -> list[int]:
    """For each value the index of the one before on its topic; -1: none."""
    last: dict[bytes, int] = {}
    before: list[int] = []
    for at, message in enumerate(plan.node.messages):
        before.append(last.get(topics[message], -1))
        last[topics[message]] = at
    return before


def _before_by_key(plan: FieldPlan, topics: Sequence[bytes], key: FieldPlan) -> list[int]:
    """The index of the value in the topic's last message with the same key, else of the one before."""
    keys = dict(zip(key.node.messages, key.node.values, strict=True))
    last: dict[tuple[bytes, bytes | None], int] = {}
    before = _before(plan, topics)
    for at, message in enumerate(plan.node.messages):
        known = (topics[message], keys.get(message))
        before[at] = last.get(known, before[at])
        last[known] = at
    return before


def _key(plans: Sequence[FieldPlan], topics: Sequence[bytes], inside: Sequence[int]) -> int:
    """The field by which remembering saves most; -1: none."""
    best, most = -1, 0.0
    whole = sum([sum(plans[id].bits) for id in inside])
    for id in inside:
        distinct = len(plans[id].node.counted)
        if distinct < _KEY_VALUES_MIN or len(plans[id].node.values) < _KEY_COMES_AGAIN * distinct:
            continue
        saved = sum([_saved_by_key(plans[other], topics, plans[id]) for other in inside if other > id])
        if saved > most:
            best, most = id, saved
    return best if most > _KEY_SAVES_MIN * whole else -1


def _saved_by_key(plan: FieldPlan, topics: Sequence[bytes], key: FieldPlan) -> float:
    bits = mean_bits(plan)
    if bits < 0.5:
        return 0.0
    by_key, alone = _repeats(plan, _before_by_key(plan, topics, key)), _repeats(plan, _before(plan, topics))
    return max(0.0, bits * (by_key - alone))


def _repeats(plan: FieldPlan, before: Sequence[int]) -> int:
    values = plan.node.values
    return sum([at >= 0 and values[at] == value for at, value in zip(before, values, strict=True)])


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
