"""Conditions as a model: written as users write them, and which of three values they have of a record.

It shares nothing with `cluster.content`: trees of its own, payloads given as the values that they stand for, three
values followed all the way, LIKE by trying everything. Tests and the part `truth` hold the rest against it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

# ("and" | "or", [tree, ...]), ("not", tree), ("compare", sign, operand, operand), ("is", operand), and with a flag for
# NOT: ("between", not, operand, low, high), ("in", not, operand, [constant, ...]), ("null", not, operand),
# ("like", not, operand, pattern, escape)
Tree: TypeAlias = tuple[Any, ...]
# ("name", text, type or "") or ("constant", value)
Operand: TypeAlias = tuple[Any, ...]

FIELDS = ["a", "b", "an odd name", "é", "topic", "In"]
TEXTS = ["", "a", "ab", "abcdef", "abcdefg", "abcdefh", "a%", "_", "it's", "5", "TRUE", "é😀"]
SPECIAL = [0, 1, 5, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**63, 2**64 - 1]
HUGE = [2**64, 2**70, 2**70 + 1, -(2**70), 10**400]


@dataclass
class ModelRecord:
    """A record, its payload both as bytes and as the value that they stand for (None: for nothing)."""

    payload: bytes
    value: Any
    topic: str = "a/b"
    qos: int = 0
    retain: bool = False
    time_us: int = 0
    properties: dict[int, Any] = field(default_factory=dict)


def written(tree: Tree, capitals: bool = True) -> str:
    """A tree as a user may write it."""
    match tree:
        case ("and" | "or" as word, operands):
            text = f" {word} ".join([f"({written(each, capitals)})" for each in operands])
        case ("not", operand):
            text = f"not ({written(operand, capitals)})"
        case ("compare", sign, left, right):
            text = f"{_operand(left)}{sign}{_operand(right)}"
        case ("between", negated, operand, low, high):
            text = f"{_operand(operand)}{' not' * negated} between {_operand(low)} and {_operand(high)}"
        case ("in", negated, operand, values):
            text = f"{_operand(operand)}{' not' * negated} in ({', '.join(map(_constant, values))})"
        case ("like", negated, operand, pattern, escape):
            text = f"{_operand(operand)}{' not' * negated} like {_constant(pattern)} escape '{escape}'"
        case ("null", negated, operand):
            text = f"{_operand(operand)} is {'not ' * negated}null"
        case ("is", operand):
            text = _operand(operand)
        case _:
            raise ValueError(tree)
    if not capitals:
        return text
    for word in (" and ", " or ", "not ", " in ", " like "):
        text = text.replace(word, word.upper())
    return text.replace(" escape ", "\nEscape ")


def _operand(operand: Operand) -> str:
    return str(operand[1]) if operand[0] == "name" else _constant(operand[1])


def _constant(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).upper() if isinstance(value, bool) else repr(value)


def truth(tree: Tree, record: ModelRecord) -> bool | None:
    """TRUE, FALSE or (None) unknown."""
    match tree:
        case ("and", operands):
            return _and([truth(each, record) for each in operands])
        case ("or", operands):
            return _not(_and([_not(truth(each, record)) for each in operands]))
        case ("not", operand):
            return _not(truth(operand, record))
        case ("compare", sign, left, right):
            return _compare(sign, _value(left, record), _value(right, record))
        case ("between", negated, operand, low, high):
            value = _value(operand, record)
            both = [_compare(">=", value, _value(low, record)), _compare("<=", value, _value(high, record))]
            return _not(_and(both)) if negated else _and(both)
        case ("in", negated, operand, values):
            value = _value(operand, record)
            among = _not(_and([_not(_compare("=", value, each)) for each in values]))
            return _not(among) if negated else among
        case ("like", negated, operand, pattern, escape):
            value = _value(operand, record)
            if not isinstance(value, str):
                return None
            return alike(pattern, escape, value) is not negated
        case ("null", negated, operand):
            return (_value(operand, record) is None) is not negated
        case ("is", operand):
            value = _value(operand, record)
            return value if isinstance(value, bool) else None
    raise ValueError(tree)


def _and(values: list[bool | None]) -> bool | None:
    if False in values:
        return False
    return None if None in values else True


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _compare(sign: str, left: Any, right: Any) -> bool | None:
    sides = (left, right)
    if any(isinstance(side, bool) for side in sides):
        if not all(isinstance(side, bool) for side in sides) or sign not in ("=", "<>", "!="):
            return None
    elif not (all(isinstance(s, str) for s in sides) or all(isinstance(s, int | float) for s in sides)):
        return None
    below, same = bool(left < right), bool(left == right)
    answers = {"=": same, "<>": not same, "!=": not same, "<": below, "<=": below or same}
    return answers[sign] if sign in answers else not answers[{">": "<=", ">=": "<"}[sign]]


def _value(operand: Operand, record: ModelRecord) -> Any:
    if operand[0] == "constant":
        return operand[1]
    name = operand[1]
    own: dict[str, Any] = {
        "topic": record.topic,
        "qos": record.qos,
        "retain": record.retain,
        "time": record.time_us / 1_000_000,
    }
    if name in own:
        return own[name]
    if name.startswith("level"):
        levels = dict(enumerate(record.topic.split("/"), 1))
        return levels.get(int(name[-2]))
    if name.startswith("properties."):
        pairs = [each for each in record.properties.get(38, []) if each[0] == name[11:].strip('"')]
        return pairs[0][1] if pairs else None
    value = record.value
    for part in name.removeprefix("payload.").split("."):
        value = value.get(part.strip('"')) if isinstance(value, dict) else None
    return None if isinstance(value, float) and math.isnan(value) else value


def alike(pattern: str, escape: str, text: str) -> bool:
    """LIKE, by trying everything. `escape` "": there is none."""
    if not pattern:
        return not text
    first, rest = pattern[0], pattern[1:]
    if first == escape and escape:
        return text[:1] == rest[0] and alike(rest[1:], escape, text[1:])
    if first == "%":
        return any(alike(rest, escape, text[i:]) for i in range(len(text) + 1))
    return bool(text) and first in ("_", text[0]) and alike(rest, escape, text[1:])
