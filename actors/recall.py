"""What the sequencer recalls from the store: producers, QoS 2 marks, dictionaries."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from lexicast.cluster.errors import DictionaryError
from lexicast.cluster.sequencer import RUNS_REMEMBERED, Placed, Producer, RememberedRun
from lexicast.storage.store import Store


class StoreMemory:
    """`cluster.sequencer.Memory` over the store; and which dictionaries each group holds, those on their way included."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._dictionaries: dict[int, set[int]] = {}

    def producer(self, group: int, producer: bytes) -> Producer | None:
        """The producer's durable state."""
        state = self._store.producer(group, producer)
        if state is None:
            return None
        runs = deque([RememberedRun(*run) for run in state.runs], maxlen=RUNS_REMEMBERED)
        return Producer(state.incarnation, state.last, runs)

    def mark(self, group: int, session_uid: bytes, packet_id: int) -> Placed | None:
        """Where an unreleased QoS 2 publication stands durably."""
        offset = self._store.mark(group, session_uid, packet_id)
        return None if offset is None else Placed(1, 0, offset)

    def dictionaries(self, group: int) -> set[int]:
        """Ids of the dictionaries that the group's log holds or is about to hold."""
        known = self._dictionaries.get(group)
        if known is None:
            known = self._dictionaries[group] = {d.dictionary for d in self._store.dictionaries(group)}
        return known

    def check_dictionaries(self, group: int, dictionaries: Sequence[int]) -> None:
        """Raises DictionaryError when one is not in the group's log: no reader could decode the record."""
        known = self.dictionaries(group)
        for dictionary in dictionaries:
            if dictionary not in known:
                raise DictionaryError(f"dictionary {dictionary:016x} is not in the log of group {group}: send it first")
