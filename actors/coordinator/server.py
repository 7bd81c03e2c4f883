"""The coordinator: leads topic groups. The shell around `cluster.sequencer`, the store and the brokers' links.

A turn: whatever links bring in one pass of the event loop is sequenced, offered to the brokers that it concerns, and
handed to the committer as one batch; at the end of the turn each broker gets one message. Acknowledgements follow
the commit. See `cluster.protocol.messages` for what is spoken and DESIGN.md section 2 for why.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from lexicast.cluster.blocks import PUBLICATIONS, QOS_MASK, Block, unpack_meta
from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import LexicastError, PeerError, StoreError, StoreFullError, UnavailableError, UsageError
from lexicast.cluster.protocol.messages import ACK, HEADS, PUBLISH, REQUEST, TAKEN, WireEntry, check_entry_columns
from lexicast.cluster.records import ControlRecord
from lexicast.cluster.sequencer import RECORDS_PENDING_MAX, Sequencer
from lexicast.storage.store import Store

from ..link.link import Link
from ..loop.background import cannot_go_on, keep_going, stop_loops
from ..loop.turns import LoopWatch
from ..status.meters import Meter, Since, Trend
from .committer import Committer
from .peers import BrokerPeer, Routing
from .requests import CoordinatorRequests
from .sequencer_memory import StoreMemory
from .session_home import SessionHome

log = logging.getLogger(__name__)

# Bytes sequenced and not yet durable, beyond which brokers are not told to send more.
UNCOMMITTED_BYTES_MAX = 64 * 1024 * 1024
# The same in records: well below `RECORDS_PENDING_MAX`, where publications are refused.
UNCOMMITTED_RECORDS_MAX = RECORDS_PENDING_MAX // 4
HEADS_PERIOD_S = 1.0
# A broker that has been behind for less only came back, or had a burst.
BEHIND_TOLD_S = 60.0
SWEEP_PERIOD_S = 0.1


class Ticket:
    """One PUBLISH of a broker: results of its entries, sent as one ACK when the last is there."""

    __slots__ = ("left", "link", "results", "tag")

    def __init__(self, link: Link, tag: int, entries: int) -> None:
        self.link = link
        self.tag = tag
        self.results: list[Any] = [None] * entries
        self.left = entries

    def result(self, index: int, value: Any) -> None:
        """The result of one entry."""
        self.results[index] = value
        self.left -= 1
        if self.left == 0:
            self.link.send((ACK, self.tag, self.results))


class BelievedClock:
    """The clock by which sessions end: one that has jumped is not believed at once (`cluster.clock.TrustedTime`)."""

    def __init__(self, server: CoordinatorServer) -> None:
        self._server = server

    def time_us(self) -> int:
        """See `Store.discard_us`."""
        return self._server.store.discard_us()

    def monotonic(self) -> float:
        """See `Clock`."""
        return self._server.clock.monotonic()


class CoordinatorServer:
    """Leads groups over an open store. `start` opens the epochs; then `opened` serves links."""

    def __init__(self, name: str, store: Store, clock: Clock) -> None:
        self.name = name
        self.store = store
        self.clock = clock
        self.memory = StoreMemory(store)
        self.sequencer = Sequencer(name, self.memory)
        self.routing = Routing()
        self.sessions = SessionHome(store, self.append_control, self.routing.peers, lambda: BelievedClock(self))
        self.requests = CoordinatorRequests(self)
        self.failure: StoreError | None = None
        # The last refusal for want of space. An epoch whose start cannot be stored is not served.
        self.refusal: StoreError | None = None
        self.published_records = 0
        self._watch = LoopWatch()
        # Entries refused, by the class of the error.
        self.refused: Counter[str] = Counter()
        self._meter, self._used, self._behind = Meter(), Trend(), Since()
        self._committer = Committer(store, clock, self._committed, self._refused, self._failed)
        self._commit_waiters: dict[int, deque[tuple[int, Callable[[Exception | None], None]]]] = {}
        self._control: dict[int, list[tuple[ControlRecord, Callable[[Exception | None], None]]]] = {}
        self._sequenced: list[Block] = []
        self._held: deque[tuple[Link, int]] = deque()
        self._turn_ends = False
        self._awaited = False
        self._links: set[Link] = set()
        self._tasks: list[asyncio.Task[None]] = []

    # -- life

    async def start(self, epochs: dict[int, int]) -> None:
        """Open every group of `epochs` to lead; returns when all epoch records are durable. Raises StoreError."""
        tails = self.store.tails()
        opened = []
        for group, epoch in sorted(epochs.items()):
            tail = tails.get(group)
            last, time_us = (tail.last, tail.time_us) if tail is not None else (-1, 0)
            opened.append(self.sequencer.open(group, epoch, last, max(time_us, self.clock.time_us()), [self.name]))
        self._committer.submit(opened)
        await self._committer.drain()
        if reason := self.failure or self.refusal:
            raise reason
        self._tasks = [
            keep_going(self._tell_heads(), "telling brokers how far they have been served"),
            keep_going(self._sweep(), "the coordinator's housekeeping"),
            keep_going(self._watch.run(), "watching the event loop"),
        ]

    async def stop(self) -> None:
        """Commit what is under way, close the links and the store."""
        await self.requests.interest.close()
        await stop_loops(*self._tasks)
        await self.sessions.close()
        self._end_turn()
        await self._committer.close()
        for link in list(self._links):
            link.close()
        self.store.close()

    def opened(self, link: Link) -> CoordinatorServer | None:
        """A link was opened; only brokers have business here."""
        if link.role != "broker" or self.failure is not None:
            return None
        self._links.add(link)
        return self

    # -- LinkUser

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """One message of a broker."""
        if message[0] == PUBLISH:
            self._publish(link, message[1], message[2])
        elif message[0] == REQUEST:
            self.requests.handle(link, message[1], message[2], message[3])
        else:
            raise PeerError(f"a broker sent a message of kind {message[0]}")

    def on_close(self, link: Link, error: Exception | None) -> None:
        """A broker's link ended: its subscriptions stay until it comes back or another incarnation does."""
        self._links.discard(link)
        peer = self.routing.peers.get(link.name)
        if peer is not None and peer.link is link:
            self.sessions.unlinked(link.name)

    def on_writable(self, link: Link) -> None:
        """A full link has drained."""
        peer = self.routing.peers.get(link.name)
        if peer is not None and peer.link is link and peer.behind:
            self.requests.past.bring_up(peer)

    # -- publications

    def _publish(self, link: Link, tag: int, entries: Any) -> None:
        ticket = Ticket(link, tag, len(entries))
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
            link.send((TAKEN, tag))
        self._turn()

    @property
    def _slow(self) -> bool:
        """Whether so much waits for the disk that brokers should send no more."""
        waiting = self._committer
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
        if slow or any([run.flags & QOS_MASK for run in parsed.runs]):
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

    # -- turns

    def _turn(self) -> None:
        if not self._turn_ends:
            self._turn_ends = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_ends = False
        self.place_control()
        self.routing.flush()
        if self._sequenced:
            blocks, self._sequenced = self._sequenced, []
            self._committer.submit(blocks, self._awaited)
            self._awaited = False

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
        self._turn()

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
        self.refusal = error
        self._withdraw(blocks, error)
        # A dictionary may have been among them: what refers to it could never be read.
        self._withdraw(self._committer.withdraw(self._unreadable), error)
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
        """The store is poisoned: this coordinator serves no more; links end, so brokers stop acknowledging."""
        self.failure = error
        # First: a broker that hears nothing sends again to whoever leads next; what it hears it gives up.
        for link in list(self._links):
            link.abort()
        waiters, self._commit_waiters = self._commit_waiters, {}
        for queue in waiters.values():
            for _, done in queue:
                done(error)
        # Ray starts the actor again: a store that an I/O error has poisoned then says so, any other goes on.
        cannot_go_on("the store takes no more", error)

    # -- periodic

    async def _tell_heads(self) -> None:
        while True:
            await asyncio.sleep(HEADS_PERIOD_S)
            self.routing.flush()
            for peer in list(self.routing.peers.values()):
                self.tell_heads(peer)
            self._measure()

    def _measure(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._meter.sample(now_s, {"published_records": self.published_records})
        peers = self.routing.peers.values()
        self._behind.look(now_s, {(peer.name, group) for peer in peers for group in peer.behind})
        if self._used.due(now_s) and self.failure is None:
            self._used.sample(now_s, self.store.stats().used_bytes)

    def tell_heads(self, peer: BrokerPeer) -> None:
        """Tell a broker how far it has been served, where that moved."""
        peer.flush()  # what it is told of, it must have: the broker drops what lies before its head
        moved = {}
        for number, group in self.sequencer.groups.items():
            if number not in peer.behind and peer.heads.get(number) != group.delivered:
                peer.heads[number] = group.delivered
                moved[number] = (group.epoch, group.delivered)
        if moved:
            peer.link.send((HEADS, moved))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_PERIOD_S)
            self._committer.tick()
            self._release_held()
            with suppress(LexicastError):
                self.sessions.sweep(self.sequencer.groups)

    # -- status

    def committed(self) -> dict[int, int]:
        """Of each group that it leads the first offset that is not committed."""
        return {number: group.committed for number, group in self.sequencer.groups.items()}

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        now_s, store = asyncio.get_running_loop().time(), self.store.stats()
        brokers = self.routing.status()
        for key in self._behind.longer_than(BEHIND_TOLD_S, now_s):
            name, _ = cast(tuple[str, int], key)
            if name in brokers:
                brokers[name]["groups_long_behind"] = brokers[name].get("groups_long_behind", 0) + 1
        return {
            "name": self.name,
            "pid": os.getpid(),
            "groups": len(self.sequencer.groups),
            "published_records": self.published_records,
            "refused": dict(self.refused),
            "rates": self._meter.rates(),
            "full_in_s": self._used.seconds_left(store.free_bytes),
            "uncommitted_bytes": self._committer.waiting_bytes,
            "damage": self.store.damage.status(),
            "failure": str(self.failure) if self.failure else None,
            "loop_ms": self._watch.longest_ms(),
            "brokers": brokers,
            "store": store,
        }
