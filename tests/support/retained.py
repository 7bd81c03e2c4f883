"""Retained publications as a wildcard's subscriber is answered: the names that match, then the record of each."""

from __future__ import annotations

from lexicast.cluster.blocks import Block
from lexicast.cluster.topics.name_tree import Path as Place
from lexicast.storage.store import Store


def retained_records(store: Store, group: int, topic_filter: bytes = b"#") -> list[Block]:
    """The retained publications of a group whose topics match, each a block of one record."""
    while not store.retained.load_names():
        pass
    found: list[bytes] = []
    after: Place | None = None
    while True:
        topics, after, _ = store.retained.names.scan(topic_filter, after, 100)
        found += topics
        if after is None:
            break
    return [block for topic in found if (block := store.retained.record(group, topic)) is not None]
