"""Entries on their way to a coordinator: publications gathered a topic group at a time, and batches not yet answered.

An entry becomes one block: runs of one read after the other, from whichever connections, until it is sent. A batch
is one PUBLISH message. Batches keep their content until the ACK, to be sent again unchanged when the link or the
coordinator was lost meanwhile: the broker is the producer, so the group answers a repeat with its first position.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from lexicast.cluster.blocks import FIRST_DICTIONARY, RAW, RUN_FIELDS, U32, Mark, ProducerRun, pack_columns
from lexicast.cluster.protocol.messages import WireEntry

from .stored_compression import StoredCompression

# Called with the entry's result: runs of (count, epoch, first offset), or a text that says why it was refused.
Done = Callable[[Any], None]

ENTRY_BYTES_MAX: Final = 1024 * 1024
# A coordinator takes at most `RECORDS_PENDING_MAX` records of a group at once; entries are to stay far below it.
ENTRY_RECORDS_MAX: Final = 65_536
# What a run costs beside its payloads and its topic, about.
RUN_BYTES: Final = 64

# Fields of a run that is being built (`blocks.Run`).
_TOPIC: Final = 1
_ENCODING: Final = 3
_COUNT: Final = 7


# What `dataclass` makes to initialize an object is interpreted, also in compiled code.
@dataclass(slots=True, init=False)
class SealedEntry:
    """An entry as it is sent, and whom to tell of its result."""

    wire: WireEntry
    done: list[Done]
    dictionaries: tuple[int, ...]
    size_bytes: int
    # Its publishers wait for the commit (QoS 1 and 2 of this broker's own making).
    awaited: bool = False
    # It was given to another pipeline: what becomes of it here is of no interest.
    moved: bool = False
    # When it was sent first, by the loop's clock; inf: it was not yet.
    since_s: float = field(init=False)

    def __init__(
        self,
        wire: WireEntry,
        done: list[Done],
        dictionaries: tuple[int, ...],
        size_bytes: int,
        awaited: bool = False,
        moved: bool = False,
    ) -> None:
        self.wire = wire
        self.done = done
        self.dictionaries = dictionaries
        self.size_bytes = size_bytes
        self.awaited = awaited
        self.moved = moved
        self.since_s = inf


class GroupEntryBuilder:
    """Publications of one group that wait for the next batch."""

    __slots__ = (
        "_dictionaries",
        "_done",
        "_flat",
        "_group",
        "_last_encoding",
        "_last_expiry_ms",
        "_last_flags",
        "_last_origin",
        "_last_properties",
        "_last_topic",
        "_marks",
        "_origins",
        "_payloads",
        "_topics",
        "count",
        "size_bytes",
    )

    def __init__(self, group: int) -> None:
        self._group = group
        self._topics: dict[bytes, int] = {}
        self._origins: dict[str, int] = {}
        self._dictionaries: dict[int, int] = {}
        # The fields of its runs, one run after the other.
        self._flat: list[Any] = []
        self._payloads: list[bytes] = []
        self._marks: list[Mark] = []
        self._done: list[Done] = []
        # What the last run has in common: topics are never empty.
        self._last_topic = b""
        self._last_flags = self._last_encoding = self._last_expiry_ms = 0
        self._last_properties: dict[int, Any] | None = None
        self._last_origin = ""
        self.count = 0
        self.size_bytes = 0

    def add(
        self,
        topic: bytes,
        flags: int,
        payloads: list[bytes],
        origin: str,
        encoding: int = 0,
        dictionary: int | None = None,
        expiry_ms: int = 0,
        properties: dict[int, Any] | None = None,
    ) -> int:
        """Append publications that differ only in payload. Returns by how many bytes `size_bytes` has grown."""
        count = len(payloads)
        size = U32 + len(payloads[0]) if count == 1 else U32 * count + sum(map(len, payloads))
        if dictionary is not None:
            encoding = FIRST_DICTIONARY + self._dictionaries.setdefault(dictionary, len(self._dictionaries))
        if (
            topic == self._last_topic
            and flags == self._last_flags
            and encoding == self._last_encoding
            and expiry_ms == self._last_expiry_ms
            and origin == self._last_origin
            and properties == self._last_properties
        ):
            self._flat[-1] += count
        else:
            self._last_topic, self._last_origin, self._last_properties = topic, origin, properties
            self._last_flags, self._last_encoding, self._last_expiry_ms = flags, encoding, expiry_ms
            size += RUN_BYTES + len(topic)
            topics, origins = self._topics, self._origins
            topic_index = topics.setdefault(topic, len(topics))
            origin_index = origins.setdefault(origin, len(origins))
            self._flat += (0, topic_index, flags, encoding, expiry_ms, properties, origin_index, count)
        self._payloads += payloads
        self.count += count
        self.size_bytes += size
        return size

    def full_with(self, payloads: list[bytes]) -> bool:
        """Whether so much has gathered that these go into an entry of their own."""
        if self.count > ENTRY_RECORDS_MAX:
            return True
        size = len(payloads[0]) if len(payloads) == 1 else sum(map(len, payloads))
        return self.size_bytes + size > ENTRY_BYTES_MAX

    def mark(self, session_uid: bytes, generation: int, packet_ids: list[int]) -> None:
        """The publications just added are QoS 2, not released yet."""
        first = self.count - len(packet_ids)
        self._marks += [Mark(first + i, session_uid, packet_id, generation) for i, packet_id in enumerate(packet_ids)]

    def when_done(self, done: Done) -> None:
        """Call `done` with the entry's result."""
        self._done.append(done)

    @property
    def awaited(self) -> bool:
        """Whether some publisher waits for the commit."""
        return bool(self._done)

    def seal(
        self, producer: bytes, incarnation: int, sequence: int, compression: StoredCompression | None = None
    ) -> SealedEntry:
        """The entry as it is sent; its first publication has `sequence`. `compression` compresses what came raw."""
        if compression is not None and (began_s := compression.begin(self.count)) is not None:
            raw = list(self._payloads)
            if self._compress(compression):
                compression.remember(producer, incarnation, self._group, sequence, raw)
            compression.end(self.count, began_s)
        dictionaries = tuple(self._dictionaries)
        meta = pack_columns(
            tuple(self._topics),
            self._flat,
            (ProducerRun(producer, incarnation, sequence, self.count),),
            self._marks,
            tuple(self._origins),
            dictionaries,
        )
        lengths, body = array("I", map(len, self._payloads)).tobytes(), b"".join(self._payloads)
        size = len(meta) + len(lengths) + len(body)
        return SealedEntry((self._group, meta, lengths, body), self._done, dictionaries, size, self.awaited)

    def _compress(self, compression: StoredCompression) -> bool:
        """Raw runs in their family's compression; whether there is one, and all payloads came raw."""
        topics, payloads, flat = list(self._topics), self._payloads, self._flat
        came_raw, compressed, end = True, False, 0
        for run in range(0, len(flat), RUN_FIELDS):
            start, end = end, end + flat[run + _COUNT]
            if flat[run + _ENCODING] != RAW:
                came_raw = False
                continue
            made = compression.run(topics[flat[run + _TOPIC]], payloads[start:end], bool(self._dictionaries))
            if made is not None:
                compressed = True
                index = self._dictionaries.setdefault(made.dictionary, len(self._dictionaries))
                flat[run + _ENCODING] = FIRST_DICTIONARY + index
                payloads[start:end] = made.payloads
        return came_raw and compressed


@dataclass(slots=True)
class PublishBatch:
    """One PUBLISH message that has not been answered. `since_s`: when it is made, by the loop's clock; from then on
    when the oldest of its entries was sent first, here or in another batch."""

    tag: int
    entries: list[SealedEntry]
    since_s: float
    taken: bool = False
    size_bytes: int = field(init=False)
    awaited: bool = field(init=False)

    def __post_init__(self) -> None:
        for entry in self.entries:
            if entry.since_s == inf:
                entry.since_s = self.since_s
        self.count()

    def count(self) -> None:
        """What is in it has changed."""
        self.awaited = any([entry.awaited for entry in self.entries])
        self.size_bytes = sum([entry.size_bytes for entry in self.entries])
        self.since_s = min([entry.since_s for entry in self.entries], default=inf)

    def give_up(self, groups: Container[int]) -> list[SealedEntry]:
        """Take the entries of these groups out; what is answered for them is of no interest any more."""
        given = []
        for at, entry in enumerate(self.entries):
            if entry.wire[0] in groups and not entry.moved:
                given.append(entry)
                self.entries[at] = SealedEntry(entry.wire, [], (), 0, False, True)
        if given:
            self.count()
        return given
