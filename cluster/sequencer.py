"""The sequencer: gives the records of the groups that this coordinator leads their places. Pure.

Theory of operation. Each group has an epoch, a next offset and a queue of blocks in offset order. A block is
*sequenced* (it has offsets), then *durable* in each member of the group's in-sync set, then *committed* (durable in
all). Rules (DESIGN.md sections 2 and 3):

1. A repeat of a publication (same producer, incarnation, sequence; or a QoS 2 mark not yet released) is not
   sequenced again; it is answered with its first position. Nor is one of QoS 2 of a session of which the group has
   something newer: its client has sent it again, and may have released it since.
2. A block with a QoS 1 or 2 record is delivered when it is committed. A block of QoS 0 records is delivered at once,
   unless an earlier block of the group is still waiting: delivery is in offset order.
3. At most `RECORDS_PENDING_MAX` records of a group are sequenced and not durable, so that the next epoch, which
   starts `EPOCH_OFFSET_GAP` beyond the last durable offset, never gives an offset twice.
4. Times never go back within a group, whatever the clock does.

5. A group commits nothing while fewer than `min_copies` members are in its in-sync set.
6. An epoch begins once. What was placed in one that was left may lie at a follower although this member's own disk has
   refused it: begun again, the epoch would give the same offsets to something else, and two logs would seem alike.

Invariants: delivered <= next; applied <= committed <= next; `undelivered` holds the blocks from `delivered` on,
`unapplied` those from `applied` on. A control block needs no delivery: it is passed over once it is committed. What is
committed is *applied* when the store's tables have followed: with one member at once, with followers a transaction
later. Until then it is the sequencer that remembers (`repeats`): its marks are those of unapplied blocks; the store
knows the others, and forgets those that nobody releases (`producer_retention_s`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from .blocks import (
    PUBLICATIONS,
    QOS_MASK,
    U32,
    Block,
    Meta,
    control_block,
    pack_meta,
    payloads_bytes,
)
from .errors import LedElsewhereError, PeerError, StaleEpochError, UsageError
from .positions import EPOCH_OFFSET_GAP
from .records import ControlRecord, EpochStart, pack_record
from .repeats import GroupRepeats, Memory, Placed, mark_twins
from .selection import select

RECORDS_PENDING_MAX: Final = EPOCH_OFFSET_GAP // 2
# What the store has fields for: MQTT's longest expiry (2**32 - 1 s), and sequences that cannot overflow 64 bits.
EXPIRY_MS_MAX: Final = 1000 * (1 << 32)
SEQUENCE_END: Final = 1 << 62


class Sequenced(NamedTuple):
    """Outcome of one entry: the block to store (None: all repeats) and where its records stand."""

    block: Block | None
    placed: tuple[Placed, ...]


@dataclass(slots=True)
class Group:
    """One group that this coordinator leads."""

    number: int
    epoch: int
    next: int
    committed: int
    delivered: int
    time_us: int
    # Member -> the first offset that is not durable there: of the in-sync set, and of who is about to join it.
    durable: dict[str, int]
    in_sync: tuple[str, ...]
    applied: int
    repeats: GroupRepeats
    # Its first offset in this epoch.
    opened: int = 0
    undelivered: deque[tuple[Block, bool]] = field(default_factory=deque)
    unapplied: deque[Block] = field(default_factory=deque)

    def stamp(self, now_us: int) -> int:
        """The time of the next block (rule 4)."""
        self.time_us = max(self.time_us, now_us)
        return self.time_us

    @property
    def pending_records(self) -> int:
        """Records handed out and not yet committed."""
        return self.next - self.committed

    @property
    def settled(self) -> int:
        """Up to where followers' tables may follow: not from what earlier epochs have left, before this one has begun.
        A member that counts may lack it until then, and lead next."""
        return self.committed if self.committed > self.opened else 0

    @property
    def last_unsettled(self) -> int:
        """The last offset of what was delivered and is not applied yet; -1 where there is nothing: what could not be
        stored is not waited for."""
        for block in reversed(self.unapplied):
            if block.last < self.delivered:
                return block.last
        return -1


class Sequencer:
    """All groups that one coordinator leads; see the module's docstring."""

    def __init__(self, member: str, memory: Memory, min_copies: int = 1) -> None:
        self.member = member
        self._memory = memory
        self.min_copies = min_copies
        self.groups: dict[int, Group] = {}
        # Group -> the last epoch that was begun here, whether it is led on or not.
        self._begun: dict[int, int] = {}

    def begun(self, group: int) -> int:
        """The last epoch of the group that was begun here; -1: none."""
        return self._begun.get(group, -1)

    def open(self, group: int, epoch: int, last: int, time_us: int, in_sync: Sequence[str]) -> Block:
        """Take the lead of `group` in `epoch`; `last` is its last durable offset (-1: none).

        Returns the epoch's first block, to be committed and applied before anything is served. Raises StaleEpochError
        for one that has begun here already, however it ended (rule 6).
        """
        if (begun := self.begun(group)) >= epoch:
            raise StaleEpochError(f"group {group}: epoch {epoch} is not after {begun}")
        if self.member not in in_sync:
            raise UsageError(f"group {group}: {self.member} is not in its in-sync set and may not lead")
        start = 0 if last < 0 else last + EPOCH_OFFSET_GAP
        durable = dict.fromkeys(in_sync, start)
        repeats = GroupRepeats(group, self._memory, start)
        state = Group(group, epoch, start, start, start, time_us, durable, tuple(in_sync), start, repeats, start)
        self.groups[group] = state
        self._begun[group] = epoch
        return self.control(group, [EpochStart(epoch, last, self.member)], time_us)

    def room(self, group: int, records: int) -> bool:
        """Whether rule 3 lets `records` more be sequenced now. Raises LedElsewhereError."""
        return self._led(group).pending_records + records <= RECORDS_PENDING_MAX

    def applied_below(self, group: int) -> int:
        """The first offset of the group from which the tables do not follow yet. Raises LedElsewhereError."""
        self.check_led(group)
        return self.groups[group].applied

    def check_led(self, group: int) -> None:
        """Raises LedElsewhereError."""
        self._led(group)

    def _led(self, group: int) -> Group:
        state = self.groups.get(group)
        if state is None:
            raise LedElsewhereError(f"group {group} is not led here")
        return state

    def publish(self, group: int, meta: Meta, meta_bytes: bytes, lengths: bytes, body: bytes, now_us: int) -> Sequenced:
        """Place one entry (`meta` is `meta_bytes` unpacked). Raises PeerError when it is malformed, StaleEpochError
        when its producer has a newer incarnation, LedElsewhereError when this is not the group's leader.
        """
        state = self._led(group)
        count = len(lengths) // U32
        last = state.next + count - 1
        block = Block(
            group, state.epoch, state.next, last, state.stamp(now_us), PUBLICATIONS, meta_bytes, lengths, body, meta
        )
        check_entry(block)
        if state.repeats.may_hold(meta):
            repeats = state.repeats.find(meta)
            twins = mark_twins(meta, repeats)
            if repeats or twins:
                return self._publish_rest(state, block, repeats, twins)
        state.repeats.note(meta, state.epoch, state.next, state.committed)
        state.next += count
        self._enqueue(state, block)
        return Sequenced(block, (Placed(count, state.epoch, block.first),))

    def is_placed(self, group: int, meta: Meta, count: int) -> bool:
        """Whether an entry of `count` records has nothing that would be placed: who sends it again is owed the answer,
        also where there is no room for anything new. Raises LedElsewhereError, StaleEpochError."""
        repeats = self._led(group).repeats
        return repeats.may_hold(meta) and len(repeats.find(meta)) == count

    def control(self, group: int, records: Sequence[ControlRecord], now_us: int) -> Block:
        """Place control records of one group; the first stands at the block's `first`."""
        state = self.groups[group]
        packed = [pack_record(record) for record in records]
        block = control_block(group, state.epoch, state.next, state.stamp(now_us), packed)
        state.next += len(packed)
        self._enqueue(state, block)
        return block

    def deliverable(self, group: int) -> list[Block]:
        """Blocks that may go out now (rule 2), each once, in offset order; control blocks are passed over."""
        state = self.groups[group]
        out: list[Block] = []
        queue = state.undelivered
        while queue:
            block, at_once = queue[0]
            if not (at_once or block.last < state.committed):
                break
            queue.popleft()
            state.delivered = block.last + 1
            if block.kind == PUBLICATIONS:
                out.append(block)
        return out

    def durable(self, member: str, group: int, last: int) -> bool:
        """`member` holds everything up to `last` on disk. True when the committed position moved."""
        state = self.groups[group]
        if member not in state.durable:
            return False
        state.durable[member] = max(state.durable[member], last + 1)
        return self._commit(state)

    def _commit(self, state: Group) -> bool:
        committed = min(state.durable.values())
        if committed <= state.committed or len(state.in_sync) < self.min_copies:
            return False
        state.committed = committed
        return True

    def count(self, group: int, in_sync: Sequence[str], joining: Mapping[str, int]) -> bool:
        """The group's in-sync set is `in_sync`, as the coordination server has it; `joining`: who is to join it -> the
        first offset that is not durable there. Whoever is in either has to hold what is committed from now on.

        A member that was not counted before is believed to have nothing but what `joining` says. True when the
        committed position moved: somebody who lagged counts no more. Raises UsageError without this member itself.
        """
        state = self.groups[group]
        if self.member not in in_sync:
            raise UsageError(f"group {group}: {self.member} is not in its in-sync set and may not lead")
        known = {**joining, **state.durable}
        state.durable = {name: known.get(name, 0) for name in [*in_sync, *joining]}
        state.in_sync = tuple(in_sync)
        return self._commit(state)

    def applied(self, group: int, below: int) -> bool:
        """The store's tables follow from everything below `below`. True when that moved."""
        state = self.groups[group]
        below = min(below, state.committed)
        if below <= state.applied:
            return False
        state.applied = state.repeats.applied = below
        while state.unapplied and state.unapplied[0].last < below:
            block = state.unapplied.popleft()
            if block.kind == PUBLICATIONS:
                state.repeats.marks.settled(block)
        return True

    def close(self, group: int) -> None:
        """The group is not led here any more."""
        self.groups.pop(group, None)

    def withdraw(self, block: Block) -> None:
        """`block` could not be stored: it is not delivered any more, and its publications are no repeats of it."""
        state = self.groups[block.group]
        state.undelivered = deque([(b, at_once) for b, at_once in state.undelivered if b is not block])
        state.unapplied = deque([b for b in state.unapplied if b is not block])
        if block.kind == PUBLICATIONS:
            state.repeats.withdrawn(block, state.unapplied)

    def waiting(self, group: int, offset: int) -> Iterator[Block]:
        """Delivered publication blocks at or after `offset` that are not applied yet (the store may lack them).

        To be used up, or left, before anything else is done with the group: there may be very many.
        """
        state = self.groups[group]
        for block in state.unapplied:
            if block.last >= state.delivered:
                return
            if block.kind == PUBLICATIONS and offset <= block.last:
                yield block

    # -- repeats

    def _publish_rest(self, state: Group, block: Block, repeats: dict[int, Placed], twins: dict[int, int]) -> Sequenced:
        """Place what is not a repeat of an entry that holds repeats, of earlier entries or (`twins`) of itself."""
        rest = select(block, [not (index in repeats or index in twins) for index in range(block.count)])
        placed: list[Placed] = []
        offset = state.next
        for index in range(block.count):
            if index in repeats:
                placed.append(repeats[index])
            elif index in twins:
                placed.append(placed[twins[index]])
            else:
                placed.append(Placed(1, state.epoch, offset))
                offset += 1
        if rest is None:
            return Sequenced(None, tuple(placed))
        rest = dense(rest)
        state.repeats.note(rest.meta, state.epoch, state.next, state.committed)
        state.next = offset
        self._enqueue(state, rest)
        return Sequenced(rest, tuple(placed))

    def remembers(self, group: int, session_uid: bytes, generation: int, packet_ids: Sequence[int]) -> bool:
        """See `GroupRepeats.remembers`."""
        return self.groups[group].repeats.remembers(session_uid, generation, packet_ids)

    def begin_release(self, group: int, session_uid: bytes, generation: int, packet_ids: Sequence[int]) -> int:
        """A connection of this generation releases QoS 2 marks: what it publishes under them from now on is no repeat.
        Their Released record is to be placed next; returns what `end_release` is to be given."""
        state = self.groups[group]
        state.repeats.marks.begin_release(session_uid, generation, packet_ids, state.next)
        return state.next

    def end_release(
        self, group: int, session_uid: bytes, packet_ids: Sequence[int], below: int, forgotten: bool
    ) -> None:
        """The store has forgotten released marks, or could not."""
        state = self.groups.get(group)
        if state is not None:
            state.repeats.marks.end_release(session_uid, packet_ids, below, forgotten)

    # -- the queue

    def _enqueue(self, state: Group, block: Block) -> None:
        at_once = block.kind == PUBLICATIONS and not block.highest_qos
        state.undelivered.append((block, at_once))
        state.unapplied.append(block)


def dense(block: Block) -> Block:
    """A selection that is placed anew: nothing is left out within it, so it ends `count` after its first offset."""
    meta = block.meta._replace(runs=tuple([run._replace(skip=0) for run in block.meta.runs]))
    return replace(block, last=block.first + block.count - 1, meta_bytes=pack_meta(meta), _meta=meta)


def check_entry(block: Block) -> None:
    """Refuse an entry whose columns are none, or disagree. Its meta is one that `unpack_meta` gave: looked at here is
    what an entry may not have though a block may. Raises PeerError."""
    if not {bytes}.issuperset(map(type, (block.meta_bytes, block.lengths, block.body))):
        raise PeerError(f"group {block.group}: a column of an entry is not bytes")
    meta, count = block.meta, block.count
    if count == 0 or len(block.lengths) % U32:
        raise PeerError(f"group {block.group}: an entry without records")
    if payloads_bytes(block.lengths) != len(block.body):
        raise PeerError(f"group {block.group}: lengths and body of an entry disagree")
    records = 0
    for run in meta.runs:
        skip, _, flags, _, expiry_ms, _, _, size = run
        if skip or expiry_ms > EXPIRY_MS_MAX or flags & QOS_MASK == QOS_MASK:
            raise PeerError(f"group {block.group}: a run of an entry is out of range: {run}")
        records += size
    if records != count or sum([run.count for run in meta.producers]) != count:
        raise PeerError(f"group {block.group}: runs or producers of an entry do not cover its records")
    if any([not (m.index < count and 0 < m.packet_id < 1 << 16 and m.generation < SEQUENCE_END) for m in meta.marks]):
        raise PeerError(f"group {block.group}: a QoS 2 mark is out of range")
    if any([not (0 <= p.incarnation < SEQUENCE_END and 0 <= p.sequence < SEQUENCE_END) for p in meta.producers]):
        raise PeerError(f"group {block.group}: a producer's sequence is out of range")
