"""A member of a SkipCloud: what it says, what it believes, and whom it sends what is routed to."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.errors import PeerError
from lexicast.cluster.skipcloud.identifiers import CloudMember, CloudShape, common_prefix, levels_for, remoteness
from lexicast.cluster.skipcloud.messages import (
    NAME_BYTES_MAX,
    CloudLetter,
    CloudMessage,
    Departure,
    JoinRequest,
    ShuffleAnswer,
    ShuffleRequest,
    Welcome,
    contacts_max,
)
from lexicast.cluster.skipcloud.node import REFUSED_MAX, SkipCloudNode
from lexicast.cluster.skipcloud.view import Contact

SHAPE = CloudShape(2, 2)


def member(name: str, digits: Sequence[int]) -> CloudMember:
    return CloudMember(name, bytes(digits))


A, B, C, D = member("a", (0, 0)), member("b", (0, 1)), member("c", (1, 0)), member("d", (1, 1))


def node(own: CloudMember = A, answer_cycles: int = 1, contacts: Sequence[CloudMember] = ()) -> SkipCloudNode:
    made = SkipCloudNode(SHAPE, own, random.Random(1), answer_cycles)
    if contacts:
        made.received(contacts[0], Welcome(tuple([Contact(each, 0) for each in contacts])))
    return made


def knows(of: SkipCloudNode, other: CloudMember) -> bool:
    return any(other in view.members() for view in of.views)


def least_hops(members: int, base: int) -> int:
    """ceil(log_b N)."""
    hops = 0
    while base**hops < members:
        hops += 1
    return hops


def settled(shape: CloudShape, members: Sequence[CloudMember], seed: int) -> dict[CloudMember, SkipCloudNode]:
    """Members that know of each child some by chance: what shuffles come to."""
    dice = random.Random(seed)
    nodes = {each: SkipCloudNode(shape, each, random.Random(seed)) for each in members}
    for each in nodes.values():
        for view in each.views:
            view.take([Contact(other, 0) for other in dice.sample(members, len(members))], 0)
    return nodes


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 120), st.integers(2, 8), st.integers(1, 7), st.integers(0, 10_000), st.booleans())
def test_the_nearest_cluster_is_reached_in_at_most_log_n_hops(
    count: int, base: int, levels: int, seed: int, hashed: bool
) -> None:
    """SREM, section 3.2: from everybody, to clusters that have members and to those that have none; each hop has a
    digit more in common with where it ends."""
    shape = CloudShape(base, min(levels, levels_for(count, base)), contacts_a_child=1 + seed % 3)
    numbers = range(count)
    digits = [shape.hashed(bytes([n])) if hashed else shape.digits(n % shape.clusters) for n in numbers]
    members = [CloudMember(f"m{n:03}", digits[n]) for n in numbers]
    nodes = settled(shape, members, seed)
    for target in [shape.hashed(b"x%d" % number) for number in range(4)]:
        nearest = min({each.digits for each in members}, key=lambda each: remoteness(each, target, base))
        for source in members:
            at, hops = source, 0
            while (to := nodes[at].next_hop(target)) is not None:
                assert common_prefix(to.digits, nearest) > common_prefix(at.digits, nearest)
                at, hops = to, hops + 1
            assert at.digits == nearest
            assert hops <= shape.levels
            assert hops <= max(1, least_hops(count, base))


def test_algorithm_2_goes_on_while_a_neighbour_is_nearer_and_stops_where_none_is() -> None:
    made = node(A, contacts=[B, C])
    assert made.next_hop(D.digits) == C
    assert made.next_hop(B.digits) == B
    assert made.next_hop(A.digits) is None
    assert node(D, contacts=[A]).next_hop(C.digits) is None, "the cluster is empty: d is nearest of all that are"


def test_levels_take_turns_and_the_oldest_contact_is_asked() -> None:
    made = node(A, contacts=[B, C, D])
    levels = []
    for _ in range(6):
        for to, message in made.tick():
            assert isinstance(message, ShuffleRequest)
            assert message.contacts[0] == Contact(A, 0)
            assert to not in [contact.member for contact in message.contacts]
            levels.append(message.level)
            made.received(to, ShuffleAnswer(message.level, ()))
    assert sorted(levels) == [0, 0, 1, 1], "level 2 is a cluster of one: nobody to ask"
    assert knows(made, B)
    assert knows(made, C)


@pytest.mark.parametrize("cycles", [1, 3])
def test_who_does_not_answer_is_asked_again_then_dropped_and_what_others_heard_before_is_not_believed(
    cycles: int,
) -> None:
    made = node(A, cycles, contacts=[C])
    asked = 0
    while knows(made, C):
        asked += sum([to == C for to, _ in made.tick()])
        assert asked <= cycles
    assert asked == cycles
    assert made.alone
    for _ in range(4):
        made.tick()
    made.received(B, Welcome((Contact(C, 5),)))
    assert not knows(made, C), "C was heard before it fell silent"
    made.received(B, Welcome((Contact(C, 1),)))
    assert knows(made, C), "C has spoken since"


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000))
def test_whatever_is_heard_the_next_hop_is_the_nearest_of_those_that_are_known_then(seed: int) -> None:
    dice, shape = random.Random(seed), CloudShape(2, 3, contacts_a_child=2)
    own, *others = [CloudMember(f"m{number}", shape.hashed(b"%d" % number)) for number in range(20)]
    made = SkipCloudNode(shape, own, random.Random(seed), 2)
    targets = [shape.digits(number) for number in range(shape.clusters)]
    for _ in range(40):
        sender, some = dice.choice(others), tuple([Contact(each, dice.randrange(3)) for each in dice.sample(others, 4)])
        said: list[CloudMessage] = [Welcome(some), ShuffleRequest(1, some), JoinRequest(some[0].member), Departure()]
        match dice.randrange(4):
            case 0:
                made.tick()
            case 1:
                made.unreachable(sender)
            case _:
                made.received(sender, dice.choice([*said, ShuffleAnswer(0, some)]))
        for target in targets:
            far = [remoteness(each.digits, target, shape.base) for each in (own, *sorted(made.contacts()))]
            hop = made.next_hop(target)
            assert min(far) == remoteness((own if hop is None else hop).digits, target, shape.base)
            assert (hop is None) == (min(far) == far[0])


def test_who_speaks_is_believed_at_once() -> None:
    made = node(A, contacts=[B, C])
    made.unreachable(C)
    made.received(C, ShuffleRequest(0, (Contact(C, 0),)))
    assert knows(made, C)


def test_what_is_too_old_is_gone_and_is_not_taken() -> None:
    made = node(A, 10_000, contacts=[C])
    for _ in range(made.age_max):
        assert knows(made, C)
        made.tick()
    made.tick()
    assert not knows(made, C)
    made.received(B, Welcome((Contact(C, made.age_max),)))
    assert not knows(made, C)


def test_a_departure_is_told_to_all_contacts_and_they_believe_it() -> None:
    made, other = node(A, contacts=[B, C]), node(B, contacts=[A, C])
    assert made.leave() == [CloudLetter(B, Departure()), CloudLetter(C, Departure())]
    assert [letter.to for letter in made.leave({C, D})] == sorted([B, C, D])
    assert other.received(A, Departure()) == []
    assert not knows(other, A)
    other.received(C, ShuffleRequest(0, (Contact(C, 0), Contact(A, 1))))
    assert not knows(other, A)


def test_a_join_is_welcomed_and_goes_on_towards_the_new_members_cluster() -> None:
    new = member("n", (1, 1))
    made = node(A, contacts=[C])
    assert node(new).join(A) == [CloudLetter(A, JoinRequest(new))]
    welcome, onwards = made.received(new, JoinRequest(new))
    assert welcome.to == new
    assert isinstance(welcome.message, Welcome)
    assert {contact.member for contact in welcome.message.contacts} == {C}
    assert onwards == CloudLetter(C, JoinRequest(new))
    assert knows(made, new)
    joined = node(new)
    joined.received(A, welcome.message)
    assert knows(joined, A)
    assert knows(joined, C)


def test_empty_places_are_filled_from_other_levels() -> None:
    """Algorithm 1, lines 4 to 6: a contact of a shuffle at level 0 is of the same top cluster."""
    twin = member("twin", (0, 0))
    made = node(A)
    made.received(twin, ShuffleAnswer(0, ()))
    assert [len(view) for view in made.views] == [1, 0, 0]
    made.tick()
    assert [len(view) for view in made.views] == [1, 1, 1]


def test_a_shuffle_answered_gives_the_partners_place_to_what_has_come_and_takes_it_back_where_one_is_left() -> None:
    shape = CloudShape(2, 1, contacts_a_child=1)
    own, partner, other = (member(name, digits) for name, digits in (("o", (0,)), ("p", (1,)), ("q", (1,))))
    for answer, kept in (((Contact(other, 0),), other), ((), partner)):
        made = SkipCloudNode(shape, own, random.Random(3))
        made.received(partner, Welcome(()))
        while not (letters := made.tick()):
            pass
        made.received(partner, ShuffleAnswer(0, answer))
        assert letters[0].to == partner
        assert made.views[0].members() == [kept]


@pytest.mark.parametrize(
    "message",
    [
        ShuffleRequest(3, ()),
        ShuffleAnswer(-1, ()),
        ShuffleRequest(0, tuple([Contact(B, 0)] * (contacts_max(SHAPE) + 1))),
        Welcome((Contact(B, -1),)),
        Welcome((Contact(member("x", (0,)), 0),)),
        JoinRequest(member("x", (0, 2))),
        JoinRequest(member("x" * (NAME_BYTES_MAX + 1), (0, 0))),
    ],
)
def test_what_no_member_says_is_refused_and_changes_nothing(message: CloudMessage) -> None:
    made = node(A, contacts=[C])
    before = [view.contacts(0) for view in made.views]
    with pytest.raises(PeerError):
        made.received(C, message)
    assert [view.contacts(0) for view in made.views] == before


def test_a_sender_of_another_shape_is_refused() -> None:
    with pytest.raises(PeerError, match="2 digits below 2"):
        node(A).received(member("x", (5, 5)), Departure())


def test_no_more_than_so_many_dropped_members_are_remembered() -> None:
    made = node(A)
    for number in range(REFUSED_MAX + 1):
        made.unreachable(member(f"m{number}", (1, 1)))
    made.received(B, Welcome((Contact(member("m0", (1, 1)), 1), Contact(member("m1", (1, 1)), 1))))
    assert knows(made, member("m0", (1, 1)))
    assert not knows(made, member("m1", (1, 1)))
