"""DualDB's lists on LevelDB and on RocksDB: in their key space, with their memtables and compaction.

As section 5 has it, nothing is read to be written: each batch puts one fragment a list, under (ID, kind, first
operation of the batch), and a look-up walks the fragments of its list. A fragment holds the rows of that ID, payloads
are one value a batch, rows hold positions. One synced write batch a batch of operations. What has expired is
deleted by its keys in a later batch's write: neither engine's Python binding has a filter for compaction or a merge
operator (`plyvel` 1.5, `rocksdict` 0.3), and a TTL by the wall clock knows nothing of a simulated one.

Tuned: up to ROWS_MAX operations at once are taken row by row; of more, fragments are made with NumPy and rows filtered
by the same join as DualDB's. Each list is looked up once a batch however many ask for it. Both have a 64 MiB write
buffer, a 256 MiB cache and Bloom filters; RocksDB's prefix extractor is the list's key, with prefix filters in the
memtable and in files, and iterators that end with it (LevelDB has no such thing). Neither compresses, because DualDB
does not.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lexicast.storage.dualdb.asking import queries_of, rows_of
from lexicast.storage.dualdb.batches import PUBLISH, OperationBatch
from lexicast.storage.dualdb.rows import (
    EVER_US,
    Matches,
    Queries,
    RowColumns,
    bounded_queries,
    bounds_of,
    probe,
    sorted_rows,
)

from .compared_engine import Answered, answered

MIB = 1 << 20
CACHE_BYTES = 256 * MIB
BUFFER_BYTES = 64 * MIB
PAYLOAD_PREFIX = b"\xff"
ROW = np.dtype([("seq", "<u8"), ("low", "<i8"), ("high", "<i8"), ("tag", "<u8")])
_ROW = struct.Struct("<QqqQ")
# Up to so many operations at once are taken row by row: NumPy's calls cost more than it saves.
ROWS_MAX = 64


class KeyValue(Protocol):
    """What both engines have."""

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        """All of it in one synced write."""
        ...

    def fragments(self, prefixes: list[bytes]) -> tuple[list[bytes], list[int]]:
        """The values under each prefix (sorted), one list after the other, and how many rows each prefix has."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


class LevelDB:
    """LevelDB through `plyvel`."""

    def __init__(self, directory: Path) -> None:
        import plyvel

        self._db: Any = plyvel.DB(
            str(directory),
            create_if_missing=True,
            write_buffer_size=BUFFER_BYTES,
            lru_cache_size=CACHE_BYTES,
            bloom_filter_bits=10,
            compression=None,
            max_open_files=1_000,
        )

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        """See `KeyValue`."""
        with self._db.write_batch(sync=True) as batch:
            for key, value in puts:
                batch.put(key, value)
            for key in deletes:
                batch.delete(key)

    def fragments(self, prefixes: list[bytes]) -> tuple[list[bytes], list[int]]:
        """See `KeyValue`."""
        found: list[bytes] = []
        counts = []
        with self._db.raw_iterator() as iterator:
            for prefix in prefixes:
                size = 0
                iterator.seek(prefix)
                while iterator.valid():
                    key, value = iterator.item()
                    if not key.startswith(prefix):
                        break
                    found.append(value)
                    size += len(value)
                    iterator.next()
                counts.append(size // ROW.itemsize)
        return found, counts

    def close(self) -> None:
        """See `KeyValue`."""
        self._db.close()


class RocksDB:
    """RocksDB through `rocksdict`."""

    def __init__(self, directory: Path) -> None:
        import rocksdict

        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(BUFFER_BYTES)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        table = rocksdict.BlockBasedOptions()
        table.set_block_cache(rocksdict.Cache(CACHE_BYTES))
        table.set_bloom_filter(10, False)
        options.set_block_based_table_factory(table)
        # A look-up is of one list: files and memtables without that prefix are passed over.
        options.set_prefix_extractor(rocksdict.SliceTransform.create_fixed_prefix(8))
        options.set_memtable_prefix_bloom_ratio(0.1)
        self._read_options = rocksdict.ReadOptions()
        self._read_options.set_prefix_same_as_start(True)
        self._rocksdict: Any = rocksdict
        self._db: Any = rocksdict.Rdict(str(directory), options)
        self._write_options = rocksdict.WriteOptions()
        self._write_options.sync = True

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        """See `KeyValue`."""
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        for key, value in puts:
            batch.put(key, value)
        for key in deletes:
            batch.delete(key)
        self._db.write(batch, self._write_options)

    def fragments(self, prefixes: list[bytes]) -> tuple[list[bytes], list[int]]:
        """See `KeyValue`."""
        found: list[bytes] = []
        counts = []
        iterator = self._db.iter(self._read_options)
        for prefix in prefixes:
            size = 0
            iterator.seek(prefix)
            while iterator.valid():
                value = iterator.value()
                found.append(value)
                size += len(value)
                iterator.next()
            counts.append(size // ROW.itemsize)
        return found, counts

    def close(self) -> None:
        """See `KeyValue`."""
        self._db.close()


class ListsOn:
    """DualDB's lists on a key-value store. Publish and subscribe only."""

    def __init__(self, store: KeyValue, directory: Path) -> None:
        self._store = store
        self._directory = directory
        self._next = 0
        self._now_us = -(2**63)
        # (when the last has expired, keys) of each batch's publications, of its subscriptions.
        self._stored: list[deque[tuple[int, list[bytes]]]] = [deque(), deque()]

    def apply(self, batch: OperationBatch) -> Answered:
        """See `Engine`."""
        return self._by_rows(batch) if batch.size <= ROWS_MAX else self._by_columns(batch)

    def _by_rows(self, batch: OperationBatch) -> Answered:
        first, now_us = self._next, self._now_us
        lists: dict[bytes, list[bytes]] = {}
        asked: list[tuple[bytes, int, int, int, int]] = []
        expires = [EVER_US, EVER_US]
        columns = (batch.kind, batch.id, batch.time, batch.low, batch.high, batch.tag)
        for seq, (kind, id, time, low, high, tag) in enumerate(zip(*[c.tolist() for c in columns], strict=True), first):
            now_us = max(now_us, time)
            own = int(kind != PUBLISH)
            key = (id << 1 | own).to_bytes(8, "big")
            lists.setdefault(key, []).append(_ROW.pack(seq, time if kind == PUBLISH else low, high, tag))
            expires[own] = max(expires[own], high)
            # The other list of the ID: T_min <= T_P of subscriptions, T_min <= T_P <= T_max of publications.
            other = (id << 1 | 1 - own).to_bytes(8, "big")
            asked.append((other, seq, EVER_US if kind == PUBLISH else low, time if kind == PUBLISH else high, now_us))
        suffix = first.to_bytes(8, "big")
        puts = [(key + suffix, b"".join(rows)) for key, rows in lists.items()]
        payload_key = PAYLOAD_PREFIX * 8 + suffix
        if batch.payloads:
            puts.append((payload_key, b"".join(batch.payloads)))
        self._store.write(puts, self._expired())
        for own in (0, 1):
            if expires[own] > EVER_US:
                keys = [key for key, _ in puts if key[7] & 1 == own and key != payload_key]
                self._stored[own].append((expires[own], keys if own or not batch.payloads else [*keys, payload_key]))
        self._now_us, self._next = now_us, first + batch.size
        return self._answers(asked)

    def _answers(self, asked: list[tuple[bytes, int, int, int, int]]) -> Answered:
        prefixes = sorted({each[0] for each in asked})
        values, sizes = self._store.fragments(prefixes)
        rows = list(_ROW.iter_unpack(b"".join(values)))
        ends = list(accumulate(sizes, initial=0))
        found = {prefix: rows[a:b] for prefix, (a, b) in zip(prefixes, pairwise(ends), strict=True)}
        tags = [
            tag
            for key, asking, low_min, low_max, valid_at in asked
            for seq, low, high, tag in found[key]
            if seq < asking and low_min <= low <= low_max and high >= valid_at
        ]
        return Answered(len(tags), sum(tags) % 2**64)

    def _by_columns(self, batch: OperationBatch) -> Answered:
        first = self._next
        times = np.maximum.accumulate(np.maximum(batch.time, self._now_us))
        self._write(batch, sorted_rows(rows_of(batch, first)), first)
        self._now_us = int(times[-1])
        queries = queries_of(batch, first, times)
        keys = np.unique(queries.key)
        values, sizes = self._store.fragments(_prefixes(keys))
        self._next = first + batch.size
        found = self._probe(values, np.repeat(keys, sizes), queries)
        return answered(found) if found is not None else Answered(0, 0)

    @staticmethod
    def _probe(values: list[bytes], key: NDArray[np.uint64], queries: Queries) -> Matches | None:
        if not len(key):
            return None
        table = np.frombuffer(b"".join(values), ROW)
        columns = [np.ascontiguousarray(table[name]) for name in ("seq", "low", "high", "tag")]
        rows = RowColumns(key, *columns)
        return probe(rows, bounds_of(rows), bounded_queries(queries))

    def _write(self, batch: OperationBatch, rows: RowColumns, first: int) -> None:
        starts = np.flatnonzero(np.r_[True, rows.key[1:] != rows.key[:-1]])
        table = np.empty(rows.size, ROW)
        table["seq"], table["low"], table["high"], table["tag"] = rows.seq, rows.low, rows.high, rows.tag
        data = table.tobytes()
        suffix = first.to_bytes(8, "big")
        keys = [prefix + suffix for prefix in _prefixes(rows.key[starts])]
        ends = [*(starts[1:] * ROW.itemsize).tolist(), len(data)]
        values = [data[a:b] for a, b in zip((starts * ROW.itemsize).tolist(), ends, strict=True)]
        payload_key = PAYLOAD_PREFIX * 8 + suffix
        puts = [*zip(keys, values, strict=True), (payload_key, b"".join(batch.payloads))]
        self._store.write(puts, self._expired())
        kinds = (rows.key[starts] & np.uint64(1)).tolist()
        for kind in (0, 1):
            own = [key for key, each in zip(keys, kinds, strict=True) if each == kind]
            high = batch.high[(batch.kind != PUBLISH) == bool(kind)]
            if len(high):
                self._stored[kind].append((int(high.max()), own + ([payload_key] if kind == 0 else [])))

    def _expired(self) -> list[bytes]:
        gone: list[bytes] = []
        for stored in self._stored:
            while stored and stored[0][0] < self._now_us:
                gone += stored.popleft()[1]
        return gone

    def file_bytes(self) -> int:
        """See `Engine`."""
        return sum([path.stat().st_size for path in self._directory.rglob("*") if path.is_file()])

    def close(self) -> None:
        """See `Engine`."""
        self._store.close()


def _prefixes(keys: NDArray[np.uint64]) -> list[bytes]:
    data = keys.astype(">u8").tobytes()
    return [data[at : at + 8] for at in range(0, len(data), 8)]
