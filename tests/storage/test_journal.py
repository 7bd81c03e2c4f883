"""DualDB's journal: what a crash leaves of it, what damage costs, and that a round never takes another's bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgpack
import pytest

from lexicast.cluster.errors import StoreError
from lexicast.storage.dualdb.batches import PUBLISH, SUBSCRIBE, RowOperation, encode_batch, encode_rows
from lexicast.storage.dualdb.engine import DualDB
from lexicast.storage.dualdb.journal import JOURNAL_FILE, Journal, content_of, entry_bytes
from lexicast.storage.dualdb.merge_tree import MergeTree
from lexicast.storage.dualdb.options import DualOptions
from lexicast.storage.dualdb.recent import batch_of_rows
from lexicast.storage.dualdb.rows import EVER_US, NEVER_US, RowColumns
from lexicast.storage.file.sealing import unseal
from lexicast.storage.maintenance import directory as maintenance

OPTIONS = DualOptions(map_bytes=1 << 28, reserve_bytes=0)


def value_of(first: int, payload: bytes = b"x") -> bytes:
    return encode_rows([RowOperation(PUBLISH, 1, first, 0, NEVER_US, first)], [payload], first, first)


def pids(directory: Path) -> list[int]:
    db = DualDB.open(directory, OPTIONS)
    found = [publication.pid for publication in db.subscribe(1, 1_000, 0, NEVER_US, 1)]
    db.close()
    return found


def crashed(directory: Path, publications: int, moved: int = 0) -> Path:
    """A store whose process ended without closing it; its first `moved` publications are in LMDB."""
    db = DualDB.open(directory, OPTIONS)
    for pid in range(publications):
        if pid == moved:
            db.flush()
        db.publish(1, pid, NEVER_US, pid, b"payload %d" % pid)
    db.environment.close()
    return directory


def ends(data: bytes, following: int) -> list[int]:
    """Where each entry ends."""
    found, at = [], 0
    for entry in content_of(data, following).entries:
        at += len(entry_bytes(entry.value, 1))
        found.append(at)
    return found


@pytest.mark.parametrize("rows", [1, 3])
def test_a_batch_is_the_same_row_by_row_and_by_columns(rows: int) -> None:
    operations = [
        RowOperation(PUBLISH, 5, -7, -8, 2**62, 2**64 - 1),
        RowOperation(SUBSCRIBE, 2**63 - 1, 3, EVER_US, 9, 1),
        RowOperation(PUBLISH, 0, NEVER_US, 3, -4, 5),
    ][:rows]
    payloads = [b"one", b""][: 1 if rows == 1 else 2]
    batch = batch_of_rows(operations, payloads)
    assert encode_rows(operations, payloads, 77, 9) == encode_batch(batch, 77, 9)


def test_a_crash_costs_nothing_but_the_entry_that_was_being_written(tmp_path: Path) -> None:
    origin = crashed(tmp_path / "origin", 8, moved=3)
    data = (origin / JOURNAL_FILE).read_bytes()
    stops = ends(data, 3)
    assert len(stops) == 5
    for kept in (0, 1, 4):
        start = stops[kept - 1] if kept else 0
        for cut in (start, start + 9, stops[kept] - 8):
            directory = tmp_path / f"{kept}-{cut}"
            shutil.copytree(origin, directory)
            (directory / JOURNAL_FILE).write_bytes(data[:cut] + bytes(len(data) - cut))
            assert maintenance.check(directory).sound
            assert pids(directory) == list(range(3 + kept))


def test_a_damaged_entry_before_others_is_named_and_costs_only_itself(tmp_path: Path) -> None:
    origin = crashed(tmp_path / "origin", 8, moved=3)
    data = (origin / JOURNAL_FILE).read_bytes()
    stops = ends(data, 3)
    for damaged in (0, 2):
        start = stops[damaged - 1] if damaged else 0
        # Its length, its salt (which costs nothing), its ID, its payload.
        for at in (start, start + 13, start + 70, data.index(b"payload", start)):
            directory = tmp_path / str(at)
            shutil.copytree(origin, directory)
            (directory / JOURNAL_FILE).write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
            assert [damage.table for damage in maintenance.check(directory).damages] == ["journal"]
            with pytest.raises(StoreError, match="repair"):
                DualDB.open(directory, OPTIONS)
            maintenance.repair(directory)
            assert maintenance.check(directory).sound
            assert pids(directory) == [pid for pid in range(8) if pid != 3 + damaged or at == start + 13]


def test_what_was_moved_is_not_entered_again(tmp_path: Path) -> None:
    directory = crashed(tmp_path / "d", 6)
    before = (directory / JOURNAL_FILE).read_bytes()
    db = DualDB.open(directory, OPTIONS)
    db.flush()
    db.environment.close()
    assert (directory / JOURNAL_FILE).read_bytes() == before  # nothing was written over it
    assert pids(directory) == list(range(6))


@pytest.mark.parametrize("moved", [0, 100])
def test_what_the_journal_holds_is_entered_as_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    """Entered entry by entry a full journal took seconds to open."""
    directory = crashed(tmp_path / "d", 300, moved)
    entered: list[int] = []
    add = MergeTree.add

    def counted(tree: MergeTree, rows: RowColumns, now_us: int) -> None:
        entered.append(rows.size)
        add(tree, rows, now_us)

    with monkeypatch.context() as patched:
        patched.setattr(MergeTree, "add", counted)
        db = DualDB.open(directory, OPTIONS)
    assert entered == [300 - moved]
    assert db.payloads(list(range(300))) == [b"payload %d" % pid for pid in range(300)]
    db.publish(1, 300, NEVER_US, 300, b"goes on")
    db.environment.close()
    assert pids(directory) == list(range(301))


def test_entries_that_are_missing_before_others_are_damage(tmp_path: Path) -> None:
    directory = crashed(tmp_path / "d", 6)
    salt = content_of((directory / JOURNAL_FILE).read_bytes(), 0).salt
    (directory / JOURNAL_FILE).write_bytes(entry_bytes(value_of(4), salt))
    assert not maintenance.check(directory).sound
    with pytest.raises(StoreError, match="repair"):
        DualDB.open(directory, OPTIONS)


def test_no_payload_is_taken_for_an_entry(tmp_path: Path) -> None:
    """A later round ends in the middle of an older one's payload, which says what the next entry would."""
    journal = Journal(tmp_path)
    first = entry_bytes(value_of(1), 3)
    forged = bytes(-len(entry_bytes(value_of(0), 3)[:16]) % 8) + 40 * entry_bytes(value_of(2, b"forged"), 99)
    journal.append(value_of(0, forged))
    journal.restart()
    journal.append(value_of(1))
    journal.close()
    data = (tmp_path / JOURNAL_FILE).read_bytes()
    assert len(first) % 8 == 0
    assert content_of(data, 1).damaged == []
    assert [entry.first for entry in content_of(data, 1).entries] == [1]
    shifted = data[: len(first)] + entry_bytes(value_of(2, b"forged"), 99) + data[len(first) :]
    assert [entry.first for entry in content_of(shifted, 1).entries] == [1]


def test_the_file_is_written_over_from_its_start(tmp_path: Path) -> None:
    db = DualDB.open(tmp_path / "d", DualOptions(map_bytes=1 << 28, journal_bytes=4_000, reserve_bytes=0))
    sizes = []
    for pid in range(200):
        db.publish(1, pid, NEVER_US, pid, b"p")
        sizes.append((tmp_path / "d" / JOURNAL_FILE).stat().st_size)
    assert len(set(sizes)) == 1
    assert db.stats().batches >= 5
    assert db.payloads(list(range(200))) == [b"p"] * 200
    db.close()


def test_an_older_lexicast_refuses_a_store_with_a_journal(tmp_path: Path) -> None:
    directory = crashed(tmp_path / "d", 1)
    db = DualDB.open(directory, OPTIONS)
    with db.environment.snapshot() as txn:
        row = bytes(txn.get(b"manifest", b"", db.environment.meta))
    assert msgpack.unpackb(unseal("meta", b"manifest", row))[0] == 2
    db.close()
