"""Blocks to Arrow and the slices of a store, without Spark or Ray: the same rows as the records one by one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.blocks import (
    DEFLATE,
    FIRST_DICTIONARY,
    PUBLICATIONS,
    QOS_MASK,
    RAW,
    RETAIN,
    Block,
    Meta,
    Run,
    control_block,
    pack_meta,
)
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.fields import FieldReader
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.errors import UsageError
from lexicast.cluster.properties import CONTENT_TYPE, USER_PROPERTY
from lexicast.cluster.records import DictionaryStored, EpochStart, pack_record
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.wire import Recoder
from lexicast.raydp_jobs.history.columns import COLUMNS, BlocksToArrow, Wanted, check_columns
from lexicast.raydp_jobs.history.reading import Place, Query, plan, read_slice, topic_matcher
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.log_scanner import LogScanner
from lexicast.storage.store import Store

START_US = 1_700_000_000_000_000
FOREVER = 1 << 62
TAUGHT = Dictionary(b"a/+", "deflate-9", b"the words that are said again and again: carrier, delay, origin")
PAYLOADS = st.binary(max_size=6) | st.sampled_from([b"carrier, delay, origin" * 3, b"again and again" * 5])


def everything(topic: bytes) -> bool:
    return True


@st.composite
def blocks(draw: st.DrawFn) -> list[tuple[Block, list[bytes]]]:
    """Neighbouring blocks of one group, and their payloads before encoding."""
    made = []
    offset, time_us = draw(st.integers(0, 2**40)), START_US
    for _ in range(draw(st.integers(1, 4))):
        topics = tuple(name.encode() for name in draw(st.lists(st.text("abcü/", min_size=1, max_size=4), min_size=1)))
        origins = tuple(draw(st.lists(st.text(max_size=4), max_size=2)))
        run = st.builds(
            Run,
            skip=st.integers(0, 9),
            topic=st.integers(0, len(topics) - 1),
            flags=st.integers(0, 2) | st.just(RETAIN),
            encoding=st.sampled_from([RAW, DEFLATE, FIRST_DICTIONARY]),
            expiry_ms=st.just(0) | st.integers(1, 1_000),
            properties=st.sampled_from(
                [None, {CONTENT_TYPE: "x"}, {USER_PROPERTY: (("a", "1"), ("a", "2"))}, {USER_PROPERTY: (("ü", ""),)}]
            ),
            origin=st.integers(-1, len(origins) - 1),
            count=st.integers(1, 3),
        )
        runs = tuple(draw(st.lists(run, min_size=1, max_size=5)))
        raw = [draw(PAYLOADS) for each in runs for _ in range(each.count)]
        codecs = {DEFLATE: Recoder()._deflate, FIRST_DICTIONARY: TAUGHT.build()}
        stored: list[bytes] = []
        for each in runs:
            for payload in raw[len(stored) : len(stored) + each.count]:
                stored.append(payload if each.encoding == RAW else codecs[each.encoding].compress(payload))
        meta = pack_meta(Meta(topics, runs, (), (), origins, (TAUGHT.id,)))
        lengths = b"".join(len(payload).to_bytes(4, "little") for payload in stored)
        last = offset + sum(each.skip + each.count for each in runs) - 1
        made.append((Block(3, 7, offset, last, time_us, PUBLICATIONS, meta, lengths, b"".join(stored)), raw))
        offset, time_us = last + 1 + draw(st.integers(0, 3)), time_us + draw(st.integers(0, 10**6))
    return made


def expected(made: list[tuple[Block, list[bytes]]], first: int, end: int, now_us: int) -> Iterator[dict[str, Any]]:
    for block, raw in made:
        for record, payload in zip(block.records(), raw, strict=True):
            expires_us = block.time_us + record.expiry_ms * 1_000 if record.expiry_ms else None
            if not first <= record.offset < end or (expires_us is not None and expires_us < now_us):
                continue
            user = (record.properties or {}).get(USER_PROPERTY)
            yield {
                "topic": record.topic.decode(),
                "group": 3,
                "epoch": 7,
                "offset": record.offset,
                "time": block.time_us,
                "expiry": expires_us,
                "publisher": record.origin,
                "qos": record.flags & QOS_MASK,
                "retained": bool(record.flags & RETAIN),
                "payload": payload,
                "raw_bytes": len(payload),
                "stored_bytes": len(record.payload),
                "encoding": {RAW: "raw", DEFLATE: "deflate"}.get(record.encoding, "dictionary"),
                "dictionary": None if record.dictionary is None else f"{TAUGHT.id:016x}",
                "properties": user and [{"name": name, "value": value} for name, value in user],
            }


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    for name in ("time", "expiry"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table.column(name).cast(pa.int64()))
    return list(table.to_pylist())


def held() -> Recoder:
    recoder = Recoder()
    recoder.add(TAUGHT)
    return recoder


@given(blocks(), st.integers(0, 30), st.integers(0, 60), st.sampled_from([0, START_US + 500_000]))
def test_rows_are_the_records_one_by_one(
    made: list[tuple[Block, list[bytes]]], after: int, before: int, now_us: int
) -> None:
    first, end = made[0][0].first + after, made[-1][0].last + 1 - before
    decoder = BlocksToArrow(COLUMNS, Wanted(everything, 0, FOREVER, now_us), held())
    batches = [*decoder.batches([block for block, _ in made], first, end), *decoder.rest()]
    table = pa.Table.from_batches(batches, schema=decoder.schema)
    assert rows_of(table) == list(expected(made, first, end, now_us))


@given(
    blocks(),
    st.sampled_from(
        ["qos >= 1", "retain = TRUE OR topic LIKE 'a%'", "level(1) = 'b'", "time > 0 AND properties.a IS NULL"]
    ),
)
def test_a_condition_keeps_the_records_of_which_it_is_true(made: list[tuple[Block, list[bytes]]], where: str) -> None:
    condition = Predicate.parse(where)
    wanted = Wanted(everything, 0, FOREVER, 0)
    found = []
    for some in (wanted, wanted._replace(where=condition)):
        decoder = BlocksToArrow(COLUMNS, some, held())
        batches = [*decoder.batches([block for block, _ in made], 0, FOREVER), *decoder.rest()]
        found.append(rows_of(pa.Table.from_batches(batches, schema=decoder.schema)))
    every, chosen = found
    assert chosen == [row for row in every if condition.matches(record_of(row))]


def record_of(row: dict[str, Any]) -> ContentRecord:
    """A row as a condition sees it."""
    user = [(pair["name"], pair["value"]) for pair in row["properties"] or ()]
    properties = {USER_PROPERTY: user}
    topic, reader = row["topic"].encode(), FieldReader(None)
    return ContentRecord(topic, row["payload"], reader, row["time"], row["qos"], row["retained"], properties)


def test_a_condition_on_payloads_reads_them_whatever_columns_are_wanted() -> None:
    payloads = [b'{"delay": %d}' % delay for delay in range(8)]
    for columns in (["offset"], ["offset", "stored_bytes", "payload"]):
        wanted = Wanted(everything, 0, FOREVER, 0, Predicate.parse("delay BETWEEN 3 AND 5"))
        decoder = BlocksToArrow(columns, wanted, held())
        rows = [
            row
            for batch in [*decoder.batches([block_of(0, b"t", payloads)], 0, 99), *decoder.rest()]
            for row in batch.to_pylist()
        ]
        assert [row["offset"] for row in rows] == [3, 4, 5]
        assert [row["payload"] for row in rows if "payload" in row] in ([], payloads[3:6])


@given(blocks(), st.sampled_from(COLUMNS))
def test_any_column_can_be_read_alone(made: list[tuple[Block, list[bytes]]], name: str) -> None:
    wanted = Wanted(everything, 0, FOREVER, 0)
    whole, alone = BlocksToArrow(COLUMNS, wanted, held()), BlocksToArrow([name], wanted, held())
    both = []
    for decoder in (whole, alone):
        batches = [*decoder.batches([block for block, _ in made], 0, FOREVER), *decoder.rest()]
        both.append(pa.Table.from_batches(batches, schema=decoder.schema).column(name))
    assert both[0].equals(both[1])


def test_only_topics_that_match_are_read() -> None:
    runs = tuple(Run(0, at % 2, 0, RAW, 0, None, -1, 1) for at in range(4))
    meta = pack_meta(Meta((b"a/1", b"b/1"), runs, (), (), (), ()))
    block = Block(0, 1, 0, 3, START_US, PUBLICATIONS, meta, (1).to_bytes(4, "little") * 4, b"wxyz")
    decoder = BlocksToArrow(["offset", "payload"], Wanted(topic_matcher(b"b/+"), 0, FOREVER, 0), held())
    batches = [*decoder.batches([block], 0, 10), *decoder.rest()]
    assert batches[0].to_pylist() == [{"offset": 1, "payload": b"x"}, {"offset": 3, "payload": b"z"}]


@pytest.mark.parametrize("columns", [["topic", "nonsense"], [], ["topic", "topic"]])
def test_columns_that_do_not_exist_are_refused(columns: list[str]) -> None:
    with pytest.raises(UsageError, match="choose from topic, group"):
        check_columns(columns)


# The store


def block_of(first: int, topic: bytes, payloads: list[bytes], *, group: int = 0, time_us: int = START_US) -> Block:
    meta = pack_meta(Meta((topic,), (Run(0, 0, 1, RAW, 0, None, -1, len(payloads)),), (), (), (), ()))
    lengths = b"".join(len(payload).to_bytes(4, "little") for payload in payloads)
    return Block(group, 1, first, first + len(payloads) - 1, time_us, PUBLICATIONS, meta, lengths, b"".join(payloads))


def fill(directory: Path, *commits: list[Block]) -> None:
    """Commit to the store in `directory` and close it: LMDB is open once a process, and a scanner opens it too."""
    options = StoreOptions(map_bytes=1 << 30, quota_bytes=1 << 29, reserve_bytes=1 << 20)
    store = Store.open(directory, cluster_id="c", member="m", groups=4, options=options, clock=ManualClock(START_US))
    for commit in commits:
        store.commit(commit)
    store.close()


def query(
    filter: bytes = b"#", start: dict[int, int] | None = None, since_us: int = 0, until_us: int = FOREVER
) -> Query:
    return Query(filter, start, since_us, until_us, 0, ("group", "offset", "topic", "payload"))


def read(directory: Path, committed: dict[int, int], asked: Query) -> list[tuple[Any, ...]]:
    rows = []
    for each in plan(Place(str(directory), "", committed), asked):
        stream, count = read_slice(each, asked)
        table = pa.ipc.open_stream(stream).read_all()
        assert table.num_rows == count.rows
        rows += [tuple(row.values()) for row in table.to_pylist()]
    return rows


def test_a_group_is_read_up_to_its_committed_position(tmp_path: Path) -> None:
    start = control_block(0, 1, 0, START_US, [pack_record(EpochStart(1, -1, "m"))])
    fill(tmp_path, [start], [block_of(1, b"a/1", [b"x", b"y", b"z"]), block_of(0, b"a/2", [b"w"], group=1)])
    assert read(tmp_path, {0: 3, 1: 1}, query()) == [
        (0, 1, "a/1", b"x"),
        (0, 2, "a/1", b"y"),
        (1, 0, "a/2", b"w"),
    ]
    assert read(tmp_path, {0: 0, 1: 0}, query()) == []


def test_topic_time_and_position_are_filtered_at_the_source(tmp_path: Path) -> None:
    fill(tmp_path, *[[block_of(at, b"a/%d" % (at % 2), [b"%d" % at], time_us=START_US + at)] for at in range(6)])
    everywhere = {0: 6}
    assert [row[1] for row in read(tmp_path, everywhere, query(b"a/1"))] == [1, 3, 5]
    assert [row[1] for row in read(tmp_path, everywhere, query(since_us=START_US + 2))] == [2, 3, 4, 5]
    assert [row[1] for row in read(tmp_path, everywhere, query(until_us=START_US + 2))] == [0, 1]
    assert [row[1] for row in read(tmp_path, everywhere, query(start={0: 4}))] == [4, 5]
    assert read(tmp_path, everywhere, query(start={1: 0})) == []


def test_compressed_payloads_are_read_with_the_dictionaries_of_the_log(tmp_path: Path) -> None:
    codec = TAUGHT.build()
    payloads = [codec.compress(b"carrier, delay, origin") for _ in range(3)]
    meta = pack_meta(Meta((b"a/1",), (Run(0, 0, 1, FIRST_DICTIONARY, 0, None, -1, 3),), (), (), (), (TAUGHT.id,)))
    lengths = b"".join(len(payload).to_bytes(4, "little") for payload in payloads)
    block = Block(0, 1, 1, 3, START_US, PUBLICATIONS, meta, lengths, b"".join(payloads))
    record = pack_record(DictionaryStored(TAUGHT.id, "a/+", TAUGHT.pack()))
    fill(tmp_path, [control_block(0, 1, 0, START_US, [record]), block])
    assert [row[3] for row in read(tmp_path, {0: 4}, query())] == [b"carrier, delay, origin"] * 3


def compressed(first: int, dictionary: int, payloads: list[bytes]) -> Block:
    meta = pack_meta(
        Meta((b"a/1",), (Run(0, 0, 1, FIRST_DICTIONARY, 0, None, -1, len(payloads)),), (), (), (), (dictionary,))
    )
    lengths = b"".join(len(payload).to_bytes(4, "little") for payload in payloads)
    last = first + len(payloads) - 1
    return Block(0, 1, first, last, START_US, PUBLICATIONS, meta, lengths, b"".join(payloads))


def test_a_payload_that_cannot_be_decompressed_costs_itself(tmp_path: Path) -> None:
    codec = TAUGHT.build()
    good, bomb = codec.compress(b"carrier, delay, origin"), codec.compress(bytes(5 << 20))
    record = pack_record(DictionaryStored(TAUGHT.id, "a/+", TAUGHT.pack()))
    damaged = pack_record(DictionaryStored(0xDEF, "a/+", b"no dictionary"))
    fill(
        tmp_path,
        [control_block(0, 1, 0, START_US, [record, damaged])],
        [compressed(2, TAUGHT.id, [good, b"\xff", good, bomb]), compressed(6, 0xABC, [b"x"])],
        [compressed(7, 0xDEF, [b"x"]), compressed(8, TAUGHT.id, [good])],
    )
    text = b"carrier, delay, origin"
    assert [row[3] for row in read(tmp_path, {0: 9}, query())] == [text, None, text, None, None, None, text]
    (each,) = plan(Place(str(tmp_path), "", {0: 9}), query())
    assert read_slice(each, query())[1] == (7, 4)


def fill_much(directory: Path, first: int, end: int) -> None:
    """Commit blocks of 4 MiB; another process makes its own, as a compiled Block cannot be pickled."""
    fill(directory, *([block_of(at, b"a/1", [bytes(4 << 20)])] for at in range(first, end)))


def test_a_scanner_reads_on_while_the_store_outgrows_what_it_was(tmp_path: Path) -> None:
    fill_much(tmp_path, 0, 1)
    with LogScanner(tmp_path) as scanner:
        writer = multiprocessing.get_context("spawn").Process(target=fill_much, args=(tmp_path, 1, 8))
        writer.start()
        writer.join()
        assert writer.exitcode == 0
        found = list(scanner.blocks(0, 0, 8, 0, FOREVER, everything))
    assert [block.first for block in found] == list(range(8))


def test_slices_are_cut_by_records_and_bytes(tmp_path: Path) -> None:
    fill(tmp_path, [block_of(at * 10, b"a/1", [bytes(100)] * 10) for at in range(10)])
    with LogScanner(tmp_path) as scanner:
        by_records = list(scanner.extents(0, 0, 100, 0, FOREVER, 30, 1 << 30))
        by_bytes = list(scanner.extents(0, 0, 100, 0, FOREVER, 1 << 30, 2_000))
    assert [extent.records for extent in by_records] == [30, 30, 30, 10]
    assert [extent.records for extent in by_bytes] == [20] * 5
    assert by_bytes[0].end == by_bytes[1].first == 20
