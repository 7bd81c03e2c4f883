"""The names of the topics that have a retained publication, in memory, so that a wildcard finds those it matches.

Read from the tables when the first wildcard asks, in short steps, and kept up by commits from then on. A name whose
publication has expired meanwhile stays until somebody looks for it in vain. Any thread may call any method.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from lexicast.cluster.topics.name_tree import Path, TopicNames

from ..file.table import ReadTransaction, Table
from ..log.block_outline import CLEARED, Outline

NAMES_A_STEP = 200


class RetainedNames:
    """See the module's docstring."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._names = TopicNames()
        self._lock = threading.Lock()
        self._after: bytes | None = None
        self._loading = False
        self._changes = self._forgotten = 0
        self.complete = False

    def begin_step(self) -> int:
        """Before the transaction of a step begins: from here on commits are followed, which it may or may not see."""
        with self._lock:
            self._loading = True
            return self._forgotten

    def load_step(self, txn: ReadTransaction, begun: int, name_of: Callable[[bytes, bytes], bytes | None]) -> None:
        """Read some more names. `begun`: what `begin_step` gave. `name_of` tells the name of a row of the table, by its
        key and data."""
        with self._lock:
            if begun != self._forgotten:
                return  # what `txn` sees is not what there is now
            rows = self._table.rows(txn, b"", self._after, NAMES_A_STEP)
            for key, row in rows:
                topic = name_of(key, row)
                if topic is not None:
                    self._names.add(topic)
            if rows:
                self._after = rows[-1][0]
            self.complete = len(rows) < NAMES_A_STEP

    def committed(self, outlines: Sequence[Outline]) -> None:
        """These blocks are durable."""
        if not self._loading:
            return
        with self._lock:
            for found in outlines:
                for row in found.retained:
                    self._changes += 1
                    if row.offset == CLEARED:
                        self._names.discard(row.topic)
                    else:
                        self._names.add(row.topic)

    def forget(self) -> None:
        """The table has changed otherwise than by commits: it is read again when somebody asks."""
        with self._lock:
            self._names = TopicNames()
            self._after = None
            self._loading = self.complete = False
            self._changes += 1
            self._forgotten += 1

    def scan(self, topic_filter: bytes, after: Path | None, steps: int) -> tuple[list[bytes], Path | None, int]:
        """As `TopicNames.scan`; and a token for `missing`."""
        with self._lock:
            return (*self._names.scan(topic_filter, after, steps), self._changes)

    def missing(self, topics: Sequence[bytes], token: int) -> None:
        """These, scanned with `token`, have no retained publication any more, if nothing was committed since."""
        with self._lock:
            if token == self._changes:
                for topic in topics:
                    self._names.discard(topic)
