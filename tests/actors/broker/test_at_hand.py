"""The past at hand is what a naive look at the blocks gives, whatever comes, goes, or comes live meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lexicast.actors.broker.catching_up.at_hand import AtHand
from lexicast.actors.broker.catching_up.block_cache import BlockCache
from lexicast.actors.broker.catching_up.pages import Page, PageCache
from lexicast.actors.broker.encoding import Grant, Kind
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.cluster.blocks import PUBLICATIONS, RAW, Block, Meta, Run, pack_meta
from lexicast.cluster.topics.names import matches

GROUPS = 3
TOPICS = [[b"own/%d/%d" % (group, number) for number in range(3)] for group in range(GROUPS)]
FILTERS = [b"#", b"own/0/#", b"own/+/1", b"own/1/0", b"own/2/2"]


def block(group: int, offset: int, topic: bytes) -> Block:
    """One message."""
    meta = Meta((topic,), (Run(0, 0, 1, RAW, 0, None, -1, 1),), (), (), (), ())
    payload = b"%d" % offset
    lengths = len(payload).to_bytes(4, "little")
    return Block(group, 1, offset, offset, 0, PUBLICATIONS, pack_meta(meta), lengths, payload, meta)


class Log:
    """What the groups hold, and a broker that fetches pages of it and gets the rest live."""

    def __init__(self, pages_bytes: int, cache_bytes: int) -> None:
        self.blocks: dict[int, list[Block]] = {group: [] for group in range(GROUPS)}
        self.cache = BlockCache(cache_bytes)
        self.pages = PageCache(pages_bytes)
        self.at_hand = AtHand(self.cache, self.pages)
        self.pages.gone = self.at_hand.gone
        for group in range(GROUPS):
            self.cache.reached(group, 0)

    def publish(self, group: int, number: int, live: bool) -> None:
        """A message; `live`: the broker gets it, else it was subscribed to nothing that wants it."""
        blocks = self.blocks[group]
        made = block(group, len(blocks), TOPICS[group][number])
        blocks.append(made)
        if live:
            self.cache.add(made, made.first)
        else:
            self.cache.reached(group, made.last + 1)

    def fetch(self, group: int, start: int, count: int, whole: bool, version: int) -> None:
        """A page of it."""
        end = min(len(self.blocks[group]), start + count)
        if start <= end:
            page = Page(group, start, end, self.blocks[group][start:end], whole=whole, version=version)
            if end > start:
                self.pages.add(page)
            self.at_hand.add(page)

    def missed(self, subscriber: Subscriber) -> list[tuple[int, int]]:
        """What a subscriber has to get."""
        return [
            (group, each.first)
            for group, start in sorted(subscriber.lagging.items())
            for each in self.blocks[group][start:]
            if any(matches(name, each.meta.topics[0]) for name in subscriber.subscriptions)
        ]

    def given(self, subscriber: Subscriber) -> list[tuple[int, int]]:
        """What it gets of what is at hand."""
        topics = self.at_hand.topics(subscriber, 1_000)
        assert topics is not None
        got: list[tuple[int, int]] = []
        for group, pages in sorted(self.at_hand.wanted(subscriber, topics).items()):
            for page, wanted in pages:
                start = max(subscriber.lagging[group], page.start)
                rows = [page.columns.row(number) for number in page.numbers(wanted, start)]
                # Topics of others may be among them, where there are fewer topics than filters: runs are looked at.
                got += [(group, row.offset) for row in rows if subscriber.grant(row.topic) is not None]
        return got


OPERATIONS = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, GROUPS - 1), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("fetch"), st.integers(0, GROUPS - 1), st.integers(0, 12), st.integers(0, 6), st.booleans()),
    st.tuples(st.just("go on"), st.integers(0, GROUPS - 1), st.integers(1, 6)),
    st.tuples(st.just("return"), st.lists(st.integers(0, 12), min_size=GROUPS, max_size=GROUPS)),
)


# Fewer topics than filters, none of which wants the one there is.
@example([("publish", 2, 0, False), ("fetch", 2, 0, 1, False), ("return", [1, 1, 0])], 1_000, 3_000, {*FILTERS[1:3]})
@settings(max_examples=300, deadline=None)
@given(
    st.lists(OPERATIONS, max_size=40),
    st.sampled_from([1_000, 5_000, 1 << 20]),
    st.sampled_from([3_000, 1 << 20]),
    st.sets(st.sampled_from(FILTERS), min_size=1),
)
def test_who_is_covered_gets_all_that_it_missed_once_and_in_order(
    operations: list[tuple[Any, ...]], pages_bytes: int, cache_bytes: int, filters: set[bytes]
) -> None:
    log = Log(pages_bytes, cache_bytes)
    at_hand = log.at_hand
    for what, *how in operations:
        if what == "publish":
            log.publish(how[0], how[1], how[2])
        elif what == "fetch":
            log.fetch(how[0], how[1], how[2], how[3], 5)
        elif what == "go on":
            stretch = at_hand.stretch(how[0])
            if stretch is not None:
                log.fetch(how[0], stretch.fetched_to, how[1], True, 5)
        else:
            subscriber = Subscriber(cast(Any, None), Kind(4))
            subscriber.set_filters(dict.fromkeys(filters, Grant(1)))
            for group, offset in enumerate(how[0]):
                if offset <= len(log.blocks[group]):
                    subscriber.lagging[group] = offset
                    # What came live was chosen before its filters were known.
                    subscriber.past[group] = len(log.blocks[group])
            at_hand.sync()
            for version in (5, 6):
                assert at_hand.covers(subscriber, version) == (not at_hand.lacks(subscriber, version))
                if at_hand.covers(subscriber, version):
                    assert log.given(subscriber) == log.missed(subscriber)


def test_a_page_of_what_the_broker_wanted_does_not_serve_filters_that_came_later() -> None:
    log = Log(1 << 20, 1 << 20)
    log.publish(0, 0, True)
    log.fetch(0, 0, 1, False, 5)
    subscriber = Subscriber(cast(Any, None), Kind(4))
    subscriber.lagging[0] = 0
    log.at_hand.sync()
    assert log.at_hand.lacks(subscriber, 5) == []
    assert log.at_hand.lacks(subscriber, 6) == [0]


def test_what_came_live_is_at_hand_for_those_whose_filters_were_there() -> None:
    log = Log(1 << 20, 1 << 20)
    log.publish(0, 0, True)
    log.fetch(0, 0, 1, True, 5)
    log.publish(0, 1, True)
    log.at_hand.sync()
    subscriber = Subscriber(cast(Any, None), Kind(4))
    subscriber.set_filters({b"own/0/#": Grant(1)})
    subscriber.lagging[0] = 0
    assert log.at_hand.lacks(subscriber, 5) == []
    assert log.given(subscriber) == [(0, 0), (0, 1)]
    subscriber.past[0] = 2  # its filters were placed behind it
    assert log.at_hand.lacks(subscriber, 5) == [0]


def test_topics_that_have_left_are_forgotten(monkeypatch: Any) -> None:
    from lexicast.actors.broker.catching_up import at_hand

    monkeypatch.setattr(at_hand, "TOPICS_GONE", 10)
    log = Log(2_000, 1 << 20)
    for number in range(100):
        made = block(0, number, b"t/%d" % number)
        page = Page(0, number, number + 1, [made], whole=True)
        log.pages.add(page)
        log.at_hand.add(page)
    assert len(log.at_hand._index) < 40


def test_a_block_that_has_not_what_it_says_costs_itself() -> None:
    """It stopped whoever came by its page, and what stood before it in the page came twice at the next look."""
    bad = replace(block(0, 1, b"a"), body=b"longer than its length")
    page = Page(0, 0, 3, [block(0, 0, b"a"), bad, block(0, 2, b"a")], whole=True)
    for _ in range(2):
        assert page.columns.offsets == [0, 2]
        assert page.numbers([b"a"], 0) == [0, 1]


def test_who_stands_where_another_stood_is_not_looked_at_group_by_group(monkeypatch: Any) -> None:
    log = Log(1 << 20, 1 << 20)
    for group in range(GROUPS):
        log.publish(group, 0, live=False)
        log.fetch(group, 0, 1, whole=True, version=0)
    looks: list[Subscriber] = []
    look = AtHand._missing

    def looked(self: AtHand, who: Subscriber, version: int) -> Any:
        looks.append(who)
        return look(self, who, version)

    monkeypatch.setattr(AtHand, "_missing", looked)
    log.at_hand.sync()
    for number in range(5):  # each with filters that are newer than those of the one before
        subscriber = Subscriber(cast(Any, None), Kind(4))
        subscriber.lagging = dict.fromkeys(range(GROUPS), 0)
        assert log.at_hand.covers(subscriber, 1 + number)
        log.publish(0, 0, live=True)
        log.at_hand.sync()
    assert len(looks) == 1
    subscriber.past = {0: 2}  # it is known that there is more
    assert not log.at_hand.covers(subscriber, 1)
    log.at_hand.drop(1)
    subscriber.past = {}
    assert not log.at_hand.covers(subscriber, 1)
