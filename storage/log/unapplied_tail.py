"""The unapplied tail of groups' logs: blocks that are durable here and of which it is not known yet that they count.

A group whose log others have to hold too is committed when all of them do. Until then its blocks lie in a database of
their own, `tail`, with the bytes that they will have in the log: so the log, and with it the index, retention,
compaction, readers and Spark, knows only what counts, and what a deposed leader has appended can be taken back without
a trace. A repair that meets such a row beside its tree does not take it for one of the log: its key is longer.

Keys begin with a number that ascends with what is appended, whatever group it is of: a commit then fills a few pages at
the end, where blocks of a hundred groups in their own order would change a page each. Behind it stand the block's own
key in the log and the last offset of the block before it in the group's tail.

The tail is in memory too, MEMORY_BYTES_MAX of it (what a sequencer lets wait, `cluster.sequencer.RECORDS_PENDING_MAX`,
may be more); the blocks beyond that are read again when they are applied.

A damaged block ends its group's tail at an opening, since what follows names it: nothing is applied over a hole.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Final, NamedTuple

from lexicast.cluster.errors import LexicastError, PeerError
from lexicast.cluster.records import EpochStart

from ..file.damage import Ledger
from ..file.sealing import DamageError, unpacked
from ..file.table import AnyTransaction, Database, ReadTransaction, WriteTransaction
from .stored_block import StoredBlock, stored_block

MEMORY_BYTES_MAX: Final = 64 << 20
# What a block of few bytes takes beside them, with its outline.
_BLOCK_MEMORY_BYTES: Final = 3_000
# Taken back in one transaction: some milliseconds.
BLOCKS_A_STEP: Final = 1_024

# What of the tail was appended when, group, last offset, and 1 more than the last offset before it in the tail.
_KEY: Final = struct.Struct(">QHQQ")


class Waiting(NamedTuple):
    """A block of a tail, under `key` there. `starts`: its epoch starts (epoch, first offset, last offset before);
    `stored`: the block itself, None where it has to be read again."""

    key: bytes
    group: int
    epoch: int
    first: int
    last: int
    time_us: int
    size_bytes: int
    starts: tuple[tuple[int, int, int], ...]
    stored: StoredBlock | None


class TailPlan(NamedTuple):
    """What a transaction does: `applied` go to the log, in order, the first `left[group]` blocks leave the tail for it;
    `kept` go to the end of the tail, under `keys`. `moved`: bytes that go from the tail to the log."""

    applied: list[StoredBlock]
    kept: list[StoredBlock]
    left: dict[int, int]
    moved: int
    keys: Sequence[bytes] = ()


def tail_key(number: int, group: int, last: int, before: int) -> bytes:
    """The key of the block that ends at offset `last`, and follows one that ends at `before` in the group's tail (-1:
    none), as the `number`th of all that was appended."""
    return _KEY.pack(number, group, last, before + 1)


def parse_tail_key(key: bytes | memoryview) -> tuple[int, int, int, int]:
    """(number, group, last offset, last offset before it). Raises DamageError."""
    number, group, last, behind = unpacked(_KEY, key, "tail")
    return number, group, last, behind - 1


class UnappliedTail:
    """Of all groups. Changed by the writer thread, memory after the transaction that made it so; looked at by any."""

    def __init__(
        self,
        database: Database,
        ledger: Ledger,
        snapshot: Callable[[], AbstractContextManager[ReadTransaction]],
        memory_bytes_max: int = MEMORY_BYTES_MAX,
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._snapshot = snapshot
        self._blocks: dict[int, deque[Waiting]] = {}
        self._memory_bytes_max = memory_bytes_max
        self._memory_bytes = 0
        # The number of the next block that is appended.
        self._next = 0

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def of(self, group: int) -> Sequence[Waiting]:
        """The tail of a group, in order."""
        return list(self._blocks.get(group, ()))

    def ends(self, group: int) -> tuple[Waiting, Waiting] | None:
        """The first and the last block of a group's tail."""
        blocks = self._blocks.get(group)
        try:
            return None if blocks is None else (blocks[0], blocks[-1])
        except IndexError:  # the last of them is being applied
            return None

    def groups(self) -> list[int]:
        """The groups that have one."""
        return list(self._blocks)

    def _remembered(self, key: bytes, each: StoredBlock) -> Waiting:
        """A block at the end of its tail, as memory has room for it."""
        outline = each.outline
        block = outline.block
        starts = tuple(
            [
                (record.epoch, block.first + at, record.previous_last)
                for at, record in enumerate(outline.control)
                if isinstance(record, EpochStart)
            ]
        )
        size = len(each.value)
        room = self._memory_bytes + size + _BLOCK_MEMORY_BYTES <= self._memory_bytes_max
        if room:
            self._memory_bytes += size + _BLOCK_MEMORY_BYTES
        found = each if room else None
        return Waiting(key, block.group, block.epoch, block.first, block.last, block.time_us, size, starts, found)

    def _forgotten(self, waiting: Waiting) -> None:
        if waiting.stored is not None:
            self._memory_bytes -= waiting.size_bytes + _BLOCK_MEMORY_BYTES

    # opening

    def load(self, txn: ReadTransaction, ends: Mapping[int, int]) -> list[bytes]:
        """Take up what an opening finds behind `ends`, the last offset of each group's log.

        Returns the keys of what cannot be used: damaged, behind what is, or in the log already.
        """
        useless: list[bytes] = []
        reached = dict(ends)
        with txn.cursor(self._database) as cursor:
            for key, value in cursor.iternext():
                group = -1
                try:
                    number, group, last, before = parse_tail_key(key)
                    self._next = number + 1
                    found = stored_block(group, last, bytes(value))
                except LexicastError as error:
                    self._ledger.note(DamageError("tail", group, -1, str(error)))
                else:
                    if before <= reached.get(group, -1) < found.block.first:
                        self._blocks.setdefault(group, deque()).append(self._remembered(bytes(key), found))
                        reached[group] = last
                        continue
                useless.append(bytes(key))
        return useless

    # committing

    def backlog(self, apply: Mapping[int, int], bytes_max: int) -> TailPlan | None:
        """The first of what counts by now, where all of it is more than `bytes_max`: to be applied before the rest."""
        ready = [waiting for group, below in apply.items() for waiting in self._ready(group, below)]
        if sum([waiting.size_bytes for waiting in ready]) <= bytes_max:
            return None
        some: list[Waiting] = []
        size = 0
        for waiting in ready:
            size += waiting.size_bytes
            if some and size > bytes_max:
                break
            some.append(waiting)
        return self._moving(some)

    def plan(self, blocks: Iterable[StoredBlock], apply: Mapping[int, int]) -> TailPlan:
        """What a transaction with `blocks` does where everything below `apply[group]` counts."""
        moving = self._moving([waiting for group, below in apply.items() for waiting in self._ready(group, below)])
        kept: list[StoredBlock] = []
        for each in blocks:
            block = each.outline.block
            behind = len(self._blocks.get(block.group, ())) > moving.left.get(block.group, 0)
            if not behind and block.last < apply.get(block.group, 0):
                moving.applied.append(each)
            else:
                kept.append(each)
        return moving._replace(kept=kept, keys=self._keys(kept, moving.left)) if kept else moving

    def _ready(self, group: int, below: int) -> Iterator[Waiting]:
        for waiting in self._blocks.get(group, ()):
            if waiting.last >= below:
                return
            yield waiting

    def _moving(self, ready: Sequence[Waiting]) -> TailPlan:
        plan = TailPlan([], [], {}, sum([waiting.size_bytes for waiting in ready]))
        shelved = [waiting.last for waiting in ready if waiting.stored is None]
        again = self._read_again(ready) if shelved else {}
        for waiting in ready:
            plan.left[waiting.group] = plan.left.get(waiting.group, 0) + 1
            found = waiting.stored or again.get((waiting.group, waiting.last))
            if found is not None:
                plan.applied.append(found)
        return plan

    def _read_again(self, ready: Sequence[Waiting]) -> dict[tuple[int, int], StoredBlock]:
        """Those that are not in memory; without what has been damaged since: it costs itself alone, as in the log."""
        found = {}
        with self._snapshot() as txn:
            for waiting in ready:
                value = None if waiting.stored is not None else self._value(txn, waiting)
                if value is None:
                    continue
                try:
                    found[waiting.group, waiting.last] = stored_block(waiting.group, waiting.last, value)
                except PeerError as error:
                    self._ledger.note(DamageError("tail", waiting.group, waiting.first, str(error)))
        return found

    def _value(self, txn: AnyTransaction, waiting: Waiting) -> bytes | None:
        value = txn.get(waiting.key, None, self._database)
        return None if value is None else bytes(value)

    def write(self, txn: WriteTransaction, plan: TailPlan) -> None:
        """The database follows."""
        for group, count in plan.left.items():
            for waiting in islice(self._blocks[group], count):
                txn.delete(waiting.key, db=self._database)
        for key, each in zip(plan.keys, plan.kept, strict=True):
            txn.put(key, each.value, db=self._database)

    def _keys(self, kept: Sequence[StoredBlock], left: Mapping[int, int]) -> list[bytes]:
        """Of what is appended, in order, while the first `left[group]` blocks leave."""
        ends: dict[int, int] = {}
        keys = []
        for number, each in enumerate(kept, self._next):
            block = each.outline.block
            group, last = block.group, block.last
            before = ends.get(group)
            if before is None:
                known = self._blocks.get(group)
                stays = known is not None and len(known) > left.get(group, 0)
                before = known[-1].last if known is not None and stays else -1
            keys.append(tail_key(number, group, last, before))
            ends[group] = last
        return keys

    def written(self, plan: TailPlan) -> None:
        """The transaction is durable: memory follows."""
        self._next += len(plan.keys)
        for group, count in plan.left.items():
            blocks = self._blocks[group]
            for _ in range(count):
                self._forgotten(blocks.popleft())
            if not blocks:
                del self._blocks[group]
        for key, each in zip(plan.keys, plan.kept, strict=True):
            self._blocks.setdefault(each.outline.block.group, deque()).append(self._remembered(key, each))

    # taking back

    def beyond(self, group: int, last: int) -> int:
        """How many of the youngest blocks of a group a step takes back, of those that reach beyond offset `last`."""
        count = 0
        for waiting in reversed(self.of(group)):
            if waiting.last <= last or count == BLOCKS_A_STEP:
                break
            count += 1
        return count

    def cut(self, txn: WriteTransaction, group: int, count: int) -> None:
        """Take out the youngest blocks of a group, in the database."""
        for waiting in self.of(group)[-count:]:
            txn.delete(waiting.key, db=self._database)

    def was_cut(self, group: int, count: int) -> None:
        """And in memory."""
        blocks = self._blocks[group]
        for _ in range(count):
            self._forgotten(blocks.pop())
        if not blocks:
            del self._blocks[group]

    # reading

    def values(self, txn: ReadTransaction, waiting: Iterable[Waiting], bytes_max: int) -> list[tuple[int, bytes]]:
        """(last offset, value) of some of a group's blocks as they lie here, one at least and about `bytes_max`."""
        found: list[tuple[int, bytes]] = []
        for each in waiting:
            if found and bytes_max <= 0:
                break
            value = self._value(txn, each) if each.stored is None else each.stored.value
            if value is not None:
                found.append((each.last, value))
                bytes_max -= len(value)
        return found
