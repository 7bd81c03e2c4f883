"""Compiled conditions say what three-valued logic says, on every payload."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings

from lexicast.bench.srem.edge.condition_model import ModelRecord, Tree, truth, written
from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.evaluation import question
from lexicast.cluster.content.fields import FieldReader
from lexicast.cluster.content.like import LIKE_CHARACTERS_MAX
from lexicast.cluster.content.parser import parse_condition
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.errors import UsageError
from lexicast.cluster.properties import USER_PROPERTY

from ...support.condition_model import model_records, trees


def content_record(record: ModelRecord, reader: FieldReader) -> ContentRecord:
    return ContentRecord(
        record.topic.encode(),
        record.payload,
        reader,
        time_us=record.time_us,
        qos=record.qos,
        retain=record.retain,
        properties=record.properties,
    )


@settings(max_examples=300)
@given(trees, model_records())
def test_what_is_compiled_is_true_where_the_model_is_true(tree: Tree, record: ModelRecord) -> None:
    try:
        predicate = Predicate.parse(written(tree))
    except UsageError:  # beyond the limits
        return
    true = truth(tree, record) is True
    for reader in (FieldReader(predicate.names), FieldReader()):
        assert predicate.matches(content_record(record, reader)) is true
    again = Predicate.of_canonical(predicate.text)
    assert again.matches(content_record(record, FieldReader(again.names))) is true


def matches(where: str, payload: Any = None, **of_record: Any) -> bool:
    predicate = Predicate.parse(where)
    packed = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    topic = of_record.pop("topic", b"a/b")
    return predicate.matches(ContentRecord(topic, packed, FieldReader(predicate.names), **of_record))


@pytest.mark.parametrize(
    ("where", "payload"),
    [
        ("delay > 30 AND carrier IN ('UA','AA')", {"delay": 31, "carrier": "AA"}),
        ("a.b.c = 1", {"a": {"b": {"c": 1.0}}}),
        ("a = 9007199254740993", {"a": 2**53 + 1}),
        ("a > 9007199254740992", {"a": 2**53 + 1}),
        ("a IN (1, 9007199254740993)", {"a": 2**53 + 1}),
        ("a > 1e300", {"a": 10**400}),
        ("a = 0.1", {"a": 0.1}),
        ("a = 0", {"a": -0.0}),
        ("a < 'b' AND a > 'B'", {"a": "aé"}),
        ("a > '\uffff'", {"a": "\U0001f600"}),
        ("a AND NOT b", {"a": True, "b": False}),
        ("a IS NULL AND b IS NULL AND c IS NOT NULL AND d IS NOT NULL", {"b": None, "c": [], "d": {}}),
        ("a < b AND c <> d", {"a": 1, "b": 1.5, "c": "x", "d": "y"}),
        ("a = 2", b'{"a": 1, "a": 2}'),
        ("a = 1 OR nothing = 1", {"a": 1}),
    ],
)
def test_true(where: str, payload: Any) -> None:
    assert matches(where, payload)


@pytest.mark.parametrize(
    ("where", "payload"),
    [
        ("a > 1", {"a": "5"}),
        ("a = 1", {"a": True}),
        ("a = TRUE", {"a": 1}),
        ("a <> 1", {"a": "1"}),
        ("a <> 1", {}),
        ("NOT a = 1", {}),
        ("NOT a > 1", {"a": "5"}),
        ("a NOT IN (1, 2)", {"a": "x"}),
        ("a NOT IN (1, 2)", {"a": None}),
        ("a NOT LIKE 'x%'", {"a": 5}),
        ("a NOT BETWEEN 1 AND 2", {"a": [5]}),
        ("a.b = 1", {"a": 1}),
        ("a.b = 1", {"a": [{"b": 1}]}),
        ("a = 9007199254740992", {"a": 2**53 + 1}),
        ("a <> a", {"a": 1}),
        ("a < b OR a <= b OR NOT a < b", {"a": False, "b": True}),
        ("a = b OR a <> b", {"a": 1, "b": True}),
        ("a <> 1", [1, 2]),
        ("a <> 1", b""),
        ("a <> 1", b"\xff\x00"),
        ("a <> 1", b'{"a": 2'),
    ],
)
def test_not_true(where: str, payload: Any) -> None:
    assert not matches(where, payload)


@pytest.mark.parametrize("where", ["a > 1", "a <= 1", "a = 1", "a <> 1", "a IN (1, 2)", "a NOT IN (1, 2)", "a <> b"])
def test_nan_is_null(where: str) -> None:
    payload = msgpack.packb({"a": float("nan"), "b": 1})
    assert not matches(where, payload)
    assert not matches(f"NOT {where}", payload)
    assert matches("a IS NULL", payload)


def test_what_is_not_of_the_payload() -> None:
    pairs = {USER_PROPERTY: [("unit", "km"), ("unit", "mi")]}
    assert matches("properties.unit = 'km' AND properties.other IS NULL", b"", properties=pairs)
    assert matches("properties.unit IS NULL", b"", properties=None)
    assert matches("topic = 'a/b/c' AND level(1) = 'a' AND level(3) = 'c' AND level(4) IS NULL", b"", topic=b"a/b/c")
    assert matches("qos BETWEEN 1 AND 2 AND retain", b"", qos=1, retain=True)
    at = 1_777_629_600_000_001
    assert matches("time > 1777629600 AND time > '2026-05-01T12:00:00+02:00'", b"", time_us=at)
    assert matches("time = '2026-05-01T10:00:00.000001Z' AND time = 1777629600.000001", b"", time_us=at)
    assert not matches("time > '2026-05-01T10:00:00.000001Z'", b"", time_us=at)


def test_a_text_that_is_too_long_for_like_is_neither_like_nor_unlike() -> None:
    longest = "a" * LIKE_CHARACTERS_MAX
    assert matches("a LIKE '%_'", {"a": longest})
    for where in ("a LIKE '%_'", "a NOT LIKE '%_'"):
        assert not matches(where, {"a": longest + "a"})
    assert matches("a NOT LIKE 'a'", {"a": longest + "a"})


def test_only_canonical_conditions_are_compiled() -> None:
    for text in ("NOT a", "1 = 1"):
        with pytest.raises(TypeError):
            question(parse_condition(text))
