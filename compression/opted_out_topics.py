"""The topics that opt out: their payloads are never sampled, and never compressed, whoever publishes or gets them.

For secrets. A dictionary holds pieces of payloads, and the length of a compressed payload tells what it has in common
with what else was compressed (CRIME, BREACH). Brokers, sampling brokers and clients all ask the same filters; brokers
tell their clients of them: a Python client's link in its welcome ("optout"), a dictionary-aware MQTT connection in
CONNACK, one user property OPTOUT_PROPERTY a filter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lexicast.cluster.topics.names import check_filter, matches

OPTOUT_PROPERTY: Final = "sdc-optout"
CACHE_MAX: Final = 10_000


class OptedOut:
    """Whether a topic is opted out: call it. Remembers CACHE_MAX topics."""

    def __init__(self, filters: Iterable[bytes] = ()) -> None:
        """Raises TopicError when a filter is not one."""
        self.filters = tuple(filters)
        for topic_filter in self.filters:
            check_filter(topic_filter)
        self._known: dict[bytes, bool] = {}

    def __call__(self, topic: bytes) -> bool:
        if not self.filters:
            return False
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= CACHE_MAX:
                self._known.clear()
            known = self._known[topic] = any(matches(topic_filter, topic) for topic_filter in self.filters)
        return known
