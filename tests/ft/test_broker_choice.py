"""Which broker a client tries next: backups first, every one in its turn, a fleet spread over brokers and time."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lexicast.ft.broker_choice import (
    LISTED_FIRST_S,
    LISTED_MOST_S,
    PATIENCE_FIRST_S,
    PATIENCE_MOST_S,
    PAUSE_FIRST_S,
    PAUSE_MOST_S,
    STEADY_S,
    BrokerChoice,
)


def served(broker: str, *backups: str, seed: int = 1) -> BrokerChoice:
    """That of a client which has lost `broker` at 0, after a long time."""
    choice = BrokerChoice(random.Random(seed).uniform)
    choice.answered(broker, -100.0)
    choice.lost(broker, backups, 0.0)
    return choice


def failing(choice: BrokerChoice, brokers: list[str], count: int, now_s: float = 0.0) -> list[str]:
    """The next `count` brokers that it tries, none of which answers."""
    tried = []
    for _ in range(count):
        tried.append(choice.next(brokers, (), now_s))
        choice.failed(tried[-1], now_s)
    return tried


def test_the_local_backup_comes_first_then_the_remote_one_then_any_and_the_lost_one_last() -> None:
    brokers = [f"b{i}" for i in range(9)]
    for seed in range(20):
        tried = failing(served("b3", "b7", "b0", seed=seed), brokers, 9)
        assert tried[:2] == ["b7", "b0"]
        assert tried[-1] == "b3"
        assert sorted(tried) == brokers


@given(st.floats(0.0, 3.0), st.integers(2, 9), st.randoms(use_true_random=False))
def test_the_lost_one_is_last_even_where_all_have_been_lost_before(
    after_s: float, count: int, source: random.Random
) -> None:
    choice, brokers = BrokerChoice(source.uniform), [f"b{i}" for i in range(count)]
    for number, broker in enumerate([*brokers, *brokers]):
        choice.answered(broker, number * after_s)
        choice.lost(broker, (), number * after_s)
        tried = [choice.next(brokers, (), number * after_s) for _ in brokers]
        assert sorted(tried) == brokers
        assert tried[-1] == broker


def test_who_is_on_this_machine_comes_first_where_nobody_stands_in() -> None:
    choice = BrokerChoice()
    brokers = [f"b{i}" for i in range(9)]
    tried = [choice.next(brokers, ("b4", "b5"), 0.0) for _ in range(9)]
    assert sorted(tried[:2]) == ["b4", "b5"]


def test_who_failed_comes_after_the_others_until_its_time_is_over_or_it_answers() -> None:
    choice = served("a", "b")
    brokers = ["a", "b", "c"]
    assert choice.next(brokers, (), 0.0) == "b"
    choice.failed("b", 0.0)
    assert choice.next(brokers, (), 0.1) == "c"
    choice.answered("c", 0.1)
    choice.lost("c", ("b", "a"), 0.2)
    assert set(choice.blacklist(0.2)) == set(brokers)
    assert choice.next(brokers, (), LISTED_FIRST_S + 0.3) == "b"
    choice.answered("b", 0.3)
    assert set(choice.blacklist(0.3)) == {"a", "c"}


def test_a_broker_that_loses_its_clients_at_once_is_tried_less_and_less_often() -> None:
    choice = served("a")
    times = []
    now_s = 0.0
    for _ in range(12):
        choice.answered("b", now_s)
        choice.lost("b", (), now_s + 0.1)
        listed_s = next(at for at in range(1, 1_000) if "b" not in choice.blacklist(now_s + at))
        times.append(listed_s)
        now_s += listed_s
    assert times[0] <= LISTED_FIRST_S + 1
    assert times[-1] > LISTED_MOST_S / 2 - 1
    pauses = [choice.pause_s() for _ in range(9)]
    assert PAUSE_MOST_S / 2 <= pauses[-1] <= PAUSE_MOST_S
    choice.answered("b", now_s)
    choice.lost("b", (), now_s + STEADY_S)
    assert choice.pause_s() == 0.0
    assert "b" not in choice.blacklist(now_s + STEADY_S + LISTED_FIRST_S)


NAMES = st.lists(st.sampled_from([f"b{i}" for i in range(12)]), min_size=1, max_size=12, unique=True)


@given(
    NAMES,
    st.lists(st.sampled_from([f"b{i}" for i in range(14)]), max_size=3),
    st.integers(0, 40),
    st.floats(0.0, 5.0),
    st.randoms(use_true_random=False),
)
def test_every_broker_is_tried_within_two_rounds_of_any_moment(
    brokers: list[str], backups: list[str], before: int, step_s: float, source: random.Random
) -> None:
    """Whoever lives is found, whatever failed before, however long attempts take."""
    choice = BrokerChoice(source.uniform)
    choice.answered("b0", -10.0)
    choice.lost("b0", backups, 0.0)
    now_s = 0.0
    for _ in range(before):
        choice.failed(choice.next(brokers, (), now_s), now_s)
        now_s += step_s
    tried = []
    for _ in range(2 * len(brokers) - 1):
        tried.append(choice.next(brokers, (), now_s))
        choice.failed(tried[-1], now_s)
        now_s += step_s
    assert set(tried) == set(brokers)


@given(NAMES, NAMES, st.integers(0, 12), st.randoms(use_true_random=False))
def test_brokers_that_come_while_a_client_looks_are_tried_before_those_that_failed(
    brokers: list[str], others: list[str], before: int, source: random.Random
) -> None:
    choice = BrokerChoice(source.uniform)
    failed = failing(choice, brokers, min(before, len(brokers)))
    fresh = set(others) - set(failed)
    tried = failing(choice, others, len(fresh))
    assert set(tried) == fresh
    assert set(choice.blacklist(0.0)) <= set(others) | set(failed)


@given(st.integers(1, 60), st.randoms(use_true_random=False))
def test_pauses_and_times_grow_and_are_bounded(attempts: int, source: random.Random) -> None:
    choice = BrokerChoice(source.uniform)
    assert choice.pause_s() == 0.0
    for attempt in range(attempts):
        full_s = min(PAUSE_MOST_S, PAUSE_FIRST_S * 2**attempt)
        assert full_s / 2 <= choice.pause_s() <= full_s
        choice.failed("b", 0.0)
    full_s = min(LISTED_MOST_S, LISTED_FIRST_S * 2 ** (attempts - 1))
    assert choice.blacklist(full_s / 2 - 0.001) == ["b"]
    assert choice.blacklist(full_s) == []


def test_it_goes_on_for_days() -> None:
    choice = served("a")
    for _ in range(100_000):
        choice.failed(choice.next(["a", "b"], (), 0.0), 0.0)
        assert choice.patience_s() <= PATIENCE_MOST_S
        assert choice.pause_s() <= PAUSE_MOST_S
    assert choice.patience_s() == PATIENCE_MOST_S


def test_the_first_round_is_less_patient() -> None:
    choice = served("a")
    seen = []
    for _ in range(9):
        choice.next(["a", "b", "c"], (), 0.0)
        seen.append(choice.patience_s())
    assert seen == [PATIENCE_FIRST_S] * 3 + [2 * PATIENCE_FIRST_S] * 3 + [PATIENCE_MOST_S] * 3
    choice.answered("b", 0.0)
    assert choice.patience_s() == PATIENCE_FIRST_S


def test_a_fleet_without_backups_is_spread_over_the_brokers_that_are_left() -> None:
    brokers = [f"b{i}" for i in range(10)]
    first = Counter(served("b0", seed=seed).next(brokers, (), 0.0) for seed in range(9_000))
    assert first.keys() == set(brokers[1:])
    # 1,000 each in the mean; 150 are five standard deviations.
    assert max(abs(count - 1_000) for count in first.values()) < 150


def test_a_fleet_that_finds_nobody_is_spread_over_time() -> None:
    """Of 1,000 clients that all fail at once no hundredth of a second sees a tenth come for the fifth time."""
    at = Counter[int]()
    for seed in range(1_000):
        choice = served("a", seed=seed)
        at[int(100 * sum([choice.pause_s() for _ in range(5)]))] += 1
    assert max(at.values()) < 100


def test_who_is_not_known_any_more_is_forgotten() -> None:
    choice = served("a")
    failing(choice, [f"b{i}" for i in range(50)], 50)
    choice.next(["c"], (), 0.0)
    assert choice.blacklist(0.0) == []
