"""Samples of what brokers' subscribers want: alike everywhere, bounded, and true to what is shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import PeerError
from lexicast.ft.bits import bits_set, common
from lexicast.ft.interest_sample import ALL, SAMPLE_MAX, InterestSample, hash_of, read_sample, sampled
from lexicast.ft.sampled_network import network_of


def sample_of(numbers: range) -> InterestSample:
    return sampled([hash_of(b"devices/%d" % number) for number in numbers], len(numbers), 18_000)


@given(st.dictionaries(st.sampled_from("abcd"), st.sets(st.integers(0, 30), max_size=12), min_size=1))
def test_where_all_is_told_the_network_has_what_the_brokers_have(wants: dict[str, set[int]]) -> None:
    samples = {name: sampled([hash_of(b"%d" % one) for one in found], 3, 9) for name, found in wants.items()}
    network = network_of(samples, dict.fromkeys(wants, "here"))
    for name, found in wants.items():
        row = network.subscriptions[network.index[name]]
        assert bits_set(network.subscriptions)[network.index[name]] == len(found)
        for other, theirs in wants.items():
            at = np.array([network.index[other]])
            assert common(row, network.subscriptions, at)[0] == len(found & theirs)


def test_of_very_many_the_part_that_is_shared_is_about_what_it_is() -> None:
    samples = {"a": sample_of(range(20_000)), "b": sample_of(range(10_000, 40_000)), "c": sample_of(range(100))}
    assert samples["a"].below < ALL
    assert samples["c"].below == ALL
    network = network_of(samples, {})
    assert network.subscriptions.shape[1] <= 2 * SAMPLE_MAX // 64 + 1
    first, second = network.subscriptions[:2]
    shared = bits_set(first & second) / bits_set(first)
    assert 0.45 < shared < 0.55
    assert list(network.own_load_bytes_s) == [20_000, 30_000, 100]


@pytest.mark.parametrize(
    "sent",
    [
        (),
        (b"", 0, 0),
        (b"1234567", 0, 0, 0),
        (b"12345678", -1, 0, 0),
        (b"12345678", ALL + 1, 0, 0),
        (b"12345678", ALL, True, 0),
        ("12345678", ALL, 0, 0),
        (bytes(8 * SAMPLE_MAX + 8), ALL, 0, 0),
    ],
)
def test_what_is_no_sample_is_refused(sent: tuple[Any, ...]) -> None:
    with pytest.raises(PeerError, match="cannot be read"):
        read_sample(sent)
