"""Blocks to Arrow: a block holds columns already, so whole runs are turned at once and no record is looked at alone.

Per run: its fields once, repeated by NumPy. Payloads that are stored as they are: their bytes joined, their lengths
summed up. Only compressed payloads are touched one by one, by their codec.

    topic        string
    group        int     topic group                    (group, epoch, offset) is the publication's position,
    epoch        long                                   unique in the cluster
    offset       long
    time         timestamp  when the coordinator stored it
    expiry       timestamp  when it expires; null: never
    publisher    string  client id; null: unknown
    qos          int     0, 1 or 2, as published
    retained     boolean published as retained
    payload      binary  as the publisher's program gave it
    raw_bytes    long    of the payload
    stored_bytes long    as stored, compressed
    encoding     string  raw, deflate or dictionary
    dictionary   string  id of the dictionary, 16 hexadecimal digits; null: none
    properties   array<struct<name, value>>  user properties in their order; null: none
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lexicast.cluster.blocks import DEFLATE, FIRST_DICTIONARY, QOS_MASK, RAW, RETAIN, Block, Run
from lexicast.cluster.errors import UsageError
from lexicast.cluster.properties import USER_PROPERTY
from lexicast.compression.wire import Recoder

_TIME: Final = pa.timestamp("us", tz="UTC")
_PROPERTIES: Final = pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))
SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("group", pa.int32()),
        ("epoch", pa.int64()),
        ("offset", pa.int64()),
        ("time", _TIME),
        ("expiry", _TIME),
        ("publisher", pa.string()),
        ("qos", pa.int32()),
        ("retained", pa.bool_()),
        ("payload", pa.binary()),
        ("raw_bytes", pa.int64()),
        ("stored_bytes", pa.int64()),
        ("encoding", pa.string()),
        ("dictionary", pa.string()),
        ("properties", _PROPERTIES),
    ]
)
COLUMNS: Final = tuple(SCHEMA.names)
# What needs the payloads' bytes: without these columns nothing is decompressed.
_DECODED: Final = frozenset({"payload", "raw_bytes"})
# Decompressed bytes of one batch: Arrow's binary columns end at 2 GiB, and a reader holds a batch at a time.
BATCH_BYTES: Final = 16 << 20
BATCH_RECORDS: Final = 50_000

Ints: TypeAlias = npt.NDArray[np.int64]
Lengths: TypeAlias = npt.NDArray[np.uint32]


class Wanted(NamedTuple):
    """Which publications: topics, times (from `since_us` to before `until_us`), not expired at `now_us` (0: all)."""

    topic: Callable[[bytes], bool]
    since_us: int
    until_us: int
    now_us: int


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns to read, all where none are named. Raises UsageError for one that does not exist."""
    if columns is None:
        return COLUMNS
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or not columns or len(set(columns)) != len(columns):
        raise UsageError(f"columns {', '.join(map(repr, unknown or columns))}: choose from {', '.join(COLUMNS)}")
    return tuple(columns)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns."""
    return pa.schema([SCHEMA.field(name) for name in columns])


class _Runs:
    """What is kept of one batch: a list a field with one value a run, and the payloads of each."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.offsets: list[Ints] = []
        self.fields: list[tuple[int, ...]] = []  # see `_add`
        self.stored: list[Lengths] = []
        self.lengths: list[Lengths] = []
        self.data: list[bytes | memoryview] = []
        self.data_bytes = 0
        self.records = 0
        self.topics: dict[bytes, int] = {}
        self.publishers: dict[str, int] = {}
        self.dictionaries: dict[int, int] = {}
        self.properties: dict[Any, int] = {}


class BlocksToArrow:
    """Collects publications of blocks and gives them as record batches of these columns."""

    def __init__(self, columns: Sequence[str], wanted: Wanted, recoder: Recoder) -> None:
        self._columns = columns
        self._wanted = wanted
        self._recoder = recoder
        self._decode = not _DECODED.isdisjoint(columns)
        self._runs = _Runs()
        self.schema = schema_of(columns)

    def batches(self, blocks: Iterable[Block], first: int, end: int) -> Iterator[pa.RecordBatch]:
        """Full batches of what `blocks` hold from offset `first` to before `end`. `rest` has what is left over.

        Raises DictionaryError (a dictionary is not held, a payload cannot be decompressed).
        """
        for block in blocks:
            for run in self._runs_of(block, first, end):
                self._add(block, *run)
                if self._runs.data_bytes >= BATCH_BYTES or self._runs.records >= BATCH_RECORDS:
                    yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What has been collected since the last full batch."""
        if self._runs.records:
            yield _Batch(self._runs, self._columns, self.schema).record_batch()
            self._runs = _Runs()

    def _runs_of(self, block: Block, first: int, end: int) -> Iterator[tuple[Run, int, int, Lengths, memoryview]]:
        """The wanted part of each run: (run, its first offset, when it expires, lengths, payloads as stored)."""
        lengths = np.frombuffer(block.lengths, dtype="<u4")
        ends = np.cumsum(lengths, dtype=np.int64)
        topics = block.meta.topics
        flags = [self._wanted.topic(topic) for topic in topics]
        at, offset = 0, block.first
        for run in block.meta.runs:
            offset += run.skip
            low, high = max(first - offset, 0), min(end - offset, run.count)
            expires_us = block.time_us + run.expiry_ms * 1_000 if run.expiry_ms else 0
            if low < high and flags[run.topic] and not 0 < expires_us < self._wanted.now_us:
                start = int(ends[at + low - 1]) if at + low else 0
                piece = memoryview(block.body)[start : int(ends[at + high - 1])]
                yield run, offset + low, expires_us, lengths[at + low : at + high], piece
            at += run.count
            offset += run.count

    def _add(
        self,
        block: Block,
        run: Run,
        offset: int,
        expires_us: int,
        lengths: Lengths,
        body: memoryview,
    ) -> None:
        runs, count = self._runs, len(lengths)
        meta = block.meta
        id = meta.dictionaries[run.encoding - FIRST_DICTIONARY] if run.encoding >= FIRST_DICTIONARY else None
        user = () if run.properties is None else run.properties.get(USER_PROPERTY, ())
        pairs = tuple([(name, value) for name, value in user])
        runs.counts.append(count)
        runs.records += count
        runs.offsets.append(np.arange(offset, offset + count, dtype=np.int64))
        runs.stored.append(lengths)
        runs.fields.append(
            (
                _number(runs.topics, meta.topics[run.topic]),
                block.group,
                block.epoch,
                block.time_us,
                expires_us,
                _number(runs.publishers, meta.origins[run.origin]) if run.origin >= 0 else -1,
                run.flags,
                min(run.encoding, FIRST_DICTIONARY),
                -1 if id is None else _number(runs.dictionaries, id),
                _number(runs.properties, pairs) if pairs else -1,
            )
        )
        if self._decode:
            self._add_payloads(run.encoding, id, lengths, body)

    def _add_payloads(self, encoding: int, id: int | None, lengths: Lengths, body: memoryview) -> None:
        runs = self._runs
        if encoding == RAW:
            runs.lengths.append(lengths)
            runs.data.append(body)
            runs.data_bytes += len(body)
            return
        whole, payloads, start = bytes(body), [], 0
        for length in lengths.tolist():
            payloads.append(whole[start : start + length])
            start += length
        raw = self._recoder.all_to_raw(encoding, id, payloads)
        joined = b"".join(raw)
        runs.lengths.append(np.fromiter(map(len, raw), dtype=np.uint32, count=len(raw)))
        runs.data.append(joined)
        runs.data_bytes += len(joined)


def _number(known: dict[Any, int], value: Any) -> int:
    return known.setdefault(value, len(known))


class _Batch:
    """One record batch out of collected runs."""

    def __init__(self, runs: _Runs, columns: Sequence[str], schema: pa.Schema) -> None:
        self._runs = runs
        self._columns = columns
        self._schema = schema
        counts = np.array(runs.counts, dtype=np.int64)
        self._run_of = np.repeat(np.arange(len(counts)), counts)
        self._fields = np.array(runs.fields, dtype=np.int64).reshape(len(counts), -1)

    def record_batch(self) -> pa.RecordBatch:
        arrays = [getattr(self, f"_{name}")() for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _field(self, at: int) -> Ints:
        return self._fields[:, at][self._run_of]

    def _chosen(self, at: int, values: list[Any], kind: pa.DataType) -> pa.Array:
        """Each record's value by its number among `values`; -1 is null."""
        numbers = self._field(at)
        return pa.array(values, type=kind).take(pa.array(numbers, mask=numbers < 0))

    def _topic(self) -> pa.Array:
        return self._chosen(0, [topic.decode() for topic in self._runs.topics], pa.string())

    def _group(self) -> pa.Array:
        return pa.array(self._field(1).astype(np.int32))

    def _epoch(self) -> pa.Array:
        return pa.array(self._field(2))

    def _offset(self) -> pa.Array:
        return pa.array(np.concatenate(self._runs.offsets))

    def _time(self) -> pa.Array:
        return pa.array(self._field(3)).cast(_TIME)

    def _expiry(self) -> pa.Array:
        expires_us = self._field(4)
        return pa.array(expires_us, mask=expires_us == 0).cast(_TIME)

    def _publisher(self) -> pa.Array:
        return self._chosen(5, list(self._runs.publishers), pa.string())

    def _qos(self) -> pa.Array:
        return pa.array((self._field(6) & QOS_MASK).astype(np.int32))

    def _retained(self) -> pa.Array:
        return pa.array((self._field(6) & RETAIN) != 0)

    @cached_property
    def _ends(self) -> Ints:
        return np.concatenate([[0], np.cumsum(np.concatenate(self._runs.lengths), dtype=np.int64)])

    def _payload(self) -> pa.Array:
        buffers = [None, pa.py_buffer(self._ends.astype(np.int32)), pa.py_buffer(b"".join(self._runs.data))]
        return pa.BinaryArray.from_buffers(pa.binary(), self._runs.records, buffers)

    def _raw_bytes(self) -> pa.Array:
        return pa.array(np.diff(self._ends))

    def _stored_bytes(self) -> pa.Array:
        return pa.array(np.concatenate(self._runs.stored).astype(np.int64))

    def _encoding(self) -> pa.Array:
        names = {RAW: "raw", DEFLATE: "deflate", FIRST_DICTIONARY: "dictionary"}
        return self._chosen(7, [names[at] for at in sorted(names)], pa.string())

    def _dictionary(self) -> pa.Array:
        return self._chosen(8, [f"{id:016x}" for id in self._runs.dictionaries], pa.string())

    def _properties(self) -> pa.Array:
        values = [[{"name": name, "value": value} for name, value in pairs] for pairs in self._runs.properties]
        return self._chosen(9, values, _PROPERTIES)
