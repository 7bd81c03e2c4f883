"""Boxes: what the index of content subscriptions knows of predicates and records, as numbers alone.

A record is a point: each *column* is a field's value as a float. A predicate is a union of boxes, each a closed
interval for some columns. The names of columns say of which type their values are, so that 5, '5' and TRUE never meet:

    delay            numbers as they are, the nearest float (intervals are rounded outward, so it is never outside)
    carrier:text     texts, by `text_value`
    cancelled:truth  TRUE is 1, FALSE is 0

What stands before the colon is the canonical text of the name in a predicate; a quoted name ends with a quote, so that
the endings are never part of one. A value that is missing, NULL, NaN or of another type is NaN: in no interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from hashlib import blake2b
from math import inf, nan
from typing import Final, NamedTuple, TypeAlias


class ColumnKind(Enum):
    """The type of a column's values; the value is the ending of the column's name."""

    NUMBER = ""
    TEXT = ":text"
    TRUTH = ":truth"


class Interval(NamedTuple):
    """A closed interval, `low <= high`; -inf and inf where it is open (infinite values lie in it)."""

    low: float
    high: float


# Column -> interval: all the columns that a conjunct bounds. The box holds every record that the conjunct is true of.
Box: TypeAlias = Mapping[str, Interval]


class Boxes(NamedTuple):
    """The boxes of a predicate: every record that matches it lies in one of them.

    exact: no other record does, so nothing has to be asked of the record itself. No boxes: no record matches.
    """

    boxes: tuple[Box, ...]
    exact: bool


# Texts of up to so many bytes of UTF-8 have values of their own, others share them by a hash.
EXACT_TEXT_BYTES: Final = 6
_HASHES: Final = 1 << (EXACT_TEXT_BYTES * 8 + 1)


def column_value(value: object, kind: ColumnKind) -> float:
    """What a record's value counts as in a column of that kind; NaN when it is of another type, missing or NULL."""
    if kind is ColumnKind.NUMBER:
        return number_value(value) if type(value) is float or type(value) is int else nan
    if kind is ColumnKind.TEXT:
        return text_value(value) if type(value) is str else nan
    return float(value) if type(value) is bool else nan


def number_value(value: float) -> float:
    """The nearest float of a number, infinite beyond all floats; zero has one sign."""
    try:
        return float(value) + 0.0
    except OverflowError:
        return inf if value > 0 else -inf


def text_value(text: str) -> float:
    """The number of a text: a whole one below 2**53, the same in every process.

    Of up to EXACT_TEXT_BYTES bytes: the bytes themselves behind a leading 1. Longer: from 2**49 on, by BLAKE2b.
    """
    encoded = text.encode()
    if len(encoded) <= EXACT_TEXT_BYTES:
        return float(int.from_bytes(b"\1" + encoded, "big"))
    return float(_HASHES + (int.from_bytes(blake2b(encoded, digest_size=8).digest(), "big") >> 12))
