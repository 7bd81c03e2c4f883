"""The memory table of the index: entries that are durable in the log and not yet in a run, by topic.

One table takes what is added. When it is full it is *frozen* and another one begun; while the frozen one is written, a
segment a step, both answer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..dualdb.rows import NEVER_US, RowColumns, empty
from ..environment.options import StoreOptions

_ENTRY = struct.Struct("<QIqQ")
# The fields of an IndexEntry as the table holds them. (Objects for them cost a commit twice as much as all of this.)
packed_entry: Final = _ENTRY.pack

# Topics whose ids one step takes from a frozen table, before they are ordered: about 1 ms.
_TOPICS_A_STEP: Final = 8_192

_ENTRIES = np.dtype([("offset", "<u8"), ("records", "<u4"), ("time_us", "<i8"), ("expires_us", "<u8")])


class IndexEntry(NamedTuple):
    """The publications of one topic in one block."""

    offset: int
    records: int
    time_us: int
    expires_us: int


class FrozenTable(NamedTuple):
    """A full memory table on its way to disk, and how far the log was when it was frozen."""

    runs: dict[int, bytearray]
    below: dict[int, int]


class IndexMemory:
    """See the module's docstring. Changed by the writer thread; looked at by any."""

    def __init__(self, options: StoreOptions) -> None:
        self._segment_rows = options.index_step_topics
        self._entries_max = options.index_entries_max
        self._log_bytes_max = options.index_log_bytes_max
        self._active: dict[int, bytearray] = {}
        self.frozen: FrozenTable | None = None
        self.entries = 0
        self._log_bytes = 0

    def add(self, entries: Sequence[tuple[int, bytes]]) -> None:
        """Enter publications that are durable in the log, by topic id, packed."""
        active = self._active
        for topic_id, packed in entries:
            run = active.get(topic_id)
            if run is None:
                active[topic_id] = bytearray(packed)
            else:
                run += packed
        self.entries += len(entries)

    def logged(self, size_bytes: int) -> None:
        """Count log bytes beyond the watermark."""
        self._log_bytes += size_bytes

    @property
    def due(self) -> bool:
        """There is something to write."""
        return self.frozen is not None or self.entries >= self._entries_max or self._log_bytes >= self._log_bytes_max

    @property
    def overdue(self) -> bool:
        """The table is at twice its limit: see `steps_owed`."""
        return self.entries >= 2 * self._entries_max

    def steps_owed(self, topics: int) -> int:
        """Steps of writing that a commit with so many entries takes itself, because the table is overdue.

        Twice what it brings: so that a table fills to four times its limit at most, and no commit waits for all of it.
        """
        return 1 + 2 * topics // self._segment_rows if self.overdue else 0

    def freeze(self, below: dict[int, int]) -> None:
        """Begin another table; `below`: a watermark a group, all below it entered in this one or before."""
        # In this order: a reader that looks at the active table, then at the frozen one, misses nothing.
        self.frozen = FrozenTable(self._active, below)
        self._active = {}
        self.entries = 0
        self._log_bytes = 0

    def segments(self) -> Iterator[RowColumns]:
        """The frozen table in order: see `segments_of`."""
        return iter(()) if self.frozen is None else segments_of(self.frozen.runs, self._segment_rows)

    def written(self) -> None:
        """The frozen table is durable: a run answers, it is let go of."""
        self.frozen = None

    def recent(self, topic_ids: Sequence[int]) -> RowColumns:
        """The entries of topics. Look here before opening the snapshot for `LogIndex.entries`."""
        active = self._active
        runs = {i: bytes(run) for i in topic_ids if (run := active.get(i)) is not None}
        frozen = self.frozen
        if frozen is not None and frozen.runs is not active:  # it was not frozen in between
            runs |= {i: bytes(run) + runs.get(i, b"") for i in topic_ids if (run := frozen.runs.get(i)) is not None}
        return _rows_of(runs, list(runs))

    def holds(self, topic_id: int) -> bool:
        """There is an entry of a topic."""
        return topic_id in self._active or (self.frozen is not None and topic_id in self.frozen.runs)

    def clear(self) -> None:
        """Forget everything."""
        self._active, self.frozen, self.entries, self._log_bytes = {}, None, 0, 0


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


def _rows_of(runs: Mapping[int, bytes | bytearray], topics: Sequence[int]) -> RowColumns:
    """These topics of a memory table as rows."""
    if not topics:
        return empty()
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
