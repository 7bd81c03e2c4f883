"""Views: places a child, Cyclon's exchange, ages."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.skipcloud.identifiers import CloudMember, CloudShape
from lexicast.cluster.skipcloud.view import ClusterView, Contact

SHAPE = CloudShape(2, 2, contacts_a_child=2, shuffle_contacts=3, cluster_members_max=4)
OWN = CloudMember("own", b"\0\0")
MEMBERS = [CloudMember(f"m{number}", SHAPE.digits(number % 4)) for number in range(16)]
CONTACTS = st.lists(st.builds(Contact, st.sampled_from([OWN, *MEMBERS]), st.integers(0, 9)), max_size=12)


def child_members(view: ClusterView, prefix: bytes) -> list[CloudMember]:
    return [member for member in view.members() if member.digits.startswith(prefix)]


@given(st.integers(0, 2), st.lists(st.tuples(CONTACTS, st.lists(st.sampled_from(MEMBERS))), max_size=8))
def test_a_view_keeps_to_its_cluster_and_to_its_places(
    level: int, taken: list[tuple[list[Contact], list[CloudMember]]]
) -> None:
    view = ClusterView(SHAPE, OWN, level)
    for contacts, sent in taken:
        before = set(view.members())
        view.take(contacts, 10, [member for member in sent if view.concerns(member)])
        assert before - set(view.members()) <= set(sent), "only what was sent may give up its place"
    assert OWN not in view.members()
    assert all(member.digits[:level] == OWN.digits[:level] for member in view.members())
    if level == 2:
        assert len(view) <= 3
    else:
        assert all(len(child_members(view, OWN.digits[:level] + bytes([digit]))) <= 2 for digit in range(2))


@given(CONTACTS, CONTACTS)
def test_of_what_is_known_the_younger_age_counts(first: list[Contact], then: list[Contact]) -> None:
    view = ClusterView(SHAPE, OWN, 0)
    view.take(first, 10)
    known = {contact.member: contact.age for contact in view.contacts(10)}
    view.take(then, 10)
    for member, age in view.contacts(10):
        told = [contact.age for contact in then if contact.member == member]
        assert age == min([known[member], *told] if member in known else told[: len(told)])


@given(CONTACTS, st.sampled_from(MEMBERS), st.integers())
def test_a_sample_has_of_each_child_as_many_as_there_are(
    contacts: list[Contact], without: CloudMember, seed: int
) -> None:
    view = ClusterView(SHAPE, OWN, 0)
    view.take(contacts, 10)
    sample = view.sample(10, random.Random(seed), without)
    left = set(view.contacts(10)) - {contact for contact in view.contacts(10) if contact.member == without}
    assert len(sample) == len(set(sample)) == min(3, len(left))
    assert set(sample) <= left
    children = {contact.member.digits[0] for contact in left}
    assert {contact.member.digits[0] for contact in sample} == children


def test_the_oldest_is_asked_first_and_the_silent_are_forgotten() -> None:
    view = ClusterView(SHAPE, OWN, 0)
    assert view.oldest() is None
    view.take([Contact(MEMBERS[0], 3), Contact(MEMBERS[1], 7), Contact(MEMBERS[2], 5)], 10)
    assert view.oldest() == MEMBERS[1]
    view.drop_older(4)
    assert view.oldest() == MEMBERS[2]
    view.drop(MEMBERS[2])
    assert view.members() == [MEMBERS[0]]
