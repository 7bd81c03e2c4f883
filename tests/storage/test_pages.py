"""LMDB's pages read without LMDB, and repair of stores with damaged pages: what is whole is kept, wherever it lies.

The store holds every kind of row. Whatever is done to its bytes, repair ends, what it leaves is sound and opens, no
record or row comes out that did not go in, and what was not hit is still there.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from lexicast.cluster.blocks import PUBLICATIONS, RETAIN, Block, Mark, Meta, ProducerRun, Run, control_block, pack_meta
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.errors import StoreError, StoreFormatError
from lexicast.cluster.records import ControlRecord, DictionaryStored, EpochStart, SessionSaved, Subscribed, pack_record
from lexicast.storage.environment.environment import DATA_FILE
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.environment.read_only import ReadOnlyStore
from lexicast.storage.file.keys import name_key, parse_log_key
from lexicast.storage.file.sealing import seal
from lexicast.storage.log.block_format import HEAD_BYTES, peek_head
from lexicast.storage.maintenance import directory as maintenance
from lexicast.storage.maintenance.check import check_coordinator_store
from lexicast.storage.maintenance.lmdb_pages import BRANCH, LEAF, NO_PAGE, PageFile
from lexicast.storage.maintenance.salvage import Salvage
from lexicast.storage.store import Store
from lexicast.storage.tables.databases import Databases, raw_database
from lexicast.storage.tables.sessions import SessionRow, pack_session_row
from lexicast.storage.tables.topics import id_key

from ..support.retained import retained_records

START_US = 1_700_000_000_000_000
PAGE = 4096
GROUPS = 3
BLOCKS = 80
DAY_MS = 86_400_000

Rows = dict[tuple[str, bytes], bytes]
Records = dict[tuple[int, int], bytes]


def open_store(directory: Path) -> Store:
    options = StoreOptions(retention_s=3_600, index_step_topics=32, index_entries_max=200)
    clock = ManualClock(time_us=START_US + 1_000_000)
    return Store.open(directory, cluster_id="c", member="m", groups=GROUPS, options=options, clock=clock)


def payload(group: int, offset: int) -> bytes:
    return b"<%d/%d>" % (group, offset) * 40


def publications(group: int, first: int, time_us: int, topics: list[bytes], retain: bool) -> Block:
    """A block of one record a topic, with a producer, and a QoS 2 mark on the first."""
    runs = tuple(
        [Run(0, at, RETAIN if retain else 0, 0, DAY_MS if first % 2 else 0, None, -1, 1) for at in range(len(topics))]
    )
    producer = ProducerRun(b"p%d" % (first % 7), 1, first, len(topics))
    meta = pack_meta(Meta(tuple(topics), runs, (producer,), (Mark(0, b"uid-%06d" % first, 3),), (), ()))
    payloads = [payload(group, first + at) for at in range(len(topics))]
    lengths = b"".join([len(each).to_bytes(4, "little") for each in payloads])
    last = first + len(topics) - 1
    return Block(group, 1, first, last, time_us, PUBLICATIONS, meta, lengths, b"".join(payloads))


def session(client_id: str, uid: bytes, expires_us: int) -> SessionSaved:
    return SessionSaved(client_id, uid, 1, "", 1, 0, 5, expires_us, 0, bytes(60), b"", b"")


def fill(store: Store) -> None:
    for group in range(GROUPS):
        records: list[ControlRecord] = [EpochStart(1, 0, "m")]
        for at in range(40):
            records.append(session(f"client-{at}", b"uid%05d" % at, START_US + 10**9 + at))
            records.append(Subscribed("b", 1, f"t/{group}/{at}", 0, 2**62))
            records.append(DictionaryStored(at, f"f{at}/+", bytes([at]) * 90))
        store.commit([control_block(group, 1, 0, START_US - 8 * 10**9, [pack_record(each) for each in records])])
        # Too old: these go, and what is retained of them is rescued.
        blocks = []
        for at in range(20):
            topics = [b"old/%d/%d" % (group, at), b"old/%d/x%d" % (group, at)]
            blocks.append(publications(group, 200 + 2 * at, START_US - 7 * 10**9 + at, topics, retain=True))
        for at in range(BLOCKS):
            topics = [b"t/%d/%d" % (group, (at + each) % 150) for each in range(3)]
            blocks.append(publications(group, 300 + 3 * at, START_US + at, topics, retain=at % 3 == 0))
        for at in range(0, len(blocks), 25):
            store.commit(blocks[at : at + 25])
    while store.reclaim(START_US + 1_000_000).more:
        pass
    store.flush()


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("origin") / "store"
    store = open_store(directory)
    fill(store)
    store.close()
    return directory


def rows_of(directory: Path) -> Rows:
    """Every row of every table, blocks as their records."""
    found: Rows = {}
    store = ReadOnlyStore(directory)
    with store.begin() as txn:
        for name in Databases._fields:
            with txn.cursor(raw_database(store.databases, name)) as cursor:
                for key, value in cursor:
                    found[name, bytes(key)] = bytes(value)
    store.close()
    return found


def records_of(directory: Path) -> Records:
    """Every publication that is read from the log, by group and offset."""
    found: Records = {}
    store = open_store(directory)
    for group in range(GROUPS):
        offset = 0
        while (result := store.read(group, offset)).next_offset != offset:
            for block in result.blocks:
                if block.kind == PUBLICATIONS:
                    found |= {(group, record.offset): record.payload for record in block.records()}
            offset = result.next_offset
    store.close()
    return found


def retained_of(directory: Path) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    store = open_store(directory)
    for group in range(GROUPS):
        for block in retained_records(store, group):
            (record,) = block.records()
            found[record.topic] = record.payload
    store.close()
    return found


def is_running(directory: Path) -> None:
    """It opens, publishes where nothing was published before, and answers everything."""
    store = open_store(directory)
    tails = store.tails()
    for group in range(GROUPS):
        last = tails[group].last if group in tails else -1
        store.commit([publications(group, last + 1, START_US + 10**6, [b"new/%d" % group, b"t/%d/1" % group], True)])
        list(store.tables.sessions(group))
        list(store.tables.subscriptions(group))
        list(store.tables.dictionaries(group))
        store.tables.epochs(group)
        assert store.retained.record(group, b"new/%d" % group) is not None
    while store.reclaim(START_US + 2_000_000).more:
        pass
    store.close()
    assert check_coordinator_store(directory).sound


class Pages:
    """Which pages of a store hold what."""

    def __init__(self, path: Path) -> None:
        salvage = Salvage(path)
        self.file = PageFile(path)
        self.leaves: dict[int, str] = {}
        self.branches: dict[int, str] = {}
        for name, tree in salvage._trees.items():
            waiting = [] if tree.root == NO_PAGE else [tree.root]
            while waiting:
                number = waiting.pop()
                page = self.file.page(number)
                if struct.unpack_from("<H", page, 10)[0] == BRANCH:
                    self.branches[number] = name.decode()
                    waiting += self.file.children(page)
                else:
                    self.leaves[number] = name.decode()
        salvage.close()
        self.file.close()


def sampled(leaves: dict[int, str]) -> list[tuple[int, str]]:
    """The first leaf of each table and its last one."""
    first = {table: number for number, table in reversed(leaves.items())}
    last = {table: number for number, table in leaves.items()}
    return [(number, table) for table in first for number in {first[table], last[table]}]


def overwrite(path: Path, page: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(page * PAGE)
        file.write(data)


def damaged_copy(origin: Path, target: Path, pages: list[int]) -> Path:
    shutil.copytree(origin, target)
    for page in pages:
        overwrite(target / DATA_FILE, page, bytes(PAGE))
    return target


def test_every_row_is_found_without_lmdb(origin: Path) -> None:
    salvage = Salvage(origin / DATA_FILE)
    found = {(name, key): value for name in Databases._fields for key, value in salvage.rows(name)}
    assert found == rows_of(origin)
    assert {table for table, _ in found} == set(Databases._fields) - {"superseded", "promises", "counted", "tail"}
    assert [*salvage.strays(Databases._fields)] == []
    assert salvage.free_known
    salvage.close()


def test_a_whole_store_is_repaired_without_any_loss(origin: Path, tmp_path: Path) -> None:
    directory = tmp_path / "store"
    shutil.copytree(origin, directory)
    wanted, retained = rows_of(directory), retained_of(directory)
    assert maintenance.repair(directory).damages == []
    assert check_coordinator_store(directory).sound
    found = rows_of(directory)
    for (table, key), value in wanted.items():
        if table not in ("dual", "groups"):
            assert found[table, key] == value
    assert retained_of(directory) == retained
    is_running(directory)


def test_a_lost_branch_page_costs_nothing(origin: Path, tmp_path: Path) -> None:
    branches = Pages(origin / DATA_FILE).branches
    assert set(branches.values()) >= {"log", "names", "ids"}
    wanted, retained = records_of(origin), retained_of(origin)
    for number, table in branches.items():
        directory = damaged_copy(origin, tmp_path / f"{table}-{number}", [number])
        report = maintenance.repair(directory)
        assert report.damages == [], table
        assert check_coordinator_store(directory).sound
        assert records_of(directory) == wanted
        assert retained_of(directory) == retained
    is_running(directory)


def test_a_lost_leaf_costs_what_lay_in_it_and_is_told_by_kind_and_number(origin: Path, tmp_path: Path) -> None:
    """And of that, what follows from other rows is made again: names, ids, what is retained, when sessions expire."""
    wanted, before = rows_of(origin), retained_of(origin)
    records = records_of(origin)
    for number, table in sampled(Pages(origin / DATA_FILE).leaves):
        directory = damaged_copy(origin, tmp_path / f"{table}-{number}", [number])
        report = maintenance.repair(directory)
        assert check_coordinator_store(directory).sound, table
        found = rows_of(directory)
        lost = {(name, key) for name, key in wanted if (name, key) not in found and name != "dual"}
        told = {damage.table for damage in report.damages}
        assert {name for name, _ in lost} <= told | {"expiry", "session_due"}, (table, lost)
        if table in ("names", "ids", "retained", "session_due", "expiry", "dual", "groups", "identity"):
            assert not [name for name, _ in lost if name != table], table
            assert records_of(directory) == records
        if table in ("retained", "names", "ids"):
            assert retained_of(directory) == before, table
        if table == "groups":
            tails = open_store(directory)
            assert {group: tail.last for group, tail in tails.tails().items()} == {
                group: max(offset for at, offset in records if at == group) for group in range(GROUPS)
            }
            tails.close()
        is_running(directory)


def test_no_topic_id_is_given_out_twice_after_a_lost_groups_row(origin: Path, tmp_path: Path) -> None:
    """Once the first topic named after the repair took over the retained publication of another one."""
    directory = tmp_path / "store"
    shutil.copytree(origin, directory)
    before = retained_of(directory)
    with lmdb.open(str(directory), max_dbs=32) as environment, environment.begin(write=True) as txn:
        for group in range(GROUPS):
            txn.delete(group.to_bytes(2, "big"), db=environment.open_db(b"groups", txn=txn))
    assert not check_coordinator_store(directory).sound
    maintenance.repair(directory)
    store = open_store(directory)
    for group in range(GROUPS):
        last = store.tails()[group].last
        store.commit([publications(group, last + 1, START_US + 10**6, [b"new/%d" % group], retain=False)])
        assert store.retained.record(group, b"new/%d" % group) is None
    store.close()
    assert retained_of(directory) == before
    assert check_coordinator_store(directory).sound


def test_a_retained_row_that_names_another_topics_record_is_found_and_set_right(origin: Path, tmp_path: Path) -> None:
    directory = tmp_path / "store"
    shutil.copytree(origin, directory)
    before = retained_of(directory)
    store = open_store(directory)
    with store.environment.begin() as txn:
        databases = store.environment.databases
        one, other = (databases.ids.get(txn, name_key(topic)) for topic in (b"t/0/0", b"t/0/3"))
        assert one is not None
        assert other is not None
        row = databases.retained.get(txn, other)
        assert row is not None
        databases.retained.put(txn, one, row)
    store.close()
    assert [damage.table for damage in check_coordinator_store(directory).damages] == ["retained"]
    maintenance.repair(directory)
    assert check_coordinator_store(directory).sound
    # The row that was overwritten is gone; which publication it named, only a log without damage could tell.
    found = retained_of(directory)
    assert {topic: found[topic] for topic in found if topic != b"t/0/0"} == {
        topic: before[topic] for topic in before if topic != b"t/0/0"
    }


def test_a_file_that_was_cut_short_keeps_what_is_left(origin: Path, tmp_path: Path) -> None:
    directory = tmp_path / "store"
    shutil.copytree(origin, directory)
    wanted = records_of(origin)
    size = (directory / DATA_FILE).stat().st_size
    with (directory / DATA_FILE).open("r+b") as file:
        file.truncate(size * 3 // 4)
    report = maintenance.repair(directory)
    assert report.damages
    assert check_coordinator_store(directory).sound
    found = records_of(directory)
    assert all(found[group, offset] == payload(group, offset) for group, offset in found)
    assert len(found) > len(wanted) // 4
    is_running(directory)


def test_deleted_rows_do_not_come_back(origin: Path, tmp_path: Path) -> None:
    """Pages of the free list still hold them; with the list damaged they may, and it is said."""
    directory = tmp_path / "store"
    shutil.copytree(origin, directory)
    store = open_store(directory)
    for _ in range(3):
        with store.environment.begin() as txn:
            for key, _ in store.environment.databases.sessions.rows(txn, b"", None, 60):
                store.environment.databases.sessions.delete(txn, key)
    store.close()
    left = {key for table, key in rows_of(directory) if table == "sessions"}
    branch = next(n for n, table in Pages(directory / DATA_FILE).branches.items() if table == "log")
    overwrite(directory / DATA_FILE, branch, bytes(PAGE))
    maintenance.repair(directory)
    assert {key for table, key in rows_of(directory) if table == "sessions"} == left


def hits(dice: random.Random, path: Path) -> list[tuple[int, int]]:
    """(page, byte) of some bits to flip, beyond the two headers."""
    pages = path.stat().st_size // PAGE
    return [(dice.randrange(2, pages), dice.randrange(PAGE)) for _ in range(dice.choice([1, 3, 20]))]


def spoiled(origin: Path, directory: Path, seed: int) -> tuple[Path, set[int]]:
    """A copy with random bits flipped, or random pages emptied; and the pages that were hit."""
    dice = random.Random(seed)
    shutil.copytree(origin, directory)
    path = directory / DATA_FILE
    if seed % 2:
        pages = path.stat().st_size // PAGE
        struck = {dice.randrange(2, pages) for _ in range(dice.choice([1, 2, 8]))}
        for page in struck:
            overwrite(path, page, dice.randbytes(PAGE) if seed % 4 == 1 else bytes(PAGE))
        return path, struck
    struck = set()
    for page, at in hits(dice, path):
        with path.open("r+b") as file:
            file.seek(page * PAGE + at)
            byte = file.read(1)[0]
            file.seek(page * PAGE + at)
            file.write(bytes([byte ^ 1 << dice.randrange(8)]))
        struck.add(page)
    return path, struck


def untouched(origin: Path, struck: set[int]) -> Iterator[tuple[str, bytes]]:
    """The rows of leaves that were not hit, with their long values."""
    file = PageFile(origin / DATA_FILE)
    for number, table in Pages(origin / DATA_FILE).leaves.items():
        if number in struck:
            continue
        for found in file.rows(file.page(number)):
            assert found is not None
            row, pages = found
            if not struck.intersection(pages):
                yield table, row.key
    file.close()


@pytest.mark.parametrize("seed", range(40))
def test_random_damage_costs_only_what_it_hits(origin: Path, tmp_path: Path, seed: int) -> None:
    directory = tmp_path / "store"
    _, struck = spoiled(origin, directory, seed)
    try:
        report = maintenance.repair(directory)
    except StoreFormatError as error:
        pytest.fail(str(error))
    assert check_coordinator_store(directory).sound
    wanted, found = rows_of(origin), rows_of(directory)
    records = records_of(origin)
    after = records_of(directory)
    assert after.items() <= records.items()
    for name, key in untouched(origin, struck):
        if name in ("log", "kept"):
            group, last = parse_log_key(key)
            first = peek_head(wanted[name, key], group, last).first
            offsets = [(group, at) for at in range(first, last + 1) if (group, at) in records]
            assert all(after.get(each) == records[each] for each in offsets) or name == "kept"
        elif name in ("sessions", "subscriptions", "producers", "marks", "dictionaries", "epochs", "names", "ids"):
            assert found[name, key] == wanted[name, key], (name, key)
    for table, key in found:
        if table not in ("log", "kept", "expiry", "dual", "groups", "names", "ids", "retained", "session_due"):
            assert (table, key) in wanted
    assert retained_of(directory).items() <= retained_of(origin).items() or report.damages
    is_running(directory)


def test_both_headers_lost_is_said(origin: Path, tmp_path: Path) -> None:
    directory = damaged_copy(origin, tmp_path / "store", [0, 1])
    with pytest.raises(StoreFormatError, match="both headers"):
        maintenance.repair(directory)
    assert (directory / DATA_FILE).exists()


def test_one_header_lost_is_enough(origin: Path, tmp_path: Path) -> None:
    """The other one may be the older one: the last commit is found beside its trees."""
    origin = Path(shutil.copytree(origin, tmp_path / "origin"))
    store = open_store(origin)
    store.commit([publications(0, 1_000, START_US + 10**6, [b"t/0/1", b"t/0/2"], retain=True)])
    store.environment.close()  # not the store: nothing is written after the commit
    wanted = records_of(Path(shutil.copytree(origin, tmp_path / "read")))
    for number in (0, 1):
        directory = damaged_copy(origin, tmp_path / f"store{number}", [number])
        with pytest.raises(StoreFormatError, match=r"cannot be opened .* repair it"):
            check_coordinator_store(directory)
        maintenance.repair(directory)
        assert check_coordinator_store(directory).sound
        assert records_of(directory).items() >= wanted.items()
        is_running(directory)


def test_a_payload_that_looks_like_a_page_gives_no_rows(tmp_path: Path) -> None:
    """A client may send what lies there: pages within long values are never taken for leaves."""
    directory = tmp_path / "store"
    store = open_store(directory)
    key = id_key(1)[:2] + name_key(b"victim")
    row = seal(
        "sessions",
        key,
        pack_session_row(SessionRow(0, -1, -1, session("victim", b"u", 0))),
    )
    forged = [leaf(number, key, row) for number in range(2, 60)]
    body = bytes(PAGE - 16 - 400) + b"".join(forged)
    meta = pack_meta(Meta((b"t",), (Run(0, 0, 0, 0, 0, None, -1, 1),), (), (), (), ()))
    for shift in range(0, 400, 8):  # one of them begins at a page
        data = body[shift:]
        block = Block(0, 1, shift, shift, START_US, PUBLICATIONS, meta, len(data).to_bytes(4, "little"), data)
        store.commit([block])
    store.close()
    path = directory / DATA_FILE
    branch = [number for number, table in Pages(path).branches.items() if table == "log"]
    leaves = [number for number, table in Pages(path).leaves.items() if table == "log"]
    assert HEAD_BYTES < 400
    for number in (branch or leaves)[:1]:
        overwrite(path, number, bytes(PAGE))
    maintenance.repair(directory)
    store = open_store(directory)
    assert store.tables.session(0, "victim") is None
    store.close()


def leaf(number: int, key: bytes, value: bytes) -> bytes:
    """A page as LMDB writes it, with one row."""
    node = struct.pack("<HHHH", len(value), 0, 0, len(key)) + key + value
    head = struct.pack("<QHHHH", number, 0, LEAF, 18, PAGE - len(node)) + struct.pack("<H", PAGE - len(node))
    return head + bytes(PAGE - len(head) - len(node)) + node


def test_a_tree_that_leads_in_circles_ends(origin: Path, tmp_path: Path) -> None:
    directory = tmp_path / "store"
    shutil.copytree(origin, directory)
    path = directory / DATA_FILE
    pages = Pages(path)
    number = next(n for n, table in pages.branches.items() if table == "log")
    with path.open("r+b") as file:
        file.seek(number * PAGE)
        page = bytearray(file.read(PAGE))
        at = struct.unpack_from("<H", page, 16)[0]
        struct.pack_into("<HHH", page, at, number & 0xFFFF, number >> 16, 0)  # its first child is itself
        file.seek(number * PAGE)
        file.write(page)
    wanted = records_of(origin)
    assert maintenance.repair(directory).damages == []
    assert records_of(directory) == wanted


def test_rows_of_a_page_are_read_whatever_stands_in_it() -> None:
    """Junk is no row or a row of junk; it ends nothing."""
    file = PageFile.__new__(PageFile)
    file.page_bytes, file.pages = PAGE, 100
    file._descriptor = -1
    dice = random.Random(5)
    page = leaf(9, b"key", b"value")
    for _ in range(3_000):
        junk = bytearray(page)
        for _ in range(dice.choice([1, 8, 200])):
            junk[dice.randrange(16, PAGE)] = dice.randrange(256)
        for _ in file.rows(bytes(junk)):
            pass
        for _ in file.children(bytes(junk)):
            pass


def test_a_store_that_is_in_use_is_not_repaired(origin: Path, tmp_path: Path) -> None:
    directory = tmp_path / "store"
    shutil.copytree(origin, directory)
    store = open_store(directory)
    with pytest.raises(StoreError, match="in use"):
        maintenance.repair(directory)
    store.close()
