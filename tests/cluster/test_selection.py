"""Parts of blocks are what a naive filter of their records gives; entries become the blocks that were put into them."""

from __future__ import annotations

from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.broker.pipelines.entries import GroupEntryBuilder, PublishBatch, SealedEntry
from lexicast.cluster.blocks import (
    FIRST_DICTIONARY,
    PUBLICATIONS,
    Block,
    Mark,
    Meta,
    ProducerRun,
    Run,
    pack_meta,
    unpack_meta,
)
from lexicast.cluster.selection import for_readers, offsets_of, select, select_from, select_topics

TOPICS = (b"a", b"b", b"c/d")


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """A block, perhaps with records left out of it already."""
    run = st.builds(
        Run,
        skip=st.integers(0, 2),
        topic=st.integers(0, len(TOPICS) - 1),
        flags=st.sampled_from([0, 1, 2, 5]),
        encoding=st.integers(0, FIRST_DICTIONARY),
        expiry_ms=st.sampled_from([0, 1000]),
        properties=st.sampled_from([None, {1: 1}]),
        origin=st.integers(-1, 1),
        count=st.integers(1, 4),
    )
    runs = tuple(draw(st.lists(run, min_size=1, max_size=5)))
    count = sum(r.count for r in runs)
    payloads = [b"%d" % i * draw(st.integers(0, 2)) for i in range(count)]
    first = draw(st.integers(0, 50))
    last = first + count + sum(r.skip for r in runs) - 1 + draw(st.integers(0, 3))
    left, producers = count, []
    while left:
        taken = draw(st.integers(1, left))
        producers.append(ProducerRun(draw(st.sampled_from([b"p", b"q"])), 1, draw(st.integers(1, 100)), taken))
        left -= taken
    marks = [Mark(i, b"uid", i + 1) for i in range(count) if draw(st.booleans())]
    meta = Meta(TOPICS, runs, tuple(producers), tuple(marks), ("x", "y"), (77,))
    lengths = array("I", map(len, payloads)).tobytes()
    return Block(3, 4, first, last, 5, PUBLICATIONS, pack_meta(meta), lengths, b"".join(payloads))


def naive(block: Block) -> list[dict[str, Any]]:
    """Everything that is known of each record, one by one."""
    producers = [(p.producer, p.incarnation, p.sequence + i) for p in block.meta.producers for i in range(p.count)]
    marks: dict[int, list[tuple[bytes, int]]] = {}
    for mark in block.meta.marks:
        marks.setdefault(mark.index, []).append((mark.session_uid, mark.packet_id))
    return [
        {"record": record, "producer": producers[i], "marks": marks.get(i, [])}
        for i, record in enumerate(block.records())
    ]


def check_form(part: Block, whole: Block) -> None:
    """A selection is a good block of the same place."""
    assert unpack_meta(part.meta_bytes) == part.meta
    assert Block.from_wire(part.to_wire()).meta == part.meta
    assert (part.group, part.epoch, part.time_us, part.last) == (whole.group, whole.epoch, whole.time_us, whole.last)
    offsets = offsets_of(part)
    assert offsets == sorted(set(offsets))
    assert part.first <= offsets[0]
    assert offsets[-1] <= part.last


@given(blocks(), st.data())
def test_select_is_a_naive_filter(block: Block, data: st.DataObject) -> None:
    keep = data.draw(st.lists(st.booleans(), min_size=block.count, max_size=block.count))
    part = select(block, keep)
    wanted = [record for record, flag in zip(naive(block), keep, strict=True) if flag]
    assert ([] if part is None else naive(part)) == wanted
    if part is not None:
        check_form(part, block)
        again = data.draw(st.lists(st.booleans(), min_size=part.count, max_size=part.count))
        rest = select(part, again)
        assert ([] if rest is None else naive(rest)) == [r for r, f in zip(wanted, again, strict=True) if f]


@given(blocks(), st.sets(st.sampled_from(TOPICS)))
def test_select_topics_is_a_naive_filter(block: Block, topics: set[bytes]) -> None:
    part = select_topics(block, topics.__contains__)
    wanted = [r for r in naive(block) if r["record"].topic in topics]
    assert ([] if part is None else naive(part)) == wanted


@given(blocks(), st.integers(0, 80))
def test_select_from_is_a_naive_filter(block: Block, offset: int) -> None:
    part = select_from(block, offset)
    wanted = [r for r in naive(block) if r["record"].offset >= offset]
    assert ([] if part is None else naive(part)) == wanted
    assert [r["record"].offset for r in naive(block)] == offsets_of(block)


@given(blocks())
def test_readers_get_the_records_and_not_how_repeats_are_told(block: Block) -> None:
    lean = for_readers(block)
    assert list(lean.records()) == list(block.records())
    assert (lean.group, lean.epoch, lean.last, lean.time_us) == (block.group, block.epoch, block.last, block.time_us)
    meta = unpack_meta(lean.meta_bytes)
    assert (meta.producers, meta.marks, meta.dictionaries) == ((), (), block.meta.dictionaries)
    assert {*meta.topics} == {record.topic for record in block.records()}
    assert {*meta.origins} == {record.origin for record in block.records()} - {None}
    assert for_readers(lean) is lean


def test_the_whole_is_the_block_itself() -> None:
    block = Block(0, 1, 5, 5, 0, PUBLICATIONS, pack_meta(META_OF_ONE), array("I", [1]).tobytes(), b"x")
    assert select(block, [True]) is block
    assert select_from(block, 5) is block
    assert select_topics(block, lambda topic: True) is block
    assert select(block, [False]) is None
    assert select_from(block, 6) is None


META_OF_ONE = Meta((b"a",), (Run(0, 0, 1, 0, 0, None, -1, 1),), (ProducerRun(b"p", 1, 1, 1),), (), (), ())

ADDED = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(TOPICS),
        "flags": st.sampled_from([0, 1, 2, 5]),
        "payloads": st.lists(st.binary(max_size=4), min_size=1, max_size=3),
        "origin": st.sampled_from(["x", "y"]),
        "dictionary": st.sampled_from([None, 7, 9]),
        "expiry_ms": st.sampled_from([0, 500]),
        "properties": st.sampled_from([None, {1: 0}]),
        "marked": st.booleans(),
    }
)


@given(st.lists(ADDED, min_size=1, max_size=8))
def test_an_entry_holds_what_was_added_in_order(added: list[dict[str, Any]]) -> None:
    builder = GroupEntryBuilder(2)
    wanted: list[tuple[Any, ...]] = []
    marks: list[tuple[int, int]] = []
    grown = 0
    for what in added:
        what = dict(what)
        marked = what.pop("marked")
        grown += builder.add(**what)
        for payload in what["payloads"]:
            if marked:
                marks.append((len(wanted), len(wanted) + 1))
            wanted.append((what["topic"], what["flags"], payload, what["origin"], what["dictionary"]))
        if marked:
            builder.mark(b"uid", 1, [i + 1 for i in range(len(wanted) - len(what["payloads"]), len(wanted))])
    assert builder.count == len(wanted)
    assert builder.size_bytes == grown
    entry = builder.seal(b"producer", 3, 40)
    group, meta, lengths, body = entry.wire
    block = Block(group, 1, 100, 100 + len(wanted) - 1, 0, PUBLICATIONS, meta, lengths, body)
    got = [(r.topic, r.flags, r.payload, r.origin, r.dictionary) for r in block.records()]
    assert got == wanted
    assert block.meta.producers == (ProducerRun(b"producer", 3, 40, len(wanted)),)
    assert [(m.index, m.packet_id) for m in block.meta.marks] == marks
    assert {d for *_, d in wanted if d} == set(entry.dictionaries)
    assert (
        PublishBatch(1, [entry, entry], 0.0).size_bytes
        == 2 * entry.size_bytes
        == 2 * (len(meta) + len(lengths) + len(body))
    )


def test_empty_publications_count_too() -> None:
    builder = GroupEntryBuilder(0)
    sizes = [builder.add(b"a", 1, [b""], "x") for _ in range(3)]
    assert all(size > 0 for size in sizes)


def test_a_batch_is_as_old_as_its_oldest_entry_is_sent_wherever_it_was() -> None:
    """What a leader refuses is sent again: nodes were ready and not ready by turns while it went to and fro."""
    old, new, other = (SealedEntry((group, b"", b"", b""), [], (), 1) for group in (1, 2, 3))
    assert PublishBatch(1, [old], 5.0).since_s == 5.0
    both = PublishBatch(2, [old, new], 8.0)
    assert both.since_s == 5.0
    assert both.give_up({1}) == [old]
    assert both.since_s == 8.0
    assert PublishBatch(3, [other, old], 9.0).since_s == 5.0
