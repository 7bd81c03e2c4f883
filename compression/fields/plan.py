"""What goes into the model of one field, while it is decided."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from .histograms import Histogram
from .model import Reference
from .structure import Node

PACKED_BITS = 6.0
"""What a byte of a model takes when it is packed."""
ROW_BYTES = 1.5
"""Of a row beside its value: its length and its count."""


class Foreseen(NamedTuple):
    """Values where an earlier field has a certain value, with counts; `others`: of all else, at least 1."""

    values: dict[bytes, int]
    others: int


class FieldPlan:
    """The parts of one field's model, and what each of its values costs then."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.rows: list[tuple[bytes, int]] = []
        self.counts: list[int] = []
        self.histogram: Histogram | None = None
        self.references: tuple[Reference, ...] = ()
        self.texts: Counter[bytes] = Counter()
        self.context = -1
        self.contexts: dict[bytes, Foreseen] = {}
        self.bits: list[float] = []
        """Of each of the node's values, in order."""


def mean_bits(plan: FieldPlan) -> float:
    """Of the node's values."""
    return sum(plan.bits) / len(plan.bits) if plan.bits else 0.0
