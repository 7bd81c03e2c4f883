"""The store of one coordinator: group logs, the tables that follow from them, and DualDB, in one LMDB environment.

Threads: `commit`, `promise`, `count_with`, `truncate`, `install`, `forget_group`, `reclaim`, `flush` and `close` belong
to one writer thread; everything else may be called on any. A commit is one durable transaction: the blocks, what they
mean for the tables, and nothing else. The index's memory table is entered after it. What is not to count yet is put
aside (`log.unapplied_tail`).

Errors: the caller's mistake (UsageError) and a full store or disk (StoreFullError) leave everything as it was; any
other error of LMDB or the operating system *poisons* the store (see `guard`). What is damaged is no error (see
`damage`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import lmdb
import numpy as np

from lexicast.cluster.blocks import Block
from lexicast.cluster.clock import Clock, TrustedTime
from lexicast.cluster.errors import StoreError, UsageError

from .commits import Commits
from .dualdb.rows import RowColumns
from .environment.environment import Environment
from .environment.guard import Guard
from .environment.identity import Identity, identify
from .environment.options import StoreOptions
from .environment.space import Space
from .file.table import AnyTransaction
from .index.index_writer import IndexWriter
from .index.log_index import LogIndex
from .log.block_format import FORMAT_VERSION
from .log.block_log import Log
from .log.stored_block import StoredBlock
from .log.unapplied_tail import UnappliedTail
from .log_reader import READ_S, LogReader, ReadResult
from .replicated_groups import ReplicatedGroups
from .retained_reader import RetainedReader
from .table_reader import TableReader
from .tables import groups as group_rows
from .tables.counted import CountedMembers, counted_rows
from .tables.groups import StoredGroup
from .tables.promises import NOT_PROMISED, Promise, promises
from .tables.state import State
from .tables.topics import GROUP_SHIFT, TopicIds
from .topic_reader import TopicReader
from .upkeep.housekeeping import Housekeeping
from .upkeep.reclaiming import Reclaimed
from .upkeep.row_inspection import RowInspection


class Tail(NamedTuple):
    """Where a group's log stands, with what is not applied yet: its epoch, the oldest and the last durable offset, the
    time of the last block."""

    epoch: int
    first: int
    last: int
    time_us: int


class StoreStats(NamedTuple):
    """What a store holds. Times are 0 when there is nothing; `free_bytes` includes the reserve.

    `pinned`: a reader has held an old snapshot for seconds, so that freed pages cannot be used again.
    `clock_ahead_s`: by how much the clock has jumped, `clock_left_s`: for how long it is not believed yet.
    """

    used_bytes: int
    file_bytes: int
    log_bytes: int
    free_bytes: int
    records: int
    blocks: int
    oldest_us: int
    newest_us: int
    topics: int
    sessions: int
    retained: int
    index_pending: int
    full: bool
    poisoned: bool
    pinned: bool
    clock_ahead_s: float
    clock_left_s: float


class Store(ReplicatedGroups):
    """See the module's docstring; made by `Store.open`.

    `tables` and `retained` are its readers of what follows from the log, `by_topic` that of few topics' past,
    `environment` and `damage` what lies below. What concerns groups that others hold too is in `replicated_groups`.
    """

    def __init__(self, environment: Environment, identity: Identity, options: StoreOptions, clock: Clock) -> None:
        self.cluster_id = identity.cluster_id
        self.member = identity.member
        self.groups = identity.groups
        self.environment = environment
        self.options = options
        self._databases = environment.databases
        self._options = options
        self._clock = clock
        self._groups: dict[int, StoredGroup] = {}
        self.damage = environment.damage
        self._log = Log(self._databases.log, self.damage)
        self._index = LogIndex(self._databases.dual, options, self._still_logged, self._oldest_us, self.damage)
        self._ids = TopicIds(self._databases, environment.begin, options.topic_cache_max)
        self._state = State(self._databases, self._ids, self._index.subscriptions)
        self._space = Space(environment, options, clock)
        self.guard = Guard(environment, self._space)
        self._time_lock = threading.Lock()
        self.retained = RetainedReader(self.guard, self._databases, self._log, clock)
        self._inspection = RowInspection(
            environment, self._index, self._ids, self._state, clock, self.retained.recorded_topic
        )
        self._inspection.at_open()
        self._tail = UnappliedTail(self._databases.tail, self.damage, environment.snapshot)
        self._promises: dict[int, Promise] = {}
        self._counted: dict[int, CountedMembers] = {}
        self._load_groups()
        self._index_writer = IndexWriter(environment, self._log, self._index, self._ids, self._groups)
        self._reader = LogReader(self._log, self._groups, clock)
        self.by_topic = TopicReader(self._databases, self.guard, self._log, self._index, self._groups, clock)
        self.tables = TableReader(self.guard, self._databases, self._state, self._index.subscriptions)
        self._retained_names = self.retained.names
        parts = (self._log, self._index, self._ids, self._groups, self._index_writer, self._inspection, self._space)
        self._housekeeping = Housekeeping(environment, *parts, options, clock)
        self._commits = Commits(
            environment,
            self.guard,
            self._space,
            options,
            identity.groups,
            self._groups,
            self._promises,
            self._log,
            self._tail,
            self._state,
            self._ids,
            self._index_writer,
            self._index.memory,
            self._retained_names,
            self._housekeeping,
        )
        self._index_writer.open(clock)
        newest_us = max([group.time_us for group in self._groups.values()], default=0)
        self._time = TrustedTime(clock.time_us(), clock.monotonic(), newest_us, confirm_s=options.clock_confirm_s)

    def _still_logged(self, rows: RowColumns) -> RowColumns:
        """The index's rows that retention has not passed by."""
        known = [self._groups.get(number) for number in range(self.groups)]
        firsts = np.array([max(g.first, g.first_kept) if g is not None else 0 for g in known], np.uint64)
        return rows.take(rows.seq >= firsts[(rows.key >> np.uint64(GROUP_SHIFT)).astype(np.intp)])

    def _oldest_us(self, txn: AnyTransaction) -> int:
        """The time of the oldest block in the log; 0 when there is none."""
        heads = [self._log.head_at(txn, group.number, 0) for group in list(self._groups.values())]
        return min([head.time_us for head in heads if head is not None], default=0)

    @classmethod
    def open(
        cls, directory: Path, *, cluster_id: str, member: str, groups: int, options: StoreOptions, clock: Clock
    ) -> Store:
        """Open the store in `directory`, or create it there when the directory is empty or missing.

        Raises StoreFormatError (another cluster's or member's, another number of groups, newer, damaged),
        StorePoisonedError (an earlier I/O error that nobody has looked at), StoreError (in use, no permission) and
        UsageError (`groups` out of range).
        """
        if not 1 <= groups < 2**16:
            raise UsageError(f"groups must be 1 to 65535, not {groups}")
        environment = Environment(directory, options)
        try:
            identity = Identity(FORMAT_VERSION, cluster_id, member, groups)
            identify(environment, identity)
            return cls(environment, identity, options, clock)
        except lmdb.Error as error:
            environment.close()
            raise StoreError(f"the store {directory} cannot be opened: {error}") from None
        except BaseException:
            environment.close()
            raise

    def _load_groups(self) -> None:
        """Fill `_groups` from the rows and the ends of the logs, and the tail from what lies behind these."""
        with self.environment.snapshot() as txn:
            found = group_rows.find_groups(self._databases, self._log, txn)
            useless = self._tail.load(txn, found.sound_lasts)
            self._promises.update(promises(self._databases, txn))
            self._counted.update(counted_rows(self._databases, txn))
        if useless:
            with self.environment.begin() as written:
                for key in useless:
                    written.delete(key, db=self._databases.tail)
        self._groups.update(found.groups)
        for number, group in self._groups.items():
            group.first_kept = max(group.first_kept, self._promises.get(number, NOT_PROMISED).first_kept)
            if (ends := self._tail.ends(number)) is not None:
                # What follows is there: no damaged block before it was further.
                group.last = min(group.last, ends[0].first - 1)
                group.first = min(group.first, group.last + 1)
        self._ids.number_from(found.next_topics)

    def close(self) -> None:
        """Write the index behind (so that the next start has nothing to do), wait for readers, close."""
        if self.guard.closed:
            return
        if self.guard.poison is None:
            with suppress(StoreError):
                self.flush()
        self.guard.close()

    # writing

    def commit(self, blocks: Sequence[Block | StoredBlock], apply: Mapping[int, int] | None = None) -> None:
        """Append blocks, apply what they mean to the tables, and make it all durable, in one transaction.

        `apply`: group -> up to where its log counts: only what lies below is applied, of these blocks and of what an
        earlier commit has appended; the rest waits. None: all of these blocks are applied, and what lies before them.
        (What waits and is too much for one transaction is applied in several before this one.)

        Raises UsageError (offsets or epochs that do not ascend, or an epoch older than was promised, a group out of
        range, a block too big or contradicting itself) and StoreFullError (publications beyond quota or disk less the
        reserve): no block was written. Raises StoreError on an I/O error, which poisons the store. A StoredBlock may be
        of an older epoch than was promised: so are those of the past that a leader ships, whose own epoch its taker
        has compared.
        """
        self.guard.usable()
        self._commits.commit(blocks, apply)

    # upkeep

    def reclaim(self, now_us: int) -> Reclaimed:
        """One bounded step (a few ms) of writing behind or reclaiming; call it often, at once while `more`.

        `now_us` is the wall clock's time; where it has jumped, `discard_us` counts. Raises StoreFullError (nothing was
        done), StoreError on an I/O error, which poisons the store.
        """
        with self.guard():
            return self._housekeeping.step(self._believed_us(now_us))

    def discard_us(self) -> int:
        """The time by which things may be discarded: the wall clock's, unless that has jumped."""
        return self._believed_us(self._clock.time_us())

    def _believed_us(self, now_us: int) -> int:
        with self._time_lock:
            return self._time.us(now_us, self._clock.monotonic())

    def flush(self) -> None:
        """Write all of the index's memory table. Not needed for durability."""
        with self.guard():
            self._index_writer.flush()

    def rebuild_index(self) -> None:
        """Empty DualDB's index and enter everything again, from the log and the table of subscriptions."""
        with self.guard():
            self._index_writer.rebuild()

    def room(self) -> bool:
        """Publications are accepted now. Cheap: measured at each commit, the disk at most each 0.25 s."""
        self.guard.usable()
        return self._space.room()

    # reading

    def tails(self) -> dict[int, Tail]:
        """Where each group that ever had records stands."""
        self.guard.usable()
        groups = list(self._groups.values())
        found = {g.number: Tail(g.epoch, g.first, g.last, g.time_us) for g in groups if g.last >= 0}
        for group in self._tail.groups():
            if (ends := self._tail.ends(group)) is not None:
                begin, end = ends
                known = found.get(group) or Tail(0, begin.first, -1, 0)
                first = begin.first if known.first > known.last else known.first
                found[group] = Tail(end.epoch, first, end.last, end.time_us)
        return found

    def read(
        self,
        group: int,
        offset: int,
        *,
        bytes_max: int = 1 << 20,
        upto: int | None = None,
        topics: Callable[[bytes], bool] | None = None,
        expired: bool = False,
        read_s: float = READ_S,
    ) -> ReadResult:
        """Blocks of `group` from the one that holds `offset` on, to about `bytes_max` bytes or `read_s`.

        Records before `offset` and beyond `upto` (included) are cut off; expired publications are left out unless
        `expired`; with `topics`, blocks none of whose topics it accepts are left out, and control blocks with them.
        Go on from `next_offset`, also when no block was returned: there is more while it is at or before the tail.
        What is damaged is left out and counted (`damage`).
        """
        known = self._groups.get(group)
        tail = known.last if known is not None else -1
        with self.guard.reading() as txn:
            return self._reader.read(txn, group, offset, bytes_max, upto, topics, expired, tail, read_s)

    def count(
        self, group: int, offset: int, upto: int, topics: Callable[[bytes], bool], read_s: float = READ_S
    ) -> tuple[int, int]:
        """How many publications of topics that `topics` accepts lie from `offset` to `upto` and have not expired.

        As far as `read_s` goes; and where to go on. Payloads are not looked at.
        """
        with self.guard.reading() as txn:
            return self._reader.count(txn, group, offset, upto, topics, read_s)

    def first_kept(self, group: int) -> int:
        """The first offset that retention has not discarded (expiry does not move it)."""
        self.guard.usable()
        return self._reader.first_kept(group)

    def offset_at(self, group: int, time_us: int) -> int:
        """The first stored offset whose block's time is at or after `time_us`; the last offset + 1 if there is none."""
        with self.guard.reading() as txn:
            known = self._groups.get(group)
            return 0 if known is None else self._log.offset_at(txn, group, time_us, known.first, known.last)

    def stats(self) -> StoreStats:
        """What the store holds. Also answers when the store is poisoned, with what was last known."""
        groups = list(self._groups.values())
        oldest = blocks = topics = sessions = retained = log_bytes = 0
        if self.guard.poison is None:
            with self.guard.reading() as txn:
                oldest = self._oldest_us(txn)
                blocks = txn.stat(self._databases.log)["entries"]
                topics = txn.stat(self._databases.names.database)["entries"]
                sessions = txn.stat(self._databases.sessions.database)["entries"]
                retained = txn.stat(self._databases.retained.database)["entries"]
                log_bytes = self.environment.log_bytes(txn)
        return StoreStats(
            used_bytes=self._space.used,
            file_bytes=self.environment.file_bytes(),
            log_bytes=log_bytes,
            free_bytes=max(0, self._space.free),
            records=sum(g.records for g in groups),
            blocks=blocks,
            oldest_us=oldest,
            newest_us=max([g.time_us for g in groups], default=0),
            topics=topics,
            sessions=sessions,
            retained=retained,
            index_pending=self._index.memory.entries,
            full=not self._space.room(),
            poisoned=self.guard.poison is not None,
            pinned=self._space.pinned,
            clock_ahead_s=self._time.held_s,
            clock_left_s=self._time.left_s(self._clock.monotonic()),
        )
