"""The naive model of DualDB: a list of everything, looked through for each question."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lexicast.storage.dualdb.batches import PUBLISH, RENEW, SUBSCRIBE, UNSUBSCRIBE, OperationBatch


class Operation(NamedTuple):
    kind: int
    id: int
    time: int
    low: int = 0
    high: int = 0
    tag: int = 0
    payload: bytes = b""


def batch_of(operations: list[Operation]) -> OperationBatch:
    """The same operations in columns."""
    columns = [np.array(column) for column in list(zip(*operations, strict=True))[:6]]
    kind, id, time, low, high, tag = columns
    return OperationBatch(
        kind.astype(np.uint8),
        id.astype(np.uint64),
        time.astype(np.int64),
        low.astype(np.int64),
        high.astype(np.int64),
        tag.astype(np.uint64),
        [each.payload for each in operations if each.kind == PUBLISH],
    )


@dataclass
class Model:
    """Every operation so far, in order; answers are lists of (position, low, high, tag)."""

    stored: list[Operation] = field(default_factory=list)
    now: int = -(2**63)

    def apply(self, operation: Operation) -> list[tuple[int, int, int, int]]:
        self.now = max(self.now, operation.time)
        self.stored.append(operation)
        if operation.kind == PUBLISH:
            return self._subscriptions(operation)
        return self._publications(operation) if operation.kind == SUBSCRIBE else []

    def _publications(self, asking: Operation) -> list[tuple[int, int, int, int]]:
        return [
            (seq, item.time, item.high, item.tag)
            for seq, item in enumerate(self.stored)
            if item.kind == PUBLISH
            and item.id == asking.id
            and asking.low <= item.time <= asking.high
            and item.high >= self.now
        ]

    def _subscriptions(self, asking: Operation) -> list[tuple[int, int, int, int]]:
        return [
            (seq, item.low, item.high, item.tag)
            for seq, item in enumerate(self.stored)
            if item.kind in (SUBSCRIBE, RENEW)
            and item.id == asking.id
            and item.low <= asking.time <= item.high
            and item.high >= self.now
            and not self._buried(seq, item)
        ]

    def _buried(self, seq: int, item: Operation) -> bool:
        later = self.stored[seq + 1 :]
        return any(o.kind in (RENEW, UNSUBSCRIBE) and (o.id, o.tag) == (item.id, item.tag) for o in later)
