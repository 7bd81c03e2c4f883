"""The syntax tree of conditions: what the parser makes, what the canonical form is made of.

A *name* stands for a value of a record, a *constant* is written out. Conditions are three-valued: a comparison of a
missing value, or of values of different types, is neither true nor false, and only what is true is delivered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from .boxes import ColumnKind
from .like import Pattern

KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"})
_PLAIN: Final = re.compile(r"(?:[^\W\d]|\$)[\w$]*")

Constant: TypeAlias = bool | int | float | str


class Source(Enum):
    """Where a name's value is found."""

    PAYLOAD = "payload"
    PROPERTIES = "properties"
    TOPIC = "topic"
    LEVEL = "level"
    QOS = "qos"
    RETAIN = "retain"
    TIME = "time"


# Names that a payload's field of that name has to be quoted for: alone, and with something behind a dot.
WHOLE_NAMES: Final = frozenset({"topic", "qos", "retain", "time", "payload", "properties"})
PREFIXES: Final = frozenset({"payload", "properties"})

# What is known of a value before there is one: None for a payload's fields.
TYPES: Final = {
    Source.PAYLOAD: None,
    Source.PROPERTIES: ColumnKind.TEXT,
    Source.TOPIC: ColumnKind.TEXT,
    Source.LEVEL: ColumnKind.TEXT,
    Source.QOS: ColumnKind.NUMBER,
    Source.RETAIN: ColumnKind.TRUTH,
    Source.TIME: ColumnKind.NUMBER,
}


@dataclass(frozen=True, slots=True)
class Name:
    """A value of a record. `path`: the names from the payload's map down, or of one user property; `level` from 1."""

    source: Source
    path: tuple[str, ...] = ()
    level: int = 0

    def __str__(self) -> str:
        """The name as it is written in a condition, the same for all ways of writing it."""
        if self.source is Source.LEVEL:
            return f"level({self.level})"
        if self.source is Source.PROPERTIES:
            return f"properties.{_segment(self.path[0])}"
        if self.source is not Source.PAYLOAD:
            return str(self.source.value)
        first, *others = self.path
        taken = first in PREFIXES if others else first in WHOLE_NAMES or first.upper() in KEYWORDS
        return ".".join([_quoted(first) if taken else _segment(first), *map(_segment, others)])


def _segment(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else _quoted(text)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Truth:
    """TRUE or FALSE."""

    value: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """`operator` is one of = <> < <= > >=."""

    operator: str
    left: Name | Constant
    right: Name | Constant


@dataclass(frozen=True, slots=True)
class Membership:
    """`name IN (values)`: like `name = value OR ...`."""

    name: Name
    values: tuple[Constant, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Likeness:
    """`name LIKE pattern`."""

    name: Name
    pattern: Pattern
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Absence:
    """`name IS NULL`: never unknown itself."""

    name: Name
    negated: bool = False


@dataclass(frozen=True, slots=True)
class All:
    """`operands` joined by AND."""

    operands: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """`operands` joined by OR."""

    operands: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """NOT `operand`."""

    operand: Condition


Condition: TypeAlias = Truth | Comparison | Membership | Likeness | Absence | All | Either | Not


def constant_kind(constant: Constant) -> ColumnKind:
    """The type of a constant."""
    if isinstance(constant, str):
        return ColumnKind.TEXT
    return ColumnKind.TRUTH if isinstance(constant, bool) else ColumnKind.NUMBER
