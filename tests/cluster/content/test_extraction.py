"""Records as rows of floats, each column of one type."""

from __future__ import annotations

import json
from math import inf, isnan, nan

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.content.boxes import ColumnKind, column_value, number_value, text_value
from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.extraction import column_parts, columns_of
from lexicast.cluster.content.fields import FieldReader
from lexicast.cluster.content.nodes import Name, Source
from lexicast.cluster.errors import UsageError

values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=9),
    st.lists(st.integers(-9, 9), max_size=1),
    st.binary(max_size=2),
)
COLUMNS = ("a", "a:text", "a:truth")


@given(st.lists(values, max_size=5))
def test_each_value_is_in_the_column_of_its_type_alone(several: list[object]) -> None:
    reader = FieldReader()
    records = [ContentRecord(b"t", msgpack.packb({"a": value}), reader) for value in several]
    found = columns_of(records, COLUMNS)
    assert found.shape == (len(several), 3)
    assert found.flags.f_contiguous
    wanted = [[column_value(value, kind) for kind in ColumnKind] for value in several]
    np.testing.assert_array_equal(found, np.array(wanted, np.float64).reshape(-1, 3))


def test_values() -> None:
    payload = json.dumps({"a": {"b": 1.5}, "c": "UA", "d": True, "e": 10**400, "f": -0.0}).encode()
    reader = FieldReader()
    record = ContentRecord(b"x/y", payload, reader, 1_500_000, 2, True, {38: [("p", "q")]})
    columns = ("a.b", "c:text", "c", "d:truth", "d", "e", "f", "topic:text", "level(2):text", "qos", "retain:truth")
    found = columns_of([record], (*columns, "time", "properties.p:text", "none", "none:text"))[0].tolist()
    texts = [text_value(text) for text in ("UA", "x/y", "y", "q")]
    wanted = [1.5, texts[0], nan, 1, nan, inf, 0, texts[1], texts[2], 2, 1, 1.5, texts[3], nan, nan]
    np.testing.assert_array_equal(found, wanted)
    assert np.copysign(1, found[6]) == 1
    assert columns_of([], ("a", "b")).shape == (0, 2)
    assert columns_of([record], ()).shape == (1, 0)


def test_columns_are_named_after_what_they_hold() -> None:
    a = Name(Source.PAYLOAD, ("a",))
    assert column_parts("a") == (a, ColumnKind.NUMBER)
    assert column_parts("a:text") == (a, ColumnKind.TEXT)
    assert column_parts('"a:text":truth') == (Name(Source.PAYLOAD, ("a:text",)), ColumnKind.TRUTH)
    assert column_parts('"a:text"') == (Name(Source.PAYLOAD, ("a:text",)), ColumnKind.NUMBER)
    with pytest.raises(UsageError):
        column_parts("a:number")


@given(st.text(max_size=6), st.text(max_size=9))
def test_short_texts_have_values_of_their_own_and_all_are_whole_numbers_below_2_to_53(one: str, other: str) -> None:
    first, second = text_value(one), text_value(other)
    assert first == int(first)
    assert 0 < first < 2**53
    if len(one.encode()) <= 6:
        assert (first == second) is (one == other)


def test_text_values_are_the_same_in_every_process() -> None:
    assert [text_value(text) for text in ("", "UA", "abcdef")] == [1, 0x15541, 0x1616263646566]
    assert text_value("a longer text") == 3942915675707793


@pytest.mark.parametrize(
    ("number", "value"), [(2**53 + 1, 2.0**53), (10**400, inf), (-(10**400), -inf), (-0.0, 0.0), (0.1, 0.1)]
)
def test_numbers_are_the_nearest_floats(number: float, value: float) -> None:
    assert number_value(number) == value
    assert not isnan(number_value(number))
