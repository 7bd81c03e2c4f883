"""DualDB itself, behind the interface of the comparison."""

from __future__ import annotations

from pathlib import Path

from lexicast.storage.dualdb.batches import OperationBatch
from lexicast.storage.dualdb.engine import DualDB
from lexicast.storage.dualdb.options import DualOptions

from .compared_engine import Answered, answered


class OneDatabase:
    """The paper's DualDB: one database for both lists (section 4.1)."""

    def __init__(self, directory: Path, options: DualOptions | None = None) -> None:
        self.db = DualDB.open(directory, options)

    def apply(self, batch: OperationBatch) -> Answered:
        """See `Engine`."""
        return answered(self.db.apply(batch))

    def file_bytes(self) -> int:
        """See `Engine`."""
        return self.db.environment.file_bytes()

    def close(self) -> None:
        """See `Engine`."""
        self.db.close()
