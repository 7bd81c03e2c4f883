"""Own publications that come back are taken off, everybody else's come in: each as often as it was published."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.bridges.echoes import Echoes

MESSAGE = st.tuples(st.sampled_from([b"a", b"b"]), st.sampled_from([b"on", b"off"]))


@given(st.lists(st.tuples(st.booleans(), MESSAGE), max_size=60), st.randoms())
def test_as_many_come_in_as_others_have_published(
    published: list[tuple[bool, tuple[bytes, bytes]]], random: Random
) -> None:
    """Whatever the order in which a broker sends back what it got, once it got it."""
    echoes = Echoes()
    came: Counter[tuple[bytes, bytes]] = Counter()
    others: Counter[tuple[bytes, bytes]] = Counter()
    waiting: list[tuple[bytes, bytes]] = []
    for is_own, message in published:
        if is_own:
            echoes.published(*message, 0.0)
        else:
            others[message] += 1
        waiting.append(message)
        random.shuffle(waiting)
        while waiting and random.random() < 0.5:
            message = waiting.pop()
            came[message] += not echoes.came(*message, 0.0)
    for message in waiting:
        came[message] += not echoes.came(*message, 0.0)
    assert +came == +others
    assert len(echoes) == 0


def test_what_does_not_come_back_is_forgotten() -> None:
    echoes = Echoes(remembered_s=10.0)
    echoes.published(b"a", b"on", 0.0)
    assert not echoes.came(b"a", b"on", 11.0)


def test_what_a_session_would_have_brought_goes_with_it() -> None:
    echoes = Echoes()
    echoes.published(b"a", b"on", 0.0)
    echoes.clear()
    assert not echoes.came(b"a", b"on", 0.0)


def test_beyond_the_bound_the_oldest_is_forgotten_and_counted() -> None:
    echoes = Echoes(echoes_max=2)
    for number in range(3):
        echoes.published(b"a", b"%d" % number, 0.0)
    assert echoes.forgotten == 1
    assert [echoes.came(b"a", b"%d" % number, 0.0) for number in range(3)] == [False, True, True]
