"""Blocks, positions and carried properties: they come back as they went, and garbage is a PeerError."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.actors.broker.catching_up.block_cache import BlockCache
from lexicast.cluster.blocks import (
    CONTROL,
    DEFLATE,
    FIRST_DICTIONARY,
    PUBLICATIONS,
    RETAIN,
    Block,
    Mark,
    Meta,
    ProducerRun,
    Run,
    control_block,
    pack_meta,
    unpack_meta,
    unpack_topics,
)
from lexicast.cluster.errors import PeerError
from lexicast.cluster.positions import Position, topic_group
from lexicast.cluster.properties import CORRELATION_DATA, PAYLOAD_FORMAT, USER_PROPERTY, carried, well_formed

NUMBER = st.integers(0, 2**63 - 1)
# What MQTT calls a text has no NUL [MQTT-1.5.4-2].
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=3)
PROPERTIES = st.dictionaries(
    st.sampled_from([PAYLOAD_FORMAT, CORRELATION_DATA, USER_PROPERTY]), st.none(), min_size=1
).flatmap(
    lambda keys: st.fixed_dictionaries(
        {
            key: {
                PAYLOAD_FORMAT: st.integers(0, 1),
                CORRELATION_DATA: st.binary(max_size=9),
                USER_PROPERTY: st.lists(st.tuples(TEXT, TEXT), max_size=2).map(tuple),
            }[key]
            for key in keys
        }
    )
)


@st.composite
def metas(draw: st.DrawFn) -> Meta:
    topic = st.binary(min_size=1, max_size=8) | st.sampled_from([b"a/b/c", b"a", b"/a", "\u00fc/\u00fc".encode()])
    topics = tuple(draw(st.lists(topic, min_size=1, max_size=4)))
    origin = st.text(max_size=4) | st.sampled_from(["a", "b", "c", "", "\u00fc"])
    origins = tuple(draw(st.lists(origin, max_size=2)))
    dictionaries = tuple(draw(st.lists(st.integers(0, 2**64 - 1), max_size=2)))
    run = st.builds(
        Run,
        skip=st.integers(0, 9),
        topic=st.integers(0, len(topics) - 1),
        flags=st.integers(0, 2) | st.just(RETAIN),
        encoding=st.integers(0, FIRST_DICTIONARY + len(dictionaries) - 1),
        expiry_ms=NUMBER,
        properties=st.none() | PROPERTIES,
        origin=st.integers(-1, len(origins) - 1),
        count=st.integers(1, 3),
    )
    runs = tuple(draw(st.lists(run, min_size=1, max_size=5)))
    producers = st.builds(ProducerRun, st.binary(max_size=9), NUMBER, NUMBER, st.integers(1, 9))
    marks = st.builds(Mark, st.integers(0, 9), st.binary(max_size=9), st.integers(1, 65_535), st.integers(0, 2**62))
    return Meta(
        topics,
        runs,
        tuple(draw(st.lists(producers, max_size=3))),
        tuple(draw(st.lists(marks, max_size=3))),
        origins,
        dictionaries,
    )


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Block, list[bytes]]:
    meta = draw(metas())
    count = sum(run.count for run in meta.runs)
    payloads = draw(st.lists(st.binary(max_size=12), min_size=count, max_size=count))
    first = draw(NUMBER)
    last = first + sum(run.skip + run.count for run in meta.runs) - 1
    lengths = b"".join(len(payload).to_bytes(4, "little") for payload in payloads)
    body = b"".join(payloads)
    block = Block(draw(st.integers(0, 99)), draw(NUMBER), first, last, draw(NUMBER), 0, pack_meta(meta), lengths, body)
    return block, payloads


def wired(block: Block) -> Block:
    """The block as another process gets it."""
    return Block.from_wire(msgpack.unpackb(msgpack.packb(block.to_wire()), use_list=False))


@given(metas())
def test_meta_comes_back(meta: Meta) -> None:
    assert unpack_meta(pack_meta(meta)) == meta
    assert unpack_topics(pack_meta(meta)) == meta.topics


@given(blocks())
def test_blocks_come_back(made: tuple[Block, list[bytes]]) -> None:
    block, payloads = made
    back = wired(block)
    assert back.to_wire() == block.to_wire()
    assert (back.count, back.payloads()) == (len(payloads), payloads)
    assert back.size_bytes == len(block.meta_bytes) + 4 * len(payloads) + sum(map(len, payloads))


@given(blocks())
def test_records_are_the_runs_one_by_one(made: tuple[Block, list[bytes]]) -> None:
    block, payloads = made
    topics, runs, _, _, origins, dictionaries = block.meta
    records = list(wired(block).records())
    assert [record.payload for record in records] == payloads
    wanted, offset = [], block.first
    for run in runs:
        offset += run.skip
        dictionary = None if run.encoding <= DEFLATE else dictionaries[run.encoding - FIRST_DICTIONARY]
        origin = None if run.origin < 0 else origins[run.origin]
        for _ in range(run.count):
            wanted.append((offset, topics[run.topic], run.flags, dictionary, run.expiry_ms, run.properties, origin))
            offset += 1
    assert [(r.offset, r.topic, r.flags, r.dictionary, r.expiry_ms, r.properties, r.origin) for r in records] == wanted
    assert records[-1].offset <= block.last


@given(metas(), st.data())
def test_mutated_meta_is_a_meta_or_a_peer_error(meta: Meta, data: st.DataObject) -> None:
    packed = bytearray(pack_meta(meta))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(PeerError):
        assert unpack_meta(pack_meta(unpack_meta(bytes(packed)))) == unpack_meta(bytes(packed))
        assert unpack_topics(bytes(packed)) == unpack_meta(bytes(packed)).topics
    with suppress(PeerError):
        assert all([type(topic) is bytes for topic in unpack_topics(bytes(packed))])


@given(blocks(), st.data())
@settings(max_examples=300)
def test_mutated_blocks_read_or_raise_a_peer_error(made: tuple[Block, list[bytes]], data: st.DataObject) -> None:
    packed = bytearray(msgpack.packb(made[0].to_wire()))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        fields = msgpack.unpackb(packed, use_list=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException):
        return  # the link closes by itself
    with suppress(PeerError):
        block = Block.from_wire(fields)
        assert len(list(block.records())) == block.count
        assert block.to_wire() == tuple(fields)


@given(st.binary(max_size=60))
def test_any_bytes_are_no_meta(data: bytes) -> None:
    with pytest.raises(PeerError):
        unpack_meta(data)


@pytest.mark.parametrize("column", range(2, 6))
@pytest.mark.parametrize("value", [0, False, None, b"", ""])
def test_a_column_that_is_no_list_is_refused(column: int, value: object) -> None:
    """Also where it is as empty as the list would be."""
    columns: list[object] = [[b"t"], list(Run(0, 0, 0, 0, 0, None, -1, 1)), [], [], [], []]
    assert unpack_meta(msgpack.packb(columns)).producers == ()
    columns[column] = value
    with pytest.raises(PeerError):
        unpack_meta(msgpack.packb(columns))


GOOD_RUN = Run(0, 0, 0, 0, 0, None, -1, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("skip", -1),
        ("skip", 1.0),
        ("topic", 1),
        ("topic", -1),
        ("topic", True),
        ("flags", 8),
        ("encoding", FIRST_DICTIONARY),
        ("expiry_ms", -1),
        ("expiry_ms", None),
        ("properties", {}.keys),
        ("properties", []),
        ("properties", {PAYLOAD_FORMAT: 2}),
        ("properties", {35: 1}),
        ("origin", 0),
        ("origin", -2),
        ("count", 0),
        ("count", "1"),
    ],
)
def test_runs_out_of_range_are_refused(field: str, value: Any) -> None:
    if callable(value):
        value = "text"
    meta = Meta((b"t",), (GOOD_RUN._replace(**{field: value}),), (), (), (), ())
    with pytest.raises(PeerError, match="meta"):
        unpack_meta(pack_meta(meta))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topics", ("t",)),
        ("topics", b"t"),
        ("runs", (GOOD_RUN, GOOD_RUN[:7])),
        ("runs", 1),
        ("producers", ((b"p", 1, 1),)),
        ("producers", (("p", 1, 1, 1),)),
        ("producers", ((b"p", 1, 1, 0),)),
        ("marks", ((-1, b"s", 1),)),
        ("origins", (b"o",)),
        ("dictionaries", ("d",)),
        ("dictionaries", {}),
    ],
)
def test_columns_of_a_wrong_type_are_refused(field: str, value: Any) -> None:
    parts = Meta((b"t",), (GOOD_RUN,), (), (), (), ())._replace(**{field: value})
    flat = parts.runs if isinstance(parts.runs, int) else [number for run in parts.runs for number in run]
    with pytest.raises(PeerError, match="meta"):
        unpack_meta(msgpack.packb((parts.topics, flat, *parts[2:])))


@pytest.mark.parametrize(
    ("index", "value"),
    [(0, -1), (0, "0"), (1, 1.5), (3, 3), (5, None), (6, "meta"), (7, b"\1\0\0"), (7, b"\1\0\0\0\1\0\0\0"), (8, 1)],
)
def test_wire_fields_that_are_no_blocks_are_refused(index: int, value: Any) -> None:
    meta = pack_meta(Meta((b"t",), (GOOD_RUN,), (), (), (), ()))
    fields: list[Any] = [1, 2, 4, 4, 5, PUBLICATIONS, meta, b"\1\0\0\0", b"x"]
    assert [record.payload for record in Block.from_wire(fields).records()] == [b"x"]
    fields[index] = value
    with pytest.raises(PeerError):
        Block.from_wire(fields)


@pytest.mark.parametrize("fields", [None, 1, (), (1,) * 8, (1,) * 9, (1,) * 10])
def test_other_things_are_no_blocks(fields: Any) -> None:
    with pytest.raises(PeerError, match="not a block"):
        Block.from_wire(fields)


def test_lengths_body_and_runs_have_to_agree() -> None:
    meta = pack_meta(Meta((b"t",), (GOOD_RUN,), (), (), (), ()))
    with pytest.raises(PeerError, match="lengths and body"):
        Block(1, 2, 3, 3, 4, PUBLICATIONS, meta, b"\2\0\0\0", b"x").payloads()
    with pytest.raises(PeerError, match="runs and lengths"):
        list(Block(1, 2, 3, 4, 4, PUBLICATIONS, meta, b"\1\0\0\0\0\0\0\0", b"x").records())


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=5))
def test_control_blocks_hold_their_records(records: list[bytes]) -> None:
    block = wired(control_block(7, 2, 100, 5, records))
    assert (block.kind, block.first, block.last, block.payloads()) == (CONTROL, 100, 99 + len(records), records)


def test_only_carried_properties_travel() -> None:
    packet = {35: 7, USER_PROPERTY: [("b", "2"), ("a", "1")], PAYLOAD_FORMAT: 1, 11: 4}
    kept = carried(packet)
    assert kept is not None
    assert list(kept.items()) == [(PAYLOAD_FORMAT, 1), (USER_PROPERTY, [("b", "2"), ("a", "1")])]
    assert well_formed(kept)
    assert carried({35: 7}) is None


@pytest.mark.parametrize(
    "properties",
    [{1: True}, {3: b"text"}, {8: 1}, {9: "data"}, {38: [("a",)]}, {38: [("a", b"1")]}, {38: "ab"}, {"1": 1}],
)
def test_malformed_properties_are_seen(properties: Any) -> None:
    assert not well_formed(properties)


@given(st.builds(Position, NUMBER, NUMBER, NUMBER))
def test_positions_are_written_and_read(position: Position) -> None:
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize("text", ["", "1:2", "1:2:3:4", "a:1:2", "-1:1:1", "1:1:-1"])
def test_other_texts_are_no_positions(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Position.parse(text)


@pytest.mark.parametrize(
    ("topic", "group"), [(b"a", 43), (b"devices/1/telemetry", 41), ("Zürich".encode(), 48), (b"", 76)]
)
def test_a_topics_group_never_changes(topic: bytes, group: int) -> None:
    """Stores and clients of every version have to agree on it. (The numbers are those of `b2sum -l 64`.)"""
    assert topic_group(topic, 100) == group


def many(
    blocks: int, runs: int, topics: int, properties: dict[int, Any] | None = None, records: int = 1
) -> list[bytes]:
    """Packed blocks as links bring them, each run with `records` payloads of 140 bytes."""
    names = tuple([b"devices/%05d/telemetry" % i for i in range(topics)])
    flat = tuple([Run(0, i % topics, 1, 0, 0, properties, 0, records) for i in range(runs)])
    count = runs * records
    meta = pack_meta(Meta(names, flat, (ProducerRun(b"p" * 16, 1 << 40, 1 << 30, count),), (), ("client-1",), ()))
    return [
        msgpack.packb(
            (5, 7, first, first + count - 1, 1 << 50, 0, meta, (140).to_bytes(4, "little") * count, b"x" * 140 * count)
        )
        for first in range(1 << 40, (1 << 40) + blocks * count, count)
    ]


@pytest.mark.parametrize(
    ("runs", "topics", "records", "properties"),
    [(1, 1, 1, None), (10, 1, 1, None), (100, 100, 1, None), (1, 1, 100, None), (10, 10, 1, {38: (("unit", "km"),)})],
)
def test_a_cache_of_blocks_takes_the_memory_that_it_is_given(
    runs: int, topics: int, records: int, properties: dict[int, Any] | None
) -> None:
    packed, limit = many(2_000_000 // (runs * records * 300 + 1_000), runs, topics, properties, records), 400_000
    tracemalloc.start()
    cache = BlockCache(limit)
    for data in packed:
        block = Block.from_wire(msgpack.unpackb(data, use_list=False))
        cache.add(block, block.first)
    del block
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.7 * limit < taken < 1.1 * limit
    assert cache.since(5, (1 << 40) + 1) is None


def test_a_publisher_named_in_its_topic_is_not_named_again() -> None:
    run = Run(0, 0, 1, 0, 0, None, 0, 1)
    meta = Meta((b"fleet/site-7/device-0421/telemetry",), (run,), (), (), ("device-0421",), ())
    other = meta._replace(origins=("device-0422",))
    assert len(pack_meta(other)) - len(pack_meta(meta)) == len(b"device-0421")
    assert (unpack_meta(pack_meta(meta)), unpack_meta(pack_meta(other))) == (meta, other)


@pytest.mark.parametrize("origins", [(4,), (-1,), (True,), (1.0,), (0, 1), {1: 2}])
def test_a_publisher_that_is_no_level_of_the_topic_is_refused(origins: Any) -> None:
    flat = [0, 0, 1, 0, 0, None, 0, 1]
    with pytest.raises(PeerError, match="meta cannot be read"):
        unpack_meta(msgpack.packb(((b"a/b",), flat, (), (), origins, ())))
    with pytest.raises(PeerError, match="meta cannot be read"):
        unpack_meta(msgpack.packb(((b"a/b", b"c"), flat, (), (), (0,), ())))


def alternating(count: int) -> list[list[Any]]:
    """Runs of two topics in turns, field by field."""
    return [[0, number % 2, 1, 0, 0, None, -1, 1] for number in range(count)]


def packed_runs(runs: list[list[Any]]) -> bytes:
    packed: bytes = msgpack.packb(((b"a", b"b"), [field for run in runs for field in run], (), (), (), ()))
    return packed


def test_runs_that_repeat_are_one_object() -> None:
    runs = unpack_meta(packed_runs(alternating(40))).runs
    assert [list(run) for run in runs] == alternating(40)
    assert len({id(run) for run in runs}) == 2


def test_runs_that_repeat_may_have_properties() -> None:
    fields = alternating(40)
    fields[7][5] = fields[9][5] = {3: "text/plain"}
    assert [list(run) for run in unpack_meta(packed_runs(fields)).runs] == fields


@pytest.mark.parametrize("count", [2, 40])
def test_equal_properties_of_runs_one_after_the_other_are_one_object(count: int) -> None:
    fields = alternating(count)
    for number in range(count):
        fields[number][5] = {38: (("lexicast-via", "b"),)} if number % 10 != 5 else None
    fields[-1][5] = {3: "text/plain"}
    block = Block(0, 1, 0, count - 1, 0, PUBLICATIONS, packed_runs(fields), bytes(4 * count), b"")
    runs = block.meta.runs
    assert [list(run) for run in runs] == fields
    assert len({id(run.properties) for run in runs if run.properties is not None}) == 2
    apart = [run._replace(properties=dict(run.properties or {}) or None) for run in runs]
    held = replace(block, _meta=block.meta._replace(runs=tuple(apart))).memory_bytes
    assert count == 2 or held > block.memory_bytes + 30 * 400


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("bad", [{1: True}, {1: 1.0}, {True: 1}, {1.0: 1}])
def test_what_equals_properties_does_not_stay_in_a_run(at: int, bad: Any) -> None:
    fields = alternating(3)
    for run in fields:
        run[5] = {1: 1}
    fields[at][5] = bad
    with suppress(PeerError):
        found = [field for run in unpack_meta(packed_runs(fields)).runs for field in (run.properties or {}).items()]
        assert {type(each) for pair in found for each in pair} == {int}


@pytest.mark.parametrize("depth", [10, 500, 900, 1_000, 1_010])
def test_what_is_within_itself_so_often_that_it_cannot_be_compared_is_no_meta(depth: int) -> None:
    # msgpack unpacks up to 1,023 levels; it packs fewer
    run = [bytes((0, 0, 0, 0, 0)), b"\x81\x26", b"\x91" * depth, b"\x00", b"\xff\x01"]
    data = b"\x96\x91\xc4\x01a\xdc\x00\x10" + b"".join(2 * run) + b"\x90" * 4
    with pytest.raises(PeerError):
        unpack_meta(data)


@pytest.mark.parametrize("at", [0, 1, 20, 39])
@pytest.mark.parametrize(
    ("field", "bad"), [(0, -1), (1, 2), (2, 8), (3, 2), (4, -1), (5, 7), (6, 0), (7, 0), (0, b"0"), (7, 1.5), (1, None)]
)
def test_a_bad_run_is_found_among_many_that_repeat(at: int, field: int, bad: Any) -> None:
    fields = alternating(40)
    fields[at][field] = bad
    with pytest.raises(PeerError):
        unpack_meta(packed_runs(fields))


@pytest.mark.parametrize("at", range(4))
def test_what_equals_a_number_does_not_stay_in_a_run_of_many(at: int) -> None:
    fields = alternating(40)
    fields[at][7] = True
    fields[at + 4][0] = 0.0
    with suppress(PeerError):
        assert all([type(field) is not float for run in unpack_meta(packed_runs(fields)).runs for field in run])
        assert all([type(run.count) is int for run in unpack_meta(packed_runs(fields)).runs])
