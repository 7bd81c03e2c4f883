"""A new family begins with what a sibling has learned."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.sampling.siblings import SAMPLES, SIBLINGS_MAX, begin_from, siblings_of
from lexicast.compression.codecs import CODECS, DEFLATE_PRESET, FIELDS, ZSTD_DENSE, Deflate
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.training import train


def readings(seed: int, count: int) -> list[bytes]:
    draw = random.Random(seed)
    return [
        json.dumps({"device": f"d-{draw.randrange(50)}", "temperature": round(draw.gauss(20, 5), 2)}).encode()
        for _ in range(count)
    ]


def of(family: bytes, created_us: int = 1) -> Dictionary:
    return Dictionary(family, DEFLATE_PRESET, b"content of " + family, created_us=created_us)


def test_siblings_differ_in_one_literal_level_and_the_same_type_elsewhere_comes_first() -> None:
    family = b"plant/7/pump/+"
    others = [
        of(b"plant/7/valve/+", 9),
        of(b"plant/3/pump/+", 2),
        of(b"plant/4/pump/+", 5),
        of(b"plant/3/valve/+"),
        of(b"plant/+/pump/+"),
        of(b"plant/3/pump"),
        of(b"plant/7/pump/#"),
        of(family),
    ]
    assert [each.family for each in siblings_of(family, others)] == [
        b"plant/4/pump/+",
        b"plant/3/pump/+",
        b"plant/7/valve/+",
    ]
    assert [each.family for each in siblings_of(family, others, 2)] == [b"plant/7/valve/+"]
    many = [of(b"plant/%d/pump/+" % (100 + n), n) for n in range(50)]
    assert [each.created_us for each in siblings_of(family, many)] == [49, 48, 47, 46][:SIBLINGS_MAX]


@given(st.binary(min_size=1, max_size=20), st.lists(st.binary(min_size=1, max_size=20), max_size=5))
def test_whatever_families_are_called_they_are_siblings_of_each_other_or_not(family: bytes, names: list[bytes]) -> None:
    for name in names:
        assert bool(siblings_of(family, [of(name)])) == bool(siblings_of(name, [of(family)]))


@pytest.mark.parametrize("codec", [DEFLATE_PRESET, ZSTD_DENSE, FIELDS])
def test_a_family_that_sends_the_same_begins_with_the_siblings(codec: str) -> None:
    sibling = train(readings(1, 100), 4_096, codec, family=b"plant/3/pump/+")
    messages = readings(2, 100)
    made = begin_from(b"plant/7/pump/+", messages[:SAMPLES], [sibling], 77)
    assert made is not None
    assert (made.family, made.codec, made.created_us) == (b"plant/7/pump/+", codec, 77)
    assert made.id != sibling.id, "links are told of it like of any other"
    ours, theirs, alone = made.build(), sibling.build(), Deflate()
    assert [ours.decompress(ours.compress(each)) for each in messages] == messages
    taken = [sum([len(with_it.encode(each)[1]) for each in messages]) for with_it in (ours, theirs, alone)]
    assert taken[0] < 1.02 * taken[1] < taken[2] / 2


def test_a_family_that_sends_something_else_begins_by_itself() -> None:
    sibling = train(readings(1, 100), 4_096, ZSTD_DENSE, family=b"plant/3/pump/+")
    draw = random.Random(1)
    others = [draw.randbytes(100) for _ in range(SAMPLES)]
    assert begin_from(b"plant/7/pump/+", others, [sibling], 77) is None
    assert begin_from(b"plant/7/pump/+", [], [sibling], 77) is None
    assert begin_from(b"plant/7/pump/+", [b""], [sibling], 77) is None
    assert begin_from(b"plant/7/pump/+", readings(2, SAMPLES), [], 77) is None


def test_the_best_of_them_is_taken() -> None:
    good = train(readings(1, 100), 4_096, ZSTD_DENSE, family=b"plant/3/pump/+")
    bad = Dictionary(b"plant/4/pump/+", ZSTD_DENSE, b'{"device": "d-1", "temper')
    made = begin_from(b"plant/7/pump/+", readings(2, SAMPLES), [bad, good], 77)
    assert made is not None
    assert made.content.endswith(good.content)


@pytest.mark.parametrize("codec", [DEFLATE_PRESET, FIELDS])
def test_a_siblings_content_as_long_as_may_be_still_fits(codec: str) -> None:
    family = b"plant/" + b"x" * 200 + b"/pump/+"
    content = readings(1, 1)[0] * 3_000
    if codec == FIELDS:
        sibling = train(readings(1, 2_000), CODECS[FIELDS].content_bytes_max, FIELDS, family=b"plant/3/pump/+")
    else:
        sibling = Dictionary(b"plant/3/pump/+", codec, content[-CODECS[codec].content_bytes_max :])
    made = begin_from(family, readings(2, SAMPLES), [sibling], 77)
    assert made is not None
    assert len(made.content) <= CODECS[codec].content_bytes_max
