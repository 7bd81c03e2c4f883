"""Batches of several messages as one payload."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.bench.compression.batching import Batcher, join_batch, split_batch
from lexicast.cluster.errors import DictionaryError


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=30))
def test_batches_come_back_equal(messages: list[bytes]) -> None:
    assert split_batch(join_batch(messages)) == messages


@given(st.binary(max_size=200))
def test_garbage_is_no_batch_or_one_that_joins_to_itself(data: bytes) -> None:
    try:
        messages = split_batch(data)
    except DictionaryError:
        return
    assert b"".join(messages) in join_batch(messages) or len(messages) > 1


def test_a_batch_goes_when_full_or_when_the_first_has_waited() -> None:
    batcher = Batcher(3, bytes_max=100, delay_us=10)
    assert batcher.due_us is None
    assert batcher.add(b"a", 0) is None
    assert batcher.due_us == 10
    assert batcher.add(b"b", 5) is None
    assert split_batch(batcher.add(b"c", 6) or b"") == [b"a", b"b", b"c"]
    assert split_batch(batcher.add(b"x" * 100, 7) or b"") == [b"x" * 100]
    assert batcher.flush() is None
    batcher.add(b"d", 20)
    assert split_batch(batcher.add(b"e", 30) or b"") == [b"d", b"e"]
    with pytest.raises(ValueError, match="messages"):
        Batcher(0)
    with pytest.raises(ValueError, match="batch"):
        join_batch([])
    with pytest.raises(DictionaryError, match="empty"):
        split_batch(b"")
