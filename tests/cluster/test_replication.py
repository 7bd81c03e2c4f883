"""Where two logs agree, and what a follower takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import StaleEpochError, UsageError
from lexicast.cluster.replication import Followed, FollowerProgress, Lateness, LogEnd, Phase, common_last, sequenced_end

# A history: of each epoch, how many offsets its leader gave, and how many of them a member had when it was replaced.
HISTORY = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=6)
GAP = 100


def test_logs_without_an_epoch_in_common_agree_on_nothing() -> None:
    assert common_last(LogEnd(((1, 0, -1),), 5, 6), LogEnd((), -1, 0)) == -1
    assert common_last(LogEnd(((1, 0, -1),), 5, 6), LogEnd(((2, 0, -1),), 5, 6)) == -1


def test_a_deposed_leaders_tail_is_not_in_common() -> None:
    ours = LogEnd(((1, 0, -1), (2, 110, 9)), 115, 110)
    theirs = LogEnd(((1, 0, -1),), 12, 10)
    assert common_last(ours, theirs) == 9


def test_epochs_that_a_log_has_not_reached_count_for_nothing() -> None:
    ours = LogEnd(((1, 0, -1), (2, 110, 9)), 115, 110)
    installed = LogEnd(((1, 0, -1), (2, 110, 9)), 4, 5)
    assert common_last(ours, installed) == 4


@given(history=HISTORY, behind=st.integers(0, 6))
def test_where_two_logs_agree_is_the_end_of_what_both_have(history: list[tuple[int, int]], behind: int) -> None:
    """One leader after the other; the follower has stopped after some epochs, in the middle of one."""
    log: list[tuple[int, int]] = []
    starts: list[tuple[int, int, int]] = []
    other: list[tuple[int, int]] = []
    other_starts: list[tuple[int, int, int]] = []
    for epoch, (given_, had) in enumerate(history, 1):
        last = log[-1][1] if log else -1
        first = 0 if last < 0 else last + GAP
        starts.append((epoch, first, last))
        offsets = [(epoch, first + at) for at in range(given_ + 1)]
        if epoch <= behind:
            other_starts.append((epoch, first, last))
            # The last one that it has heard may have given it more than was kept.
            other += offsets if epoch < behind else [(epoch, first + at) for at in range(max(1, had))]
        log += offsets
    ours = LogEnd(tuple(starts), log[-1][1], 0)
    theirs = LogEnd(tuple(other_starts), other[-1][1] if other else -1, 0)
    both = set(log) & set(other)
    assert common_last(ours, theirs) == max([offset for _, offset in both], default=-1)
    assert common_last(theirs, ours) == common_last(ours, theirs)


def followed() -> Followed:
    group = Followed(3, 9)
    group.begin(3, 9)
    return group


def test_blocks_are_taken_in_order_from_the_promised_epoch_alone() -> None:
    group = followed()
    group.take(3, 9, [(2, 10, 11), (3, 111, 115)])
    assert group.last == 115
    for epoch, previous, spans in [
        (2, 115, [(2, 116, 116)]),
        (4, 115, [(4, 116, 116)]),
    ]:
        with pytest.raises(StaleEpochError):
            group.take(epoch, previous, spans)
    for previous, spans in [
        (114, [(3, 116, 116)]),  # a hole, or twice
        (115, [(3, 115, 116)]),
        (115, [(3, 117, 116)]),
        (115, [(4, 116, 116)]),  # of an epoch after its leader's
    ]:
        with pytest.raises(UsageError):
            group.take(3, previous, spans)
    assert group.last == 115


def test_the_end_of_a_leaders_log_is_taken_behind_what_is_here_alone() -> None:
    group = Followed(3, 9)
    group.begin(3, 9)
    group.ends(3, 9, 40)
    assert group.last == 40
    group.ends(3, 40, 12)  # nothing new
    assert group.last == 40
    with pytest.raises(UsageError):
        group.ends(3, 9, 50)
    with pytest.raises(StaleEpochError):
        group.ends(2, 40, 50)
    progress = FollowerProgress()
    progress.begun(9)
    assert not progress.has(11)
    progress.ended(40)
    assert (progress.sent, progress.durable) == (40, 41)


def test_a_promise_never_goes_back_and_ends_what_the_leader_before_ships() -> None:
    group = followed()
    group.promise(4)
    with pytest.raises(StaleEpochError):
        group.take(3, 9, [(3, 10, 10)])
    with pytest.raises(StaleEpochError):
        group.promise(3)
    with pytest.raises(StaleEpochError):
        group.begin(3, 9)
    with pytest.raises(UsageError, match="before 12"):
        group.begin(4, 12)
    group.begin(4, 7)
    group.take(4, 7, [(4, 20, 20)])
    assert (group.epoch, group.last) == (4, 20)


def test_progress_counts_what_was_sent_and_said() -> None:
    progress = FollowerProgress()
    assert not progress.has(1)
    progress.begun(9)
    assert (progress.phase, progress.sent, progress.durable) == (Phase.BEHIND, 9, 10)
    progress.sent = 20
    assert progress.has(15)
    assert not progress.has(15)
    assert not progress.has(22)
    assert not progress.caught_up(15)
    progress.phase = Phase.LIVE
    assert progress.caught_up(15)
    assert not progress.caught_up(16)
    progress.asked()
    assert not progress.has(16)


@pytest.mark.parametrize("beginning_is_durable", [False, True])
def test_what_a_quicker_follower_has_of_its_leaders_own_epoch_is_not_taken_back(beginning_is_durable: bool) -> None:
    """The leader counts it: cut off, it would be acknowledged when the leader's own disk is done."""
    before = ((1, 0, -1),)
    epoch = (2, 100, 7)
    theirs = LogEnd((*before, epoch), 108, 8)
    durable = LogEnd((*before, epoch), 100, 8) if beginning_is_durable else LogEnd(before, 7, 8)
    assert common_last(durable, theirs) < 108
    assert common_last(sequenced_end(durable, 2, 100, 112), theirs) == 108
    # A deposed leader's tail still goes, and so does what lies beyond all that was sequenced.
    deposed = LogEnd(before, 9, 8)
    assert common_last(sequenced_end(durable, 2, 100, 112), deposed) == 7
    assert common_last(sequenced_end(durable, 2, 100, 104), theirs) == 104


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=60))
def test_whatever_is_owed_for_some_time_is_seen_to_be_owed_for_half_of_it(steps: list[tuple[int, int]]) -> None:
    """Each step of a second (offsets sent, offsets stored)."""
    lateness, sent_at, sent, durable, most_s = Lateness(), dict[int, int](), -1, 0, 0.0
    for now_s, (more, stored) in enumerate(steps):
        for _ in range(more):
            sent += 1
            sent_at[sent] = now_s
        durable = min(durable + stored, sent + 1)
        told_s = lateness.look(sent, durable, now_s)
        true_s = now_s - sent_at[durable] if durable <= sent else 0
        most_s = max(most_s, told_s)
        assert told_s <= true_s <= 2 * most_s + 1
