"""The line of handshakes, decided without sockets: its bounds hold whatever comes, and nobody is kept out by others."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.tls.handshake_line import HURRY_S, WAITING_EACH_MAX, HandshakeLine

A, B, C = "192.0.2.1", "192.0.2.2", "192.0.2.3"


def begun(line: HandshakeLine[int], now_s: float = 0.0) -> list[int]:
    """All who may begin now."""
    return list(iter(lambda: line.begin(now_s), None))


def test_one_address_leaves_room_for_others() -> None:
    line = HandshakeLine[int](most=4, most_each=2)
    for key in range(10):
        assert line.arrive(key, A)
    assert begun(line) == [0, 1]
    line.arrive(10, B)
    assert begun(line) == [10]
    assert (line.waiting, line.under_way) == (8, 3)


def test_addresses_that_wait_take_turns() -> None:
    line = HandshakeLine[int](most=1, most_each=1)
    for key, address in enumerate([A, A, A, B, C]):
        line.arrive(key, address)
    order = []
    while started := begun(line):
        order += started
        line.end(started[0])
    assert order == [0, 3, 4, 1, 2]


def test_who_waits_and_has_left_is_forgotten() -> None:
    line = HandshakeLine[int](most=1, most_each=1)
    for key in range(3):
        line.arrive(key, A)
    begun(line)
    line.end(1)
    line.end(1)
    line.end(99)
    assert (line.waiting, line.under_way) == (1, 1)
    line.end(0)
    assert begun(line) == [2]


def test_the_queue_of_one_address_is_bounded() -> None:
    line = HandshakeLine[int](most=1, most_each=1)
    assert all(line.arrive(key, A) for key in range(WAITING_EACH_MAX))
    assert not line.arrive(-1, A)
    assert line.arrive(-2, B)


def test_a_stalled_handshake_makes_way_only_where_somebody_waits_for_its_place() -> None:
    line = HandshakeLine[int](most=4, most_each=2)
    for key in range(2):
        line.arrive(key, A)
    begun(line, now_s=0.0)
    assert line.making_way(100.0) == []  # nobody waits: the handshake's own timeout is for that
    line.arrive(2, A)
    assert line.making_way(HURRY_S - 0.01) == []
    assert line.making_way(HURRY_S) == [0]


def test_where_all_places_are_taken_the_address_with_most_gives_one() -> None:
    line = HandshakeLine[int](most=4, most_each=3)
    for key, address in enumerate([B, A, A, A]):
        line.arrive(key, address)
    begun(line, now_s=0.0)
    line.arrive(4, C)
    assert line.making_way(HURRY_S) == [1]


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 5))
def test_bounds_hold_and_everybody_has_a_turn(seed: int, most: int, most_each: int) -> None:
    chance, line, now_s = random.Random(seed), HandshakeLine[int](most, most_each), 0.0
    under_way: dict[int, str] = {}
    addresses: dict[int, str] = {}
    done: set[int] = set()
    for key in range(60):
        now_s += chance.random()
        addresses[key] = chance.choice((A, B, C))
        assert line.arrive(key, addresses[key])
        under_way |= {each: addresses[each] for each in begun(line, now_s)}
        for address in (A, B, C):
            assert list(under_way.values()).count(address) <= most_each
        assert len(under_way) == line.under_way <= most
        assert line.waiting + line.under_way == len(line)
        # Nobody who stalls is ended by itself: it makes way, or it stays for ever.
        for each in line.making_way(now_s):
            assert each in under_way
            assert line.waiting
        for each in [each for each in under_way if chance.random() < 0.3]:
            line.end(each)
            del under_way[each]
            done.add(each)
    for _ in range(200):
        now_s += HURRY_S
        under_way |= {each: addresses[each] for each in begun(line, now_s)}
        for each in line.making_way(now_s):
            line.end(each)
            del under_way[each]
            done.add(each)
    assert line.waiting == 0
    assert done | set(under_way) == set(addresses)
