"""Fan-out, subscribers and the cache: what a naive match gives, in order, once each, however slow a subscriber is."""

from __future__ import annotations

from array import array
from typing import Any

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lexicast.actors.broker import fanout as fanout_module
from lexicast.actors.broker.catching_up.block_cache import BlockCache
from lexicast.actors.broker.catching_up.readers import CatchingUp
from lexicast.actors.broker.dictionaries.keeper import DictionaryKeeper
from lexicast.actors.broker.dictionaries.waiting_blocks import WaitingBlocks
from lexicast.actors.broker.encoding import LINK, BlockView, EncodedBlock, Encoder, Grant, Grants, Kind
from lexicast.actors.broker.fanout import Fanout
from lexicast.actors.broker.granted_filters import join_grants
from lexicast.actors.broker.subscriber import Subscriber, needs_ids
from lexicast.actors.mqtt.codec.packets import V5
from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, ProducerRun, Run, pack_meta
from lexicast.cluster.topics.names import matches
from lexicast.compression.wire import AliasTable, Recoder

FILTERS = [b"#", b"+", b"a", b"b", b"a/#", b"a/+", b"a/b", b"+/b", b"$sys/a"]
TOPICS = [b"a", b"b", b"a/b", b"a/c", b"b/b", b"$sys/a"]
KINDS = [Kind(LINK), Kind(V5)]


def block_of(topics: list[bytes], first: int = 0, qos: int = 0, group: int = 0) -> Block:
    """One record a topic."""
    names = tuple(dict.fromkeys(topics))
    runs = tuple([Run(0, names.index(topic), qos, 0, 0, None, -1, 1) for topic in topics])
    payloads = [b"%d" % (first + i) for i in range(len(topics))]
    meta = Meta(names, runs, (ProducerRun(b"p", 1, 1, len(topics)),), (), (), ())
    lengths = array("I", map(len, payloads)).tobytes()
    last = first + len(topics) - 1
    return Block(group, 1, first, last, 0, PUBLICATIONS, pack_meta(meta), lengths, b"".join(payloads))


def encoder() -> Encoder:
    return Encoder(Recoder(), AliasTable(), lambda topic: None)


class Engine:
    """What subscribers need of one."""

    def __init__(self) -> None:
        self.encoder = encoder()
        self.lagging: list[Subscriber] = []

    def lagged(self, subscriber: Subscriber) -> None:
        self.lagging.append(subscriber)

    def view(self, block: Block) -> BlockView:
        return BlockView(block, 0)


class Taker(Subscriber):
    """Keeps what it gets; `window`: how many publications with packet ids it takes."""

    def __init__(self, kind: Kind, drops: bool = False) -> None:
        self.around = Engine()
        super().__init__(self.around, kind, drops)
        self.got: list[bytes] = []
        self.blocks: list[Block] = []
        self.room = 1 << 60
        self.window = 1 << 60

    def write(self, data: bytes) -> None:
        block = Block.from_wire(msgpack.unpackb(data, use_list=False))
        self.blocks.append(block)
        self.got += [b"%d" % record.offset for record in block.records()]
        self.room -= 1
        if self.room <= 0:
            self.block()

    def write_tagged(self, encoded: EncodedBlock) -> None:
        self.write(encoded.data)

    def deliver_with_ids(self, view: BlockView, grants: Grants) -> int | None:
        for record in view.block.records():
            grant = grants[view.block.meta.topics.index(record.topic)]
            if grant is None:
                continue
            if self.window <= 0:
                self.block()
                return record.offset
            self.window -= 1
            self.got.append(b"%d" % record.offset)
        return None


GRANTS = st.builds(
    Grant,
    qos=st.integers(0, 2),
    retain_as_published=st.booleans(),
    no_local=st.booleans(),
    # Said, since of a compiled class hypothesis makes something up for what is left out.
    ids=st.just(()),
    own=st.none(),
    where=st.none(),
    any_of=st.just(()),
)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(FILTERS), GRANTS, st.booleans()), max_size=25),
    st.lists(st.lists(st.sampled_from(TOPICS), min_size=1, max_size=4), min_size=1, max_size=8),
    st.integers(0, 2),
    st.sampled_from([0, 1, 3, 100]),
)
@settings(max_examples=300)
def test_the_plan_is_a_naive_match(
    changes: list[tuple[int, bytes, Grant, bool]], wanted: list[list[bytes]], qos: int, topics_max: int
) -> None:
    fanout = Fanout(topics_max)
    subscribers = [Taker(KINDS[i % 2]) for i in range(6)]
    known: dict[tuple[int, bytes], Grant] = {}
    for turn, (who, topic_filter, grant, gone) in enumerate(changes):
        if gone:
            known.pop((who, topic_filter), None)
            fanout.remove([topic_filter], subscribers[who])
        else:
            known[who, topic_filter] = grant
            fanout.insert({topic_filter: grant}, subscribers[who])
        check_plan(fanout, subscribers, known, wanted[turn % len(wanted)], qos)
    for topics in wanted + wanted:
        check_plan(fanout, subscribers, known, topics, qos)


def check_plan(
    fanout: Fanout, subscribers: list[Taker], known: dict[tuple[int, bytes], Grant], topics: list[bytes], qos: int
) -> None:
    names = tuple(dict.fromkeys(topics))
    plan = fanout.plan(names, qos)
    planned: dict[Any, tuple[str, Any]] = {}
    for kind, grants, members in plan.shared:
        for subscriber in members:
            assert subscriber not in planned
            assert subscriber.kind == kind
            planned[subscriber] = ("shared", [None if g is None else g._replace(qos=0) for g in grants])
    for subscriber, grants in plan.own:
        assert subscriber not in planned
        planned[subscriber] = (
            "own",
            [None if g is None else (g.qos, g.retain_as_published, g.no_local) for g in grants],
        )
    for who, subscriber in enumerate(subscribers):
        found = [join_grants([g for (w, f), g in known.items() if w == who and matches(f, name)]) for name in names]
        if not any(found):
            assert subscriber not in planned
        elif needs_ids(qos, tuple(found)):
            expected = [None if g is None else (g.qos, g.retain_as_published, g.no_local) for g in found]
            assert planned[subscriber] == ("own", expected)
        else:
            assert planned[subscriber] == ("shared", [None if g is None else g._replace(qos=0) for g in found])


def test_a_plan_is_never_that_of_fans_that_are_gone() -> None:
    """With room for few topics, fans come and go at the same addresses while plans name them by address."""
    fanout = Fanout(2)
    subscribers = [Taker(KINDS[0]) for _ in range(40)]
    for i, subscriber in enumerate(subscribers):
        fanout.insert({b"t/%d" % i: Grant()}, subscriber)
    for turn in range(2_000):
        i, j = turn * 7 % 40, turn * 11 % 40
        plan = fanout.plan((b"t/%d" % i, b"t/%d" % j), 0)
        assert {s for shared in plan.shared for s in shared.subscribers} == {subscribers[i], subscribers[j]}


def test_fans_of_the_past_are_let_go() -> None:
    fanout = Fanout(100)
    fanout.insert({b"t": Grant()}, Taker(KINDS[0]))
    for _ in range(1_000):
        passing = Taker(KINDS[0])
        fanout.insert({b"t": Grant()}, passing)
        fanout.plan((b"t",), 0)
        fanout.remove([b"t"], passing)
    assert len(fanout._same) <= 2 * len(fanout._fans) + fanout_module.SAME_SPARE + 1


def test_join_grants_is_the_most_generous() -> None:
    quiet, loud = Grant(0, False, True, (1,)), Grant(2, True, False, (2, 3))
    # What the subscriber published itself, it gets by the subscription that does not mind.
    assert join_grants([quiet, loud]) == Grant(2, True, True, (1, 2, 3), own=loud)
    assert join_grants([quiet, quiet]) == Grant(0, False, True, (1, 1), own=None)
    assert join_grants([loud]) == loud
    assert join_grants([]) is None


class Slow(RuleBasedStateMachine):
    """Subscribers of one filter with full sockets and small windows, beside one that is always ready."""

    @initialize(cache_bytes=st.sampled_from([0, 40, 200, 1 << 20]), kinds=st.lists(st.integers(0, 1), max_size=3))
    def begin(self, cache_bytes: int, kinds: list[int]) -> None:
        self.fanout = Fanout(100)
        self.encoder = encoder()
        self.cache = BlockCache(cache_bytes)
        self.log: list[Block] = []
        self.head = 0
        self.subscribers = [Taker(Kind(LINK)) for _ in range(3)]
        self.quick = Taker(Kind(LINK))
        for i, subscriber in enumerate([*self.subscribers, self.quick]):
            grant = Grant(qos=i % 2)
            subscriber.set_filters({b"a/+": grant})
            self.fanout.insert({b"a/+": grant}, subscriber)

    @rule(topics=st.lists(st.sampled_from([b"a/1", b"a/2", b"b"]), min_size=1, max_size=3), qos=st.integers(0, 1))
    def deliver(self, topics: list[bytes], qos: int) -> None:
        block = block_of(topics, self.head, qos)
        self.log.append(block)
        if any(topic != b"b" for topic in topics):
            self.cache.add(block, self.head)
            self.fanout.deliver(BlockView(block, 0), self.encoder)
        self.head = block.last + 1

    @rule(who=st.integers(0, 2), room=st.integers(1, 3))
    def less_room(self, who: int, room: int) -> None:
        self.subscribers[who].room = self.subscribers[who].window = room

    @rule(who=st.integers(0, 2))
    def block_socket(self, who: int) -> None:
        self.subscribers[who].block()

    @rule(who=st.integers(0, 2), room=st.integers(1, 5))
    def catch_up(self, who: int, room: int) -> None:
        """As `CatchingUp`: from the cache if it has everything, else from the log, until something is in the way."""
        subscriber = self.subscribers[who]
        subscriber.room = subscriber.window = room
        subscriber.unblock()
        start = subscriber.lagging.get(0)
        if start is None:
            return
        blocks = self.cache.since(0, start) if 0 in subscriber.missed_live else None
        for block in [b for b in self.log if b.last >= start] if blocks is None else blocks:
            if not subscriber.take(block):
                return
        subscriber.caught_up(0)

    @invariant()
    def everybody_has_a_prefix_and_a_live_one_has_all(self) -> None:
        if not hasattr(self, "log"):
            return
        wanted = [b"%d" % r.offset for block in self.log for r in block.records() if r.topic != b"b"]
        assert self.quick.got == wanted
        for subscriber in self.subscribers:
            assert subscriber.got == wanted[: len(subscriber.got)]
            if subscriber.lagging:
                assert not subscriber.ready
                have = int(subscriber.got[-1]) if subscriber.got else -1
                assert all(int(o) <= have or int(o) >= subscriber.lagging[0] for o in wanted)
            else:
                assert subscriber.got == wanted
        known = self.cache.since(0, self.head)
        assert known in (None, [])


TestSlow = Slow.TestCase
TestSlow.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_the_cache_has_all_or_says_so() -> None:
    cache = BlockCache(3 * block_of([b"a"]).memory_bytes)
    assert cache.since(0, 0) is None
    blocks = [block_of([b"a"], offset) for offset in range(10)]
    for block in blocks:
        cache.add(block, block.first)
    assert cache.since(0, 6) is None
    assert cache.since(0, 7) == blocks[7:]
    assert cache.since(0, 10) == []
    assert cache.since(0, 11) is None
    cache.add(block_of([b"a"], 0, group=1), 0)
    assert cache.since(0, 7) is None
    assert cache.since(0, 8) == blocks[8:]


def test_nothing_is_written_when_nothing_of_a_block_is_left() -> None:
    late = Taker(Kind(LINK))
    late.set_filters({b"a": Grant()})
    late.lag(0, 1, live=False)
    assert late.take(block_of([b"a", b"b"]))
    assert late.blocks == []
    assert late.lagging == {0: 2}
    assert late.take(block_of([b"a", b"b"], 2))
    assert late.got == [b"2"]


def test_a_subscriber_that_drops_loses_only_qos0_while_blocked() -> None:
    drops = Taker(Kind(LINK), drops=True)
    drops.set_filters({b"a": Grant()})
    view = BlockView(block_of([b"a"]), 0)
    drops.block()
    drops.offer(view, (Grant(),), encoder().shared(drops.kind, view, (Grant(),)))
    assert not drops.lagging
    drops.offer(view, (Grant(qos=1),), None)
    assert drops.lagging == {0: 0}


def test_a_subscriber_that_cannot_keep_up_neglects_no_group() -> None:
    """In a fixed order the first groups used up every window, and the others got nothing until the load ended."""
    cache = BlockCache(1 << 20)
    nothing: Any = None
    catching_up = CatchingUp(
        nothing, cache, WaitingBlocks(DictionaryKeeper(nothing, nothing), nothing, nothing), 1 << 20
    )
    slow = Taker(Kind(V5))
    slow.set_filters({b"a": Grant(qos=1)})
    slow.window = 0
    groups, waiting = range(5), {}
    for turn in range(20):
        for group in groups:
            block = block_of([b"a"] * 4, 4 * turn, qos=1, group=group)
            cache.add(block, block.first)
            waiting[group] = block.last + 1
            slow.offer(BlockView(block, 0), (Grant(qos=1),), None)
        slow.window = 2
        slow.blocked = False
        catching_up.start(slow)
    # Two of twenty publications a turn: every group has had its share of them.
    served = {group: slow.lagging.get(group, waiting[group]) for group in groups}
    assert min(served.values()) >= 6
    assert sum(served.values()) == len(slow.got) == 40
