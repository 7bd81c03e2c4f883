"""Stories of the simulator that hold, and breaks made on purpose, which they notice.

`python -m lexicast.testing.simulate --seed N --transcript` shows one, `--seeds 2000` plays many more.
"""

from __future__ import annotations

import pytest

from lexicast.actors.testing.simulator.breaks import BREAKS
from lexicast.actors.testing.simulator.running import seeds_until_caught, violation_of
from lexicast.actors.testing.simulator.scene import CONTENT_FROM, SHARES_FROM

SEEDS_A_TEST = 10
TESTS = 4
# How many stories, from the first on, it takes until each is noticed.
CAUGHT_AFTER = {
    "acknowledge-early": 4,
    "skip-epoch-check": 57,
    "apply-early": 12,
    "forget-promise": 245,
    "count-joiner-early": 101,
    "deliver-uncommitted": 4,
    "vouch-for-unknown": 4,
    "pass-over-gaps": 20,
    "ask-nobody": 1,
    "forget-returned": 4,
    "place-beyond-open": 13,
    "forget-leaving": 1,
    "deal-twice": 1,
    "deal-backwards": 1,
    "wander": 1,
}


@pytest.mark.parametrize("first", range(0, TESTS * SEEDS_A_TEST, SEEDS_A_TEST))
def test_the_guarantees_hold_in_every_story(first: int) -> None:
    found = [violation_of(seed) for seed in range(first, first + SEEDS_A_TEST)]
    assert found == [None] * SEEDS_A_TEST


@pytest.mark.parametrize("first", range(CONTENT_FROM, CONTENT_FROM + 2 * SEEDS_A_TEST, SEEDS_A_TEST))
def test_the_guarantees_hold_with_content_subscriptions_and_matchers(first: int) -> None:
    found = [violation_of(seed) for seed in range(first, first + SEEDS_A_TEST)]
    assert found == [None] * SEEDS_A_TEST


@pytest.mark.parametrize("first", range(SHARES_FROM, SHARES_FROM + 2 * SEEDS_A_TEST, SEEDS_A_TEST))
def test_the_guarantees_hold_with_shared_subscriptions(first: int) -> None:
    found = [violation_of(seed) for seed in range(first, first + SEEDS_A_TEST)]
    assert found == [None] * SEEDS_A_TEST


# A will that a full disk refused as its session was taken over; an older leader that was followed by who was about to
# lead; retained publications of a group that moved as they were asked for, and behind what a full disk had refused; a
# session whose home died as it was taken over, and one whose home had been there before; what was delivered and was
# not in the log yet when it was asked for; readers at a broker whose coordinator was cut off; a copy that came back as
# it was dropped; entries behind others that moved; sessions let go as their broker died; a follower that was quicker
# than its leader; a session that was taken over while it was sent what is retained; a will due then, whose broker died;
# followers whose tables followed from what a leader had found in its log, and the next one had not; a session whose
# home died as it gave it, and whose client did not wait for the answer; one that was asked for again by a connection
# whose question never came; a follower that came as its leader's disk refused a block; an epoch whose beginning a full
# disk refused, begun again when it had room; QoS 2 that a broker which had been cut off brought when another one had
# completed it; a session whose broker told how far it was, and died, when it had handed that one over and its home had
# not written it; a session that a full disk refused to save, and its will with it; QoS 2 that was stored, sent again
# and refused since the disk had become full, whose id then meant something else; a snapshot of tables that had not
# followed as far as its taker's had; QoS 2 of a connection between two others, of which the group had only a release;
# sessions that return to a broker of several coordinators and share what these answer.
@pytest.mark.parametrize(
    "seed",
    [
        26,
        71,
        5118,
        6153,
        221,
        20034,
        80075,
        90260,
        90701,
        200005,
        300558,
        300872,
        400214,
        401261,
        500739,
        500647,
        600471,
        701433,
        900385,
        920993,
        920552,
        921514,
        940009,
        940852,
        950191,
        951219,
        920186,
        921281,
        921297,
        920343,
    ],
)
def test_stories_that_once_broke_a_guarantee_hold(seed: int) -> None:
    assert violation_of(seed) is None


def test_every_break_is_known() -> None:
    assert sorted(CAUGHT_AFTER) == sorted(BREAKS)


@pytest.mark.parametrize("name", CAUGHT_AFTER)
def test_breaks_made_on_purpose_are_noticed(name: str) -> None:
    most = CAUGHT_AFTER[name]
    seeds, _ = seeds_until_caught(name, max(0, most - 5), 5, lambda at: None)
    assert seeds is not None, f"{name} is not noticed by the stories up to {most} any more"
