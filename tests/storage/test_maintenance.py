"""Care for stores, stopped and in use: check, repair, compact, back up, count; coordinators' and DualDB's alike."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from lexicast.actors.cli.store import store as store_app
from lexicast.cluster.blocks import PUBLICATIONS, Block, Mark, Meta, Run, pack_meta
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.errors import StoreError, StoreFormatError, StorePoisonedError
from lexicast.storage.dualdb.batches import PUBLISH, SUBSCRIBE
from lexicast.storage.dualdb.engine import DualDB
from lexicast.storage.dualdb.environment import DUAL_FILE
from lexicast.storage.dualdb.journal import JOURNAL_FILE
from lexicast.storage.dualdb.manifest import read_manifest
from lexicast.storage.dualdb.options import DualOptions
from lexicast.storage.dualdb.rows import NEVER_US, Matches
from lexicast.storage.environment.environment import DATA_FILE
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.file.disk import POISON_FILE
from lexicast.storage.maintenance import directory as maintenance
from lexicast.storage.maintenance import dualdb_check
from lexicast.storage.store import Store

from ..support.dualdb_model import Operation, batch_of
from ..support.topic_past import topic_past

START_US = 1_700_000_000_000_000
SMALL = DualOptions(map_bytes=1 << 28, memory_rows_max=400, segment_rows=64, runs_fanout=3, reserve_bytes=0)
PAGE = 4096


def open_store(directory: Path) -> Store:
    options = StoreOptions(retention_s=0)
    return Store.open(directory, cluster_id="c", member="m", groups=2, options=options, clock=SystemClock())


def block(first: int, payloads: list[bytes], topic: bytes = b"t") -> Block:
    meta = pack_meta(Meta((topic,), (Run(0, 0, 0, 0, 0, None, -1, len(payloads)),), (), (), (), ()))
    lengths = b"".join(len(p).to_bytes(4, "little") for p in payloads)
    last = first + len(payloads) - 1
    return Block(0, 1, first, last, START_US + first, PUBLICATIONS, meta, lengths, b"".join(payloads))


def payload(number: int, at: int) -> bytes:
    """Blocks of these are too long for a leaf: they are written once, and no older copy of them is in the file."""
    return b"<%d/%d>" % (number, at) + bytes(400)


def fill_store(store: Store, blocks: int = 40) -> dict[int, bytes]:
    wanted: dict[int, bytes] = {}
    for number in range(blocks):
        payloads = [payload(number, at) for at in range(10)]
        store.commit([block(number * 10, payloads, b"t%d" % (number % 3))])
        wanted |= {number * 10 + at: each for at, each in enumerate(payloads)}
    return wanted


def found_in(store: Store) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    offset = 0
    while (result := store.read(0, offset)).next_offset != offset:
        found |= {r.offset: r.payload for b in result.blocks for r in b.records()}
        offset = result.next_offset
    past: dict[int, bytes] = {}
    for topic in (b"t0", b"t1", b"t2"):
        past |= {r.offset: r.payload for b in topic_past(store, 0, topic, 0, 2**62, limit=10**6) for r in b.records()}
    assert past == found
    return found


def fill_dual(db: DualDB, batches: int = 30) -> None:
    dice = random.Random(3)
    for number in range(batches):
        operations = []
        for at in range(50):
            time = START_US + number * 50 + at
            kind = dice.choice([PUBLISH, SUBSCRIBE])
            payload = b"%d/%d/" % (number, at) + bytes(40)
            operations.append(Operation(kind, dice.randint(0, 9), time, 0, NEVER_US, number * 50 + at, payload))
        db.apply(batch_of(operations))


def everything(db: DualDB) -> dict[int, list[int]]:
    """By ID, the numbers of all publications and subscriptions."""
    asked = [Operation(kind, id, START_US + 10**6, 0, NEVER_US, 0) for kind in (0, 1) for id in range(10)]
    found: Matches = db.apply(batch_of(asked))
    return {op: [int(seq) for seq in found.of(op).seq if seq < 1_500] for op in range(20)}


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 0x40]))


def test_repair_keeps_every_undamaged_record_and_clears_poison(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    store = open_store(directory)
    wanted = fill_store(store)
    store.close()
    (directory / POISON_FILE).write_text("somebody pulled the plug\n")
    data = (directory / DATA_FILE).read_bytes()
    for number, at in ((7, 3), (7, 4), (30, 9)):
        flip(directory / DATA_FILE, data.index(payload(number, at)) + 20)
    assert [d.offset for d in maintenance.check(directory).damages] == [73, 74, 309]
    with pytest.raises(StorePoisonedError):
        open_store(directory)
    report = maintenance.repair(directory)
    assert [d.offset for d in report.damages] == [73, 74, 309]
    assert report.records == 397
    assert maintenance.check(directory).sound
    assert (directory / (DATA_FILE + maintenance.BEFORE_REPAIR)).exists()
    store = open_store(directory)
    for offset in (73, 74, 309):
        del wanted[offset]
    assert found_in(store) == wanted
    store.commit([block(400, [b"goes on"], b"t0")])
    store.close()


def test_repair_takes_no_sessions_generation_for_a_place_in_the_log(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    store = open_store(directory)
    run = Run(0, 0, 2, 0, 0, None, -1, 1)
    meta = pack_meta(Meta((b"t0",), (run,), (), (Mark(0, b"uid", 7, START_US),), (), ()))
    store.commit([Block(0, 1, 0, 0, START_US, PUBLICATIONS, meta, (1).to_bytes(4, "little"), b"x")])
    store.close()
    maintenance.repair(directory)
    store = open_store(directory)
    assert (store.tables.mark(0, b"uid", 7), store.tables.generation(0, b"uid")) == (0, START_US)
    assert store.tails()[0].last == 0
    store.close()


def test_pages_of_lmdb_that_end_the_process_are_survived_and_named(tmp_path: Path) -> None:
    """Whole pages overwritten: whatever LMDB makes of them, check ends with damages and repair with the rest."""
    for seed in range(6):
        directory = tmp_path / f"store{seed}"
        store = open_store(directory)
        wanted = fill_store(store)
        store.close()
        path = directory / DATA_FILE
        dice = random.Random(seed)
        with path.open("r+b") as file:
            for _ in range(3):
                file.seek(dice.randrange(2, path.stat().st_size // PAGE) * PAGE)
                file.write(dice.randbytes(PAGE))
        try:
            damaged = not maintenance.check(directory).sound
        except StoreFormatError:
            continue  # not even the list of tables can be read: a backup is what helps
        report = maintenance.repair(directory)
        assert damaged or report.sound
        assert maintenance.check(directory).sound
        store = open_store(directory)
        found = found_in(store)
        store.close()
        assert found.items() <= wanted.items()
        assert len(found) == report.records


def test_random_bytes_flipped_in_a_dualdb_cost_only_what_they_hit(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    db = DualDB.open(origin, SMALL)
    fill_dual(db)
    db.environment.close()  # a crash: runs, a memory table and batches all count
    copy = tmp_path / "all"
    shutil.copytree(origin, copy)
    db = DualDB.open(copy, SMALL)
    wanted = everything(db)
    db.close()
    noticed = 0
    for seed in range(12):
        directory = tmp_path / f"dual{seed}"
        shutil.copytree(origin, directory)
        dice = random.Random(seed)
        size = (directory / DUAL_FILE).stat().st_size
        for _ in range(3):
            flip(directory / DUAL_FILE, dice.randrange(2 * PAGE, size))
        try:
            noticed += not maintenance.check(directory).sound
            maintenance.repair(directory)
        except StoreFormatError:
            noticed += 1
            continue
        assert maintenance.check(directory).sound
        db = DualDB.open(directory, SMALL)
        found = everything(db)
        db.close()
        for op, seqs in found.items():
            assert set(seqs) <= set(wanted[op])
        missing = sum(len(seqs) for seqs in wanted.values()) - sum(len(seqs) for seqs in found.values())
        assert missing <= 3 * 64 or not maintenance.check(directory).sound
    assert noticed >= 2  # the others fell on free pages


@pytest.mark.parametrize("skip", ["", "batches", "meta"])
def test_a_table_of_a_dualdb_is_told_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skip: str
) -> None:
    """Reading it may end the process: the table that was told last is then what is damaged, and skipped."""
    db = DualDB.open(tmp_path, SMALL)
    fill_dual(db)
    db.environment.close()
    told: list[str] = []
    read: list[tuple[str, str]] = []

    def noted(table: str, look: Callable[..., Any]) -> Callable[..., Any]:
        def looked(*given: Any) -> Any:
            read.append((table, told[-1] if told else "nothing"))
            return look(*given)

        return looked

    monkeypatch.setattr(dualdb_check, "read_manifest", noted("meta", read_manifest))
    monkeypatch.setattr(dualdb_check, "_after_last", noted("batches", dualdb_check._after_last))
    assert maintenance.walk(tmp_path, told.append, [skip]).sound
    assert {table for table, _ in read} == ({"meta", "batches"} if not skip else {"meta"} - {skip})
    assert all(table == last for table, last in read)


def test_a_dualdb_without_its_manifest_is_put_together_from_rows_and_batches(tmp_path: Path) -> None:
    directory = tmp_path / "dual"
    db = DualDB.open(directory, SMALL)
    fill_dual(db)
    db.flush()
    wanted = everything(db)
    with db.environment.begin() as txn:
        txn.put(b"manifest", b"\0\0\0\0nonsense", db=db.environment.meta)
    db.environment.close()
    with pytest.raises(StoreFormatError, match="manifest"):
        DualDB.open(directory, SMALL)
    report = maintenance.repair(directory)
    assert [d.table for d in report.damages] == ["meta"]
    db = DualDB.open(directory, SMALL)
    assert everything(db) == wanted
    db.close()


def elsewhere(*command: str) -> str:
    """`lexicast store ...` in a process of its own: LMDB opens a file once a process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([path for path in sys.path if path])}
    script = "from lexicast.actors.cli.store import store; store()"
    done = subprocess.run(
        [sys.executable, "-c", script, *command], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


@pytest.mark.parametrize("content", [None, b"no store"])
def test_a_backup_of_what_is_no_store_leaves_no_folder(tmp_path: Path, content: bytes | None) -> None:
    wrong, target = tmp_path / "wrong", tmp_path / "target"
    wrong.mkdir()
    if content is not None:
        (wrong / DATA_FILE).write_bytes(content)
    with pytest.raises(StoreError):
        maintenance.backup(wrong, target)
    assert not target.exists()


@pytest.mark.parametrize("kind", ["store", "dual"])
def test_a_backup_of_a_store_in_use_opens_by_itself(tmp_path: Path, kind: str) -> None:
    directory, target = tmp_path / kind, tmp_path / "backup"
    if kind == "store":
        store = open_store(directory)
        wanted = fill_store(store)
        elsewhere("backup", str(directory), str(target))
        assert maintenance.check(directory).sound
        assert "coordinator" in elsewhere("stats", str(directory))
        store.commit([block(400, [b"later"])])
        store.close()
        copy = open_store(target)
        assert found_in(copy) == wanted
        copy.close()
    else:
        db = DualDB.open(directory, SMALL)
        fill_dual(db)
        elsewhere("backup", str(directory), str(target))
        assert maintenance.check(directory).sound
        assert "DualDB" in elsewhere("stats", str(directory))
        wanted_lists = everything(db)
        db.close()
        other = DualDB.open(target, SMALL)
        assert everything(other) == wanted_lists
        other.close()
    with pytest.raises(StoreError, match="not empty"):
        maintenance.backup(directory, target)


@pytest.mark.parametrize("kind", ["store", "dual"])
def test_a_backup_that_fails_leaves_its_folder_empty_and_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The disk fails at each time that the backup waits for it, one after the other."""
    directory, target = tmp_path / kind, tmp_path / "backup"
    target.mkdir()
    if kind == "store":
        store = open_store(directory)
        fill_store(store, 3)
        store.close()
    else:
        db = DualDB.open(directory, SMALL)
        fill_dual(db, 3)
        db.environment.close()  # with a journal
    whole = os.fsync
    for failing in range(1, 10):
        calls = iter(range(1, 100))

        def fails(descriptor: int, failing: int = failing, calls: Iterator[int] = calls) -> None:
            if next(calls) == failing:
                raise OSError(errno.ENOSPC, "No space left on device")
            whole(descriptor)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fails)
            try:
                maintenance.backup(directory, target)
            except StoreError:
                assert list(target.iterdir()) == []
                continue
        break
    assert failing == (3 if kind == "store" else 4)
    assert maintenance.check(target).sound
    assert (target / JOURNAL_FILE).exists() == (kind == "dual")


def test_compacting_gives_free_pages_back_and_needs_a_stopped_store(tmp_path: Path) -> None:
    directory = tmp_path / "dual"
    db = DualDB.open(directory, SMALL)
    for number in range(40):
        time = START_US + number * 1_000_000
        db.apply(batch_of([Operation(PUBLISH, at, time, 0, time + 1, at, bytes(2_000)) for at in range(60)]))
    with pytest.raises(StoreError, match="in use"):
        maintenance.compact(directory)
    with pytest.raises(StoreError, match="in use"):
        maintenance.repair(directory)
    db.close()
    before, after = maintenance.compact(directory)
    assert after < before / 2
    db = DualDB.open(directory, SMALL)
    assert db.stats().operations == 2_400
    db.close()


def test_the_command_line_names_damage_and_exits_with_1(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    store = open_store(directory)
    fill_store(store, 5)
    store.close()
    runner = CliRunner()
    sound = runner.invoke(store_app, ["check", str(directory)])
    assert (sound.exit_code, sound.stdout.strip().endswith("0 damaged")) == (0, True)
    data = (directory / DATA_FILE).read_bytes()
    flip(directory / DATA_FILE, data.index(payload(2, 2)) + 30)
    damaged = runner.invoke(store_app, ["check", "--json", str(directory)])
    assert damaged.exit_code == 1
    assert [d["offset"] for d in json.loads(damaged.stdout)["damages"]] == [22]
    repaired = runner.invoke(store_app, ["repair", str(directory)])
    assert repaired.exit_code == 0
    assert "offset 22: the record is lost" in repaired.stdout
    assert runner.invoke(store_app, ["compact", str(directory)]).exit_code == 0
    assert runner.invoke(store_app, ["backup", str(directory), str(tmp_path / "copy")]).exit_code == 0
    counted = runner.invoke(store_app, ["stats", "--json", str(directory)])
    assert json.loads(counted.stdout)["kind"] == "coordinator"
    nothing = runner.invoke(store_app, ["check", str(tmp_path)])
    assert nothing.exit_code == 1
    assert "there are stores in" in nothing.stderr


def test_numbers_of_damaged_operations_stay_taken() -> None:
    from lexicast.storage.dualdb.batches import LOST, batch_head, decode_batch, encode_batch, salvaged

    operations = [Operation(PUBLISH, 1, 5, 0, 9, at, b"payload %d" % at) for at in range(4)]
    value = bytearray(encode_batch(batch_of(operations), 100, 5))
    value[value.index(b"payload 2") + 3] ^= 1
    kept, lost = salvaged(memoryview(bytes(value)), 100)
    assert lost == [102]
    assert kept is not None
    batch = decode_batch(memoryview(kept), batch_head(memoryview(kept), 100))
    assert batch.kind.tolist() == [PUBLISH, PUBLISH, LOST, PUBLISH]
    assert batch.payloads == [b"payload 0", b"payload 1", b"payload 3"]
    assert np.array_equal(batch.tag, [0, 1, 2, 3])
