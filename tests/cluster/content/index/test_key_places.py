"""A multimap from keys to places."""

from __future__ import annotations

import random
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.content.index.key_places import KeyPlaces

KEYS = st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3).map(lambda part: part << 32)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(KEYS, st.integers(1, 3)), max_size=300), st.randoms(use_true_random=False))
def test_it_is_a_multimap(entered: list[tuple[int, int]], dice: random.Random) -> None:
    known: dict[int, list[int]] = defaultdict(list)
    keys: list[int] = []
    places = KeyPlaces(keys.__getitem__)
    for key, count in entered:
        for _ in range(count):
            if len(known[key]) < 16:  # as many as a key has boxes
                keys.append(key)
                known[key].append(len(keys) - 1)
                places.add(key, len(keys) - 1)
    left = [(key, place) for key, some in known.items() for place in some]
    assert len(places) == len(left)
    dice.shuffle(left)
    while left:
        key, place = left.pop()
        assert sorted(places.find(key)) == sorted(known[key])
        places.remove(key, place)
        known[key].remove(place)
        assert sorted(places.find(key)) == sorted(known[key])
    assert len(places) == 0


def test_many_keys_take_few_bytes() -> None:
    keys = list(range(100_000))
    places = KeyPlaces(keys.__getitem__)
    for key in keys:
        places.add(key, key)
    assert all(places.find(key) == [key] for key in keys[::97])
    assert places.find(100_001) == []
    assert places.nbytes < 11 * len(keys)
