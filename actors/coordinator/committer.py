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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import NamedTuple

from lexicast.cluster.blocks import PUBLICATIONS, Block
from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import StoreError, StoreFullError
from lexicast.storage.store import Store

log = logging.getLogger(__name__)

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


class Written(NamedTuple):
    """The blocks of a batch that are durable; `full`: why the others are not."""

    blocks: list[Block]
    full: StoreFullError | None


class Committer:
    """Writes blocks in the order given and tells when they are durable.

    `committed(blocks)` and `refused(blocks, error)` are called in the event loop, in order. A StoreFullError refuses
    publications and keeps control records, as long as there is room for these; in housekeeping it means to wait. Any
    other error ends the committer: `failed(error)`, once.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        committed: Callable[[list[Block]], None],
        refused: Callable[[list[Block], StoreError], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._committed = committed
        self._refused = refused
        self._failed = failed
        self._waiting: list[Block] = []
        self._busy = False
        self._step_at = monotonic() + HOUSEKEEPING_S
        self._more = False
        self._step_timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "lexicast-committer")
        self._awaited = False
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.waiting_bytes = 0
        self.waiting_records = 0
        self.error: StoreError | None = None

    def submit(self, blocks: list[Block], awaited: bool = True) -> None:
        """Have `blocks` made durable; returns at once. Not `awaited`: within QUIET_S, or with the next that is.

        After the store has failed they are dropped: `failed` has told everybody.
        """
        if self.error is not None:
            return
        self._waiting += blocks
        self._idle.clear()
        self.waiting_bytes += sum([block.size_bytes for block in blocks])
        self.waiting_records += sum([block.count for block in blocks])
        self._awaited = self._awaited or awaited
        self._go_on()

    def withdraw(self, unwanted: Callable[[Block], bool]) -> list[Block]:
        """Take out of what waits, and return, the blocks that shall not be written after all."""
        taken = [block for block in self._waiting if unwanted(block)]
        if taken:
            self._waiting = [block for block in self._waiting if not unwanted(block)]
            self.waiting_bytes -= sum([block.size_bytes for block in taken])
            self.waiting_records -= sum([block.count for block in taken])
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
        """Return when everything submitted is durable (or the store has failed)."""
        self._kick()
        await self._idle.wait()

    async def close(self) -> None:
        """Drain, then end the thread."""
        self._closing = True
        if self._step_timer is not None:
            self._step_timer.cancel()
        await self.drain()
        self._thread.shutdown(wait=True)

    def _kick(self, sweep: bool = False) -> None:
        if self._busy or self.error is not None or not (self._waiting or sweep):
            return
        self._busy = True
        self._idle.clear()
        batch = self._next_batch()
        self._awaited = self._awaited and bool(self._waiting)
        future = self._loop.run_in_executor(self._thread, self._write, batch)
        future.add_done_callback(lambda done: self._written(batch, done))

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

    def _write(self, batch: list[Block]) -> Written:
        """On the thread: one transaction, and perhaps one step of reclaiming."""
        found = self._commit(batch)
        self._housekeeping()
        return found

    def _commit(self, batch: list[Block]) -> Written:
        """All of it; else the control records alone; else nothing."""
        full: StoreFullError | None = None
        for wanted in (batch, [block for block in batch if block.kind != PUBLICATIONS]):
            try:
                if wanted:
                    self._store.commit(wanted)
            except StoreFullError as error:
                full = full or error
            else:
                return Written(wanted, full)
        return Written([], full)

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

    def _written(self, batch: list[Block], done: asyncio.Future[Written]) -> None:
        self._busy = False
        self.waiting_bytes -= sum([block.size_bytes for block in batch])
        self.waiting_records -= sum([block.count for block in batch])
        error = done.exception()
        if error is not None:
            self.error = error if isinstance(error, StoreError) else StoreError(f"the store failed: {error!r}")
            log.error("%s", self.error)
            self._waiting.clear()
            self.waiting_bytes = self.waiting_records = 0
            self._idle.set()
            self._failed(self.error)
            return
        written = done.result()
        if written.full is not None:
            kept = set(map(id, written.blocks))
            self._refused([block for block in batch if id(block) not in kept], written.full)
        self._committed(written.blocks)
        self._go_on()
        if not self._busy:
            self._step_later()
        if not self._busy and not self._waiting:
            self._idle.set()
