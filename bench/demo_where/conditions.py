"""The condition that the demo is about: asked of flights by whoever does not leave that to the broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.fields import FieldReader
from lexicast.cluster.content.nodes import Source
from lexicast.cluster.content.parsed import predicate
from lexicast.cluster.errors import UsageError

from ..data.flights import Event
from ..demo.verdicts import Ints

WEST_COAST: Final = ("BUR", "LAX", "LGB", "OAK", "PDX", "SAN", "SEA", "SFO", "SJC", "SMF", "SNA")
DEFAULT_CONDITION: Final = f"arr_delay_min > 60 AND dest IN {WEST_COAST}"
"""Delayed more than an hour, to the west coast."""

QOS: Final = 1
"""Of all the events, and of who subscribes."""


class EventFilter:
    """Asks the condition as a client does that has it all: with the broker's own parser and decoder, which takes less
    CPU than `json.loads` and a comparison. Raises UsageError for what is no condition."""

    def __init__(self, where: str) -> None:
        self._predicate = predicate(where)
        self._reader = FieldReader(self._predicate.names)

    def holds(self, topic: str, payload: bytes) -> bool:
        """Whether the condition holds for an event."""
        return self._predicate.matches(ContentRecord(topic.encode(), payload, self._reader, qos=QOS))


def check_condition(where: str) -> None:
    """Raises UsageError for what is no condition, and for one whose filter in the client would lack something."""
    if any([name.source is Source.TIME for name in predicate(where).names]):
        raise UsageError(
            f"--where {where!r}: MQTT does not tell subscribers when a message was published, so the one that filters "
            "by itself could not: leave `time` out here, and ask for payload.time, level(n) or topic"
        )


def numbers_that_hold(events: Sequence[Event], where: str) -> Ints:
    """The numbers of the events for which a condition holds, ascending. Raises UsageError."""
    asked = EventFilter(where)
    return np.array([n for n, event in enumerate(events) if asked.holds(event.topic, event.payload)], dtype=np.int64)
