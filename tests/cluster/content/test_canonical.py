"""The canonical form: one text for many ways of writing, parsed to itself."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lexicast.bench.srem.edge.condition_model import Tree, written
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.content.tokens import TOKENS_MAX, tokens_of
from lexicast.cluster.errors import UsageError

from ...support.condition_model import trees


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("delay > 30 AND carrier IN ('UA','AA')", "carrier IN ('AA', 'UA') AND delay > 30"),
        ("30 < delay and (carrier='AA' or 'UA' = carrier)", "carrier IN ('AA', 'UA') AND delay > 30"),
        ("NOT (delay <= 30.0 OR carrier NOT IN ('UA', 'AA', 'UA'))", "carrier IN ('AA', 'UA') AND delay > 30"),
        ("a BETWEEN 1 AND 2", "a <= 2 AND a >= 1"),
        ("a NOT BETWEEN 1 AND 2", "a < 1 OR a > 2"),
        ("(c OR b) AND NOT (b AND NOT a)", "(a = TRUE OR b = FALSE) AND (b = TRUE OR c = TRUE)"),
        ("(a AND (b AND c)) AND a", "a = TRUE AND b = TRUE AND c = TRUE"),
        ("a = b OR b = a", "a = b"),
        ("a > b", "b < a"),
        ("a <> FALSE", "a = TRUE"),
        ("a < TRUE", "FALSE"),
        ("a != 1 AND a NOT IN (2, 3)", "a NOT IN (1, 2, 3)"),
        ("a <> 1 AND a <> 'b'", "FALSE"),
        ("a IN ('b', 2, TRUE, 1)", "a IN (TRUE, 1, 2, 'b')"),
        ("a NOT IN (TRUE, FALSE)", "FALSE"),
        ("a IN (1, 1.0, 1e0)", "a = 1"),
        ("1 = 1 AND a IS NOT NULL", "a IS NOT NULL"),
        ("1 = '1' OR a", "a = TRUE"),
        ("NOT 1 = '1' OR a", "a = TRUE"),
        ("a OR TRUE", "TRUE"),
        ("NOT TRUE", "FALSE"),
        ("topic IS NULL", "FALSE"),
        ("level(2) IS NULL", "level(2) IS NULL"),
        ("a = -0.0", "a = 0"),
        ("a = 1e15", "a = 1000000000000000"),
        ("a = 9007199254740992", "a = 9007199254740992.0"),
        ("a = 9007199254740993", "a = 9007199254740993"),
        ("a = 100000000000000000000", "a = 1e+20"),
        ("time >= '1970-01-01T00:01Z'", "time >= 60"),
        ("a LIKE 'abc'", "a = 'abc'"),
        ("a NOT LIKE 'a!%' ESCAPE '!'", "a <> 'a%'"),
        ("a LIKE '%%_%b!_' ESCAPE '!'", r"a LIKE '_%b\_' ESCAPE '\'"),
        (r"a LIKE '\%'", r"a LIKE '\%'"),
        ("a LIKE 'it''s%'", "a LIKE 'it''s%'"),
        ("payload.topic = topic", '"topic" = topic'),
        ('payload."b".c = "AND"', '"AND" = b.c'),
    ],
)
def test_one_text_for_many_ways_of_writing(text: str, canonical: str) -> None:
    predicate = Predicate.parse(text)
    assert predicate.text == canonical
    assert predicate == Predicate.of_canonical(canonical)
    assert hash(predicate) == hash(Predicate.of_canonical(canonical))
    assert predicate != Predicate.parse("other = 1")


@given(trees)
@example(("and", [("compare", "<>", ("name", "a", ""), ("constant", True)), ("in", True, ("name", "a", ""), [False])]))
def test_the_canonical_form_is_parsed_to_itself(tree: Tree) -> None:
    try:
        predicate = Predicate.parse(written(tree))
    except UsageError:  # beyond the limits
        return
    again = Predicate.of_canonical(predicate.text)
    assert again.text == predicate.text
    assert again.condition == predicate.condition
    assert Predicate(predicate.condition).condition == predicate.condition


@given(trees, st.randoms(use_true_random=False))
def test_order_and_spelling_do_not_matter(tree: Tree, random: object) -> None:
    def shuffled(tree: Tree) -> Tree:
        match tree:
            case ("and" | "or" as word, operands):
                several = [shuffled(each) for each in operands]
                random.shuffle(several)  # type: ignore[attr-defined] # hypothesis' own class
                return (word, several)
            case ("not", operand):
                return ("not", shuffled(operand))
        return tree

    try:
        predicate = Predicate.parse(written(tree))
    except UsageError:  # beyond the limits
        return
    assert Predicate.parse(written(shuffled(tree), capitals=False)) == predicate


@pytest.mark.parametrize(
    "text",
    [
        " OR ".join([f"a{i}" for i in range(100)]),
        "NOT (" + " AND ".join([f"level({i}) BETWEEN 'a' AND 'b'" for i in range(1, 20)]) + ")",
        " OR ".join([f"x{i}=1e15" for i in range(50)]),
        " AND ".join([f"(NOT x{i} BETWEEN 1 AND 2)" for i in range(22)]),
        f"a LIKE '{'!%' * 2000}_' ESCAPE '!'",
        "a LIKE '%" + "\\" * 3_000 + "!%' ESCAPE '!'",
    ],
)
def test_what_is_within_the_limits_is_so_as_a_canonical_form(text: str) -> None:
    assert len(tokens_of(text)) <= TOKENS_MAX + 1
    predicate = Predicate.parse(text)
    assert Predicate.of_canonical(predicate.text) == predicate
