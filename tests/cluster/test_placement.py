"""Placement: copies beside no other copy, evenly, and changed by nothing but what comes and goes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.leadership import GroupState, Leadership
from lexicast.cluster.placement import Site, balanced, followers, successors, wanted_copies

NAMES = tuple(f"coordinator-{i}" for i in range(6))
# Two coordinators on each of three nodes.
NODES = {name: Site(f"node-{i // 2}") for i, name in enumerate(NAMES)}
# Nodes a and b are at one location, c at another one.
CLUSTERS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from("abc"), min_size=1)
LOCATIONS = {"a": "here", "b": "here", "c": "there"}


def sites_of(nodes: dict[str, str], leaving: str = "") -> dict[str, Site]:
    return {name: Site(node, LOCATIONS[node], node in leaving) for name, node in nodes.items()}


@given(CLUSTERS, st.integers(0, 200), st.integers(0, 7), st.data())
def test_followers_are_as_many_as_wanted_and_at_as_many_places_as_can_be(
    nodes: dict[str, str], group: int, copies: int, data: st.DataObject
) -> None:
    leader, sites = data.draw(st.sampled_from(sorted(nodes))), sites_of(nodes)
    members = (leader, *followers(group, leader, sites, copies))
    assert len(set(members)) == len(members)
    assert set(members) <= set(nodes)
    assert len(members) == min(wanted_copies(copies, sites.values()), len(nodes))
    places = {site.location for site in sites.values()}
    assert len({sites[name].location for name in members}) == min(len(members), len(places))
    if len(places) == 1:
        assert len({nodes[name] for name in members}) == min(len(members), len(set(nodes.values())))


@given(CLUSTERS, st.integers(0, 200), st.integers(0, 4), st.sampled_from("abc"), st.data())
def test_nobody_follows_on_a_node_that_is_leaving_and_a_leader_there_has_one_more_follower(
    nodes: dict[str, str], group: int, copies: int, leaving: str, data: st.DataObject
) -> None:
    leader, sites = data.draw(st.sampled_from(sorted(nodes))), sites_of(nodes, leaving)
    found = followers(group, leader, sites, copies)
    staying = {name for name, site in sites.items() if not site.leaving}
    assert set(found) <= staying - {leader}
    assert len({leader, *found} & staying) == min(wanted_copies(copies, sites.values()), len(staying))


@pytest.mark.parametrize(
    ("copies", "nodes", "wanted"), [(0, "a", 1), (0, "aa", 1), (0, "aab", 2), (1, "ab", 1), (3, "a", 3), (0, "a-b", 1)]
)
def test_copies_are_automatic_where_nothing_is_said(copies: int, nodes: str, wanted: int) -> None:
    """Nodes behind a dash are leaving."""
    stay, _, leave = nodes.partition("-")
    assert wanted_copies(copies, [*map(Site, stay), *[Site(node, leaving=True) for node in leave]]) == wanted


def test_leaders_that_leave_hand_over_whatever_others_have_even_where_those_lead_more() -> None:
    states = shared(4, *NAMES[:2]) | {g: GroupState(1, NAMES[1], NAMES[1:2]) for g in range(10, 20)}
    found = balanced(states, NAMES, 3, leaving=[NAMES[0]])
    assert [(state.leader, state.epoch, state.in_sync) for state in found.values()] == [(NAMES[1], 4, NAMES[:2])] * 3
    assert balanced(shared(4, NAMES[0]), NAMES, 3, leaving=[NAMES[0]]) == {}  # nobody else has anything yet


def test_who_leaves_is_given_nothing_to_lead_but_where_nobody_else_can() -> None:
    assert balanced(shared(9, *NAMES[:3]), NAMES, 9, leaving=NAMES[1:]) == {}
    lost = successors(shared(9, *NAMES[:3]), NAMES[0], NAMES[1:], leaving=[NAMES[1]])
    assert {state.leader for state in lost.values()} == {NAMES[2]}
    alone = successors(shared(9, *NAMES[:2]), NAMES[0], NAMES[1:], leaving=[NAMES[1]])
    assert {state.leader for state in alone.values()} == {NAMES[1]}


def test_copies_are_spread_over_all_that_are_elsewhere() -> None:
    counted = Counter(followers(group, NAMES[0], NODES, 2)[0] for group in range(1_000))
    assert set(counted) == set(NAMES[2:])
    assert max(counted.values()) < 1.3 * min(counted.values())


def test_who_goes_moves_its_own_copies_and_no_others() -> None:
    left = {name: node for name, node in NODES.items() if name != NAMES[5]}
    for group in range(200):
        before, after = (followers(group, NAMES[0], nodes, 2) for nodes in (NODES, left))
        assert after == before or before == (NAMES[5],)


def shared(groups: int, *in_sync: str) -> dict[int, GroupState]:
    return {group: GroupState(3, in_sync[0], in_sync) for group in range(groups)}


def test_leaderships_of_a_lost_coordinator_are_spread_over_those_that_have_the_groups() -> None:
    states = shared(30, *NAMES[:4])
    found = successors(states, NAMES[0], NAMES[1:4])
    assert sorted(found) == list(range(30))
    assert Counter(state.leader for state in found.values()) == dict.fromkeys(NAMES[1:4], 10)
    assert all(state.epoch == 4 and state.in_sync == NAMES[1:4] for state in found.values())


def test_who_leads_much_already_gets_less() -> None:
    states = shared(10, *NAMES[:3]) | {g: GroupState(1, NAMES[1], NAMES[1:2]) for g in range(10, 20)}
    assert {state.leader for state in successors(states, NAMES[0], NAMES[1:3]).values()} == {NAMES[2]}


def test_nobody_succeeds_who_is_lost_too_or_lacks_something() -> None:
    assert successors(shared(4, *NAMES[:2]), NAMES[0], NAMES[2:]) == {}
    assert successors(shared(4, *NAMES[:2]), NAMES[2], NAMES) == {}  # it led nothing


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sets(st.sampled_from(NAMES))), max_size=20), st.data())
def test_every_succession_is_a_change_that_leadership_grants(
    groups: list[tuple[str, set[str]]], data: st.DataObject
) -> None:
    states = {
        number: GroupState(1, leader, (leader, *sorted(others - {leader})))
        for number, (leader, others) in enumerate(groups)
    }
    lost = data.draw(st.sampled_from(NAMES))
    alive = data.draw(st.sets(st.sampled_from(NAMES))) - {lost}
    leadership, found = Leadership(states), successors(states, lost, alive)
    for number, state in found.items():
        assert leadership.change(number, states[number], state)
    for number, state in leadership.states().items():
        able = set(states[number].in_sync) & alive
        assert (state.leader == lost) == (states[number].leader == lost and not able)


MEMBERSHIPS = st.lists(st.lists(st.sampled_from(NAMES), min_size=1, unique=True), max_size=40)


@given(MEMBERSHIPS, st.sets(st.sampled_from(NAMES)), st.integers(1, 5))
def test_balancing_ends_and_every_move_is_one_that_leadership_grants(
    groups: list[list[str]], alive: set[str], most: int
) -> None:
    states = {group: GroupState(1, members[0], tuple(members)) for group, members in enumerate(groups)}
    leadership = Leadership(states)
    for _ in range(len(states) ** 2 + 1):
        moved = balanced(leadership.states(), alive, most)
        assert len(moved) <= most
        for group, state in moved.items():
            before = leadership[group]
            assert {state.leader, before.leader} <= alive
            assert state.in_sync == before.in_sync
            assert leadership.change(group, before, state)
        if not moved:
            break
    else:
        raise AssertionError("it goes on for ever")
    load = Counter(state.leader for state in leadership.states().values())
    for state in leadership.states().values():
        able = alive & set(state.in_sync)
        assert state.leader not in able or load[state.leader] <= min(load[name] for name in able) + 1


def test_leaderships_come_back_evenly() -> None:
    states, moves = shared(10, *NAMES[:2]), 0
    while moved := balanced(states, NAMES, 3):
        states |= moved
        moves += len(moved)
    assert Counter(state.leader for state in states.values()) == {NAMES[0]: 5, NAMES[1]: 5}
    assert moves == 5
