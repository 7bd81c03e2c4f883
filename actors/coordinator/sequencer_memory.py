"""The sequencer's memory of what is durable: producers, QoS 2 marks and dictionaries, read from the store."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from lexicast.cluster.errors import DictionaryError
from lexicast.cluster.repeats import RUNS_REMEMBERED, Placed, Producer, RememberedRun
from lexicast.storage.table_reader import TableReader
from lexicast.storage.tables.state import Epoch


class StoreMemory:
    """`cluster.sequencer.Memory` over the store; and the dictionaries that each group holds or is about to hold."""

    def __init__(self, tables: TableReader) -> None:
        self._tables = tables
        self._dictionaries: dict[int, set[int]] = {}

    def producer(self, group: int, producer: bytes) -> Producer | None:
        """The producer's durable state."""
        state = self._tables.producer(group, producer)
        if state is None:
            return None
        starts = self._tables.epochs(group)
        runs = [RememberedRun(r.sequence, r.records, epoch_at(starts, r.offset), r.offset) for r in state.runs]
        return Producer(state.incarnation, state.sequence, deque(runs), forgotten(state.sequence, runs))

    def mark(self, group: int, session_uid: bytes, packet_id: int) -> Placed | None:
        """Where an unreleased QoS 2 publication stands durably."""
        offset = self._tables.mark(group, session_uid, packet_id)
        return None if offset is None else Placed(1, epoch_at(self._tables.epochs(group), offset), offset)

    def generation(self, group: int, session_uid: bytes) -> int:
        """The newest generation of a session of which the group has a QoS 2 publication; 0: none is known."""
        return self._tables.generation(group, session_uid)

    def dictionaries(self, group: int) -> set[int]:
        """Ids of the dictionaries that the group's log holds or is about to hold."""
        known = self._dictionaries.get(group)
        if known is None:
            known = self._dictionaries[group] = {d.dictionary for d in self._tables.dictionaries(group)}
        return known

    def forget(self, group: int) -> None:
        """The group is not led here any more: who leads it may add to it."""
        self._dictionaries.pop(group, None)

    def check_dictionaries(self, group: int, dictionaries: Sequence[int]) -> None:
        """Raises DictionaryError when one is not in the group's log: no reader could decode the record."""
        known = self.dictionaries(group)
        for dictionary in dictionaries:
            if dictionary not in known:
                raise DictionaryError(f"dictionary {dictionary:016x} is not in the log of group {group}: send it first")


def forgotten(last: int, runs: Sequence[RememberedRun]) -> int:
    """The highest sequence up to which some may have been stored although no run that is kept names them."""
    known = max([run.sequence + run.count - 1 for run in runs], default=0)
    if known < last:
        return last  # restated by a ProducerSeen
    if len(runs) < RUNS_REMEMBERED:
        return 0
    ascending = all(a.sequence < b.sequence for a, b in pairwise(runs))
    return runs[0].sequence - 1 if ascending else last


def epoch_at(starts: Sequence[Epoch], offset: int) -> int:
    """The epoch that gave `offset`; 0 when it is older than the epochs that the store remembers."""
    at = bisect_right(starts, offset, key=lambda start: start.first)
    return starts[at - 1].epoch if at else 0
