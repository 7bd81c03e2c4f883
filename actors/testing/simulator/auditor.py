"""The auditor: sees what is stored, seen and acknowledged, and says at once what a guarantee does not allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lexicast.cluster.blocks import PUBLICATIONS, QOS_MASK, Block
from lexicast.cluster.leadership import GroupState

from .memory_store import MemoryStore
from .transcript import Transcript


class Violation(AssertionError):
    """A guarantee that did not hold."""


class Auditor:
    """See the module's docstring. `broken`: what it has found, the first first."""

    def __init__(
        self, stores: Mapping[str, MemoryStore], state: Callable[[int], GroupState], transcript: Transcript
    ) -> None:
        """`state(group)`: what the coordination server has."""
        self._stores = stores
        self._state = state
        self._transcript = transcript
        self.broken: list[str] = []
        # Where each payload stands, and what stands where.
        self.places: dict[bytes, tuple[int, int]] = {}
        self._records: dict[tuple[int, int], bytes] = {}
        self.acknowledged: set[bytes] = set()
        self._promises: dict[tuple[str, int], int] = {}
        for store in stores.values():
            store.when_applied = self.applied

    def found(self, what: str) -> None:
        """A guarantee does not hold."""
        self._transcript.say("auditor", f"VIOLATION {what}")
        self.broken.append(what)

    def applied(self, block: Block) -> None:
        """A block counts, as one of its copies has it."""
        if block.kind == PUBLICATIONS:
            for record in block.records():
                place = (block.group, record.offset)
                if self.places.setdefault(record.payload, place) != place:
                    self.found(f"once: {record.payload!r} stands at {place} and at {self.places[record.payload]}")

    def promised(self, name: str, group: int, epoch: int) -> None:
        """A member has promised to take nothing older than this epoch."""
        before = self._promises.setdefault((name, group), epoch)
        if epoch < before:
            self.found(f"fenced: {name} promises epoch {epoch} of group {group}, but had promised {before}")
        self._promises[name, group] = max(epoch, before)

    def is_committed(self, group: int, offset: int, payload: bytes) -> bool:
        """Whether every member of the group's in-sync set has this record there."""
        return all(self._stores[name].has(group, offset, payload) for name in self._state(group).in_sync)

    def delivered(self, group: int, offset: int, flags: int, payload: bytes) -> None:
        """A subscriber got a record."""
        if flags & QOS_MASK and not self.is_committed(group, offset, payload):
            self.found(f"committed: {payload!r} was seen at {group}:{offset} before every member in sync had it")
        if self._records.setdefault((group, offset), payload) != payload:
            self.found(f"order: {group}:{offset} is {payload!r} and {self._records[group, offset]!r}")

    def lost(self) -> list[bytes]:
        """What was acknowledged and is not stored."""
        return sorted(self.acknowledged - self.places.keys())
