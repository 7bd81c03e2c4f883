"""Subscribers with conditions get what a naive evaluation grants, once each: live by few or by the index, and in the
past."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.actors.broker.catching_up import asked_topics
from lexicast.actors.broker.catching_up.delivery import Deliveries
from lexicast.actors.broker.catching_up.pages import Page
from lexicast.actors.broker.content import content_fanout, predicate_table
from lexicast.actors.broker.content.content_fanout import ContentFanout
from lexicast.actors.broker.content.predicate_table import PredicateTable
from lexicast.actors.broker.encoding import LINK, BlockView, EncodedBlock, Encoder, Grant, Grants, Kind
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.bench.srem.edge.condition_model import ModelRecord, Tree, truth, written
from lexicast.cluster.blocks import PUBLICATIONS, RETAIN, Block, Meta, Run, pack_meta
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.errors import LimitError
from lexicast.cluster.topics.names import matches
from lexicast.compression.wire import AliasTable, Recoder

from ...support.condition_model import bounding_trees, few_values_records, model_records, trees

FILTERS = [b"#", b"a", b"+/a", b"a/#"]
SUBSCRIBERS = 5
# A subscription: who, the filter, its condition, QoS, identifier; or its end.
Change = tuple[int, bytes, Tree | None, int, int, bool]
# What a subscriber got of one publication: offset, QoS, the identifiers of the subscriptions.
Got = tuple[int, int, frozenset[int]]


class Around:
    """What a subscriber needs of its broker."""

    def __init__(self) -> None:
        self.encoder = Encoder(Recoder(), AliasTable(), lambda topic: None)

    def lagged(self, subscriber: Subscriber) -> None:
        raise AssertionError("nothing is in its way")

    def view(self, block: Block) -> BlockView:
        return BlockView(block, 0)


class Taker(Subscriber):
    """Keeps what it is granted; `offer` sees all of it, for it is never ready."""

    def __init__(self) -> None:
        super().__init__(Around(), Kind(LINK))
        self.got: list[Got] = []
        self.ready = False

    def _send(self, view: BlockView, grants: Grants, encoded: EncodedBlock | None, live: bool) -> bool:
        offset = view.block.first
        for run in view.block.meta.runs:
            offset += run.skip
            grant = grants[run.topic]
            for _ in range(run.count):
                if grant is not None:
                    self.got.append((offset, min(grant.qos, run.flags & 3), frozenset(grant.ids)))
                offset += 1
        return True

    def take_all(self) -> list[Got]:
        """What it got since."""
        got, self.got = self.got, []
        return got


def block_of(records: list[ModelRecord], first: int) -> Block:
    """A block of these, a run each."""
    names = tuple(dict.fromkeys([record.topic.encode() for record in records]))
    runs = [
        Run(
            0,
            names.index(r.topic.encode()),
            r.qos | (RETAIN if r.retain else 0),
            0,
            0,
            {**r.properties} or None,
            -1,
            1,
        )
        for r in records
    ]
    meta = Meta(names, tuple(runs), (), (), (), ())
    lengths = array("I", [len(record.payload) for record in records]).tobytes()
    body = b"".join([record.payload for record in records])
    last = first + len(records) - 1
    return Block(0, 1, first, last, records[0].time_us, PUBLICATIONS, pack_meta(meta), lengths, body)


def expected(held: dict[bytes, tuple[Tree | None, int, int]], records: list[ModelRecord], first: int) -> list[Got]:
    """What one subscriber is granted."""
    found: list[Got] = []
    for offset, record in enumerate(records, first):
        granting = [
            (qos, identifier)
            for name, (tree, qos, identifier) in held.items()
            if matches(name, record.topic.encode()) and (tree is None or truth(tree, record) is True)
        ]
        if granting:
            qos = min(record.qos, max([each[0] for each in granting]))
            found.append((offset, qos, frozenset([each[1] for each in granting])))
    return found


class World:
    """A fan-out, its subscribers, and what each is subscribed to."""

    def __init__(self) -> None:
        self.predicates = PredicateTable()
        self.fanout = ContentFanout(self.predicates, 3)
        self.takers = [Taker() for _ in range(SUBSCRIBERS)]
        self.held: list[dict[bytes, tuple[Tree | None, int, int]]] = [{} for _ in range(SUBSCRIBERS)]
        self.encoder = Encoder(Recoder(), AliasTable(), lambda topic: None)
        self.offset = 0
        self.now_us = 0
        self.deliveries = Deliveries(cast(Any, self), 1 << 20)
        # Pages that were given before, whatever conditions there were then.
        self.pages: list[tuple[Page, Block, list[ModelRecord]]] = []

    def change(self, change: Change) -> None:
        who, name, tree, qos, identifier, gone = change
        taker = self.takers[who]
        if gone:
            self.held[who].pop(name, None)
            self.fanout.remove([name], taker)
            taker.drop_filter(name)
            return
        where = None if tree is None else Predicate.parse(written(tree))
        grant = Grant(qos, ids=(identifier,), where=where)
        self.held[who][name] = (tree, qos, identifier)
        self.fanout.insert({name: grant}, taker)
        taker.set_filters({name: grant})

    def check(self, records: list[ModelRecord]) -> None:
        block = block_of(records, self.offset)
        self.fanout.deliver(BlockView(block, 0), self.encoder)
        wanted = [expected(held, records, self.offset) for held in self.held]
        assert [taker.take_all() for taker in self.takers] == wanted
        for taker, found in zip(self.takers, wanted, strict=True):
            taker.lagging[0] = block.first
            assert taker.take(block)
            assert taker.take_all() == found
            assert taker.lagging.pop(0) == block.last + 1
        self.offset = block.last + 1
        self.pages.append((Page(0, block.first, block.last + 1, [block]), block, records))
        for page, of_page, its_records in self.pages:
            self._check_past(page, of_page, its_records)

    def _check_past(self, page: Page, block: Block, records: list[ModelRecord]) -> None:
        """Together, as a page and as a block of the cache; from its beginning, and from within."""
        self.deliveries.end_turn()
        for start in {block.first, (block.first + block.last + 1) // 2}:
            for taker, held in zip(self.takers, self.held, strict=True):
                wanted = [got for got in expected(held, records, block.first) if got[0] >= start]
                taker.lagging[0] = start
                topics = dict.fromkeys([topic for topic in page.index if taker.grant(topic) is not None])
                if topics and taker.chooses:
                    assert self.deliveries.in_turn(page).give(taker, topics)
                    assert taker.take_all() == wanted
                taker.lagging[0] = start
                assert self.deliveries.give_block(block, taker)
                assert taker.take_all() == wanted
                assert taker.lagging.pop(0) == block.last + 1


@pytest.fixture(autouse=True, params=[0, 16], ids=["index", "few"])
def asked_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (content_fanout, asked_topics):
        monkeypatch.setattr(module, "ASKED_MAX", request.param)
    # Blocks are short here.
    monkeypatch.setattr(asked_topics, "NUMPY_FROM", 1)
    return


def changes(conditions: st.SearchStrategy[Tree]) -> st.SearchStrategy[list[Change]]:
    return st.lists(
        st.tuples(
            st.integers(0, SUBSCRIBERS - 1),
            st.sampled_from(FILTERS),
            st.one_of(st.none(), conditions, conditions, conditions),
            st.integers(0, 2),
            st.integers(1, 9),
            st.sampled_from([False, False, False, True]),
        ),
        min_size=1,
        max_size=12,
    )


def of_one_time(records: list[ModelRecord]) -> list[ModelRecord]:
    """As those of a block are."""
    return [replace(record, time_us=records[0].time_us) for record in records]


@settings(max_examples=120)
@given(changes(trees), st.lists(st.lists(model_records(), min_size=1, max_size=6).map(of_one_time), max_size=4))
def test_any_conditions_on_any_payloads(changes: list[Change], blocks: list[list[ModelRecord]]) -> None:
    asyncio.run(_play(changes, blocks))


@settings(max_examples=120)
@given(changes(bounding_trees), st.lists(st.lists(few_values_records, min_size=1, max_size=6), max_size=4))
def test_what_the_index_is_for(changes: list[Change], blocks: list[list[ModelRecord]]) -> None:
    asyncio.run(_play(changes, blocks))


async def _play(changes: list[Change], blocks: list[list[ModelRecord]]) -> None:
    world = World()
    for number, change in enumerate(changes):
        world.change(change)
        if blocks:
            world.check(blocks[number % len(blocks)])
    for who in range(SUBSCRIBERS):
        for name in FILTERS:
            world.change((who, name, None, 0, 1, True))
    assert (len(world.fanout), len(world.predicates), world.predicates.residual) == (0, 0, 0)
    world.predicates.close()


async def test_there_are_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicate_table, "PREDICATES_MAX", 3)
    monkeypatch.setattr(predicate_table, "RESIDUAL_MAX", 1)
    table = PredicateTable()
    residual, another = Predicate.parse("a LIKE '%x'"), Predicate.parse("b IS NULL")
    table.hold(residual)
    table.check(residual)  # what is there already costs nothing
    with pytest.raises(LimitError, match="no index helps"):
        table.check(another)
    table.hold(Predicate.parse("a > 1"))
    table.hold(Predicate.parse("a > 2"))
    with pytest.raises(LimitError, match="3 different conditions"):
        table.check(Predicate.parse("a > 3"))
    table.release(residual)
    table.check(another)
    status: dict[str, Any] = table.status()
    assert (status["predicates"], status["residual"]) == (2, 0)
    table.close()
