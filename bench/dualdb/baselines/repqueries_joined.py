"""RepQueries with all queries of a batch asked together, on DualDB's own engine: more than section 4.2 has.

As `repqueries`, but somebody gathers what all clients are due to ask, and publications go to a DualDB that holds
nothing else; so the queries of a batch are one join, sorted by key, like DualDB's own. Queries to come are kept a batch
together in columns. Ten queries and one for each subscription of DualDB's one: where every look-up costs the same and
writing nothing, DualDB would be 33/4 = 8.25 times as fast at 3:1 and 11/4 = 2.75 times at 1:3.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lexicast.storage.dualdb.batches import PUBLISH, SUBSCRIBE, OperationBatch
from lexicast.storage.dualdb.engine import DualDB
from lexicast.storage.dualdb.options import DualOptions
from lexicast.storage.dualdb.rows import I64, U64, Queries, joined_matches, ordered

from .compared_engine import Answered, answered
from .repqueries import INTERVALS
from .two_databases import part

_LATER = np.uint64(2**64 - 1)


class _Cohort:
    """The subscriptions of one batch, and how far each has asked."""

    def __init__(self, key: U64, start: I64, end: I64) -> None:
        self.key = key
        self._start = start
        self._end = end
        self._asked = np.zeros(len(key), np.int64)
        self._done = start
        self._due = self._point(self._asked + 1)

    def _point(self, interval: I64) -> I64:
        return self._start + (self._end - self._start) * interval // INTERVALS

    def due(self, now_us: int) -> Queries | None:
        """The queries due by `now_us`, at most one a subscription; None when there are none."""
        chosen = np.flatnonzero(self._due <= now_us)
        if not len(chosen):
            return None
        until = self._due[chosen]
        found = _queries(self.key[chosen], self._done[chosen] + 1, until, now_us)
        self._done = np.where(self._due <= now_us, self._due, self._done)
        self._asked[chosen] += 1
        self._due = np.where(self._asked < INTERVALS, self._point(self._asked + 1), np.int64(2**63 - 1))
        return found

    @property
    def over(self) -> bool:
        """Nobody will ask again."""
        return bool((self._asked == INTERVALS).all())


def _queries(key: U64, low_min: I64, low_max: I64, now_us: int) -> Queries:
    count = len(key)
    return Queries(
        np.arange(count), key, low_min, low_max, np.full(count, now_us, np.int64), np.full(count, _LATER, np.uint64)
    )


class RepQueriesJoined:
    """See the module's docstring. Publish and subscribe only."""

    def __init__(self, directory: Path, options: DualOptions | None = None) -> None:
        self._db = DualDB.open(directory, options)
        self._cohorts: list[_Cohort] = []
        self._now_us = -(2**63)

    def apply(self, batch: OperationBatch) -> Answered:
        """See `Engine`."""
        self._now_us = max(self._now_us, int(batch.time.max()))
        publishing = batch.kind == PUBLISH
        if publishing.any():
            self._db.append(part(batch, publishing))
        asking = batch.kind == SUBSCRIBE
        key, start = batch.id[asking] << np.uint64(1), batch.time[asking]
        queries = [_queries(key, batch.low[asking], start, self._now_us), *self._due()]
        self._cohorts.append(_Cohort(key, start, batch.high[asking]))
        return self._ask(queries)

    def drain(self, now_us: int) -> Answered:
        """Ask all that is due by `now_us`: after the last batch, for comparing totals."""
        self._now_us = max(self._now_us, now_us)
        return self._ask(self._due())

    def _due(self) -> list[Queries]:
        found = []
        for cohort in self._cohorts:
            while (queries := cohort.due(self._now_us)) is not None:
                found.append(queries)
        self._cohorts = [cohort for cohort in self._cohorts if not cohort.over]
        return found

    def _ask(self, queries: list[Queries]) -> Answered:
        if not queries:
            return answered(joined_matches([]))
        together = Queries._make([np.concatenate(columns) for columns in zip(*queries, strict=True)])
        together = together._replace(op=np.arange(together.size))
        return answered(self._db.answers(ordered(together), 0))

    def file_bytes(self) -> int:
        """See `Engine`."""
        return self._db.environment.file_bytes()

    def close(self) -> None:
        """See `Engine`."""
        self._db.close()
