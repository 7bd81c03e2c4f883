"""Rows that no lexicast wrote, in any table: calls answer or say what is damaged, check names it, repair drops it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lexicast.cluster.blocks import PUBLICATIONS, RETAIN, Block, Mark, Meta, ProducerRun, Run, control_block, pack_meta
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.errors import StoreError
from lexicast.cluster.records import ControlRecord, DictionaryStored, EpochStart, Subscribed, pack_record
from lexicast.storage.dualdb.batches import keep_until
from lexicast.storage.dualdb.engine import DualDB
from lexicast.storage.dualdb.options import DualOptions
from lexicast.storage.dualdb.runs import parse_segment_key
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.file.keys import parse_log_key
from lexicast.storage.file.sealing import DamageError, seal
from lexicast.storage.maintenance import directory as maintenance
from lexicast.storage.maintenance.check import check_coordinator_store
from lexicast.storage.store import Store
from lexicast.storage.tables.databases import Databases, raw_database
from lexicast.storage.tables.producers import parse_producer_row
from lexicast.storage.tables.sessions import session_of
from lexicast.storage.tables.state import (
    parse_dictionary_row,
    parse_mark_row,
    parse_retained_row,
    parse_subscription_row,
)

from ..support.retained import retained_records
from ..support.session_rows import saved_session
from ..support.topic_past import topic_past

START_US = 1_700_000_000_000_000
KEYS = (b"\x00", b"\x00\x00\x07", b"\x00\x00" + bytes(11), b"\xff\xff\x01", b"\xff" * 40)


def block(first: int) -> Block:
    run = Run(0, 0, RETAIN, 0, 1_000 if first else 0, None, -1, 1)
    meta = pack_meta(Meta((b"a/topic",), (run,), (ProducerRun(b"p", 1, first, 1),), (Mark(0, b"u", 3),), (), ()))
    return Block(0, 1, first, first, START_US + first, PUBLICATIONS, meta, b"\1\0\0\0", b"x")


def opened(directory: Path, clock: ManualClock) -> Store:
    options = StoreOptions(retention_s=100, index_step_topics=8)
    return Store.open(directory, cluster_id="c", member="m", groups=2, options=options, clock=clock)


def fill(store: Store) -> None:
    records: list[ControlRecord] = [
        EpochStart(1, 0, "m"),
        saved_session("client", expires_us=START_US + 5),
        Subscribed("b", 1, "a/topic", 0, 2**62),
        DictionaryStored(7, "f/+", b"content"),
    ]
    store.commit([control_block(0, 1, 0, START_US, [pack_record(record) for record in records])])
    for first in range(4, 12):
        store.commit([block(first)])
    store.flush()


CALLS: dict[str, Callable[[Store], object]] = {
    "read": lambda s: [block.to_wire() for block in s.read(0, 0).blocks],
    "past": lambda s: [block.to_wire() for block in topic_past(s, 0, b"a/topic", 0, 2**62, limit=9)],
    "offset_at": lambda s: s.offset_at(0, START_US),
    "topics": lambda s: list(s.tables.topics(0)),
    "session": lambda s: s.tables.session(0, "client"),
    "sessions": lambda s: list(s.tables.sessions(0)),
    "due_sessions": lambda s: s.tables.due_sessions(2**62, 9),
    "subscriptions": lambda s: list(s.tables.subscriptions(0)),
    "subscribers": lambda s: s.tables.subscribers(b"a/topic"),
    "producer": lambda s: s.tables.producer(0, b"p"),
    "mark": lambda s: s.tables.mark(0, b"u", 3),
    "retained": lambda s: [block.to_wire() for block in retained_records(s, 0)],
    "dictionaries": lambda s: list(s.tables.dictionaries(0)),
    "epochs": lambda s: s.tables.epochs(0),
    "stats": lambda s: s.stats(),
    "reclaim": lambda s: [s.reclaim(START_US) for _ in range(6)],
    "flush": lambda s: s.flush(),
}


TABLES = [name for name in Databases._fields if name != "identity"]


def spoil(store: Store, tables: list[str]) -> None:
    """Put rows of a wrong form, with right checksums, into these tables."""
    with store.environment.begin() as txn:
        for table in tables:
            for key in KEYS:
                for data in (b"", b"short"):
                    txn.put(key, seal(table, key, data), db=raw_database(store.environment.databases, table))


@pytest.mark.parametrize("table", TABLES)
def test_rows_of_a_wrong_form_stop_no_call_and_are_counted(tmp_path: Path, table: str) -> None:
    clock = ManualClock(time_us=START_US)
    store = opened(tmp_path / "s", clock)
    fill(store)
    before = {name: call(store) for name, call in CALLS.items() if name not in ("stats", "reclaim", "flush")}
    spoil(store, [table])
    counted = 0
    for _ in range(2):
        for name, call in CALLS.items():
            found = call(store)
            assert found == before.get(name, found), name
        counted += store.damage.counts.get(table, 0)
        store.close()
        store = opened(tmp_path / "s", clock)
    if table != "expiry":  # whose rows have no checksum: what they name is asked
        assert counted > 0
    store.close()
    if table not in ("expiry", "superseded", "dual", "tail"):  # which are made anew, or emptied
        assert [damage.table for damage in check_coordinator_store(tmp_path / "s").damages if damage.table == table]


def test_repair_drops_rows_of_a_wrong_form_and_keeps_the_others(tmp_path: Path) -> None:
    clock = ManualClock(time_us=START_US)
    store = opened(tmp_path / "s", clock)
    fill(store)
    spoil(store, TABLES)
    store.close()
    maintenance.repair(tmp_path / "s")
    assert maintenance.check(tmp_path / "s").sound
    store = opened(tmp_path / "s", clock)
    assert [block.first for block in store.read(0, 4, expired=True).blocks] == list(range(4, 12))
    assert store.tables.session(0, "client") is not None
    assert [record.filter for record, _ in store.tables.subscriptions(0)] == ["a/topic"]
    assert store.tables.producer(0, b"p") is not None
    assert list(store.tables.topics(0)) == [b"a/topic"]
    store.close()


@pytest.mark.parametrize(
    "parsed",
    [
        parse_log_key,
        parse_segment_key,
        parse_mark_row,
        parse_retained_row,
        parse_subscription_row,
        session_of,
        parse_dictionary_row,
        lambda row: parse_producer_row(b"p", row),
        lambda row: keep_until(memoryview(row)),
    ],
)
@pytest.mark.parametrize("size", [0, 1, 3, 5, 11, 33])
def test_whatever_is_read_from_disk_is_damage_where_it_has_another_form(
    parsed: Callable[[bytes], Any], size: int
) -> None:
    with pytest.raises(DamageError, match=r"damaged: [a-z]+"):
        parsed(b"\x93" * size)


def test_a_dualdb_with_keys_of_a_wrong_form_says_so_and_is_repaired(tmp_path: Path) -> None:
    options = DualOptions(map_bytes=1 << 28, memory_rows_max=100, segment_rows=20, reserve_bytes=0)
    db = DualDB.open(tmp_path / "d", options)
    for number in range(30):
        db.subscribe(number % 3, number, 0, 10**9, number)
    db.flush()
    with db.environment.begin() as txn:
        for table in (db.environment.batches, db.environment.runs):
            txn.put(b"\x00\x01\x02", b"short", db=table)
    db.close()
    with pytest.raises(StoreError, match="damaged"):
        DualDB.open(tmp_path / "d", options)
    assert {damage.table for damage in maintenance.check(tmp_path / "d").damages} >= {"batches", "runs"}
    maintenance.repair(tmp_path / "d")
    db = DualDB.open(tmp_path / "d", options)
    assert sorted([each.sid for each in db.publish(1, 40, 10**9, 1, b"")]) == list(range(1, 30, 3))
    db.close()
