"""The bridge bit of MQTT 3.1.1: whatever a broker makes of it, and then makes of it, it is reached."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.bridge.bridge_bit import LOYAL_MAX, BridgeBit

LETS_IN = "lets in"
CLOSES = "closes"
REFUSES = "refuses"


def tried(bit: BridgeBit, answer: str) -> bool:
    """One connection, from its CONNECT to its end; whether it had the bit."""
    had = bit.tells
    {LETS_IN: bit.accepted, CLOSES: bit.unanswered, REFUSES: bit.refused}[answer]()
    during = bit.tells
    bit.ended()
    assert answer != LETS_IN or during == had, "it changes while the connection stands"
    return had


def reached(bit: BridgeBit, with_bit: str, without: str) -> list[bool]:
    """Connections until one is let in: what they had."""
    had: list[bool] = []
    for _ in range(2 * LOYAL_MAX + 2):
        answer = with_bit if bit.tells else without
        had.append(tried(bit, answer))
        if answer == LETS_IN:
            return had
    raise AssertionError(f"never let in: {had}")


def test_a_broker_that_knows_bridges_is_always_told() -> None:
    bit = BridgeBit(wanted=True)
    for answer in [LETS_IN, CLOSES, LETS_IN, LETS_IN, *([CLOSES] * (LOYAL_MAX - 1)), LETS_IN, LETS_IN]:
        assert tried(bit, answer)


@pytest.mark.parametrize("answer", [CLOSES, REFUSES])
def test_one_that_never_knew_them_is_asked_once(answer: str) -> None:
    bit = BridgeBit(wanted=True)
    assert reached(bit, answer, LETS_IN) == [True, False]
    assert reached(bit, answer, LETS_IN) == [False]


def test_one_that_knows_them_no_more_is_reached_and_asked_again() -> None:
    bit = BridgeBit(wanted=True)
    assert reached(bit, LETS_IN, CLOSES) == [True]
    for _ in range(2):
        assert reached(bit, CLOSES, LETS_IN) == [True] * LOYAL_MAX + [False]
    assert reached(bit, LETS_IN, LETS_IN) == [True]


def test_one_that_says_that_it_knows_them_no_more_is_believed() -> None:
    bit = BridgeBit(wanted=True)
    assert reached(bit, LETS_IN, CLOSES) == [True]
    assert reached(bit, REFUSES, LETS_IN) == [True, False]
    assert reached(bit, REFUSES, LETS_IN) == [False]


@given(st.booleans(), st.lists(st.sampled_from([LETS_IN, CLOSES, REFUSES])), st.sampled_from([CLOSES, REFUSES]))
def test_whatever_has_been_who_takes_one_of_both_is_reached(wanted: bool, before: list[str], answer: str) -> None:
    for with_bit, without in [(LETS_IN, answer), (answer, LETS_IN)]:
        bit = BridgeBit(wanted)
        assert not any([tried(bit, each) for each in before]) or wanted
        if wanted or without == LETS_IN:
            reached(bit, with_bit, without)
