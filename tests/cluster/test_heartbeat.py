"""When a silent peer is taken for gone: after `silence_s`, later where lateness is usual, never by who slept itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.protocol.heartbeat import (
    ASLEEP_BEATS,
    LATE_BEATS,
    SILENCE_FACTOR_MAX,
    SUSPECTED_BEATS,
    Beats,
    Heartbeat,
    detecting_beats,
)

BEATS = Beats(beat_s=1.0, silence_s=10.0)


def gone_at(heart: Heartbeat) -> float:
    """When the peer is gone, if it says nothing any more and every tick is in time."""
    start_s = heart.next_s
    while not heart.tick(now_s := heart.next_s)[1]:
        assert now_s < start_s + 1_000
    return now_s


def until(heart: Heartbeat, now_s: float) -> None:
    """Tick in time."""
    while heart.next_s <= now_s:
        assert not heart.tick(heart.next_s)[1]


@pytest.mark.parametrize("last_s", [99.0, 99.01, 99.5, 99.99])
def test_a_prompt_peer_is_gone_when_it_was_silent_for_as_long_as_is_allowed(last_s: float) -> None:
    """From its last word on, wherever between two beats that was and the silence ends."""
    heart = Heartbeat(BEATS, 0.0)
    for second in range(1, 100):
        until(heart, float(second))
        heart.heard(float(second))
    until(heart, last_s)
    heart.heard(last_s)
    assert gone_at(heart) == pytest.approx(last_s + BEATS.silence_s)


def test_a_beat_is_said_every_beat_also_when_silence_is_looked_at_between() -> None:
    heart, said = Heartbeat(BEATS, 0.0), []
    heart.heard(0.3)
    while heart.next_s <= 10.0:
        now_s = heart.next_s
        if heart.tick(now_s)[0]:
            said.append(now_s)
    assert said == [float(second) for second in range(1, 11)]


def test_a_peer_that_is_often_late_is_borne_with_for_longer() -> None:
    heart = Heartbeat(BEATS, 0.0)
    for second in range(8, 193, 8):
        until(heart, second - 0.5)
        heart.heard(second - 0.5)
    assert heart.patience_s > BEATS.silence_s + 6
    assert gone_at(heart) > 191.5 + BEATS.silence_s + 5


def test_who_slept_does_not_judge() -> None:
    heart = Heartbeat(BEATS, 0.0)
    assert heart.tick(3_600.0) == (True, False)  # this process was stopped for an hour
    assert gone_at(heart) == 3_600.0 + BEATS.silence_s


def test_who_was_held_up_does_not_count_that_as_the_peers_silence() -> None:
    heart = Heartbeat(BEATS, 0.0)
    until(heart, 9.0)
    assert heart.next_s == 10.0
    assert heart.tick(11.5) == (True, False)  # what has come meanwhile is read in this turn, or not
    assert gone_at(heart) == pytest.approx(11.5 + LATE_BEATS)
    heart = Heartbeat(BEATS, 0.0)
    until(heart, 9.0)
    assert heart.tick(11.5) == (True, False)
    heart.heard(11.5)
    assert gone_at(heart) == pytest.approx(heart.patience_s + 11.5)


def test_silence_of_a_coordinator_is_seen_in_a_tenth_of_its_time() -> None:
    beats = detecting_beats(1.0)
    assert (beats.beat_s, beats.silence_s) == (0.1, 1.0)


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.lists(st.floats(0.0, 1.0), max_size=3)), max_size=200))
def test_nobody_is_gone_who_was_not_silent_while_this_side_was_awake(turns: list[tuple[float, list[float]]]) -> None:
    """Ticks late by anything; between them words at any moments."""
    heart, now_s, awake_s = Heartbeat(BEATS, 0.0), 0.0, 0.0
    for late_s, words in turns:
        due_s = heart.next_s
        for part in sorted(words):
            heart.heard(now_s + part * (due_s - now_s))
            awake_s = (1 - part) * (due_s - now_s)
        if not words:
            awake_s += due_s - now_s
        now_s = due_s + late_s
        _, gone = heart.tick(now_s)
        if gone:
            assert awake_s >= BEATS.silence_s - 1e-6 - len(turns) * LATE_BEATS
        if late_s > ASLEEP_BEATS:
            awake_s = 0.0
        assert BEATS.silence_s <= heart.patience_s <= SILENCE_FACTOR_MAX * BEATS.silence_s
        assert heart.next_s > now_s


@pytest.mark.parametrize("suspected_s", [10.2, 10.9, 11.4, 13.0])
def test_who_is_said_to_be_gone_is_given_up_soon_where_it_is_silent(suspected_s: float) -> None:
    heart = Heartbeat(BEATS, 0.0)
    for second in range(1, 11):
        until(heart, float(second))
        heart.heard(float(second))
    until(heart, suspected_s)
    heart.suspect(suspected_s)
    assert gone_at(heart) == pytest.approx(max(suspected_s, 10.0 + SUSPECTED_BEATS * BEATS.beat_s))


def test_who_is_said_to_be_gone_and_is_heard_is_borne_with_as_before() -> None:
    heart = Heartbeat(BEATS, 0.0)
    heart.suspect(0.5)
    heart.heard(0.9)
    assert gone_at(heart) == pytest.approx(0.9 + BEATS.silence_s)
