"""What is appended and does not count yet: any interleaving with what does, taken back or not, and the copies of it.

The model is `test_properties`', which knows what is applied; what waits is kept beside it, block by block.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.blocks import CONTROL, Block, control_block
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.errors import PeerError, StoreFormatError, UsageError
from lexicast.cluster.records import ControlRecord, EpochStart, Subscribed, pack_record, unpack_record
from lexicast.storage import group_snapshot, replicated_groups
from lexicast.storage.environment.environment import Environment
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.file.keys import log_key
from lexicast.storage.group_snapshot import SnapshotPlace
from lexicast.storage.log import unapplied_tail
from lexicast.storage.log.stored_block import RECORDS_FOR_CHECKSUM, shipped_checksum, stored_block
from lexicast.storage.log.unapplied_tail import tail_key
from lexicast.storage.maintenance.check import check_coordinator_store, check_store
from lexicast.storage.maintenance.repair import repair_store
from lexicast.storage.set_aside import read_set_aside
from lexicast.storage.store import Store
from lexicast.storage.tables.databases import raw_database
from lexicast.storage.tables.state import Epoch

from ..support.session_rows import saved_session
from . import test_properties as properties
from .test_properties import GROUPS, Advance, Commit, Model, Pub, Reclaim, Restart, Stored, World

BYTES = 1 << 20


class Append(NamedTuple):
    """Appended, sealed before or not; and the first `applied` of all that waits then counts."""

    commit: Commit
    sealed: bool
    applied: int


class Apply(NamedTuple):
    """The first `blocks` of what waits count."""

    group: int
    blocks: int


class Truncate(NamedTuple):
    """All but the first `kept` of what waits is taken back."""

    group: int
    kept: int


class Lead(NamedTuple):
    """A new epoch: promised, and begun in the log."""

    group: int


def follow(model: Model, block: Block) -> None:
    """The model after a block counts."""
    model.last[block.group] = block.last
    if block.kind == CONTROL:
        for at, payload in enumerate(block.payloads()):
            model.apply(block.group, block.first + at, unpack_record(payload))
        return
    marks = {mark.index: mark.packet_id for mark in block.meta.marks}
    for at, (record, run) in enumerate(zip(block.records(), block.meta.producers, strict=True)):
        expires = block.time_us + record.expiry_ms * 1_000 if record.expiry_ms else 0
        producer = (run.producer, run.incarnation) if run.producer else None
        pub = Pub(0, record.payload, record.flags, record.expiry_ms, 0, producer, marks.get(at))
        stored = Stored(record.offset, record.topic, record.payload, block.time_us, expires)
        model.publish(block.group, stored, pub, run.sequence)


class Apart(World):
    """A store of which some groups' blocks wait."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        # As if everything that waits counted.
        self.ahead = Model()
        self.waiting: dict[int, list[Block]] = {group: [] for group in range(GROUPS)}
        self.epochs = dict.fromkeys(range(GROUPS), 1)
        self.promised = dict.fromkeys(range(GROUPS), 0)
        self.starts: dict[int, list[Epoch]] = {group: [] for group in range(GROUPS)}

    def act(self, action: Any) -> None:
        match action:
            case Append(commit, sealed, applied):
                block = self.built(commit)
                given = self.store.sealed(block) if sealed else block
                self.waiting[block.group].append(block)
                below = self.below(block.group, applied)
                self.store.commit([given], {block.group: below})
                self.count(block.group, below)
            case Apply(group, blocks):
                below = self.below(group, blocks)
                self.store.commit([], {group: below})
                self.count(group, below)
            case Truncate(group, kept):
                self.truncate(group, kept)
            case Lead(group):
                self.lead(group)
            case _:
                super().act(action)

    def built(self, action: Commit) -> Block:
        applied, self.model = self.model, self.ahead
        try:
            block = replace(self.block(action), epoch=self.epochs[action.group])
        finally:
            self.model = applied
        self.promised[block.group] = max(self.promised[block.group], block.epoch)
        return block

    def commit(self, action: Commit) -> None:
        """All of it counts, and what waits before it."""
        block = self.built(action)
        self.waiting[block.group].append(block)
        self.store.commit([block])
        self.count(block.group, block.last + 1)

    def below(self, group: int, count: int) -> int:
        first = self.waiting[group][:count]
        return first[-1].last + 1 if first else self.model.last.get(group, -1) + 1

    def count(self, group: int, below: int) -> None:
        while self.waiting[group] and self.waiting[group][0].last < below:
            follow(self.model, self.waiting[group].pop(0))

    def truncate(self, group: int, kept: int) -> None:
        left = self.waiting[group][:kept]
        last = left[-1].last if left else self.model.last.get(group, -1)
        if self.model.last.get(group, -1) >= 0:
            with pytest.raises(UsageError, match="applied"):
                self.store.truncate(group, self.model.last[group] - 1)
        self.store.truncate(group, last)
        self.waiting[group] = left
        self.starts[group] = [start for start in self.starts[group] if start.first <= last]
        self.ahead = copy.deepcopy(self.model)
        for blocks in self.waiting.values():
            for block in blocks:
                follow(self.ahead, block)

    def lead(self, group: int) -> None:
        epoch = self.epochs[group] = self.promised[group] + 1
        self.store.promise({group: epoch, (group + 1) % GROUPS: 0})
        self.promised[group] = epoch
        last = self.ahead.last.get(group, -1)
        record: ControlRecord = EpochStart(epoch, last, "m")
        if last >= 0:  # an older leader's block, which nobody sends any more
            late = control_block(group, epoch - 1, last + 1, self.clock.time_us(), [pack_record(record)])
            with pytest.raises(UsageError, match="older"):
                self.store.commit([late], {})
        self.act(Append(Commit(group, 0, [record]), False, 0))
        self.starts[group].append(Epoch(epoch, self.ahead.last[group], last))

    def compare(self) -> None:
        super().compare()
        for group in range(GROUPS):
            self.compare_tail(group)

    def compare_tail(self, group: int) -> None:
        store, waiting = self.store, self.waiting[group]
        applied = self.model.last.get(group, -1)
        assert store.applied_below(group) == applied + 1
        tail = store.tails().get(group)
        assert (-1 if tail is None else tail.last) == (waiting[-1].last if waiting else applied)
        if tail is not None and waiting:
            assert (tail.epoch, tail.time_us) == (waiting[-1].epoch, waiting[-1].time_us)
        assert store.promised(group) == self.promised[group]
        assert store.epoch_starts(group) == self.starts[group]
        found = shipped(store, group, applied + 1, 1)
        assert [(b.epoch, b.first, b.last, b.kind, b.meta_bytes, b.lengths, b.body) for b in found] == [
            (b.epoch, b.first, b.last, b.kind, b.meta_bytes, b.lengths, b.body) for b in waiting
        ]


def shipped(store: Store, group: int, offset: int, bytes_max: int = BYTES) -> list[Block]:
    """The log from an offset on, page by page."""
    found: list[Block] = []
    while page := store.stored(group, offset, bytes_max):
        found += [stored_block(group, last, value).block for last, value in page]
        offset = found[-1].last + 1
    return found


groups = st.integers(0, GROUPS - 1)
commits = properties.commits
counts = st.integers(0, 4)
actions = st.one_of(
    st.builds(Append, commits, st.booleans(), counts),
    st.builds(Append, commits, st.booleans(), st.just(0)),
    st.builds(Apply, groups, counts),
    st.builds(Truncate, groups, counts),
    st.builds(Lead, groups),
    commits,
    st.builds(Advance, st.sampled_from([1.0, 10.0, 60.0])),
    st.builds(Reclaim, st.integers(1, 6)),
    st.builds(Restart, st.booleans()),
)


@pytest.fixture(params=[unapplied_tail.MEMORY_BYTES_MAX, 4_000])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a tail in memory, or the first block of it."""
    init: Any = unapplied_tail.UnappliedTail.__init__
    limited = partialmethod(init, memory_bytes_max=request.param)
    monkeypatch.setattr(unapplied_tail.UnappliedTail, "__init__", limited)


@pytest.mark.usefixtures("memory")
def test_what_counts_is_what_a_store_would_be_that_never_had_the_rest() -> None:
    @settings(max_examples=60)
    @given(st.lists(actions, min_size=8, max_size=40))
    def run(script: list[Any]) -> None:
        with tempfile.TemporaryDirectory() as name:
            world = Apart(Path(name) / "store")
            for action in script:
                world.act(action)
            world.compare()
            world.act(Restart(crash=True))
            world.compare()
            world.store.close()

    run()


class Joiner(World):
    """A copy of another world's store."""

    def __init__(self, directory: Path, origin: World) -> None:
        super().__init__(directory)
        self.clock, self.model = origin.clock, origin.model
        self.store.close()
        self.store = self.open()


def join(leader: Store, joiner: Store, group: int, meanwhile: Callable[[], None]) -> None:
    """A group's tables, page by page, then its log, as a leader ships it; something happens after each step."""
    place: SnapshotPlace | None = None
    while True:
        page, place = leader.group_snapshot(group, place)
        joiner.install(group, page)
        meanwhile()
        if place is None:
            break
    while True:
        tail = joiner.tails().get(group)
        page_of_log = leader.stored(group, tail.last + 1 if tail else 0, 200)
        if not page_of_log:
            joiner.commit([], {group: leader.applied_below(group)})
            return
        joiner.commit([stored_block(group, last, value) for last, value in page_of_log], {})
        if page_of_log[0][0] % 2:
            joiner.commit([], {group: leader.applied_below(group)})
        meanwhile()


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_snapshot, "ROWS_A_PAGE", 2)
    monkeypatch.setattr(group_snapshot, "ROWS_A_STEP", 2)


@pytest.mark.usefixtures("small_pages")
def test_a_joiner_comes_to_have_what_its_leader_has() -> None:
    """Whatever retention and compaction have taken before, and whatever is committed while it joins."""

    @settings(max_examples=25)
    @given(
        st.lists(properties.actions, min_size=8, max_size=30),
        st.lists(commits, max_size=12),
        st.lists(commits, max_size=4),
    )
    def run(before: list[Any], meanwhile: list[Any], of_its_own: list[Any]) -> None:
        with tempfile.TemporaryDirectory() as name:
            leader = World(Path(name) / "leader")
            for action in before:
                leader.act(action)
            other = World(Path(name) / "joiner")
            for action in of_its_own:  # what it knew before counts no more
                other.act(action)
            for group in range(GROUPS):
                while other.store.forget_group(group):
                    pass
            other.store.close()
            joiner = Joiner(Path(name) / "joiner", leader)
            todo = list(meanwhile)

            def go_on() -> None:
                if todo:
                    leader.act(todo.pop(0))

            for group in range(GROUPS):
                join(leader.store, joiner.store, group, go_on)
            while todo:
                go_on()
            for group in range(GROUPS):
                leader.act(publish(0, group))  # what lies last in a log may have left it
                tail = joiner.store.tails().get(group)
                rest = leader.store.stored(group, tail.last + 1 if tail else 0, BYTES)
                blocks = [stored_block(group, last, value) for last, value in rest]
                joiner.store.commit(blocks, {group: leader.store.applied_below(group)})
            while joiner.store.reclaim(0).more:
                pass
            for world in (leader, joiner):
                world.compare()
                assert [world.store.first_kept(g) for g in range(GROUPS)] == [
                    leader.store.first_kept(g) for g in range(GROUPS)
                ]
            joiner.act(Restart(crash=True))
            joiner.act(Reclaim(6))
            joiner.compare()
            leader.store.close()
            joiner.store.close()

    run()


# one by one


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Apart]:
    made = Apart(tmp_path / "store")
    yield made
    made.store.close()


def publish(topic: int = 0, group: int = 0, payload: bytes = b"x") -> Commit:
    return Commit(group, 0, [Pub(topic, payload, 1, 0, 0, None, None)])


def test_a_promise_alone_leaves_a_group_at_its_beginning(world: Apart) -> None:
    world.store.promise({1: 7})
    world.act(Restart(crash=True))
    assert world.store.promised(1) == 7
    assert world.store.known_epochs() == {1: 7}
    assert 1 not in world.store.tails()
    world.store.promise({1: 6})
    assert world.store.promised(1) == 7


def test_what_goes_had_an_epoch_that_stays_promised(world: Apart) -> None:
    world.epochs[0] = 4
    world.act(Append(publish(), False, 0))
    world.act(Truncate(0, 0))
    world.act(Restart(crash=True))
    assert world.store.promised(0) == 4


def test_a_follower_takes_the_past_of_older_epochs_after_its_promise(world: Apart) -> None:
    old = world.store.sealed(control_block(0, 2, 0, 1, [pack_record(EpochStart(2, -1, "other"))]))
    world.store.promise({0: 9})
    with pytest.raises(UsageError, match="older than epoch 9"):
        world.store.commit([old.block], {})
    world.store.commit([old], {})
    assert world.store.tails()[0].epoch == 2


def test_an_opening_passes_over_what_is_behind_a_damaged_block(tmp_path: Path) -> None:
    world = Apart(tmp_path / "store")
    for _ in range(4):
        world.act(Append(publish(), False, 0))
    world.act(Append(publish(group=1), False, 0))
    environment = world.store.environment
    with environment.begin() as txn:
        key = tail_key(2, 0, 2, 1)
        value = txn.get(key, None, environment.databases.tail)
        assert value is not None
        txn.put(key, value[:-1] + b"y", db=environment.databases.tail)
    assert [damage.table for damage in check_store(world.store).damages] == ["tail"]
    world.act(Restart(crash=False))
    assert world.store.tails()[0].last == 1
    assert world.store.tails()[1].last == 0
    assert world.store.damage.counts == {"tail": 1}
    world.act(Restart(crash=False))
    assert world.store.damage.counts == {}
    world.store.close()


def test_a_repaired_store_claims_nothing_that_may_not_count(tmp_path: Path) -> None:
    world = Apart(tmp_path / "store")
    world.act(publish())
    world.store.promise({0: 3})
    world.epochs[0] = 3
    for _ in range(300):
        world.act(Append(publish(), False, 0))
    world.store.close()
    (tmp_path / "new").mkdir()
    report = repair_store(tmp_path / "store", tmp_path / "new")
    assert report.damages == []
    assert check_coordinator_store(tmp_path / "new").damages == []
    world.directory = tmp_path / "new"
    world.store = world.open()
    assert world.store.tails()[0].last == 0
    assert world.store.promised(0) == 3
    world.store.close()


def test_a_group_that_is_forgotten_leaves_nothing_and_may_begin_again(tmp_path: Path) -> None:
    world = Apart(tmp_path / "store")
    kept = World(tmp_path / "kept")
    records: list[ControlRecord] = [saved_session("c", b"u"), Subscribed("b", 1, "t0", 0, 0)]
    for at in range(20):
        for group in (0, 1):
            world.act(publish(at % 4, group, b"%d" % at))
        kept.act(publish(at % 4, 1, b"%d" % at))
    world.act(Commit(0, 0, records))
    world.act(Append(publish(), False, 0))
    world.store.promise({0: 5})
    while world.store.forget_group(0):
        world.act(Restart(crash=True))
    assert 0 not in world.store.tails()
    assert world.store.promised(0) == 5
    assert list(world.store.tables.sessions(0)) == []
    assert list(world.store.tables.subscriptions(0)) == []
    world.model, world.ahead = kept.model, copy.deepcopy(kept.model)
    world.waiting[0], world.epochs[0], world.promised[0] = [], 5, 5
    world.compare()
    for action in (Restart(crash=True), publish(3, 0, b"new"), Restart(crash=True)):
        world.act(action)
        world.compare()
    kept.store.close()
    world.store.close()


@pytest.mark.parametrize(
    "page",
    [
        None,
        (True, ()),
        (1, (), None),
        (True, [], None),
        (True, (), (1,)),
        (True, (), (-1, 0)),
        (True, (7,), None),
        (True, ((),), None),
        (True, (("sessions", b"\0\0", b""),), None),
        (True, (("sessions", b"\0\1c", b"row"),), None),
        (True, (("names", b"\0\0", b"row"),), None),
        (True, ((["sessions"], b"\0\0", b"row"),), None),
        (True, (("superseded", b"\0\0", b""),), None),
        (True, (("epochs", b"\0\0" + bytes(600), bytes(16)),), None),
        (True, (("retained", "topic", bytes(16), None),), None),
        (True, (("retained", b"topic", bytes(16), b"block"),), None),
    ],
)
def test_a_page_that_is_none_is_refused(world: Apart, page: Any) -> None:
    with pytest.raises(PeerError):
        world.store.install(0, page)
    assert world.store.guard.poison is None
    world.store.commit([world.built(publish())])


def test_what_waits_too_long_for_one_transaction_is_applied_in_several(tmp_path: Path) -> None:
    options = StoreOptions(block_bytes_max=1 << 20, commit_bytes_max=1 << 20)
    clock = ManualClock()
    store = Store.open(tmp_path / "s", cluster_id="c", member="m", groups=1, options=options, clock=clock)
    record = pack_record(Subscribed("b" * 200_000, 1, "t", 0, 0))
    for at in range(12):
        store.commit([control_block(0, 1, at, 1, [record])], {})
    before = store.environment.lmdb.info()["last_txnid"]
    store.commit([], {0: 12})
    assert store.environment.lmdb.info()["last_txnid"] - before == 3
    assert store.applied_below(0) == 12
    store.close()


def test_truncation_goes_step_by_step_from_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unapplied_tail, "BLOCKS_A_STEP", 3)
    world = Apart(tmp_path / "store")
    for _ in range(8):
        world.act(Append(publish(), False, 0))
    begin, begun = Environment.begin, []

    def crashes(environment: Environment) -> Any:
        begun.append(1)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return begin(environment)

    monkeypatch.setattr(Environment, "begin", crashes)
    with pytest.raises(KeyboardInterrupt):
        world.store.truncate(0, -1)
    monkeypatch.undo()
    world.act(Restart(crash=True))
    assert world.store.tails()[0].last == 1
    world.act(Truncate(0, 0))
    assert 0 not in world.store.tails()
    world.store.close()


def test_what_waits_is_not_in_the_log_that_readers_and_jobs_see(world: Apart) -> None:
    world.act(publish())
    world.act(Append(publish(payload=b"waits"), False, 0))
    assert [block.last for block in world.store.read(0, 0).blocks] == [0]
    with world.store.environment.snapshot() as txn:
        assert txn.get(log_key(0, 1), None, world.store.environment.databases.log) is None
    assert [block.last for block in shipped(world.store, 0, 0)] == [0, 1]


def test_a_store_of_an_older_lexicast_is_looked_at_once_it_has_been_served(tmp_path: Path) -> None:
    world = Apart(tmp_path / "store")
    world.act(publish())
    for name in ("tail", "promises", "counted"):  # which that one did not know
        with world.store.environment.begin() as txn:
            txn.drop(raw_database(world.store.environment.databases, name), delete=True)
    world.store.environment.close()
    with pytest.raises(StoreFormatError, match="older lexicast"):
        check_coordinator_store(tmp_path / "store")
    world.store = world.open()
    world.compare()
    world.store.close()
    assert check_coordinator_store(tmp_path / "store").damages == []


def test_what_is_applied_while_somebody_reads_is_read(world: Apart, monkeypatch: pytest.MonkeyPatch) -> None:
    world.lead(0)
    for _ in range(3):
        world.act(Append(publish(), False, 0))
    reading = world.store.guard.reading

    @contextmanager
    def meanwhile() -> Iterator[Any]:
        with reading() as txn:
            world.act(Apply(0, 4))
            yield txn

    for ask in (lambda: [block.last for block in shipped(world.store, 0, 0)], lambda: world.store.epoch_starts(0)):
        world.act(Append(publish(), False, 0))
        with monkeypatch.context() as patch:
            before = ask()
            patch.setattr(world.store.guard, "reading", meanwhile)
            assert ask() == before


def test_the_end_of_a_log_of_which_nothing_is_left_is_known_and_goes_on(tmp_path: Path) -> None:
    world = Apart(tmp_path / "store")
    world.act(publish())
    world.act(Append(publish(), False, 0))
    with pytest.raises(UsageError, match="not applied"):
        world.store.end_at(0, 3, 40, 7)
    world.act(Apply(0, 1))
    now = world.clock.time_us()
    world.store.end_at(0, 3, 40, now)
    world.store.end_at(1, 2, 9, 8)
    world.store.end_at(0, 3, 12, 7)  # it ends behind that already
    for crash in (False, True):
        tails = world.store.tails()
        assert [(tails[g].epoch, tails[g].last, tails[g].time_us) for g in (0, 1)] == [(3, 40, now), (2, 9, 8)]
        assert (tails[0].first, tails[1].first) == (0, 10)
        assert [world.store.applied_end(group) for group in (0, 1, 2)] == [(3, 40, now), (2, 9, 8), (0, -1, 0)]
        world.act(Restart(crash))
    late = control_block(0, 3, 40, now, [pack_record(EpochStart(3, -1, "m"))])
    with pytest.raises(UsageError, match="do not follow"):
        world.store.commit([late])
    world.store.commit([control_block(0, 3, 41, now, [pack_record(EpochStart(3, 40, "m"))])])
    assert [block.last for block in world.store.read(0, 0).blocks] == [0, 1, 41]
    assert world.store.damage.counts == {}
    world.store.close()
    assert check_coordinator_store(tmp_path / "store").damages == []


def test_what_is_set_aside_is_read_again_page_by_page(world: Apart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated_groups, "SET_ASIDE_BYTES", 1)
    for at in range(4):
        world.act(publish(payload=b"%d" % at))
    place: int | None = 1
    while place is not None:
        place = world.store.set_aside(0, place, 7)
    (name,) = world.store.all_set_aside()
    path = world.directory / name
    assert [list(block.payloads()) for block in read_set_aside(path)] == [[b"1"], [b"2"], [b"3"]]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(PeerError):
        list(read_set_aside(path))


def test_a_block_that_comes_with_a_checksum_is_taken_by_that_alone(world: Apart) -> None:
    pubs = [Pub(0, b"%d" % at, 1, 0, 0, None, None) for at in range(RECORDS_FOR_CHECKSUM)]
    few = world.store.sealed(world.built(Commit(0, 0, pubs[:1])))
    many = world.store.sealed(world.built(Commit(0, 0, pubs)))
    assert shipped_checksum(few) is None
    checksum = shipped_checksum(many)
    assert checksum is not None
    last, value = many.block.last, many.value
    assert stored_block(0, last, value, checksum).value == value
    assert stored_block(0, last, value, checksum).outline[1:] == stored_block(0, last, value).outline[1:]
    for at in (0, len(value) // 2, len(value) - 1):
        torn = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
        with pytest.raises(PeerError):
            stored_block(0, last, torn, checksum)
        with pytest.raises(PeerError):
            stored_block(0, last, torn)
