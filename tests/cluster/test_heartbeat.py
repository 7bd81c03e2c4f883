"""When a silent peer is taken for gone: after `silence_s`, later where lateness is usual, never by who slept itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.protocol.heartbeat import SILENCE_FACTOR_MAX, Beats, Heartbeat

BEATS = Beats(beat_s=1.0, silence_s=10.0)


def gone_after(heart: Heartbeat, now_s: float) -> float:
    """Seconds of silence until the peer is gone."""
    start_s = now_s
    while not heart.tick(now_s := now_s + BEATS.beat_s, heard=False):
        assert now_s < start_s + 1_000
    return now_s - start_s


def test_a_prompt_peer_is_gone_after_the_silence_that_is_allowed() -> None:
    heart = Heartbeat(BEATS, 0.0)
    assert not any(heart.tick(float(second), heard=True) for second in range(1, 100))
    assert gone_after(heart, 99.0) == BEATS.silence_s + 1


def test_a_peer_that_is_often_late_is_borne_with_for_longer() -> None:
    heart = Heartbeat(BEATS, 0.0)
    for second in range(1, 193):
        assert not heart.tick(float(second), heard=second % 8 == 0)
    assert heart.patience_s > BEATS.silence_s + 7
    assert gone_after(heart, 192.0) > BEATS.silence_s + 5


def test_who_slept_does_not_judge() -> None:
    heart = Heartbeat(BEATS, 0.0)
    assert not heart.tick(3_600.0, heard=False)  # this process was stopped for an hour
    assert gone_after(heart, 3_600.0) == BEATS.silence_s + 1


@given(st.lists(st.tuples(st.floats(0.5, 30.0), st.booleans()), max_size=200))
def test_patience_stays_within_its_bounds(ticks: list[tuple[float, bool]]) -> None:
    heart, now_s = Heartbeat(BEATS, 0.0), 0.0
    for step_s, heard in ticks:
        now_s += step_s
        gone = heart.tick(now_s, heard)
        assert not (gone and heard)
        assert BEATS.silence_s <= heart.patience_s <= SILENCE_FACTOR_MAX * BEATS.silence_s
