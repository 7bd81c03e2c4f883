"""Fields of payloads: which form, within which limits, and the same whoever asks for which of them."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.content.fields import (
    FIELDS_MAX,
    JSON,
    MSGPACK,
    NESTING_MAX,
    NOTHING,
    PAYLOAD_BYTES_MAX,
    WANTED_NAMES_MAX,
    FieldCounts,
    FieldReader,
    payload_form,
)
from lexicast.cluster.content.nodes import Name, Source

BROKEN = b'{}[]",:\\u0123456789eE+-.truefalsn \n' + b"\xff\xc3\xa9\x80"
SEEDS = [
    json.dumps({"a": 1, "b": [1, 2.5e3, {"a": "\U0001f600é"}], "c": {"a": None, "b": True}, "é": '\n"\\'}).encode(),
    '{"é":"\U0001f600","a":"é","b":[1e400],"b":{"a":"x"}}'.encode(),
    b'{"b":1e999,"a":-1.5e-3,"c":[],"d":false}',
]


def names(*fields: str) -> list[Name]:
    return [Name(Source.PAYLOAD, (field,)) for field in fields]


@pytest.mark.parametrize(
    ("payload", "content_type", "form"),
    [
        (b'{"a":1}', None, JSON),
        (b'\r\n\t {"a":1}', None, JSON),
        (b"\x81\xa1a\x01", None, MSGPACK),
        (b"\xde\x00\x00", None, MSGPACK),
        (b"\xdf\x00\x00\x00\x00", None, MSGPACK),
        (b"[1]", None, ""),
        (b"\x91\x01", None, ""),
        (b" 5", None, ""),
        (b"", None, ""),
        (b"\x81\xa1a\x01", "application/json", JSON),
        (b"{}", "Application/MsgPack; q=1", MSGPACK),
        (b"?", "application/cloudevents+json; charset=utf-8", JSON),
        (b"?", "application/senml+msgpack", MSGPACK),
        (b'{"a":1}', "text/plain", JSON),
        (b"?", "image/png", ""),
        (b"?", "json", ""),
    ],
)
def test_the_content_type_says_what_a_payload_is_else_its_first_byte(
    payload: bytes, content_type: str | None, form: str
) -> None:
    assert payload_form(payload, content_type) == form


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    payload = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(1, len(payload) - 1))
        payload[at : at + draw(st.integers(0, 1))] = draw(st.sampled_from([b"", *[bytes([each]) for each in BROKEN]]))
    return bytes(payload)


@settings(max_examples=500)
@given(damaged())
def test_a_field_is_the_same_whichever_others_are_asked_for(payload: bytes) -> None:
    whole = FieldReader().fields(payload)
    for asked in (["a"], ["a", "b", "d"], ["é", "a"], ["c", *[f"x{i}" for i in range(WANTED_NAMES_MAX)]]):
        fields = FieldReader(names(*asked)).fields(payload)
        for name in asked:
            assert repr(fields.get(name)) == repr(whole.get(name))


@given(st.binary(max_size=40))
def test_no_payload_is_an_error(payload: bytes) -> None:
    counts = FieldCounts()
    for reader in (FieldReader(None, counts), FieldReader(names("a"), counts)):
        for content_type in (None, "application/json", "application/msgpack"):
            reader.fields(payload, content_type)
    unreadable = counts.malformed + counts.no_map
    assert 0 <= unreadable <= 6


@pytest.mark.parametrize(
    ("payload", "counted"),
    [
        (b'{"a":1', "malformed"),
        (b'{"a":1,"b":"\xff"}', "malformed"),
        (b'{"a":1,"b":"\\ud800"}', "malformed"),
        (b'{"a":1} {', "malformed"),
        (b"\x82\xa1a\x01", "malformed"),
        (b"\x81\xa1a\xa1\xff", "malformed"),
        (b"[1]", "no_map"),
        (b"", "no_map"),
        (b'{"a":1}' + b" " * PAYLOAD_BYTES_MAX, "beyond_limits"),
    ],
)
def test_what_has_no_fields_is_counted(payload: bytes, counted: str) -> None:
    for asked in (None, names("a")):
        reader = FieldReader(asked)
        assert reader.fields(payload) is NOTHING
        assert reader.counts == FieldCounts(**{counted: 1})


def test_a_list_with_the_content_type_of_a_map_is_none() -> None:
    reader = FieldReader()
    assert reader.fields(b"\x91\x01", "application/msgpack") is NOTHING
    assert reader.counts == FieldCounts(no_map=1)


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"9" * 5_000])
def test_a_number_that_cannot_be_held_is_null_by_itself(number: bytes) -> None:
    payload = b'{"a":%b,"b":1}' % number
    assert FieldReader().fields(payload) == {"a": None, "b": 1}
    assert FieldReader(names("a", "b")).fields(payload) == {"a": None, "b": 1}
    assert FieldReader(names("b")).fields(payload) == {"b": 1}


def nested(levels: int, opening: str = '{"x":', closing: str = "}") -> bytes:
    inner = levels - 1
    return f'{{"a":1,"b":{opening * inner}0{closing * inner}}}'.encode()


def packed(levels: int) -> bytes:
    return b"\x82\xa1a\x01\xa1b" + b"\x91" * (levels - 1) + b"\x00"


@pytest.mark.parametrize("asked", [None, ["a"]])
@pytest.mark.parametrize(
    "make", [nested, lambda levels: nested(levels, "[", "]"), lambda levels: nested(levels, "[0, ", "]"), packed]
)
def test_nesting_is_limited(make: Any, asked: list[str] | None) -> None:
    reader = FieldReader(None if asked is None else names(*asked))
    assert reader.fields(make(NESTING_MAX)).get("a") == 1
    assert reader.counts == FieldCounts()
    for levels in (NESTING_MAX + 1, 5_000):
        assert reader.fields(make(levels)) is NOTHING
    assert reader.counts.beyond_limits + reader.counts.malformed == 2


def test_a_text_that_is_never_closed_is_looked_at_once() -> None:
    """Looked for at each of its quotes it would take minutes."""
    reader = FieldReader(names("a"))
    payload = b'{"a":' + b"[]" * NESTING_MAX + b'"' + b'\\"' * 30_000
    assert reader.fields(payload) is NOTHING
    assert reader.counts == FieldCounts(malformed=1)


def test_brackets_in_texts_nest_nothing() -> None:
    payload = json.dumps({"a": 1, "b": '["{\\' * 100, "c": [[]] * 100}).encode()
    assert FieldReader(names("a")).fields(payload) == {"a": 1}


@pytest.mark.parametrize("pack", [lambda value: json.dumps(value).encode(), msgpack.packb])
def test_fields_are_limited(pack: Any) -> None:
    most = {"a": 1, "b": [{f"x{i}": 0, f"y{i}": "::"} for i in range(1_000)], "c": [[]] * 2_091}
    assert FIELDS_MAX == 3 + 2 * 1_000 + 1 + 1 + 2_091
    for asked in (None, names("a")):
        reader = FieldReader(asked)
        assert reader.fields(pack(most)).get("a") == 1
        assert reader.fields(pack(most | {"d": 1})) is NOTHING
        assert reader.fields(pack(most | {"c": [[]] * 2_092})) is NOTHING
        assert reader.counts == FieldCounts(beyond_limits=2)


def test_very_many_lists_of_messagepack_are_not_even_decoded() -> None:
    reader = FieldReader()
    assert reader.fields(b"\x81\xa1a" + b"\x91" * (4 * FIELDS_MAX)) is NOTHING
    assert reader.counts == FieldCounts(beyond_limits=1)


def test_names_beyond_ascii_are_found() -> None:
    """What is decoded of a payload has to leave them to the whole map (a fault of msgspec's)."""
    assert FieldReader(names("é")).fields('{"é": 1, "": 2}'.encode())["é"] == 1
    assert FieldReader(names('"\\\n')).fields(b'{"\\"\\\\\\n": 1}') == {'"\\\n': 1}
    assert FieldReader(names("a")).fields(b'{"\\u0061": 1, "b": 2}') == {"a": 1}
