"""DualDB itself, behind the interface of the comparison."""

from __future__ import annotations

from pathlib import Path

from lexicast.storage.dualdb.batches import PUBLISH, OperationBatch
from lexicast.storage.dualdb.engine import DualDB
from lexicast.storage.dualdb.options import DualOptions

from .compared_engine import Answered, answered


class OneDatabase:
    """The paper's DualDB: one database for both lists (section 4.1)."""

    def __init__(self, directory: Path, options: DualOptions | None = None) -> None:
        self.db = DualDB.open(directory, options)

    def apply(self, batch: OperationBatch) -> Answered:
        """See `Engine`."""
        return answered(self.db.apply(batch)) if batch.size > 1 else self._one(batch)

    def _one(self, batch: OperationBatch) -> Answered:
        """A single operation by its own call, table 1's."""
        id, time, low, high, tag = [int(c[0]) for c in (batch.id, batch.time, batch.low, batch.high, batch.tag)]
        if batch.kind[0] == PUBLISH:
            tags = [each.sid for each in self.db.publish(id, time, high, tag, batch.payloads[0])]
        else:
            tags = [each.pid for each in self.db.subscribe(id, time, low, high, tag)]
        return Answered(len(tags), sum(tags) % 2**64)

    def file_bytes(self) -> int:
        """See `Engine`."""
        return self.db.environment.file_bytes()

    def close(self) -> None:
        """See `Engine`."""
        self.db.close()
