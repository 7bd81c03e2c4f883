"""RepQueries (section 4.2): no subscriptions are stored; each is a query of the past, and INTERVALS later ones.

A database of publications alone. A subscription asks for [T_min, T_S] at once, then after each INTERVALS-th of its way
to T_max for what came since: (T_S, t_1], (t_1, t_2], ... (t_9, T_max]. (The paper prints [T_S, t_1] twice, and a
closing [t_10, T_max] that holds nothing; its client drops what neighbouring intervals share, here they share nothing.)

"Periodic queries are issued from client application": each is a query by itself, of a tree that is made for it. Keys
are (ID, T_P, position), so a query is one seek and a walk over its answers; the publications of a batch are inserted in
order of keys in one durable transaction, their payloads are one value beside them, and what has expired is deleted in
the same transaction. A calendar of a millisecond's resolution knows which queries are due.

`repqueries_joined` gathers the queries of all clients instead. Rejected: the same lists on DualDB's own engine, a query
at a time: its look-ups are made for batches and cost 100 us and more for a single one, this one's 3.
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from pathlib import Path
from typing import Final

import lmdb
import numpy as np

from lexicast.storage.dualdb.batches import PUBLISH, OperationBatch
from lexicast.storage.environment.options import GIB
from lexicast.storage.file.disk import map_bytes_possible

from .compared_engine import Answered

INTERVALS: Final = 10

_KEY = struct.Struct(">QQQ")
_ROW = struct.Struct("<qQ")
_MS: Final = 1_000


class RepQueries:
    """See the module's docstring. Publish and subscribe only."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        map_bytes = map_bytes_possible(directory, 16 * GIB)
        self._lmdb = lmdb.open(str(directory), map_size=map_bytes, max_dbs=2, readahead=False)
        self._lists = self._lmdb.open_db(b"lists")
        self._payloads = self._lmdb.open_db(b"payloads")
        self._next = 0
        self._now_us = 0
        # (T_max of the last, first position, keys) of each batch's publications: what to delete, and when.
        self._stored: deque[tuple[int, int, list[bytes]]] = deque()
        # millisecond -> (ID, asked up to, T_S, T_max, interval) of each query due in it.
        self._calendar: dict[int, list[tuple[int, int, int, int, int]]] = defaultdict(list)
        self._calendar_ms = 0

    def apply(self, batch: OperationBatch) -> Answered:
        """See `Engine`."""
        self._now_us = max(self._now_us, int(batch.time.max()))
        if not self._calendar_ms:
            self._calendar_ms = int(batch.time.min()) // _MS
        publishing = batch.kind == PUBLISH
        self._store(batch, np.flatnonzero(publishing))
        asking = np.flatnonzero(~publishing)
        columns = (batch.id[asking], batch.low[asking], batch.time[asking], batch.high[asking])
        with self._lmdb.begin() as txn, txn.cursor(self._lists) as cursor:
            found = self._due(cursor)
            for id, low, start, end in zip(*[column.tolist() for column in columns], strict=True):
                found.append(self._query(cursor, id, low, start))
                self._plan(id, start, start, end, 1)
        return Answered(sum([each.answers for each in found]), sum([each.tags for each in found]) % 2**64)

    def drain(self, now_us: int) -> Answered:
        """Ask all that is due by `now_us`: after the last batch, for comparing totals."""
        self._now_us = max(self._now_us, now_us)
        with self._lmdb.begin() as txn, txn.cursor(self._lists) as cursor:
            found = self._due(cursor)
        return Answered(sum([each.answers for each in found]), sum([each.tags for each in found]) % 2**64)

    def _store(self, batch: OperationBatch, places: np.ndarray[tuple[int], np.dtype[np.intp]]) -> None:
        ids, times, expires, pids = [c[places].tolist() for c in (batch.id, batch.time, batch.high, batch.tag)]
        positions = range(self._next, self._next + len(ids))
        rows = [
            (_KEY.pack(id, time, position), _ROW.pack(expire, pid))
            for id, time, position, expire, pid in zip(ids, times, positions, expires, pids, strict=True)
        ]
        rows.sort()
        with self._lmdb.begin(write=True) as txn, txn.cursor(self._lists) as cursor:
            if rows:
                cursor.putmulti(rows)
                txn.put(self._next.to_bytes(8, "big"), b"".join(batch.payloads), db=self._payloads, append=True)
            while self._stored and self._stored[0][0] < self._now_us:
                _, first, keys = self._stored.popleft()
                for key in keys:
                    txn.delete(key, db=self._lists)
                txn.delete(first.to_bytes(8, "big"), db=self._payloads)
        if rows:
            self._stored.append((max(expires), self._next, [key for key, _ in rows]))
        self._next += len(ids)

    def _plan(self, id: int, done: int, start: int, end: int, interval: int) -> None:
        due = start + (end - start) * interval // INTERVALS
        self._calendar[-(-due // _MS)].append((id, done, start, end, interval))

    def _due(self, cursor: lmdb.Cursor[bytes]) -> list[Answered]:
        found = []
        while self._calendar and self._calendar_ms <= self._now_us // _MS:
            for id, done, start, end, interval in self._calendar.pop(self._calendar_ms, ()):
                until = start + (end - start) * interval // INTERVALS
                found.append(self._query(cursor, id, done + 1, until))
                if interval < INTERVALS:
                    self._plan(id, until, start, end, interval + 1)
            self._calendar_ms += 1
        return found

    def _query(self, cursor: lmdb.Cursor[bytes], id: int, low: int, high: int) -> Answered:
        """GetData(ID, low, high): the valid publications of an interval."""
        answers = tags = 0
        end = _KEY.pack(id, high, 2**64 - 1)
        there = cursor.set_range(_KEY.pack(id, low, 0))
        while there and cursor.key() <= end:
            expires, pid = _ROW.unpack(cursor.value())
            if expires >= self._now_us:
                answers += 1
                tags += pid
            there = cursor.next()
        return Answered(answers, tags)

    def file_bytes(self) -> int:
        """See `Engine`."""
        return int((self._lmdb.info()["last_pgno"] + 1) * self._lmdb.stat()["psize"])

    def close(self) -> None:
        """See `Engine`."""
        self._lmdb.close()
