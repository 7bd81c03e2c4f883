"""Boxes hold every record that matches, and where they are exact no other."""

from __future__ import annotations

import json
from math import inf, nextafter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lexicast.bench.srem.edge.condition_model import HUGE, SPECIAL, ModelRecord, Tree, truth, written
from lexicast.cluster.content.boxes import Boxes, Interval, text_value
from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.extraction import columns_of
from lexicast.cluster.content.fields import FieldReader
from lexicast.cluster.content.normal_form import CONJUNCTS_MAX, boxes_of
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.errors import UsageError

from ...support.condition_model import bounding_trees, few_values_records, model_records, trees


def lies_in(boxes: Boxes, record: ContentRecord) -> bool:
    columns = tuple(sorted({column for box in boxes.boxes for column in box}))
    values = dict(zip(columns, columns_of([record], columns)[0], strict=True))
    return any(all(low <= values[column] <= high for column, (low, high) in box.items()) for box in boxes.boxes)


def check(predicate: Predicate, record: ContentRecord) -> None:
    boxes = boxes_of(predicate.condition)
    if boxes is None:
        return
    assert all(box for box in boxes.boxes)
    assert all(low <= high for box in boxes.boxes for low, high in box.values())
    inside, matches = lies_in(boxes, record), predicate.matches(record)
    assert inside or not matches
    if boxes.exact:
        assert inside is matches


@settings(max_examples=200)
@given(trees, model_records())
def test_whatever_matches_lies_in_a_box(tree: Tree, record: ModelRecord) -> None:
    try:
        predicate = Predicate.parse(written(tree))
    except UsageError:  # beyond the limits
        return
    reader = FieldReader(predicate.names)
    topic, at = record.topic.encode(), record.time_us
    check(predicate, ContentRecord(topic, record.payload, reader, at, record.qos, record.retain, record.properties))


@settings(max_examples=500)
@given(bounding_trees, few_values_records)
def test_what_matches_lies_in_a_box_and_where_that_is_exact_nothing_else(tree: Tree, record: ModelRecord) -> None:
    predicate = Predicate.parse(written(tree))
    content = ContentRecord(b"t", record.payload, FieldReader(predicate.names))
    assert predicate.matches(content) is (truth(tree, record) is True)
    check(predicate, content)


extremes = st.one_of(
    st.sampled_from([*SPECIAL, *HUGE, *[-number for number in SPECIAL + HUGE]]),
    st.integers(2**53 - 3, 2**53 + 3),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 1.7976931348623157e308, float(2**53), nextafter(2.0**53, 0)]),
)


@settings(max_examples=400)
@given(st.sampled_from(["=", "<", "<=", ">", ">="]), extremes, extremes)
@example(">", 2**53, 2**53 + 1)
@example("<", 0, -5e-324)
@example(">", 10**400, 10**400 + 1)
@example("=", 2**70, 2**70 + 1)
@example(">=", 0, -0.0)
def test_numbers_at_the_edges_of_floats(sign: str, constant: float, value: float) -> None:
    predicate = Predicate.parse(f"a {sign} {constant!r}")
    boxes = boxes_of(predicate.condition)
    assert boxes
    assert boxes.exact is (abs(constant) < 2**53)
    payload = json.dumps({"a": value}).encode()
    check(predicate, ContentRecord(b"t", payload, FieldReader(predicate.names)))


@pytest.mark.parametrize(
    ("where", "boxes"),
    [
        ("a > 30", Boxes(({"a": Interval(nextafter(30, inf), inf)},), True)),
        ("a BETWEEN 1 AND 2.5", Boxes(({"a": Interval(1, 2.5)},), True)),
        ("a <= 0 AND b.c = 'UA'", Boxes(({"a": Interval(-inf, 0), "b.c:text": Interval(0x15541, 0x15541)},), True)),
        ("a < 0", Boxes(({"a": Interval(-inf, nextafter(0, -inf))},), True)),
        ("a", Boxes(({"a:truth": Interval(1, 1)},), True)),
        ("NOT a", Boxes(({"a:truth": Interval(0, 0)},), True)),
        ("a = 1 OR b = 2", Boxes(({"a": Interval(1, 1)}, {"b": Interval(2, 2)}), True)),
        ("a IN (1, 3) AND a < 2", Boxes(({"a": Interval(1, 1)},), True)),
        ("a > 1 AND a < 1", Boxes((), True)),
        ("FALSE", Boxes((), True)),
        ("a >= 0 AND b LIKE 'x%'", Boxes(({"a": Interval(0, inf)},), False)),
        ("a >= 0 AND b <> 5", Boxes(({"a": Interval(0, inf)},), False)),
        ("a >= 0 AND b < c", Boxes(({"a": Interval(0, inf)},), False)),
        ("a >= 0 AND b > 'x'", Boxes(({"a": Interval(0, inf)},), False)),
        ("a >= 9007199254740992", Boxes(({"a": Interval(2.0**53, inf)},), False)),
        ("level(2) = 'a'", Boxes(({"level(2):text": Interval(0x161, 0x161)},), True)),
        ("qos = 1 AND time < 60", Boxes(({"qos": Interval(1, 1), "time": Interval(-inf, nextafter(60, -inf))},), True)),
        ("\"a:text\" = 1", Boxes(({'"a:text"': Interval(1, 1)},), True)),
    ],
)  # fmt: skip
def test_boxes(where: str, boxes: Boxes) -> None:
    assert boxes_of(Predicate.parse(where).condition) == boxes


@pytest.mark.parametrize(
    "where",
    ["a LIKE 'x%'", "a <> 1", "a IS NULL", "a = 1 OR b IS NULL", "a < b", "TRUE", "a NOT IN (1, 2)", "a > 'x'"],
)
def test_what_bounds_nothing_is_left_to_the_predicate_itself(where: str) -> None:
    assert boxes_of(Predicate.parse(where).condition) is None


def test_long_texts_share_their_values_so_their_boxes_are_not_exact() -> None:
    for text, exact in (("abcdef", True), ("abcdefg", False), ("éééé", False), ("ééé", True)):
        boxes = boxes_of(Predicate.parse(f"a = '{text}'").condition)
        assert boxes == Boxes(({"a:text": Interval(*[text_value(text)] * 2)},), exact)


def listed(count: int) -> str:
    return ", ".join(map(str, range(count)))


def test_conjuncts_are_limited_and_lists_are_what_gives_way() -> None:
    def boxes(where: str) -> Boxes | None:
        return boxes_of(Predicate.parse(where).condition)

    whole = boxes(f"a IN ({listed(CONJUNCTS_MAX)})")
    assert whole == Boxes(tuple([{"a": Interval(i, i)} for i in range(CONJUNCTS_MAX)]), True)
    assert boxes(f"a IN ({listed(17)})") == Boxes(({"a": Interval(0, 16)},), False)
    assert boxes(f"a IN ({listed(16)}) AND b IN (1, 2)") == Boxes(({"a": Interval(0, 15), "b": Interval(1, 2)},), False)
    many = ", ".join([f"'{i}'" for i in range(17)])
    assert boxes(f"a IN ({many}) AND b = 1") == Boxes(({"b": Interval(1, 1)},), False)
    assert boxes(f"a IN ({many})") is None
    assert boxes(" OR ".join([f"x{i} = 1" for i in range(16)])) is not None
    assert boxes(" OR ".join([f"x{i} = 1" for i in range(17)])) is None
    assert boxes(" AND ".join([f"(x{i} = 1 OR y{i} = 1)" for i in range(5)])) is None
