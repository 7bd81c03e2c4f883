"""The interface of every engine under comparison, and its answer to a batch: so all are checked against each other."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from lexicast.storage.dualdb.batches import OperationBatch
from lexicast.storage.dualdb.rows import Matches


class Answered(NamedTuple):
    """How many answers a batch got, and the sum of their Pids and Sids (modulo 2^64)."""

    answers: int
    tags: int


def answered(matches: Matches) -> Answered:
    """Count and sum of answers."""
    return Answered(matches.size, int(matches.tag.sum(dtype=np.uint64)))


class ComparedEngine(Protocol):
    """A store under comparison: a batch is durable and answered when `apply` returns."""

    def apply(self, batch: OperationBatch) -> Answered:
        """Store and answer a batch."""
        ...

    def file_bytes(self) -> int:
        """Bytes on the disk."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...
