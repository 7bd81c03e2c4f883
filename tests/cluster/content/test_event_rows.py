"""Rows of publications: whatever conditions ask of them is answered as of the payload itself."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.event_rows import TEXT_CHARACTERS_MAX, EventRows, pack_rows
from lexicast.cluster.content.fields import FieldReader
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.errors import PeerError
from lexicast.cluster.properties import USER_PROPERTY

CONDITIONS = [
    Predicate.parse(where)
    for where in (
        "a > 3",
        "a = 'x' OR b.c < 2",
        "b IS NULL",
        "b IS NOT NULL AND b.c IS NULL",
        "b.c.d = TRUE",
        "a LIKE 'x%'",
        "a <> b.c",
        "properties.site = 'north'",
        "topic = 't/2' AND level(1) = 't'",
        "qos = 1 OR retain = TRUE",
        "time >= 2",
    )
]
NAMES = tuple(sorted({str(name) for each in CONDITIONS for name in each.names}))
READER = FieldReader([name for each in CONDITIONS for name in each.names])

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.integers(), st.floats(), st.text("xyz", max_size=4)
)
values = st.recursive(
    scalars, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abcd"), inner))
)


def asked(record: ContentRecord) -> list[bool]:
    """What each condition says."""
    return [condition.matches(record) for condition in CONDITIONS]


@given(
    st.lists(st.tuples(st.dictionaries(st.sampled_from("abcd"), values), st.booleans(), st.integers(0, 7)), min_size=1),
    st.sampled_from([json.dumps, msgpack.packb]),
)
def test_rows_answer_as_the_payloads_do(publications: list[tuple[Any, bool, int]], form: Any) -> None:
    records = []
    for fields, north, flags in publications:
        try:
            payload = form(fields)
        except OverflowError:  # MessagePack has no such numbers
            payload = json.dumps(fields)
        properties = {USER_PROPERTY: [("site", "north")]} if north else None
        data = payload if type(payload) is bytes else payload.encode()
        topic = b"t/%d" % (flags & 1)
        records.append(ContentRecord(topic, data, READER, 2_000_000, flags & 1, flags > 3, properties))
    rows = EventRows(pack_rows(records, NAMES), 2_000_000)
    assert rows.names == set(NAMES)
    assert rows.topics == [record.topic for record in records]
    for told, record in zip(rows.records, records, strict=True):
        if told is None:  # a number beyond 64 bits is not told
            assert any([abs(each) >= 2**63 for each in numbers(record.fields())])
        else:
            assert asked(told) == asked(record)


def numbers(value: Any) -> list[int]:
    """All whole numbers in a value."""
    if type(value) is int:
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [number for each in inner for number in numbers(each)]


def test_what_cannot_be_told_is_left_open() -> None:
    record = ContentRecord(b"t", json.dumps({"a": "x" * (TEXT_CHARACTERS_MAX + 1)}).encode(), READER)
    short = ContentRecord(b"t", b'{"a": 1}', READER)
    rows = EventRows(pack_rows([record, short], NAMES), 0)
    assert [each is None for each in rows.records] == [True, False]
    assert rows.topics == [b"t"] * 2


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        msgpack.packb(1),
        msgpack.packb((["a"], [b"t"], [[3]])),
        msgpack.packb((["a"], ["t"], [[0]])),
        msgpack.packb((["a"], [b"t"], [[0, 0, [], []]])),
        msgpack.packb((["a b"], [b"t"], [[0]])),
        msgpack.packb((["a"], [b"t"], [[0, 0, 1]])),
    ],
)
def test_what_are_no_rows_is_a_peers_mistake(packed: bytes) -> None:
    with pytest.raises(PeerError):
        EventRows(packed, 0)
