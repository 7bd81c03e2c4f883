"""Identifiers: digits and back, prefixes, one order of nearness for all; shapes that cannot be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import UsageError
from lexicast.cluster.skipcloud.identifiers import CloudShape, common_prefix, levels_for, remoteness

SHAPES = st.builds(CloudShape, st.integers(2, 16), st.integers(1, 6))


@given(SHAPES, st.data())
def test_digits_are_the_number_of_the_cluster(shape: CloudShape, data: st.DataObject) -> None:
    cluster = data.draw(st.integers(0, shape.clusters - 1))
    digits = shape.digits(cluster)
    assert len(digits) == shape.levels
    number = 0
    for digit in digits:
        number = number * shape.base + digit
    assert number == cluster


@given(SHAPES, st.data())
def test_nearness_is_a_total_order_that_begins_with_the_common_prefix(shape: CloudShape, data: st.DataObject) -> None:
    one, other, target = (shape.digits(data.draw(st.integers(0, shape.clusters - 1))) for _ in range(3))
    near, far = remoteness(one, target, shape.base), remoteness(other, target, shape.base)
    assert (near == far) == (one == other)
    assert remoteness(target, target, shape.base) == bytes(shape.levels)
    if common_prefix(one, target) > common_prefix(other, target):
        assert near < far


def test_beside_an_empty_cluster_the_next_digit_up_is_nearest() -> None:
    order = sorted(range(4), key=lambda digit: remoteness(bytes([digit]), bytes([2]), 4))
    assert order == [2, 3, 0, 1]


def test_hashes_fall_on_all_clusters_alike() -> None:
    shape = CloudShape(4, 2)
    counts = [0] * shape.clusters
    for number in range(16_000):
        first, second = shape.hashed(f"cell {number}".encode())
        counts[4 * first + second] += 1
    assert min(counts) > 900
    assert max(counts) < 1_100


@given(st.integers(1, 100_000), st.integers(2, 16), st.integers(1, 8))
def test_levels_are_the_most_that_can_be_filled(members: int, base: int, each: int) -> None:
    levels = levels_for(members, base, each)
    assert levels == 1 or base**levels * each <= members
    assert base ** (levels + 1) * each > members


@pytest.mark.parametrize(
    "shape", [CloudShape(1, 2), CloudShape(257, 1), CloudShape(2, 0), CloudShape(2, 65), CloudShape(2, 2, 0)]
)
def test_shapes_that_cannot_be_are_refused(shape: CloudShape) -> None:
    with pytest.raises(UsageError, match="SkipCloud needs"):
        shape.valid()
