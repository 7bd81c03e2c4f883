"""Many with conditions who catch up with the same page share what is found out of it: counted, not timed."""

from __future__ import annotations

import json
import zlib
from array import array
from collections import Counter
from typing import Any, cast

import pytest

from lexicast.actors.broker.catching_up import asked_pages, asked_topics, page_records
from lexicast.actors.broker.catching_up.asked_pages import AskedPages
from lexicast.actors.broker.catching_up.delivery import Deliveries
from lexicast.actors.broker.catching_up.page_records import READERS_MAX
from lexicast.actors.broker.catching_up.pages import Page
from lexicast.actors.broker.content.predicate_table import PredicateTable
from lexicast.actors.broker.dictionaries.payload_opening import asked_of
from lexicast.actors.broker.encoding import LINK, BlockView, EncodedBlock, Encoder, Grant, Grants, Kind
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.actors.loop import turns
from lexicast.cluster.blocks import DEFLATE, FIRST_DICTIONARY, PUBLICATIONS, RAW, Block, Meta, Run, pack_meta
from lexicast.cluster.content.extraction import columns_of
from lexicast.cluster.content.fields import FieldReader
from lexicast.cluster.content.predicate import Predicate
from lexicast.compression.wire import AliasTable, Recoder

SUBSCRIBERS = 300
RECORDS = 100


class Broker:
    """What catching up needs of one."""

    def __init__(self) -> None:
        self.encoder = Encoder(Recoder(), AliasTable(), lambda topic: None)
        self.predicates = PredicateTable()
        self.now_us = 0
        self.deliveries = Deliveries(cast(Any, self), 1 << 24)

    def view(self, block: Block) -> BlockView:
        return BlockView(block, self.now_us)


class Taker(Subscriber):
    """Keeps the offsets that it gets."""

    def __init__(self, broker: Broker, **grants: Grant) -> None:
        super().__init__(cast(Any, broker), Kind(LINK))
        self.got: list[int] = []
        self.set_filters({name.encode().replace(b"any", b"#"): grant for name, grant in grants.items()})
        for grant in grants.values():
            if grant.where is not None:
                broker.predicates.hold(grant.where)

    def _send(self, view: BlockView, grants: Grants, encoded: EncodedBlock | None, live: bool) -> bool:
        offset = view.block.first
        for run in view.block.meta.runs:
            offset += run.skip
            self.got += range(offset, offset + run.count)
            offset += run.count
        return True

    def take_page(self, page: Page, broker: Broker) -> list[int]:
        """All of a page."""
        self.got.clear()
        self.lagging[page.group] = page.start
        topics = dict.fromkeys([topic for topic in page.index if self.grant(topic) is not None])
        assert broker.deliveries.of(page).give(self, topics)
        return list(self.got)


def page_of(payloads: list[bytes], encoding: int = RAW, topics: tuple[bytes, ...] = (b"t",)) -> Page:
    """A block a record, as devices' are."""
    blocks = []
    for offset, payload in enumerate(payloads):
        run = Run(0, 0, 0, encoding, 0, None, -1, 1)
        meta = Meta((topics[offset % len(topics)],), (run,), (), (), (), (77,) if encoding >= FIRST_DICTIONARY else ())
        lengths = array("I", [len(payload)]).tobytes()
        blocks.append(Block(3, 1, offset, offset, offset, PUBLICATIONS, pack_meta(meta), lengths, payload))
    return Page(3, 0, len(payloads), blocks)


def numbered(count: int = RECORDS) -> list[bytes]:
    return [json.dumps({"n": number, "other": "x"}).encode() for number in range(count)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often payloads were decoded, conditions evaluated, columns made, and the index was asked."""
    counted: Counter[str] = Counter()

    def columns(*arguments: Any) -> Any:
        counted["columns"] += 1
        return columns_of(*arguments)

    monkeypatch.setattr(asked_topics, "columns_of", columns)
    for owner, name in ((FieldReader, "fields"), (Predicate, "matches"), (PredicateTable, "answers")):
        kept = getattr(owner, name)

        def counting(self: Any, *arguments: Any, _kept: Any = kept, _name: str = name) -> Any:
            counted[_name] += 1
            return _kept(self, *arguments)

        monkeypatch.setattr(owner, name, counting)
    return counted


async def test_a_page_is_decoded_once_and_the_index_asked_once_for_all(calls: Counter[str]) -> None:
    broker, page = Broker(), page_of(numbered())
    takers = [Taker(broker, any=Grant(where=Predicate.parse(f"n = {n % RECORDS}"))) for n in range(SUBSCRIBERS)]
    for number, taker in enumerate(takers):
        assert taker.take_page(page, broker) == [number % RECORDS]
    assert calls["fields"] == RECORDS
    assert (calls["columns"], calls["answers"]) == (1, 1)
    assert calls["matches"] == 0  # each asking for itself: SUBSCRIBERS * RECORDS
    broker.predicates.close()


async def test_conditions_that_come_while_others_are_served_share_too(calls: Counter[str]) -> None:
    broker, page = Broker(), page_of(numbered())
    for number in range(SUBSCRIBERS):
        taker = Taker(broker, any=Grant(where=Predicate.parse(f"n < {number} AND n >= {number - 2}")))
        assert taker.take_page(page, broker) == [n for n in (number - 2, number - 1) if 0 <= n < RECORDS]
    assert calls["fields"] == RECORDS
    assert calls["answers"] < 20
    assert (calls["columns"], calls["matches"]) == (1, 0)
    broker.predicates.close()


async def test_one_condition_of_many_subscribers_is_asked_once(calls: Counter[str]) -> None:
    """Also where no index helps."""
    broker, page = Broker(), page_of(numbered())
    for _ in range(SUBSCRIBERS):
        taker = Taker(broker, any=Grant(where=Predicate.parse("other LIKE 'x%'")))
        assert taker.take_page(page, broker) == list(range(RECORDS))
    assert (calls["matches"], calls["fields"]) == (RECORDS, RECORDS)
    broker.predicates.close()


async def test_boxes_that_say_too_much_are_asked_about_what_lies_in_them(calls: Counter[str]) -> None:
    broker, page = Broker(), page_of(numbered())
    for number in range(RECORDS):
        where = f"n BETWEEN {number} AND {number + 1} AND NOT n = {number + 1} AND other LIKE 'x%'"
        assert Taker(broker, any=Grant(where=Predicate.parse(where))).take_page(page, broker) == [number]
    assert calls["matches"] < 2 * RECORDS
    broker.predicates.close()


async def test_each_asks_for_its_own_topics_only(calls: Counter[str]) -> None:
    topics = tuple([b"t%d" % number for number in range(RECORDS)])
    broker, page = Broker(), page_of(numbered(), topics=topics)
    for number in range(RECORDS):
        taker = Taker(broker, **{f"t{number}": Grant(where=Predicate.parse(f"n >= {number}"))})
        assert taker.take_page(page, broker) == [number]
    assert (calls["matches"], calls["fields"]) == (RECORDS, RECORDS)
    broker.predicates.close()


async def test_conditions_of_many_names_decode_a_page_a_few_times(calls: Counter[str]) -> None:
    payloads = [json.dumps({f"n{name}": number for name in range(50)}).encode() for number in range(10)]
    broker, page = Broker(), page_of(payloads)
    for name in range(50):
        taker = Taker(broker, any=Grant(where=Predicate.parse(f"n{name} = {name % 10}")))
        assert taker.take_page(page, broker) == [name % 10]
    assert calls["fields"] <= READERS_MAX * len(payloads)
    broker.predicates.close()


async def test_what_could_not_be_read_is_read_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(turns, "now_s", lambda: now_s)
    broker = Broker()
    made = zlib.compressobj(wbits=-15)
    deflated = made.compress(b'{"n": 1}') + made.flush()
    page = page_of([deflated], DEFLATE)
    readable = False
    monkeypatch.setattr(
        page_records, "asked_of", lambda *given: asked_of(*given) if readable else [None] * len(given[3])
    )
    taker = Taker(broker, any=Grant(where=Predicate.parse("n = 1")))
    assert taker.take_page(page, broker) == []
    readable = True
    now_s = asked_pages.UNREAD_KEPT_S * 1.5
    assert taker.take_page(page, broker) == [0]
    broker.predicates.close()


async def test_what_is_kept_is_bounded() -> None:
    broker = Broker()
    kept = AskedPages(cast(Any, broker), 200_000)
    sizes = []
    for _ in range(50):
        page = page_of(numbered(20))
        taker = Taker(broker, any=Grant(where=Predicate.parse("n < 3")))
        taker.lagging[3] = 0
        asked = kept.of(page)
        assert list(asked.granted(taker, {b"t": None})) == [0, 1, 2]
        sizes.append(asked.size_bytes)
        assert kept.of(page) is asked
    assert 1 < len(kept._asked) <= 1 + 200_000 // min(sizes)
    broker.predicates.close()
