"""Clocks that jump: what was stored is not discarded on their word alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, control_block, pack_meta
from lexicast.cluster.clock import US_PER_S, ManualClock, TrustedTime
from lexicast.cluster.records import SessionSaved, pack_record
from lexicast.storage.environment.options import DAY_S, StoreOptions
from lexicast.storage.store import Store

START_US = 1_700_000_000 * US_PER_S
YEAR_S = 365 * DAY_S


def opened(folder: Path, clock: ManualClock) -> Store:
    options = StoreOptions(retention_s=7 * DAY_S, clock_confirm_s=DAY_S)
    return Store.open(folder, cluster_id="c", member="m", groups=2, options=options, clock=clock)


def fill(store: Store, clock: ManualClock) -> None:
    now_us = clock.time_us()
    session = SessionSaved("away", b"u", 1, "", 1, 0, 3_600, now_us + 3_600 * US_PER_S, 0, b"", b"", b"")
    store.commit([control_block(1, 1, 0, now_us, [pack_record(session)])])
    for offset, expiry_ms in enumerate((3_600_000, 0)):
        meta = pack_meta(Meta((b"a",), (Run(0, 0, 0, 0, expiry_ms, None, -1, 1),), (), (), (), ()))
        store.commit([Block(0, 1, offset, offset, now_us, PUBLICATIONS, meta, b"\1\0\0\0", b"x")])


def left(store: Store, clock: ManualClock) -> tuple[list[int], bool]:
    """The offsets still stored, and whether the session is, after housekeeping."""
    for _ in range(30):
        store.reclaim(clock.time_us())
    expired = [session.client_id for _, session in store.tables.due_sessions(store.discard_us(), 10)]
    return [block.first for block in store.read(0, 0, expired=True).blocks], "away" not in expired


def test_a_clock_set_forward_discards_nothing_until_it_has_run_on(tmp_path: Path) -> None:
    clock = ManualClock(START_US)
    store = opened(tmp_path, clock)
    fill(store, clock)
    clock.advance(1)
    assert left(store, clock) == ([0, 1], True)
    clock.jump(YEAR_S)
    assert left(store, clock) == ([0, 1], True)
    assert store.stats().clock_ahead_s == pytest.approx(YEAR_S)
    assert store.stats().clock_left_s == DAY_S
    # Age goes on: what expires an hour after it was stored does so an hour later.
    for _ in range(70):
        clock.advance(60)
        store.reclaim(clock.time_us())
    assert left(store, clock) == ([1], False)
    clock.advance(DAY_S)
    assert left(store, clock) == ([], False)
    assert store.stats().clock_ahead_s == 0
    store.close()


def test_a_clock_that_is_set_right_again_has_cost_nothing(tmp_path: Path) -> None:
    clock = ManualClock(START_US)
    store = opened(tmp_path, clock)
    fill(store, clock)
    left(store, clock)
    clock.jump(YEAR_S)
    left(store, clock)
    clock.advance(60)
    clock.jump(-YEAR_S)
    assert left(store, clock) == ([0, 1], True)
    assert store.stats().clock_ahead_s == 0
    store.close()


def test_a_start_with_a_clock_far_beyond_what_was_stored_discards_nothing_at_once(tmp_path: Path) -> None:
    clock = ManualClock(START_US)
    store = opened(tmp_path, clock)
    fill(store, clock)
    store.close()
    clock.jump(YEAR_S)
    store = opened(tmp_path, clock)
    assert left(store, clock) == ([0, 1], True)
    assert store.stats().clock_ahead_s == pytest.approx(YEAR_S)
    store.close()


def test_an_operator_may_have_any_clock_believed(tmp_path: Path) -> None:
    clock = ManualClock(START_US)
    options = StoreOptions(retention_s=7 * DAY_S, clock_confirm_s=0)
    store = Store.open(tmp_path, cluster_id="c", member="m", groups=2, options=options, clock=clock)
    fill(store, clock)
    clock.jump(YEAR_S)
    assert left(store, clock) == ([], False)
    store.close()


STEP = st.tuples(st.floats(0, 7_200), st.one_of(st.just(0.0), st.floats(-1e6, 1e6)))


@given(st.lists(STEP, max_size=40))
def test_the_believed_time_never_runs_faster_than_time_passes_but_by_what_is_allowed(
    steps: list[tuple[float, float]],
) -> None:
    clock = ManualClock(START_US)
    trusted = TrustedTime(clock.time_us(), clock.monotonic(), 0, jump_max_s=100, confirm_s=20_000)
    since_jump = 0.0
    for passed, jump in steps:
        before, wall_before = trusted.us(clock.time_us(), clock.monotonic()), clock.time_us()
        clock.advance(passed)
        clock.jump(jump)
        since_jump = 0.0 if jump > 100 else since_jump + passed
        found = trusted.us(clock.time_us(), clock.monotonic())
        assert found <= max(clock.time_us(), before + round(passed * US_PER_S) + 1)
        if since_jump < 20_000 and wall_before <= before:
            assert found <= before + round((passed + 100) * US_PER_S) + 1


def test_a_clock_without_jumps_is_believed_to_the_microsecond() -> None:
    clock = ManualClock(START_US)
    trusted = TrustedTime(clock.time_us(), clock.monotonic(), START_US - 5)
    for passed in (0.0, 0.1, 59.5, 3_599.0, 100_000.0):
        clock.advance(passed)
        assert trusted.us(clock.time_us(), clock.monotonic()) == clock.time_us()
