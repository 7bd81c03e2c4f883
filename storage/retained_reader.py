"""The reader of retained publications: the names of their topics, for wildcards, and the record of each.

In short read transactions, on any thread.
"""

from __future__ import annotations

from functools import partial

from lexicast.cluster.blocks import Block
from lexicast.cluster.clock import Clock

from .environment.guard import Guard
from .file.sealing import DamageError
from .file.table import ReadTransaction
from .log.block_cuts import only_topic
from .log.block_log import Log
from .tables.databases import Databases
from .tables.retained_names import RetainedNames
from .tables.state import parse_retained_row
from .tables.topics import find_topic, group_of, id_key, topic_id_of


class RetainedReader:
    """See the module's docstring. `names`: those that `load_names` has read, and commits since then."""

    def __init__(self, guard: Guard, databases: Databases, log: Log, clock: Clock) -> None:
        self._guard = guard
        self._databases = databases
        self._log = log
        self._clock = clock
        self.names = RetainedNames(databases.retained)

    def load_names(self) -> bool:
        """Read some more of `names`, 1 to 2 ms; True when all are there."""
        if not self.names.complete:
            begun = self.names.begin_step()
            with self._guard.reading() as txn:
                self.names.load_step(txn, begun, partial(self._name, txn))
        return self.names.complete

    def _name(self, txn: ReadTransaction, key: bytes, row: bytes) -> bytes | None:
        """The topic of a row of the retained table; None when neither its name nor its record can be read."""
        return self._databases.names.get(txn, key) or self.recorded_topic(txn, key, row)

    def recorded_topic(self, txn: ReadTransaction, key: bytes, row: bytes) -> bytes | None:
        """The topic that the record itself names; None where that cannot be read."""
        block = self._record(txn, group_of(topic_id_of(key, "retained")), row, 0)
        return None if block is None else only_topic(block)

    def record(self, group: int, topic: bytes) -> Block | None:
        """The retained publication of `topic`, which is one of `group`, as a block of one record."""
        with self._guard.reading() as txn:
            topic_id = find_topic(self._databases, txn, topic)
            if topic_id is None or group_of(topic_id) != group:
                return None
            row = self._databases.retained.get(txn, id_key(topic_id))
            return None if row is None else self._record(txn, group, row, self._clock.time_us())

    def _record(self, txn: ReadTransaction, group: int, row: bytes, now_us: int) -> Block | None:
        offset, expires_us = parse_retained_row(row)
        if 0 < expires_us < now_us:
            return None
        block = self._log.record(txn, self._databases.kept, group, offset)
        if block is None:
            # Most often the record itself is damaged.
            self._log.ledger.note(DamageError("retained", group, offset, "the retained publication cannot be read"))
        return block
