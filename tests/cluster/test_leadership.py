"""Leadership by compare-and-set: the invariants I1 to I4 of `cluster.leadership`, over random histories."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import StaleEpochError, UsageError
from lexicast.cluster.leadership import GroupState, Leadership, assign

NAMES = ("coordinator-0", "coordinator-1", "coordinator-2")


def test_homes_are_index_mod_n_over_sorted_names_whatever_their_order() -> None:
    assert assign(5, reversed(NAMES)) == {0: NAMES[0], 1: NAMES[1], 2: NAMES[2], 3: NAMES[0], 4: NAMES[1]}


@pytest.mark.parametrize(("groups", "names"), [(0, NAMES), (10_001, NAMES), (3, ())])
def test_a_cluster_without_groups_or_coordinators_is_refused(groups: int, names: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        assign(groups, names)


def test_every_opening_takes_a_new_epoch_beyond_what_the_store_knows() -> None:
    leadership = Leadership.found(4, NAMES[:2])
    assert {g: s.epoch for g, s in leadership.open(NAMES[0], {}).items()} == {0: 1, 2: 1}
    assert {g: s.epoch for g, s in leadership.open(NAMES[0], {0: 7, 1: 9}).items()} == {0: 8, 2: 2}
    assert leadership[1].epoch == 0  # what it only follows is not opened


def test_opening_with_an_unknown_group_changes_nothing() -> None:
    leadership = Leadership.found(2, NAMES[:1])
    with pytest.raises(UsageError, match="topic group 5"):
        leadership.open(NAMES[0], {5: 1})
    assert leadership[0].epoch == 0


def test_a_lost_leader_is_replaced_and_its_late_change_is_refused() -> None:
    leadership = Leadership.found(1, NAMES[:1])
    first = leadership.open(NAMES[0], {})[0]
    both = first._replace(in_sync=NAMES[:2])
    assert leadership.change(0, first, both)
    successor = GroupState(both.epoch + 1, NAMES[1], NAMES[1:2])
    assert leadership.change(0, both, successor)
    assert not leadership.change(0, both, both._replace(in_sync=NAMES[:1]))  # the deposed leader drops its follower
    assert leadership.change(0, both, successor)  # the same change again: its answer was lost
    assert leadership[0] == successor


@pytest.mark.parametrize(
    ("new", "error"),
    [
        (GroupState(4, NAMES[0], NAMES[:2]), StaleEpochError),
        (GroupState(6, NAMES[2], NAMES), UsageError),
        (GroupState(5, NAMES[1], NAMES[:2]), UsageError),
        (GroupState(6, NAMES[1], NAMES[:1]), UsageError),
        (GroupState(6, NAMES[0], (NAMES[0], NAMES[0])), UsageError),
    ],
    ids=["epoch back", "leader from outside", "new leader in the old epoch", "leader not in sync", "member twice"],
)
def test_a_change_that_breaks_an_invariant_is_refused(new: GroupState, error: type[Exception]) -> None:
    old = GroupState(5, NAMES[0], NAMES[:2])
    leadership = Leadership({0: old})
    with pytest.raises(error):
        leadership.change(0, old, new)
    assert leadership[0] == old


STATES = st.builds(
    GroupState,
    st.integers(0, 6),
    st.sampled_from(NAMES),
    st.lists(st.sampled_from(NAMES), max_size=3).map(tuple),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.sampled_from(NAMES), st.dictionaries(st.integers(0, 1), st.integers(0, 6))),
        st.tuples(st.just("change"), STATES, STATES),
        st.tuples(st.just("change from what holds"), st.none(), STATES),
    ),
    max_size=30,
)


@given(STEPS)
def test_no_history_takes_an_epoch_back_or_gives_one_to_two_leaders(steps: list[tuple[str, Any, Any]]) -> None:
    leadership = Leadership({0: GroupState(0, NAMES[0], NAMES[:2]), 1: GroupState(0, NAMES[1], NAMES)})
    led: dict[tuple[int, int], str] = {}
    for what, first, second in steps:
        before = leadership.states()
        try:
            if what == "open":
                leadership.open(first, second)
            else:
                expected = first if what == "change" else before[0]
                changed = leadership.change(0, expected, second)
                assert changed == (leadership[0] == second)
                assert changed or leadership.states() == before  # I4
        except (UsageError, StaleEpochError):
            assert leadership.states() == before
        for group, state in leadership.states().items():
            assert state.epoch >= before[group].epoch  # I1
            assert led.setdefault((group, state.epoch), state.leader) == state.leader  # I2
            assert state.leader in state.in_sync  # I3
