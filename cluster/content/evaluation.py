"""Conditions compiled into functions: each part becomes one that calls those of its own parts.

A canonical tree has no Not, so whether it is true follows from which of its comparisons are true: AND and OR of three
values are monotone, and nobody asks whether what is not true is false or unknown. So each part answers True or False,
False for unknown too. What a value has to be to be comparable is in each comparison: numbers with numbers (whole ones
exactly, however large), texts with texts by code points, TRUE and FALSE only as equal or not. NaN is NULL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from .boxes import ColumnKind
from .canonical import COMPARED
from .content_record import ContentRecord
from .fields import Fields
from .like import LIKE_CHARACTERS_MAX, matcher
from .nodes import (
    Absence,
    All,
    Comparison,
    Condition,
    Constant,
    Either,
    Likeness,
    Membership,
    Name,
    Not,
    Source,
    Truth,
    constant_kind,
)
from .parser import publication_seconds

Question: TypeAlias = Callable[[Fields, ContentRecord], bool]
Getter: TypeAlias = Callable[[Fields, ContentRecord], object]


def question(condition: Condition) -> Question:
    """Whether a canonical condition is true of a record with these payload's fields."""
    match condition:
        case Truth(value):
            return lambda fields, record: value
        case All(operands):
            return _all([question(operand) for operand in operands])
        case Either(operands):
            return _either([question(operand) for operand in operands])
        case Comparison(sign, Name() as left, Name() as right):
            return _of_two_names(sign, getter(left), getter(right))
        case Comparison(sign, Name() as name, right):
            assert not isinstance(right, Name)
            return _with_constant(sign, name, right)
        case Membership(name, values, negated):
            return _membership(getter(name), values, negated)
        case Likeness(name, pattern, negated):
            return _likeness(getter(name), matcher(pattern), negated)
        case Absence(name, negated):
            return _absence(getter(name), negated)
        case Comparison() | Not():
            raise TypeError("only canonical conditions can be asked")


def getter(name: Name) -> Getter:
    """What finds a name's value; None where there is none."""
    number, path = name.level, name.path
    match name.source:
        case Source.PAYLOAD if len(path) == 1:
            key = path[0]
            return lambda fields, record: fields.get(key)
        case Source.PAYLOAD:
            return lambda fields, record: _within(fields, path)
        case Source.PROPERTIES:
            key = path[0]
            return lambda fields, record: record.user_property(key)
        case Source.TOPIC:
            return lambda fields, record: record.topic.decode()
        case Source.LEVEL:
            return lambda fields, record: record.level(number)
        case Source.QOS:
            return lambda fields, record: record.qos
        case Source.RETAIN:
            return lambda fields, record: record.retain
        case Source.TIME:
            return lambda fields, record: publication_seconds(record.time_us)


def _within(fields: Fields, path: tuple[str, ...]) -> object:
    value: Any = fields.get(path[0])
    for name in path[1:]:
        if type(value) is not dict:
            return None
        value = value.get(name)
    return value


def _all(questions: list[Question]) -> Question:
    if len(questions) == 2:
        first, second = questions
        return lambda fields, record: first(fields, record) and second(fields, record)

    def every(fields: Fields, record: ContentRecord) -> bool:
        for each in questions:  # noqa: SIM110 - all() of a generator takes twice the time
            if not each(fields, record):
                return False
        return True

    return every


def _either(questions: list[Question]) -> Question:
    def some(fields: Fields, record: ContentRecord) -> bool:
        for each in questions:  # noqa: SIM110 - any() of a generator takes twice the time
            if each(fields, record):
                return True
        return False

    return some


def _different(one: Any, other: Any) -> bool:
    """Whether two values of one type differ: NaN does not, it is NULL."""
    return bool(one < other or one > other)


def _with_constant(sign: str, name: Name, constant: Constant) -> Question:
    get = getter(name)
    kind = constant_kind(constant)
    if kind is ColumnKind.TRUTH:
        return lambda fields, record: get(fields, record) is constant
    compared = _different if sign == "<>" else COMPARED[sign]
    if kind is ColumnKind.TEXT:

        def of_text(fields: Fields, record: ContentRecord) -> bool:
            value = get(fields, record)
            return type(value) is str and compared(value, constant)

        return of_text

    def of_number(fields: Fields, record: ContentRecord) -> bool:
        value = get(fields, record)
        found = type(value)
        return (found is int or found is float) and compared(value, constant)

    return of_number


def _of_two_names(sign: str, left: Getter, right: Getter) -> Question:
    compared = _different if sign == "<>" else COMPARED[sign]
    equations = sign in ("=", "<>")

    def of_two(fields: Fields, record: ContentRecord) -> bool:
        one, other = left(fields, record), right(fields, record)
        first, second = type(one), type(other)
        if first is int or first is float:
            return (second is int or second is float) and compared(one, other)
        if first is not second or not (first is str or (first is bool and equations)):
            return False
        return compared(one, other)

    return of_two


def _membership(get: Getter, values: tuple[Constant, ...], negated: bool) -> Question:
    truths, numbers, texts = (
        frozenset([value for value in values if constant_kind(value) is kind])
        for kind in (ColumnKind.TRUTH, ColumnKind.NUMBER, ColumnKind.TEXT)
    )

    def member(fields: Fields, record: ContentRecord) -> bool:
        value: Any = get(fields, record)
        found = type(value)
        if found is str:
            among = texts
        elif found is int or (found is float and value == value):
            among = numbers
        elif found is bool:
            among = truths
        else:
            return False
        # "Not among" is known only of constants of the value's type.
        return value not in among and bool(among) if negated else value in among

    return member


def _likeness(get: Getter, like: Callable[[str], bool], negated: bool) -> Question:
    def likeness(fields: Fields, record: ContentRecord) -> bool:
        value = get(fields, record)
        return type(value) is str and len(value) <= LIKE_CHARACTERS_MAX and like(value) is not negated

    return likeness


def _absence(get: Getter, negated: bool) -> Question:
    def absence(fields: Fields, record: ContentRecord) -> bool:
        value = get(fields, record)
        return (value is None or (type(value) is float and value != value)) is not negated

    return absence
