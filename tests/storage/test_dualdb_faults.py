"""DualDB and stores when things go wrong: killed, a disk that fills, a file cut short."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from lexicast.bench.dualdb.crash import kills, store_block
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.errors import StoreError, StoreFormatError, StoreFullError, StorePoisonedError, UsageError
from lexicast.storage.dualdb.batches import PUBLISH, SUBSCRIBE, UNSUBSCRIBE, OperationBatch
from lexicast.storage.dualdb.engine import DualDB
from lexicast.storage.dualdb.environment import DUAL_FILE
from lexicast.storage.dualdb.operation_log import JOURNALED_BYTES_MAX
from lexicast.storage.dualdb.options import DualOptions
from lexicast.storage.dualdb.rows import NEVER_US
from lexicast.storage.dualdb.runs import SortedRun
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.environment.space import RAN_OUT_S, Space
from lexicast.storage.file.disk import POISON_FILE
from lexicast.storage.file.sealing import DamageError
from lexicast.storage.maintenance import directory as maintenance
from lexicast.storage.store import Store

from ..support.dualdb_model import Operation, batch_of

TINY = DualOptions(map_bytes=1 << 28, memory_rows_max=300, segment_rows=64, runs_fanout=3, reserve_bytes=0)
DISK_MIB = 4


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of DISK_MIB; where this user may not mount one, these tests are left out."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def add_disk(disk: Path) -> None:
    subprocess.run(["mount", "-o", f"remount,size={8 * DISK_MIB}m", str(disk)], check=True)


@pytest.mark.parametrize("name", ["dual", "store"])
def test_whatever_was_acknowledged_survives_sigkill_at_random_moments(name: str) -> None:
    outcomes = kills(name, 6, seed=11)
    assert [(o.lost, o.torn) for o in outcomes] == [(0, "")] * 6
    assert sum(o.found for o in outcomes) > 6


def publications(number: int) -> OperationBatch:
    now = 1_000 + number
    return batch_of([Operation(PUBLISH, at, now, 0, NEVER_US, number * 10 + at, bytes(5_000)) for at in range(10)])


def until_refused(write: Callable[[int], object]) -> tuple[int, StoreError]:
    """Write until that is refused: how often it went well, and the error."""
    for number in range(10_000):
        try:
            write(number)
        except StoreError as error:
            return number, error
    raise AssertionError("the disk never filled")


def test_dualdb_on_a_full_disk_says_so_and_goes_on_when_there_is_space(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = DualDB.open(small_disk / "db", TINY)
    with monkeypatch.context() as patched:
        patched.setattr(DualDB, "_admit", lambda *unused: None)  # somebody else fills the disk after it was looked at
        acknowledged, error = until_refused(lambda number: db.apply(publications(number)))
    assert "No space left" in str(error)
    assert acknowledged > 10
    for refused in (lambda: db.apply(publications(0)), db.flush, lambda: db.payloads([0])):
        with pytest.raises(StorePoisonedError, match="I/O error"):
            refused()
    assert db.stats().poisoned
    db.close()
    assert not (small_disk / "db" / POISON_FILE).exists()
    add_disk(small_disk)
    db = DualDB.open(small_disk / "db", TINY)
    assert db.stats().operations == 10 * acknowledged
    for id in range(10):
        past = db.subscribe(id, 10**6, 0, NEVER_US, 1)
        assert [p.pid for p in past] == [number * 10 + id for number in range(acknowledged)]
    assert db.payloads([0, 10 * acknowledged - 1]) == [bytes(5_000)] * 2
    db.close()
    assert maintenance.check(small_disk / "db").sound


def test_the_reserve_refuses_batches_before_the_disk_is_full_and_lets_unsubscribing_pass(small_disk: Path) -> None:
    options = DualOptions(map_bytes=1 << 28, memory_rows_max=300, reserve_bytes=2 << 20)
    db = DualDB.open(small_disk / "db", options)
    db.subscribe(1, 0, 0, NEVER_US, 7)
    _, error = until_refused(lambda number: db.apply(publications(number)))
    assert isinstance(error, StoreFullError)
    assert "kept for expiry" in str(error)
    stored = db.stats().operations
    db.unsubscribe(1, 10**6, 7)
    assert db.stats().operations == stored + 1
    assert not db.stats().poisoned
    db.close()


def test_batches_are_accepted_again_when_expiry_has_freed_pages_of_a_full_disk(small_disk: Path) -> None:
    options = DualOptions(map_bytes=1 << 28, memory_rows_max=300, reserve_bytes=1 << 20)
    db = DualDB.open(small_disk / "db", options)
    _, error = until_refused(lambda number: db.apply(publications(number)._replace(high=np.full(10, 2_000_000))))
    assert isinstance(error, StoreFullError)
    db.unsubscribe(1, 3_000_000, 7)  # time passes
    db.flush()
    db.unsubscribe(1, 3_000_000, 7)
    db.unsubscribe(1, 3_000_000, 7)
    for number in range(20):
        db.apply(publications(number))
    db.close()


def test_a_store_on_a_full_disk_says_so_and_goes_on_when_there_is_space(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, clock = small_disk / "store", ManualClock()
    options = StoreOptions(retention_s=0, reserve_bytes=0)
    store = Store.open(directory, cluster_id="c", member="m", groups=1, options=options, clock=clock)
    with monkeypatch.context() as patched:
        patched.setattr(Space, "admit", lambda *unused: None)
        acknowledged, error = until_refused(lambda number: store.commit([store_block(number)]))
    assert "No space left" in str(error)
    assert acknowledged > 10
    with pytest.raises(StoreFullError):  # nothing was half written: a refusal, no poison
        store.commit([store_block(acknowledged)])
    add_disk(small_disk)
    clock.advance(RAN_OUT_S)  # it is not tried at once again
    found = []
    offset = 0
    while (result := store.read(0, offset)).next_offset != offset:
        found += result.blocks
        offset = result.next_offset
    assert [b.to_wire() for b in found] == [store_block(step).to_wire() for step in range(acknowledged)]
    store.commit([store_block(acknowledged)])
    store.close()


def test_a_dualdb_cut_short_is_an_error_that_names_it_and_repair_keeps_the_rest(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    db = DualDB.open(origin, TINY)
    for number in range(60):
        db.apply(publications(number))
    db.close()
    size = (origin / DUAL_FILE).stat().st_size
    for part in (0.95, 0.7, 0.3):
        directory = tmp_path / str(part)
        shutil.copytree(origin, directory)
        os.truncate(directory / DUAL_FILE, int(size * part))
        report = maintenance.check(directory)
        assert [d.table for d in report.damages] == ["file"]
        assert "cut off" in report.damages[0].what
        try:
            maintenance.repair(directory)
        except StoreFormatError:
            continue  # not even the list of tables is left
        assert maintenance.check(directory).sound
        db = DualDB.open(directory, TINY)
        for id in range(10):
            pids = [p.pid for p in db.subscribe(id, 10**6, 0, NEVER_US, 1)]
            assert set(pids) <= set(range(id, 600, 10))
        db.close()


@pytest.mark.parametrize("where", ["journal", "lmdb"])
def test_an_io_error_other_than_a_full_disk_is_remembered_until_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    db = DualDB.open(tmp_path, TINY)
    db.apply(publications(0))
    with monkeypatch.context() as patched:
        if where == "journal":
            patched.setattr(os, "fdatasync", broken)
        else:
            db.environment.lmdb.close()  # what LMDB answers from here on is an error of its own
        with pytest.raises(StoreError, match="refuses everything"):
            db.apply(publications(1)) if where == "journal" else db.flush()
    with pytest.raises(StorePoisonedError):
        db.apply(publications(1))
    db.close()
    with pytest.raises(StorePoisonedError, match="look at the disk"):
        DualDB.open(tmp_path, TINY)
    assert maintenance.repair(tmp_path).sound
    db = DualDB.open(tmp_path, TINY)
    assert db.stats().operations in ((10, 20) if where == "journal" else (10,))  # what was refused may be there
    db.close()


def damaged(*unused: object) -> NoReturn:
    raise DamageError("runs", 1, 0, "the segment does not match its checksum")


def with_a_run(directory: Path) -> DualDB:
    """A DualDB whose publications 0 to 9 of ID 1 lie in a run."""
    db = DualDB.open(directory, TINY)
    for pid in range(10):
        db.publish(1, 1_000 + pid, NEVER_US, pid, b"%d" % pid)
    db.flush()
    return db


def crash_and_open(db: DualDB, directory: Path) -> DualDB:
    db.environment.close()
    return DualDB.open(directory, TINY)


@pytest.mark.parametrize("later", [0, 1, 2, 3])
def test_an_operation_that_meets_damage_keeps_its_number_and_later_ones_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    db = with_a_run(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(SortedRun, "segment", damaged)
        with pytest.raises(DamageError):
            db.subscribe(1, 2_000, 0, NEVER_US, 77)
    assert not db.stats().poisoned
    pids = list(range(100, 100 + later))
    for pid in pids:
        assert [found.sid for found in db.publish(1, 3_000, NEVER_US, pid, b"%d" % pid)] == [77]
    assert db.payloads(list(range(11, 11 + later))) == [b"%d" % pid for pid in pids]
    db = crash_and_open(db, tmp_path)
    assert db.stats().operations == 11 + later
    past = db.subscribe(1, 4_000, 0, NEVER_US, 78)
    assert [(p.position, p.pid) for p in past] == [(at, at) for at in range(10)] + [(pid - 89, pid) for pid in pids]
    db.close()
    assert maintenance.check(tmp_path).sound


@pytest.mark.parametrize("size", [3, 20])
def test_a_batch_whose_first_operation_meets_damage_is_stored_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Row by row and by columns."""
    db = with_a_run(tmp_path)
    operations = [Operation(SUBSCRIBE, 1, 2_000, 0, NEVER_US, 77)]
    operations += [Operation(PUBLISH, 2, 2_001, 0, NEVER_US, pid, b"%d" % pid) for pid in range(size - 2)]
    operations += [Operation(UNSUBSCRIBE, 1, 2_002, tag=77)]
    with monkeypatch.context() as patched:
        patched.setattr(SortedRun, "segment", damaged)
        with pytest.raises(DamageError):
            db.apply(batch_of(operations))
    assert db.stats().operations == 10 + size
    assert db.publish(1, 3_000, NEVER_US, 10, b"10") == []
    db = crash_and_open(db, tmp_path)
    assert db.stats().operations == 11 + size
    assert [p.pid for p in db.subscribe(2, 4_000, 0, NEVER_US, 78)] == list(range(size - 2))
    assert [p.pid for p in db.subscribe(1, 4_000, 0, NEVER_US, 78)] == list(range(11))
    db.close()


def test_a_merge_that_meets_damage_holds_up_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction completes a run and begins to merge it with a damaged one."""
    options = DualOptions(map_bytes=1 << 28, memory_rows_max=100, segment_rows=16, runs_fanout=2, reserve_bytes=0)
    db = DualDB.open(tmp_path, options)

    def publish(pids: range) -> None:
        for pid in pids:
            assert db.publish(pid % 50, 1_000 + pid, NEVER_US, pid, b"%d" % pid) == []

    publish(range(100))
    db.flush()
    with monkeypatch.context() as patched:
        patched.setattr(SortedRun, "segment", damaged)
        patched.setattr(SortedRun, "find", lambda *unused: None)
        publish(range(100, 450))
        with pytest.raises(DamageError):
            db.step()
        with pytest.raises(DamageError):
            db.flush()
        publish(range(450, 500))
    assert db.stats().operations == 500
    for again in range(2):
        for id in range(50):
            assert [p.pid for p in db.subscribe(id, 10**6, 0, NEVER_US, again)] == list(range(id, 500, 50))
        if not again:
            db.environment.close()
            assert maintenance.check(tmp_path).sound
            db = DualDB.open(tmp_path, options)
    db.flush()
    assert db.stats().runs < 4
    db.close()


def test_a_second_owner_is_refused(tmp_path: Path) -> None:
    db = DualDB.open(tmp_path, TINY)
    with pytest.raises(StoreError, match="in use"):
        DualDB.open(tmp_path, TINY)
    db.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kind": np.array([4], np.uint8)}, "numbered"),
        ({"id": np.array([2**63], np.uint64)}, "below 2"),
        ({"id": np.array([1, 2], np.uint64)}, "different lengths"),
        ({"time": np.array([1], np.int32)}, "columns"),
        ({"payloads": []}, "payloads"),
        ({"kind": np.array([SUBSCRIBE], np.uint8)}, "payloads"),
    ],
)
def test_a_callers_mistake_changes_nothing(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    db = DualDB.open(tmp_path, TINY)
    good = batch_of([Operation(PUBLISH, 1, 5, 0, 9, 1, b"x")])
    with pytest.raises(UsageError, match=why):
        db.apply(good._replace(**change))
    assert db.stats().operations == 0
    db.apply(good)
    with pytest.raises(UsageError, match="out of range"):
        db.publish(-1, 0, 0, 0, b"")
    db.close()


@pytest.mark.parametrize("whole", [np.int64, np.int32, np.uint32, np.uint64, bool])
@pytest.mark.parametrize("payload", [b"short", bytes(JOURNALED_BYTES_MAX + 1)])
def test_integers_of_numpy_are_taken_as_pythons_own(
    tmp_path: Path, whole: Callable[[int], int], payload: bytes
) -> None:
    """NumPy's wrap or overflow where an ID becomes a key, and have no `to_bytes`."""
    db = DualDB.open(tmp_path, TINY)
    large = whole(2**31 - 1)  # True is 1, as everywhere in Python
    assert db.publish(large, whole(0), large, large, payload) == []
    found = db.subscribe(int(large), 0, 0, int(large), int(large))
    assert found == [(0, int(large), int(large), 0)]
    assert db.subscribe(large, whole(0), whole(0), large, large) == found
    db.renew(large, whole(0), whole(0), large, large)
    assert [s.sid for s in db.publish(large, whole(0), large, whole(1), payload)] == [int(large)]
    db.unsubscribe(large, whole(0), large)
    assert db.publish(int(large), 0, 1, 1, b"") == []
    assert db.payloads([whole(0)]) == [payload]
    db = crash_and_open(db, tmp_path)
    assert next(p.pid for p in db.subscribe(int(large), 0, 0, 1, 1)) == int(large)
    db.close()


@pytest.mark.parametrize("payload", [b"short", bytes(JOURNALED_BYTES_MAX + 1)])
@pytest.mark.parametrize("wrong", [1.5, 1.0, np.float64(1), np.bool_(True), "1", None])
def test_what_is_no_integer_is_the_callers_mistake(tmp_path: Path, wrong: Any, payload: bytes) -> None:
    db = DualDB.open(tmp_path, TINY)
    for refused in (
        lambda: db.publish(wrong, 0, 9, 1, payload),
        lambda: db.publish(1, 0, wrong, 1, payload),
        lambda: db.subscribe(1, wrong, 0, 9, 1),
        lambda: db.renew(1, 0, 0, 9, wrong),
        lambda: db.unsubscribe(1, wrong, 1),
        lambda: db.payloads([wrong]),
    ):
        with pytest.raises(UsageError, match="not a whole one"):
            refused()
    assert db.stats().operations == 0
    db.close()


@pytest.mark.parametrize("position", [-2, -1, 1, 2**64, np.int64(-2)])
def test_there_is_no_payload_where_nothing_was_published(tmp_path: Path, position: int) -> None:
    db = DualDB.open(tmp_path, TINY)
    db.publish(1, 0, 9, 1, b"x")
    with pytest.raises(UsageError, match="no publication"):
        db.payloads([position])
    db.close()
