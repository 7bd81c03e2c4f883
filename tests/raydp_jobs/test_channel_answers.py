"""What a subscription has been told, and who has the lease: the pure parts of channels that fail over."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.positions import topic_group
from lexicast.raydp_jobs.channels.answers import (
    PENDING_BYTES,
    ROW_BYTES_MAX,
    ROWS_A_MESSAGE,
    Round,
    Told,
    decided,
    new_life,
    state_topic,
    told_topic,
    unpack_round,
    unpack_told,
)
from lexicast.raydp_jobs.channels.definitions import channel_topic
from lexicast.raydp_jobs.channels.lease import (
    SALT_BITS,
    TAKE_OVER_S,
    Lease,
    LeaseWatch,
    fence_topics,
    unpack_lease,
)

NOW = "2026-05-01T12:00:00.000+00:00"


def step(before: Told, *ids: int, period: float = 5.0) -> Told:
    """The state that follows; the same one where none does."""
    return [before, *decided(before, [{"id": each} for each in ids], before.round + 1, period, NOW)][-1]


def ids(messages: tuple[bytes, ...]) -> list[int]:
    return [row["id"] for message in messages for row in json.loads(message)["rows"]]


def test_only_new_rows_are_told() -> None:
    first = step(new_life(), 1, 2)
    assert ids(first.pending) == [1, 2]
    second = step(first, 2, 3)
    assert ids(second.pending) == [3]
    assert ids(step(second, 1, 3).pending) == [1], "what was gone and is there again is new"


def test_nothing_new_and_nothing_gone_is_no_new_state() -> None:
    first = step(new_life(), 1, 2)
    assert list(decided(first, [{"id": 2}, {"id": 1}], 2, 10.0, NOW)) == []
    gone = step(first, 1)
    assert (gone.pending, gone.number, gone.round, len(gone.rows)) == ((), 1, 2, 1)


def test_each_message_has_a_name_of_its_own() -> None:
    told = step(new_life(), *range(ROWS_A_MESSAGE + 1))
    names = [json.loads(message)["answer"] for message in told.pending]
    assert names == [f"{told.life}.1", f"{told.life}.2"]
    assert json.loads(step(told, 7, 10_000).pending[0])["answer"] == f"{told.life}.3"
    assert new_life().life != new_life().life


@given(st.integers(0, 8), st.integers(0, 8))
def test_what_has_not_been_published_is_told_by_the_last_message(before: int, published: int) -> None:
    told = step(Told("0a", number=before), *range(8 * ROWS_A_MESSAGE))
    published = min(published, len(told.pending))
    last = told.pending[published - 1] if published else json.dumps({"answer": f"0a.{before}"}).encode()
    assert told.unpublished(last) == told.pending[published:]


def test_what_others_published_says_nothing_of_what_this_life_has() -> None:
    told = step(new_life(), 1)
    for last in (None, b"", b"[]", b'{"answer": 5}', b'{"answer": "ff.9"}', f'{{"answer": "{told.life}.x"}}'.encode()):
        assert told.unpublished(last) == told.pending


def test_an_answer_that_is_too_long_becomes_several_states() -> None:
    rows: list[dict[str, Any]] = [{"id": at, "text": "x" * 10_000} for at in range(300)]
    before = Told("0a", period=0.0)
    states = list(decided(before, rows, 1, 5.0, NOW))
    assert len(states) > 2
    assert all(sum(map(len, state.pending)) <= PENDING_BYTES + 1_000 for state in states)
    assert [at for state in states for at in ids(state.pending)] == list(range(300))
    assert [state.period for state in states] == [0.0] * (len(states) - 1) + [5.0], "the last one ends the period"
    # interrupted after any of them, whoever goes on tells the rest
    for done, state in enumerate(states):
        rest = list(decided(state, rows, 1, 5.0, NOW))
        assert [at for each in rest for at in ids(each.pending)] == [
            at for each in states[done + 1 :] for at in ids(each.pending)
        ]


def test_a_row_that_is_too_long_is_left_out() -> None:
    rows: list[dict[str, Any]] = [{"id": 1, "text": "x" * ROW_BYTES_MAX}, {"id": 2}]
    (told,) = decided(new_life(), rows, 1, 5.0, NOW)
    assert ids(told.pending) == [2]
    assert list(decided(told, rows, 2, 10.0, NOW)) == []


@given(st.integers(0, 2**40), st.floats(0, 2**40), st.sets(st.binary(min_size=8, max_size=8)), st.lists(st.binary()))
def test_a_state_comes_back(number: int, period: float, rows: set[bytes], pending: list[bytes]) -> None:
    told = Told("0a1b", number, number + 1, period, frozenset(rows), tuple(pending))
    assert unpack_told(told.pack()) == told
    assert unpack_told(told.pack()[:-1]) is None
    assert unpack_told(b"") is None
    last = Round(number, period, NOW, "host:1", 3, 4)
    assert unpack_round(last.pack()) == last
    assert unpack_round(b"") is unpack_round(b"[]") is unpack_round(b'{"number": "x"}') is None


def test_states_have_topics_of_their_own() -> None:
    topic = channel_topic("Near", {"user": "ann/b"})
    assert state_topic(topic) == "$channel-state/Near/user=ann%2Fb"
    assert told_topic(state_topic(topic)) == topic


# The lease


def test_who_is_silent_is_followed() -> None:
    watch = LeaseWatch()
    assert watch.open_in_s(100.0) == 0, "nobody answers"
    watch.heard(Lease("a:1", 5), 100.0)
    assert watch.open_in_s(101.0) == TAKE_OVER_S - 1
    watch.heard(Lease("a:1", 5), 102.0)
    assert watch.open_in_s(102.0 + TAKE_OVER_S) == 0


def test_who_ends_by_itself_is_followed_at_once() -> None:
    watch = LeaseWatch()
    watch.heard(Lease("a:1", 5), 100.0)
    watch.heard(Lease("", 5), 100.5)
    assert watch.open_in_s(100.5) == 0
    assert watch.next_term(0.0, 0) == 6, "its term is not forgotten"


def test_a_lower_term_counts_for_nothing() -> None:
    watch = LeaseWatch()
    watch.heard(Lease("b:1", 9), 100.0)
    watch.heard(Lease("a:1", 5), 100.0 + TAKE_OVER_S)
    watch.heard(Lease("", 5), 100.0 + TAKE_OVER_S)
    assert watch.highest == Lease("b:1", 9)
    assert watch.open_in_s(100.0 + TAKE_OVER_S) == 0


@given(st.integers(0, 2**50), st.floats(0, 2**31), st.integers(0, 2**SALT_BITS - 1))
def test_a_term_is_higher_than_all_that_were_heard_of(heard: int, clock_s: float, salt: int) -> None:
    watch = LeaseWatch()
    watch.heard(Lease("a:1", heard), 0.0)
    term = watch.next_term(clock_s, salt)
    assert heard < term < 2**62
    assert term >= int(clock_s) << SALT_BITS


def test_a_lease_comes_back() -> None:
    assert unpack_lease(Lease("a:1", 7).pack()) == Lease("a:1", 7)
    for garbage in (b"", b"{", b"[]", b"{}", b'{"runner": 1, "term": 2}', b'{"runner": "a", "term": -1}'):
        assert unpack_lease(garbage) is None


def test_each_group_has_a_fence() -> None:
    for groups in (1, 7, 100):
        topics = fence_topics(groups)
        assert sorted(topic_group(topic.encode(), groups) for topic in topics) == list(range(groups))


def test_a_state_with_all_that_may_be_in_it_is_one_payload() -> None:
    digests = frozenset([at.to_bytes(8, "big") for at in range(100_000)])
    told = replace(step(new_life(), 1), rows=digests, pending=(b"x" * PENDING_BYTES,))
    assert len(told.pack()) < 4 * 1024 * 1024
