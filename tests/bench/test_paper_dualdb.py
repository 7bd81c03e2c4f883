"""What the DualDB paper says, section by section, of our DualDB and of its baselines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lexicast.bench.dualdb.baselines.compared_engine import ComparedEngine
from lexicast.bench.dualdb.baselines.key_value import LevelDB, ListsOn, RocksDB
from lexicast.bench.dualdb.baselines.one_database import OneDatabase
from lexicast.bench.dualdb.baselines.repqueries import INTERVALS, RepQueries
from lexicast.bench.dualdb.baselines.repqueries_joined import RepQueriesJoined
from lexicast.bench.dualdb.baselines.two_databases import TwoDatabases
from lexicast.bench.dualdb.workload import LIFE_US, START_US, WINDOW_US, Workload, city_cells, workload_batches
from lexicast.storage.dualdb.engine import DualDB, FoundSubscription, id_of_name
from lexicast.storage.dualdb.merge_tree import MergeTree
from lexicast.storage.dualdb.options import DualOptions
from lexicast.storage.dualdb.rows import NEVER_US
from lexicast.storage.dualdb.segments import segment_rows

C1, C2 = id_of_name("cell/1"), id_of_name("cell/2")
S = 1_000_000
SMALL = DualOptions(map_bytes=1 << 28, memory_rows_max=500, segment_rows=50, runs_fanout=2, reserve_bytes=0)


def test_table_1_subscribe_returns_valid_past_publications_of_its_interval(tmp_path: Path) -> None:
    db = DualDB.open(tmp_path)
    db.publish(C1, 1 * S, 100 * S, 1, b"before T_min")
    db.publish(C1, 6 * S, 9 * S, 2, b"has expired")
    db.publish(C2, 7 * S, 100 * S, 3, b"another ID")
    db.publish(C1, 8 * S, 100 * S, 4, b"matches")
    [found] = db.subscribe(C1, 10 * S, 5 * S, 20 * S, 1)
    assert (found.pid, found.time_us, found.expires_us) == (4, 8 * S, 100 * S)
    assert db.payloads([found.position]) == [b"matches"]
    db.close()


def test_table_1_publish_returns_valid_subscribers_whose_interval_holds_t_p(tmp_path: Path) -> None:
    db = DualDB.open(tmp_path)
    db.subscribe(C1, 1 * S, 0, 5 * S, 1)  # over before T_P
    db.subscribe(C1, 2 * S, 15 * S, 30 * S, 2)  # begins after T_P
    db.subscribe(C2, 3 * S, 0, 30 * S, 3)  # another ID
    db.subscribe(C1, 4 * S, 0, 30 * S, 4)
    assert db.publish(C1, 10 * S, 20 * S, 1, b"") == [FoundSubscription(0, 30 * S, 4)]
    db.close()


def test_renewed_and_unsubscribed_without_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = DualDB.open(tmp_path)
    db.subscribe(C1, 1, 0, 50, 1)
    db.subscribe(C1, 2, 0, 50, 2)
    with monkeypatch.context() as patched:
        patched.setattr(MergeTree, "probe", _never)
        patched.setattr(MergeTree, "find", _never)
        db.renew(C1, 3, 0, 500, 1)
        db.unsubscribe(C1, 4, 2)
    assert db.publish(C1, 100, 100, 1, b"") == [FoundSubscription(0, 500, 1)]
    db.close()


def _never(*unused: object) -> None:
    raise AssertionError("something was read to be written")


def test_section_4_1_both_lists_of_an_id_lie_side_by_side(tmp_path: Path) -> None:
    """Figure 2: C1^S and C1^P in the same component, neighbours."""
    db = DualDB.open(tmp_path)
    for at in range(20):
        db.publish(C1 if at % 2 else C2, at, NEVER_US, at, b"")
        db.subscribe(C1 if at % 2 else C2, at, 0, NEVER_US, at)
    db.flush()
    with db.environment.snapshot() as txn, txn.cursor(db.environment.runs) as cursor:
        [value] = [bytes(value) for _, value in cursor]
    keys = segment_rows(memoryview(value), verify=True).key
    assert np.array_equal(keys, np.repeat(np.array(sorted([C1 * 2, C1 * 2 + 1, C2 * 2, C2 * 2 + 1]), np.uint64), 10))
    db.close()


def test_section_5_lists_are_fragments_until_compaction_joins_them(tmp_path: Path) -> None:
    """Figure 4: C1's list lies in several components; a read collects it from memory and all of them."""
    db = DualDB.open(tmp_path, DualOptions(map_bytes=1 << 28, runs_fanout=3, reserve_bytes=0))
    for flush in range(2):
        for at in range(5):
            db.publish(C1, flush * 5 + at, NEVER_US, flush * 5 + at, b"")
        db.flush()
    db.publish(C1, 10, NEVER_US, 10, b"")
    assert (db.stats().runs, db.stats().memory_rows) == (2, 1)
    assert [p.pid for p in db.subscribe(C1, 11, 0, NEVER_US, 1)] == list(range(11))
    db.flush()
    db.unsubscribe(C2, 11, 1)
    db.flush()  # merging is done behind transactions
    assert db.stats().runs == 1
    assert [p.pid for p in db.subscribe(C1, 12, 0, NEVER_US, 2)] == list(range(11))
    db.close()


def test_section_4_expired_items_are_removed_by_compaction(tmp_path: Path) -> None:
    db = DualDB.open(tmp_path, SMALL)
    files = []
    for batch in workload_batches(Workload(city_cells(1, 20_000), 0.5, 100, 100, 3), 20_000):
        db.apply(batch)
        files.append(db.environment.file_bytes())
    stats = db.stats()
    assert stats.memory_rows + stats.run_rows < 2 * 20 * 100 + 3 * SMALL.memory_rows_max  # 200 s of items; 20 s live
    assert stats.batches < 40
    assert max(files[100:]) <= 1.25 * max(files[:100])  # 20 transactions; from the 60th on it stays as it is
    db.close()


def test_section_4_2_repeated_queries_find_what_instant_answers_do(tmp_path: Path) -> None:
    """In the end: what DualDB says at once, both kinds of RepQueries find in the INTERVALS queries after T_S."""
    workload = Workload(city_cells(1, 200), 0.75, 1_000, 500, 5)
    dual = OneDatabase(tmp_path / "dual", SMALL)
    alone = RepQueries(tmp_path / "alone")
    joined = RepQueriesJoined(tmp_path / "joined", SMALL)
    totals = {"dual": 0, "alone": 0, "joined": 0}
    for batch in workload_batches(workload, 20_000):
        for name, engine in (("dual", dual), ("alone", alone), ("joined", joined)):
            totals[name] += engine.apply(batch).answers
    end = START_US + 20 * S + WINDOW_US
    late = 20 * S + LIFE_US  # publications are asked for before they expire
    assert WINDOW_US % INTERVALS == 0
    for at in range(INTERVALS):
        now = end - WINDOW_US + (at + 1) * WINDOW_US // INTERVALS
        assert now < START_US + late
        totals["alone"] += alone.drain(now).answers
        totals["joined"] += joined.drain(now).answers
    assert totals["alone"] == totals["joined"] == totals["dual"] > 10_000
    for engine in (dual, alone, joined):
        engine.close()


def test_engines_under_comparison_give_the_same_answers(tmp_path: Path) -> None:
    engines: list[ComparedEngine] = [
        OneDatabase(tmp_path / "one", SMALL),
        TwoDatabases(tmp_path / "two", SMALL),
        ListsOn(LevelDB(tmp_path / "level"), tmp_path / "level"),
        ListsOn(RocksDB(tmp_path / "rocks"), tmp_path / "rocks"),
    ]
    for batch in workload_batches(Workload(city_cells(2, 300), 0.25, 200, 100, 6), 6_000):
        first, *others = [engine.apply(batch) for engine in engines]
        assert all(other == first for other in others)
    assert all(engine.file_bytes() > 0 for engine in engines)
    for engine in engines:
        engine.close()


def test_padres_on_postgresql_gives_the_same_answers(tmp_path: Path) -> None:
    from lexicast.bench.dualdb.baselines.padres import Padres
    from lexicast.bench.dualdb.postgres import server

    dual = OneDatabase(tmp_path / "one", SMALL)
    with server() as conninfo:
        padres = Padres(conninfo)
        for batch in workload_batches(Workload(city_cells(2, 50), 0.75, 100, 100, 6), 4_000):
            assert padres.apply(batch) == dual.apply(batch)
        assert padres.file_bytes() > 0
        padres.close()
    dual.close()


def test_section_6_1_the_workload_is_the_papers() -> None:
    cells = city_cells(1, 50_000)
    assert int(cells.max()) < 500 * 500
    shares = np.sort(np.unique(cells, return_counts=True)[1] / len(cells))[::-1]
    assert shares[:100].sum() > 20 * 100 / 250_000  # skewed: what an even spread would give, twenty-fold
    kinds = np.concatenate([batch.kind for batch in workload_batches(Workload(cells, 0.75, 1_000, 1_000, 1), 20_000)])
    assert abs(float((kinds == 1).mean()) - 0.75) < 0.02
