"""Two databases instead of one: publications in the first, subscriptions in the second (the paper's section 1).

The same engine twice. A batch is durable when both are: two commits. Answers are the same as DualDB's: what both hold
from before, and the batch's own operations among themselves.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lexicast.storage.dualdb.asking import queries_of, rows_of
from lexicast.storage.dualdb.batches import PUBLISH, OperationBatch
from lexicast.storage.dualdb.engine import DualDB
from lexicast.storage.dualdb.options import DualOptions
from lexicast.storage.dualdb.rows import Matches, bounded_queries, bounds_of, joined_matches, probe, sorted_rows

from .compared_engine import Answered, answered

_LATER = np.uint64(2**64 - 1)


class TwoDatabases:
    """See the module's docstring. Publish and subscribe only."""

    def __init__(self, directory: Path, options: DualOptions | None = None) -> None:
        self._publications = DualDB.open(directory / "publications", options)
        self._subscriptions = DualDB.open(directory / "subscriptions", options)
        self._now_us = -(2**63)

    def apply(self, batch: OperationBatch) -> Answered:
        """See `Engine`."""
        times = np.maximum.accumulate(np.maximum(batch.time, self._now_us))
        self._now_us = int(times[-1])
        queries = queries_of(batch, 0, times)
        publishing = batch.kind[queries.op] == PUBLISH
        found: list[Matches | None] = []
        before = queries._replace(seq=np.full(queries.size, _LATER))
        found.append(self._subscriptions.answers(before.where(publishing), 0))
        found.append(self._publications.answers(before.where(~publishing), 0))
        rows = sorted_rows(rows_of(batch, 0))
        found.append(probe(rows, bounds_of(rows), bounded_queries(queries)))
        self._append(self._publications, batch, batch.kind == PUBLISH)
        self._append(self._subscriptions, batch, batch.kind != PUBLISH)
        return answered(joined_matches([matches for matches in found if matches is not None]))

    def _append(self, db: DualDB, batch: OperationBatch, chosen: NDArray[np.bool_]) -> None:
        if chosen.any():
            db.append(part(batch, chosen))

    def file_bytes(self) -> int:
        """See `Engine`."""
        return self._publications.environment.file_bytes() + self._subscriptions.environment.file_bytes()

    def close(self) -> None:
        """See `Engine`."""
        self._publications.close()
        self._subscriptions.close()


def part(batch: OperationBatch, chosen: NDArray[np.bool_]) -> OperationBatch:
    """The chosen operations: all of the publications among them, or none."""
    payloads = batch.payloads if bool((batch.kind[chosen] == PUBLISH).any()) else []
    return OperationBatch(
        batch.kind[chosen],
        batch.id[chosen],
        batch.time[chosen],
        batch.low[chosen],
        batch.high[chosen],
        batch.tag[chosen],
        payloads,
    )
