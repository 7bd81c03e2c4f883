"""LIKE, beside an implementation that tries everything, and on patterns made to take for ever."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lexicast.bench.srem.edge.condition_model import alike
from lexicast.cluster.content.like import LIKE_CHARACTERS_MAX, Wildcard, matcher, parse_pattern, pattern_text

texts = st.text("ab%_!", max_size=9)
patterns = st.lists(st.sampled_from(["a", "b", "%", "_", "!%", "!_", "!!", "a_b"]), max_size=8).map("".join)


@given(patterns, texts)
@example("%a_a%b", "aabaab")
@example("a%a", "a")
@example("%_", "")
def test_a_pattern_matches_what_trying_everything_finds(pattern: str, text: str) -> None:
    parsed = parse_pattern(pattern, "!")
    assert matcher(parsed)(text) is alike(pattern, "!", text)
    assert parse_pattern(*pattern_text(parsed)) == parsed


@given(patterns)
def test_a_pattern_matches_its_own_text_and_no_other_character(pattern: str) -> None:
    text = pattern.replace("!!", "x").replace("!%", "y").replace("!_", "z")
    text = text.replace("%", "").replace("_", "é").replace("x", "!").replace("y", "%").replace("z", "_")
    assert matcher(parse_pattern(pattern, "!"))(text)


@pytest.mark.parametrize(("pattern", "escape"), [("!a", "!"), ("a!", "!"), ("%%%", "%")])
def test_an_escape_stands_before_a_wildcard_or_itself(pattern: str, escape: str) -> None:
    assert parse_pattern("aa%", "a") == ("a", Wildcard.MANY)
    with pytest.raises(ValueError, match="stands"):
        parse_pattern(pattern, escape)


@pytest.mark.parametrize("piece", ["a", "_a", "a_", "a_a", "aa_aa" * 100])
def test_no_pattern_takes_for_ever(piece: str) -> None:
    """Trying everything would take longer than the universe is old."""
    pattern = "%" + "%".join([piece] * (4_000 // (len(piece) + 1))) + "%b"
    assert not matcher(parse_pattern(pattern))("a" * LIKE_CHARACTERS_MAX)
    assert not matcher(parse_pattern(pattern + "%"))("a" * LIKE_CHARACTERS_MAX)
    assert matcher(parse_pattern(pattern))("a" * (LIKE_CHARACTERS_MAX - 1) + "b")
