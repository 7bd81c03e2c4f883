"""The latest operations, in front of the memory table, row by row: of few at once, NumPy's calls cost most.

A list a key in a dictionary. What is added here becomes one tier of the memory table, and one batch of the log, before
operations come by columns, or when it has grown to what the journal may hold.
"""

from __future__ import annotations

import numpy as np

from .batches import PUBLISH, UNSUBSCRIBE, OperationBatch, RowOperation
from .rows import PUBLICATION, SUBSCRIPTION, Answer, Question


class Recent:
    """See the module's docstring."""

    __slots__ = ("_lists", "_operations", "_payloads", "first", "rows")

    def __init__(self, first: int) -> None:
        self.first = first
        self.rows = 0
        self._operations: list[RowOperation] = []
        self._payloads: list[bytes] = []
        self._lists: dict[int, list[Answer]] = {}

    @property
    def size(self) -> int:
        """How many operations."""
        return len(self._operations)

    def add(self, operation: RowOperation, payload: bytes | None) -> None:
        """Take in the next operation; a payload comes with a publication."""
        kind, id, time, low, high, tag = operation
        seq = self.first + len(self._operations)
        self._operations.append(operation)
        if kind == UNSUBSCRIBE:
            return
        if kind == PUBLISH:
            key, low = id << 1 | PUBLICATION, time
            if payload is not None:
                self._payloads.append(payload)
        else:
            key = id << 1 | SUBSCRIPTION
        self.rows += 1
        row = (seq, low, high, tag)
        there = self._lists.get(key)
        if there is None:
            self._lists[key] = [row]
        else:
            there.append(row)

    def find(self, asked: Question, found: list[Answer]) -> None:
        """Add the answers to a question to `found`, in their order."""
        key, low_min, low_max, valid_at = asked
        there = self._lists.get(key)
        if there is not None:
            found += [row for row in there if low_min <= row[1] <= low_max and row[2] >= valid_at]

    def batch(self) -> OperationBatch:
        """All of it in columns."""
        return batch_of_rows(self._operations, self._payloads)


def batch_of_rows(rows: list[RowOperation], payloads: list[bytes]) -> OperationBatch:
    """The same operations, at least one, in columns. Raises OverflowError (a number out of range)."""
    kind, id, time, low, high, tag = zip(*rows, strict=True)
    return OperationBatch(
        np.array(kind, np.uint8),
        np.array(id, np.uint64),
        np.array(time, np.int64),
        np.array(low, np.int64),
        np.array(high, np.int64),
        np.array(tag, np.uint64),
        payloads,
    )
