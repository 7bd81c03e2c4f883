"""Part `truth`: random conditions on random payloads, asked in every way there is and of a naive evaluator.

    disagreements        (condition, payload) pairs of which some way says something else than `condition_model`
    truth_pairs          so many pairs were asked
    truth_true_share     the part of them that the condition is true of
    truth_indexed_share  the part of the conditions that the index helps
    truth_vouched_share  the part of the pairs that a matcher vouches for: it leaves open what no row tells

The ways: the compiled evaluator; the index, verified where its boxes say too much; live delivery to a Python client's
link and to an MQTT 3.1.1 session, by few conditions and by the index; the past, as `history(where=)` chooses it; a
matcher, of the rows that are told it in place of payloads.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgpack

from lexicast.actors.broker.content.choosing import chosen
from lexicast.actors.broker.content.content_fanout import ContentFanout
from lexicast.actors.broker.content.predicate_table import PredicateTable
from lexicast.actors.broker.encoding import LINK, BlockView, Grant, Kind
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.actors.matcher.brokers_conditions import BrokersConditions
from lexicast.actors.mqtt.codec.packets import V311
from lexicast.cluster.blocks import PUBLICATIONS, RETAIN, Block, Meta, Run, pack_meta
from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.event_rows import NAMES_MAX, EventRows, pack_rows
from lexicast.cluster.content.extraction import columns_of
from lexicast.cluster.content.fields import FieldReader
from lexicast.cluster.content.index.predicate_index import PredicateIndex
from lexicast.cluster.content.normal_form import boxes_of
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.errors import UsageError
from lexicast.cluster.selection import offsets_of

from ...report import DriverReport, Steps
from .condition_dice import ConditionDice
from .condition_model import ModelRecord, Tree, truth, written
from .delivery_load import Around, no_dictionaries

PAIRS: Final = 150_000
QUICK_PAIRS: Final = 10_000
RECORDS: Final = 60
# Conditions a round: so few are asked one by one, so many are looked up.
CONDITIONS: Final = (10, 90)
_KINDS: Final = (Kind(LINK), Kind(V311))
_SHOWN: Final = 5


def steps(quick: bool) -> int:
    """How many steps `measure` announces."""
    return 1


class AskedCondition(NamedTuple):
    """A condition, by tree and as what is asked."""

    tree: Tree
    predicate: Predicate


# (condition, record) by number.
Pair = tuple[int, int]


def measure(report: DriverReport, progress: Steps) -> None:
    """See the module's docstring."""
    wanted = QUICK_PAIRS if report.options.quick else PAIRS
    progress.step(f"truth: {wanted:,} pairs")
    dice = ConditionDice(report.options.seed)
    told: Counter[str] = Counter()
    while told["pairs"] < wanted:
        for count in CONDITIONS:
            asked, records = list(_conditions(dice, count)), dice.records(RECORDS)
            _ask(report, asked, records, told)
    report.figure("disagreements", told["disagreements"])
    report.figure("truth_pairs", told["pairs"])
    report.figure("truth_true_share", told["true"] / told["pairs"])
    report.figure("truth_indexed_share", told["indexed"] / told["conditions"])
    report.figure("truth_vouched_share", told["vouched"] / told["pairs"])


def _conditions(dice: ConditionDice, count: int) -> Iterator[AskedCondition]:
    """Different ones; those beyond the limits are drawn again."""
    known: set[Predicate] = set()
    while len(known) < count:
        tree = dice.tree()
        try:
            predicate = Predicate.parse(written(tree))
        except UsageError:
            continue
        if predicate not in known:
            known.add(predicate)
            yield AskedCondition(tree, predicate)


def _ask(report: DriverReport, asked: list[AskedCondition], records: list[ModelRecord], told: Counter[str]) -> None:
    expected = {(c, r) for c, each in enumerate(asked) for r, record in enumerate(records) if truth(each.tree, record)}
    ways = {
        "compiled": _compiled(asked, records),
        "index": _by_index(asked, records, told),
        "live": asyncio.run(_live(asked, records)),
        "past": _past(asked, records),
        "matcher": asyncio.run(_by_matcher(asked, records, expected, told)),
    }
    told["pairs"] += len(asked) * len(records)
    told["conditions"] += len(asked)
    told["true"] += len(expected)
    wrong: set[Pair] = set()
    for way, found in ways.items():
        for condition, record in sorted(found ^ expected)[:_SHOWN]:
            text, payload = asked[condition].predicate.text, records[record].payload
            report.problem(f"truth, {way}: {text} of {payload!r}: {(condition, record) in found}")
        wrong |= found ^ expected
    told["disagreements"] += len(wrong)


def content_records(records: list[ModelRecord], reader: FieldReader) -> list[ContentRecord]:
    """As conditions see them."""
    return [
        ContentRecord(r.topic.encode(), r.payload, reader, r.time_us, r.qos, r.retain, r.properties) for r in records
    ]


def _compiled(asked: list[AskedCondition], records: list[ModelRecord]) -> set[Pair]:
    found: set[Pair] = set()
    for number, (_, predicate) in enumerate(asked):
        seen = content_records(records, FieldReader(predicate.names))
        found |= {(number, at) for at, record in enumerate(seen) if predicate.matches(record)}
    return found


def _by_index(asked: list[AskedCondition], records: list[ModelRecord], told: Counter[str]) -> set[Pair]:
    """What no index helps is asked itself."""
    seen = content_records(records, FieldReader([name for _, each in asked for name in each.names]))
    index, inexact, found = PredicateIndex(), set[int](), set[Pair]()
    for number, (_, predicate) in enumerate(asked):
        boxes = boxes_of(predicate.condition)
        if boxes is None:
            found |= {(number, at) for at, record in enumerate(seen) if predicate.matches(record)}
            continue
        told["indexed"] += 1
        index.add(number, boxes)
        if not boxes.exact:
            inexact.add(number)
    columns = tuple(index.columns)
    matches = index.match(columns_of(seen, columns), columns)
    for at, number in zip(matches.events.tolist(), matches.keys.tolist(), strict=True):
        if number not in inexact or asked[number].predicate.matches(seen[at]):
            found.add((number, at))
    return found


class Taker(Subscriber):
    """Keeps what it is sent, with the numbers of the records: by offset on a link, by what else it holds in MQTT."""

    __slots__ = ("data",)

    def __init__(self, around: Around, kind: Kind) -> None:
        super().__init__(around, kind)
        self.data = b""

    def write(self, data: bytes) -> None:
        """Take them."""
        self.data += data

    def records(self) -> list[int] | list[tuple[bytes, bytes]]:
        """Offsets; (topic, payload) of MQTT's packets."""
        if self.kind.version != LINK:
            return list(packets_of(self.data))
        return offsets_of(Block.from_wire(msgpack.unpackb(self.data, use_list=False))) if self.data else []


def packets_of(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(topic, payload) of joined PUBLISH packets of QoS 0 (MQTT 3.1.1, 3.3)."""
    at = 0
    while at < len(data):
        length, shift, at = 0, 0, at + 1
        while True:
            byte, at = data[at], at + 1
            length, shift = length | (byte & 127) << shift, shift + 7
            if byte < 128:
                break
        behind_topic = at + 2 + int.from_bytes(data[at : at + 2], "big")
        yield data[at + 2 : behind_topic], data[behind_topic : at + length]
        at += length


async def _live(asked: list[AskedCondition], records: list[ModelRecord]) -> set[Pair]:
    predicates, around = PredicateTable(), Around()
    fanout = ContentFanout(predicates, RECORDS)
    takers = [[Taker(around, kind) for kind in _KINDS] for _ in asked]
    for (_, predicate), both in zip(asked, takers, strict=True):
        for taker in both:
            fanout.insert({b"#": Grant(where=predicate)}, taker)
    fanout.deliver(BlockView(block_of(records), 0), around.encoder)
    predicates.close()
    sent = [(record.topic.encode(), record.payload) for record in records]
    found: set[Pair] = set()
    for number, (link, mqtt) in enumerate(takers):
        offsets = [offset for offset in link.records() if isinstance(offset, int)]
        found |= {(number, offset) for offset in offsets}
        if [sent[offset] for offset in offsets] != mqtt.records():
            found ^= {(number, at) for at in range(len(records))}  # none of it can be believed
    return found


def _past(asked: list[AskedCondition], records: list[ModelRecord]) -> set[Pair]:
    found: set[Pair] = set()
    for number, (_, predicate) in enumerate(asked):
        block = block_of(records)
        grants = (Grant(where=predicate),) * len(block.meta.topics)
        part = chosen(BlockView(block, 0), grants, no_dictionaries())
        if part is not None:
            found |= {(number, offset) for offset in offsets_of(part.view.block)}
    return found


async def _by_matcher(
    asked: list[AskedCondition], records: list[ModelRecord], expected: set[Pair], told: Counter[str]
) -> set[Pair]:
    """Each condition is that of a broker of its own. What is not vouched for is `expected`: a broker looks itself."""
    names = tuple(sorted({str(name) for _, each in asked for name in each.names})[:NAMES_MAX])
    seen = content_records(records, FieldReader([name for _, each in asked for name in each.names]))
    rows = EventRows(pack_rows(seen, names), records[0].time_us)
    conditions = BrokersConditions()
    for number, (_, predicate) in enumerate(asked):
        conditions.begin(str(number), 1)
        conditions.told(str(number), 0, 1, [(True, b"#", predicate.text)])
    (vouched,) = conditions.wanted([(0, rows)])
    conditions.table.close()
    found: set[Pair] = set()
    for number in range(len(asked)):
        verdict = vouched.get(str(number))
        bits = None if verdict is None else int.from_bytes(verdict[2], "little")
        for at, row in enumerate(rows.records):
            known = bits is not None and row is not None
            told["vouched"] += known
            if (bits is not None and row is not None and bits >> at & 1) or (not known and (number, at) in expected):
                found.add((number, at))
    return found


def block_of(records: list[ModelRecord]) -> Block:
    """A block of these, a run each, from offset 0 on."""
    topics = tuple(dict.fromkeys([record.topic.encode() for record in records]))
    runs = [
        Run(0, topics.index(r.topic.encode()), r.qos | RETAIN * r.retain, 0, 0, r.properties or None, -1, 1)
        for r in records
    ]
    meta = Meta(topics, tuple(runs), (), (), (), ())
    lengths = array("I", [len(record.payload) for record in records]).tobytes()
    body = b"".join([record.payload for record in records])
    time_us, last = records[0].time_us, len(records) - 1
    return Block(0, 1, 0, last, time_us, PUBLICATIONS, pack_meta(meta), lengths, body)
