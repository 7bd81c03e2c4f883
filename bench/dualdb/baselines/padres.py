"""PADRES as the paper used it (section 6.1): history in PostgreSQL, subscriptions in memory.

Each subscription is one historic subscription, a query of the table (expression 1), and one regular subscription in
memory (expression 2); each publication is a row of the table and is matched in memory (expression 3).

Tuned: prepared statements in pipeline mode over a Unix socket, one transaction a batch, durable at its commit; an index
on (ID, T); expired rows deleted each EXPIRE_BATCHES batches; subscriptions found by ID and dropped when they are met
expired (the paper's never went, which is how it ran out of memory).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import psycopg

from lexicast.storage.dualdb.batches import PUBLISH, OperationBatch

from .compared_engine import Answered

EXPIRE_BATCHES: Final = 20

_TABLE = """
CREATE TABLE publications (id bigint, t bigint, t_max bigint, pid bigint, payload bytea);
CREATE INDEX ON publications (id, t);
"""
_INSERT = "INSERT INTO publications VALUES (%b, %b, %b, %b, %b)"
_HISTORY = "SELECT pid FROM publications WHERE id = %b AND t BETWEEN %b AND %b AND t_max >= %b"


class Padres:
    """See the module's docstring. `conninfo` names a database of its own; it is left as it is on `close`."""

    def __init__(self, conninfo: str) -> None:
        self._connection = psycopg.connect(conninfo, autocommit=True, prepare_threshold=0)
        self._connection.execute(_TABLE, prepare=False)
        self._subscriptions: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._batches = 0

    def apply(self, batch: OperationBatch) -> Answered:
        """See `Engine`."""
        answers = tags = 0
        payloads = iter(batch.payloads)
        asked: list[psycopg.Cursor[Any]] = []
        columns = (batch.kind, batch.id, batch.time, batch.low, batch.high, batch.tag)
        with self._connection.transaction(), self._connection.pipeline():
            for kind, id, time, low, high, tag in zip(*[c.tolist() for c in columns], strict=True):
                if kind == PUBLISH:
                    found = self._matching(id, time)
                    answers += len(found)
                    tags += sum(found)
                    self._connection.execute(_INSERT, (id, time, high, tag, next(payloads)))
                else:
                    self._subscriptions[id].append((low, high, tag))
                    asked.append(self._connection.execute(_HISTORY, (id, low, high, time), binary=True))
        for cursor in asked:
            rows = cursor.fetchall()
            answers += len(rows)
            tags += sum([row[0] for row in rows])
        self._expire(int(batch.time[-1]))
        return Answered(answers, tags % 2**64)

    def _matching(self, id: int, time: int) -> list[int]:
        known = self._subscriptions.get(id)
        if not known:
            return []
        if known[0][1] < time:
            self._subscriptions[id] = known = [each for each in known if each[1] >= time]
        return [sid for low, high, sid in known if low <= time <= high]

    def _expire(self, now_us: int) -> None:
        self._batches += 1
        if self._batches % EXPIRE_BATCHES == 0:
            self._connection.execute("DELETE FROM publications WHERE t_max < %b", (now_us,))

    def file_bytes(self) -> int:
        """See `Engine`."""
        row = self._connection.execute("SELECT pg_database_size(current_database())").fetchone()
        return int(row[0]) if row else 0

    def close(self) -> None:
        """See `Engine`."""
        self._connection.close()
