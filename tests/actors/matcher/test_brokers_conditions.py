"""What a matcher holds of brokers' conditions, beside a naive look at all of them."""

from __future__ import annotations

import json
import random

import pytest

from lexicast.actors.matcher.brokers_conditions import BrokersConditions
from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.event_rows import EventRows, pack_rows
from lexicast.cluster.content.fields import FieldReader
from lexicast.cluster.content.nodes import Name
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.errors import PeerError
from lexicast.cluster.topics.names import matches

FILTERS = [b"f/#", b"f/a", b"f/+", b"g/a", b"#"]
TOPICS = [b"f/a", b"f/b", b"f/b/c", b"g/a"]


def condition(dice: random.Random) -> str:
    """One of many, as a canonical text; some that no index helps."""
    low = dice.randrange(20)
    where = dice.choice(
        [
            f"delay > {low}",
            f"delay BETWEEN {low} AND {low + 3} AND carrier = 'UA'",
            f"carrier <> 'A{low % 3}'",
            "a.b = 2",
        ]
    )
    return Predicate.parse(where).text


def publications(dice: random.Random) -> list[ContentRecord]:
    """Some, of any topics."""
    names: set[Name] = set()
    for where in ("delay > 1", "carrier = 'x'", "a.b = 1"):
        names |= Predicate.parse(where).names
    reader = FieldReader(names)
    found = []
    for _ in range(dice.randrange(1, 9)):
        fields = {"delay": dice.randrange(25), "carrier": dice.choice(["UA", "A1", 7]), "a": dice.choice([1, {"b": 2}])}
        found.append(ContentRecord(dice.choice(TOPICS), json.dumps(fields).encode(), reader))
    return found


@pytest.mark.parametrize("seed", range(30))
async def test_a_matcher_knows_who_wants_what(seed: int) -> None:
    dice = random.Random(seed)
    conditions, held = BrokersConditions(), dict[str, set[tuple[bytes, str]]]()
    numbers = dict.fromkeys("xyz", 0)
    for _ in range(120):
        broker = dice.choice("xyz")
        if broker not in held:
            conditions.begin(broker, 5)
            held[broker] = set()
            continue
        if dice.random() < 0.03:
            conditions.forget(broker)
            del held[broker]
            continue
        if dice.random() < 0.6:
            key = dice.choice(FILTERS), condition(dice)
            begins = key not in held[broker]
            numbers[broker] += 1
            conditions.told(broker, 0, numbers[broker], [(begins, *key)])
            held[broker] ^= {key}
            continue
        asks = [publications(dice) for _ in range(dice.randrange(1, 4))]
        rows = [EventRows(pack_rows(records, ("a.b", "carrier", "delay")), 0) for records in asks]
        for records, vouched in zip(asks, conditions.wanted([(0, each) for each in rows]), strict=True):
            told = {name for name in held if conditions.brokers[name].number >= 0}
            assert vouched.keys() == told
            for name in told:
                assert vouched[name][:2] == (5, numbers[name])
                bits = int.from_bytes(vouched[name][2], "little")
                got = [bool(bits >> number & 1) for number in range(len(records))]
                assert got == [wants(held[name], record) for record in records]
    conditions.table.close()


def wants(keys: set[tuple[bytes, str]], record: ContentRecord) -> bool:
    """The naive look."""
    return any([matches(name, record.topic) and Predicate.of_canonical(where).matches(record) for name, where in keys])


async def test_who_asks_for_more_than_was_told_is_not_vouched_for() -> None:
    conditions = BrokersConditions()
    for broker, where in (("x", "delay > 3"), ("y", "tail = 'N1'")):
        conditions.begin(broker, 1)
        conditions.told(broker, 0, 1, [(True, b"f/#", where)])
    record = ContentRecord(b"f/a", b'{"delay": 1, "tail": "N1"}', FieldReader(None))
    (vouched,) = conditions.wanted([(0, EventRows(pack_rows([record], ("delay",)), 0))])
    assert vouched == {}
    (vouched,) = conditions.wanted([(0, EventRows(pack_rows([record], ("delay", "tail")), 0))])
    assert vouched == {"x": (1, 1, b"\0"), "y": (1, 1, b"\1")}
    longer = ContentRecord(b"f/a", b'{"delay": 1, "tail": "%s"}' % (b"N" * 2_000), FieldReader(None))
    (vouched,) = conditions.wanted([(0, EventRows(pack_rows([longer], ("delay", "tail")), 0))])
    assert vouched == {"x": (1, 1, b"\1"), "y": (1, 1, b"\1")}
    assert conditions.names([b"f/#", b"g"]) == {b"f/#": ["delay", "tail"], b"g": []}
    conditions.table.close()


async def test_versions_of_the_map_are_neighbours_or_not_vouched_for() -> None:
    conditions = BrokersConditions()
    conditions.begin("x", 1)
    conditions.told("x", 7, 1, [(True, b"f/#", "delay > 3")])
    rows = EventRows(pack_rows([ContentRecord(b"f/a", b"{}", FieldReader(None))], ("delay",)), 0)
    found = conditions.wanted([(version, rows) for version in (5, 6, 7, 8, 9)])
    assert [bool(vouched) for vouched in found] == [False, True, True, True, False]
    conditions.table.close()


@pytest.mark.parametrize(
    "changes",
    [[(False, b"f", "delay > 3")], [(True, b"f", "delay > 3")] * 2, [(True, b"f", "delay >")]],
)
async def test_what_cannot_be_is_a_peers_mistake(changes: list[tuple[bool, bytes, str]]) -> None:
    conditions = BrokersConditions()
    conditions.begin("x", 1)
    with pytest.raises(PeerError):
        conditions.told("x", 0, 1, changes)
    conditions.table.close()
