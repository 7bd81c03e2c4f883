"""DualDB in a coordinator: publications and subscriptions of an ID side by side, as an index of the group log.

    key                                         value
    topic id u64, "S", offset of the cut u64    time_min_us i64, time_max_us i64, broker: sealed
    0xFFFF, run u32, segment u32                entries of publications, in sorted runs: see `index.runs`

An entry is one topic's publications in one block: first offset u64, records u32, time_us i64 (T_P), expires_us u64
(T_max of the last to expire, 0 = never). Payloads stay in the log: an entry is their position.

Nothing is read to be written (the paper's lazy lists): entries go to a memory table, which answers meanwhile, and are
*written behind* in sorted runs with LMDB's append, a segment a step; runs are merged in the background, and what
retention has passed by is left out on the way. A memory table that is full is frozen and a new one begun; while the
frozen one is written both answer, and an entry may be found twice: `lookup` names it once. Freezing itself does nothing
(bringing 65,536 entries into order at once took 5 to 16 ms): each step orders what it writes. Once all of it is on disk
each group's watermark `indexed_below` moves, in the same transaction: after a crash everything beyond the watermark is
entered again from the log. Subscriptions are few (one a broker and filter) and written at once.

A topic's times ascend with its offsets, so the entries of a span of time are found by offset: the caller turns times
into offsets through the log.

Before: one value a topic and flush under (topic id, "P", first offset), inserted topic by topic. A flush of 65,536
entries of as many topics wrote a page each, 256 MiB; as a run it writes 3 MiB.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lexicast.cluster.records import Subscribed

from ..dualdb.rows import NEVER_US, RowColumns, empty
from ..environment.options import StoreOptions
from ..file.damage import Ledger
from ..file.sealing import DamageError, seal, unpacked, unpacked_head, unseal
from ..file.table import AnyTransaction, Database, WriteTransaction
from .runs import IndexRuns, OldestUs, StillWanted

SUBSCRIPTION: Final = b"S"

_ENTRY = struct.Struct("<QIqQ")
_SUBSCRIPTION = struct.Struct("<qq")
_KEY = struct.Struct(">QcQ")

# Topics whose ids one step takes from a frozen table, before they are ordered: about 1 ms.
_TOPICS_A_STEP: Final = 8_192

_ENTRIES = np.dtype([("offset", "<u8"), ("records", "<u4"), ("time_us", "<i8"), ("expires_us", "<u8")])


class IndexEntry(NamedTuple):
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


class FrozenTable(NamedTuple):
    """A full memory table on its way to disk, and how far the log was when it was frozen."""

    runs: dict[int, bytearray]
    below: dict[int, int]


class LogIndex:
    """The index of one store. Written by the writer thread; looked up by any."""

    def __init__(
        self,
        database: Database,
        options: StoreOptions,
        still_wanted: StillWanted,
        oldest_us: OldestUs,
        ledger: Ledger,
    ) -> None:
        self._database = database
        self._ledger = ledger
        # Damage was met on disk: nothing is answered from there until all of it has been made anew.
        self.broken = False
        # All that the log holds has been entered, on disk or in memory.
        self.complete = False
        self._runs = IndexRuns(database, options.index_step_topics, still_wanted, oldest_us)
        self._segment_rows = options.index_step_topics
        self._entries_max = options.index_entries_max
        self._log_bytes_max = options.index_log_bytes_max
        self._active: dict[int, bytearray] = {}
        self._frozen: FrozenTable | None = None
        self.entries = 0
        self._log_bytes = 0

    # memory table

    def add(self, topic_id: int, entry: IndexEntry) -> None:
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
        """The memory table is at twice its limit: see `steps_owed`."""
        return self.entries >= 2 * self._entries_max

    def steps_owed(self, topics: int) -> int:
        """Steps of writing behind that a commit with so many entries takes itself, because the table is overdue.

        Twice what it brings: so that a table fills to four times its limit at most, and no commit waits for all of it.
        """
        return 1 + 2 * topics // self._segment_rows if self.overdue else 0

    def freeze(self, below: dict[int, int]) -> None:
        """Begin to write the memory table; `below`: a watermark a group, all below it entered here or before."""
        runs = self._active
        # In this order: a reader that looks at the active table, then at the frozen one, misses nothing.
        self._frozen = FrozenTable(runs, below)
        self._active = {}
        self._runs.begin_flush(segments_of(runs, self._segment_rows))
        self.entries = 0
        self._log_bytes = 0

    def write_step(self, txn: WriteTransaction, now_us: int) -> dict[int, int] | None:
        """Write the next segment of the frozen table; the watermarks to store when it was the last, else None.

        Raises DamageError, as `merge_step`: then give up the transaction and call `damaged`.
        """
        if self._frozen is None or not self._runs.flush_step(txn):
            return None
        self._runs.choose(txn, now_us)
        return self._frozen.below

    def written(self) -> None:
        """The last step is durable: the run answers, the frozen table is let go of."""
        self._frozen = None

    def step_done(self) -> None:
        """The last step of writing or merging is durable."""
        self._runs.step_done()

    def step_failed(self) -> None:
        """The last step's transaction came to nothing: memory goes back, what was under way begins again."""
        self._runs.roll_back()
        if self._frozen is not None:
            self._runs.begin_flush(segments_of(self._frozen.runs, self._segment_rows))

    @property
    def merging(self) -> bool:
        """Runs are being merged, or deleted after a merge."""
        return self._runs.merging

    def merge_step(self, txn: WriteTransaction, now_us: int) -> None:
        """One bounded step of merging; what has expired by `now_us` is left out."""
        self._runs.merge_step(txn, now_us)

    def open(self, txn: AnyTransaction) -> bool:
        """Take up what is on disk; False when it has to be made anew: there is none, or a damaged one."""
        try:
            return self._runs.open(txn)
        except DamageError as error:
            self.damaged(error)
            return False

    def damaged(self, error: DamageError) -> None:
        """What is on disk cannot be believed."""
        self._ledger.note(error)
        self.broken = True

    # look-up

    def recent(self, topic_id: int) -> list[IndexEntry]:
        """Entries still in memory. Look here before opening the snapshot for `stored`."""
        active = bytes(self._active.get(topic_id, b""))
        frozen = self._frozen
        behind = bytes(frozen.runs.get(topic_id, b"")) if frozen is not None else b""
        return list(entries_of(behind + active))

    def lookup(
        self, txn: AnyTransaction, recent: list[IndexEntry], topic_id: int, first: int, last: int, records_max: int
    ) -> list[IndexEntry] | None:
        """Entries that begin at or before `last` and may hold offsets from `first` on, each once, in offset order.

        None: the index cannot tell (it is damaged, or being made anew).

        The last one before `first` is among them: its block may reach further. Beyond it they hold at least
        `records_max` records, where there are so many.
        """
        if self.broken or not self.complete:
            return None
        found = {entry.offset: entry for entry in recent if entry.offset <= last}
        try:
            for rows in self._runs.rows(txn, topic_id, first, last, records_max):
                found.update({entry.offset: entry for entry in _entries_in(rows)})
        except DamageError as error:
            self.damaged(error)
            return None
        offsets = sorted(found)
        start = max(0, sum([offset < first for offset in offsets]) - 1)
        return [found[offset] for offset in offsets[start : start + records_max + 1]]

    # subscriptions

    def put_subscription(self, txn: WriteTransaction, topic_id: int, offset: int, record: Subscribed) -> None:
        """Enter a subscription beside the publications of its ID."""
        key = _KEY.pack(topic_id, SUBSCRIPTION, offset)
        data = _SUBSCRIPTION.pack(record.time_min_us, record.time_max_us) + record.broker.encode()
        txn.put(key, seal("dual", key, data), db=self._database)

    def delete_subscription(self, txn: WriteTransaction, topic_id: int, offset: int) -> None:
        """Take a subscription out."""
        txn.delete(_KEY.pack(topic_id, SUBSCRIPTION, offset), db=self._database)

    def subscriptions(self, txn: AnyTransaction, topic_id: int) -> Iterator[IndexedSubscription]:
        """The subscriptions of an ID, by cut."""
        prefix = _prefix(topic_id, SUBSCRIPTION)
        with txn.cursor(self._database) as cursor:
            there = cursor.set_range(prefix)
            while there and bytes(cursor.key()).startswith(prefix):
                try:
                    found = _subscription(bytes(cursor.key()), cursor.value())
                except DamageError as error:
                    self.damaged(error)
                else:
                    yield found
                there = cursor.next()

    # retention

    def bare(self, txn: AnyTransaction, topic_ids: Sequence[int], lasts: Sequence[int]) -> list[bool]:
        """Of each topic: nothing at all stands under its ID beyond that offset, no publication and no subscription."""
        if self.broken or not self.complete:
            return [False] * len(topic_ids)
        free = [not self._in_memory(i) and next(self.subscriptions(txn, i), None) is None for i in topic_ids]
        asked = [(topic_id, last) for topic_id, last, left in zip(topic_ids, lasts, free, strict=True) if left]
        try:
            found = iter(self._runs.bare(txn, [i for i, _ in asked], [last for _, last in asked]))
        except DamageError as error:
            self.damaged(error)
            return [False] * len(topic_ids)
        return [left and next(found) for left in free]

    def _in_memory(self, topic_id: int) -> bool:
        return topic_id in self._active or (self._frozen is not None and topic_id in self._frozen.runs)

    def clear(self, txn: WriteTransaction) -> None:
        """Delete everything; the caller enters it again: subscriptions first, then `begin`, then publications."""
        txn.drop(self._database, delete=False)
        self._runs.reset()

    def begin(self, txn: WriteTransaction) -> None:
        """All subscriptions are there again. Before this, an opening finds no index, and makes it anew."""
        self._runs.create(txn)

    def restart(self) -> None:
        """Forget the memory table."""
        self._active, self._frozen, self.entries, self._log_bytes = {}, None, 0, 0


def _subscription(key: bytes, value: bytes | memoryview) -> IndexedSubscription:
    data = unseal("dual", key, value)
    time_min_us, time_max_us = unpacked_head(_SUBSCRIPTION, data, "dual")
    broker = data[_SUBSCRIPTION.size :].decode(errors="replace")
    return IndexedSubscription(unpacked(_KEY, key, "dual")[2], time_min_us, time_max_us, broker)


def _prefix(topic_id: int, kind: bytes) -> bytes:
    return topic_id.to_bytes(8, "big") + kind


def parse_key(key: bytes) -> tuple[int, int]:
    """(topic id, offset of the cut) of a subscription's key. Raises ValueError for another one."""
    if len(key) != _KEY.size or key[8:9] != SUBSCRIPTION:
        raise ValueError("this is no key of the index")
    topic_id, _, offset = _KEY.unpack(key)
    return topic_id, offset


def entries_of(run: bytes) -> Iterator[IndexEntry]:
    """The entries of a topic in the memory table."""
    return (IndexEntry(*fields) for fields in _ENTRY.iter_unpack(run))


def segments_of(runs: dict[int, bytearray], segment_rows: int) -> Iterator[RowColumns]:
    """A frozen memory table by topic and offset, at most `segment_rows` rows a step; at first steps without any.

    The work of a step is bounded by `segment_rows` and _TOPICS_A_STEP, whatever the table holds.
    """
    topics: list[NDArray[np.uint64]] = []
    ids = iter(runs)
    while len(found := np.fromiter(islice(ids, _TOPICS_A_STEP), np.uint64)):
        topics.append(found)
        yield empty()
    own: list[int] = []
    count = 0
    for topic in _one_by_one(topics):
        size = len(runs[topic]) // _ENTRY.size
        if own and count + size > segment_rows:
            yield from _slices(_rows_of(runs, own), segment_rows)
            own, count = [], 0
        own.append(topic)
        count += size
    if own:
        yield from _slices(_rows_of(runs, own), segment_rows)


def _one_by_one(topics: list[NDArray[np.uint64]]) -> Iterator[int]:
    """The ids in order."""
    if not topics:
        return
    ordered = np.sort(np.concatenate(topics))
    for at in range(0, len(ordered), _TOPICS_A_STEP):
        yield from ordered[at : at + _TOPICS_A_STEP].tolist()


def _slices(rows: RowColumns, size: int) -> Iterator[RowColumns]:
    """`rows` in pieces; more than one only where a single topic has more than `size`."""
    return (rows.slice(at, at + size) for at in range(0, rows.size, size))


def _rows_of(runs: dict[int, bytearray], topics: Sequence[int]) -> RowColumns:
    """These topics of a memory table as rows."""
    table = np.frombuffer(b"".join([runs[topic] for topic in topics]), _ENTRIES)
    counts = [len(runs[topic]) // _ENTRY.size for topic in topics]
    expires = table["expires_us"]
    return RowColumns(
        np.repeat(np.array(topics, np.uint64), counts),
        table["offset"].astype(np.uint64),
        table["time_us"].astype(np.int64),
        np.where(expires == 0, np.uint64(NEVER_US), expires).astype(np.int64),
        table["records"].astype(np.uint64),
    )


def _entries_in(rows: RowColumns) -> Iterator[IndexEntry]:
    columns = (rows.seq, rows.tag, rows.low, rows.high)
    for offset, records, time_us, expires_us in zip(*[column.tolist() for column in columns], strict=True):
        yield IndexEntry(offset, records, time_us, 0 if expires_us == NEVER_US else expires_us)


def entries_in(rows: RowColumns) -> Iterator[tuple[int, IndexEntry]]:
    """The entries of a segment, each with its topic's id."""
    return zip(rows.key.tolist(), _entries_in(rows), strict=True)
