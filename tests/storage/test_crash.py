"""The store when things go wrong: its process is killed, the disk refuses, bytes rot."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, control_block, pack_meta
from lexicast.cluster.clock import ManualClock, SystemClock
from lexicast.cluster.errors import StoreError, StoreFormatError, StorePoisonedError
from lexicast.cluster.records import SessionSaved, pack_record, unpack_record
from lexicast.storage.environment.environment import DATA_FILE
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.file.disk import POISON_FILE
from lexicast.storage.maintenance.check import CheckReport, check_coordinator_store, check_store, main
from lexicast.storage.store import Store

from ..support.session_rows import saved_session
from ..support.topic_past import topic_past

SOURCES = Path(__file__).parents[2] / "src"
START_US = 1_700_000_000_000_000
GROUPS = 4

# What the writer that gets killed commits, and what the test expects to find: one source for both processes.
WORKLOAD = '''
import random
from lexicast.cluster.blocks import PUBLICATIONS, RETAIN, Block, Meta, ProducerRun, Run, control_block, pack_meta
from lexicast.cluster.records import SessionSaved, pack_record

def content(step):
    """Blocks of one commit: publications to two groups, each topic retained, and a session."""
    dice = random.Random(step)
    blocks = []
    for group in dice.sample(range(4), 2):
        runs = tuple(Run(0, t, RETAIN, 0, 0, None, -1, dice.randint(1, 5)) for t in range(3))
        topics = tuple(b"g%d/t%d" % (group, dice.randint(0, 40) * 3 + t) for t in range(3))
        count = sum(run.count for run in runs)
        payloads = [b"%d/%d/" % (step, i) + dice.randbytes(dice.randint(0, 300)) for i in range(count)]
        first = step * 100
        meta = pack_meta(Meta(topics, runs, (ProducerRun(b"p%d" % group, 1, first, count),), (), (), ()))
        lengths = b"".join(len(p).to_bytes(4, "little") for p in payloads)
        blocks.append(Block(group, 1, first, first + count - 1, 1_700_000_000_000_000 + step, PUBLICATIONS, meta,
                            lengths, b"".join(payloads)))
    group = dice.randint(0, 3)
    session = SessionSaved("c%d" % dice.randint(0, 5), b"u", step, "b", 1, 1, 9, 0, 0, b"f", b"", b"place")
    blocks.append(control_block(group, 1, step * 100 + 50, 1_700_000_000_000_000 + step, [pack_record(session)]))
    return blocks
'''

WRITER = (
    WORKLOAD
    + """
import sys
from pathlib import Path
from lexicast.cluster.clock import SystemClock
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.store import Store
store = Store.open(Path(sys.argv[1]), cluster_id="c", member="m", groups=4, clock=SystemClock(),
                   options=StoreOptions(index_entries_max=40, index_step_topics=7, retention_s=0))
step = int(sys.argv[2])
while True:
    store.commit(content(step))
    print(step, flush=True)
    store.reclaim(0)
    step += 1
"""
)


def content(step: int) -> list[Block]:
    namespace: dict[str, object] = {}
    exec(compile(WORKLOAD, "workload", "exec"), namespace)  # the writer's own source: the two cannot drift apart
    make = namespace["content"]
    assert callable(make)
    blocks: list[Block] = make(step)
    return blocks


def options(**changed: int) -> StoreOptions:
    return StoreOptions(retention_s=0, **changed)


@contextmanager
def opened(directory: Path, given: StoreOptions | None = None) -> Iterator[Store]:
    store = Store.open(
        directory, cluster_id="c", member="m", groups=GROUPS, options=given or options(), clock=SystemClock()
    )
    try:
        yield store
    finally:
        store.close()


def pub(offset: int, payload: bytes, topic: bytes = b"a") -> Block:
    meta = pack_meta(Meta((topic,), (Run(0, 0, 0, 0, 0, None, -1, 1),), (), (), (), ()))
    size = len(payload).to_bytes(4, "little")
    return Block(0, 1, offset, offset, START_US + offset, PUBLICATIONS, meta, size, payload)


def write_until_killed(directory: Path, step: int, acknowledged: int) -> int:
    """Start a writer, kill it once it has acknowledged that many commits; the last step it acknowledged."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    command = [sys.executable, "-c", WRITER, str(directory), str(step)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
        assert writer.stdout is not None
        for _ in range(acknowledged):
            line = writer.stdout.readline()
            assert line, "the writer ended by itself"
            step = int(line)
        writer.kill()
        for line in writer.stdout:  # acknowledged before the kill took effect
            if line.endswith("\n"):
                step = int(line)
    return step


def everything(store: Store, group: int) -> list[Block]:
    blocks: list[Block] = []
    offset = 0
    while (result := store.read(group, offset)).next_offset != offset:
        blocks += result.blocks
        offset = result.next_offset
    return blocks


def test_whatever_was_acknowledged_survives_sigkill(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    dice = random.Random(5)
    start = 0
    for _ in range(5):
        last = write_until_killed(directory, start, dice.randint(1, 120))
        with opened(directory) as store:
            stored = {g: everything(store, g) for g in range(GROUPS)}
            newest = max(b.first // 100 for blocks in stored.values() for b in blocks)
            assert last <= newest <= last + 1  # one commit may be durable and not yet acknowledged
            expected = [b for step in range(newest + 1) for b in content(step)]
            for group in range(GROUPS):
                there = [b.to_wire() for b in stored[group]]
                own = [b for b in expected if b.group == group]
                superseded = {b.first for b in superseded_sessions(own)}
                # What a later record of the same session has superseded may be there still, or not any more.
                assert there == [w for b in own if (w := b.to_wire()) in there or b.first not in superseded]
            compare_tables(store, stored)
            assert check_store(store).damages == []
        assert check_coordinator_store(directory).damages == []
        start = newest + 1


def superseded_sessions(blocks: list[Block]) -> list[Block]:
    """The blocks of session records (one each) that a later one of the same session has superseded."""
    newest: dict[str, Block] = {}
    superseded = []
    for block in blocks:
        if block.kind != PUBLICATIONS:
            record = unpack_record(block.payloads()[0])
            assert isinstance(record, SessionSaved)
            if record.client_id in newest:
                superseded.append(newest[record.client_id])
            newest[record.client_id] = block
    return superseded


def compare_tables(store: Store, stored: dict[int, list[Block]]) -> None:
    """Index, retained publications, sessions and producers against a scan of the log."""
    for group, blocks in stored.items():
        by_topic: dict[bytes, list[tuple[int, bytes]]] = {}
        for record in (r for b in blocks if b.kind == PUBLICATIONS for r in b.records()):
            by_topic.setdefault(record.topic, []).append((record.offset, record.payload))
        assert set(store.tables.topics(group)) == set(by_topic)
        for topic, rows in by_topic.items():
            past = topic_past(store, group, topic, 0, 2**62, limit=10**6)
            assert [(r.offset, r.payload) for b in past for r in b.records()] == rows
            kept = store.retained.record(group, topic)
            assert kept is not None
            assert (kept.first, kept.body) == rows[-1]
        sessions = [pack_record(s) for s in store.tables.sessions(group)]
        assert set(sessions) <= {p for b in blocks if b.kind != PUBLICATIONS for p in b.payloads()}
        for block in [b for b in blocks if b.kind == PUBLICATIONS][-10:]:
            producer = store.tables.producer(group, b"p%d" % group)
            assert producer is not None
            assert producer.offset_of(block.first) == block.first


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """Make writes beyond `limit` bytes of a file fail with EFBIG: a real I/O error, without a special disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_io_error_poisons_the_store_until_somebody_has_looked(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    with opened(directory) as store:
        store.commit([pub(0, b"acknowledged")])
        with file_size_limit((directory / DATA_FILE).stat().st_size), pytest.raises(StoreError, match="I/O error"):
            store.commit([pub(1, bytes(1_000_000))])
        with pytest.raises(StorePoisonedError):
            store.commit([pub(1, b"x")])
        for call in (store.tails, store.room, lambda: store.read(0, 0), lambda: store.reclaim(0), store.flush):
            with pytest.raises(StorePoisonedError):
                call()
        assert store.stats().poisoned
    with pytest.raises(StorePoisonedError, match="look at the disk"), opened(directory):
        pass
    assert check_coordinator_store(directory).sound
    (directory / POISON_FILE).unlink()
    with opened(directory) as store:
        assert [b.body for b in everything(store, 0)] == [b"acknowledged"]
        store.commit([pub(1, b"goes on")])


def damaged(directory: Path, payload: bytes, at: int = 0) -> CheckReport:
    """Flip a bit of the place in the data file that holds `payload`, and check the store."""
    data = bytearray((directory / DATA_FILE).read_bytes())
    place = data.index(payload)
    data[place + at] ^= 0x10
    (directory / DATA_FILE).write_bytes(data)
    return check_coordinator_store(directory)


def test_a_flipped_bit_is_named_and_costs_one_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "store"
    payloads = [b"payload-%d-" % n + bytes(50) for n in range(10)]
    runs = (Run(0, 0, 0, 0, 0, None, -1, 10),)
    lengths = b"".join(len(p).to_bytes(4, "little") for p in payloads)
    meta = pack_meta(Meta((b"a",), runs, (), (), (), ()))
    block = Block(0, 1, 20, 29, START_US + 20, PUBLICATIONS, meta, lengths, b"".join(payloads))
    with opened(directory) as store:
        store.commit([pub(3, b"before"), block])
    report = damaged(directory, payloads[4], at=20)
    assert [(d.table, d.group, d.offset) for d in report.damages] == [("log", 0, 24)]
    assert main([str(directory)]) == 1
    assert "log: group 0, offset 24: the payload does not match its checksum" in capsys.readouterr().out
    with opened(directory) as store:
        found = [r.offset for b in store.read(0, 0).blocks for r in b.records()]
        assert found == [3, 20, 21, 22, 23, 25, 26, 27, 28, 29]
        assert store.damage.counts == {"log": 1}
        assert "offset 24" in store.damage.status()["first"][0]
        store.commit([pub(30, b"after")])


def test_a_damaged_head_is_named_and_the_store_still_opens_and_reclaims(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    with opened(directory) as store:
        store.commit([pub(0, b"x" * 5_000, b"some/topic"), pub(1, b"y" * 5_000, b"other/topic")])
    report = damaged(directory, b"some/topic\x98")  # followed by the runs: in the block's meta, not in a table
    assert [(d.table, d.group, d.offset) for d in report.damages] == [("log", 0, 0)]
    clock = ManualClock(START_US)
    clock.advance(100)
    store = Store.open(
        directory, cluster_id="c", member="m", groups=GROUPS, options=StoreOptions(retention_s=10), clock=clock
    )
    try:
        assert [b.first for b in store.read(0, 1).blocks] == [1]
        for _ in range(5):
            store.reclaim(clock.time_us())
        assert store.read(0, 0)[:3] == ([], 2, 2)
    finally:
        store.close()


def test_a_damaged_row_of_a_table_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    session = saved_session("client", place=b"the state of this session" * 200)
    with opened(directory) as store:
        store.commit([control_block(2, 1, 0, START_US, [pack_record(session)])])
        with store.environment.begin() as txn:
            table = store.environment.databases.sessions
            [(key, row)] = table.rows(txn, b"")
            txn.put(key, b"\0\0\0\0" + row, db=table.database)
        assert [(d.table, d.group) for d in check_store(store).damages] == [("sessions", 2)]
        assert store.tables.session(2, "client") is None
        assert store.damage.counts == {"sessions": 1}


def test_a_file_cut_short_is_damage_not_a_crash(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    with opened(directory) as store:
        for n in range(50):
            store.commit([pub(n, bytes(20_000))])
    size = (directory / DATA_FILE).stat().st_size
    os.truncate(directory / DATA_FILE, size // 2)
    report = check_coordinator_store(directory)
    assert [d.table for d in report.damages] == ["file"]
    script = (
        "import sys; from pathlib import Path\n"
        "from lexicast.cluster.clock import SystemClock\n"
        "from lexicast.cluster.errors import StoreError\n"
        "from lexicast.storage.environment.options import StoreOptions\n"
        "from lexicast.storage.store import Store\n"
        "try:\n"
        "    store = Store.open(Path(sys.argv[1]), cluster_id='c', member='m', groups=4, options=StoreOptions(), "
        "clock=SystemClock())\n"
        "    for n in range(50): store.read(0, n)\n"
        "    print('served, damaged:', store.damage.counts)\n"
        "except StoreError as error:\n"
        "    print('refused:', error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    command = [sys.executable, "-c", script, str(directory)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert found.returncode == 0
    assert found.stdout.startswith(("refused:", "served, damaged: {'log': "))


def test_checking_what_is_no_store_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreFormatError, match="not a store"):
        check_coordinator_store(tmp_path)
    assert main([str(tmp_path)]) == 2


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads that do not wait 5 ms for each other at each call of LMDB."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    yield
    sys.setswitchinterval(before)


def test_readers_on_other_threads_see_whole_commits_while_index_and_retention_move(
    tmp_path: Path, quick_switches: None
) -> None:
    """A reader that follows the log, and one that asks DualDB, each miss nothing and see nothing twice."""
    total = 120
    failures: list[str] = []
    with opened(tmp_path / "store", options(index_entries_max=16, index_step_topics=3)) as store:
        done = threading.Event()

        def follow() -> None:
            offset = 0
            seen: list[int] = []
            while offset < total and not failures:
                result = store.read(0, offset)
                seen += [r.offset for b in result.blocks for r in b.records()]
                offset = result.next_offset
            if seen != list(range(total)):
                failures.append(f"followed {len(seen)} of {total}")

        def ask() -> None:
            while not done.is_set():
                durable = store.tails()[0].last
                got = [r.offset for b in topic_past(store, 0, b"t1", 0, 2**62, limit=10**6) for r in b.records()]
                wanted = list(range(1, durable + 1, 5))
                if got[: len(wanted)] != wanted or len(set(got)) != len(got):
                    failures.append(f"asked up to {durable}: {len(got)} found")

        store.commit([pub(0, b"", b"t0")])
        readers = [threading.Thread(target=target) for target in (follow, ask, ask)]
        for reader in readers:
            reader.start()
        for n in range(1, total):
            store.commit([pub(n, b"%d" % n, b"t%d" % (n % 5))])
            store.reclaim(START_US)
        done.set()
        for reader in readers:
            reader.join()
    assert failures == []
