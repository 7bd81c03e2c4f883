"""The store against a naive model: any interleaving of commits, restarts, crashes, writing behind and reclaiming."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.blocks import PUBLICATIONS, RETAIN, Block, Mark, Meta, ProducerRun, Run, control_block, pack_meta
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.records import (
    ControlRecord,
    DictionaryStored,
    Dropped,
    ProducerSeen,
    Released,
    SessionEnded,
    SessionMoved,
    SessionSaved,
    Subscribed,
    Unsubscribed,
    pack_record,
    unpack_record,
)
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.maintenance.check import check_store
from lexicast.storage.store import Store
from lexicast.storage.tables.state import GENERATION_ID

from ..support.retained import retained_records
from ..support.session_rows import saved_session
from ..support.topic_past import topic_past

GROUPS = 3
MIB = 1 << 20


class Pub(NamedTuple):
    topic: int
    payload: bytes
    flags: int
    expiry_ms: int
    skip: int
    producer: tuple[bytes, int] | None
    packet_id: int | None


class Stored(NamedTuple):
    offset: int
    topic: bytes
    payload: bytes
    time_us: int
    expires_us: int

    def alive(self, now_us: int) -> bool:
        return not 0 < self.expires_us < now_us


class Commit(NamedTuple):
    group: int
    gap: int
    content: list[Pub] | list[ControlRecord]


class Advance(NamedTuple):
    seconds: float


class Reclaim(NamedTuple):
    steps: int


class Restart(NamedTuple):
    crash: bool


Action = Commit | Advance | Reclaim | Restart

clients = st.sampled_from(["c1", "c2"])
uids = st.sampled_from([b"u1", b"u2"])
brokers = st.sampled_from(["b1", "b2"])
filters = st.sampled_from(["t0", "t1", "t/+", "#"])
small = st.integers(0, 3)

expiries = st.sampled_from([0, 5, 9, 2**63 - 1])

records: st.SearchStrategy[ControlRecord] = st.one_of(
    st.builds(saved_session, clients, uids, small, brokers, small, expiries, st.binary(max_size=4)),
    st.builds(SessionMoved, clients, small, brokers, small, small, small, expiries, small, st.binary(max_size=4)),
    st.builds(SessionEnded, clients, uids, small),
    st.builds(Subscribed, brokers, small, filters, small, small),
    st.builds(Unsubscribed, brokers, filters),
    st.builds(Released, uids, st.lists(small, max_size=2).map(tuple), small),
    st.builds(DictionaryStored, small, st.just("family"), st.binary(max_size=4)),
    st.builds(ProducerSeen, st.sampled_from([b"p", b"q"]), small, st.integers(0, 50)),
)
pubs = st.builds(
    Pub,
    small,
    st.one_of(st.just(b""), st.binary(max_size=6)),
    st.sampled_from([0, 1, RETAIN, RETAIN | 1]),
    st.sampled_from([0, 0, 5_000, 40_000]),
    st.sampled_from([0, 0, 0, 2]),
    st.none() | st.tuples(st.sampled_from([b"p", b"q"]), small),
    st.none() | small,
)
short_lived = pubs.map(lambda pub: pub._replace(expiry_ms=5_000))
commits: st.SearchStrategy[Commit] = st.one_of(
    st.builds(Commit, st.integers(0, GROUPS - 1), small, st.lists(pubs, min_size=1, max_size=6)),
    st.builds(Commit, st.just(0), st.just(0), st.lists(short_lived, min_size=1, max_size=2)),
    st.builds(Commit, st.integers(0, GROUPS - 1), small, st.lists(records, min_size=1, max_size=4)),
)
actions: st.SearchStrategy[Action] = st.one_of(
    commits,
    st.builds(Advance, st.sampled_from([1.0, 10.0, 60.0])),
    st.builds(Reclaim, st.integers(1, 6)),
    st.builds(Restart, st.booleans()),
)


def replay(sessions: dict[tuple[int, str], SessionSaved], group: int, record: ControlRecord) -> None:
    """What a record means for the sessions."""
    if not isinstance(record, SessionSaved | SessionMoved | SessionEnded):
        return
    key = (group, record.client_id)
    found = sessions.get(key)
    match record:
        case SessionSaved():
            sessions[key] = record
        case SessionMoved():
            if found is not None and found.generation <= record.generation:
                changed = {name: getattr(record, name) for name in record._fields}
                sessions[key] = found._replace(**changed | {"place": record.place or found.place})
        case SessionEnded():
            if found is not None and found.uid == record.uid and found.generation <= record.generation:
                del sessions[key]


@dataclass
class Model:
    """What a store should say, kept in plain dictionaries."""

    log: dict[int, list[Stored]] = field(default_factory=lambda: {g: [] for g in range(GROUPS)})
    control: dict[int, list[tuple[int, bytes]]] = field(default_factory=lambda: {g: [] for g in range(GROUPS)})
    last: dict[int, int] = field(default_factory=dict)
    sessions: dict[tuple[int, str], SessionSaved] = field(default_factory=dict)
    subscriptions: dict[tuple[int, str, str], tuple[Subscribed, int]] = field(default_factory=dict)
    marks: dict[tuple[int, bytes, int], int] = field(default_factory=dict)
    dictionaries: dict[tuple[int, int], DictionaryStored] = field(default_factory=dict)
    retained: dict[tuple[int, bytes], Stored] = field(default_factory=dict)
    incarnations: dict[tuple[int, bytes], int] = field(default_factory=dict)
    sequences: dict[tuple[int, bytes], dict[int, int | None]] = field(default_factory=dict)

    def topic(self, group: int, number: int) -> bytes:
        return b"g%d/t%d" % (group, number)

    def apply(self, group: int, offset: int, record: ControlRecord) -> None:
        self.control[group].append((offset, pack_record(record)))
        replay(self.sessions, group, record)
        match record:
            case Subscribed():
                self.subscriptions[group, record.broker, record.filter] = (record, offset)
            case Unsubscribed():
                self.subscriptions.pop((group, record.broker, record.filter), None)
            case Released():
                for packet_id in record.packet_ids:
                    self.marks.pop((group, record.session_uid, packet_id), None)
                newest = (group, record.session_uid, GENERATION_ID)
                if record.generation > self.marks.get(newest, 0):
                    self.marks[newest] = record.generation
            case DictionaryStored():
                self.dictionaries[group, record.dictionary] = record
            case ProducerSeen():
                self._sequence(group, record.producer, record.incarnation, record.sequence, None)

    def _sequence(self, group: int, producer: bytes, incarnation: int, sequence: int, offset: int | None) -> None:
        key = (group, producer)
        known = self.incarnations.get(key, -1)
        if incarnation < known:
            return
        if incarnation > known:
            self.incarnations[key], self.sequences[key] = incarnation, {}
        if offset is not None or sequence not in self.sequences[key]:
            self.sequences[key][sequence] = offset

    def next_sequence(self, group: int, producer: bytes, incarnation: int) -> int:
        key = (group, producer)
        return max(self.sequences.get(key, {}), default=0) + 1 if self.incarnations.get(key) == incarnation else 1

    def publish(self, group: int, stored: Stored, pub: Pub, sequence: int) -> None:
        self.log[group].append(stored)
        if pub.producer is not None:
            self._sequence(group, *pub.producer, sequence, stored.offset)
        if pub.packet_id is not None:
            self.marks[group, b"u1", pub.packet_id] = stored.offset
        if pub.flags & RETAIN and pub.payload:
            self.retained[group, stored.topic] = stored
        elif pub.flags & RETAIN:
            self.retained.pop((group, stored.topic), None)


class World:
    """A store, its clock and the model, driven by actions."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.model = Model()
        self.store = self.open()

    def open(self) -> Store:
        options = StoreOptions(
            quota_bytes=64 * MIB,
            reserve_bytes=MIB,
            map_bytes=128 * MIB,
            retention_s=100,
            producer_retention_s=1e6,
            index_entries_max=6,
            index_step_topics=2,
            topic_cache_max=2,
        )
        return Store.open(self.directory, cluster_id="c", member="m", groups=GROUPS, options=options, clock=self.clock)

    def act(self, action: Action) -> None:
        match action:
            case Commit():
                self.commit(action)
            case Advance():
                self.clock.advance(action.seconds)
            case Reclaim():
                for _ in range(action.steps):
                    self.store.reclaim(self.clock.time_us())
            case Restart():
                if action.crash:
                    self.store.environment.close()  # nothing of what is in memory is written
                else:
                    self.store.close()
                self.store = self.open()

    def commit(self, action: Commit) -> None:
        self.store.commit([self.block(action)])

    def block(self, action: Commit) -> Block:
        """What is to be committed; the model has it already."""
        first = self.model.last.get(action.group, -1) + 1 + action.gap
        controls = [c for c in action.content if not isinstance(c, Pub)]
        if controls:
            block = control_block(action.group, 1, first, self.clock.time_us(), [pack_record(c) for c in controls])
            for at, record in enumerate(controls):
                self.model.apply(action.group, first + at, record)
        else:
            block = self._publications(action.group, first, [p for p in action.content if isinstance(p, Pub)])
        self.model.last[action.group] = block.last
        return block

    def _publications(self, group: int, first: int, pubs: list[Pub]) -> Block:
        now = self.clock.time_us()
        topics = tuple(dict.fromkeys(self.model.topic(group, p.topic) for p in pubs))
        runs, producers, marks, offset = [], [], [], first
        for at, pub in enumerate(pubs):
            offset += pub.skip
            topic = self.model.topic(group, pub.topic)
            runs.append(Run(pub.skip, topics.index(topic), pub.flags, 0, pub.expiry_ms, None, -1, 1))
            sequence = self.model.next_sequence(group, *pub.producer) if pub.producer else 0
            producers.append(ProducerRun(*(pub.producer or (b"", 0)), sequence, 1))
            if pub.packet_id is not None:
                marks.append(Mark(at, b"u1", pub.packet_id))
            expires = now + pub.expiry_ms * 1_000 if pub.expiry_ms else 0
            self.model.publish(group, Stored(offset, topic, pub.payload, now, expires), pub, sequence)
            offset += 1
        lengths = b"".join(len(p.payload).to_bytes(4, "little") for p in pubs)
        meta = pack_meta(Meta(topics, tuple(runs), tuple(producers), tuple(marks), (), ()))
        body = b"".join(p.payload for p in pubs)
        return Block(group, 1, first, offset - 1, now, PUBLICATIONS, meta, lengths, body)

    # comparing

    def compare(self) -> None:
        for group in range(GROUPS):
            self.compare_log(group)
            self.compare_past(group)
            self.compare_retained(group)
            self.compare_producers(group)
        self.compare_tables()
        assert check_store(self.store).damages == []

    def alive(self, group: int) -> list[tuple[int, bytes, bytes]]:
        now, kept = self.clock.time_us(), self.store.read(group, 0).first_kept
        return [(s.offset, s.topic, s.payload) for s in self.model.log[group] if s.offset >= kept and s.alive(now)]

    def read(self, group: int, first: int, upto: int | None = None) -> tuple[list[Block], int]:
        blocks: list[Block] = []
        while True:
            result = self.store.read(group, first, bytes_max=30, upto=upto)
            blocks += result.blocks
            if result.next_offset == first:
                return blocks, first
            first = result.next_offset

    def compare_log(self, group: int) -> None:
        last = self.model.last.get(group, -1)
        tails = self.store.tails()
        assert self.store.applied_below(group) - 1 == last
        assert group in tails or last == -1
        blocks, end = self.read(group, 0)
        kept = self.store.read(group, 0).first_kept
        expected = self.alive(group)
        assert [(r.offset, r.topic, r.payload) for b in blocks if b.kind == 0 for r in b.records()] == expected
        self.compare_control(group, [b for b in blocks if b.kind == 1], kept)
        if blocks and self.model.log[group] and blocks[-1].last == last:
            assert end == last + 1
        for first, upto in ((last // 2, last), (last // 3, last // 2 + 1)):
            part = [b for b in self.read(group, max(0, first), max(0, upto))[0] if b.kind == 0]
            got = [(r.offset, r.topic, r.payload) for b in part for r in b.records()]
            assert got == [row for row in expected if first <= row[0] <= upto]

    def compare_control(self, group: int, blocks: list[Block], kept: int) -> None:
        """All is there but what was superseded, and who replays what is there comes to the same tables."""
        found = {b.first + i: p for b in blocks for i, p in enumerate(b.payloads()) if p != pack_record(Dropped())}
        expected = {offset: packed for offset, packed in self.model.control[group] if offset >= kept}
        assert found.items() <= expected.items()
        gone = [unpack_record(packed) for offset, packed in expected.items() if offset not in found]
        superseded = SessionSaved | SessionMoved | SessionEnded | Subscribed | Unsubscribed
        assert all(isinstance(record, superseded) for record in gone)
        if kept == 0:
            subscribed: dict[tuple[int, str, str], tuple[Subscribed, int]] = {}
            for offset, packed in sorted(found.items()):
                match unpack_record(packed):
                    case Subscribed() as record:
                        subscribed[group, record.broker, record.filter] = (record, offset)
                    case Unsubscribed() as record:
                        subscribed.pop((group, record.broker, record.filter), None)
            assert subscribed == {key: row for key, row in self.model.subscriptions.items() if key[0] == group}
            replayed: dict[tuple[int, str], SessionSaved] = {}
            for _, packed in sorted(found.items()):
                replay(replayed, group, unpack_record(packed))
            assert replayed == {key: row for key, row in self.model.sessions.items() if key[0] == group}

    def compare_past(self, group: int) -> None:
        expected, now = self.alive(group), self.clock.time_us()
        times = {s.offset: s.time_us for s in self.model.log[group]}
        middle = sorted(times.values())[len(times) // 2] if times else now
        for number in range(4):
            topic = self.model.topic(group, number)
            for since, until in ((0, now), (middle, now), (0, middle)):
                blocks = topic_past(self.store, group, topic, since, until, limit=1_000)
                got = [(r.offset, r.topic, r.payload) for b in blocks for r in b.records()]
                assert got == [e for e in expected if e[1] == topic and since <= times[e[0]] <= until]

    def compare_retained(self, group: int) -> None:
        now = self.clock.time_us()
        expected = {s.topic: s for (g, _), s in self.model.retained.items() if g == group and s.alive(now)}
        blocks = retained_records(self.store, group)
        got = {r.topic: (r.offset, r.payload, b.time_us) for b in blocks for r in b.records()}
        assert got == {topic: (s.offset, s.payload, s.time_us) for topic, s in expected.items()}
        for number in range(4):
            topic = self.model.topic(group, number)
            one = self.store.retained.record(group, topic)
            assert (one is not None) == (topic in expected)

    def compare_producers(self, group: int) -> None:
        for producer in (b"p", b"q"):
            found = self.store.tables.producer(group, producer)
            assert (found is None) == ((group, producer) not in self.model.incarnations)
            if found is not None:
                sequences = self.model.sequences[group, producer]
                assert found.incarnation == self.model.incarnations[group, producer]
                assert found.sequence == max(sequences)
                recent = sorted(sequences)[-60:]
                assert [found.offset_of(s) for s in recent] == [sequences[s] for s in recent]

    def compare_tables(self) -> None:
        store, model = self.store, self.model
        assert {(g, s.client_id): s for g in range(GROUPS) for s in store.tables.sessions(g)} == model.sessions
        due = {k: s for k, s in model.sessions.items() if 0 < s.expires_us <= 9 or 0 < s.will_us <= 9}
        assert {(g, s.client_id): s for g, s in store.tables.due_sessions(9, 1_000)} == due
        subscriptions = [(g, *pair) for g in range(GROUPS) for pair in store.tables.subscriptions(g)]
        assert {(g, s.broker, s.filter): (s, o) for g, s, o in subscriptions} == model.subscriptions
        beside = {(s.broker, s.offset) for s in store.tables.subscribers(b"t0")}
        assert beside <= {(k[1], o) for k, (_, o) in model.subscriptions.items() if k[2] == "t0"}
        uids = (b"u1", b"u2")
        marks = {(g, u, p): store.tables.mark(g, u, p) for g in range(GROUPS) for u in uids for p in range(4)}
        assert {k: o for k, o in marks.items() if o is not None} == model.marks
        dictionaries = {(g, d.dictionary): d for g in range(GROUPS) for d in store.tables.dictionaries(g)}
        assert dictionaries == model.dictionaries


@settings(max_examples=120)
@given(st.lists(actions, min_size=8, max_size=40))
def test_any_interleaving_agrees_with_the_model(script: list[Action]) -> None:
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name) / "store")
        for action in script:
            world.act(action)
        world.compare()
        world.act(Restart(crash=True))
        world.compare()
        world.store.close()
