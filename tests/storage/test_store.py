"""The store: what goes in comes out by position, by ID and time, and from the tables; what cannot be is refused."""

from __future__ import annotations

import pytest

from lexicast.cluster.blocks import PUBLICATIONS, RETAIN, Block, Mark, Meta, ProducerRun, Run, pack_meta
from lexicast.cluster.errors import UsageError
from lexicast.cluster.records import (
    DictionaryStored,
    EpochStart,
    ProducerSeen,
    Released,
    SessionEnded,
    Subscribed,
    Unsubscribed,
    pack_record,
)
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.log.block_cuts import cut
from lexicast.storage.maintenance.check import rebuild_index
from lexicast.storage.store import Store

from ..support.retained import retained_records
from ..support.session_rows import saved_session
from ..support.store_bench import MIB, START_US, Bench, Pub, control, found, publications
from ..support.topic_past import topic_past


def test_records_come_back_by_position_after_a_restart(bench: Bench) -> None:
    rows = [Pub(b"a", b"1"), Pub(b"b", b""), Pub(b"a", b"three")]
    with bench.open() as store:
        store.commit([publications(5, rows), publications(100, rows[:1], group=2, epoch=3)])
    with bench.open() as store:
        assert found(store.read(0, 0).blocks) == [(5, b"a", b"1"), (6, b"b", b""), (7, b"a", b"three")]
        assert found(store.read(0, 7).blocks) == [(7, b"a", b"three")]
        assert store.read(0, 7).next_offset == 8
        assert store.read(0, 8)[:3] == ([], 8, 0)
        assert store.read(1, 3)[:3] == ([], 3, 0)
        tails = store.tails()
        assert tails[0] == (1, 5, 7, START_US)
        assert tails[2] == (3, 100, 100, START_US)
        assert sorted(tails) == [0, 2]


def test_offset_zero_is_indexed_again_after_a_restart_without_flush(bench: Bench) -> None:
    store = Store.open(
        bench.directory, cluster_id="c", member="m1", groups=4, options=StoreOptions(), clock=bench.clock
    )
    store.commit([publications(0, [Pub(b"a", b"1")])])
    store.environment.close()  # as a crash would: without writing the index behind
    with bench.open() as store:
        assert found(topic_past(store, 0, b"a", 0, START_US, limit=9)) == [(0, b"a", b"1")]
        assert store.stats().records == 1


def test_read_stops_at_upto_and_counts_what_it_looked_at(bench: Bench) -> None:
    with bench.open() as store:
        store.commit([publications(10, [Pub(b"a", b"x")] * 10), publications(50, [Pub(b"b", b"y")] * 10)])
        assert [o for o, _, _ in found(store.read(0, 12, upto=14).blocks)] == [12, 13, 14]
        assert store.read(0, 12, upto=14).next_offset == 15
        assert store.read(0, 12, upto=30).next_offset == 31
        assert store.read(0, 25, upto=30)[:3] == ([], 31, 0)
        only_b = store.read(0, 0, topics=lambda topic: topic == b"b")
        assert {topic for _, topic, _ in found(only_b.blocks)} == {b"b"}
        assert only_b.next_offset == 60


def test_read_honours_bytes_max_but_always_moves(bench: Bench) -> None:
    with bench.open() as store:
        for first in range(0, 100, 10):
            store.commit([publications(first, [Pub(b"a", b"x" * 100)] * 10)])
        offset, seen = 0, []
        while offset < 100:
            result = store.read(0, offset, bytes_max=1)
            assert len(result.blocks) == 1
            seen += [o for o, _, _ in found(result.blocks)]
            offset = result.next_offset
        assert seen == list(range(100))


def test_control_blocks_are_read_and_cut_but_not_for_a_topic_reader(bench: Bench) -> None:
    with bench.open() as store:
        store.commit([control(0, EpochStart(1, 0, "m1"), Unsubscribed("b", "x"), Unsubscribed("b", "y"))])
        block = store.read(0, 1).blocks[0]
        assert (block.first, block.last) == (1, 2)
        assert block.payloads() == [pack_record(Unsubscribed("b", "x")), pack_record(Unsubscribed("b", "y"))]
        assert store.read(0, 0, topics=lambda _: True).blocks == []


def test_the_past_of_a_topic_in_a_span_of_time(bench: Bench) -> None:
    with bench.open(StoreOptions(index_entries_max=3, index_step_topics=1)) as store:
        for n in range(20):
            rows = [Pub(b"a", b"a%d" % n), Pub(b"b", b"b%d" % n), Pub(b"a", b"A%d" % n)]
            store.commit([publications(3 * n, rows, time_us=START_US + n)])
            store.reclaim(START_US)
        got = found(topic_past(store, 0, b"a", START_US + 4, START_US + 6, limit=100))
        assert [p for _, _, p in got] == [b"a4", b"A4", b"a5", b"A5", b"a6", b"A6"]
        assert [o for o, _, _ in got] == [12, 14, 15, 17, 18, 20]
        part = found(topic_past(store, 0, b"a", START_US + 4, START_US + 6, limit=3))
        rest = found(topic_past(store, 0, b"a", START_US + 4, START_US + 6, limit=3, first=part[-1][0] + 1))
        assert part + rest == got
        assert topic_past(store, 0, b"nobody", 0, START_US + 99, limit=9) == []
        assert topic_past(store, 3, b"a", 0, START_US + 99, limit=9) == []
        assert store.offset_at(0, START_US) == 0
        assert store.offset_at(0, START_US + 7) == 21
        assert store.offset_at(0, START_US + 99) == 60
        assert list(store.tables.topics(0)) == [b"a", b"b"]


def test_sessions_are_replaced_ended_and_expire(bench: Bench) -> None:
    long_id = "x" * 3_000
    saved = saved_session("c1", b"u1", owner="b1")
    away = saved_session(long_id, b"u2", 4, "", expires_us=START_US + 5)
    with bench.open() as store:
        store.commit([control(0, saved, away), control(0, saved, group=1)])
        store.commit([control(2, saved._replace(generation=2, expires_us=START_US + 1))])
        store.commit([control(3, SessionEnded("c1", b"u1", 1), SessionEnded("c1", b"other", 9))])
    with bench.open() as store:
        assert store.tables.session(0, "c1") == saved._replace(generation=2, expires_us=START_US + 1)
        assert store.tables.session(0, long_id) == away
        assert sorted(s.client_id for s in store.tables.sessions(0)) == ["c1", long_id]
        assert store.tables.due_sessions(START_US, 9) == []
        assert [(g, s.client_id) for g, s in store.tables.due_sessions(START_US + 5, 9)] == [(0, "c1"), (0, long_id)]
        assert len(store.tables.due_sessions(START_US + 5, 1)) == 1
        store.commit([control(5, SessionEnded("c1", b"u1", 2))])
        assert store.tables.session(0, "c1") is None
        assert [s.client_id for _, s in store.tables.due_sessions(START_US + 5, 9)] == [long_id]


def test_subscriptions_keep_their_cut_and_stand_beside_their_topic(bench: Bench) -> None:
    exact, wild = Subscribed("b1", 1, "a/b", 0, 99), Subscribed("b1", 1, "a/+", 0, 99)
    with bench.open() as store:
        store.commit([control(0, exact, wild, exact._replace(broker="b2"))])
        store.commit([control(3, exact._replace(incarnation=2))])
    with bench.open() as store:
        assert sorted(store.tables.subscriptions(0), key=lambda pair: pair[1]) == [
            (wild, 1),
            (exact._replace(broker="b2"), 2),
            (exact._replace(incarnation=2), 3),
        ]
        assert [(s.offset, s.broker) for s in store.tables.subscribers(b"a/b")] == [(2, "b2"), (3, "b1")]
        store.commit([control(4, Unsubscribed("b1", "a/b"), Unsubscribed("b1", "a/+"), Unsubscribed("b9", "a/b"))])
        assert list(store.tables.subscriptions(0)) == [(exact._replace(broker="b2"), 2)]
        assert [s.broker for s in store.tables.subscribers(b"a/b")] == ["b2"]


def test_a_repeat_finds_its_first_position(bench: Bench) -> None:
    rows = [Pub(b"a", b"x")] * 4
    with bench.open() as store:
        store.commit([publications(10, rows, producers=(ProducerRun(b"p", 7, 100, 3), ProducerRun(b"q", 1, 5, 1)))])
        store.commit([publications(14, rows, producers=(ProducerRun(b"p", 7, 103, 4),))])
    with bench.open() as store:
        p, q = store.tables.producer(0, b"p"), store.tables.producer(0, b"q")
        assert p is not None
        assert q is not None
        assert [p.offset_of(s) for s in (99, 100, 102, 103, 106, 107)] == [None, 10, 12, 14, 17, None]
        assert (p.incarnation, p.sequence) == (7, 106)
        assert q.offset_of(5) == 13
        assert store.tables.producer(0, b"r") is None
        assert store.tables.producer(1, b"p") is None
        store.commit([publications(18, rows[:1], producers=(ProducerRun(b"p", 6, 1, 1),))])
        assert store.tables.producer(0, b"p") == p  # an older incarnation changes nothing
        store.commit([control(19, ProducerSeen(b"p", 8, 50))])
        p = store.tables.producer(0, b"p")
        assert p is not None
        assert (p.incarnation, p.sequence, p.runs) == (8, 50, ())


def test_a_producer_keeps_a_bounded_number_of_runs(bench: Bench) -> None:
    with bench.open() as store:
        for n in range(100):
            store.commit([publications(n, [Pub(b"a", b"")], producers=(ProducerRun(b"p", 1, 2 * n, 1),))])
        p = store.tables.producer(0, b"p")
        assert p is not None
        assert len(p.runs) == 64
        assert p.offset_of(198) == 99
        assert p.offset_of(2 * 36) == 36
        assert p.offset_of(2 * 35) is None


def test_marks_last_until_released(bench: Bench) -> None:
    with bench.open() as store:
        store.commit([publications(0, [Pub(b"a", b"")] * 3, marks=(Mark(1, b"u", 8), Mark(2, b"u", 9)))])
    with bench.open() as store:
        assert (store.tables.mark(0, b"u", 8), store.tables.mark(0, b"u", 9), store.tables.mark(0, b"v", 8)) == (
            1,
            2,
            None,
        )
        store.commit([control(3, Released(b"u", (8, 77)))])
        assert (store.tables.mark(0, b"u", 8), store.tables.mark(0, b"u", 9)) == (None, 2)


def test_the_newest_generation_of_a_session_is_known_until_it_is_idle(bench: Bench) -> None:
    now = bench.clock.time_us()
    options = StoreOptions(producer_retention_s=50)
    with bench.open(options) as store:
        marks = (Mark(0, b"u", 8, now), Mark(1, b"u", 9, now - 5), Mark(2, b"v", 8))
        store.commit([publications(0, [Pub(b"a", b"")] * 3, time_us=now, marks=marks)])
        store.commit([publications(3, [Pub(b"a", b"")], time_us=now, marks=(Mark(0, b"u", 7, now - 9),))])
        store.commit([control(4, Released(b"u", (7, 8, 9)))])
        store.commit([control(5, Released(b"v", (8,), now - 7), Released(b"v", (8,), now - 8), time_us=now)])
    with bench.open(options) as store:
        assert [store.tables.generation(0, uid) for uid in (b"u", b"v", b"w")] == [now, now - 7, 0]
        assert store.tables.mark(0, b"u", 8) is None
        bench.clock.advance(60)
        bench.reclaim(store)
        assert [store.tables.generation(0, uid) for uid in (b"u", b"v")] == [0, 0]


def test_retained_publications_are_replaced_and_cleared(bench: Bench) -> None:
    with bench.open() as store:
        store.commit([publications(0, [Pub(b"a", b"1", RETAIN), Pub(b"a", b"2", RETAIN), Pub(b"b", b"3", RETAIN)])])
        store.commit([publications(3, [Pub(b"b", b"4"), Pub(b"c", b"5", RETAIN), Pub(b"c", b"", RETAIN)])])
    with bench.open() as store:
        assert sorted(found(retained_records(store, 0))) == [(1, b"a", b"2"), (2, b"b", b"3")]
        assert found(retained_records(store, 0, b"b")) == [(2, b"b", b"3")]
        one = store.retained.record(0, b"a")
        assert one is not None
        assert found([one]) == [(1, b"a", b"2")]
        assert store.retained.record(0, b"c") is None
        assert store.retained.record(0, b"d") is None


def test_dictionaries_and_epochs(bench: Bench) -> None:
    stored = DictionaryStored(2**63, "f/+", b"content")
    with bench.open() as store:
        store.commit([control(0, EpochStart(1, 0, "m1"), stored), control(9, EpochStart(4, 1, "m1"), epoch=4)])
    with bench.open() as store:
        assert store.tables.dictionary(0, 2**63) == stored
        assert store.tables.dictionary(0, 1) is None
        assert list(store.tables.dictionaries(0)) == [stored]
        assert store.tables.epochs(0) == [(1, 0, 0), (4, 9, 1)]


@pytest.mark.parametrize(
    ("blocks", "why"),
    [
        ([publications(3, [Pub(b"a", b"")], epoch=5)], "do not follow"),
        ([publications(4, [Pub(b"a", b"")], epoch=4)], "older"),
        ([publications(9, [Pub(b"a", b"")], group=4, epoch=5)], "group 4"),
        ([publications(9, [Pub(b"a", b"")], epoch=5), publications(9, [Pub(b"a", b"")], epoch=5)], "do not follow"),
        ([Block(0, 5, 9, 9, 0, 0, b"junk", bytes(4), b"")], "cannot be"),
        ([Block(0, 5, 9, 9, 0, 1, b"", b"\x04\0\0\0", b"junk")], "cannot be"),
        ([Block(0, 5, 9, 9, 0, 1, b"", b"", b"")], "no records"),
        ([publications(9, [Pub(b"a", bytes(17 * MIB))], epoch=5)], "exceeds"),
        ([publications(9, [Pub(b"a", b"")], epoch=5, marks=(Mark(1, b"u", 1),))], "no record"),
        ([publications(9, [Pub(b"a", b"")], epoch=5, marks=(Mark(0, b"u", 1 << 16),))], "out of range"),
        ([control(9, DictionaryStored(-1, "f", b""), epoch=5)], "cannot be|out of range"),
    ],
)
def test_a_callers_mistake_changes_nothing(bench: Bench, blocks: list[Block], why: str) -> None:
    with bench.open() as store:
        store.commit([publications(0, [Pub(b"a", b"x")] * 4, epoch=5)])
        before = store.tails(), store.stats()
        with pytest.raises(UsageError, match=why):
            store.commit(blocks)
        assert (store.tails(), store.stats()) == before
        store.commit([publications(4, [Pub(b"a", b"x")], epoch=5)])


def test_topics_longer_than_an_lmdb_key_are_told_apart(bench: Bench) -> None:
    one, two = b"x" * 65_535, b"x" * 65_534 + b"y"
    with bench.open() as store:
        store.commit([publications(0, [Pub(one, b"1", RETAIN), Pub(two, b"2", RETAIN)])])
    with bench.open() as store:
        assert [p for _, _, p in found(topic_past(store, 0, two, 0, START_US, limit=9))] == [b"2"]
        kept = store.retained.record(0, one)
        assert kept is not None
        assert kept.payloads() == [b"1"]
        assert set(store.tables.topics(0)) == {one, two}


def test_the_index_is_rebuilt_from_the_log(bench: Bench) -> None:
    with bench.open(StoreOptions(index_entries_max=5)) as store:
        for n in range(12):
            store.commit([publications(n, [Pub(b"t%d" % (n % 3), b"%d" % n)], time_us=START_US + n)])
        store.commit([control(12, Subscribed("b", 1, "t1", 0, 9), Subscribed("b", 1, "t/#", 0, 9))])
        before = [topic_past(store, 0, b"t%d" % t, 0, START_US + 99, limit=99) for t in range(3)]
        subscribers, stats = store.tables.subscribers(b"t1"), store.stats()
        with store.environment.begin() as txn:
            txn.drop(store.environment.databases.dual, delete=False)
        rebuild_index(store)
        after = [topic_past(store, 0, b"t%d" % t, 0, START_US + 99, limit=99) for t in range(3)]
        assert [found(b) for b in after] == [found(b) for b in before]
        assert store.tables.subscribers(b"t1") == subscribers
        assert len(subscribers) == 1
        assert store.stats().records == stats.records == 14


def test_cutting_keeps_marks_and_producers_on_their_records() -> None:
    rows = [Pub(b"a", b"0"), Pub(b"b", b"1", 0, 1), Pub(b"a", b"2"), Pub(b"a", b"3")]
    producers = (ProducerRun(b"p", 1, 10, 3), ProducerRun(b"q", 1, 7, 1))
    block = publications(5, rows, producers=producers, marks=(Mark(1, b"u", 1), Mark(3, b"u", 2)))
    part = cut(block, 6, 8, now_us=START_US + 1_001)
    assert part is not None
    assert found([part]) == [(7, b"a", b"2"), (8, b"a", b"3")]
    assert part.meta.producers == (ProducerRun(b"p", 1, 12, 1), ProducerRun(b"q", 1, 7, 1))
    assert part.meta.marks == (Mark(1, b"u", 2),)
    assert cut(block) is block
    assert cut(block, 9) is None
    assert cut(block, 6, 6, now_us=START_US + 1_001) is None


def test_a_topic_named_in_a_refused_commit_gets_its_id_later(bench: Bench) -> None:
    with bench.open() as store:
        with pytest.raises(UsageError, match="out of range"):
            store.commit(
                [
                    control(0, Subscribed("b", 1, "new", 0, 1)),
                    publications(1, [Pub(b"a", b"")], marks=(Mark(0, b"u", 1 << 16),)),
                ]
            )
        assert list(store.tables.topics(0)) == []
        store.commit([publications(0, [Pub(b"new", b"1"), Pub(b"other", b"2")])])
    with bench.open() as store:
        assert list(store.tables.topics(0)) == [b"new", b"other"]
        assert found(topic_past(store, 0, b"new", 0, START_US, limit=9)) == [(0, b"new", b"1")]


def test_a_watermark_does_not_pass_what_a_restart_has_not_entered_yet(bench: Bench) -> None:
    options = StoreOptions(index_entries_max=6)

    def reopened() -> Store:
        return Store.open(bench.directory, cluster_id="c", member="m1", groups=4, options=options, clock=bench.clock)

    store = reopened()
    store.commit([publications(0, [Pub(b"one", b"")], group=1)])
    store.commit([publications(0, [Pub(b"t%d" % n, b"") for n in range(20)])])
    for _ in range(3):
        store.environment.close()  # as a crash would: group 0 fills the memory table before group 1 is looked at
        store = reopened()
        assert found(topic_past(store, 1, b"one", 0, START_US, limit=9)) == [(0, b"one", b"")]
        assert store.stats().records == 21
    store.close()


def test_the_past_is_paged_through_a_block_whose_topics_alternate(bench: Bench) -> None:
    """A page may end within a block: the next one begins after its last record, and looks into that block again."""
    runs = tuple(
        [Run(0, topic, 0, 0, 0, None, -1, count) for topic, count in ((0, 1), (1, 50), (0, 1), (1, 50), (0, 1))]
    )
    meta = pack_meta(Meta((b"a", b"b"), runs, (), (), (), ()))
    lengths = (1).to_bytes(4, "little") * 103
    with bench.open() as store:
        store.commit([Block(0, 1, 100, 202, START_US, PUBLICATIONS, meta, lengths, b"x" * 103)])
        for _ in range(2):
            offsets: list[int] = []
            while page := topic_past(store, 0, b"a", 0, 2**62, limit=1, first=offsets[-1] + 1 if offsets else 0):
                offsets += [record.offset for part in page for record in part.records()]
            assert offsets == [100, 151, 202]
            store.flush()
