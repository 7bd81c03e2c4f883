"""Records as points for the index: a row a record, a column a name and type (see `boxes`), values as floats."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .boxes import ColumnKind, column_value
from .content_record import ContentRecord
from .evaluation import Getter, getter
from .fields import NOTHING
from .nodes import Name, Source
from .parser import parse_name

_PLANS_REMEMBERED: Final = 64
_NUMBERS: Final = {int, float, type(None)}
_TEXTS: Final = {str, type(None)}


class _Column(NamedTuple):
    key: str  # of a payload's own field, else ""
    get: Getter
    kind: ColumnKind


def columns_of(records: Sequence[ContentRecord], columns: tuple[str, ...]) -> npt.NDArray[np.float64]:
    """The values of columns, float64[records, columns], each column in one piece; NaN where a record has none.

    The records' reader has to know the columns' names. Raises UsageError for what is no column's name.
    """
    plan = _plan(columns)
    fields = [record.fields() for record in records] if plan.reads_payload else [NOTHING] * len(records)
    matrix = np.empty((len(records), len(columns)), np.float64, order="F")
    for i, (key, get, kind) in enumerate(plan.columns):
        if key:
            values = [each.get(key) for each in fields]
        else:
            values = [get(each, record) for each, record in zip(fields, records, strict=True)]
        matrix[:, i] = _values(values, kind)
    return matrix


def column_parts(column: str) -> tuple[Name, ColumnKind]:
    """The name and the type of a column. Raises UsageError."""
    for kind in (ColumnKind.TEXT, ColumnKind.TRUTH):
        if column.endswith(kind.value):
            return parse_name(column.removesuffix(kind.value)), kind
    return parse_name(column), ColumnKind.NUMBER


class _Plan(NamedTuple):
    columns: tuple[_Column, ...]
    reads_payload: bool


@lru_cache(_PLANS_REMEMBERED)
def _plan(columns: tuple[str, ...]) -> _Plan:
    parts = [column_parts(column) for column in columns]
    return _Plan(
        tuple([_Column(name.path[0] if _is_own(name) else "", getter(name), kind) for name, kind in parts]),
        any([name.source is Source.PAYLOAD for name, _ in parts]),
    )


def _is_own(name: Name) -> bool:
    return name.source is Source.PAYLOAD and len(name.path) == 1


def _values(values: list[Any], kind: ColumnKind) -> npt.NDArray[np.float64]:
    types = set(map(type, values))
    if kind is ColumnKind.NUMBER and types <= _NUMBERS:
        try:
            return np.array(values, np.float64) + 0.0  # None becomes NaN, -0.0 the other zero
        except OverflowError:  # a whole number beyond all floats
            pass
    elif kind is ColumnKind.TEXT and types <= _TEXTS:  # few of them in a batch, each there many times
        known = {value: column_value(value, kind) for value in set(values)}
        return np.array([*map(known.__getitem__, values)], np.float64)
    return np.array([column_value(value, kind) for value in values], np.float64)
