"""Conditions are parsed as SQL binds them, and whoever writes a wrong one is told where and what to write."""

from __future__ import annotations

import pytest

from lexicast.cluster.content.nodes import All, Comparison, Condition, Either, Membership, Name, Not, Source
from lexicast.cluster.content.parser import parse_canonical, parse_condition, parse_name
from lexicast.cluster.content.tokens import CHARACTERS_MAX, DEPTH_MAX, TOKENS_MAX
from lexicast.cluster.errors import UsageError

A, B, C = (Comparison("=", Name(Source.PAYLOAD, (each,)), True) for each in "abc")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a OR b AND c", Either((A, All((B, C))))),
        ("a AND b OR c", Either((All((A, B)), C))),
        ("(a OR b) AND c", All((Either((A, B)), C))),
        ("NOT a AND b", All((Not(A), B))),
        ("NOT (a AND b)", Not(All((A, B)))),
        ("not a or Not not b", Either((Not(A), Not(Not(B))))),
        ("a AND b AND c", All((A, B, C))),
    ],
)
def test_not_binds_closer_than_and_and_that_closer_than_or(text: str, tree: Condition) -> None:
    assert parse_condition(text) == tree


def test_the_and_of_between_is_its_own() -> None:
    a = Name(Source.PAYLOAD, ("a",))
    between = All((Comparison(">=", a, 1), Comparison("<=", a, 2)))
    assert parse_condition("a BETWEEN 1 AND 2 AND b") == All((between, B))
    assert parse_condition("a NOT BETWEEN 1 AND 2") == Not(between)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("a", Name(Source.PAYLOAD, ("a",))),
        ("payload.a", Name(Source.PAYLOAD, ("a",))),
        ("payload.payload.a", Name(Source.PAYLOAD, ("payload", "a"))),
        ('a."b ""c"".d".e', Name(Source.PAYLOAD, ("a", 'b "c".d', "e"))),
        ('""', Name(Source.PAYLOAD, ("",))),
        ("größe", Name(Source.PAYLOAD, ("größe",))),
        ("_x$1", Name(Source.PAYLOAD, ("_x$1",))),
        ("topic", Name(Source.TOPIC)),
        ('"topic"', Name(Source.PAYLOAD, ("topic",))),
        ("payload.topic", Name(Source.PAYLOAD, ("topic",))),
        ("time.start", Name(Source.PAYLOAD, ("time", "start"))),
        ("Time", Name(Source.PAYLOAD, ("Time",))),
        ("level(12)", Name(Source.LEVEL, level=12)),
        ("level", Name(Source.PAYLOAD, ("level",))),
        ("properties.unit", Name(Source.PROPERTIES, ("unit",))),
        ('properties."content-language"', Name(Source.PROPERTIES, ("content-language",))),
        ('"properties".unit', Name(Source.PAYLOAD, ("properties", "unit"))),
        ("a.and", Name(Source.PAYLOAD, ("a", "and"))),
        ('"and"', Name(Source.PAYLOAD, ("and",))),
    ],
)
def test_names(written: str, name: Name) -> None:
    assert parse_name(written) == name
    assert parse_name(str(name)) == name


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("5", 5),
        ("-5", -5),
        ("+007", 7),
        ("5.", 5.0),
        (".5", 0.5),
        ("-1.5e-3", -0.0015),
        ("1E3", 1000.0),
        ("9007199254740993", 2**53 + 1),
        ("'it''s'", "it's"),
        ("''", ""),
        ("true", True),
    ],
)
def test_constants(written: str, value: object) -> None:
    parsed = parse_condition(f"a={written}")
    assert isinstance(parsed, Comparison)
    assert (parsed.right, type(parsed.right)) == (value, type(value))


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("'1970-01-01T00:00:00Z'", 0),
        ("'2026-05-01T12:00:00+02:00'", 1_777_629_600),
        ("'1970-01-01T00:00:01.000001Z'", 1.000001),
        ("1777629600.5", 1_777_629_600.5),
    ],
)
def test_times_are_seconds_since_1970(written: str, seconds: float) -> None:
    time = Name(Source.TIME)
    assert parse_condition(f"time >= {written}") == Comparison(">=", time, seconds)
    assert parse_condition(f"{written} < time") == Comparison("<", seconds, time)
    assert parse_condition(f"time IN ({written})") == Membership(time, (seconds,))


@pytest.mark.parametrize(
    ("text", "column", "found", "remedy"),
    [
        ("", 1, "is empty", "delay > 30"),
        ("delay >", 8, "found the end", "write a name, a number, a 'text', TRUE or FALSE"),
        ("delay > > 5", 9, "found >", "write a name"),
        ("delay > 30 AND", 15, "found the end", "write a name"),
        ("(a = 1", 7, "found the end", "close the parenthesis"),
        ("a = 1)", 6, "found )", "join conditions with AND or OR"),
        ("a = 1 b = 2", 7, "found b", "join conditions with AND or OR"),
        ("a < b < c", 7, "found <", "join conditions with AND or OR"),
        ("a == 5", 4, "found =", "write a name"),
        ("delay-min > 5", 6, "'-' has no meaning", "names with other characters"),
        ("2nd > 5", 1, "2nd > 5 begins as a number", "double quotes"),
        ("a = 'b", 5, "'b is not closed", "write a ' in it twice"),
        ('"b = 5', 1, '"b = 5 is not closed', 'write a " in it twice'),
        ("a = 'b''c", 5, "'b''c is not closed", "write a ' in it twice"),
        ("a = NULL", 5, "found NULL", "ask with IS NULL"),
        ("a IS TRUE", 6, "found TRUE", "only IS NULL and IS NOT NULL"),
        ("a NOT IS NULL", 7, "found IS", "NOT stands before a condition"),
        ("a NOT 5", 7, "found 5", "NOT stands before a condition"),
        ("a IN ()", 7, "found )", "write name IN (1, 2)"),
        ("a IN (1, b)", 10, "found the name b", "OR for names"),
        ("a IN 1", 6, "found 1", "write name IN (1, 2)"),
        ("a BETWEEN 1 OR 2", 13, "found OR", "write name BETWEEN low AND high"),
        ("'a' LIKE 'b'", 1, "found 'a' before LIKE", "a name is expected"),
        ("a LIKE 5", 8, "found 5", "with % for any text"),
        ("a LIKE 'a!b' ESCAPE '!'", 8, "'!' stands before 'b'", "only %, _ and itself"),
        ("a LIKE 'a!' ESCAPE '!'", 8, "'!' stands last", "only %, _ and itself"),
        ("a LIKE 'a' ESCAPE 'ab'", 19, "'ab' is no single character", "write ESCAPE '!'"),
        ("5", 2, "found the end", "go on with 5 = ..."),
        ("topic", 6, "found the end", "go on with topic = ..."),
        ("topic = 5", 9, "5 is a number, and topic is a text", "compare topic with a text"),
        ("5 < topic", 1, "5 is a number", "compare topic with a text"),
        ("properties.x IN ('a', 5)", 23, "5 is a number", "compare properties.x with a text"),
        ("qos LIKE '1'", 1, "qos is a number", "compare it"),
        ("retain = 1", 10, "1 is a number, and retain is TRUE or FALSE", "compare retain with TRUE or FALSE"),
        ("level(0) = 'a'", 7, "found 0", "from 1 to 65536"),
        ("level(1.5) = 'a'", 7, "found 1.5", "write level(1)"),
        ("properties.a.b = 'x'", 1, "user properties have no fields", 'properties."a.b"'),
        ("payload = 1", 1, "payload stands for all of them", 'write "payload"'),
        ("time > '2026-05-01'", 8, "names no offset", "'2026-05-01T00:00:00Z'"),
        ("time > 'noon'", 8, "'noon' is no time", "ISO 8601"),
        ("a > 1e999", 5, "1e999 is too large", "1.8e308"),
        ("a > '\ud800'", 6, "half a character", "UTF-8"),
    ],
)
def test_errors_name_the_column_what_was_found_and_what_to_write(
    text: str, column: int, found: str, remedy: str
) -> None:
    with pytest.raises(UsageError) as raised:
        parse_condition(text)
    message = str(raised.value)
    assert message.startswith(f"where, column {column}: ")
    assert found in message
    assert remedy in message


def test_what_is_found_is_cut_in_messages() -> None:
    with pytest.raises(UsageError) as raised:
        parse_condition("a = '" + "b" * 4_000)
    assert len(str(raised.value)) < 200


def test_limits() -> None:
    longest = f"a = '{'b' * (CHARACTERS_MAX - 6)}'"
    parse_condition(longest)
    with pytest.raises(UsageError, match="4,097 characters, at most 4,096"):
        parse_condition(longest + " ")

    most = " OR ".join(["a"] * (TOKENS_MAX // 2))
    parse_condition(most)
    parse_condition(f"NOT {most}")
    with pytest.raises(UsageError, match="column 501: NOT b goes beyond 200 names"):
        parse_condition(f"{most} OR NOT b")

    deepest = "(" * DEPTH_MAX + "a" + ")" * DEPTH_MAX
    parse_condition(deepest)
    parse_condition(" OR ".join(["(a)"] * (DEPTH_MAX + 1)))  # beside each other
    for deeper in (f"({deepest})", f"NOT {deepest}", "NOT " * (DEPTH_MAX + 1) + "a"):
        with pytest.raises(UsageError, match="one of more than 32 within each other"):
            parse_condition(deeper)


def test_a_canonical_form_may_be_longer() -> None:
    longer = " OR ".join(["a = TRUE"] * 200)
    with pytest.raises(UsageError, match="beyond 200"):
        parse_condition(longer)
    assert isinstance(parse_canonical(longer), Either)
    with pytest.raises(UsageError, match="beyond 800"):
        parse_canonical(" OR ".join(["a = TRUE"] * 201))
    with pytest.raises(UsageError, match="a number of 5,000 digits"):
        parse_canonical("a = " + "1" * 5_000)


@pytest.mark.parametrize("text", ["", "5", "a b", "a =", "'a'", "a)"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_name(text)
