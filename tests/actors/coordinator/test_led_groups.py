"""Groups that are led: what becomes of one when the disk refuses what followers have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from lexicast.actors.coordinator.led_groups import LedGroups
from lexicast.actors.testing.simulator.memory_store import MemoryStore
from lexicast.cluster.blocks import Block
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.errors import LedElsewhereError, StoreFullError
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.records import ControlRecord, Released
from lexicast.storage.log.stored_block import StoredBlock
from lexicast.storage.store import Store

from ...support.harness import eventually

RECORD = Released(b"session", (1,))


class FullStore(MemoryStore):
    """Has no room at all while it is full."""

    def commit(self, blocks: Sequence[Any], apply: Mapping[int, int] | None = None) -> None:
        if self.full and blocks:
            raise StoreFullError("full")
        super().commit(blocks, apply)


class JoinersCopies:
    """A follower that does not count yet has all that is placed; nobody else can lead."""

    def __init__(self, led: LedGroups, store: FullStore) -> None:
        self.led, self.store = led, store
        self.answers: list[Exception | None] = []
        self.closed: list[int] = []

    def append(self, record: ControlRecord) -> None:
        self.led.append_control(0, record, self.answers.append)

    def may_lead(self, states: Mapping[int, GroupState]) -> list[int]:
        return list(states)

    def lead(self, states: Mapping[int, GroupState]) -> None:
        self.led.committer.shipped.update(states)

    def close(self, groups: Iterable[int]) -> None:
        self.closed += groups

    def ship(self, blocks: Sequence[Block]) -> list[StoredBlock]:
        return []

    def written(self, blocks: Iterable[Block]) -> None:
        """Nothing is followed here."""

    def refused(self, led: Sequence[int], followed: Iterable[int]) -> None:
        """There is room again, and somebody has something to write, before another epoch is asked for."""
        self.store.full = False
        self.append(RECORD)

    def resign(self, group: int) -> None:
        """To nobody."""

    def durable(self, group: int) -> dict[str, int]:
        return {}


async def test_nothing_is_written_behind_what_a_follower_has_and_the_disk_refused() -> None:
    store = FullStore(1)
    led = LedGroups("a", cast(Store, store), ManualClock(), lambda: None)
    led.copies = copies = JoinersCopies(led, store)
    await led.open({0: GroupState(1, "a", ("a",))})
    store.full = True
    copies.append(RECORD)
    await eventually(lambda: len(copies.answers) == 2, "both to be answered")
    assert [type(error) for error in copies.answers] == [StoreFullError, LedElsewhereError]
    await led.close()
    assert copies.closed == [0]
    assert [(block.first, block.last) for block in store.blocks[0]] == [(0, 0)]
