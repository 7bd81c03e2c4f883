"""The commits of a store: one durable transaction each, and memory, which follows it.

A commit is blocks, what they mean for the tables and the index, and nothing else (see `Store.commit`). It is taken a
step at a time over all of its blocks: so what several of them change is changed once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

import lmdb

from lexicast.cluster.blocks import PUBLICATIONS, Block
from lexicast.cluster.errors import UsageError

from .environment.environment import Environment
from .environment.guard import Guard
from .environment.options import StoreOptions
from .environment.space import Space
from .file.keys import MAX_OFFSET, expiry_key
from .file.table import WriteTransaction
from .index.index_writer import IndexWriter
from .index.memory import BlockEntries, IndexMemory
from .log.block_log import Log
from .log.block_outline import Outline
from .log.stored_block import StoredBlock, sealed
from .log.unapplied_tail import TailPlan, UnappliedTail
from .tables.groups import StoredGroup
from .tables.promises import NOT_PROMISED, Promise
from .tables.retained_names import RetainedNames
from .tables.state import State
from .tables.topics import TopicIds
from .upkeep.housekeeping import Housekeeping

# A block's group, and its entries for the index.
Entered: TypeAlias = tuple[int, BlockEntries]


class Commits:
    """See the module's docstring. Writer thread only; `groups` and `promises` are the store's."""

    def __init__(
        self,
        environment: Environment,
        guard: Guard,
        space: Space,
        options: StoreOptions,
        groups_max: int,
        groups: dict[int, StoredGroup],
        promises: Mapping[int, Promise],
        log: Log,
        tail: UnappliedTail,
        state: State,
        ids: TopicIds,
        index_writer: IndexWriter,
        index_memory: IndexMemory,
        retained_names: RetainedNames,
        housekeeping: Housekeeping,
    ) -> None:
        """`groups_max`: groups of the cluster."""
        self._environment = environment
        self._guard = guard
        self._space = space
        self._options = options
        self._groups_max = groups_max
        self._groups = groups
        self._promises = promises
        self._log = log
        self._tail = tail
        self._state = state
        self._ids = ids
        self._index_writer = index_writer
        self._index_memory = index_memory
        self._retained_names = retained_names
        self._housekeeping = housekeeping

    def commit(self, blocks: Sequence[Block | StoredBlock], apply: Mapping[int, int] | None) -> None:
        """See `Store.commit`."""
        stored = self._admit(blocks)
        if apply is None and not self._tail:
            if stored:
                self._transact(TailPlan(stored, [], {}, 0))
            return
        upto = apply if apply is not None else dict.fromkeys([s.outline.block.group for s in stored], MAX_OFFSET)
        while (part := self._tail.backlog(upto, self._options.commit_bytes_max)) is not None:
            self._transact(part)
        plan = self._tail.plan(stored, upto)
        if plan.kept or plan.applied or plan.left:
            self._transact(plan)

    def end(self, group: int) -> tuple[int, int]:
        """The last offset and epoch of a group's log, with what is not applied. Any thread."""
        ends = self._tail.ends(group) if self._tail else None
        if ends is not None:
            return ends[1].last, ends[1].epoch
        known = self._groups.get(group)
        return (-1, 0) if known is None else (known.last, known.epoch)

    def _admit(self, blocks: Sequence[Block | StoredBlock]) -> list[StoredBlock]:
        """Blocks that may follow what is stored, in this order, as they are stored. Raises UsageError."""
        ends: dict[int, tuple[int, int]] = {}
        size = 0
        for each in blocks:
            block = each.outline.block if isinstance(each, StoredBlock) else each
            if not 0 <= block.group < self._groups_max:
                raise UsageError(f"group {block.group} is not one of this store's {self._groups_max}")
            last, epoch = ends.get(block.group) or self.end(block.group)
            if block is each and self._promises:
                epoch = max(epoch, self._promises.get(block.group, NOT_PROMISED).epoch)
            if not last < block.first <= block.last < MAX_OFFSET:
                raise UsageError(
                    f"group {block.group}: offsets {block.first} to {block.last} do not follow offset {last}"
                )
            if block.epoch < epoch:
                raise UsageError(f"group {block.group}: epoch {block.epoch} is older than epoch {epoch}")
            if block.size_bytes > self._options.block_bytes_max:
                raise UsageError(
                    f"a block of {block.size_bytes} bytes exceeds {self._options.block_bytes_max}: split it"
                )
            ends[block.group] = (block.last, block.epoch)
            size += block.size_bytes
        if size > self._options.commit_bytes_max:
            raise UsageError(f"a commit of {size} bytes exceeds {self._options.commit_bytes_max}: split it")
        return [each if isinstance(each, StoredBlock) else sealed(each) for each in blocks]

    def _transact(self, plan: TailPlan) -> None:
        """Do what a plan says, durably."""
        new = plan.applied[sum(plan.left.values()) :] if plan.left else plan.applied
        self._admit_bytes(plan.moved, [*new, *plan.kept] if plan.kept else new)
        outlines = [each.outline for each in plan.applied]
        with self._guard():
            for _ in range(self._index_memory.steps_owed(sum([len(found.topics.names) for found in outlines]))):
                self._index_writer.step()
            try:
                entries, used = self._write(plan)
            except (struct.error, OverflowError) as error:
                raise UsageError(f"a record holds a number that is out of range: {error}") from None
            self._committed(outlines, entries, used)
            if plan.left or plan.kept:
                self._tail.written(plan)

    def _admit_bytes(self, moved: int, blocks: Sequence[StoredBlock]) -> None:
        """Raises StoreFullError where there is no room for what is new and what moves from the tail to the log."""
        need = sum([self._space.needed_bytes(len(each.value)) for each in blocks])
        if moved:
            self._space.admit(need + 2 * moved, False)
        if blocks:
            self._space.admit(need, any([each.outline.block.kind == PUBLICATIONS for each in blocks]))

    def _write(self, plan: TailPlan) -> tuple[list[Entered], int]:
        txn = self._environment.begin()
        try:
            if plan.left or plan.kept:
                self._tail.write(txn, plan)
            self._log_blocks(txn, plan.applied)
            outlines = [each.outline for each in plan.applied]
            self._state.apply(txn, self._not_reflected(outlines))
            entries = [(found.block.group, self._index_writer.entries(txn, found)) for found in outlines]
            self._index_writer.number_topics(txn)
            used = self._environment.used_bytes(txn)
            self._end_transaction(txn)
        except BaseException:
            self._ids.aborted()
            with suppress(lmdb.Error):
                txn.abort()
            raise
        return entries, used

    def _log_blocks(self, txn: WriteTransaction, blocks: Iterable[StoredBlock]) -> None:
        for found, value in blocks:
            block = found.block
            self._log.put(txn, block.group, block.last, value)
            if found.expire_all_us:
                key = expiry_key(block.group, block.last, found.expire_all_us)
                txn.put(key, b"", db=self._environment.databases.expiry)

    def _end_transaction(self, txn: WriteTransaction) -> None:
        txn.commit()

    def _not_reflected(self, outlines: list[Outline]) -> list[Outline]:
        """Without those of which the tables know already: they were installed."""
        if not self._promises:
            return outlines
        return [
            found
            for found in outlines
            if found.block.last >= self._promises.get(found.block.group, NOT_PROMISED).reflected_below
        ]

    def _committed(self, outlines: list[Outline], entries: list[Entered], used: int) -> None:
        """The transaction is durable: let memory follow."""
        self._ids.committed()
        for number, entered in entries:
            group = self._groups.get(number)
            if group is None or group.entered_below > group.last:
                self._index_memory.add(entered)
        for found in outlines:
            self._moved(found.block)
        self._retained_names.committed(self._not_reflected(outlines))
        self._space.measured(used)

    def _moved(self, block: Block) -> None:
        """A block has gone to the end of its group's log."""
        group = self._groups.get(block.group)
        if group is None:
            group = StoredGroup(block.group)
            group.first_kept = self._promises.get(block.group, NOT_PROMISED).first_kept
        if group.first > group.last:
            group.first = block.first
            self._housekeeping.begun(block.group)
        if group.entered_below > group.last:  # else the index has more to catch up with than this
            group.entered_below = block.last + 1
            group.records += block.count
            self._index_memory.logged(block.size_bytes)
        group.epoch, group.last, group.time_us = block.epoch, block.last, block.time_us
        self._groups[block.group] = group
