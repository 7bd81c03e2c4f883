"""The columns of the history: thousands of blocks, which hold columns already, turned into Arrow at once by NumPy.

Fields of runs become arrays of many blocks, repeated by their counts; payloads that are stored as they are stay where
they lie, joined. Only compressed payloads are touched one by one, by their codec. (Run by run, in Python, took 40 us a
record where topics alternate; this takes 3 us, and 8 us where payloads are compressed.)

    topic        string
    group        int     topic group                    (group, epoch, offset) is the publication's position,
    epoch        long                                   unique in the cluster
    offset       long
    time         timestamp  when the coordinator stored it
    expiry       timestamp  when it expires; null: never
    publisher    string  client id; null: unknown
    qos          int     0, 1 or 2, as published
    retained     boolean published as retained
    payload      binary  as the publisher's program gave it; null: it cannot be decompressed (and is counted)
    raw_bytes    long    of the payload; null as it is
    stored_bytes long    as stored, compressed
    encoding     string  raw, deflate or dictionary
    dictionary   string  id of the dictionary, 16 hexadecimal digits; null: none
    properties   array<struct<name, value>>  user properties in their order; null: none
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from lexicast.cluster.blocks import DEFLATE, FIRST_DICTIONARY, QOS_MASK, RAW, RETAIN, RUN_FIELDS, Block, origins_of
from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.fields import FieldReader
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.errors import DictionaryError, UsageError
from lexicast.cluster.properties import USER_PROPERTY
from lexicast.cluster.security.authors import publisher_of
from lexicast.compression.opening import Room
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
# Stored bytes of one batch (and one block more): Arrow's binary columns end at 2 GiB of decompressed ones.
BATCH_BYTES: Final = 4 << 20
BATCH_RECORDS: Final = 50_000
# What they become at the most: as many times as much as what a broker opens at once.
OPENED_BYTES_MAX: Final = 1 << 30

# The fields of a run as they lie in a block's meta (see `cluster.blocks`); properties are no number.
_SKIP, _TOPIC, _FLAGS, _ENCODING, _EXPIRY_MS, _RUN_PROPERTIES, _ORIGIN, _COUNT = range(RUN_FIELDS)

Ints: TypeAlias = npt.NDArray[np.int64]


class Wanted(NamedTuple):
    """Which publications: topics, times (from `since_us` to before `until_us`), not expired at `now_us` (0: all), of
    which a condition is true (None: all)."""

    topic: Callable[[bytes], bool]
    since_us: int
    until_us: int
    now_us: int
    where: Predicate | None = None


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


class BlocksToArrow:
    """Collects blocks and gives their wanted publications as record batches of these columns."""

    def __init__(self, columns: Sequence[str], wanted: Wanted, recoder: Recoder) -> None:
        self._columns = columns
        self._wanted = wanted
        self._recoder = recoder
        self._collected = _Collected()
        self.schema = schema_of(columns)
        self.undecodable = 0

    def batches(self, blocks: Iterable[Block], first: int, end: int) -> Iterator[pa.RecordBatch]:
        """Full batches of what `blocks` hold from offset `first` to before `end`. `rest` has what is left over.

        The recoder must hold the blocks' dictionaries. A payload that cannot be decompressed is null, and `undecodable`
        counts it.
        """
        for block in blocks:
            self._collected.add(block, self._wanted.topic, first, end)
            if self._collected.stored_bytes >= BATCH_BYTES or self._collected.records >= BATCH_RECORDS:
                yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What has been collected since the last full batch."""
        if self._collected.records:
            collected, self._collected = self._collected, _Collected()
            batch = _Batch(collected, self._wanted.now_us, self._recoder)
            if self._wanted.where is not None:
                batch.choose(self._wanted.where)
            if batch.rows:
                yield pa.RecordBatch.from_arrays([batch.column(name) for name in self._columns], schema=self.schema)
                self.undecodable += batch.undecodable


class _Collected:
    """Blocks as lists of arrays: a row a run of numbers, and what is said of each block."""

    def __init__(self) -> None:
        self.records = 0
        self.stored_bytes = 0
        self.runs: list[Ints] = []
        self.blocks: list[tuple[int, ...]] = []  # runs, group, epoch, first offset, time, lower and upper bound
        self.properties: list[Any] = []
        self.lengths: list[bytes] = []
        self.bodies: list[bytes] = []
        self.topics = _Numbers()
        self.origins = _Numbers()
        self.dictionaries = _Numbers()
        self.topic_wanted: list[bool] = []

    def add(self, block: Block, wanted: Callable[[bytes], bool], first: int, end: int) -> None:
        # not block.meta: the block's checksum held, and a Run each costs more than everything that follows
        topics, flat, _, _, origins, dictionaries = msgpack.unpackb(
            block.meta_bytes, use_list=True, strict_map_key=False
        )
        properties = flat[_RUN_PROPERTIES::RUN_FIELDS]
        flat[_RUN_PROPERTIES::RUN_FIELDS] = [0] * len(properties)
        runs = np.array(flat, dtype=np.int64).reshape(-1, RUN_FIELDS)
        runs[:, _TOPIC] = self.topics.of(topics)[runs[:, _TOPIC]]
        # the last of the numbers is the one of "none": -1 finds it
        names = [*map(publisher_of, origins_of(tuple(topics), tuple(origins))), None]
        runs[:, _ORIGIN] = self.origins.of(names)[runs[:, _ORIGIN]]
        plain = self.dictionaries.of([(RAW, None), (DEFLATE, None), *[(FIRST_DICTIONARY, id) for id in dictionaries]])
        runs[:, _ENCODING] = plain[runs[:, _ENCODING]]
        while len(self.topic_wanted) < len(self.topics.values):
            self.topic_wanted.append(wanted(self.topics.values[len(self.topic_wanted)]))
        self.runs.append(runs)
        self.properties += properties
        self.blocks.append((len(runs), block.group, block.epoch, block.first, block.time_us, first, end))
        self.lengths.append(block.lengths)
        self.bodies.append(block.body)
        self.records += block.count
        self.stored_bytes += len(block.body)


class _Numbers:
    """Values to numbers, in the order of their first appearance."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def of(self, values: Sequence[Any]) -> Ints:
        numbers = self._numbers
        for value in values:
            if value not in numbers:
                numbers[value] = len(self.values)
                self.values.append(value)
        return np.array([numbers[value] for value in values], dtype=np.int64)


class _Batch:
    """One batch out of collected blocks: arrays a record, the wanted ones alone, each made when a column needs it."""

    def __init__(self, collected: _Collected, now_us: int, recoder: Recoder) -> None:
        self._collected = collected
        self._recoder = recoder
        runs = np.concatenate(collected.runs)
        blocks = np.array(collected.blocks, dtype=np.int64)
        block_of_run = np.repeat(np.arange(len(blocks)), blocks[:, 0])
        counts = runs[:, _COUNT]
        self._run_of = np.repeat(np.arange(len(runs)), counts)
        self._runs, self._blocks, self._block_of_run = runs, blocks, block_of_run
        offset = self._offsets(counts)
        block = block_of_run[self._run_of]
        expires_us = self._expires_us()
        keep = (offset >= blocks[block, 5]) & (offset < blocks[block, 6])
        run_wanted = np.array(collected.topic_wanted)[runs[:, _TOPIC]] & ~((expires_us > 0) & (expires_us < now_us))
        keep &= run_wanted[self._run_of]
        self._kept = np.flatnonzero(keep)
        self._run_of = self._run_of[self._kept]
        self._offset_of = offset[self._kept]
        self._expires = expires_us
        self.rows = len(self._kept)
        self.undecodable = 0

    def choose(self, where: Predicate) -> None:
        """Keep the records of which a condition is true. One whose payload cannot be decompressed has no fields."""
        reader, times_us, flags = FieldReader(where.names), self._of_block(4).tolist(), self._of_run(_FLAGS).tolist()
        topics, properties = self._collected.topics.values, self._collected.properties
        runs = zip(self._run_of.tolist(), self._of_run(_TOPIC).tolist(), strict=True)
        holds = [
            where.matches(
                ContentRecord(
                    topics[topic], payload or b"", reader, time_us, flag & QOS_MASK, flag & RETAIN > 0, properties[run]
                )
            )
            for (run, topic), payload, time_us, flag in zip(
                runs, self._payloads.to_pylist(), times_us, flags, strict=True
            )
        ]
        chosen = np.flatnonzero(holds)
        self._payloads = self._payloads.take(pa.array(chosen))
        self._kept, self._run_of, self._offset_of = self._kept[chosen], self._run_of[chosen], self._offset_of[chosen]
        self.rows = len(chosen)

    def _offsets(self, counts: Ints) -> Ints:
        """The offset of every record: the block's first, what runs skipped, and the records before it in the block."""
        skipped = np.cumsum(self._runs[:, _SKIP])
        before = np.concatenate([[0], np.cumsum(counts)[:-1]])  # records before each run, in the whole batch
        first_run = np.concatenate([[0], np.cumsum(self._blocks[:, 0])[:-1]])  # of each block
        base = (self._blocks[:, 3] - before[first_run] - skipped[first_run] + self._runs[first_run, _SKIP])[
            self._block_of_run
        ] + skipped
        offsets: Ints = np.arange(len(self._run_of)) + base[self._run_of]
        return offsets

    def _expires_us(self) -> Ints:
        after_ms = self._runs[:, _EXPIRY_MS]
        expires_us: Ints = np.where(after_ms > 0, self._blocks[self._block_of_run, 4] + after_ms * 1_000, 0)
        return expires_us

    def column(self, name: str) -> pa.Array:
        made: pa.Array = getattr(self, f"_column_{name}")()
        return made

    def _of_run(self, field: int) -> Ints:
        values: Ints = self._runs[self._run_of, field]
        return values

    def _of_block(self, field: int) -> Ints:
        values: Ints = self._blocks[self._block_of_run[self._run_of], field]
        return values

    def _column_topic(self) -> pa.Array:
        return _chosen(self._of_run(_TOPIC), [topic.decode() for topic in self._collected.topics.values], pa.string())

    def _column_group(self) -> pa.Array:
        return pa.array(self._of_block(1).astype(np.int32))

    def _column_epoch(self) -> pa.Array:
        return pa.array(self._of_block(2))

    def _column_offset(self) -> pa.Array:
        return pa.array(self._offset_of)

    def _column_time(self) -> pa.Array:
        return pa.array(self._of_block(4)).cast(_TIME)

    def _column_expiry(self) -> pa.Array:
        expires_us = self._expires[self._run_of]
        return pa.array(expires_us, mask=expires_us == 0).cast(_TIME)

    def _column_publisher(self) -> pa.Array:
        return _chosen(self._of_run(_ORIGIN), self._collected.origins.values, pa.string())

    def _column_qos(self) -> pa.Array:
        return pa.array((self._of_run(_FLAGS) & QOS_MASK).astype(np.int32))

    def _column_retained(self) -> pa.Array:
        return pa.array((self._of_run(_FLAGS) & RETAIN) != 0)

    def _column_payload(self) -> pa.Array:
        return self._payloads

    def _column_raw_bytes(self) -> pa.Array:
        return pa.compute.binary_length(self._payloads).cast(pa.int64())

    def _column_stored_bytes(self) -> pa.Array:
        return pa.array(self._lengths[self._kept])

    def _column_encoding(self) -> pa.Array:
        names = {RAW: "raw", DEFLATE: "deflate", FIRST_DICTIONARY: "dictionary"}
        values = [names[encoding] for encoding, _ in self._collected.dictionaries.values]
        return _chosen(self._of_run(_ENCODING), values, pa.string())

    def _column_dictionary(self) -> pa.Array:
        values = [None if id is None else f"{id:016x}" for _, id in self._collected.dictionaries.values]
        return _chosen(self._of_run(_ENCODING), values, pa.string())

    def _column_properties(self) -> pa.Array:
        known, numbers = _Numbers(), []
        for properties in self._collected.properties:
            user = properties.get(USER_PROPERTY) if properties else None
            numbers.append(int(known.of([tuple((name, value) for name, value in user) if user else None])[0]))
        values = [pairs and [{"name": name, "value": value} for name, value in pairs] for pairs in known.values]
        return _chosen(np.array(numbers, dtype=np.int64)[self._run_of], values, _PROPERTIES)

    @cached_property
    def _lengths(self) -> Ints:
        return np.frombuffer(b"".join(self._collected.lengths), dtype="<u4").astype(np.int64)

    @cached_property
    def _payloads(self) -> pa.Array:
        """The payloads, decompressed."""
        ends = np.concatenate([[0], np.cumsum(self._lengths)]).astype(np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(self._collected.bodies))]
        stored = pa.BinaryArray.from_buffers(pa.binary(), len(self._lengths), buffers)
        if self.rows < len(stored):
            stored = stored.take(pa.array(self._kept))
        encodings = self._of_run(_ENCODING)
        known = self._collected.dictionaries.values
        used = [number for number in np.unique(encodings).tolist() if known[number][0] != RAW]
        if not used:
            return stored
        payloads: list[bytes | None] = stored.to_pylist()
        room = self._recoder.room(OPENED_BYTES_MAX)
        for number in used:
            where = np.flatnonzero(encodings == number).tolist()
            encoding, id = known[number]
            opened = self._raw(encoding, id, [payloads[at] or b"" for at in where], room)
            for at, payload in zip(where, opened, strict=True):
                payloads[at] = payload
        return pa.array(payloads, type=pa.binary())

    def _raw(self, encoding: int, id: int | None, payloads: list[bytes], room: Room) -> Sequence[bytes | None]:
        """Payloads of one encoding, decompressed; None for one that cannot be, or for which there is no room."""
        try:
            return self._recoder.all_to_raw(encoding, id, payloads, room)
        except DictionaryError:
            found = list(self._recoder.each_to_raw(encoding, id, payloads, room))
        raw = [None if isinstance(payload, DictionaryError) else payload for payload in found]
        self.undecodable += raw.count(None)
        return raw


def _chosen(numbers: Ints, values: list[Any], kind: pa.DataType) -> pa.Array:
    """Of each number its value."""
    return pa.array(values, type=kind).take(pa.array(numbers))
