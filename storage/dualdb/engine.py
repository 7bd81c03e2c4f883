"""DualDB as its paper has it (tables 1 and 2): one store for publications and subscriptions, both look-ups at once.

    publish(ID, {T_P, T_max, Pid, payload})       stores it; the valid subscriptions of ID with T_min <= T_P <= T_max
    subscribe(ID, {T_min, T_max, T_S, Sid})       stores it; the valid publications of ID from T_min on
    renew(ID, Sid, T_min, T_max)                  replaces what that Sid has at ID; returns nothing
    unsubscribe(ID, Sid)                          takes it away

`apply` takes batches of mixed operations, in columns: one transaction, durable when it returns. Operations are numbered
in their order, and the number decides what is past and what future: a publication is found by exactly one of its own
`publish` (subscriptions before it) and a later `subscribe`, also within a batch. Times only filter. (The paper bounds
the past by T_S; times that ascend with the numbers make that the same, and where clocks disagree nothing is lost.)

**The store's time** is the greatest time that any operation carried; it never goes back. What expired before it is
gone for look-ups at once, and from memory and disk when a merge meets it. So a clock that jumps back revives nothing,
and one that jumps ahead expires what it passes over, no matter when merges happen.

Nothing is read to be written: renewing and unsubscribing leave a tombstone (`tombstones`), merges apply it.

One thread. Errors as in `store`: the caller's mistake (UsageError) and a full disk that was seen in time
(StoreFullError) leave everything as it was; any error of LMDB or the system poisons the store.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from os import statvfs
from pathlib import Path
from typing import Final, NamedTuple

import lmdb
import numpy as np

from lexicast.cluster.errors import StoreError, StoreFullError, StorePoisonedError, UsageError

from ..file.disk import disk_is_full
from ..file.sealing import DamageError
from ..file.table import WriteTransaction
from .batches import (
    PUBLISH,
    RENEW,
    SUBSCRIBE,
    UNSUBSCRIBE,
    OperationBatch,
    admitted,
    batch_head,
    decode_batch,
    encode_batch,
    keep_until,
    payloads_at,
)
from .environment import DualEnvironment
from .manifest import Manifest, read_manifest
from .merge_tree import MergeTree
from .options import DualOptions
from .rows import (
    EVER_US,
    I64,
    PUBLICATION,
    SUBSCRIPTION,
    Matches,
    Queries,
    RowColumns,
    joined_matches,
    ordered,
    sorted_rows,
)
from .runs import parse_segment_key
from .tombstones import tombstone_rows

_BATCHES_DELETED_A_STEP: Final = 8
_SEQ_BYTES: Final = 8
_ONE: Final = np.uint64(1)


class FoundPublication(NamedTuple):
    """T_P and T_max (microseconds), Pid, and the position that `payloads` takes."""

    time_us: int
    expires_us: int
    pid: int
    position: int


class FoundSubscription(NamedTuple):
    """T_min and T_max (microseconds) and Sid."""

    time_min_us: int
    time_max_us: int
    sid: int


class DualStats(NamedTuple):
    """What a DualDB holds; rows count expired ones that no merge has met yet."""

    operations: int
    memory_rows: int
    run_rows: int
    runs: int
    tombstones: int
    batches: int
    file_bytes: int
    now_us: int
    poisoned: bool


def id_of_name(name: bytes | str) -> int:
    """The ID of a name: 63 bits of its BLAKE2b. Two of a million names agree with a probability of 5e-8."""
    data = name.encode() if isinstance(name, str) else name
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big") >> 1


class DualDB:
    """See the module's docstring; made by `DualDB.open`."""

    def __init__(self, environment: DualEnvironment, options: DualOptions) -> None:
        self.environment = environment
        self._options = options
        self._poison: str | None = None
        self._closed = False
        # (first operation, when its last publication expires) of batches that are still the log of something; then,
        # the other way round, of those that are kept for their payloads alone.
        self._log: deque[tuple[int, int]] = deque()
        self._until: list[tuple[int, int]] = []
        with environment.snapshot() as txn:
            self._used_bytes = environment.used_bytes(txn)
            self._manifest: Manifest = read_manifest(txn, environment.meta, environment.directory)
        self._tree = MergeTree(environment, options, self._manifest)
        self._next = self._manifest.flushed
        self._now_us = self._manifest.now_us
        self._recover()

    @classmethod
    def open(cls, directory: Path, options: DualOptions | None = None) -> DualDB:
        """Open the DualDB in `directory`, or create it. Raises StoreFormatError, StorePoisonedError, StoreError."""
        chosen = options or DualOptions()
        environment = DualEnvironment(directory, chosen.map_bytes)
        try:
            return cls(environment, chosen)
        except lmdb.Error as error:
            environment.close()
            raise StoreError(f"the DualDB {directory} cannot be opened: {error}; repair it") from None
        except BaseException:
            environment.close()
            raise

    def _recover(self) -> None:
        """Take up runs and tombstones, enter the batches beyond the last flush, and let go of unfinished runs."""
        with self.environment.snapshot() as txn, txn.cursor(self.environment.batches) as cursor:
            self._tree.load(txn)
            for key, value in cursor:
                first = int.from_bytes(key, "big")
                if first < self._manifest.flushed:
                    heapq.heappush(self._until, (keep_until(value), first))
                    continue
                head = batch_head(value, first)
                self._enter(decode_batch(value, head), first)
                self._log.append((first, head.keep_until_us))
            self._drop_unfinished(txn.cursor(self.environment.runs))

    def _drop_unfinished(self, cursor: lmdb.Cursor[memoryview]) -> None:
        known = {run.number for run in self._manifest.runs} | set(self._manifest.dropped)
        with cursor:
            for key in cursor.iternext(values=False):
                run = parse_segment_key(key)[0]
                self._manifest.next_run = max(self._manifest.next_run, run + 1)
                if run not in known:
                    known.add(run)
                    self._manifest.dropped.append(run)

    # state

    def _usable(self) -> None:
        if self._poison is not None:
            raise StorePoisonedError(
                f"the DualDB {self.environment.directory} refuses everything after an I/O error ({self._poison}): "
                "look at the disk and open it anew"
            )
        if self._closed:
            raise StoreError(f"the DualDB {self.environment.directory} is closed")

    @contextmanager
    def _guard(self) -> Iterator[None]:
        self._usable()
        try:
            yield
        except (lmdb.Error, OSError) as error:
            self._poison = str(error)
            if disk_is_full(self.environment.directory, error):
                raise StoreError(
                    f"No space left for the DualDB {self.environment.directory} ({error}): add some and open it anew"
                ) from error
            # A full disk fails before anything is written over; anything else may have lost pages.
            self.environment.leave_poison(str(error))
            raise StoreError(
                f"I/O error in the DualDB {self.environment.directory}: {error}; it refuses everything now"
            ) from error

    def _admit(self, size_bytes: int, batch: OperationBatch) -> None:
        found = statvfs(self.environment.directory)
        # Pages free inside the file count as well: LMDB fills them first and never shrinks the file.
        free = found.f_bavail * found.f_frsize + max(0, self.environment.file_bytes() - self._used_bytes)
        if free - size_bytes < self._options.reserve_bytes and bool((batch.kind != UNSUBSCRIBE).any()):
            raise StoreFullError(
                f"the disk of the DualDB {self.environment.directory} is full: {size_bytes} bytes wanted, {free} free, "
                f"{self._options.reserve_bytes} of them kept for expiry; add disk or let items expire"
            )

    # operations

    def apply(self, batch: OperationBatch) -> Matches:
        """Store a batch and answer its operations, each with what was stored before it. Durable on return.

        Raises UsageError, StoreFullError (nothing was stored), StoreError (the store is poisoned).
        """
        first = self.append(batch)
        queries = queries_of(batch, first, self._times)
        return self.answers(queries, first)

    def append(self, batch: OperationBatch) -> int:
        """Store a batch without asking anything; the number of its first operation. Raises as `apply`."""
        self._usable()
        admitted(batch)
        first = self._next
        now_us = max(self._now_us, int(batch.time.max()))
        value = encode_batch(batch, first, now_us)
        with self._guard():
            self._admit(len(value), batch)
            while self._tree.overdue:
                self._step()
            with self.environment.begin() as txn:
                txn.put(_seq_key(first), value, db=self.environment.batches, append=True)
                self._behind(txn)
                self._used_bytes = self.environment.used_bytes(txn)
        self._enter(batch, first)
        self._log.append((first, self._last_keep))
        return first

    def _enter(self, batch: OperationBatch, first: int) -> None:
        """Let memory follow a batch that is durable."""
        self._times = np.maximum.accumulate(np.maximum(batch.time, self._now_us))
        publications = batch.kind == PUBLISH
        self._last_keep = int(batch.high[publications].max()) if len(batch.payloads) else EVER_US
        subscribing = (batch.kind == SUBSCRIBE) | (batch.kind == RENEW)
        if subscribing.any():
            self._manifest.until_us = max(self._manifest.until_us, int(batch.high[subscribing].max()))
        removing = (batch.kind == RENEW) | (batch.kind == UNSUBSCRIBE)
        if removing.any():
            seq = np.flatnonzero(removing).astype(np.uint64) + np.uint64(first)
            key = (batch.id[removing] << _ONE) | np.uint64(SUBSCRIPTION)
            self._tree.add_tombstones(tombstone_rows(key, seq, batch.tag[removing], self._manifest.until_us))
        self._tree.add(sorted_rows(rows_of(batch, first)), self._now_us)
        self._now_us = int(self._times[-1])
        self._next = first + batch.size

    def answers(self, queries: Queries, first: int) -> Matches:
        """What `queries`, sorted by key, find; `first` is the number of the operation that is their `op` 0."""
        if not queries.size:
            return joined_matches([])
        with self._guard():
            return self._tree.tombstones.apply_to_matches(self._tree.probe(queries), queries, first)

    def payloads(self, positions: Sequence[int]) -> list[bytes]:
        """The payloads of publications. Raises UsageError where there is none any more, DamageError (a damaged one)."""
        found = [b""] * len(positions)
        batches: dict[int, list[int]] = {}
        with self._guard(), self.environment.snapshot() as txn, txn.cursor(self.environment.batches) as cursor:
            for at, position in enumerate(positions):
                there = cursor.set_range(_seq_key(position + 1))
                if not (cursor.prev() if there else cursor.last()):
                    raise UsageError(f"there is no publication {position}")
                batches.setdefault(int.from_bytes(cursor.key(), "big"), []).append(at)
            for first, places in batches.items():  # each is decoded once
                cursor.set_key(_seq_key(first))
                value = cursor.value()
                wanted = [positions[at] - first for at in places]
                for at, payload in zip(places, payloads_at(value, batch_head(value, first), wanted), strict=True):
                    found[at] = payload
        return found

    # one at a time

    def publish(self, id: int, time_us: int, expires_us: int, pid: int, payload: bytes) -> list[FoundSubscription]:
        """Store a publication; the valid subscriptions of the ID, in their order."""
        found = self.apply(one(PUBLISH, id, time_us, time_us, expires_us, pid, payload)).of(0)
        return [FoundSubscription(*map(int, row)) for row in zip(found.low, found.high, found.tag, strict=True)]

    def subscribe(self, id: int, time_us: int, time_min_us: int, time_max_us: int, sid: int) -> list[FoundPublication]:
        """Store a subscription; the valid publications of the ID so far, in their order."""
        found = self.apply(one(SUBSCRIBE, id, time_us, time_min_us, time_max_us, sid)).of(0)
        return [FoundPublication(*map(int, r)) for r in zip(found.low, found.high, found.tag, found.seq, strict=True)]

    def renew(self, id: int, time_us: int, time_min_us: int, time_max_us: int, sid: int) -> None:
        """Replace the subscription: from now on it has these times. It is made when there is none."""
        self.apply(one(RENEW, id, time_us, time_min_us, time_max_us, sid))

    def unsubscribe(self, id: int, time_us: int, sid: int) -> None:
        """Take the subscription away; nothing happens when there is none."""
        self.apply(one(UNSUBSCRIBE, id, time_us, time_us, time_us, sid))

    # work behind

    def _behind(self, txn: WriteTransaction) -> None:
        while self._log and self._log[0][0] < self._manifest.flushed:
            first, until_us = self._log.popleft()
            heapq.heappush(self._until, (until_us, first))
        for _ in range(_BATCHES_DELETED_A_STEP):
            if not self._until or self._until[0][0] >= self._now_us:
                break
            txn.delete(_seq_key(heapq.heappop(self._until)[1]), db=self.environment.batches)
        self._tree.work(txn, self._next, self._now_us)

    def _step(self) -> None:
        with self.environment.begin() as txn:
            self._behind(txn)
            self._used_bytes = self.environment.used_bytes(txn)

    def step(self) -> bool:
        """One bounded step of work behind, for when no batches come; False when there was nothing to do."""
        if not self._tree.due():
            return False
        with self._guard():
            self._step()
        return True

    def flush(self) -> None:
        """Write all of the memory table to runs. Not needed for durability."""
        with self._guard():
            while self._tree.due():
                self._step()
            if self._tree.pending:
                self._tree.freeze(self._next, self._now_us)
            while self._tree.due():
                self._step()

    def stats(self) -> DualStats:
        """What is held."""
        poisoned = self._poison is not None
        batches = len(self._until) + len(self._log)
        tree = self._tree
        return DualStats(
            self._next,
            tree.memory_rows,
            tree.run_rows,
            tree.runs,
            tree.tombstones.size,
            batches,
            0 if self._closed else self.environment.file_bytes(),
            self._now_us,
            poisoned,
        )

    def close(self) -> None:
        """Write the memory table (so that the next opening has nothing to do) and let go of the directory."""
        if self._closed:
            return
        if self._poison is None:
            with suppress(StoreError, DamageError):
                self.flush()
        self._closed = True
        self.environment.close()


def _seq_key(seq: int) -> bytes:
    return seq.to_bytes(_SEQ_BYTES, "big")


def one(
    kind: int, id: int, time_us: int, low_us: int, high_us: int, tag: int, payload: bytes | None = None
) -> OperationBatch:
    """A batch of one operation. Raises UsageError (a number out of range)."""
    try:
        return OperationBatch(
            np.array([kind], np.uint8),
            np.array([id], np.uint64),
            np.array([time_us], np.int64),
            np.array([low_us], np.int64),
            np.array([high_us], np.int64),
            np.array([tag], np.uint64),
            [] if payload is None else [payload],
        )
    except OverflowError as error:
        raise UsageError(f"a number is out of range: {error}") from None


def rows_of(batch: OperationBatch, first: int) -> RowColumns:
    """What a batch adds to the lists, in the order of its operations."""
    adding = np.flatnonzero(batch.kind <= RENEW)
    kind = np.where(batch.kind[adding] == PUBLISH, np.uint64(PUBLICATION), np.uint64(SUBSCRIPTION))
    low = np.where(batch.kind == PUBLISH, batch.time, batch.low)[adding]
    seq = adding.astype(np.uint64) + np.uint64(first)
    return RowColumns((batch.id[adding] << _ONE) | kind, seq, low, batch.high[adding], batch.tag[adding])


def queries_of(batch: OperationBatch, first: int, now_us: I64) -> Queries:
    """What a batch asks, sorted by key; `now_us` is the store's time at each operation."""
    op = np.flatnonzero(batch.kind <= SUBSCRIBE)
    publishing = batch.kind[op] == PUBLISH
    kind = np.where(publishing, np.uint64(SUBSCRIPTION), np.uint64(PUBLICATION))
    low_min = np.where(publishing, EVER_US, batch.low[op])
    low_max = np.where(publishing, batch.time[op], batch.high[op])
    seq = op.astype(np.uint64) + np.uint64(first)
    return ordered(Queries(op, (batch.id[op] << _ONE) | kind, low_min, low_max, now_us[op], seq))
