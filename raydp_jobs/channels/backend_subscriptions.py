"""The back-end subscriptions (REAPS, section II): each set of parameters that anybody subscribes to, once.

A broker has one subscription of a topic, however many of its clients do, and records it in the log; here those of all
brokers become one.
"""

from __future__ import annotations

from pathlib import Path

import ray

from lexicast.storage.log_scanner import LogScanner

from ..history.reading import Place, get, on_node_of, places
from .definitions import PREFIX, Value, parse_topic


def subscribed(place: Place) -> list[str]:
    """The channel topics that brokers are subscribed to in one store; runs on its node."""
    with LogScanner(Path(place.directory)) as scanner:
        filters = [filter for group in place.committed for filter in scanner.subscriptions(group)]
    return sorted({filter for filter in filters if filter.startswith(PREFIX) and filter.count("/") == 2})


def channel_subscriptions() -> dict[str, dict[str, dict[str, Value]]]:
    """Channel -> topic -> parameters, of every back-end subscription in the cluster."""
    remote = ray.remote(num_cpus=0)(subscribed)
    refs = [remote.options(scheduling_strategy=on_node_of(place)).remote(place) for place in places()]
    found: dict[str, dict[str, dict[str, Value]]] = {}
    for topic in {topic for ref in refs for topic in get(ref)}:
        parsed = parse_topic(topic)
        if parsed is not None:
            found.setdefault(parsed[0], {})[topic] = parsed[1]
    return found
