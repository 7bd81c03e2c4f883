"""What housekeeping keeps bounded, what opening believes, and what a crash in between leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, control_block, pack_meta
from lexicast.cluster.clock import US_PER_S, ManualClock
from lexicast.cluster.records import EpochStart, Subscribed, pack_record
from lexicast.storage.dualdb.batches import BatchHead, payloads_at
from lexicast.storage.dualdb.engine import DualDB
from lexicast.storage.dualdb.options import DualOptions
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.file.keys import log_key
from lexicast.storage.store import Store
from lexicast.storage.tables.groups import LOST_ROW_OFFSET_GAP
from lexicast.storage.upkeep.oldest_blocks import OldestBlocks

from ..support.topic_past import topic_past

START_US = 1_700_000_000 * US_PER_S
GROUPS = 4


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_US)


def opened(directory: Path, clock: ManualClock, **options: int | float) -> Store:
    chosen = StoreOptions(index_step_topics=8, index_entries_max=16, **options)  # type: ignore[arg-type]  # by name
    return Store.open(directory, cluster_id="c", member="m", groups=GROUPS, options=chosen, clock=clock)


def pub(
    clock: ManualClock, first: int, topic: bytes = b"a", expiry_ms: int = 0, group: int = 0, epoch: int = 1
) -> Block:
    meta = pack_meta(Meta((topic,), (Run(0, 0, 0, 0, expiry_ms, None, -1, 1),), (), (), (), ()))
    return Block(group, epoch, first, first, clock.time_us(), PUBLICATIONS, meta, b"\1\0\0\0", b"x")


def start(clock: ManualClock, group: int = 0, first: int = 0) -> Block:
    return control_block(group, 1, first, clock.time_us(), [pack_record(EpochStart(1, -1, "m"))])


def work_off(store: Store, clock: ManualClock) -> None:
    while store.reclaim(clock.time_us()).more:
        pass


def crash(store: Store) -> None:
    store.environment.close()


# -- expiry and the index


def test_the_past_goes_on_behind_any_number_of_expired_publications(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock)
    store.commit([pub(clock, first, expiry_ms=1_000) for first in range(1_000)])
    store.commit([pub(clock, first) for first in range(1_000, 1_010)])
    clock.advance(2)
    assert [block.first for block in topic_past(store, 0, b"a", 0, 2**62, limit=3)] == [1_000, 1_001, 1_002]
    assert [block.first for block in topic_past(store, 0, b"a", 0, 2**62, limit=3, first=1_003)] == [
        1_003,
        1_004,
        1_005,
    ]
    store.flush()
    assert [block.first for block in topic_past(store, 0, b"a", 0, 2**62, limit=3)] == [1_000, 1_001, 1_002]
    store.close()


def test_what_has_expired_leaves_the_index_though_an_old_record_stays(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock)
    store.commit([start(clock)])  # stays for as long as retention lets it, a week
    rows = []
    for round_ in range(12):
        firsts = range(1 + 50 * round_, 51 + 50 * round_)
        for first in firsts:
            store.commit([pub(clock, first, b"t%d" % (first % 50), expiry_ms=1_000)])
            store.reclaim(clock.time_us())
        clock.advance(20)
        work_off(store, clock)
        rows.append(sum([run.rows for run in store._index._runs._known.values()]))
    assert store.stats().blocks == 1
    assert max(rows[6:]) <= max(rows[:6])
    assert max(rows) < 250
    store.close()


def test_a_step_looks_only_at_groups_that_have_changed(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, clock, retention_s=100)
    for group in range(GROUPS):
        store.commit([pub(clock, n, group=group) for n in range(3)])
    store.flush()
    work_off(store, clock)
    looked: list[int] = []
    look = OldestBlocks._look

    def counted(self: OldestBlocks, txn: object, group: int, offset: int) -> object:
        looked.append(group)
        return look(self, txn, group, offset)  # type: ignore[arg-type]  # whatever a transaction is

    monkeypatch.setattr(OldestBlocks, "_look", counted)
    for _ in range(20):
        store.reclaim(clock.time_us())
    assert looked == []
    clock.advance(50)
    store.commit([pub(clock, 3, group=1)])
    clock.advance(60)
    work_off(store, clock)
    assert store.stats().blocks == 1
    clock.advance(60)
    store.flush()
    work_off(store, clock)
    assert store.stats().blocks == 0
    store.commit([pub(clock, 4, group=2)])
    clock.advance(200)
    store.flush()
    work_off(store, clock)
    assert store.stats().blocks == 0
    store.close()


# -- what an opening believes


def spoil(store: Store, group: int, last: int, at: int) -> None:
    """Flip a bit of a stored block."""
    with store.environment.begin() as txn:
        value = bytearray(txn.get(log_key(group, last), db=store.environment.databases.log) or b"")
        value[at] ^= 0x40
        txn.put(log_key(group, last), bytes(value), db=store.environment.databases.log)


def test_an_epoch_out_of_a_damaged_head_is_not_adopted_and_its_offsets_are_not_given_again(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = opened(tmp_path, clock)
    store.commit([pub(clock, 0, epoch=3), pub(clock, 7, epoch=3)])
    spoil(store, 0, 7, 4 + 8 + 6)  # the epoch's seventh byte: 18014398509481987
    crash(store)
    store = opened(tmp_path, clock)
    assert store.tails()[0][:3] == (3, 0, 7)
    assert store.damage.counts == {"log": 1}
    store.commit([pub(clock, 8, epoch=4)])
    assert [block.first for block in store.read(0, 0).blocks] == [0, 8]
    store.close()


def test_a_lost_row_of_a_group_gives_no_topic_or_offset_again(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock, retention_s=10)
    store.commit([start(clock), start(clock, group=1)])
    store.commit([pub(clock, n, b"t%d" % n) for n in range(1, 5)])
    store.commit([pub(clock, 1, group=1)])
    ids = dict(store.environment.databases.names.rows(store.environment.begin(), b"\0\0"))
    clock.advance(5)
    store.flush()
    with store.environment.begin() as txn:
        for group in range(2):
            txn.put(group.to_bytes(2, "big"), b"damaged", db=store.environment.databases.groups.database)
        txn.delete(log_key(1, 0), db=store.environment.databases.log)
        txn.delete(log_key(1, 1), db=store.environment.databases.log)
    crash(store)
    store = opened(tmp_path, clock)
    assert store.tails()[0].last == 4
    assert store.tails()[1].last == LOST_ROW_OFFSET_GAP
    store.commit([pub(clock, 5, b"new")])
    with store.environment.snapshot() as txn:
        found = dict(store.environment.databases.names.rows(txn, b"\0\0"))
    assert ids.items() < found.items()
    assert [block.first for block in topic_past(store, 0, b"new", 0, 2**62, limit=9)] == [5]
    store.close()


# -- what a crash leaves


def test_a_crash_while_the_index_is_made_anew_loses_none_of_it(tmp_path: Path, clock: ManualClock) -> None:
    records = [Subscribed(f"b{n}", 1, "a", 0, 2**62) for n in range(3)]
    store = opened(tmp_path, clock)
    store.commit([control_block(0, 1, 0, START_US, [pack_record(record) for record in records])])
    store.commit([pub(clock, n) for n in range(3, 60)])
    store.flush()
    store._index_writer.begin_rebuild()
    for steps in range(8):
        crash(store)
        store = opened(tmp_path, clock)
        assert [s.broker for s in store.tables.subscribers(b"a")] == ["b0", "b1", "b2"]
        assert [b.first for b in topic_past(store, 0, b"a", 0, 2**62, limit=99)] == list(range(3, 60))
        store._index_writer.begin_rebuild()
        for _ in range(steps):
            store._index_writer.step()
        # Publications go on meanwhile, and are found.
        assert [b.first for b in topic_past(store, 0, b"a", 0, 2**62, limit=99)] == list(range(3, 60))
    store.commit([pub(clock, 60)])
    work_off(store, clock)
    assert [b.first for b in topic_past(store, 0, b"a", 0, 2**62, limit=99)] == list(range(3, 61))
    assert store.stats().records == 3 + 58
    store.close()


def test_payloads_of_one_batch_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = DualDB.open(tmp_path / "d", DualOptions(map_bytes=1 << 28, reserve_bytes=0))
    for pid in range(6):
        if pid % 3 == 0:
            db.flush()  # what came one by one since then is one batch
        db.publish(1, pid, 10**9, pid, b"p%d" % pid)
    assert db.payloads([5, 0, 3]) == [b"p5", b"p0", b"p3"]
    db.flush()
    calls: list[list[int]] = []

    def decoded(value: memoryview, head: BatchHead, places: list[int]) -> list[bytes]:
        calls.append(places)
        return payloads_at(value, head, places)

    monkeypatch.setattr("lexicast.storage.dualdb.operation_log.payloads_at", decoded)
    assert db.payloads([5, 0, 0, 3]) == [b"p5", b"p0", b"p0", b"p3"]
    assert sorted(calls) == [[0, 0], [2, 0]]
    db.close()
