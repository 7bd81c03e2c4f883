"""What is told of publications in front of their entry: the values that conditions ask for, by who may be asked."""

from __future__ import annotations

import json
from array import array
from collections.abc import AsyncIterator

import numpy as np
import pytest

from lexicast.actors.broker.engine import BrokerEngine
from lexicast.actors.broker.matching.event_columns import EventColumns
from lexicast.actors.broker.pipelines.entries import GroupEntryBuilder
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.config.tables import Config
from lexicast.cluster.content.event_rows import EventRows
from lexicast.cluster.errors import UsageError
from lexicast.cluster.hpartition.cell_map import CellMap
from lexicast.cluster.hpartition.live_map import LiveMap, places_of
from lexicast.cluster.hpartition.partition import partitioned
from lexicast.cluster.protocol.messages import WireEntry

MATCHERS = ("matcher-0", "matcher-1", "matcher-2")


@pytest.fixture
async def columns() -> AsyncIterator[EventColumns]:
    """A broker's."""
    engine = BrokerEngine("broker", 1, 4, Config().replaced(node__matchers=1), SystemClock())
    assert engine.event_columns is not None
    yield engine.event_columns
    await engine.close()


def entry(*publications: tuple[bytes, bytes], encoding: int = 0) -> WireEntry:
    """These (topic, payload)."""
    builder = GroupEntryBuilder(3)
    for topic, payload in publications:
        builder.add(topic, 0, [payload], "client", encoding)
    return builder.seal(b"producer", 1, 1).wire


def flight(delay: int, carrier: str = "UA") -> bytes:
    """A payload."""
    return json.dumps({"delay": delay, "carrier": carrier}).encode()


def numbers(part: tuple[int, tuple[str, ...], bytes, bytes]) -> list[int]:
    """The records of a part."""
    return array("I", part[2]).tolist()


def test_nothing_is_told_where_nobody_asks(columns: EventColumns) -> None:
    wire = entry((b"f/1", flight(1)))
    assert columns.of_entries([wire]) == {}
    columns.asked("matcher-0", {b"g/#": ["delay"]})
    assert columns.of_entries([wire]) == {}
    columns.asked("matcher-0", {b"f/#": ["delay"], b"g/#": []})
    assert list(columns.of_entries([entry((b"g/1", flight(1))), wire])) == [1]
    columns.gone("matcher-0")
    assert columns.of_entries([wire]) == {}


def test_of_each_record_of_a_topic_that_somebody_asks_about_its_values(columns: EventColumns) -> None:
    columns.asked("matcher-0", {b"f/#": ["delay"]})
    columns.asked("matcher-1", {b"f/1": ["carrier"]})
    wire = entry((b"f/1", flight(1)), (b"x", flight(2)), (b"f/2", flight(3)), (b"f/1", b"no map"))
    ((version, candidates, _, packed),) = columns.of_entries([wire])[0]
    assert (version, set(candidates)) == (0, {"matcher-0", "matcher-1"})
    assert numbers(columns.of_entries([wire])[0][0]) == [0, 2, 3]
    rows = EventRows(packed, 5)
    assert rows.names == {"delay", "carrier"}
    assert rows.topics == [b"f/1", b"f/2", b"f/1"]
    assert [each.fields() for each in rows.records if each is not None] == [
        {"carrier": "UA", "delay": 1},
        {"carrier": "UA", "delay": 3},
        {"carrier": None, "delay": None},
    ]


def test_of_what_cannot_be_read_here_nothing_is_told(columns: EventColumns) -> None:
    """Whoever is subscribed may have the dictionary that is lacking here."""
    columns.asked("matcher-0", {b"f/#": ["delay"]})
    builder = GroupEntryBuilder(3)
    builder.add(b"f/1", 0, [b"compressed"], "client", dictionary=77)
    builder.add(b"f/1", 0, [flight(2)], "client")
    (part,) = columns.of_entries([builder.seal(b"producer", 1, 1).wire])[0]
    assert numbers(part) == [1]
    only = GroupEntryBuilder(3)
    only.add(b"f/1", 0, [b"compressed"], "client", dictionary=77)
    assert columns.of_entries([only.seal(b"producer", 1, 1).wire]) == {}


def test_publications_lie_in_cells_by_fields_that_nobody_asks_of_them(columns: EventColumns) -> None:
    """A condition on a field may have begun at a matcher from which nobody here has heard yet: it is told to the
    matchers of its cells alone, so these have to be asked."""
    for matcher in MATCHERS:
        columns.asked(matcher, {b"f/#": ["carrier"]})
    seen = np.arange(300, dtype=np.float64).reshape(300, 1)
    cells = CellMap(partitioned(seen, [[0]], 30), places_of(MATCHERS))
    columns.follow(LiveMap(8, MATCHERS, ("delay",), cells))
    delays = list(range(0, 300, 7))
    for some in (delays, delays[:3]):
        parts = columns.of_entries([entry(*[(b"f/1", flight(delay)) for delay in some])])[0]
        told = {record: part[1] for part in parts for record in numbers(part)}
        assert {part[0] for part in parts} == {8}
        for record, delay in enumerate(some):
            assert told[record] == columns.map.candidates([float(delay)])[1]
    assert len({part[1] for part in parts}) > 1


def test_a_name_that_is_none_is_a_matchers_mistake(columns: EventColumns) -> None:
    with pytest.raises(UsageError):
        columns.asked("matcher-0", {b"f/#": ["delay >"]})
