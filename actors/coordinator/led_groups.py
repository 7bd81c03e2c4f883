"""The groups that a coordinator leads: offsets are given, blocks offered to brokers, commits waited for.

A turn: whatever links bring in one pass of the event loop is sequenced, offered to the brokers that it concerns, and
handed to the committer as one batch; at the end of the turn each broker gets one message, and in the same write the
acknowledgements, which follow the commit. See `cluster.protocol.messages` for what is spoken and DESIGN.md section 2
for why.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from lexicast.cluster.blocks import PUBLICATIONS, Block, unpack_meta
from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import LexicastError, StoreError, StoreFullError, UnavailableError, UsageError
from lexicast.cluster.protocol.messages import ACK, HEADS, TAKEN, WireEntry, check_entry_columns
from lexicast.cluster.records import ControlRecord
from lexicast.cluster.sequencer import RECORDS_PENDING_MAX, Sequencer
from lexicast.storage.store import Store

from ..link.link import Link
from ..loop.background import cannot_go_on
from .committer import Committer
from .peers import BrokerPeer, Routing
from .sequencer_memory import StoreMemory

# Bytes sequenced and not yet durable, beyond which brokers are not told to send more.
UNCOMMITTED_BYTES_MAX = 64 * 1024 * 1024
# The same in records: well below `RECORDS_PENDING_MAX`, where publications are refused.
UNCOMMITTED_RECORDS_MAX = RECORDS_PENDING_MAX // 4


class Ticket:
    """One PUBLISH of a broker: results of its entries, an ACK when the last is there. `answered`: to be sent."""

    __slots__ = ("answered", "left", "link", "results", "tag")

    def __init__(self, link: Link, tag: int, entries: int, answered: list[Ticket]) -> None:
        self.link = link
        self.answered = answered
        self.tag = tag
        self.results: list[Any] = [None] * entries
        self.left = entries

    def result(self, index: int, value: Any) -> None:
        """The result of one entry."""
        self.results[index] = value
        self.left -= 1
        if self.left == 0:
            self.answered.append(self)


class LedGroups:
    """The groups that this coordinator leads, over an open store. `open` takes their epochs; then they are served."""

    def __init__(self, name: str, store: Store, clock: Clock, cut_links: Callable[[], None]) -> None:
        """`cut_links` ends every link at once: the store has failed."""
        self.name = name
        self.store = store
        self.clock = clock
        self.memory = StoreMemory(store.tables)
        self.sequencer = Sequencer(name, self.memory)
        self.routing = Routing()
        self.failure: StoreError | None = None
        self.published_records = 0
        # Entries refused, by the class of the error.
        self.refused: Counter[str] = Counter()
        self._cut_links = cut_links
        # The last refusal for want of space. An epoch whose start cannot be stored is not served.
        self._refusal: StoreError | None = None
        self.committer = Committer(store, clock, self._committed, self._refused, self._failed)
        self._commit_waiters: dict[int, deque[tuple[int, Callable[[Exception | None], None]]]] = {}
        self._control: dict[int, list[tuple[ControlRecord, Callable[[Exception | None], None]]]] = {}
        self._sequenced: list[Block] = []
        self._held: deque[tuple[Link, int]] = deque()
        # What is told at the end of the turn: who may send more, and whose PUBLISH has all its results.
        self._taken: list[tuple[Link, int]] = []
        self._answered: list[Ticket] = []
        self._turn_ends = False
        self._awaited = False

    # -- life

    async def open(self, epochs: Mapping[int, int]) -> None:
        """Lead every group of `epochs`; returns when all epoch records are durable. Raises StoreError."""
        tails = self.store.tails()
        opened = []
        for group, epoch in sorted(epochs.items()):
            tail = tails.get(group)
            last, time_us = (tail.last, tail.time_us) if tail is not None else (-1, 0)
            opened.append(self.sequencer.open(group, epoch, last, max(time_us, self.clock.time_us()), [self.name]))
        self.committer.submit(opened)
        await self.committer.drain()
        if reason := self.failure or self._refusal:
            raise reason

    async def close(self) -> None:
        """Commit what is under way."""
        self._end_turn()
        await self.committer.close()

    def tick(self) -> None:
        """Housekeeping, where some is due; call it often."""
        self.committer.tick()
        self._release_held()

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes sequenced and not yet durable."""
        return self.committer.waiting_bytes

    # -- publications

    def publish(self, link: Link, tag: int, entries: Any) -> None:
        """A PUBLISH of a broker: place its entries, each by itself, and tell the broker when it may send more."""
        ticket = Ticket(link, tag, len(entries), self._answered)
        full = None if self.store.room() else "the store has reached its disk reserve: publishing is refused"
        slow = self._slow
        for index, entry in enumerate(entries):
            if full is not None:
                self.refused[StoreFullError.__name__] += 1
                ticket.result(index, full)
                continue
            try:
                check_entry_columns(entry)
                self._place(ticket, index, entry, slow)
            except LexicastError as error:
                # A malformed entry too: a Python client may have made it, and the broker would send it for ever.
                self.refused[type(error).__name__] += 1
                ticket.result(index, str(error))
        if slow:
            self._held.append((link, tag))
        elif ticket.left:
            self._taken.append((link, tag))
        self._turn()

    @property
    def _slow(self) -> bool:
        """Whether so much waits for the disk that brokers should send no more."""
        waiting = self.committer
        return waiting.waiting_bytes > UNCOMMITTED_BYTES_MAX or waiting.waiting_records > UNCOMMITTED_RECORDS_MAX

    def _place(self, ticket: Ticket, index: int, entry: WireEntry, slow: bool) -> None:
        group, meta, lengths, body = entry
        size = len(meta) + len(lengths) + len(body)
        if size > self.store.options.block_bytes_max:
            raise UsageError(
                f"an entry of {size} bytes: at most {self.store.options.block_bytes_max} are stored as one"
            )
        if not self.sequencer.room(group, len(lengths) // 4):
            raise UnavailableError(f"group {group}: too many publications wait for the disk")

        def answer(error: Exception | None) -> None:
            ticket.result(index, placed if error is None else str(error))

        parsed = unpack_meta(meta)
        if parsed.dictionaries:
            self.memory.check_dictionaries(group, parsed.dictionaries)
        block, placed = self.sequencer.publish(group, parsed, meta, lengths, body, self.clock.time_us())
        if block is None:
            self.when_committed(group, max([p.offset for p in placed]), answer)
            return
        self.published_records += block.count
        self._sequenced.append(block)
        self._deliver(group)
        if slow or block.highest_qos:
            self.when_committed(group, block.last, answer)
        else:
            answer(None)

    def append_control(self, group: int, record: ControlRecord, done: Callable[[Exception | None], None]) -> None:
        """Have `record` written at the end of this turn; `done(error)` when it is committed.

        Raises UsageError when the group is not led here.
        """
        self.sequencer.check_led(group)
        self._control.setdefault(group, []).append((record, done))
        self._turn()

    def when_committed(self, group: int, offset: int, done: Callable[[Exception | None], None]) -> None:
        """Call `done(None)` once everything up to `offset` is committed (`done(error)` if that fails)."""
        if self.failure is not None:
            done(self.failure)
        elif offset < self.sequencer.groups[group].committed:
            done(None)
        else:
            self._awaited = True
            self._commit_waiters.setdefault(group, deque()).append((offset, done))

    def _deliver(self, group: int) -> None:
        for block in self.sequencer.deliverable(group):
            self.routing.offer(block)

    def tell_heads(self, peer: BrokerPeer) -> None:
        """Tell a broker how far it has been served, where that moved."""
        peer.gather_offered()  # what it is told of, it must have: the broker drops what lies before its head
        moved = {}
        for number, group in self.sequencer.groups.items():
            if number not in peer.behind and peer.heads.get(number) != group.delivered:
                peer.heads[number] = group.delivered
                moved[number] = (group.epoch, group.delivered)
        if moved:
            peer.link.gather((HEADS, moved))
        peer.link.flush()

    # -- turns

    def _turn(self) -> None:
        if not self._turn_ends:
            self._turn_ends = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_ends = False
        self.place_control()
        self._tell()
        if self._sequenced:
            blocks, self._sequenced = self._sequenced, []
            self.committer.submit(blocks, self._awaited)
            self._awaited = False

    def _tell(self) -> None:
        """In one write a link: what is delivered, and behind it the answers, for which nobody waits as much."""
        self.routing.gather()
        for link, tag in self._taken:
            link.gather((TAKEN, tag))
        for ticket in self._answered:
            ticket.link.gather((ACK, ticket.tag, ticket.results))
        self.routing.flush()
        for link, _ in self._taken:
            link.flush()
        for ticket in self._answered:
            ticket.link.flush()
        self._taken.clear()
        self._answered.clear()

    def place_control(self) -> None:
        """Sequence the control records of this turn, one block a group."""
        if not self._control:
            return
        control, self._control = self._control, {}
        for group, records in control.items():
            block = self.sequencer.control(group, [record for record, _ in records], self.clock.time_us())
            self._sequenced.append(block)
            for _, done in records:
                self.when_committed(group, block.last, done)

    # -- the committer's answers

    def _committed(self, blocks: list[Block]) -> None:
        touched = {}
        for block in blocks:
            touched[block.group] = block.last
        for group, last in touched.items():
            if self.sequencer.durable(self.name, group, last):
                self._deliver(group)
                self._tell_committed(group)
        self._release_held()
        if not self._turn_ends:
            self._end_turn()  # nothing else gathers that would go out with it

    def _tell_committed(self, group: int) -> None:
        committed = self.sequencer.groups[group].committed
        waiters = self._commit_waiters.get(group)
        while waiters and waiters[0][0] < committed:
            waiters.popleft()[1](None)

    def _release_held(self) -> None:
        while self._held and not self._slow:
            link, tag = self._held.popleft()
            link.send((TAKEN, tag))

    def _refused(self, blocks: list[Block], error: StoreError) -> None:
        """The disk was full after all: nobody is told that these are stored; their offsets stay unused."""
        self._refusal = error
        self._withdraw(blocks, error)
        # A dictionary may have been among them: what refers to it could never be read.
        self._withdraw(self.committer.withdraw(self._unreadable), error)
        sequenced, self._sequenced = self._sequenced, []
        self._withdraw([block for block in sequenced if self._unreadable(block)], error)
        self._sequenced += [block for block in sequenced if not self._unreadable(block)]

    def _unreadable(self, block: Block) -> bool:
        """Whether a block refers to a dictionary that its group's log neither holds nor is about to hold."""
        if block.kind != PUBLICATIONS or not block.meta.dictionaries:
            return False
        return not self.memory.dictionaries(block.group).issuperset(block.meta.dictionaries)

    def _withdraw(self, blocks: list[Block], error: StoreError) -> None:
        for block in blocks:
            waiters = self._commit_waiters.get(block.group, deque())
            for waiter in [w for w in waiters if block.first <= w[0] <= block.last]:
                waiters.remove(waiter)
                waiter[1](StoreFullError(str(error)))
            self.sequencer.withdraw(block)
        for group in {block.group for block in blocks}:
            self._deliver(group)

    def _failed(self, error: StoreError) -> None:
        """The store is poisoned: this coordinator serves no more; links end, so that brokers stop acknowledging."""
        self.failure = error
        # First: a broker that hears nothing sends again to whoever leads next; what it hears it gives up.
        self._cut_links()
        waiters, self._commit_waiters = self._commit_waiters, {}
        for queue in waiters.values():
            for _, done in queue:
                done(error)
        # Ray starts the actor again: a store that an I/O error has poisoned then says so, any other goes on.
        cannot_go_on("the store takes no more", error)
