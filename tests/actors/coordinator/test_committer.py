"""The committer's housekeeping: its share of the time, not while something waits, and on its own to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from lexicast.actors.coordinator import committer as module
from lexicast.actors.coordinator.committer import HOUSEKEEPING_S, STEP_SHARE, Committer
from lexicast.cluster.blocks import Block, control_block
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.errors import StoreError
from lexicast.cluster.records import EpochStart, pack_record
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.upkeep.reclaiming import Reclaimed


class Busy:
    """A store with so many steps of housekeeping left, each of which takes 10 ms of a clock."""

    def __init__(self, steps: int) -> None:
        self.options = StoreOptions()
        self.now = 100.0
        self.left = steps
        self.steps = 0
        self.done = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def commit(self, blocks: Sequence[Block]) -> None:
        """Nothing is kept."""

    def reclaim(self, now_us: int) -> Reclaimed:
        """A step."""
        self.now += 0.01
        self.steps += 1
        self.left -= 1
        if self.left == 0:
            self._loop.call_soon_threadsafe(self.done.set)
        return Reclaimed(0, 0, 0, self.left > 0)


def committer(store: Any) -> Committer:
    return Committer(store, ManualClock(time_us=0), lambda *_: None, lambda *_: None, lambda _: None)


def block() -> Block:
    return control_block(0, 1, 0, 0, [pack_record(EpochStart(1, 0, "m"))])


async def test_steps_take_their_share_of_the_time_and_none_is_taken_while_something_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Busy(1_000)
    monkeypatch.setattr(module, "monotonic", lambda: store.now)
    writer = committer(store)
    store.now += HOUSEKEEPING_S
    start = store.now
    while store.now < start + 10:
        writer._housekeeping()
        store.now += 0.001
    assert store.steps * 0.01 == pytest.approx(10 * STEP_SHARE, rel=0.1)
    before, writer._waiting = store.steps, [block()]
    store.now = writer._step_at + HOUSEKEEPING_S / 2
    writer._housekeeping()
    assert store.steps == before
    store.now = writer._step_at + HOUSEKEEPING_S
    writer._housekeeping()
    assert store.steps == before + 1
    writer._waiting = []
    await writer.close()


async def test_what_a_burst_has_left_to_do_is_done_when_nothing_comes_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Busy(5)
    monkeypatch.setattr(module, "HOUSEKEEPING_S", 0.0)
    monkeypatch.setattr(module, "STEP_PAUSE_MAX_S", 0.0)
    writer = committer(store)
    writer.submit([block()])
    async with asyncio.timeout(60):
        await store.done.wait()
    await writer.close()
    assert store.left <= 0


async def test_after_a_failure_nothing_waits_for_the_disk() -> None:
    class Broken(Busy):
        """A store whose disk fails."""

        def commit(self, blocks: Sequence[Block]) -> None:
            raise StoreError("I/O error")

    failures: list[StoreError] = []
    store: Any = Broken(1)
    writer = Committer(store, ManualClock(time_us=0), lambda *_: None, lambda *_: None, failures.append)
    async with asyncio.timeout(60):
        writer.submit([block()])
        await writer.drain()
        assert len(failures) == 1
        writer.submit([block()])
        await writer.drain()
        assert (writer.waiting_bytes, writer.waiting_records) == (0, 0)
        await writer.close()
