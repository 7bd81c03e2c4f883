"""What operations add to the lists, and what they ask of them."""

from __future__ import annotations

import numpy as np

from .batches import PUBLISH, RENEW, SUBSCRIBE, OperationBatch, RowOperation
from .rows import EVER_US, I64, PUBLICATION, SUBSCRIPTION, Queries, Question, RowColumns, ordered

_ONE = np.uint64(1)


def rows_of(batch: OperationBatch, first: int) -> RowColumns:
    """What a batch adds to the lists, in the order of its operations."""
    adding = np.flatnonzero(batch.kind <= RENEW)
    kind = np.where(batch.kind[adding] == PUBLISH, np.uint64(PUBLICATION), np.uint64(SUBSCRIPTION))
    low = np.where(batch.kind == PUBLISH, batch.time, batch.low)[adding]
    seq = adding.astype(np.uint64) + np.uint64(first)
    return RowColumns((batch.id[adding] << _ONE) | kind, seq, low, batch.high[adding], batch.tag[adding])


def queries_of(batch: OperationBatch, first: int, now_us: I64) -> Queries:
    """What a batch asks, sorted by key; `now_us` is the store's time at each operation."""
    op = np.flatnonzero(batch.kind <= SUBSCRIBE)
    publishing = batch.kind[op] == PUBLISH
    kind = np.where(publishing, np.uint64(SUBSCRIPTION), np.uint64(PUBLICATION))
    low_min = np.where(publishing, EVER_US, batch.low[op])
    low_max = np.where(publishing, batch.time[op], batch.high[op])
    seq = op.astype(np.uint64) + np.uint64(first)
    return ordered(Queries(op, (batch.id[op] << _ONE) | kind, low_min, low_max, now_us[op], seq))


def question_of(operation: RowOperation, now_us: int) -> Question | None:
    """What one operation asks; None when it asks nothing. `now_us` is the store's time at it."""
    kind, id, time, low, high, _ = operation
    if kind == PUBLISH:
        return Question(id << 1 | SUBSCRIPTION, EVER_US, time, now_us)
    return Question(id << 1 | PUBLICATION, low, high, now_us) if kind == SUBSCRIBE else None
