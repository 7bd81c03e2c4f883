"""Disks in memory: a process's way to its store, and the coordination server's registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lexicast.cluster.blocks import PUBLICATIONS, Block
from lexicast.cluster.clock import Clock, TrustedTime
from lexicast.cluster.errors import StoreError, StoreFullError
from lexicast.storage.file.damage import Ledger
from lexicast.storage.log.stored_block import StoredBlock

from .memory_store import MemoryStore
from .transcript import Transcript, told_block


class Gate:
    """A process's way to its disk: what it commits is durable at once, unless the disk is full or the process dead."""

    def __init__(
        self,
        name: str,
        store: MemoryStore,
        transcript: Transcript,
        promised: Callable[[str, int, int], None],
        taken: Callable[[str, Block], None],
        clock: Clock,
    ) -> None:
        """`promised(name, group, epoch)` is told of each promise, `taken(name, block)` of each block."""
        self.name = name
        self.store = store
        self.alive = True
        self._transcript = transcript
        self._promised = promised
        self._taken = taken
        self._clock = clock
        newest_us = max([tail.time_us for tail in store.tails().values()], default=0)
        self._time = TrustedTime(clock.time_us(), clock.monotonic(), newest_us)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def _usable(self) -> None:
        if not self.alive:
            raise StoreError("dead")

    def discard_us(self) -> int:
        """See `Store.discard_us`."""
        return self._time.us(self._clock.time_us(), self._clock.monotonic())

    def commit(self, blocks: Sequence[Block | StoredBlock], apply: Mapping[int, int] | None = None) -> None:
        """See `Store.commit`."""
        self._usable()
        found = [each.block if isinstance(each, StoredBlock) else each for each in blocks]
        if self.store.full and any(block.kind == PUBLICATIONS for block in found):
            raise StoreFullError("full")
        if self._transcript.keeps and (found or apply):
            inside = "; ".join(map(told_block, found)) or "nothing new"
            self._transcript.say(f"disk of {self.name}", f"{inside}, {_applied(apply)}")
        self.store.commit(blocks, apply)
        for block in found:
            self._taken(self.name, block)

    def promise(self, epochs: Mapping[int, int]) -> None:
        """See `Store.promise`."""
        self._usable()
        self._transcript.say(f"disk of {self.name}", f"promises {dict(epochs)} (group: epoch)")
        for group, epoch in epochs.items():
            self._promised(self.name, group, epoch)
        self.store.promise(epochs)

    def count_with(self, sets: Mapping[int, tuple[int, tuple[str, ...]]], alone: bool = False) -> None:
        """See `Store.count_with`."""
        self._usable()
        self.store.count_with(sets, alone)

    def truncate(self, group: int, last: int) -> None:
        """See `Store.truncate`."""
        self._usable()
        self._transcript.say(f"disk of {self.name}", f"group {group} ends at {last} now")
        self.store.truncate(group, last)

    def install(self, group: int, page: Any) -> None:
        """See `Store.install`."""
        self._usable()
        self._transcript.say(f"disk of {self.name}", f"takes the leader's tables of group {group}")
        self.store.install(group, page)


def _applied(apply: Mapping[int, int] | None) -> str:
    if apply is None:
        return "all applied"
    return f"applied below {dict(apply)}" if apply else "nothing applied"


class MemoryRegistry:
    """As `storage.registry.Registry`: what is committed is durable."""

    def __init__(self) -> None:
        self._rows: dict[str, Any] = {}
        self.damage = Ledger()

    def get(self, key: str) -> Any:
        """As `Registry.get`."""
        return self._rows.get(key)

    def is_damaged(self, key: str) -> bool:
        """Nothing is."""
        return False

    def items(self, prefix: str) -> dict[str, Any]:
        """As `Registry.items`."""
        return {key: value for key, value in self._rows.items() if key.startswith(prefix)}

    def commit(self, changes: Mapping[str, Any]) -> None:
        """As `Registry.commit`."""
        self._rows = {key: value for key, value in {**self._rows, **changes}.items() if value is not None}

    def close(self) -> None:
        """Nothing to close."""
