"""DualDB, first form: publications and subscriptions of an ID side by side in one ordered key space.

    key                                         value
    topic id u64, "P", first offset u64         a run: entries of that topic, in offset order, sealed
    topic id u64, "S", offset of the cut u64    time_min_us i64, time_max_us i64, broker: sealed

An entry is one topic's publications in one block: first offset u64, records u32, time_us i64 (T_P), expires_us u64
(T_max of the last to expire, 0 = never). Payloads stay in the log: an entry is their position.

Nothing is read to be written (the paper's lazy lists): entries go to a memory table, which answers meanwhile, and are
*written behind* in sorted runs, topic by topic, in bounded steps. A memory table that is full is frozen and a new one
begun; while the frozen one is written both answer, and the two may name an entry twice: `lookup` names it once. Once
all of it is on disk each group's watermark `indexed_below` moves, in the same transaction: after a crash everything
beyond the watermark is entered again from the log. Subscriptions are few (one a broker and filter) and written at once.

A topic's times ascend with its offsets, so the entries of a span of time are found by offset: the caller turns times
into offsets through the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from lexicast.cluster.records import Subscribed

from .format import seal, unseal
from .table import AnyTransaction, Database, WriteTransaction

PUBLICATION: Final = b"P"
SUBSCRIPTION: Final = b"S"

_ENTRY = struct.Struct("<QIqQ")
_SUBSCRIPTION = struct.Struct("<qq")
_KEY = struct.Struct(">QcQ")

# 144 entries of 28 bytes and their checksum fill one 4 KiB page with LMDB's page header.
RUN_ENTRIES: Final = 144
_RUN_BYTES: Final = RUN_ENTRIES * _ENTRY.size


class Entry(NamedTuple):
    """The publications of one topic in one block."""

    offset: int
    records: int
    time_us: int
    expires_us: int


class IndexedSubscription(NamedTuple):
    """A subscription beside the publications of its ID: [T_min, T_max] and who asks."""

    offset: int
    time_min_us: int
    time_max_us: int
    broker: str


class Frozen(NamedTuple):
    """A full memory table on its way to disk, and how far the log was when it was frozen."""

    runs: dict[int, bytearray]
    pending: list[int]
    below: dict[int, int]


class Index:
    """The index of one store. Written by the writer thread; looked up by any."""

    def __init__(self, database: Database, entries_max: int, log_bytes_max: int, step_topics: int) -> None:
        self._database = database
        self._entries_max = entries_max
        self._log_bytes_max = log_bytes_max
        self._step_topics = step_topics
        self._active: dict[int, bytearray] = {}
        self._frozen: Frozen | None = None
        self.entries = 0
        self._log_bytes = 0

    # memory table

    def add(self, topic_id: int, entry: Entry) -> None:
        """Enter publications that are durable in the log."""
        run = self._active.get(topic_id)
        if run is None:
            self._active[topic_id] = bytearray(_ENTRY.pack(*entry))
        else:
            run += _ENTRY.pack(*entry)
        self.entries += 1

    def logged(self, size_bytes: int) -> None:
        """Count log bytes beyond the watermark."""
        self._log_bytes += size_bytes

    @property
    def writing(self) -> bool:
        """A frozen memory table is on its way to disk."""
        return self._frozen is not None

    @property
    def due(self) -> bool:
        """There is something to write behind."""
        return self.writing or self.entries >= self._entries_max or self._log_bytes >= self._log_bytes_max

    @property
    def overdue(self) -> bool:
        """The memory table is at twice its limit: commits write behind themselves until it is not."""
        return self.entries >= 2 * self._entries_max

    def freeze(self, below: dict[int, int]) -> None:
        """Begin to write the memory table; `below`: a watermark a group, all below it entered here or before."""
        runs = self._active
        # In this order: a reader that looks at the active table, then at the frozen one, misses nothing.
        self._frozen = Frozen(runs, sorted(runs, reverse=True), below)
        self._active = {}
        self.entries = 0
        self._log_bytes = 0

    def write_step(self, txn: WriteTransaction) -> tuple[list[int], dict[int, int]]:
        """Write the next topics of the frozen table: (the topics, watermarks to store if these were the last)."""
        frozen = self._frozen
        if frozen is None:
            return [], {}
        topic_ids = frozen.pending[-self._step_topics :]
        for topic_id in reversed(topic_ids):
            self._write_runs(txn, topic_id, bytes(frozen.runs[topic_id]))
        last = len(topic_ids) == len(frozen.pending)
        return topic_ids, frozen.below if last else {}

    def written(self, topic_ids: list[int]) -> None:
        """The step is durable: the frozen table lets go of these topics, at the end of itself."""
        if self._frozen is not None:
            del self._frozen.pending[len(self._frozen.pending) - len(topic_ids) :]
            if not self._frozen.pending:
                self._frozen = None

    def _write_runs(self, txn: WriteTransaction, topic_id: int, entries: bytes) -> None:
        for start in range(0, len(entries), _RUN_BYTES):
            run = entries[start : start + _RUN_BYTES]
            key = _KEY.pack(topic_id, PUBLICATION, _ENTRY.unpack_from(run)[0])
            txn.put(key, seal(key, run), db=self._database)

    # look-up

    def recent(self, topic_id: int) -> list[Entry]:
        """Entries still in memory. Look here before opening the snapshot for `stored`."""
        active = bytes(self._active.get(topic_id, b""))
        frozen = self._frozen
        behind = bytes(frozen.runs.get(topic_id, b"")) if frozen is not None else b""
        return list(entries_of(behind + active))

    def stored(self, txn: AnyTransaction, topic_id: int, first: int) -> Iterator[Entry]:
        """Entries on disk, in offset order, from the run that may hold offset `first` on."""
        prefix = _prefix(topic_id, PUBLICATION)
        with txn.cursor(self._database) as cursor:
            there = cursor.set_range(_KEY.pack(topic_id, PUBLICATION, first))
            # The run before the key holds `first` when it began earlier.
            if not (cursor.prev() if there else cursor.last()) or not bytes(cursor.key()).startswith(prefix):
                there = cursor.set_range(prefix)
            else:
                there = True
            while there and bytes(cursor.key()).startswith(prefix):
                key = bytes(cursor.key())
                yield from entries_of(unseal("dual", key, cursor.value()))
                there = cursor.next()

    def lookup(
        self, txn: AnyTransaction, recent: list[Entry], topic_id: int, first: int, last: int, records_max: int
    ) -> list[Entry]:
        """Entries that begin at or before `last` and may hold offsets from `first` on, each once, in offset order.

        Stops once they hold `records_max` records beyond the first entry (which may lie before `first`).
        """
        found: dict[int, Entry] = {}
        records = 0
        for entry in self.stored(txn, topic_id, first):
            if entry.offset > last or records >= records_max:
                break
            if entry.offset + entry.records > first or not found:
                found[entry.offset] = entry
                records += entry.records if entry.offset >= first else 0
        else:
            found.update({entry.offset: entry for entry in recent if entry.offset <= last})
        return [found[offset] for offset in sorted(found)]

    # subscriptions

    def put_subscription(self, txn: WriteTransaction, topic_id: int, offset: int, record: Subscribed) -> None:
        """Enter a subscription beside the publications of its ID."""
        key = _KEY.pack(topic_id, SUBSCRIPTION, offset)
        data = _SUBSCRIPTION.pack(record.time_min_us, record.time_max_us) + record.broker.encode()
        txn.put(key, seal(key, data), db=self._database)

    def delete_subscription(self, txn: WriteTransaction, topic_id: int, offset: int) -> None:
        """Take a subscription out."""
        txn.delete(_KEY.pack(topic_id, SUBSCRIPTION, offset), db=self._database)

    def subscriptions(self, txn: AnyTransaction, topic_id: int) -> Iterator[IndexedSubscription]:
        """The subscriptions of an ID, by cut."""
        prefix = _prefix(topic_id, SUBSCRIPTION)
        with txn.cursor(self._database) as cursor:
            there = cursor.set_range(prefix)
            while there and bytes(cursor.key()).startswith(prefix):
                key = bytes(cursor.key())
                data = unseal("dual", key, cursor.value())
                time_min_us, time_max_us = _SUBSCRIPTION.unpack_from(data)
                broker = data[_SUBSCRIPTION.size :].decode()
                yield IndexedSubscription(_KEY.unpack(key)[2], time_min_us, time_max_us, broker)
                there = cursor.next()

    # retention

    def forget_upto(self, txn: WriteTransaction, topic_id: int, last: int) -> bool:
        """Delete runs of a topic that end at or before offset `last`; True when nothing at all stands under its ID."""
        prefix = _prefix(topic_id, PUBLICATION)
        with txn.cursor(self._database) as cursor:
            there = cursor.set_range(prefix)
            while there and bytes(cursor.key()).startswith(prefix):
                run = cursor.value()
                if _ENTRY.unpack_from(run, len(run) - _ENTRY.size)[0] > last:
                    return False
                there = cursor.delete() and bool(cursor.key())
            empty = not (there and bytes(cursor.key())[:8] == prefix[:8])
        return empty and not self._in_memory(topic_id)

    def stale(self, txn: AnyTransaction, topic_id: int, first: int) -> bool:
        """`forget_upto(first - 1)` would delete something, or find the topic bare."""
        with txn.cursor(self._database) as cursor:
            there = cursor.set_range(_prefix(topic_id, PUBLICATION))
            if not (there and bytes(cursor.key())[:8] == topic_id.to_bytes(8, "big")):
                return not self._in_memory(topic_id)
            if not bytes(cursor.key()).startswith(_prefix(topic_id, PUBLICATION)):
                return False
            run = cursor.value()
            return bool(_ENTRY.unpack_from(run, len(run) - _ENTRY.size)[0] < first)

    def _in_memory(self, topic_id: int) -> bool:
        return topic_id in self._active or (self._frozen is not None and topic_id in self._frozen.runs)

    def clear(self, txn: WriteTransaction) -> None:
        """Delete everything; the caller enters it again from the log."""
        txn.drop(self._database, delete=False)

    def restart(self) -> None:
        """Forget the memory table."""
        self._active, self._frozen, self.entries, self._log_bytes = {}, None, 0, 0


def _prefix(topic_id: int, kind: bytes) -> bytes:
    return topic_id.to_bytes(8, "big") + kind


def parse_key(key: bytes) -> tuple[int, bytes, int]:
    """(topic id, kind, first offset) of a key of the index."""
    topic_id, kind, offset = _KEY.unpack(key)
    return topic_id, kind, offset


def entries_of(run: bytes) -> Iterator[Entry]:
    """The entries of a stored run."""
    return (Entry(*fields) for fields in _ENTRY.iter_unpack(run))
