"""The canonical form: one text for as many ways of writing the same condition as cheap rules find.

Only TRUE delivers, so two conditions are the same that are true of the same records. NOT is pushed inwards, which
three-valued logic allows (NOT a < b is a >= b: neither is true of what cannot be compared); from there on AND and OR
are all that joins, and both only ask what is true, so that unknown may be written FALSE. Then: constants are on the
right and folded, nested ANDs and ORs flat, their operands sorted and each there once, what a name equals (or not)
gathered in one list, numbers written one way, LIKE without wildcards an equation.

Terms are not multiplied out, nor compared beyond their text: x > 3 AND x > 5 stays.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, Final

from .boxes import ColumnKind
from .like import Wildcard, pattern_text
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

NEGATED: Final = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", ">=": "<=", ">": "<", "<=": ">="}
COMPARED: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
# Whole numbers up to here are floats too, each its own.
WHOLE_FLOATS_MAX: Final = 2**53

_FALSE: Final = Truth(False)
_ALWAYS_THERE: Final = frozenset({Source.TOPIC, Source.QOS, Source.RETAIN, Source.TIME})
_ORDER: Final = [ColumnKind.TRUTH, ColumnKind.NUMBER, ColumnKind.TEXT]


def canonical(condition: Condition) -> Condition:
    """The canonical tree: true of the same records, without Not."""
    return _pushed(condition, False)


def _pushed(condition: Condition, negated: bool) -> Condition:
    """The canonical tree of a condition, or of its negation."""
    match condition:
        case Not(operand):
            return _pushed(operand, not negated)
        case All(operands) | Either(operands):
            joined = All if isinstance(condition, All) is not negated else Either
            return _joined(joined, [_pushed(operand, negated) for operand in operands])
        case Comparison(sign, left, right):
            return _comparison(NEGATED[sign] if negated else sign, left, right)
        case Membership(name, values, inner):
            return _membership(name, values, inner is not negated)
        case Likeness(name, pattern, inner):
            return _likeness(Likeness(name, pattern, inner is not negated))
        case Absence(name, inner):
            absent = Absence(name, inner is not negated)
            return Truth(absent.negated) if name.source in _ALWAYS_THERE else absent
        case Truth(value):
            return Truth(value is not negated)


def _joined(node: type[All] | type[Either], operands: Iterable[Condition]) -> Condition:
    flat: list[Condition] = []
    for operand in operands:
        flat.extend(operand.operands if isinstance(operand, node) else [operand])
    neutral = node is All
    by_text: dict[str, Condition] = {}
    for operand in _gathered(flat, neutral):
        if isinstance(operand, Truth):
            if operand.value is not neutral:
                return operand
        else:
            by_text[condition_text(operand)] = operand
    if not by_text:
        return Truth(neutral)
    ordered = [by_text[text] for text in sorted(by_text)]
    return node(tuple(ordered)) if len(ordered) > 1 else ordered[0]


def _gathered(operands: Iterable[Condition], negated: bool) -> list[Condition]:
    """What says which constants a name equals (`negated`: does not equal) in one list for each name."""
    equation = "<>" if negated else "="
    values: dict[Name, list[Constant]] = {}
    others: list[Condition] = []
    for operand in operands:
        match operand:
            case Membership(name, several, inner) if inner is negated:
                values.setdefault(name, []).extend(several)
            case Comparison(sign, Name() as name, right) if sign == equation and not isinstance(right, Name):
                values.setdefault(name, []).append(right)
            case _:
                others.append(operand)
    return others + [_membership(name, found, negated) for name, found in values.items()]


def _membership(name: Name, values: Iterable[Constant], negated: bool) -> Condition:
    distinct = {constant_text(value): normalised(value) for value in values}
    kinds = {constant_kind(value) for value in distinct.values()}
    # A value differs from a constant only if it is of its type, and is TRUE or FALSE if it is of theirs.
    if negated and (len(kinds) > 1 or (kinds == {ColumnKind.TRUTH} and len(distinct) > 1)):
        return _FALSE
    if len(distinct) == 1:
        return _comparison("<>" if negated else "=", name, *distinct.values())
    return Membership(name, tuple(sorted(distinct.values(), key=_order)), negated)


def _order(constant: Constant) -> tuple[int, Any]:
    return _ORDER.index(constant_kind(constant)), constant


def _comparison(sign: str, left: Name | Constant, right: Name | Constant) -> Condition:
    if isinstance(left, Name) and isinstance(right, Name):
        swapped = sign in (">", ">=") or (sign in ("=", "<>") and str(left) > str(right))
        return Comparison(MIRRORED[sign], right, left) if swapped else Comparison(sign, left, right)
    if isinstance(right, Name):
        left, right, sign = right, left, MIRRORED[sign]
    assert not isinstance(right, Name)
    truth = isinstance(right, bool)
    if truth and sign not in ("=", "<>"):
        return _FALSE
    if not isinstance(left, Name):
        return Truth(constant_kind(left) is constant_kind(right) and COMPARED[sign](left, right))
    if truth and sign == "<>":
        return Comparison("=", left, not right)
    return Comparison(sign, left, normalised(right))


def _likeness(condition: Likeness) -> Condition:
    if any([isinstance(element, Wildcard) for element in condition.pattern]):
        return condition
    text = "".join([str(element) for element in condition.pattern])
    return _comparison("<>" if condition.negated else "=", condition.name, text)


def normalised(constant: Constant) -> Constant:
    """A constant, numbers as one of those that equal them: a whole number below 2**53, else a float if there is one."""
    if isinstance(constant, bool | str):
        return constant
    if abs(constant) < WHOLE_FLOATS_MAX:
        return int(constant) if constant == int(constant) else constant
    try:
        nearest = float(constant)
    except OverflowError:
        return constant
    return nearest if nearest == constant else constant


def constant_text(constant: Constant) -> str:
    """A constant as the canonical form has it."""
    if isinstance(constant, str):
        return "'" + constant.replace("'", "''") + "'"
    return str(constant).upper() if isinstance(constant, bool) else repr(normalised(constant))


def condition_text(condition: Condition) -> str:
    """A canonical tree as text, which is parsed to the same tree."""
    match condition:
        case All(operands):
            inner = [f"({condition_text(o)})" if isinstance(o, Either) else condition_text(o) for o in operands]
            return " AND ".join(inner)
        case Either(operands):
            return " OR ".join([condition_text(operand) for operand in operands])
        case Comparison(sign, left, right):
            return f"{_operand_text(left)} {sign} {_operand_text(right)}"
        case Membership(name, values, negated):
            return f"{name} {'NOT ' * negated}IN ({', '.join(map(constant_text, values))})"
        case Likeness(name, pattern, negated):
            text, escape = pattern_text(pattern)
            return f"{name} {'NOT ' * negated}LIKE {constant_text(text)}" + f" ESCAPE '{escape}'" * bool(escape)
        case Absence(name, negated):
            return f"{name} IS {'NOT ' * negated}NULL"
        case Not(operand):
            return f"NOT ({condition_text(operand)})"
        case Truth(value):
            return constant_text(value)


def _operand_text(operand: Name | Constant) -> str:
    return str(operand) if isinstance(operand, Name) else constant_text(operand)
