"""Hundreds of stories of the simulator; `python -m lexicast.testing.simulate --seed N --transcript` shows one."""

from __future__ import annotations

import pytest

from lexicast.actors.testing.simulator.story import run

SEEDS_A_TEST = 10
TESTS = 4


@pytest.mark.parametrize("first", range(0, TESTS * SEEDS_A_TEST, SEEDS_A_TEST))
def test_the_guarantees_hold_in_every_story(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        run(seed)
