"""Blocks: the one form in which records travel on links and lie in the log.

A block holds records of one group with ascending offsets, column by column, so that a broker, a coordinator, a
store and a reader each touch a batch, not a message (FACTS: one store put and one copy a batch).

    first offset, last offset, epoch, time_us   given by the group's sequencer; one time stamp a block
    meta                                        msgpack: topics, runs, producers, marks, origins, dictionaries; where
                                                the one origin is a level of the one topic, that level's number
    lengths                                     uint32 little-endian a record: bytes of each payload
    body                                        the payloads, joined

A *run* is consecutive records that agree in everything but the payload: one topic, one publisher's read. Fields
(RUN_FIELDS integers, and one value for properties), flattened into one list:

    skip        offsets left out before this run (0 unless records were filtered away or have expired)
    topic       index into `topics`
    flags       QoS in bits 0-1, RETAIN in bit 2
    encoding    0 raw, 1 DEFLATE, n >= 2: the dictionary `dictionaries[n - 2]`; where that is STREAMED, frames of the
                topic's stream (to clients that asked for them; never stored)
    expiry_ms   publication expiry (T_max) relative to time_us; 0 = never
    properties  None, or the MQTT 5 properties carried through (`cluster.properties`)
    origin      index into `origins`: who published (client id, or `security.authors`); -1 = unknown
    count       records in the run

`producers` names each record once more for repeats: (producer, incarnation, first sequence, count) in record order.
`marks` are QoS 2 records not yet released: (record index, session uid, packet id, generation of the session; which may
be lacking).

A block of kind CONTROL has no topics; each payload is one msgpack control record (`cluster.records`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgpack

from .errors import PeerError
from .properties import well_formed

PUBLICATIONS: Final = 0
CONTROL: Final = 1

QOS_MASK: Final = 3
RETAIN: Final = 4
FLAGS_END: Final = 8

RAW: Final = 0
DEFLATE: Final = 1
FIRST_DICTIONARY: Final = 2

# No dictionary has this id.
STREAMED: Final = 0

RUN_FIELDS: Final = 8
PROPERTIES_FIELD: Final = 5
# Where a block's topics have fewer runs on average each of these is unpacked by itself.
RUNS_A_TOPIC: Final = 4
U32: Final = 4

# What Python objects cost beside the bytes that they hold: a block with its columns and an empty meta, a run, the
# properties of one, a topic or origin, a row of producers or marks.
BLOCK_MEMORY_BYTES: Final = 850
RUN_MEMORY_BYTES: Final = 104
PROPERTIES_MEMORY_BYTES: Final = 450
NAME_MEMORY_BYTES: Final = 44
ROW_MEMORY_BYTES: Final = 170


class Run(NamedTuple):
    """Consecutive records that differ only in payload; see the module's docstring."""

    skip: int
    topic: int
    flags: int
    encoding: int
    expiry_ms: int
    properties: dict[int, Any] | None
    origin: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on a record


# A Run of a tuple of RUN_FIELDS, unlooked at: as `Run._make`, at a third of its price.
_run: Callable[[Iterable[Any]], Run] = partial(tuple.__new__, Run)


class ProducerRun(NamedTuple):
    """`count` records with consecutive sequence numbers of one producer's incarnation."""

    producer: bytes
    incarnation: int
    sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on a record


class Mark(NamedTuple):
    """A QoS 2 publication that its publisher has not released. `generation`: of the session, which grows with each
    connection; 0: not known."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls on a record
    session_uid: bytes
    packet_id: int
    generation: int = 0


class Meta(NamedTuple):
    """A block's unpacked meta."""

    topics: tuple[bytes, ...]
    runs: tuple[Run, ...]
    producers: tuple[ProducerRun, ...]
    marks: tuple[Mark, ...]
    origins: tuple[str, ...]
    dictionaries: tuple[int, ...]


def pack_meta(meta: Meta) -> bytes:
    """`meta` as bytes."""
    flat: list[Any] = []
    for run in meta.runs:
        flat += run
    return pack_columns(meta.topics, flat, meta.producers, meta.marks, meta.origins, meta.dictionaries)


def pack_columns(
    topics: tuple[bytes, ...],
    flat: Sequence[Any],
    producers: Sequence[ProducerRun],
    marks: Sequence[Mark],
    origins: tuple[str, ...],
    dictionaries: tuple[int, ...],
) -> bytes:
    """`pack_meta` of a Meta's fields; `flat`: the fields of its runs, one run after the other."""
    packed: bytes = msgpack.packb((topics, flat, producers, marks, _packed_origins(topics, origins), dictionaries))
    return packed


def _packed_origins(topics: tuple[bytes, ...], origins: tuple[str, ...]) -> tuple[str | int, ...]:
    """A lone publisher whose client id is a level of the lone topic, as devices' mostly are, as the level's number."""
    if len(topics) != 1 or len(origins) != 1:
        return origins
    levels, name = topics[0].split(b"/"), origins[0].encode()
    return (levels.index(name),) if name in levels else origins


def origins_of(topics: tuple[bytes, ...], origins: tuple[str | int, ...]) -> tuple[str, ...]:
    """A packed meta's publishers by name. Raises ValueError, TypeError, IndexError, AttributeError when it is none."""
    if len(origins) != 1 or type(origins[0]) is not int:
        return origins  # type: ignore[return-value]  # looked at with the other columns
    (topic,) = topics
    if origins[0] < 0:
        raise ValueError(f"a publisher is level {origins[0]} of its topic")
    return (topic.split(b"/")[origins[0]].decode(),)


def unpack_meta(data: bytes) -> Meta:
    """Bytes back to a Meta, every type and index in it checked. Raises PeerError when they are not one."""
    try:
        topics, flat, producers, marks, origins, dictionaries = msgpack.unpackb(
            data, use_list=False, strict_map_key=False
        )
        if type(flat) is not tuple or len(flat) % RUN_FIELDS:
            raise ValueError("its runs are no list of whole runs")
        if any(flat[PROPERTIES_FIELD::RUN_FIELDS]):
            flat = _with_shared_properties(flat)
        runs, distinct = _runs_of(flat, len(topics))
        meta = Meta(
            topics,
            runs,
            tuple([ProducerRun._make(p) for p in producers]) if producers else (),
            tuple([Mark(*m) for m in marks]) if marks else (),
            origins_of(topics, origins),
            dictionaries,
        )
        # Here alone: what is empty leaves no trace in the meta, whatever it was.
        lists = type(producers) is tuple and type(marks) is tuple
        good = lists and _good_columns(meta) and _good_runs(meta, distinct)
    # RecursionError: properties within each other, a thousand deep, are compared.
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, msgpack.UnpackException) as error:
        raise PeerError(f"a block's meta cannot be read: {error}") from None
    if not good:
        raise PeerError("a block's meta cannot be read: a field is of a wrong type or out of range")
    return meta


def _with_shared_properties(flat: tuple[Any, ...]) -> tuple[Any, ...]:
    """The fields of runs, of which those one after the other that have equal properties have the same: what topics that
    alternate bring along (a bridge's mark) is looked at once, and there once."""
    fields: list[Any] = list(flat)
    known: Any = None
    for at in range(PROPERTIES_FIELD, len(fields), RUN_FIELDS):
        properties = fields[at]
        if properties is not None:
            if known is not None and properties == known:
                fields[at] = known
            else:
                known = properties
    return tuple(fields)


def _runs_of(flat: tuple[Any, ...], topics: int) -> tuple[tuple[Run, ...], Iterable[Run]]:
    """(the runs, those that differ). Where topics alternate a block's runs are a few, many times over: each of these is
    made and looked at once."""
    if len(flat) < RUNS_A_TOPIC * RUN_FIELDS * topics:
        runs = (
            (_run(flat),) if len(flat) == RUN_FIELDS else tuple(map(_run, zip(*[iter(flat)] * RUN_FIELDS, strict=True)))
        )
        return runs, runs
    known: dict[tuple[Any, ...], Run] = {}
    found: list[Run] = []
    try:
        for fields in zip(*[iter(flat)] * RUN_FIELDS, strict=True):
            run = known.get(fields)
            if run is None:
                run = known[fields] = _run(fields)
            found.append(run)
    except TypeError:  # properties are no part of a key
        found = list(map(_run, zip(*[iter(flat)] * RUN_FIELDS, strict=True)))
        return tuple(found), found
    return tuple(found), known.values()


def unpack_topics(data: bytes) -> tuple[bytes, ...]:
    """The topics of a packed meta, of which no more is looked at. Raises PeerError when it does not begin with them."""
    try:
        unpacker = msgpack.Unpacker(use_list=False, read_size=len(data), max_buffer_size=len(data))
        unpacker.feed(data)
        unpacker.read_array_header()
        topics: tuple[bytes, ...] = unpacker.unpack()
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise PeerError(f"a block's topics cannot be read: {error}") from None
    if type(topics) is not tuple or not all([type(topic) is bytes for topic in topics]):
        raise PeerError("a block's topics cannot be read: they are no list of names")
    return topics


def _good_columns(meta: Meta) -> bool:
    """Whether the texts, numbers and lists beside the runs are what they should be."""
    topics, _, producers, marks, origins, dictionaries = meta
    if type(topics) is not tuple or type(origins) is not tuple or type(dictionaries) is not tuple:
        return False
    for topic in topics:
        if type(topic) is not bytes:
            return False
    for origin in origins:
        if type(origin) is not str:
            return False
    for dictionary in dictionaries:
        if type(dictionary) is not int:
            return False
    for producer, incarnation, sequence, count in producers:
        if not (type(producer) is bytes and type(incarnation) is type(sequence) is type(count) is int and count > 0):
            return False
    for index, session_uid, packet_id, generation in marks:
        if not (type(index) is type(packet_id) is type(generation) is int and type(session_uid) is bytes):
            return False
        if index < 0 or generation < 0:
            return False
    return True


def _good_runs(meta: Meta, runs: Iterable[Run]) -> bool:
    """Whether each of these runs' numbers are in range: they index into the columns, and add up to offsets."""
    topics, origins, encodings = len(meta.topics), len(meta.origins), FIRST_DICTIONARY + len(meta.dictionaries)
    good: object = None  # properties that have been looked at
    for skip, topic, flags, encoding, expiry_ms, properties, origin, count in runs:
        if not (
            type(skip) is type(topic) is type(flags) is type(encoding) is type(expiry_ms) is type(origin) is int
            and type(count) is int
            and skip >= 0
            and 0 <= topic < topics
            and 0 <= flags < FLAGS_END
            and 0 <= encoding < encodings
            and expiry_ms >= 0
            and -1 <= origin < origins
            and count > 0
            and (properties is None or properties is good or well_formed(properties))
        ):
            return False
        good = properties
    return True


def payloads_bytes(lengths: bytes) -> int:
    """The sum of a block's `lengths`: the bytes of its body."""
    return int.from_bytes(lengths, "little") if len(lengths) == U32 else sum(memoryview(lengths).cast("I"))


class Record(NamedTuple):
    """One publication, looked at alone."""

    offset: int
    topic: bytes
    flags: int
    encoding: int
    dictionary: int | None
    expiry_ms: int
    properties: dict[int, Any] | None
    origin: str | None
    payload: bytes


# What `dataclass` makes to initialize an object is interpreted, also in compiled code.
@dataclass(slots=True, eq=False, init=False)
class Block:
    """A batch of records of one group. Immutable by convention; see the module's docstring for the fields."""

    group: int
    epoch: int
    first: int
    last: int
    time_us: int
    kind: int
    meta_bytes: bytes
    lengths: bytes
    body: bytes
    # `meta_bytes` unpacked, once somebody asks: whoever makes a block by `replace` with another meta replaces both.
    _meta: Meta | None = field(default=None, repr=False)

    def __init__(
        self,
        group: int,
        epoch: int,
        first: int,
        last: int,
        time_us: int,
        kind: int,
        meta_bytes: bytes,
        lengths: bytes,
        body: bytes,
        _meta: Meta | None = None,
    ) -> None:
        self.group = group
        self.epoch = epoch
        self.first = first
        self.last = last
        self.time_us = time_us
        self.kind = kind
        self.meta_bytes = meta_bytes
        self.lengths = lengths
        self.body = body
        self._meta = _meta

    # No cached_property: that of Python 3.11 takes a lock, which costs as much as unpacking a device's meta.
    @property
    def meta(self) -> Meta:
        """The unpacked meta (unpacked once). Raises PeerError when it is none, or of another number of records."""
        if self._meta is None:
            meta = unpack_meta(self.meta_bytes)
            runs = meta.runs
            if (runs[0].count if len(runs) == 1 else sum([run.count for run in runs])) != len(self.lengths) // U32:
                raise PeerError(f"group {self.group} offset {self.first}: runs and lengths of the block disagree")
            self._meta = meta
        return self._meta

    @property
    def highest_qos(self) -> int:
        """Of its publications. Raises PeerError as `meta`."""
        runs = self.meta.runs
        return runs[0].flags & QOS_MASK if len(runs) == 1 else max([run.flags & QOS_MASK for run in runs])

    @property
    def is_raw(self) -> bool:
        """Whether no payload is compressed. Raises PeerError as `meta`."""
        runs = self.meta.runs
        return runs[0].encoding == RAW if len(runs) == 1 else all([run.encoding == RAW for run in runs])

    @property
    def count(self) -> int:
        """Records in the block."""
        return len(self.lengths) // U32

    @property
    def size_bytes(self) -> int:
        """Bytes of the block as stored, its fixed header aside."""
        return len(self.meta_bytes) + len(self.lengths) + len(self.body)

    @property
    def memory_bytes(self) -> int:
        """Bytes that the block takes in this process, its unpacked meta included, to a fifth: small blocks take far
        more than `size_bytes`. Raises PeerError as `meta`."""
        meta = self.meta
        runs = meta.runs
        distinct = 1 if len(runs) == 1 else len(set(map(id, runs)))
        parts = (
            RUN_MEMORY_BYTES * distinct
            + 8 * (len(runs) - distinct)
            + PROPERTIES_MEMORY_BYTES * len({id(run.properties) for run in runs if run.properties is not None})
            + NAME_MEMORY_BYTES * (len(meta.topics) + len(meta.origins))
            + ROW_MEMORY_BYTES * (len(meta.producers) + len(meta.marks))
        )
        # The meta is there twice, packed and as objects.
        return BLOCK_MEMORY_BYTES + parts + len(self.meta_bytes) + self.size_bytes

    def payloads(self) -> list[bytes]:
        """The payloads in record order. Raises PeerError when lengths and body disagree."""
        body = self.body
        if len(self.lengths) == U32 and int.from_bytes(self.lengths, "little") == len(body):
            return [body]
        lengths = memoryview(self.lengths).cast("I")
        ends = list(accumulate(lengths))
        if not ends or ends[-1] != len(body):
            raise PeerError(f"group {self.group} offset {self.first}: lengths and body of the block disagree")
        return [body[end - length : end] for end, length in zip(ends, lengths, strict=True)]

    def records(self) -> Iterator[Record]:
        """Each publication alone: for readers that look at messages one by one."""
        topics, runs, _, _, origins, dictionaries = self.meta
        payloads = self.payloads()
        at, offset = 0, self.first
        for skip, topic, flags, encoding, expiry_ms, properties, origin, count in runs:
            offset += skip
            dictionary = dictionaries[encoding - FIRST_DICTIONARY] if encoding >= FIRST_DICTIONARY else None
            name, who = topics[topic], origins[origin] if origin >= 0 else None
            for payload in payloads[at : at + count]:
                yield Record(offset, name, flags, encoding, dictionary, expiry_ms, properties, who, payload)
                offset += 1
            at += count

    def to_wire(self) -> tuple[Any, ...]:
        """The block as a msgpack-able tuple."""
        return (
            self.group,
            self.epoch,
            self.first,
            self.last,
            self.time_us,
            self.kind,
            self.meta_bytes,
            self.lengths,
            self.body,
        )

    @classmethod
    def from_wire(cls, fields: Any) -> Block:
        """The inverse of `to_wire`. Raises PeerError when the fields are not a block's."""
        try:
            group, epoch, first, last, time_us, kind, meta_bytes, lengths, body = fields
            good = (
                type(group) is type(epoch) is type(first) is type(last) is type(time_us) is type(kind) is int
                and type(meta_bytes) is type(lengths) is type(body) is bytes
                and group >= 0
                and epoch >= 0
                and first >= 0
                and time_us >= 0
                and kind >= 0
                and len(lengths) % U32 == 0
                and last - first + 1 >= len(lengths) // U32
            )
        except (TypeError, ValueError) as error:
            raise PeerError(f"not a block: {error}") from None
        if not good:
            raise PeerError("not a block: a field is of a wrong type or out of range")
        return cls(group, epoch, first, last, time_us, kind, meta_bytes, lengths, body)


def control_block(group: int, epoch: int, first: int, time_us: int, records: list[bytes]) -> Block:
    """A block of control records."""
    lengths = b"".join([len(r).to_bytes(U32, "little") for r in records])
    return Block(group, epoch, first, first + len(records) - 1, time_us, CONTROL, b"", lengths, b"".join(records))
