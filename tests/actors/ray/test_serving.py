"""What all serving actors do once they serve."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from lexicast.actors.ray.serving import GC_THRESHOLDS, settle_garbage_collector


@pytest.fixture
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("collector")
def test_what_start_up_has_made_is_not_collected_again() -> None:
    lives = [[number] for number in range(10_000)]
    settle_garbage_collector()
    assert gc.get_freeze_count() > len(lives)
    assert gc.get_threshold() == GC_THRESHOLDS
