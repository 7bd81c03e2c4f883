"""docs/content.md: its limits are the code's, its conditions can be asked, its errors are what the parser says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lexicast.actors.broker.content import predicate_table
from lexicast.cluster.content import fields, like, normal_form, tokens
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.errors import UsageError

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "content.md").read_text(encoding="utf-8")
MODULES = (fields, like, normal_form, predicate_table, tokens)
UNITS = {"KiB": 1024}


def test_limits_are_those_of_the_code() -> None:
    rows = re.findall(r"(?m)^\| .+ \| ([\d,]+)( KiB)?[^|]*\(`(\w+_MAX)`\) \|", PAGE)
    assert len(rows) == 10
    for number, unit, name in rows:
        told = int(number.replace(",", "")) * UNITS.get(unit.strip(), 1)
        assert [getattr(each, name) for each in MODULES if hasattr(each, name)] == [told], name


def test_conditions_of_commands_and_programs_can_be_asked() -> None:
    found = re.findall(r"""(?:--where|property where) (?:"([^"]+)"|'([^']+)')""", PAGE)
    assert len(found) == 7
    for one in [*[double or single for double, single in found], *re.findall(r'(?m)^ +late = "(.+)"$', PAGE)]:
        Predicate.parse(one)


@pytest.mark.parametrize("where", ["delay >", "qos = 'late'"])
def test_errors_are_told_as_they_are(where: str) -> None:
    with pytest.raises(UsageError) as raised:
        Predicate.parse(where)
    assert f"\n{raised.value}\n" in PAGE


def test_the_two_that_mean_the_same_are_one() -> None:
    one, other = re.findall(r"subscribe: `([^`]+)`\s+is\s+`([^`]+)`", PAGE)[0]
    assert one != other
    assert Predicate.parse(one) == Predicate.parse(other)


def test_what_is_said_of_the_index_is_so() -> None:
    indexed, residual = re.findall(r"`([^`]+)` is\s+indexed, `([^`]+)` is not", PAGE)[0]
    assert normal_form.boxes_of(Predicate.parse(indexed).condition) is not None
    assert normal_form.boxes_of(Predicate.parse(residual).condition) is None
    assert normal_form.boxes_of(Predicate.parse("a < 'b'").condition) is None
    for count, helps in ((16, True), (17, False)):
        texts = ", ".join([f"'{n}'" for n in range(count)])
        assert (normal_form.boxes_of(Predicate.parse(f"a IN ({texts})").condition) is not None) is helps
