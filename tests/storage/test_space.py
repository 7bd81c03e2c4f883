"""Room that is not there: full disks and maps, readers that hold pages, alive and killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, control_block, pack_meta
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.errors import StoreFullError
from lexicast.cluster.records import ProducerSeen, pack_record
from lexicast.storage.commits import Commits
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.environment.space import RAN_OUT_S, READERS_S
from lexicast.storage.store import Store

from ..support.topic_past import topic_past

START_US = 1_700_000_000_000_000
MIB = 1 << 20
SIZE = 200_000

# Opens a read transaction and holds it until it is killed.
READER = """
import lmdb, sys
environment = lmdb.open(sys.argv[1], readonly=True, max_dbs=32, map_size=int(sys.argv[2]))
with environment.begin():
    print("reads", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_US)


def opened(directory: Path, clock: ManualClock, map_mib: int = 16) -> Store:
    """A store with a small map, a quota that never stops it before the map does, and history of 4 MiB."""
    options = StoreOptions(
        map_bytes=map_mib * MIB,
        quota_bytes=map_mib * MIB,
        reserve_bytes=MIB,
        retention_bytes=4 * MIB,
    )
    return Store.open(directory, cluster_id="c", member="m", groups=2, options=options, clock=clock)


def pub(first: int, size: int = SIZE) -> Block:
    meta = pack_meta(Meta((b"a",), (Run(0, 0, 0, 0, 0, None, -1, 1),), (), (), (), ()))
    return Block(0, 1, first, first, START_US + first, PUBLICATIONS, meta, size.to_bytes(4, "little"), bytes(size))


def control(first: int) -> Block:
    return control_block(1, 1, first, START_US + first, [pack_record(ProducerSeen(b"p", 1, first))])


class Publishing:
    """Publishes one record after another, and takes the steps between commits that the committer takes."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.next = 0
        self.refused = 0

    def go_on(self, records: int) -> int:
        """Publish so many; how many were taken."""
        taken = 0
        for _ in range(records):
            try:
                self.store.commit([pub(self.next)])
                taken += 1
            except StoreFullError:
                self.refused += 1
            self.next += 1
            self.clock.advance(0.1)
            for _ in range(4):
                self.store.reclaim(self.clock.time_us())
        return taken


def reader(directory: Path, map_mib: int = 16) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", READER, str(directory), str(map_mib * MIB)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "reads\n"
    return process


def test_a_killed_reader_holds_pages_only_until_it_is_noticed(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock)
    publishing = Publishing(store, clock)
    assert publishing.go_on(20) == 20
    process = reader(tmp_path)
    process.kill()
    process.communicate()
    # Three times what the map holds: with its pages held for good there would be no room for it.
    assert publishing.go_on(250) == 250
    assert not store.stats().poisoned
    store.close()


def test_pages_held_by_a_reader_are_no_room_and_come_back_with_its_end(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock)
    publishing = Publishing(store, clock)
    publishing.go_on(20)
    process = reader(tmp_path)
    assert publishing.go_on(100) < 100
    assert store.stats().pinned
    assert store.stats().free_bytes < MIB + 2 * SIZE
    store.commit([control(0)])  # control records may use the reserve
    process.communicate("", timeout=60)
    clock.advance(READERS_S)
    for _ in range(50):
        clock.advance(RAN_OUT_S / 10)
        store.reclaim(clock.time_us())
    assert store.room()
    assert publishing.go_on(50) == 50
    store.close()


@pytest.mark.parametrize(
    "error", [lmdb.DiskError("mdb_txn_commit: No space left on device"), lmdb.MapFullError("mdb_put: MDB_MAP_FULL")]
)
def test_a_commit_that_finds_no_room_is_refused_and_publishing_resumes(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, error: lmdb.Error
) -> None:
    def full(self: Commits, txn: object) -> None:
        raise error

    store = opened(tmp_path, clock)
    store.commit([pub(0)])
    with monkeypatch.context() as patched:
        patched.setattr(Commits, "_end_transaction", full)
        with pytest.raises(StoreFullError, match="publishing resumes"):
            store.commit([pub(1)])
    assert not store.room()
    assert [block.first for block in store.read(0, 0).blocks] == [0]
    with pytest.raises(StoreFullError):
        store.commit([pub(1)])
    clock.advance(RAN_OUT_S)
    assert store.room()
    store.commit([pub(1)])
    store.close()
    store = opened(tmp_path, clock)
    assert [block.first for block in store.read(0, 0).blocks] == [0, 1]
    store.close()


def test_housekeeping_that_finds_no_room_begins_again_and_loses_nothing_of_the_index(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, clock)
    for first in range(30):
        store.commit([pub(first, 100)])
    begin = store.environment.begin
    tries = iter(range(1_000))

    class Full:
        """Every other transaction finds no room at its end."""

        def __init__(self) -> None:
            self._txn = begin()

        def __enter__(self) -> object:
            return self._txn.__enter__()

        def __exit__(self, *error: object) -> None:
            if next(tries) % 2 == 0:
                self._txn.abort()
                raise lmdb.MapFullError("mdb_txn_commit: MDB_MAP_FULL")
            self._txn.commit()

    monkeypatch.setattr(store.environment, "begin", Full)
    for _ in range(100):
        try:
            store.flush()
            break
        except StoreFullError:
            continue
    monkeypatch.undo()
    assert store.stats().index_pending == 0
    assert [block.first for block in topic_past(store, 0, b"a", 0, 2**62, limit=100)] == list(range(30))
    store.close()
