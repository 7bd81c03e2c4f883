"""The groups that a coordinator leads: offsets are given, blocks offered to brokers, commits waited for.

A turn: whatever links bring in one pass of the event loop is sequenced, offered to the brokers that it concerns, and
handed to the committer as one batch; at the end of the turn each broker gets one message, and in the same write the
acknowledgements, which follow the commit. See `cluster.protocol.messages` for what is spoken and DESIGN.md section 2
for why.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from lexicast.cluster.blocks import PUBLICATIONS, U32, Block, unpack_meta
from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import (
    LedElsewhereError,
    LexicastError,
    StoreError,
    StoreFullError,
    UnavailableError,
    UsageError,
)
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.protocol.messages import ACK, HEADS, TAKEN, WireEntry, check_entry_columns
from lexicast.cluster.records import ControlRecord
from lexicast.cluster.sequencer import RECORDS_PENDING_MAX, Sequencer
from lexicast.storage.store import Store

from ..link.link import Link
from ..loop.background import cannot_go_on
from .committer import Committer
from .matching.asked_blocks import WirePart
from .peers import BrokerPeer, Routing
from .replication.group_copies import GroupCopies
from .sequencer_memory import StoreMemory
from .waiters import ELSEWHERE, Done, Ticket, Waiters, wake

# What a broker tells of entries, by number: see COLUMNS in `cluster.protocol.messages`.
Columns = Mapping[int, Sequence[WirePart]]
_NO_COLUMNS: Columns = {}

# Bytes sequenced and not yet durable, beyond which brokers are not told to send more.
UNCOMMITTED_BYTES_MAX: Final = 64 * 1024 * 1024
# The same in records: well below `RECORDS_PENDING_MAX`, where publications are refused.
UNCOMMITTED_RECORDS_MAX: Final = RECORDS_PENDING_MAX // 4


# More than 25 methods: a group's life, what is placed in it and what becomes of that share one turn.
class LedGroups:
    """The groups that this coordinator leads, over an open store. `open` takes their epochs; then they are served."""

    def __init__(
        self, name: str, store: Store, clock: Clock, cut_links: Callable[[], None], min_copies: int = 1
    ) -> None:
        """`cut_links` ends every link at once: the store has failed; `min_copies`: see `cluster.sequencer`."""
        self.name = name
        self.store = store
        self.clock = clock
        self.memory = StoreMemory(store.tables)
        self.sequencer = Sequencer(name, self.memory, min_copies)
        self.routing = Routing(clock)
        self.failure: StoreError | None = None
        self.published_records = 0
        # Entries refused, by the class of the error.
        self.refused: Counter[str] = Counter()
        self._cut_links = cut_links
        # Who copies these groups to other coordinators; None: this one leads alone.
        self.copies: GroupCopies | None = None
        # Groups whose epochs have not begun yet: they are not served.
        self.opening: set[int] = set()
        # Who holds something by group: told of groups that are served from now on, and of those that are no more.
        self.when_opened: list[Callable[[Sequence[int]], None]] = []
        self.when_closed: list[Callable[[Sequence[int]], None]] = []
        # The last refusal for want of space.
        self._refusal: StoreError | None = None
        self.committer = Committer(store, clock, self._written, self._refused, self._failed)
        self._commit_waiters: Waiters = {}
        self._apply_waiters: Waiters = {}
        self._control: dict[int, list[tuple[ControlRecord, Done]]] = {}
        self._sequenced: list[Block] = []
        self._held: deque[tuple[Link, int]] = deque()
        # What is told at the end of the turn: who may send more, and whose PUBLISH has all its results.
        self._taken: list[tuple[Link, int]] = []
        self._answered: list[Ticket] = []
        self._turn_ends = False
        self._awaited = False

    # -- life

    async def open(self, states: Mapping[int, GroupState]) -> None:
        """Lead these groups too, under new epochs; returns when the epochs' first records are committed and the tables
        have followed from everything before them. Passed over are those of which another coordinator has promised
        more, whose epoch has begun here already, or which are closed meanwhile. Raises StoreError."""
        if self.copies is not None:
            # What the leader before has sent is durable first: the epoch begins behind it.
            self.copies.may_lead(states)
        await self.committer.run(partial(self.store.count_with, {g: (s[0], s[2]) for g, s in states.items()}))
        if self.copies is not None:
            able = [g for g in self.copies.may_lead(states) if self.sequencer.begun(g) < states[g].epoch]
            states = {group: states[group] for group in able}
            self.copies.lead(states)
        tails = self.store.tails()
        opened = []
        for group, state in sorted(states.items()):
            tail = tails.get(group)
            last, time_us = (tail.last, tail.time_us) if tail is not None else (-1, 0)
            time_us = max(time_us, self.clock.time_us())
            opened.append(self.sequencer.open(group, state.epoch, last, time_us, state.in_sync))
            self.opening.add(group)
        if not opened:
            return
        self.committer.submit(opened)
        await asyncio.wait([self._applied(block.group, block.last) for block in opened])
        if self.failure is not None:
            raise self.failure
        still = [block for block in opened if self._is_epoch(block.group, block.epoch)]
        served = [block.group for block in still if self.sequencer.groups[block.group].applied > block.last]
        self.opening.difference_update(served)
        self._tell()  # what was answered before goes out before the news
        for told in self.when_opened:
            told(served)
        refused = [block.group for block in still if block.group not in served]
        if refused:
            # An epoch whose start cannot be stored is not served.
            self.close_groups(refused)
            raise self._refusal or StoreFullError("the disk has no room for the beginning of an epoch")

    def _applied(self, group: int, offset: int) -> asyncio.Future[None]:
        """Done when the tables have followed from everything up to `offset`, or the disk has refused it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: Exception | None) -> None:
            if not future.done():
                future.set_result(None)

        self.when_applied(group, offset, done)
        return future

    async def settled(self, numbers: Iterable[int]) -> None:
        """Return once what these groups have delivered by now is in the store, where an answer is looked for then, or
        refused by the disk."""
        groups = self.sequencer.groups
        lasts = {n: groups[n].last_unsettled for n in numbers if n in groups}
        behind = [(number, last) for number, last in lasts.items() if last >= 0]
        if behind:
            await asyncio.wait([self._applied(number, last) for number, last in behind])

    def _is_epoch(self, group: int, epoch: int) -> bool:
        known = self.sequencer.groups.get(group)
        return known is not None and known.epoch == epoch

    def close_groups(self, numbers: Iterable[int]) -> None:
        """Lead these no more: nothing of them is placed, delivered or acknowledged any more. Who published is told that
        they are led elsewhere, and sends again there; whoever waits for a record is told that it failed."""
        gone = [number for number in numbers if number in self.sequencer.groups]
        if not gone:
            return
        moved = LedElsewhereError("the group is led elsewhere now")
        self._sequenced = [block for block in self._sequenced if block.group not in gone]
        self.committer.withdraw(lambda block: block.group in gone)
        if self.copies is not None:
            self.copies.close(gone)
        for number in gone:
            self.sequencer.close(number)
            self.opening.discard(number)
            self.memory.forget(number)
            self.routing.ends.pop(number, None)
            waiting = [*self._commit_waiters.pop(number, ()), *self._apply_waiters.pop(number, ())]
            for _, done in waiting:
                done(moved)
            for _, done in self._control.pop(number, ()):
                done(moved)
        for told in self.when_closed:
            told(gone)
        self._turn()  # which tells who published

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

    def publish(self, link: Link, tag: int, entries: Any, columns: Columns = _NO_COLUMNS) -> None:
        """A PUBLISH of a broker: place its entries, each by itself, and tell the broker when it may send more.
        `columns`: what the broker has told of some of them, by number, for matchers."""
        ticket = Ticket(link, tag, len(entries), self._answered)
        peer = self.routing.peers.get(link.name)
        announced = peer.announced if peer is not None else ()
        room, slow = self.store.room(), self._slow
        for index, entry in enumerate(entries):
            try:
                check_entry_columns(entry)
                if announced and entry[0] in announced:
                    raise LedElsewhereError(f"group {entry[0]}: what was sent before it was led here")
                self._place(ticket, index, entry, slow, columns.get(index), room)
            except LedElsewhereError:
                ticket.result(index, ELSEWHERE)
            except LexicastError as error:
                # A malformed entry too: a Python client may have made it, and the broker would send it for ever.
                self.refused[type(error).__name__] += 1
                ticket.result(index, str(error))
        if slow:
            self._held.append((link, tag))
        elif ticket.left:
            self._taken.append((link, tag))
        self._turn()

    def _no_room(self, group: int) -> None:
        """Raises LedElsewhereError where another coordinator takes the group over, which may have room, else
        StoreFullError."""
        if self.copies is not None and group in self.sequencer.groups:
            self.copies.resign(group)
            self.check_served(group)
        raise StoreFullError("the store has reached its disk reserve: publishing is refused")

    @property
    def _slow(self) -> bool:
        """Whether so much waits for the disk that brokers should send no more."""
        waiting = self.committer
        return waiting.waiting_bytes > UNCOMMITTED_BYTES_MAX or waiting.waiting_records > UNCOMMITTED_RECORDS_MAX

    def _place(
        self, ticket: Ticket, index: int, entry: WireEntry, slow: bool, columns: Sequence[WirePart] | None, room: bool
    ) -> None:
        group, meta, lengths, body = entry
        if group >= self.store.groups:
            raise UsageError(f"topic group {group} is not one of this cluster's {self.store.groups}")
        if group in self.opening:
            raise LedElsewhereError(f"group {group} is not served yet")
        size = len(meta) + len(lengths) + len(body)
        if size > self.store.options.block_bytes_max:
            raise UsageError(
                f"an entry of {size} bytes: at most {self.store.options.block_bytes_max} are stored as one"
            )
        if not self.sequencer.room(group, len(lengths) // 4):
            raise UnavailableError(f"group {group}: too many publications wait for the disk")

        def answer(error: Exception | None) -> None:
            if error is None:
                ticket.result(index, placed)
            else:
                ticket.result(index, ELSEWHERE if isinstance(error, LedElsewhereError) else str(error))

        parsed = unpack_meta(meta)
        if not room and not self.sequencer.is_placed(group, parsed, len(lengths) // 4):
            self._no_room(group)
        if parsed.dictionaries:
            self.memory.check_dictionaries(group, parsed.dictionaries)
        block, placed = self.sequencer.publish(group, parsed, meta, lengths, body, self.clock.time_us())
        if block is None:
            self.when_committed(group, max([p.offset for p in placed]), answer)
            return
        self.published_records += block.count
        self._sequenced.append(block)
        if columns is not None and self.routing.choosers and block.count == len(lengths) // U32:
            self.routing.choosers.ask(block, columns)
        self._deliver(group)
        if slow or block.highest_qos:
            self.when_committed(group, block.last, answer)
        else:
            answer(None)

    @property
    def served(self) -> Collection[int]:
        """The groups that are served."""
        groups = self.sequencer.groups
        return groups.keys() - self.opening if self.opening else groups.keys()

    def check_served(self, *groups: int) -> None:
        """Raises LedElsewhereError: one of the groups is not led here, or not served yet."""
        for group in groups:
            self.sequencer.check_led(group)
            if group in self.opening:
                raise LedElsewhereError(f"group {group} is not served yet")

    def append_control(self, group: int, record: ControlRecord, done: Done) -> None:
        """Have `record` written at the end of this turn; `done(error)` when it is committed, and the tables
        have followed from it.

        Raises LedElsewhereError.
        """
        self.check_served(group)
        self._control.setdefault(group, []).append((record, done))
        self._turn()

    def when_committed(self, group: int, offset: int, done: Done) -> None:
        """Call `done(None)` once everything up to `offset` is committed (`done(error)` if that fails)."""
        self._when(self._commit_waiters, group, self.sequencer.groups[group].committed, offset, done)

    def when_applied(self, group: int, offset: int, done: Done) -> None:
        """Call `done(None)` once the store's tables have followed from everything up to `offset`, which is committed
        then (`done(error)` if that fails)."""
        self._when(self._apply_waiters, group, self.sequencer.groups[group].applied, offset, done)

    def _when(self, waiters: Waiters, group: int, below: int, offset: int, done: Done) -> None:
        if self.failure is not None:
            done(self.failure)
        elif offset < below:
            done(None)
        else:
            self._awaited = True
            waiters.setdefault(group, deque()).append((offset, done))
            if waiters is self._apply_waiters:
                self._apply_committed([group])

    def _deliver(self, group: int) -> None:
        for block in self.sequencer.deliverable(group):
            self.routing.offer(block)

    def tell_heads(self, peer: BrokerPeer) -> None:
        """Tell a broker how far it has been served, where that moved."""
        peer.gather_offered()  # what it is told of, it must have: the broker drops what lies before its head
        moved, choosers = {}, self.routing.choosers
        for number, group in self.sequencer.groups.items():
            if number in self.opening:
                continue
            if number in peer.behind:
                continue
            waits = choosers.first_waiting(peer, number) if choosers else None
            delivered = group.delivered if waits is None else waits
            if peer.heads.get(number) != delivered:
                peer.heads[number] = delivered
                moved[number] = (group.epoch, delivered)
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
            stored = self.copies.ship(blocks) if self.copies is not None else ()
            self.committer.submit(blocks, self._awaited, stored)
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
                self.when_applied(group, block.last, done)

    # -- the committer's answers

    def _written(self, blocks: list[Block], applied: Mapping[int, int] | None) -> None:
        """Blocks are durable here, and the tables have followed (None: from all of these, all of which count)."""
        groups, foreign = self.sequencer.groups, False
        touched: dict[int, int] = {}
        moved: list[int] = []
        for block in blocks:
            touched[block.group] = block.last
        for group, last in touched.items():
            if group not in groups:
                foreign = True
            elif self.sequencer.durable(self.name, group, last):
                self._moved(group)
                moved.append(group)
        if applied is None:
            applied = {group: last + 1 for group, last in touched.items()}
        for group, below in applied.items():
            if group in groups and self.sequencer.applied(group, below):
                wake(self._apply_waiters.get(group), groups[group].applied)
        if foreign and self.copies is not None:
            self.copies.written(blocks)
        self._apply_committed(moved)
        self._release_held()
        if not self._turn_ends:
            self._end_turn()  # nothing else gathers that would go out with it

    def moved(self, numbers: Iterable[int]) -> None:
        """Members of these groups have told how far they are, or count no more."""
        numbers = list(numbers)
        for group in numbers:
            self._moved(group)
        self._apply_committed(numbers)
        self._release_held()
        self._turn()

    def _moved(self, group: int) -> None:
        """More of a group is committed."""
        self._deliver(group)
        wake(self._commit_waiters.get(group), self.sequencer.groups[group].committed)

    def _apply_committed(self, numbers: Iterable[int]) -> None:
        """Let the store's tables follow where the commit is a matter of others too."""
        groups = self.sequencer.groups
        behind: dict[bool, dict[int, int]] = {}
        for number in numbers:
            group = groups.get(number)
            if group is not None and group.applied < group.committed:
                behind.setdefault(bool(self._apply_waiters.get(number)), {})[number] = group.committed
        for awaited, upto in behind.items():
            self.committer.apply(upto, awaited)

    def _release_held(self) -> None:
        while self._held and not self._slow:
            link, tag = self._held.popleft()
            link.send((TAKEN, tag))

    def _refused(self, blocks: list[Block], error: StoreError) -> None:
        """The disk was full after all: nobody is told that these are stored; their offsets stay unused."""
        shared = {block.group for block in blocks} & self.committer.shared
        if shared:
            # Others may have them, and what was to follow them in these groups: none of it is written here.
            blocks += self.committer.withdraw(lambda block: block.group in shared)
            blocks += [block for block in self._sequenced if block.group in shared]
            self._sequenced = [block for block in self._sequenced if block.group not in shared]
            led = sorted(shared & self.sequencer.groups.keys())
            if self.copies is not None:
                self.copies.refused(led, shared.difference(led))
        blocks = [block for block in blocks if block.group in self.sequencer.groups]
        self._refusal = error
        self._withdraw(blocks, error)
        # A dictionary may have been among them: what refers to it could never be read.
        self._withdraw(self.committer.withdraw(self._unreadable), error)
        sequenced, self._sequenced = self._sequenced, []
        self._withdraw([block for block in sequenced if self._unreadable(block)], error)
        self._sequenced += [block for block in sequenced if not self._unreadable(block)]
        # Nothing more is placed behind what others have and this log has not.
        self.close_groups(shared)

    def _unreadable(self, block: Block) -> bool:
        """Whether a block refers to a dictionary that its group's log neither holds nor is about to hold. (Of groups
        that are followed here their leader knows it.)"""
        if block.group not in self.sequencer.groups:
            return False
        if block.kind != PUBLICATIONS or not block.meta.dictionaries:
            return False
        return not self.memory.dictionaries(block.group).issuperset(block.meta.dictionaries)

    def _withdraw(self, blocks: list[Block], error: StoreError) -> None:
        for block in blocks:
            for waiters in (self._commit_waiters, self._apply_waiters):
                queue = waiters.get(block.group, deque())
                for waiter in [w for w in queue if block.first <= w[0] <= block.last]:
                    queue.remove(waiter)
                    waiter[1](StoreFullError(str(error)))
            self.sequencer.withdraw(block)
            self.routing.choosers.forget_asked(block)
        for group in {block.group for block in blocks}:
            self._deliver(group)

    def _failed(self, error: StoreError) -> None:
        """The store is poisoned: this coordinator serves no more; links end, so that brokers stop acknowledging."""
        self.failure = error
        # First: a broker that hears nothing sends again to whoever leads next; what it hears it gives up.
        self._cut_links()
        waiters = [*self._commit_waiters.values(), *self._apply_waiters.values()]
        self._commit_waiters, self._apply_waiters = {}, {}
        for queue in waiters:
            for _, done in queue:
                done(error)
        # Ray starts the actor again: a store that an I/O error has poisoned then says so, any other goes on.
        cannot_go_on("the store takes no more", error)
