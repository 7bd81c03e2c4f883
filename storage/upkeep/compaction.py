"""Compaction: control records that later ones have superseded leave the log, wherever they lie, in bounded steps.

`superseded` names them by position; the tables put them there in the transaction that applies what replaced them
(`sessions`). A block of which nothing is left goes, of another one the records that go are emptied (`records.Dropped`:
10 bytes instead of its own, so that offsets stay). Nobody misses them: who replays the log from before them comes to
the same tables. `first_kept` does not move. In offset order, so that a session's end leaves after what it ended.

The rows wait until there are many, or for a moment: a step costs a commit of its own.
"""

from __future__ import annotations

from itertools import groupby
from typing import Final, NamedTuple

from lexicast.cluster.blocks import CONTROL, control_block
from lexicast.cluster.clock import US_PER_S, Clock
from lexicast.cluster.errors import PeerError
from lexicast.cluster.records import Dropped, pack_record

from ..environment.environment import Environment
from ..environment.space import Space
from ..file.keys import log_key, parse_log_key
from ..file.sealing import DamageError, unseal
from ..file.table import AnyTransaction, WriteTransaction
from ..index.index_writer import IndexWriter
from ..log.block_format import block_of, encode_block, peek_head, verified_head
from ..log.block_log import Log
from ..tables import groups as group_rows
from ..tables.groups import StoredGroup
from ..tables.topics import TopicIds

DROPPED: Final = pack_record(Dropped())

ROWS_A_STEP: Final = 512
ROWS_WAITING_MAX: Final = 256
WAIT_S: Final = 10.0
STEP_S: Final = 0.002


class Compacted(NamedTuple):
    """What a step took out: blocks, their records, bytes; `more`: there is more to do now.
    `groups`: whose logs have changed."""

    blocks: int
    records: int
    bytes: int
    more: bool
    groups: list[int]


class _Gone(NamedTuple):
    """A block that went."""

    group: int
    last: int
    records: int


class Compaction:
    """See the module's docstring. Writer thread only."""

    def __init__(
        self,
        environment: Environment,
        log: Log,
        ids: TopicIds,
        groups: dict[int, StoredGroup],
        index_writer: IndexWriter,
        space: Space,
        clock: Clock,
    ) -> None:
        self._environment = environment
        self._databases = environment.databases
        self._log = log
        self._ids = ids
        self._groups = groups
        self._index_writer = index_writer
        self._space = space
        self._clock = clock
        self._last_us = 0
        self._under_way = False

    def step(self, now_us: int) -> Compacted | None:
        """One durable step; None when nothing is to be done yet."""
        with self._environment.snapshot() as txn:
            waiting = txn.stat(self._databases.superseded)["entries"]
            overdue = not 0 <= now_us - self._last_us < WAIT_S * US_PER_S
            if not waiting or not (self._under_way or overdue or waiting >= ROWS_WAITING_MAX):
                self._under_way = self._under_way and bool(waiting)
                return None
            rows, unreadable = self._rows(txn)
        if not (rows or unreadable):
            self._last_us, self._under_way = now_us, False
            return None
        done = self._take_out(rows, unreadable)
        self._last_us = now_us
        self._under_way = done.more
        return done

    def _rows(self, txn: AnyTransaction) -> tuple[list[tuple[int, int]], list[bytes]]:
        """The first positions, in order, and the keys among them that name none."""
        found: list[tuple[int, int]] = []
        unreadable: list[bytes] = []
        with txn.cursor(self._databases.superseded) as cursor:
            there = cursor.first()
            while there and len(found) < ROWS_A_STEP:
                try:
                    unseal("superseded", cursor.key(), cursor.value())
                    position = parse_log_key(cursor.key(), "superseded")
                    if self._is_to_come(*position):
                        there = cursor.set_range(log_key(position[0] + 1, 0))
                        continue
                    found.append(position)
                except DamageError as error:
                    self._environment.damage.note(error)
                    unreadable.append(bytes(cursor.key()))
                there = cursor.next()
        return found, unreadable

    def _is_to_come(self, group: int, offset: int) -> bool:
        """A copy may know of what is superseded before it has the log."""
        known = self._groups.get(group)
        return known is None or known.last < offset

    def _take_out(self, rows: list[tuple[int, int]], unreadable: list[bytes]) -> Compacted:
        until = self._clock.monotonic() + STEP_S
        taken = freed = 0
        gone: list[_Gone] = []
        with self._environment.begin() as txn:
            for key in unreadable:
                txn.delete(key, db=self._databases.superseded)
            for group, listed in groupby(rows, key=lambda row: row[0]):
                offsets = [offset for _, offset in listed]
                while offsets and self._clock.monotonic() < until:
                    last, size, went = self._compact_block(txn, group, offsets)
                    done = [offset for offset in offsets if offset <= last]
                    offsets = offsets[len(done) :]
                    for offset in done:
                        txn.delete(log_key(group, offset), db=self._databases.superseded)
                    taken += len(done)
                    freed += size
                    if went is not None:
                        gone.append(went)
            firsts = self._store_groups(txn, gone)
            used = self._environment.used_bytes(txn)
        for number, first in firsts.items():
            self._groups[number].first = first
        self._space.measured(used)
        more = taken < len(rows) or len(rows) == ROWS_A_STEP
        groups = sorted({group for group, _ in rows[:taken]})
        return Compacted(len(gone), sum([block.records for block in gone]), freed, more, groups)

    def _compact_block(self, txn: WriteTransaction, group: int, offsets: list[int]) -> tuple[int, int, _Gone | None]:
        """Deal with the block that holds the first of `offsets`: (its last offset, bytes freed, the block if it went).

        What retention took before, or what cannot be read, costs only its row: (that offset, 0, None).
        """
        wanted = offsets[0]
        with txn.cursor(self._log.database) as cursor:
            if not cursor.set_range(log_key(group, wanted)):
                return wanted, 0, None
            key, value = bytes(cursor.key()), cursor.value()
        try:
            found, last = parse_log_key(key)
            if found != group or peek_head(value, group, last).first > wanted:
                return wanted, 0, None
            head = verified_head(value, group, last)
            if head.kind != CONTROL:
                return wanted, 0, None
            payloads = block_of(value, head).payloads()
        except (DamageError, PeerError):
            return wanted, 0, None
        for offset in offsets:
            if offset <= last:
                payloads[offset - head.first] = DROPPED
        if all([payload == DROPPED for payload in payloads]):
            txn.delete(key, db=self._log.database)
            return last, len(value), _Gone(group, last, head.records)
        rest = encode_block(control_block(group, head.epoch, head.first, head.time_us, payloads), head.flags, 0, 0)
        txn.put(key, rest, db=self._log.database)
        return last, len(value) - len(rest), None

    def _store_groups(self, txn: WriteTransaction, gone: list[_Gone]) -> dict[int, int]:
        """Let the rows of groups follow; the first offset left of each."""
        firsts: dict[int, int] = {}
        for number in {block.group for block in gone}:
            group = self._groups[number]
            own = [block for block in gone if block.group == number]
            group.records -= sum([block.records for block in own])
            group.records_indexed -= sum([block.records for block in own if block.last < group.indexed_below])
            for block in own:
                self._index_writer.discarded(number, block.last, block.records)
            group_rows.put_group_row(self._databases, txn, number, group.row(self._ids.next_number(number)))
            head = self._log.head_at(txn, number, 0)
            firsts[number] = group.last + 1 if head is None else head.first
        return firsts
