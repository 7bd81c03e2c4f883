"""What the index says of some records, kept for those who ask later: condition by condition, as of one moment."""

from __future__ import annotations

from typing import Final

import numpy as np

from lexicast.cluster.content.index.predicate_index import BoxMatches

# What a condition that some record lies in takes, and such a record.
CONDITION_BYTES: Final = 200
MATCH_BYTES: Final = 4


class IndexAnswers:
    """See the module's docstring. `last_number`: the newest condition there was; of newer ones nothing is known.
    `conditions`: how many there were."""

    __slots__ = ("_events", "_spans", "conditions", "last_number")

    def __init__(self, matches: BoxMatches, last_number: int, conditions: int) -> None:
        order = np.lexsort((matches.events, matches.keys))
        self._events = matches.events[order].astype(np.uint32)
        numbers, begins = np.unique(matches.keys[order], return_index=True)
        ends = [*begins.tolist(), len(order)][1:]
        self._spans = dict(zip(numbers.tolist(), zip(begins.tolist(), ends, strict=True), strict=True))
        self.last_number = last_number
        self.conditions = conditions

    @property
    def size_bytes(self) -> int:
        """About what they take in memory."""
        return MATCH_BYTES * len(self._events) + CONDITION_BYTES * len(self._spans)

    def events(self, number: int) -> list[int]:
        """The rows that lie in a condition's boxes, in ascending order."""
        span = self._spans.get(number)
        if span is None:
            return []
        events: list[int] = self._events[span[0] : span[1]].tolist()
        return events
