"""What a coordinator needs of a `Store`, in memory: for the simulator and for tests of the sequencer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from lexicast.cluster.blocks import PUBLICATIONS, RETAIN, Block
from lexicast.cluster.errors import UsageError
from lexicast.cluster.records import (
    DictionaryStored,
    EpochStart,
    Released,
    SessionEnded,
    SessionMoved,
    SessionSaved,
    Subscribed,
    Unsubscribed,
)
from lexicast.cluster.selection import offsets_of, select, select_from
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.log.block_outline import outline
from lexicast.storage.log_reader import ReadResult
from lexicast.storage.store import StoreStats, Tail
from lexicast.storage.tables.producers import ProducerState, extended, parse_producer_row
from lexicast.storage.tables.sessions import due_us
from lexicast.storage.tables.state import Epoch
from lexicast.storage.upkeep.reclaiming import Reclaimed


class MemoryTables:
    """What follows from the blocks, as `Store.tables` reads it; the rows of producers are the store's own."""

    def __init__(self) -> None:
        self._producers: dict[tuple[int, bytes], bytes] = {}
        self._marks: dict[tuple[int, bytes, int], int] = {}
        self._epochs: dict[int, list[Epoch]] = {}
        self.session_rows: dict[tuple[int, str], SessionSaved] = {}
        self._subscriptions: dict[tuple[int, str, str], tuple[Subscribed, int]] = {}
        self._dictionaries: dict[tuple[int, int], DictionaryStored] = {}

    def apply(self, block: Block) -> None:
        """Follow a block."""
        found = outline(block)
        for row in found.producers:
            key = (block.group, row.producer)
            self._producers[key] = extended(self._producers.get(key), row, block.time_us)
        for mark in found.marks:
            self._marks[block.group, mark.session_uid, mark.packet_id] = mark.offset
        for at, record in enumerate(found.control):
            match record:
                case EpochStart():
                    start = Epoch(record.epoch, block.first + at, record.previous_last)
                    self._epochs.setdefault(block.group, []).append(start)
                case Released():
                    for packet_id in record.packet_ids:
                        self._marks.pop((block.group, record.session_uid, packet_id), None)
                case SessionSaved():
                    self.session_rows[block.group, record.client_id] = record
                case SessionMoved():
                    self._move_session(block.group, record)
                case SessionEnded():
                    self.session_rows.pop((block.group, record.client_id), None)
                case Subscribed():
                    self._subscriptions[block.group, record.broker, record.filter] = (record, block.first + at)
                case Unsubscribed():
                    self._subscriptions.pop((block.group, record.broker, record.filter), None)
                case DictionaryStored():
                    self._dictionaries[block.group, record.dictionary] = record

    def _move_session(self, group: int, record: SessionMoved) -> None:
        found = self.session_rows.get((group, record.client_id))
        if found is not None:
            changed = {name: getattr(record, name) for name in record._fields}
            self.session_rows[group, record.client_id] = found._replace(
                **changed | {"place": record.place or found.place}
            )

    def producer(self, group: int, producer: bytes) -> ProducerState | None:
        """As `TableReader.producer`."""
        row = self._producers.get((group, producer))
        return None if row is None else parse_producer_row(producer, row)

    def mark(self, group: int, session_uid: bytes, packet_id: int) -> int | None:
        """As `TableReader.mark`."""
        return self._marks.get((group, session_uid, packet_id))

    def epochs(self, group: int) -> list[Epoch]:
        """As `TableReader.epochs`."""
        return self._epochs.get(group, [])

    def session(self, group: int, client_id: str) -> SessionSaved | None:
        """As `TableReader.session`."""
        return self.session_rows.get((group, client_id))

    def sessions(self, group: int) -> Iterable[SessionSaved]:
        """As `TableReader.sessions`."""
        return [session for (home, _), session in self.session_rows.items() if home == group]

    def subscriptions(self, group: int) -> Iterable[tuple[Subscribed, int]]:
        """As `TableReader.subscriptions`."""
        return [found for (number, _, _), found in self._subscriptions.items() if number == group]

    def subscription(self, group: int, broker: str, topic: str) -> Subscribed | None:
        """As `TableReader.subscription`."""
        found = self._subscriptions.get((group, broker, topic))
        return None if found is None else found[0]

    def due_sessions(self, now_us: int, limit: int) -> list[tuple[int, SessionSaved]]:
        """As `TableReader.due_sessions`."""
        rows = [(group, s) for (group, _), s in self.session_rows.items() if 0 < due_us(s) <= now_us]
        return rows[:limit]

    def dictionary(self, group: int, dictionary: int) -> DictionaryStored | None:
        """As `TableReader.dictionary`."""
        return self._dictionaries.get((group, dictionary))

    def dictionaries(self, group: int) -> Iterable[DictionaryStored]:
        """As `TableReader.dictionaries`."""
        return [record for (home, _), record in self._dictionaries.items() if home == group]


class MemoryRetained:
    """As `Store.retained`, by looking through the log."""

    def __init__(self, blocks: dict[int, list[Block]]) -> None:
        self._blocks = blocks

    def record(self, group: int, topic: bytes) -> Block | None:
        """As `RetainedReader.record`."""
        found: Block | None = None
        for block in self._blocks.get(group, ()):
            if block.kind != PUBLICATIONS:
                continue
            for index, record in enumerate(block.records()):
                if record.flags & RETAIN and record.topic == topic:
                    part = select(block, [i == index for i in range(block.count)])
                    assert part is not None
                    found = replace(part, last=offsets_of(part)[0])
        return found if found is not None and found.body else None


class NoIndex:
    """As `Store.by_topic` while the index is being made."""

    def known(self) -> int:
        """As `TopicReader.known`."""
        return 0

    def find(self, topic_filter: bytes, after: bytes | None) -> None:
        """As `TopicReader.find`: it cannot tell."""


class MemoryStore:
    """Logs as lists of blocks, and the tables that follow from them."""

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.options = StoreOptions()
        self.blocks: dict[int, list[Block]] = {}
        self.full = False
        self.tables = MemoryTables()
        self.retained = MemoryRetained(self.blocks)
        self.by_topic = NoIndex()

    def discard_us(self) -> int:
        """As far as the log has come: a clock of its own it has none."""
        return max([blocks[-1].time_us for blocks in self.blocks.values() if blocks], default=0)

    def stats(self) -> StoreStats:
        """As `Store.stats`, as far as memory has any: what the log holds."""
        blocks = [block for log in self.blocks.values() for block in log]
        times = [block.time_us for block in blocks]
        size, records = sum([block.size_bytes for block in blocks]), sum([block.count for block in blocks])
        return StoreStats(
            used_bytes=size,
            file_bytes=size,
            log_bytes=size,
            free_bytes=self.options.quota_bytes - size,
            records=records,
            blocks=len(blocks),
            oldest_us=min(times, default=0),
            newest_us=max(times, default=0),
            topics=0,
            sessions=len(self.tables.session_rows),
            retained=0,
            index_pending=0,
            full=self.full,
            poisoned=False,
            pinned=False,
            clock_ahead_s=0.0,
            clock_left_s=0.0,
        )

    # -- writing

    def commit(self, blocks: Sequence[Block]) -> None:
        """Append blocks; offsets must ascend."""
        for block in blocks:
            log = self.blocks.setdefault(block.group, [])
            if log and not log[-1].last < block.first:
                raise UsageError(f"group {block.group}: offset {block.first} does not follow {log[-1].last}")
            self.tables.apply(block)
            log.append(block)

    def replayed(self, upto: dict[int, int]) -> MemoryStore:
        """A store with the blocks that end at or before `upto` (group -> offset): a follower that was truncated."""
        copy = MemoryStore(self.groups)
        for group, log in self.blocks.items():
            copy.commit([block for block in log if block.last <= upto.get(group, -1)])
        return copy

    def reclaim(self, now_us: int) -> Reclaimed:
        """Nothing is ever discarded."""
        return Reclaimed(0, 0, 0, False)

    def close(self) -> None:
        """Nothing to close."""

    # -- reading

    def room(self) -> bool:
        """Whether publications are accepted."""
        return not self.full

    def tails(self) -> dict[int, Tail]:
        """As `Store.tails`."""
        logs = {group: log for group, log in self.blocks.items() if log}
        return {g: Tail(log[-1].epoch, log[0].first, log[-1].last, log[-1].time_us) for g, log in logs.items()}

    def first_kept(self, group: int) -> int:
        """As `Store.first_kept`: nothing is ever discarded here."""
        return 0

    def read(
        self,
        group: int,
        offset: int,
        *,
        bytes_max: int = 1 << 20,
        upto: int | None = None,
        topics: Callable[[bytes], bool] | None = None,
        read_s: float = 0.0,
    ) -> ReadResult:
        """As `Store.read`."""
        found: list[Block] = []
        at, size = offset, 0
        for block in self.blocks.get(group, ()):
            if block.last < offset:
                continue
            if upto is not None and block.first > upto:
                return ReadResult(found, max(at, upto + 1), 0)
            at = block.last + 1
            if block.kind == PUBLICATIONS and (topics is None or any(map(topics, block.meta.topics))):
                part = select_from(block, offset)
                if part is not None:
                    found.append(part)
                    size += part.size_bytes
            if size >= bytes_max:
                break
        return ReadResult(found, at, 0)

    def records(self) -> Iterator[tuple[int, int, bytes, int, bytes]]:
        """(group, offset, topic, flags, payload) of every publication in the logs."""
        for group, log in self.blocks.items():
            for block in log:
                if block.kind == PUBLICATIONS:
                    yield from ((group, r.offset, r.topic, r.flags, r.payload) for r in block.records())

    def offset_at(self, group: int, time_us: int) -> int:
        """As `Store.offset_at`."""
        log = self.blocks.get(group, [])
        found = next((block.first for block in log if block.time_us >= time_us), None)
        return found if found is not None else (log[-1].last + 1 if log else 0)
