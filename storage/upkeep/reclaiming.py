"""Reclaiming: what is too old, too much or expired leaves the log in bounded steps that never hold up a commit long.

    by age      blocks older than `retention_s`
    by size     the oldest blocks of all groups, while the log uses more than `log_bytes_max`
    by expiry   blocks all of whose publications have expired (T_max), wherever they lie
    superseded  control records that later ones replaced (`compaction`)

Age and size move a group's `first_kept`, so that readers are told what was discarded; expiry does not: nobody misses
what had expired. A retained publication whose block goes is *rescued*: copied, as a block of one record with its own
offset, epoch and time, into the `kept` table, until it is replaced, cleared or expired. A topic to which nothing refers
any more is forgotten. Producers idle, and QoS 2 marks unreleased, for `producer_retention_s` go as well; the tables are
looked through a piece a step, and so are the topics, for names that nothing refers to any more.

Dictionaries stay: blocks refer to them, and counting which still do costs more than the few KiB each takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from lexicast.cluster.blocks import PUBLICATIONS, RETAIN, Block
from lexicast.cluster.clock import US_PER_S, Clock

from ..environment.environment import Environment
from ..environment.options import StoreOptions
from ..environment.space import Space
from ..file.keys import expiry_key, log_key, parse_expiry_key
from ..file.sealing import DamageError
from ..file.table import ReadTransaction, WriteTransaction
from ..index.index_writer import IndexWriter
from ..log.block_cuts import cut
from ..log.block_format import HAS_RETAINED, IS_KEPT, Head, block_of, encode_block
from ..log.block_log import Log
from ..log.block_outline import outline
from ..tables import groups as group_rows
from ..tables.groups import StoredGroup
from ..tables.state import parse_retained_row
from ..tables.topics import TopicIds, find_topic, id_key
from .oldest_blocks import OldestBlocks
from .sweeping import Sweep, Sweeper

BLOCKS_A_STEP: Final = 64
STEP_S: Final = 0.002
# Blocks of a group that is forgotten: some milliseconds.
FORGOTTEN_A_STEP: Final = 512
# What has expired lies there for so long still, unless the store is full: whoever it was sent to before, and who comes
# back without having acknowledged it, is sent it again [MQTT-4.3.3-7].
EXPIRED_KEPT_US: Final = 10 * US_PER_S


class Reclaimed(NamedTuple):
    """What one step freed; `more`: call again soon, there is more to do."""

    blocks: int
    records: int
    bytes: int
    more: bool


class Victim(NamedTuple):
    """A block to go; with the key of its row in `expiry` when it has expired and nobody misses it.

    `group` -1: that row alone, which names no block that has expired.
    """

    group: int
    last: int
    size_bytes: int
    expiry: bytes | None


class Reclaimer:
    """See the module's docstring. Writer thread only."""

    def __init__(
        self,
        environment: Environment,
        log: Log,
        ids: TopicIds,
        groups: dict[int, StoredGroup],
        index_writer: IndexWriter,
        oldest: OldestBlocks,
        sweeper: Sweeper,
        space: Space,
        options: StoreOptions,
        clock: Clock,
    ) -> None:
        self._environment = environment
        self._databases = environment.databases
        self._log = log
        self._ids = ids
        self._groups = groups
        self._index_writer = index_writer
        self._oldest_blocks = oldest
        self._sweeper = sweeper
        self._space = space
        self._options = options
        self._clock = clock

    def step(self, now_us: int) -> Reclaimed | None:
        """One durable step; None when nothing is to go."""
        with self._environment.snapshot() as txn:
            victims = self._victims(txn, now_us)
            sweep = self._sweeper.choose(txn, now_us)
        if any(v.group >= 0 and v.last >= self._groups[v.group].indexed_below for v in victims):
            # The index must not name what is gone: it is written first, and the blocks go in a later step.
            return Reclaimed(0, 0, 0, self._index_writer.step(now_us))
        if not (victims or any(sweep)):
            return Reclaimed(0, 0, 0, True) if self._sweeper.waiting else None
        return self._discard(victims, sweep, now_us)

    # choosing

    def _victims(self, txn: ReadTransaction, now_us: int) -> list[Victim]:
        chosen = {(v.group, v.last): v for v in self._expired(txn, now_us)}
        for victim in self._oldest(txn, now_us):
            if len(chosen) >= BLOCKS_A_STEP:
                break
            chosen.setdefault((victim.group, victim.last), victim)
        return list(chosen.values())

    def _expired(self, txn: ReadTransaction, now_us: int) -> Iterator[Victim]:
        before_us = now_us - (0 if self._space.is_short else EXPIRED_KEPT_US)
        with txn.cursor(self._databases.expiry) as cursor:
            there = cursor.first()
            for _ in range(BLOCKS_A_STEP):
                if not there:
                    return
                key = bytes(cursor.key())
                if parse_expiry_key(key)[0] >= before_us:
                    return
                yield self._expired_block(txn, key)
                there = cursor.next()

    def _expired_block(self, txn: ReadTransaction, key: bytes) -> Victim:
        """What a row of `expiry` says is to go: the block, where its own head says so too; else the row alone."""
        position = parse_expiry_key(key)[1]
        value = txn.get(position, None, self._log.database) if position else None
        head = None if value is None else self._log.sound_head(value, position)
        if value is None or head is None or expiry_key(head.group, head.last, head.expire_all_us) != key:
            return Victim(-1, -1, 0, key)
        return Victim(head.group, head.last, len(value), key)

    def _oldest(self, txn: ReadTransaction, now_us: int) -> Iterator[Victim]:
        """Blocks beyond age or size, oldest first, over all groups."""
        before_us = now_us - int(self._options.retention_s * US_PER_S) if self._options.retention_s else 0
        limit = self._options.log_bytes_max
        too_much = self._environment.log_bytes(txn) - limit if limit else 0
        for front in self._oldest_blocks.in_order(txn):
            if front.time_us >= before_us and too_much <= 0:
                return
            yield Victim(front.group, front.last, front.size_bytes, None)
            too_much -= self._space.value_bytes(front.size_bytes)

    # discarding

    def _discard(self, victims: list[Victim], sweep: Sweep, now_us: int) -> Reclaimed:
        until = self._clock.monotonic() + STEP_S
        gone: list[tuple[Victim, int]] = []
        with self._environment.begin() as txn:
            self._sweeper.delete(txn, sweep)
            for victim in victims:
                gone.append((victim, self._discard_block(txn, victim, now_us)))
                if self._clock.monotonic() >= until:
                    break
            firsts = self._store_groups(txn, gone)
            used = self._environment.used_bytes(txn)
        self._discarded(gone, firsts)
        self._space.measured(used)
        more = len(gone) < len(victims) or len(victims) >= BLOCKS_A_STEP or self._sweeper.waiting
        return Reclaimed(len(gone), sum(n for _, n in gone), sum(v.size_bytes for v, _ in gone), more)

    def _discard_block(self, txn: WriteTransaction, victim: Victim, now_us: int) -> int:
        """Delete a block; how many records it held (0 when it was damaged)."""
        if victim.expiry is not None:
            txn.delete(victim.expiry, db=self._databases.expiry)
        if victim.group < 0:
            return 0
        key = log_key(victim.group, victim.last)
        value = txn.pop(key, self._log.database)
        head = None if value is None else self._log.sound_head(value, key)
        if value is None or head is None:
            return 0
        if head.expire_all_us:
            txn.delete(expiry_key(head.group, head.last, head.expire_all_us), db=self._databases.expiry)
        if head.kind == PUBLICATIONS:
            self._let_go(txn, block_of(value, head), head, now_us)
        return head.records

    def _let_go(self, txn: WriteTransaction, block: Block, head: Head, now_us: int) -> None:
        """Rescue retained publications of a block that goes; its topics are looked at in a later step."""
        retaining = {r.topic for r in block.meta.runs if r.flags & RETAIN} if head.flags & HAS_RETAINED else set()
        for at, topic in enumerate(block.meta.topics):
            topic_id = find_topic(self._databases, txn, topic)
            if topic_id is not None:
                if at in retaining:
                    self._rescue(txn, block, topic_id, now_us)
                self._sweeper.look_later(topic_id)

    def _rescue(self, txn: WriteTransaction, block: Block, topic_id: int, now_us: int) -> None:
        row = self._databases.retained.get(txn, id_key(topic_id))
        if row is None:
            return
        offset, expires = parse_retained_row(row)
        if not block.first <= offset <= block.last:
            return
        if 0 < expires < now_us:
            self._databases.retained.delete(txn, id_key(topic_id))
            return
        one = cut(block, offset, offset)
        if one is None:
            self._log.ledger.note(DamageError("retained", block.group, offset, "the publication is not in its block"))
            return
        found = outline(one)
        value = encode_block(one, found.flags | IS_KEPT, found.expire_first_us, found.expire_all_us)
        txn.put(log_key(block.group, offset), value, db=self._databases.kept)

    # forgetting

    def forget_youngest(self, number: int) -> None:
        """The youngest blocks of a group leave as if they had never come, some of them in one durable step.

        Their offsets may come again with other content: so the index, which knows them by these, is begun anew before.
        """
        self._index_writer.begin_rebuild()
        group = self._groups[number]
        with self._environment.begin() as txn:
            for head, key in self._log.youngest(txn, number, FORGOTTEN_A_STEP):
                if head is not None and head.expire_all_us:
                    txn.delete(expiry_key(number, head.last, head.expire_all_us), db=self._databases.expiry)
                txn.delete(key, db=self._log.database)
            end, _ = self._log.end(txn, number)
            first = self._log.head_at(txn, number, 0)
            if end is None or first is None:
                left = StoredGroup(number)
            else:
                left = StoredGroup(number, group.row(0)._replace(epoch=end.epoch, last=end.last, time_us=end.time_us))
                left.first = first.first
            group_rows.put_group_row(self._databases, txn, number, left.row(self._ids.next_number(number)))
            used = self._environment.used_bytes(txn)
        self._groups[number] = left
        self._oldest_blocks.moved(number)
        self._space.measured(used)

    def _store_groups(self, txn: WriteTransaction, gone: list[tuple[Victim, int]]) -> dict[int, int]:
        """Store how far each group was discarded; the first offset left of each."""
        firsts = {}
        for number in {victim.group for victim, _ in gone if victim.group >= 0}:
            group = self._groups[number]
            own = [(v, count) for v, count in gone if v.group == number]
            kept = max([group.first_kept, *[v.last + 1 for v, _ in own if v.expiry is None]])
            records = group.records_indexed - sum(count for _, count in own)
            row = group.row(self._ids.next_number(number))
            group_rows.put_group_row(self._databases, txn, number, row._replace(first_kept=kept, records=records))
            head_left = self._log.head_at(txn, number, 0)
            firsts[number] = group.last + 1 if head_left is None else head_left.first
        return firsts

    def _discarded(self, gone: list[tuple[Victim, int]], firsts: dict[int, int]) -> None:
        for victim, count in gone:
            if victim.group < 0:
                continue
            group = self._groups[victim.group]
            group.records -= count
            group.records_indexed -= count
            self._index_writer.discarded(victim.group, victim.last, count)
            if victim.expiry is None:
                group.first_kept = max(group.first_kept, victim.last + 1)
        for number, first in firsts.items():
            self._groups[number].first = first
            self._oldest_blocks.moved(number)
