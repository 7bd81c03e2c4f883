"""Entries that Python clients made, looked at before they go on: a client is its own producer, so they go unchanged."""

from __future__ import annotations

from typing import Any

from lexicast.cluster.blocks import U32, Meta, unpack_meta
from lexicast.cluster.errors import DictionaryError, LexicastError, PeerError
from lexicast.cluster.positions import topic_group
from lexicast.cluster.protocol.messages import WireEntry, check_entry_columns
from lexicast.cluster.topics.names import check_topic
from lexicast.compression.opening import AT_ONCE_BYTES_MAX, Room
from lexicast.compression.streams.batches import unpack_entry_columns

from ..pipelines.entries import SealedEntry

TOPICS_CHECKED_MAX = 100_000
# Of an entry's columns without its last payload: what clients put into a message is half of it.
UNPACKED_BYTES_MAX = 2 * 1024 * 1024


class EntryChecks:
    """See the module's docstring. Topics that were in order are remembered, of all clients together."""

    def __init__(self, groups: int, payload_bytes_max: int) -> None:
        self._groups = groups
        self._payload_bytes_max = payload_bytes_max
        self._checked: dict[bytes, int] = {}

    def entry(self, wire: Any) -> tuple[SealedEntry, int, Meta]:
        """The entry, how many records it has, and its meta.

        Raises PeerError for one that breaks the rules: the client library would not have sent it.
        """
        check_entry_columns(wire)
        group, meta, lengths, body = wire
        parsed = unpack_meta(meta)
        for topic in parsed.topics:
            self._check_topic(topic, group)
        largest = max(memoryview(lengths).cast("I"), default=0) if len(lengths) % U32 == 0 else 0
        if largest > self._payload_bytes_max:
            raise PeerError(f"a payload of {largest} bytes: at most {self._payload_bytes_max} are allowed")
        size = len(meta) + len(lengths) + len(body)
        return SealedEntry((group, meta, lengths, body), [], parsed.dictionaries, size), len(lengths) // U32, parsed

    def room(self) -> Room:
        """Room for what a PACKED message becomes; one entry always fits in."""
        return Room(max(AT_ONCE_BYTES_MAX, UNPACKED_BYTES_MAX + self._payload_bytes_max))

    def unpacked(self, wire: Any, room: Room) -> WireEntry:
        """An entry of a PACKED message as one of a PUBLISH. Raises PeerError, DictionaryError, NoRoomError."""
        check_entry_columns(wire)
        group, meta, head, packed = wire
        bytes_max = UNPACKED_BYTES_MAX + self._payload_bytes_max
        limit = room.limit(bytes_max)
        try:
            lengths, body = unpack_entry_columns(head, packed, limit)
        except DictionaryError:
            room.failed(len(packed), limit, bytes_max)
            raise
        room.take(len(lengths) + len(body))
        return group, meta, lengths, body

    def _check_topic(self, topic: bytes, group: int) -> None:
        """Raises PeerError unless `topic` is one and belongs to `group`."""
        known = self._checked.get(topic)
        if known is None:
            try:
                check_topic(topic)
            except LexicastError as error:
                raise PeerError(str(error)) from None
            if len(self._checked) >= TOPICS_CHECKED_MAX:
                self._checked.clear()
            known = self._checked[topic] = topic_group(topic, self._groups)
        if known != group:
            raise PeerError(f"topic {topic[:80]!r} belongs to group {known}, not {group}")
