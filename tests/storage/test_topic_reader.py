"""The past of few topics by the index: the same as a scan of the log gives, whatever has become of log and index."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, pack_meta
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.topics.names import matches
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.index.log_index import expired_rows
from lexicast.storage.index.runs import CLEAN_LOOK_US, CLEAN_US
from lexicast.storage.log.block_cuts import cut
from lexicast.storage.store import Store
from lexicast.storage.tables.matching_topics import FoundTopic
from lexicast.storage.topic_reader import TopicReader
from lexicast.storage.topic_tail import TopicTail

from ..support.topic_past import topic_past

GROUPS = 2
MIB = 1 << 20
OPTIONS = StoreOptions(
    map_bytes=64 * MIB,
    quota_bytes=48 * MIB,
    reserve_bytes=MIB,
    retention_s=100,
    index_entries_max=6,
    index_step_topics=2,
)
LONG = b"long/" + b"x" * 600
NAMES = [b"a", b"a-b/c", b"a/b", b"a/b/c", b"a/x/c", b"a/x/c/d", b"b/b/c", b"$a/b", b"/", b"a//c", LONG]
FILTERS = [
    b"#",
    b"a/#",
    b"+/b/c",
    b"a/+/c",
    b"+",
    b"a/b",
    b"+/+",
    b"/#",
    b"$a/#",
    b"+/#",
    b"long/+",
    b"none/#",
    b"a//+",
]


def topic_of(group: int, name: bytes) -> bytes:
    """A topic is of one group: here those with a name of their own."""
    return name if group == 0 else name + b"/g"


def block_of(group: int, epoch: int, first: int, time_us: int, pubs: list[tuple[bytes, int]]) -> Block:
    """A block of (topic, expiry_ms) with a payload that says where each lies."""
    topics = tuple(dict.fromkeys([topic for topic, _ in pubs]))
    runs = tuple([Run(0, topics.index(topic), 1, 0, expiry, None, -1, 1) for topic, expiry in pubs])
    bodies = [b"%d:%d" % (group, first + at) for at in range(len(pubs))]
    lengths = b"".join([len(body).to_bytes(4, "little") for body in bodies])
    meta = pack_meta(Meta(topics, runs, (), (), (), ()))
    return Block(group, epoch, first, first + len(pubs) - 1, time_us, PUBLICATIONS, meta, lengths, b"".join(bodies))


def records(blocks: list[Block]) -> list[tuple[int, bytes, bytes]]:
    return [(r.offset, r.topic, r.payload) for block in blocks for r in block.records()]


def scanned(store: Store, group: int, topic_filter: bytes, first: int, last: int) -> list[tuple[int, bytes, bytes]]:
    """What a scan of the log gives."""
    found: list[Block] = []
    while first <= last:
        result = store.read(group, first, upto=last, topics=lambda topic: matches(topic_filter, topic))
        found += [part for b in result.blocks if (part := cut(b, topics=lambda t: matches(topic_filter, t)))]
        if result.next_offset == first:
            break
        first = result.next_offset
    return records(found)


def found_topics(store: Store, topic_filter: bytes, steps: int) -> list[tuple[bytes, int]] | None:
    found: list[tuple[bytes, int]] = []
    after: bytes | None = None
    while True:
        step = store.by_topic.find(topic_filter, after, steps)
        if step is None:
            return None
        found += step[0]
        after = step[1]
        if after is None:
            return found


def by_index(
    store: Store, group: int, topic_filter: bytes, first: int, last: int, bytes_max: int
) -> list[tuple[int, bytes, bytes]] | None:
    """What the index gives; None: it cannot tell."""
    topics = found_topics(store, topic_filter, 3)
    if topics is None:
        return None
    ids = [topic_id for _, topic_id in topics if topic_id >> 48 == group]
    span = store.by_topic.span(group, ids, lambda topic: matches(topic_filter, topic))
    found: list[Block] = []
    while first <= last:
        while not (looked := span.look(first, last, 0.0)):
            if looked is None:
                return None
        result = span.read(first, bytes_max, last, 0.0)
        assert result.next_offset > first
        found += result.blocks
        first = result.next_offset
    return records(found)


def compare(store: Store, bytes_max: int = 1, whole: bool = True) -> None:
    """Every filter, from several places to several ends."""
    tails = store.tails()
    for group, tail in tails.items():
        for topic_filter in FILTERS:
            for first, last in ((0, tail.last), (tail.last // 3, tail.last // 2 + 1)):
                got = by_index(store, group, topic_filter, first, last, bytes_max)
                assert (got is not None) or not whole
                if got is not None:
                    assert got == scanned(store, group, topic_filter, first, last), (topic_filter, first, last)
                if whole:
                    assert counted(store, group, topic_filter, first, last) == (len(got or ()), len(got or ()))


def counted(store: Store, group: int, topic_filter: bytes, first: int, last: int) -> tuple[int, int]:
    """How many there are: by the index, and in a scan."""
    ids = [i for _, i in found_topics(store, topic_filter, 99) or [] if i >> 48 == group]
    span = store.by_topic.span(group, ids, lambda topic: matches(topic_filter, topic))
    at, indexed, in_log = first, 0, 0
    while at <= last:
        while not span.look(at, last, 0.0):
            pass
        some, at = span.count(at, last, 0.0)
        indexed += some
    while first <= last:
        some, first = store.count(group, first, last, lambda topic: matches(topic_filter, topic), 0.0)
        in_log += some
    return indexed, in_log


def last_of(store: Store, group: int, topic: bytes, count: int, first: int, before: int, bytes_max: int) -> list[bytes]:
    """The payloads of the last `count` of a topic, by the index; each read as if it were another request's."""
    topic_id = dict(found_topics(store, topic, 9) or [])[topic]
    found: list[bytes] = []
    at: int | None = first
    while at is not None:
        tail = TopicTail(store.by_topic, FoundTopic(topic, topic_id), count, at, before)
        while not (looked := tail.look(0.0)):
            assert looked is not None
        at = tail.next
        if at is not None:
            found += [payload for _, _, payload in records(tail.read(bytes_max, 0.0))]
            at = tail.next
    return found


def compare_last(store: Store) -> None:
    """Of every topic, some and all of its last publications."""
    for group, tail in store.tails().items():
        for topic, topic_id in found_topics(store, b"#", 99) or []:
            if topic_id >> 48 != group:
                continue
            for first, last in ((0, tail.last), (tail.last // 3, tail.last // 2 + 1)):
                every = [payload for _, _, payload in scanned(store, group, topic, first, last)]
                for count in (1, 2, 5, 100):
                    assert last_of(store, group, topic, count, first, last + 1, 1) == every[-count:]


class Commit(NamedTuple):
    group: int
    gap: int
    new_epoch: bool
    pubs: list[tuple[bytes, int]]


class Later(NamedTuple):
    seconds: float
    steps: int


class Restart(NamedTuple):
    crash: bool


publications = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from([0, 0, 5_000, 40_000])), min_size=1, max_size=6
)
actions: st.SearchStrategy[Commit | Later | Restart] = st.one_of(
    st.builds(Commit, st.integers(0, GROUPS - 1), st.integers(0, 2), st.booleans(), publications),
    st.builds(Commit, st.just(0), st.just(0), st.just(False), publications),
    st.builds(Later, st.sampled_from([0.0, 1.0, 10.0, 60.0]), st.integers(0, 8)),
    st.builds(Restart, st.booleans()),
)


class World:
    """A store and its clock, driven by actions."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.options = OPTIONS
        self.clock = ManualClock()
        self.epochs = dict.fromkeys(range(GROUPS), 1)
        self.store = self.open()

    def open(self) -> Store:
        return Store.open(
            self.directory, cluster_id="c", member="m", groups=GROUPS, options=self.options, clock=self.clock
        )

    def act(self, action: Commit | Later | Restart) -> None:
        match action:
            case Commit(group, gap, new_epoch, pubs):
                self.epochs[group] += new_epoch
                tail = self.store.tails().get(group)
                first = (0 if tail is None else tail.last + 1) + gap + 1_000 * new_epoch
                pubs = [(topic_of(group, name), expiry) for name, expiry in pubs]
                self.store.commit([block_of(group, self.epochs[group], first, self.clock.time_us(), pubs)])
            case Later(seconds, steps):
                self.clock.advance(seconds)
                for _ in range(steps):
                    self.store.reclaim(self.clock.time_us())
            case Restart(crash):
                if crash:
                    self.store.environment.close()  # nothing of what is in memory is written
                else:
                    self.store.close()
                self.store = self.open()


@settings(max_examples=25)
@given(st.lists(actions, min_size=4, max_size=30))
def test_the_index_gives_what_a_scan_gives(script: list[Commit | Later | Restart]) -> None:
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name) / "store")
        for action in script:
            world.act(action)
        compare(world.store)
        compare_last(world.store)
        world.store.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "store")
    yield world
    world.store.close()


def fill(world: World, blocks: int = 30) -> None:
    for at in range(blocks):
        world.act(Commit(0, 0, False, [(NAMES[(at + k) % len(NAMES)], 0) for k in range(3)]))


def test_messages_that_are_blocks_of_their_own_are_read_and_counted_in_one_go(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        world.act(Commit(0, 0, False, [(NAMES[0], 0)]))
        world.act(Commit(0, 0, False, [(NAMES[1], 0)]))
        world.act(Commit(0, 0, False, [(NAMES[0], 0), (NAMES[1], 0)]))
    general: list[int] = []
    whole = TopicReader._block_here

    def counted(*arguments: Any) -> Any:
        general.append(1)
        return whole(*arguments)

    compare(world.store)
    monkeypatch.setattr(TopicReader, "_block_here", counted)
    assert len(by_index(world.store, 0, NAMES[0], 0, 100, MIB) or []) == 10
    assert len(general) == 5
    (topic_id,) = [topic_id for name, topic_id in found_topics(world.store, NAMES[0], 9) or []]
    span = world.store.by_topic.span(0, [topic_id], NAMES[0].__eq__)
    assert span.look(0, 100, 10.0)
    assert span.count(0, 100, 10.0) == (10, 101)
    assert len(general) == 10


def test_filters_find_their_topics_and_no_others(world: World) -> None:
    fill(world)
    for topic_filter in FILTERS:
        for steps in (1, 2, 100):
            found = found_topics(world.store, topic_filter, steps)
            assert found is not None
            names = [name for name, _ in found]
            assert len(set(names)) == len(names)
            assert set(names) == {name for name in NAMES if matches(topic_filter, name)}, topic_filter


def test_a_filter_of_few_topics_looks_at_few_names(world: World) -> None:
    pubs = [(b"dev/%04d/%s" % (device, kind), 0) for device in range(600) for kind in (b"a", b"b", b"c")]
    world.act(Commit(0, 0, False, pubs))
    assert world.store.by_topic.known() == 1_800
    found, after = world.store.by_topic.find(b"dev/0300/+", None, 5) or ([], b"")
    assert ([name for name, _ in found], after) == ([b"dev/0300/a", b"dev/0300/b", b"dev/0300/c"], None)
    # A look at the first that may match below each level that '+' stands for, and one to get on.
    found, after = world.store.by_topic.find(b"dev/+/b", None, 1_202) or ([], b"")
    assert (len(found), after) == (600, None)


@pytest.mark.parametrize("database", ["log", "dual", "ids"])
def test_damage_costs_what_it_hits_or_the_log_answers(world: World, database: str) -> None:
    fill(world)
    world.store.flush()
    whole = scanned(world.store, 0, b"a/#", 0, 10_000)
    with world.store.environment.begin() as txn:
        found = getattr(world.store.environment.databases, database)
        found = getattr(found, "database", found)
        with txn.cursor(found) as cursor:
            assert cursor.set_range(
                b"\xff\xff\0\0\0\1" if database == "dual" else b"\0a/b" if database == "ids" else b""
            )
            key, value = bytes(cursor.key()), bytearray(cursor.value())
            value[len(value) // 2] ^= 1
            txn.put(key, bytes(value), db=found)
    world.store.close()
    world.store = world.open()
    compare(world.store, whole=False)
    got = scanned(world.store, 0, b"a/#", 0, 10_000)
    assert (got == whole) == (database != "log")
    while world.store.reclaim(world.clock.time_us()).more:
        pass
    compare(world.store)


@pytest.mark.parametrize("table", ["ids", "names"])
def test_a_damaged_topic_is_passed_over_where_no_log_answers_instead(world: World, table: str) -> None:
    fill(world)
    found = getattr(world.store.environment.databases, table).database
    with world.store.environment.begin() as txn, txn.cursor(found) as cursor:
        there = cursor.first() if table == "names" else cursor.set_range(b"\0a/b")
        while there and table == "names" and LONG not in bytes(cursor.value()):
            there = cursor.next()
        assert there
        key, value = bytes(cursor.key()), bytearray(cursor.value())
        value[len(value) // 2] ^= 1
        txn.put(key, bytes(value), db=found)
    gone = LONG if table == "names" else b"a/b"
    assert world.store.by_topic.find(b"#") is None
    topics, after = world.store.by_topic.find(b"#", pass_over=True) or ([], b"")
    assert {topic.name for topic in topics} == {name for name in NAMES if not name.startswith(b"$")} - {gone}
    assert after is None
    assert world.store.environment.damage.counts


def test_until_the_index_is_whole_it_does_not_tell(world: World) -> None:
    fill(world)
    index_writer = world.store._index_writer
    index_writer.begin_rebuild()
    assert world.store.by_topic.find(b"a/#") is None
    expected = scanned(world.store, 0, b"a/b", 0, 10_000)
    assert records(topic_past(world.store, 0, b"a/b", 0, 2**62, limit=99)) == expected
    index_writer.flush()
    compare(world.store)


def test_an_index_that_breaks_on_the_way_says_so(world: World) -> None:
    fill(world)
    topics = found_topics(world.store, b"a/#", 100)
    assert topics
    span = world.store.by_topic.span(0, [topic_id for _, topic_id in topics], lambda topic: True)
    world.store._index.broken = True
    assert span.look(0, 99, 1.0) is None


def without_blocks(world: World) -> None:
    """The blocks leave the log, and the index does not know yet."""
    with world.store.environment.begin() as txn:
        txn.drop(world.store.environment.databases.log, delete=False)


def test_entries_whose_blocks_are_gone_take_no_longer_than_others(world: World) -> None:
    for _ in range(40):
        world.act(Commit(0, 0, False, [(b"a", 0)]))
    topic = FoundTopic(*(found_topics(world.store, b"a", 9) or [])[0])
    span = world.store.by_topic.span(0, [topic.topic_id], b"a".__eq__)
    assert span.look(0, 99, 1.0)
    tail = TopicTail(world.store.by_topic, topic, 30, 0, 99)
    assert tail.look(1.0)
    without_blocks(world)
    assert span.read(0, MIB, 99, 0.0).next_offset == 1
    assert span.read(1, MIB, 99, 0.0).next_offset == 2
    assert span.count(1, 99, 0.0) == (0, 2)
    begin = tail.next
    assert begin is not None
    assert (tail.read(MIB, 0.0), tail.next) == ([], begin + 1)
    assert span.read(1, MIB, 99, 1.0).next_offset == 100


def test_a_read_gets_on_from_within_a_block_that_is_gone(world: World) -> None:
    """Who asks and is told to go on where he asked would take it for the end."""
    for _ in range(3):
        world.act(Commit(0, 0, False, [(name, 0) for name in (b"a", b"a/b", b"a-b/c", b"a/b/c")]))
    topics = [topic_id for _, topic_id in found_topics(world.store, b"#", 9) or []]
    reading, counting = [world.store.by_topic.span(0, topics, lambda topic: True) for _ in range(2)]
    # In the second block, whose entries begin at 4.
    assert reading.look(5, 99, 1.0)
    assert counting.look(5, 99, 1.0)
    without_blocks(world)
    assert reading.read(5, MIB, 99, 0.0).next_offset == 6
    assert counting.count(5, 99, 0.0) == (0, 6)


def index_rows(world: World) -> tuple[int, int]:
    """(those that have expired, all) of the index on disk."""
    with world.store.environment.snapshot() as txn:
        return expired_rows(txn, world.store.environment.databases.dual, world.clock.time_us())


def test_what_has_expired_leaves_the_index_though_what_stays_lies_beside_it(world: World) -> None:
    world.store.close()
    world.options = replace(OPTIONS, retention_s=0.0)
    world.store = world.open()
    for at in range(40):
        world.act(Commit(0, 0, False, [(b"a", 5_000 if at % 2 else 0), (b"a/b", 40_000)]))
    world.store.flush()
    world.act(Later(10.0, 200))
    assert index_rows(world)[0] > 0  # for a while, lest runs be written anew for each
    world.act(Later(CLEAN_US / 1e6 + 10, 0))
    for _ in range(20):
        world.act(Later(CLEAN_LOOK_US / 1e6, 20))
    assert index_rows(world) == (0, 20)
    assert len(records(topic_past(world.store, 0, b"a", 0, 2**62, limit=99))) == 20


def test_a_store_in_which_everything_expires_has_an_empty_index(world: World) -> None:
    for _ in range(40):
        world.act(Commit(0, 0, False, [(b"a", 5_000)]))
    world.store.flush()
    assert index_rows(world) == (0, 40)
    world.act(Later(20.0, 200))
    assert index_rows(world) == (0, 0)
    assert topic_past(world.store, 0, b"a", 0, 2**62, limit=9) == []
