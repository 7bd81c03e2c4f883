"""Where a publication goes on to, and where it does not: rings of brokers that bridge to each other, simulated."""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.bridges.hops import HOPS_MAX, UserProperties, onward, passed

BROKERS = "abcde"


def spread(bridges: set[tuple[str, str]], start: str) -> Counter[str]:
    """How many copies each broker gets of what is published at `start`."""
    copies: Counter[str] = Counter()
    waiting: deque[tuple[str, UserProperties]] = deque([(start, ())])
    while waiting:
        at, properties = waiting.popleft()
        copies[at] += 1
        for leaves, enters in sorted(bridges):
            if leaves == at and (further := onward(properties, leaves, enters)) is not None:
                waiting.append((enters, further))
    return copies


@given(st.permutations(BROKERS), st.integers(2, 5), st.booleans())
def test_in_a_ring_everybody_gets_it_and_nobody_twice_on_one_way_round(
    order: list[str], size: int, both_ways: bool
) -> None:
    ring = order[:size]
    bridges = {(ring[i], ring[(i + 1) % size]) for i in range(size)}
    if both_ways:
        bridges |= {(enters, leaves) for leaves, enters in bridges}
    copies = spread(bridges, ring[0])
    assert set(copies) == set(ring)
    assert copies[ring[0]] == 1, "it came back to where it was published"
    if not both_ways or size == 2:
        assert set(copies.values()) == {1}


@given(st.sets(st.tuples(st.sampled_from(BROKERS), st.sampled_from(BROKERS)), max_size=20))
def test_whatever_the_bridges_it_ends_and_nobody_is_passed_twice(bridges: set[tuple[str, str]]) -> None:
    bridges = {(leaves, enters) for leaves, enters in bridges if leaves != enters}
    copies = spread(bridges, "a")
    assert copies["a"] == 1
    # Ways without a repeated broker: at most 1 + 4 + 12 + 24 + 24 of them.
    assert sum(copies.values()) <= 65


def test_other_properties_stay_and_come_first() -> None:
    found = onward((("unit", "km"),), "a", "b")
    assert found == (("unit", "km"), ("lexicast-via", "a"))
    assert passed(found) == ("a",)
    assert onward(found, "b", "a") is None


def test_what_goes_round_unrecognised_ends() -> None:
    properties: UserProperties = ()
    for number in range(HOPS_MAX):
        further = onward(properties, f"broker {number}", f"broker {number + 1}")
        assert further is not None
        properties = further
    assert onward(properties, "another", "one") is None
