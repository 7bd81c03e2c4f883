"""What leaves the store: by age, by size, expired, replaced; and what a full one still takes."""

from __future__ import annotations

import pytest

from lexicast.cluster.blocks import RETAIN, Mark, ProducerRun
from lexicast.cluster.errors import UsageError
from lexicast.cluster.records import (
    Dropped,
    SessionEnded,
    SessionMoved,
    unpack_record,
)
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.maintenance.check import check_store

from ..support.retained import retained_records
from ..support.session_rows import saved_session
from ..support.store_bench import KEPT_S, MIB, START_US, Bench, Pub, control, fill, found, publications
from ..support.topic_past import topic_past


def test_expired_publications_are_left_out_and_then_reclaimed(bench: Bench) -> None:
    now = bench.clock.time_us()
    with bench.open() as store:
        rows = [Pub(b"a", b"short", 0, 1_000), Pub(b"a", b"for ever"), Pub(b"a", b"long", 0, 60_000)]
        store.commit([publications(0, rows, time_us=now), publications(3, rows[:1], time_us=now)])
        bench.clock.advance(2)
        assert [p for _, _, p in found(store.read(0, 0).blocks)] == [b"for ever", b"long"]
        assert [o for o, _, _ in found(store.read(0, 0).blocks)] == [1, 2]
        assert [p for _, _, p in found(topic_past(store, 0, b"a", 0, now, limit=9))] == [b"for ever", b"long"]
        assert len(found(store.read(0, 0, expired=True).blocks)) == 4
        assert (store.read(0, 0).expires, store.read(0, 3).expires) == (True, False)
        assert bench.reclaim(store) == 0  # whoever has been sent it may come back for it
        bench.clock.advance(KEPT_S)
        assert bench.reclaim(store) == 1
        assert store.read(0, 0).first_kept == 0  # nobody misses what had expired
        assert store.read(0, 3)[:3] == ([], 4, 0)
        assert store.read(0, 4)[:3] == ([], 4, 0)
        assert store.tails()[0].last == 3
    with bench.open() as store:
        assert store.tails()[0] == (1, 0, 3, now)
        assert store.stats().records == 3


def test_retention_by_age_rescues_retained_publications_and_tells_what_went(bench: Bench) -> None:
    now = bench.clock.time_us()
    keeps, goes = Pub(b"a", b"keep", RETAIN), Pub(b"b", b"go")
    with bench.open(StoreOptions(retention_s=100, producer_retention_s=50)) as store:
        store.commit([publications(0, [keeps, goes], time_us=now, epoch=2, producers=(ProducerRun(b"p", 1, 1, 2),))])
        store.commit([publications(2, [goes], time_us=now + 90_000_000, epoch=3, marks=(Mark(0, b"u", 1),))])
        bench.clock.advance(120)
        assert bench.reclaim(store) == 1
        assert store.read(0, 0).first_kept == 2
        assert found(store.read(0, 0).blocks) == [(2, b"b", b"go")]
        assert store.tables.producer(0, b"p") is None
        assert store.tables.mark(0, b"u", 1) == 2
    with bench.open(StoreOptions(retention_s=100)) as store:
        one = store.retained.record(0, b"a")
        assert one is not None
        assert (one.epoch, one.first, one.time_us) == (2, 0, now)
        assert found(retained_records(store, 0)) == [(0, b"a", b"keep")]
        bench.clock.advance(1_000)
        bench.reclaim(store)
        assert list(store.tables.topics(0)) == [b"a"]  # nothing refers to b any more
        assert store.tails()[0] == (3, 3, 2, now + 90_000_000)
        store.commit([publications(3, [Pub(b"a", b"", RETAIN)], time_us=now, epoch=3)])
        assert store.retained.record(0, b"a") is None
        assert check_store(store).damages == []
    with bench.open(StoreOptions(retention_s=100)) as store:
        assert store.read(0, 0).first_kept == 3
        with pytest.raises(UsageError):
            store.commit([publications(2, [goes], epoch=3)])


def test_a_rescued_publication_goes_when_it_expires(bench: Bench) -> None:
    now = bench.clock.time_us()
    with bench.open(StoreOptions(retention_s=100)) as store:
        store.commit([publications(0, [Pub(b"b", b"y"), Pub(b"a", b"x", RETAIN, 200_000)], time_us=now)])
        bench.clock.advance(150)
        assert bench.reclaim(store) == 1
        assert store.retained.record(0, b"a") is not None
        bench.clock.advance(100)
        assert store.retained.record(0, b"a") is None
        bench.reclaim(store)
        assert store.stats().retained == 0
        assert list(store.tables.topics(0)) == []


def test_a_rescued_publication_goes_when_it_is_replaced(bench: Bench) -> None:
    now = bench.clock.time_us()
    with bench.open(StoreOptions(retention_s=100)) as store:
        store.commit([publications(0, [Pub(b"a", b"x", RETAIN)], time_us=now)])
        bench.clock.advance(150)
        assert bench.reclaim(store) == 1
        store.commit([publications(1, [Pub(b"a", b"y", RETAIN)], time_us=bench.clock.time_us())])
        assert found(retained_records(store, 0)) == [(1, b"a", b"y")]
        assert store.environment.lmdb.begin().stat(store.environment.databases.kept)["entries"] == 0


def test_expiry_in_the_middle_of_the_log_leaves_the_past_before_it(bench: Bench) -> None:
    now = bench.clock.time_us()
    with bench.open() as store:
        store.commit([publications(0, [Pub(b"a", b"stays")], time_us=now)])
        store.commit([publications(1, [Pub(b"a", b"goes", 0, 1_000), Pub(b"b", b"goes", 0, 1_000)], time_us=now)])
        store.flush()
        bench.clock.advance(5 + KEPT_S)
        assert bench.reclaim(store) == 1
        assert found(topic_past(store, 0, b"a", 0, now, limit=9)) == [(0, b"a", b"stays")]
        assert list(store.tables.topics(0)) == [b"a", b"b"]  # b's run still stands: retention has not come this far
        bench.clock.advance(30 * 86_400)
        assert bench.reclaim(store) == 1
        bench.reclaim(store)
        assert list(store.tables.topics(0)) == []
        assert store.stats().used_bytes <= 4 * 4_096


def test_retention_by_size_takes_the_oldest_of_all_groups_first(bench: Bench) -> None:
    with bench.open(StoreOptions(retention_s=0, retention_bytes=MIB)) as store:
        for n in range(40):
            rows = [Pub(b"t%d" % (n % 4), bytes(100_000))]
            store.commit([publications(n, rows, group=n % 4, time_us=START_US + n)])
        bench.reclaim(store)
        assert store.stats().log_bytes <= MIB
        left = sorted(o for g in range(4) for o, _, _ in found(store.read(g, 0).blocks))
        assert left == list(range(40 - len(left), 40))
        assert len(left) >= 9
        assert check_store(store).damages == []


def test_a_full_store_refuses_publications_takes_control_records_and_accepts_again(bench: Bench) -> None:
    options = StoreOptions(quota_bytes=4 * MIB, reserve_bytes=MIB, retention_bytes=0, retention_s=60)
    now = bench.clock.time_us()
    with bench.open(options) as store:
        stored = fill(store, lambda n: publications(n, [Pub(b"a", bytes(100_000))], time_us=now))
        assert 25 <= stored < 40
        assert store.tails()[0].last == stored - 1
        store.commit([control(stored, saved_session())])
        assert store.tables.session(0, "c") is not None
        assert not store.room() or store.stats().free_bytes < MIB + 200_000
        bench.clock.advance(100)
        assert bench.reclaim(store) == stored + 1
        assert store.room()
        before = store.stats().file_bytes
        for n in range(1, 16):
            store.commit([publications(stored + n, [Pub(b"a", bytes(100_000))], time_us=now + 100)])
        assert store.stats().file_bytes <= before + 3 * 100_000  # 1.5 MB went into pages that were freed
        assert store.tables.session(0, "c") is not None


def test_a_full_store_keeps_nothing_that_has_expired_for_who_may_come_back(bench: Bench) -> None:
    options = StoreOptions(quota_bytes=4 * MIB, reserve_bytes=MIB, retention_bytes=0)
    now = bench.clock.time_us()
    with bench.open(options) as store:
        stored = fill(store, lambda n: publications(n, [Pub(b"a", bytes(100_000), 0, 1_000)], time_us=now))
        bench.clock.advance(1.5)
        assert bench.reclaim(store) > 0
        assert store.room()
        store.commit([publications(stored, [Pub(b"a", bytes(100_000))], time_us=now)])


def test_control_records_do_not_pass_the_quota_itself(bench: Bench) -> None:
    options = StoreOptions(quota_bytes=2 * MIB, reserve_bytes=MIB, retention_bytes=0)
    saved = saved_session(place=bytes(100_000))
    with bench.open(options) as store:
        assert 15 <= fill(store, lambda n: control(n, saved)) < 20


def test_runs_of_the_index_are_merged_and_forget_what_retention_passed_by(bench: Bench) -> None:
    with bench.open(StoreOptions(index_entries_max=4, index_step_topics=3, retention_s=100)) as store:
        for number in range(200):
            store.commit([publications(number, [Pub(b"t%d" % (number % 7), b"x")], time_us=bench.clock.time_us())])
            bench.clock.advance(1)
            while store.reclaim(bench.clock.time_us()).more:
                pass
        with store.environment.snapshot() as txn:
            entries = txn.stat(store.environment.databases.dual)["entries"]
        assert entries < 56  # a hundred entries live, three a segment; 71 if nothing were let go of
        first = store.tails()[0].first
        for topic in range(7):
            past = topic_past(store, 0, b"t%d" % topic, 0, 2**62, limit=1_000)
            offsets = [record.offset for block in past for record in block.records()]
            assert offsets == [n for n in range(first, 200) if n % 7 == topic]
        assert check_store(store).damages == []


def test_superseded_records_of_sessions_leave_the_log_and_give_their_space_back(bench: Bench) -> None:
    """Sessions that come and go for long cost a few records each; ended ones none."""
    with bench.open() as store:
        offset = 0
        for turn in range(40):
            for name in range(10):
                saved = saved_session(f"c{name}", generation=turn, place=b"%d" % turn * 20)
                taken = SessionMoved(f"c{name}", turn, "b", 1, turn, 3_600, 0, 0, b"")
                left = SessionMoved(f"c{name}", turn, "", 0, 0, 3_600, 9, 0, b"%d" % turn)
                store.commit([control(offset, saved, taken), control(offset + 2, left)])
                offset += 3
        store.commit([control(offset, *[SessionEnded(f"c{name}", b"u", 99) for name in range(5)])])
        before = store.stats()
        bench.clock.advance(60)
        bench.reclaim(store)
        after = store.stats()
        # Of five sessions a block with the session, one with the last move; the two ends of the log that are neither.
        assert after.blocks == 10
        assert after.records == 15
        assert after.log_bytes < before.log_bytes / 5
        assert store.first_kept(0) == 0
        assert store.tails()[0].last == offset + 4
        assert sorted(s.client_id for s in store.tables.sessions(0)) == [f"c{name}" for name in range(5, 10)]
        kept = [record for block in store.read(0, 0).blocks for record in block.payloads()]
        assert [type(unpack_record(packed)) for packed in kept].count(Dropped) == 5  # the takings, in their blocks
        assert check_store(store).damages == []
    with bench.open() as store:
        assert store.stats().blocks == 10
        store.commit([control(offset + 9, saved_session("c9", generation=100))])
        bench.reclaim(store)
        assert store.stats().blocks == 9
