"""The committer: one thread that writes a coordinator's store; group commit falls out of it (DESIGN.md section 2).

While one transaction is being made durable, what arrives gathers in `_waiting` and goes into the next one: no timers,
and the batch grows with the load; only what nobody waits for (QoS 0) is held back, for QUIET_S at most.

Between commits the same thread takes a bounded step of housekeeping (writing the index behind, merging, reclaiming: see
`Store.reclaim`), which a commit may find before it. So steps take at most STEP_SHARE of the time, the slower a step the
rarer, and none is taken while something waits to be written, unless it has been due for HOUSEKEEPING_S.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import NamedTuple, TypeVar, cast

from lexicast.cluster.blocks import PUBLICATIONS, Block
from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import LexicastError, PeerError, StoreError, StoreFullError, UsageError
from lexicast.storage.log.stored_block import StoredBlock
from lexicast.storage.store import Store

from ..status.meters import Durations

log = logging.getLogger(__name__)

T = TypeVar("T")

# How long after a step that found nothing to do the next one is due.
HOUSEKEEPING_S = 0.2
# Part of the time for steps while there is more to do: a step with its fsync takes 1 to 5 ms, so that 10 to 50 a second
# are taken, and one commit in twenty may find one before it. A pause is never longer than the maximum.
STEP_SHARE = 0.05
STEP_PAUSE_MAX_S = 1.0
# QoS 0 whose commit nobody waits for is gathered this long: at 1,000 messages/s one commit for ten of them instead of
# ten, which halves the coordinator's CPU and with it the latency's tail.
QUIET_S = 0.01
QUIET_BYTES_MAX = 1024 * 1024
# Tables that nobody waits for follow what is committed this late: of a group several blocks then go to neighbouring
# places of the log and the tables, where they would change as many pages one by one. With a commit that is waited for
# only some groups, so that it does not become long; all of them when this has been appended meanwhile.
APPLY_QUIET_S = 0.1
APPLIED_GROUPS_A_COMMIT = 16
APPLY_BYTES_MAX = 4 * 1024 * 1024


class Written(NamedTuple):
    """The blocks of a batch that are durable, and what is applied (see `Committer`); `full`: why the others are not."""

    blocks: list[Block]
    applied: dict[int, int] | None
    full: StoreFullError | None


class Committer:
    """Writes blocks in the order given and tells when they are durable.

    `written(blocks, applied)` and `refused(blocks, error)` are called in the event loop, in order; `applied`: group ->
    up to where the store's tables have followed, None where they have followed from all of `blocks`. A StoreFullError
    refuses publications and keeps control records, as long as there is room for these; in housekeeping it means to
    wait. Any other error ends the committer: `failed(error)`, once.

    `apart`: the groups whose tables follow only as far as `apply` says, because others have to have their blocks too.
    `shipped`: those of which others have blocks, whether they count or not; each batch of them is written whole or not.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        written: Callable[[list[Block], Mapping[int, int] | None], None],
        refused: Callable[[list[Block], StoreError], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._tell_written = written
        self._refused = refused
        self._failed = failed
        self.apart: set[int] = set()
        self.shipped: set[int] = set()
        self._waiting: list[Block] = []
        # The bytes of those that have been encoded already, by the blocks' identity.
        self._stored: dict[int, StoredBlock] = {}
        # Group -> up to where its tables are to follow, and since when (0: somebody waits); in the order of that.
        self._apply: dict[int, tuple[int, float]] = {}
        self._apply_now = False
        self._apply_timer: asyncio.TimerHandle | None = None
        self._appended_bytes = 0
        self._jobs: list[Callable[[], None]] = []
        self._busy = False
        self._step_at = monotonic() + HOUSEKEEPING_S
        self._more = False
        self._step_timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, "lexicast-committer")
        self._awaited = False
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._begun_s = 0.0
        # Of transactions with blocks in them, until the event loop knows.
        self.durations = Durations()
        self.waiting_bytes = 0
        self.waiting_records = 0
        self.error: StoreError | None = None

    @property
    def shared(self) -> set[int]:
        """The groups of which others may have what is written here."""
        return self.apart | self.shipped

    def submit(self, blocks: list[Block], awaited: bool = True, stored: Iterable[StoredBlock] = ()) -> None:
        """Have `blocks` made durable; returns at once. Not `awaited`: within QUIET_S, or with the next that is.
        `stored`: those of them that have been encoded already.

        After the store has failed they are dropped: `failed` has told everybody.
        """
        if self.error is not None:
            return
        for each in stored:
            self._stored[id(each.block)] = each
        self._waiting += blocks
        self._idle.clear()
        self.waiting_bytes += sum([block.size_bytes for block in blocks])
        self.waiting_records += sum([block.count for block in blocks])
        self._awaited = self._awaited or awaited
        self._go_on()

    def apply(self, upto: Mapping[int, int], awaited: bool = True) -> None:
        """Have the store's tables follow from everything below these offsets, by group, with the next transaction. Not
        `awaited`: in APPLY_QUIET_S, or somewhat later."""
        if self.error is not None:
            return
        now = 0.0 if awaited else monotonic()
        for group, below in upto.items():
            known = self._apply.get(group)
            if known is None:
                self._apply[group] = below, now
            else:
                self._apply[group] = max(known[0], below), min(known[1], now)
        self._idle.clear()
        if awaited:
            self._apply_now = True
            self._kick()
        else:
            self._apply_soon(APPLY_QUIET_S)

    def _apply_soon(self, after_s: float) -> None:
        if self._apply_timer is None:
            self._apply_timer = self._loop.call_later(after_s, self._apply_due)

    def run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Have `job` done on the thread, when everything submitted by now is durable. The future gives what it returns
        or raises; an error of the store that is not the caller's mistake ends the committer as any other."""
        future: asyncio.Future[T] = self._loop.create_future()

        def settle(error: Exception | None, result: T | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(cast(T, result))

        def work() -> None:
            try:
                result = job()
            except LexicastError as error:
                self._loop.call_soon_threadsafe(settle, error, None)
                if not isinstance(error, UsageError | StoreFullError | PeerError):
                    raise
            else:
                self._loop.call_soon_threadsafe(settle, None, result)

        if self.error is not None:
            settle(self.error, None)
            return future
        self._jobs.append(work)
        self._kick()
        return future

    def withdraw(self, unwanted: Callable[[Block], bool]) -> list[Block]:
        """Take out of what waits, and return, the blocks that shall not be written after all."""
        taken = [block for block in self._waiting if unwanted(block)]
        if taken:
            self._waiting = [block for block in self._waiting if not unwanted(block)]
            self.waiting_bytes -= sum([block.size_bytes for block in taken])
            self.waiting_records -= sum([block.count for block in taken])
            for block in taken:
                self._stored.pop(id(block), None)
        return taken

    def _go_on(self) -> None:
        """Write what waits, now or soon."""
        if self._awaited or self.waiting_bytes > QUIET_BYTES_MAX:
            self._kick()
        elif self._waiting and self._timer is None:
            self._timer = self._loop.call_later(QUIET_S, self._quiet_over)

    def _quiet_over(self) -> None:
        self._timer = None
        self._kick()

    def tick(self) -> None:
        """Take a housekeeping step if one is due; call it now and then."""
        if monotonic() >= self._step_at:
            self._kick(sweep=True)

    async def drain(self) -> None:
        """Return when everything submitted is durable and applied as far as it shall be (or the store has failed)."""
        self._apply = {group: (below, 0.0) for group, (below, _) in self._apply.items()}
        self._apply_now = bool(self._apply)
        self._kick()
        await self._idle.wait()

    async def close(self) -> None:
        """Drain, then end the thread."""
        self._closing = True
        if self._step_timer is not None:
            self._step_timer.cancel()
        await self.drain()
        self._executor.shutdown(wait=True)

    def _kick(self, sweep: bool = False) -> None:
        if self._busy or self.error is not None or not (self._waiting or self._apply_now or self._jobs or sweep):
            return
        self._busy = True
        self._idle.clear()
        batch = self._next_batch()
        self._awaited = self._awaited and bool(self._waiting)
        apply, jobs = self._next_apply(batch), []
        if not self._waiting:
            jobs, self._jobs = self._jobs, []
        # As it is now: a group may be led no more when the disk turns out to be full, and its blocks were shipped.
        shared = self.apart or self.shipped
        whole = {b.group for b in batch if b.group in self.apart or b.group in self.shipped} if shared else set()
        self._begun_s = monotonic()
        future = self._loop.run_in_executor(self._executor, self._write, batch, whole, apply, jobs)
        future.add_done_callback(lambda done: self._written(batch, apply, done))

    def _next_apply(self, batch: list[Block]) -> dict[int, int] | None:
        """Up to where the tables follow in the next transaction; None: from all of `batch`, and from nothing else."""
        if not self._apply and not self.apart:
            return None
        apply = self._take_due(bool(batch))
        for block in batch:
            if block.group not in self.apart:
                apply[block.group] = max(apply.get(block.group, 0), block.last + 1)
            else:
                self._appended_bytes += block.size_bytes
        return apply

    def _take_due(self, some: bool) -> dict[int, int]:
        """What of `_apply` is due; `some`: not too much, unless somebody waits."""
        self._apply_now = False
        if not self._apply:
            return {}
        due_s = monotonic() - APPLY_QUIET_S
        if self._appended_bytes > APPLY_BYTES_MAX:
            self._appended_bytes, due_s, some = 0, math.inf, False
        due = [group for group, (_, since) in self._apply.items() if since <= due_s]
        if some and len(due) > APPLIED_GROUPS_A_COMMIT:
            due = [g for at, g in enumerate(due) if at < APPLIED_GROUPS_A_COMMIT or not self._apply[g][1]]
        return {group: self._apply.pop(group)[0] for group in due}

    def _next_batch(self) -> list[Block]:
        """What goes into the next transaction: all that waits, as far as the store takes it at once."""
        limit, size = self._store.options.commit_bytes_max, 0
        for at, block in enumerate(self._waiting):
            size += block.size_bytes
            if at and size > limit:
                batch, self._waiting = self._waiting[:at], self._waiting[at:]
                return batch
        batch, self._waiting = self._waiting, []
        return batch

    def _write(
        self, batch: list[Block], whole: set[int], apply: dict[int, int] | None, jobs: list[Callable[[], None]]
    ) -> Written:
        """On the thread: one transaction, what else was asked for, and perhaps one step of reclaiming."""
        found = self._commit(batch, whole, apply)
        for job in jobs:
            job()
        self._housekeeping()
        return found

    def _commit(self, batch: list[Block], whole: set[int], apply: dict[int, int] | None) -> Written:
        """All of it; else the control records alone; else nothing.

        Of groups that others hold too (`whole`) all or nothing: a hole in one copy is what no copy may have.
        """
        full: StoreFullError | None = None
        for wanted in self._tries(batch, whole):
            try:
                if apply is not None:
                    self._store.commit([self._stored.get(id(block), block) for block in wanted], apply)
                elif wanted:
                    self._store.commit(wanted)
            except StoreFullError as error:
                full = full or error
            else:
                return Written(wanted, apply, full)
        return Written([], {}, full)

    def _tries(self, batch: list[Block], whole: set[int]) -> Iterator[list[Block]]:
        yield batch
        # As it is by now: a follower that has come meanwhile was shipped what is refused here.
        yield [b for b in batch if b.kind != PUBLICATIONS and b.group not in whole and b.group not in self.shipped]

    def _housekeeping(self) -> None:
        """On the thread: a step, if one is due and nothing waits meanwhile."""
        now = monotonic()
        if now < self._step_at or (self._waiting and now < self._step_at + HOUSEKEEPING_S):
            return
        try:
            self._more = self._store.reclaim(self._clock.time_us()).more
        except StoreFullError:
            self._more = False  # there is no room to free any in: again at the next one due
        took = monotonic() - now
        pause = min(took / STEP_SHARE, STEP_PAUSE_MAX_S) if self._more else HOUSEKEEPING_S
        self._step_at = now + took + pause

    def _step_later(self) -> None:
        """Nothing is under way: take the next step when it is due, if there is more to do."""
        if self._more and self._step_timer is None and not self._closing:
            self._step_timer = self._loop.call_later(max(0.0, self._step_at - monotonic()), self._step_due)

    def _step_due(self) -> None:
        self._step_timer = None
        self._kick(sweep=True)

    def _apply_later(self, apply: Mapping[int, int]) -> None:
        """There was no room even for what is committed to be applied: again when some may have been freed."""
        for group, below in apply.items():
            self._apply[group] = max(self._apply.get(group, (0, 0.0))[0], below), 0.0
        self._apply_soon(HOUSEKEEPING_S)

    def _apply_due(self) -> None:
        self._apply_timer = None
        self._apply_now = bool(self._apply)
        self._kick()

    def _written(self, batch: list[Block], apply: dict[int, int] | None, done: asyncio.Future[Written]) -> None:
        self._busy = False
        if batch:
            self.durations.note(monotonic() - self._begun_s)
        self.waiting_bytes -= sum([block.size_bytes for block in batch])
        self.waiting_records -= sum([block.count for block in batch])
        error = done.exception()
        if error is not None:
            known = isinstance(error, StoreError)
            self.error = error if isinstance(error, StoreError) else StoreError(f"the store failed: {error!r}")
            log.error("%s", self.error, exc_info=None if known else error)  # a defect says where it is
            self._waiting.clear()
            self._stored.clear()
            self._apply.clear()
            self.waiting_bytes = self.waiting_records = 0
            self._idle.set()
            self._failed(self.error)
            return
        written = done.result()
        if self._stored:
            for block in batch:
                self._stored.pop(id(block), None)
        if written.full is not None:
            kept = set(map(id, written.blocks))
            self._refused([block for block in batch if id(block) not in kept], written.full)
            if apply and not written.applied:
                self._apply_later(apply)
        self._tell_written(written.blocks, written.applied)
        if self._jobs or self._apply_now:
            self._kick()
        if self._apply:
            self._apply_soon(APPLY_QUIET_S)
        self._go_on()
        if not self._busy:
            self._step_later()
        if not (self._busy or self._waiting or self._apply or self._jobs):
            self._idle.set()
