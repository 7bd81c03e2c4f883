"""The policy of positions: when, which first, never more than the bound, nobody for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import UsageError
from lexicast.ft.replication_policy import PositionUpdate, ReplicationPace, ReplicationPolicy

KEYS = st.sampled_from("abcdefghij")
DELIVERIES = st.lists(st.tuples(KEYS, st.integers(0, 100)), max_size=30)
PACES = st.builds(
    ReplicationPace,
    period_s=st.none() | st.floats(0.5, 5),
    threshold_bytes=st.integers(1, 200),
    positions_max=st.integers(2, 6),
)


def policy(
    *, period_s: float | None = None, threshold_bytes: int | None = None, positions_max: int = 1_000
) -> ReplicationPolicy[str, int]:
    """From second 0 on."""
    return ReplicationPolicy(ReplicationPace(period_s, threshold_bytes, positions_max), 0.0)


def keys(updates: list[PositionUpdate[str, int]]) -> str:
    """Those that were sent, in order."""
    return "".join([update.key for update in updates])


def test_a_period_sends_everything_that_is_unsaved_and_then_nothing() -> None:
    made = policy(period_s=10.0)
    made.delivered("a", 1, 5)
    made.delivered("b", 1, 7)
    made.delivered("a", 2, 5)
    assert made.turn(9.9) == []
    assert made.turn(10.0) == [PositionUpdate("a", 2), PositionUpdate("b", 1)]
    assert made.turn(25.0) == []


def test_what_comes_during_a_round_waits_for_the_next_one() -> None:
    made = policy(period_s=10.0)
    made.delivered("a", 1, 5)
    assert keys(made.turn(10.0)) == "a"
    made.delivered("b", 1, 5)
    assert made.turn(15.0) == []
    assert keys(made.turn(20.0)) == "b"


def test_a_round_goes_on_over_as_many_turns_as_it_needs() -> None:
    made = policy(period_s=10.0, positions_max=4)
    for number, key in enumerate("abcdefghij"):
        made.delivered(key, 1, 10 + number)
    sent = [keys(made.turn(10.0 + turn)) for turn in range(4)]
    # The one that has waited longest goes along; in the order of what is unsaved.
    assert sent == ["jiha", "gfeb", "dc", ""]


def test_a_threshold_sends_the_most_unsaved_until_half_of_it_is_left() -> None:
    made = policy(threshold_bytes=100)
    for key, volume in (("a", 1), ("b", 60), ("c", 30), ("d", 9)):
        made.delivered(key, 1, volume)
    assert made.turn(0.0) == []  # 100 is not more than 100
    made.delivered("d", 2, 1)
    assert keys(made.turn(0.0)) == "ba"
    assert made.turn(1.0) == []


def test_what_is_under_way_is_unsaved_until_it_is_confirmed() -> None:
    made = policy(period_s=1.0)
    made.delivered("a", 1, 5)
    sent = made.turn(1.0)
    assert (made.unsaved_bytes, made.waiting) == (5, 0)
    made.delivered("a", 2, 3)
    newer = made.turn(2.0)
    made.confirmed(sent)  # an older position: what is behind the newer one is not known to be there
    assert made.unsaved_bytes == 8
    made.confirmed(newer)
    made.confirmed(newer)
    assert made.unsaved_bytes == 0


def test_a_new_link_gets_what_was_not_confirmed_at_once() -> None:
    made = policy(period_s=10.0)
    for key in "ab":
        made.delivered(key, 1, 5)
    made.turn(10.0)
    made.delivered("b", 2, 1)
    made.delivered("c", 1, 2)
    made.unconfirmed()
    assert made.unsaved_bytes == 13
    assert made.turn(10.1) == [PositionUpdate("b", 2), PositionUpdate("a", 1), PositionUpdate("c", 1)]


def test_what_nobody_needs_any_more_is_not_sent() -> None:
    made = policy(period_s=10.0)
    made.delivered("a", 1, 5)
    made.turn(10.0)
    made.delivered("a", 2, 5)
    made.delivered("b", 1, 5)
    made.forgotten("a")
    made.forgotten("z")
    assert made.unsaved_bytes == 5
    assert keys(made.turn(20.0)) == "b"


@given(PACES, st.lists(st.tuples(DELIVERIES, st.floats(0, 3))))
def test_a_turn_is_never_beyond_the_bound_and_the_most_unsaved_go_first(
    pace: ReplicationPace, turns: list[tuple[list[tuple[str, int]], float]]
) -> None:
    made = ReplicationPolicy[str, int](pace, 0.0)
    waiting: dict[str, int] = {}
    now_s, number = 0.0, 0
    for deliveries, later_s in turns:
        for key, volume in deliveries:
            number += 1
            made.delivered(key, number, volume)
            waiting[key] = waiting.get(key, 0) + volume
        now_s += later_s
        sent = made.turn(now_s)
        made.confirmed(sent)
        volumes = [waiting[update.key] for update in sent]
        assert len(sent) <= pace.positions_max
        assert volumes == sorted(volumes, reverse=True)
        aged = max(1, len(sent) // 4) if sent else 0
        rest = {key: volume for key, volume in waiting.items() if key not in keys(sent)}
        # All but those that went along for their age have as much unsaved as anybody who was left behind.
        assert sum([volume < max(rest.values(), default=0) for volume in volumes]) <= aged
        waiting = rest
        assert made.unsaved_bytes == sum(waiting.values())


@given(PACES, DELIVERIES)
def test_nothing_is_lost_and_the_threshold_holds(pace: ReplicationPace, deliveries: list[tuple[str, int]]) -> None:
    """Given turns enough, what is unsaved is below the threshold; with a period, nothing is."""
    made = ReplicationPolicy[str, int](pace, 0.0)
    newest = {}
    for number, (key, volume) in enumerate(deliveries):
        made.delivered(key, number, volume)
        newest[key] = number
    found: dict[str, int] = {}
    for turn in range(20):
        sent = made.turn(float(turn))
        made.confirmed(sent)
        found |= dict(sent)
    assert pace.threshold_bytes is not None
    assert made.unsaved_bytes <= pace.threshold_bytes
    assert found.items() <= newest.items()
    if pace.period_s is not None:
        assert (found, made.unsaved_bytes) == (newest, 0)


@given(st.integers(2, 8), st.booleans())
def test_nobody_starves_however_much_arrives(positions_max: int, periodic: bool) -> None:
    """Forty keys that have more unsaved each time, and one that had a byte once."""
    made = ReplicationPolicy[str, int](
        ReplicationPace(1.0 if periodic else None, None if periodic else 10, positions_max), 0.0
    )
    made.delivered("small", 1, 1)
    for turn in range(1, 50):
        for number in range(40):
            made.delivered(f"large-{number}", turn, 1_000)
        if "small" in [update.key for update in made.turn(float(turn))]:
            return
    raise AssertionError("it was never sent")


@pytest.mark.parametrize(
    ("period_s", "threshold_bytes", "positions_max"),
    [(None, None, 10), (0.0, None, 10), (None, 0, 10), (-1.0, 5, 10), (1.0, None, 1)],
)
def test_a_pace_that_makes_no_sense_is_refused(
    period_s: float | None, threshold_bytes: int | None, positions_max: int
) -> None:
    with pytest.raises(UsageError):
        policy(period_s=period_s, threshold_bytes=threshold_bytes, positions_max=positions_max)
