"""Work behind the commits is done in steps, and what a step does is bounded: counted here, not timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, pack_meta
from lexicast.cluster.clock import ManualClock
from lexicast.storage.dualdb import merging as jobs
from lexicast.storage.dualdb import tiers
from lexicast.storage.dualdb.batches import SUBSCRIBE, OperationBatch
from lexicast.storage.dualdb.engine import DualDB
from lexicast.storage.dualdb.merging import TAKES_A_STEP
from lexicast.storage.dualdb.options import DualOptions
from lexicast.storage.dualdb.rows import RowColumns, merged
from lexicast.storage.dualdb.runs import SortedRun as SortedRun
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.index.index_writer import IndexWriter
from lexicast.storage.index.memory import BlockEntries
from lexicast.storage.store import Store
from lexicast.storage.upkeep.reclaiming import BLOCKS_A_STEP
from lexicast.storage.upkeep.sweeping import Sweeper

START_US = 1_700_000_000_000_000
SMALL = StoreOptions(index_entries_max=64, index_step_topics=16, retention_s=100)


def publications(first: int, topics: list[bytes], time_us: int = START_US) -> Block:
    """A block with one publication of each topic."""
    runs = tuple([Run(0, at, 0, 0, 0, None, -1, 1) for at in range(len(topics))])
    meta = pack_meta(Meta(tuple(topics), runs, (), (), (), ()))
    lengths = (1).to_bytes(4, "little") * len(topics)
    return Block(0, 1, first, first + len(topics) - 1, time_us, PUBLICATIONS, meta, lengths, b"x" * len(topics))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(time_us=START_US)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    opened = Store.open(tmp_path / "s", cluster_id="c", member="m", groups=1, options=SMALL, clock=clock)
    yield opened
    opened.close()


def written_steps(
    store: Store, entries: Sequence[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[int], list[tuple[int, int]]]:
    """Of each step of writing these entries, (topic id, offset), how many rows it ordered; and all rows as written."""
    ordered: list[int] = []
    written: list[tuple[int, int]] = []
    whole, append = jobs.in_order, SortedRun.append

    def counted(parts: Sequence[RowColumns], now_us: int) -> RowColumns:
        ordered[-1] += sum([part.size for part in parts])
        return whole(parts, now_us)

    def appended(run: SortedRun, txn: Any, database: Any, rows: RowColumns) -> None:
        assert rows.size <= SMALL.index_step_topics
        written.extend(zip(rows.key.tolist(), rows.seq.tolist(), strict=True))
        append(run, txn, database, rows)

    monkeypatch.setattr(jobs, "in_order", counted)
    monkeypatch.setattr(SortedRun, "append", appended)
    for topic_id, offset in entries:
        store._index.memory.add(BlockEntries([topic_id], [offset], [1], None, START_US))
    ordered.append(0)
    while store._index_writer.step():
        ordered.append(0)
    return ordered, written


def test_writing_a_memory_table_orders_about_a_segment_a_step_however_many_topics_it_has(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = np.random.default_rng(1).permutation(1_000).tolist()
    ordered, written = written_steps(store, [(topic, at) for at, topic in enumerate(topics)], monkeypatch)
    assert written == [(topic, topics.index(topic)) for topic in range(1_000)]
    assert max(ordered) <= 2 * SMALL.index_step_topics + 1_000 // 8
    assert len(ordered) >= 1_000 // SMALL.index_step_topics


def test_a_topic_with_more_entries_than_a_segment_is_written_in_several_steps(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [(topic, offset) for offset in range(250) for topic in (1, 2, 3)]
    ordered, written = written_steps(store, entries, monkeypatch)
    assert written == sorted(entries)
    assert max(ordered) <= 2 * SMALL.index_step_topics + 750 // 8
    assert len(ordered) >= 750 // SMALL.index_step_topics


def test_a_merge_of_what_retention_has_passed_by_reads_few_segments_a_step(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    whole = SortedRun.segment

    def counted(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return whole(*arguments)

    names = [f"t{number}".encode() for number in range(1_000)]
    for at in range(4):
        store.commit([publications(at * 1_000, names, clock.time_us())])
        store.flush()
        clock.advance(1)
    clock.advance(200)
    steps = 0
    monkeypatch.setattr(SortedRun, "segment", counted)
    while store.reclaim(clock.time_us()).more:
        assert reads <= 4 * TAKES_A_STEP + 128  # a merge, or a look at 128 topics
        reads = 0
        steps += 1
    assert steps > 10
    assert list(store.tables.topics(0)) == []


def test_a_commit_that_meets_a_full_memory_table_writes_little_of_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    whole = IndexWriter.step

    def counted(behind: IndexWriter) -> bool:
        nonlocal steps
        steps += 1
        return whole(behind)

    monkeypatch.setattr(IndexWriter, "step", counted)
    most = 0
    for number in range(200):
        names = [f"t{number}/{at}".encode() for at in range(20)]
        before = steps
        store.commit([publications(number * 20, names)])
        assert steps - before <= 1 + 2 * 20 // SMALL.index_step_topics
        most = max(most, store.stats().index_pending)
    assert steps > 20
    assert most <= 4 * SMALL.index_entries_max


def test_writing_behind_keeps_neither_merging_nor_retention_from_their_turns(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit([publications(0, [b"a"])])
    store.flush()
    monkeypatch.setattr(type(store._index.memory), "due", True)
    monkeypatch.setattr(IndexWriter, "step", lambda *_: True)
    clock.advance(200)
    assert sum([store.reclaim(clock.time_us()).blocks for _ in range(4)]) == 1
    monkeypatch.undo()


def test_a_block_with_many_topics_leaves_them_to_later_steps(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten = 0
    whole = Sweeper._forget

    def counted(sweeper: Sweeper, *arguments: Any) -> None:
        nonlocal forgotten
        forgotten += 1
        whole(sweeper, *arguments)

    names = [f"t{number}".encode() for number in range(1_000)]
    for at in range(2):
        store.commit([publications(at * 1_000, names)])
    store.flush()
    clock.advance(200)
    monkeypatch.setattr(Sweeper, "_forget", counted)
    blocks = steps = 0
    while (done := store.reclaim(clock.time_us())).more:
        assert done.blocks <= BLOCKS_A_STEP
        assert forgotten <= 128
        blocks, steps, forgotten = blocks + done.blocks, steps + 1, 0
    assert blocks == 2
    assert steps >= 1_000 // 128
    assert list(store.tables.topics(0)) == []


def test_a_full_memory_table_of_a_dualdb_is_merged_a_segment_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merges: list[int] = []
    whole = merged

    def counted(parts: Sequence[RowColumns], now_us: int) -> RowColumns:
        merges.append(sum([part.size for part in parts]))
        return whole(parts, now_us)

    monkeypatch.setattr(jobs, "merged", counted)
    options = DualOptions(map_bytes=1 << 28, memory_rows_max=4_000, segment_rows=100, journal_bytes=1, reserve_bytes=0)
    db = DualDB.open(tmp_path / "d", options)
    random = np.random.default_rng(1)
    written = 0
    for number in range(100):
        time = np.full(100, number, np.int64)
        kind = np.full(100, SUBSCRIBE, np.uint8)
        id, tag = random.integers(0, 50, 100).astype(np.uint64), np.arange(100, dtype=np.uint64)
        db.append(OperationBatch(kind, id, time, time, np.full(100, 10**9), tag, []))
        assert len(merges) <= TAKES_A_STEP
        assert (
            max(merges, default=0) <= 100 + 4 * 8 * 4
        )  # pieces are rounded up, a tier each; and runs by their segments
        written += sum(merges)
        merges.clear()
    assert written > 4_000
    monkeypatch.undo()
    db.close()


def test_tiers_of_the_memory_table_are_joined_a_few_rows_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = 0
    whole = merged

    def counted(parts: Sequence[RowColumns], now_us: int) -> RowColumns:
        nonlocal moved
        moved += sum([part.size for part in parts])
        return whole(parts, now_us)

    monkeypatch.setattr(tiers, "merged", counted)
    monkeypatch.setattr(tiers, "MOVED_ROWS_MIN", 100)
    monkeypatch.setattr(tiers, "_TAKEN_ROWS", 50)
    monkeypatch.setattr(tiers, "GROWN_ROWS", 1)
    monkeypatch.setattr(tiers, "FANOUT", 8)
    table = tiers.Tiers()
    random = np.random.default_rng(1)
    levels = 3
    for number in range(8**levels):
        key = np.sort(random.integers(0, 1_000, 20).astype(np.uint64))
        seq = np.arange(20, dtype=np.uint64) + np.uint64(20 * number)
        times = np.full(20, number, np.int64)
        table.add(RowColumns(key, seq, times, times + 10**6, seq), number)
        assert moved <= levels * (8 * 20 + 50 + 8)
        moved = 0
    parts = table.parts(0)
    assert table.rows == 20 * 8**levels == sum([part.size for part in parts])
    assert sorted(np.concatenate([part.seq for part in parts]).tolist()) == list(range(table.rows))
    assert all([bool((part.key[1:] >= part.key[:-1]).all()) for part in parts])
    assert len(parts) <= levels * 16


def test_tiers_that_have_expired_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "GROWN_ROWS", 1)
    monkeypatch.setattr(tiers, "FANOUT", 8)
    table = tiers.Tiers()
    one = np.arange(100, dtype=np.uint64)
    for number in range(64):
        times = np.full(100, number, np.int64)
        table.add(RowColumns(one, one, times, times + 8, one), number)
    assert table.rows <= 100 * (8 + 8)
    assert table.parts(1_000) == []
