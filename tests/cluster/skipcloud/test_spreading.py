"""What is spread along prefixes reaches everybody, once, by N - 1 messages; and who lacks it is found."""

from __future__ import annotations

import random

import pytest

from lexicast.cluster.skipcloud.identifiers import CloudMember, CloudShape, levels_for
from lexicast.cluster.skipcloud.node import SkipCloudNode
from lexicast.cluster.skipcloud.spreading import Spreading
from lexicast.cluster.skipcloud.view import Contact


def settled(shape: CloudShape, count: int, seed: int) -> dict[CloudMember, Spreading]:
    """Members that know of each child some by chance."""
    dice = random.Random(seed)
    members = [CloudMember(f"m{number}", shape.hashed(b"%d" % number)) for number in range(count)]
    found = {}
    for each in members:
        node = SkipCloudNode(shape, each, random.Random(seed))
        for view in node.views:
            view.take([Contact(other, 0) for other in dice.sample(members, count)], 0)
        found[each] = Spreading(node)
    return found


@pytest.mark.parametrize(("count", "base"), [(1, 2), (2, 2), (30, 2), (60, 4), (200, 8)])
def test_everybody_gets_it_once_in_as_many_steps_as_there_are_levels(count: int, base: int) -> None:
    shape = CloudShape(base, levels_for(count, base), contacts_a_child=1)
    members = settled(shape, count, count)
    first = next(iter(members))
    steps = messages = 0
    letters = members[first].told(7, b"value")
    assert letters is not None
    while letters:
        steps += 1
        messages += len(letters)
        following = []
        for to, level in letters:
            more = members[to].told(7, b"value", level)
            assert more is not None, "nobody gets it twice"
            following += more
        letters = following
    assert messages == count - 1
    assert steps <= shape.levels + 1
    assert all((each.version, each.value) == (7, b"value") for each in members.values())


def test_what_is_not_newer_goes_nowhere_and_who_has_less_lacks_it() -> None:
    one = next(iter(settled(CloudShape(2, 2), 5, 1).values()))
    assert not one.lacks(-1)
    assert one.told(3, b"a") is not None
    assert one.told(3, b"b") is None
    assert one.told(2, b"b") is None
    assert one.value == b"a"
    assert one.lacks(2)
    assert not one.lacks(3)
