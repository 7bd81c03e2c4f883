"""Predicates as boxes for the index: a disjunction of conjunctions, each with the intervals that it implies.

What no interval says (LIKE, IS NULL, <>, an order of texts, two names) is left out, which makes the box a superset. So
do whole numbers from 2**53 on, of which several are the same float, and texts that share their value by a hash. A
conjunct that nothing is true of has no box.
"""

from __future__ import annotations

from math import inf, nextafter
from typing import Final, NamedTuple

from .boxes import EXACT_TEXT_BYTES, Box, Boxes, ColumnKind, Interval, number_value, text_value
from .canonical import WHOLE_FLOATS_MAX
from .nodes import All, Comparison, Condition, Constant, Either, Membership, Name, Truth, constant_kind

CONJUNCTS_MAX: Final = 16


class _Conjunct(NamedTuple):
    box: dict[str, Interval]
    exact: bool


class _TooManyError(Exception):
    """More than CONJUNCTS_MAX conjuncts."""


_NO_BOUND: Final = _Conjunct({}, False)


def boxes_of(condition: Condition) -> Boxes | None:
    """The boxes of a canonical condition. None: the index is of no help, some conjunct bounds no column or there are
    more than CONJUNCTS_MAX of them, even when lists of IN are not taken apart.
    """
    for lists_apart in (True, False):
        try:
            conjuncts = _conjuncts(condition, lists_apart)
        except _TooManyError:
            continue
        if all([conjunct.box for conjunct in conjuncts]):
            return Boxes(_distinct(conjuncts), all([conjunct.exact for conjunct in conjuncts]))
        return None
    return None


def column_name(name: Name, kind: ColumnKind) -> str:
    """The column of a name's values of that type."""
    return f"{name}{kind.value}"


def _conjuncts(condition: Condition, lists_apart: bool) -> list[_Conjunct]:
    match condition:
        case Truth(value):
            return [_Conjunct({}, True)] if value else []
        case Either(operands):
            return _few([each for operand in operands for each in _conjuncts(operand, lists_apart)])
        case All(operands):
            product = [_Conjunct({}, True)]
            for operand in operands:
                product = _product(product, _conjuncts(operand, lists_apart))
            return product
        case Comparison(sign, Name() as name, right) if not isinstance(right, Name):
            return [_equation_or_order(sign, name, right)]
        case Membership(name, values, False):
            if lists_apart and len(values) <= CONJUNCTS_MAX:
                return [_equation_or_order("=", name, value) for value in values]
            return [_hull(name, values)]
        case _:
            return [_NO_BOUND]


def _few(conjuncts: list[_Conjunct]) -> list[_Conjunct]:
    if len(conjuncts) > CONJUNCTS_MAX:
        raise _TooManyError
    return conjuncts


def _product(ones: list[_Conjunct], others: list[_Conjunct]) -> list[_Conjunct]:
    both = [_intersection(one, other) for one in ones for other in others]
    return _few([conjunct for conjunct in both if conjunct is not None])


def _intersection(one: _Conjunct, other: _Conjunct) -> _Conjunct | None:
    """What is true of both; None: nothing."""
    box = dict(one.box)
    for column, interval in other.box.items():
        bounded = box.get(column, interval)
        low, high = max(bounded.low, interval.low), min(bounded.high, interval.high)
        if low > high:
            return None
        box[column] = Interval(low, high)
    return _Conjunct(box, one.exact and other.exact)


def _equation_or_order(sign: str, name: Name, constant: Constant) -> _Conjunct:
    kind = constant_kind(constant)
    column = column_name(name, kind)
    if isinstance(constant, str):
        if sign != "=":
            return _NO_BOUND
        value = text_value(constant)
        return _Conjunct({column: Interval(value, value)}, len(constant.encode()) <= EXACT_TEXT_BYTES)
    if sign == "<>":
        return _NO_BOUND
    # Below 2**53 only the number itself has its float, so that the next float is on the other side of it.
    exact = abs(constant) < WHOLE_FLOATS_MAX
    value = number_value(constant)
    low, high = value, value
    if sign in ("<", "<="):
        low, high = -inf, nextafter(value, -inf) if exact and sign == "<" else value
    elif sign in (">", ">="):
        low, high = nextafter(value, inf) if exact and sign == ">" else value, inf
    return _Conjunct({column: Interval(low, high)}, exact)


def _hull(name: Name, values: tuple[Constant, ...]) -> _Conjunct:
    """One interval around a list of numbers; other lists have none that would be narrow."""
    if any([constant_kind(value) is not ColumnKind.NUMBER for value in values]):
        return _NO_BOUND
    numbers = [number_value(value) for value in values if not isinstance(value, str)]
    return _Conjunct({column_name(name, ColumnKind.NUMBER): Interval(min(numbers), max(numbers))}, False)


def _distinct(conjuncts: list[_Conjunct]) -> tuple[Box, ...]:
    boxes: list[Box] = []
    for conjunct in conjuncts:
        if conjunct.box not in boxes:
            boxes.append(conjunct.box)
    return tuple(boxes)
