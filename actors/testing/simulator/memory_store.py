"""What a coordinator needs of a `Store`, in memory: for the simulator and for tests of the sequencer."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

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
from lexicast.cluster.recovery import GroupReport
from lexicast.cluster.selection import offsets_of, select, select_from
from lexicast.cluster.topics.names import matches
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.log.block_outline import outline
from lexicast.storage.log.stored_block import StoredBlock, sealed
from lexicast.storage.log_reader import ReadResult
from lexicast.storage.store import StoreStats, Tail
from lexicast.storage.tables.producers import ProducerState, extended, parse_producer_row
from lexicast.storage.tables.sessions import due_us
from lexicast.storage.tables.state import GENERATION_ID, Epoch
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
            self._see_generation(block.group, mark.session_uid, mark.generation)
        for at, record in enumerate(found.control):
            match record:
                case EpochStart():
                    start = Epoch(record.epoch, block.first + at, record.previous_last)
                    self._epochs.setdefault(block.group, []).append(start)
                case Released():
                    for packet_id in record.packet_ids:
                        self._marks.pop((block.group, record.session_uid, packet_id), None)
                    self._see_generation(block.group, record.session_uid, record.generation)
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

    def _tables(self) -> list[dict[Any, Any]]:
        return [
            self._producers,
            self._marks,
            self._epochs,
            self.session_rows,
            self._subscriptions,
            self._dictionaries,
        ]

    def of_group(self, group: int) -> list[Any]:
        """Everything of one group."""
        return [
            {k: v for k, v in table.items() if (k if isinstance(k, int) else k[0]) == group} for table in self._tables()
        ]

    def install(self, group: int, rows: list[dict[Any, Any]]) -> None:
        """Take another store's rows of a group in place of its own."""
        for table, of_group in zip(self._tables(), rows, strict=True):
            for key in [key for key in table if (key if isinstance(key, int) else key[0]) == group]:
                del table[key]
            table.update(of_group)

    def _see_generation(self, group: int, session_uid: bytes, generation: int) -> None:
        session = (group, session_uid, GENERATION_ID)
        self._marks[session] = max(generation, self._marks.get(session, 0))

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

    def generation(self, group: int, session_uid: bytes) -> int:
        """As `TableReader.generation`."""
        return self._marks.get((group, session_uid, GENERATION_ID), 0)

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

    def due_sessions(
        self, now_us: int, limit: int, groups: Container[int] | None = None
    ) -> list[tuple[int, SessionSaved]]:
        """As `TableReader.due_sessions`."""
        rows = [(group, s) for (group, _), s in self.session_rows.items() if 0 < due_us(s) <= now_us]
        return [row for row in rows if groups is None or row[0] in groups][:limit]

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
        self.names = self

    def load_names(self) -> bool:
        """As `RetainedReader.load_names`."""
        return True

    def scan(self, topic_filter: bytes, after: object, steps: int) -> tuple[list[bytes], None, int]:
        """As `RetainedNames.scan`, all at once."""
        blocks = [block for log in self._blocks.values() for block in log if block.kind == PUBLICATIONS]
        found = dict.fromkeys([r.topic for block in blocks for r in block.records() if r.flags & RETAIN])
        return [topic for topic in sorted(found) if matches(topic_filter, topic)], None, 0

    def missing(self, topics: Sequence[bytes], token: int) -> None:
        """As `RetainedNames.missing`."""

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


# More than 25 methods: they are those of a `Store` that a coordinator calls.
class MemoryStore:
    """Logs as lists of blocks, and the tables that follow from them."""

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.options = StoreOptions()
        self.blocks: dict[int, list[Block]] = {}
        # Blocks that are not applied yet, and what else a copy needs.
        self.tail: dict[int, list[StoredBlock]] = {}
        self._promises: dict[int, int] = {}
        self._counted: dict[int, tuple[int, tuple[str, ...]]] = {}
        self._reflected: dict[int, int] = {}
        self.aside: dict[str, list[Block]] = {}
        # Told of each block that is applied.
        self.when_applied: Callable[[Block], None] = lambda block: None
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

    def commit(self, blocks: Sequence[Block | StoredBlock], apply: Mapping[int, int] | None = None) -> None:
        """As `Store.commit`."""
        stored = [each if isinstance(each, StoredBlock) else sealed(each) for each in blocks]
        ends: dict[int, int] = {}
        for each in stored:
            block = each.block
            last, epoch = self._end(block.group)
            last = ends.get(block.group, last)
            if not last < block.first:
                raise UsageError(f"group {block.group}: offset {block.first} does not follow {last}")
            if block.epoch < epoch:
                raise UsageError(f"group {block.group}: epoch {block.epoch} is older than {epoch}")
            ends[block.group] = block.last
        for each in stored:
            self.tail.setdefault(each.block.group, []).append(each)
        for group in {each.block.group for each in stored} if apply is None else apply:
            waiting = self.tail.get(group, [])
            while waiting and (apply is None or waiting[0].block.last < apply[group]):
                self._apply(waiting.pop(0).block)

    def _apply(self, block: Block) -> None:
        if block.last >= self._reflected.get(block.group, 0):
            self.tables.apply(block)
        self.blocks.setdefault(block.group, []).append(block)
        self.when_applied(block)

    # -- copies

    def _end(self, group: int) -> tuple[int, int]:
        blocks = [*self.blocks.get(group, [])[-1:], *[each.block for each in self.tail.get(group, [])[-1:]]]
        return (blocks[-1].last, blocks[-1].epoch) if blocks else (-1, 0)

    def promise(self, epochs: Mapping[int, int]) -> None:
        """As `Store.promise`."""
        for group, epoch in epochs.items():
            self._promises[group] = max(epoch, self._promises.get(group, 0))

    def forget_promises(self) -> None:
        """What a store never does."""
        self._promises.clear()

    def promised(self, group: int) -> int:
        """As `Store.promised`."""
        return max(self._end(group)[1], self._promises.get(group, 0), self._counted.get(group, (0, ()))[0])

    def count_with(self, sets: Mapping[int, tuple[int, tuple[str, ...]]], alone: bool = False) -> None:
        """As `Store.count_with`."""
        for group, (epoch, members) in sets.items():
            known = self._counted.get(group, (0, ()))
            if epoch >= known[0]:
                names = {*members, *known[1]} if epoch == known[0] and not alone else {*members}
                self._counted[group] = (epoch, tuple(sorted(names)))

    def reports(self) -> dict[int, GroupReport]:
        """As `Store.reports`."""
        found = {}
        for group in self.known_epochs():
            last, epoch = self._end(group)
            counted = self._counted.get(group, (0, ()))
            found[group] = GroupReport(self.promised(group), epoch, last, True, *counted)
        return found

    def known_epochs(self) -> dict[int, int]:
        """As `Store.known_epochs`."""
        found = {group: self.promised(group) for group in {*self.blocks, *self.tail, *self._promises, *self._counted}}
        return {group: epoch for group, epoch in found.items() if epoch}

    def truncate(self, group: int, last: int) -> None:
        """As `Store.truncate`."""
        if last + 1 < self.applied_below(group):
            raise UsageError(f"group {group}: {last} lies before {self.applied_below(group)}, which is applied")
        self.tail[group] = [each for each in self.tail.get(group, []) if each.block.last <= last]

    def applied_below(self, group: int) -> int:
        """As `Store.applied_below`."""
        log = self.blocks.get(group)
        return log[-1].last + 1 if log else 0

    def applied_end(self, group: int) -> tuple[int, int, int]:
        """As `Store.applied_end`."""
        log = self.blocks.get(group)
        return (log[-1].epoch, log[-1].last, log[-1].time_us) if log else (0, -1, 0)

    def end_at(self, group: int, epoch: int, last: int, time_us: int) -> None:
        """As `Store.end_at`, which nobody needs where nothing is ever discarded."""
        raise UsageError(f"group {group}: the end of the log, offset {last} of epoch {epoch}, {time_us}, is there")

    def set_aside(self, group: int, offset: int, epoch: int) -> int | None:
        """As `Store.set_aside`, all at once."""
        found = [block for block in self.blocks.get(group, []) if block.last >= offset]
        self.aside.setdefault(f"group {group} epoch {epoch}", []).extend(found)
        return None

    def all_set_aside(self) -> list[str]:
        """As `Store.all_set_aside`."""
        return sorted(self.aside)

    def forget_group(self, group: int) -> bool:
        """As `Store.forget_group`, all at once."""
        self.blocks.pop(group, None)
        self.tail.pop(group, None)
        self._reflected.pop(group, None)
        self.tables.install(group, [{}] * len(self.tables.of_group(group)))
        return False

    def epoch_starts(self, group: int) -> list[Epoch]:
        """As `Store.epoch_starts`."""
        found = list(self.tables.epochs(group))
        for each in self.tail.get(group, []):
            for at, record in enumerate(each.outline.control):
                if isinstance(record, EpochStart):
                    found.append(Epoch(record.epoch, each.block.first + at, record.previous_last))
        return found

    def sealed(self, block: Block) -> StoredBlock:
        """As `Store.sealed`."""
        return sealed(block)

    def stored(self, group: int, offset: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """As `Store.stored`, a few blocks at a time."""
        blocks = [*self.blocks.get(group, []), *[each.block for each in self.tail.get(group, [])]]
        found = [block for block in blocks if block.last >= offset]
        return [(block.last, sealed(block).value) for block in found[:3]]

    def group_snapshot(self, group: int, place: object) -> tuple[Any, None]:
        """As `Store.group_snapshot`, in one page that only `install` here understands."""
        page = pickle.dumps(self.tables.of_group(group))
        return (page, self.applied_below(group)), None

    def install(self, group: int, page: Any) -> None:
        """As `Store.install`."""
        tables, below = page
        self.tables.install(group, pickle.loads(tables))
        self._reflected[group] = below
        for block in self.blocks.get(group, []):
            if block.last >= below:
                self.tables.apply(block)

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

    def has(self, group: int, offset: int, payload: bytes) -> bool:
        """Whether a record is durable here, applied or not."""
        blocks = [*self.blocks.get(group, []), *[each.block for each in self.tail.get(group, [])]]
        found = [block for block in blocks if block.first <= offset <= block.last]
        return any((r.offset, r.payload) == (offset, payload) for block in found for r in block.records())

    def holds(self, group: int, payload: bytes) -> bool:
        """Whether a publication is durable here, applied or not, wherever it stands."""
        blocks = [*self.blocks.get(group, []), *[each.block for each in self.tail.get(group, [])]]
        return any(r.payload == payload for block in blocks if block.kind == PUBLICATIONS for r in block.records())

    def publications(self, group: int) -> list[tuple[int, bytes]]:
        """(offset, payload) of everything that is applied."""
        blocks = [block for block in self.blocks.get(group, []) if block.kind == PUBLICATIONS]
        return [(record.offset, record.payload) for block in blocks for record in block.records()]

    def room(self) -> bool:
        """Whether publications are accepted."""
        return not self.full

    def tails(self) -> dict[int, Tail]:
        """As `Store.tails`."""
        found = {}
        for group in {*self.blocks, *self.tail}:
            log = [*self.blocks.get(group, []), *[each.block for each in self.tail.get(group, [])]]
            if log:
                found[group] = Tail(log[-1].epoch, log[0].first, log[-1].last, log[-1].time_us)
        return found

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
        expired: bool = False,
        read_s: float = 0.0,
    ) -> ReadResult:
        """As `Store.read`; nothing expires here."""
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
