"""Arrays that grow in place."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from lexicast.cluster.content.index.growing import GrowingArray


def test_what_was_written_stays_while_it_grows_and_shrinks() -> None:
    rows = GrowingArray(np.int64, 3)
    for count in (10, 1_000, 100_000):
        rows.reserve(count)
        assert rows.array.shape[0] >= count
        assert rows.array.shape[1:] == (3,)
        rows.array[count - 10 : count] = count
    for count in (10, 1_000, 100_000):
        assert (rows.array[count - 10 : count] == count).all()
    rows.shrink(1_000)
    assert (rows.array[990:1_000] == 1_000).all()
    assert rows.nbytes < 2 * 1_000 * 3 * 8 + mmap.PAGESIZE


def test_little_lies_idle() -> None:
    rows = GrowingArray(np.uint8, 64)
    for count in range(1, 20_000):
        rows.reserve(count)
        assert rows.nbytes <= count * 64 * 33 // 32 + mmap.PAGESIZE


@pytest.mark.parametrize("count", [10, 1_000_000])
def test_a_view_that_is_held_keeps_what_was(count: int) -> None:
    rows = GrowingArray(np.float64)
    rows.reserve(10_000)
    rows.array[:10] = 1.0
    view = rows.array[:10]
    (rows.reserve if count > 10_000 else rows.shrink)(count)
    rows.array[:10] += 1.0
    assert (view == 1.0).all()
    assert (rows.array[:10] == 2.0).all()
