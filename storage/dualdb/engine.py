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

A batch is durable when the journal or LMDB has it (`operation_log`). Up to FEW operations at once are taken row by row,
more by columns: the same answers, and what few of them cost is not NumPy's calls but their own.

Nothing is read to be written: renewing and unsubscribing leave a tombstone (`tombstones`), merges apply it.

One thread. Errors as in `store`: the caller's mistake (UsageError) and a full disk that was seen in time
(StoreFullError) leave everything as it was; any error of LMDB or the system poisons the store. Damage that a look-up
meets (DamageError) costs the answers: the operations of that call are stored, and the store goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from struct import error as StructError
from typing import Final, NamedTuple, SupportsIndex

import lmdb
import numpy as np

from lexicast.cluster.errors import StoreError, StoreFullError, UsageError

from ..file.sealing import DamageError
from .asking import queries_of, question_of, rows_of
from .batches import (
    PUBLISH,
    RENEW,
    SUBSCRIBE,
    UNSUBSCRIBE,
    OperationBatch,
    RowOperation,
    admitted,
    admitted_rows,
    encode_batch,
    encode_rows,
    in_columns,
    operations_of,
    row_operation,
    whole,
)
from .care import DiskRoom, DualGuard
from .environment import DualEnvironment
from .manifest import Manifest, mark_version, read_manifest
from .merge_tree import MergeTree
from .operation_log import OperationLog
from .options import DualOptions
from .recent import batch_of_rows
from .rows import SUBSCRIPTION, Answer, Matches, Queries, joined_matches, matches_of, sorted_rows
from .runs import drop_unfinished
from .tombstones import tombstone_rows

# Row by row 2 operations at once take a third of the CPU that they take by columns, 16 as much, 100 five times as much.
FEW = 16
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
        self._guard = DualGuard(environment)
        self._room = DiskRoom(environment, options.reserve_bytes)
        with environment.snapshot() as txn:
            self._manifest: Manifest = read_manifest(txn, environment.meta, environment.directory)
            self._room.look(txn)
        self._tree = MergeTree(environment, options, self._manifest)
        self._log = OperationLog(environment, options.journal_bytes, options.memory_rows_max)
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
        except (lmdb.Error, OSError) as error:
            environment.close()
            raise StoreError(f"the DualDB {directory} cannot be opened: {error}; repair it") from None
        except BaseException:
            environment.close()
            raise

    def _recover(self) -> None:
        """Take up runs and tombstones, enter the batches beyond the last flush, and let go of unfinished runs."""
        environment = self.environment
        mark_version(environment.begin, environment.meta, self._manifest)
        with environment.snapshot() as txn:
            self._tree.load(txn)
            for first, batch in self._log.recovered(txn, self._manifest.flushed):
                self._enter(batch, first)
            drop_unfinished(txn.cursor(environment.runs), self._manifest)

    def _admit(self, size_bytes: int) -> None:
        """Refuse operations that leave less than the reserve, when expiry gives nothing back."""
        if self._room.grants(size_bytes, self._log.waiting_bytes):
            return
        self._step()
        if not self._room.grants(size_bytes, self._log.waiting_bytes):
            free = self._room.free_bytes(self._log.waiting_bytes)
            raise StoreFullError(
                f"the disk of the DualDB {self.environment.directory} is full: {size_bytes} bytes wanted, {free} free, "
                f"{self._options.reserve_bytes} of them kept for expiry; add disk or let items expire"
            )

    # operations

    def apply(self, batch: OperationBatch) -> Matches:
        """Store a batch and answer its operations, each with what was stored before it. Durable on return.

        Raises UsageError, StoreFullError (nothing was stored), DamageError (all of it was stored; an answer is
        damaged), StoreError (the store is poisoned).
        """
        self._guard.usable()
        if not self._log.takes_rows(in_columns(batch), FEW):
            first = self._append(batch)
            return self.answers(queries_of(batch, first, self._times), first)
        operations = operations_of(batch)
        self._store(operations, batch.payloads)
        payloads = iter(batch.payloads)
        answers: list[tuple[int, Answer]] = []
        damage: DamageError | None = None
        for op, operation in enumerate(operations):
            payload = next(payloads) if operation.kind == PUBLISH else None
            try:
                answers += [(op, answer) for answer in self._answer(operation, payload)]
            except DamageError as error:  # all of them are durable: the others are entered first
                damage = damage or error
        _raise(damage)
        return matches_of(answers)

    def append(self, batch: OperationBatch) -> int:
        """Store a batch without asking anything; the number of its first operation. Raises as `apply`."""
        self._guard.usable()
        if not self._log.takes_rows(in_columns(batch), FEW):
            return self._append(batch)
        operations = operations_of(batch)
        first = self._next
        self._store(operations, batch.payloads)
        payloads = iter(batch.payloads)
        for operation in operations:
            self._now_us = max(self._now_us, operation.time)
            self._enter_row(operation, next(payloads) if operation.kind == PUBLISH else None)
        return first

    def _append(self, batch: OperationBatch) -> int:
        admitted(batch)
        first = self._next
        value = encode_batch(batch, first, max(self._now_us, int(batch.time.max())))
        small = self._log.takes(len(value))
        with self._guard.watch():
            if bool((batch.kind != UNSUBSCRIBE).any()):
                self._admit(2 * len(value) if small else len(value))
            self._close_recent()
            if small:
                self._journal(value, batch.size)
                self._log.enter(batch)
            else:
                self._step(value)
                self._log.was_put(batch)
        self._enter(batch, first)
        return first

    def _enter(self, batch: OperationBatch, first: int) -> None:
        """Let memory follow a batch that is durable."""
        self._times = np.maximum.accumulate(np.maximum(batch.time, self._now_us))
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

    # few operations, row by row

    def _store(self, operations: Sequence[RowOperation], payloads: Sequence[bytes]) -> None:
        """Make a few operations durable; they are to be entered."""
        admitted_rows(operations, payloads)
        now_us = self._now_us
        removing = True
        for operation in operations:
            now_us = max(now_us, operation.time)
            removing = removing and operation.kind == UNSUBSCRIBE
        try:
            value = encode_rows(operations, payloads, self._next, now_us)
        except StructError as error:
            raise UsageError(f"a number is out of range: {error}") from None
        try:
            if not removing:
                self._admit(2 * len(value))
            self._journal(value, len(operations))
        except (lmdb.Error, OSError) as error:
            self._guard.fail(error)

    def _answer(self, operation: RowOperation, payload: bytes | None) -> list[Answer]:
        """The answers of an operation that is durable, in their order; then it is entered. Raises DamageError."""
        self._now_us = max(self._now_us, operation.time)
        asked = question_of(operation, self._now_us)
        found: list[Answer] = []
        try:
            if asked is not None:
                self._tree.find(asked, found)
                self._log.recent.find(asked, found)
                found = self._tree.tombstones.living(asked.key, found)
                found.sort()
        except lmdb.Error as error:
            self._guard.fail(error)
        finally:
            # Whatever the look-up met: its number is taken, and a second operation under it would be lost.
            self._enter_row(operation, payload)
        return found

    def _enter_row(self, operation: RowOperation, payload: bytes | None) -> None:
        self._log.enter_row(operation, payload)
        if operation.kind != PUBLISH:
            if operation.kind != UNSUBSCRIBE:
                self._manifest.until_us = max(self._manifest.until_us, operation.high)
            if operation.kind >= RENEW:
                key = np.array([operation.id << 1 | SUBSCRIPTION], np.uint64)
                seq, tag = np.array([self._next], np.uint64), np.array([operation.tag], np.uint64)
                self._tree.add_tombstones(tombstone_rows(key, seq, tag, self._manifest.until_us))
        self._next += 1

    # questions

    def answers(self, queries: Queries, first: int) -> Matches:
        """What `queries`, sorted by key, find; `first` is the number of the operation that is their `op` 0.

        Raises DamageError, StoreError (the store is poisoned).
        """
        if not queries.size:
            return joined_matches([])
        self._close_recent()
        with self._guard.watch():
            return self._tree.tombstones.apply_to_matches(self._tree.probe(queries), queries, first)

    def payloads(self, positions: Sequence[SupportsIndex]) -> list[bytes]:
        """The payloads of publications. Raises UsageError where there is none any more, DamageError (a damaged one)."""
        with self._guard.watch():
            return self._log.payloads([whole(position) for position in positions])

    # one at a time

    def publish(
        self, id: SupportsIndex, time_us: SupportsIndex, expires_us: SupportsIndex, pid: SupportsIndex, payload: bytes
    ) -> list[FoundSubscription]:
        """Store a publication; the valid subscriptions of the ID, in their order. Raises as `apply`."""
        found = self._single(row_operation(PUBLISH, id, time_us, time_us, expires_us, pid), payload)
        return [FoundSubscription(low, high, tag) for _, low, high, tag in found]

    def subscribe(
        self,
        id: SupportsIndex,
        time_us: SupportsIndex,
        time_min_us: SupportsIndex,
        time_max_us: SupportsIndex,
        sid: SupportsIndex,
    ) -> list[FoundPublication]:
        """Store a subscription; the valid publications of the ID so far, in their order. Raises as `apply`."""
        found = self._single(row_operation(SUBSCRIBE, id, time_us, time_min_us, time_max_us, sid))
        return [FoundPublication(low, high, tag, seq) for seq, low, high, tag in found]

    def _single(self, operation: RowOperation, payload: bytes | None = None) -> list[Answer]:
        self._guard.usable()
        if payload is None or self._log.takes(len(payload)):
            self._store((operation,), () if payload is None else (payload,))
            return self._answer(operation, payload)
        try:
            batch = batch_of_rows([operation], [payload])
        except OverflowError as error:
            raise UsageError(f"a number is out of range: {error}") from None
        found = self.apply(batch).of(0)
        return list(zip(found.seq.tolist(), found.low.tolist(), found.high.tolist(), found.tag.tolist(), strict=True))

    def renew(
        self,
        id: SupportsIndex,
        time_us: SupportsIndex,
        time_min_us: SupportsIndex,
        time_max_us: SupportsIndex,
        sid: SupportsIndex,
    ) -> None:
        """Replace the subscription: from now on it has these times. It is made when there is none."""
        self._single(row_operation(RENEW, id, time_us, time_min_us, time_max_us, sid))

    def unsubscribe(self, id: SupportsIndex, time_us: SupportsIndex, sid: SupportsIndex) -> None:
        """Take the subscription away; nothing happens when there is none."""
        self._single(row_operation(UNSUBSCRIBE, id, time_us, time_us, time_us, sid))

    # work behind

    def _journal(self, value: bytes, operations: int) -> None:
        """Make a small batch durable; the journal is moved before it where it is full."""
        if not self._log.has_room(len(value), operations):
            self._step()
        self._log.journal(value)

    def _close_recent(self) -> None:
        """What came row by row becomes a tier."""
        closed = self._log.close_recent()
        if closed is not None:
            first, batch = closed
            self._tree.add(sorted_rows(rows_of(batch, first)), self._now_us)

    def _step(self, value: bytes | None = None) -> DamageError | None:
        """A transaction: what the journal holds is moved, `value` put, and bounded steps of work behind done.

        The damage that a merge met is returned: it concerns no operation, and none is refused for it.
        """
        self._close_recent()
        steps = 1 + self._log.waiting // max(1, self._options.segment_rows // 2)
        with self.environment.begin() as txn:
            self._log.move(txn, self._now_us)
            if value is not None:
                self._log.put(txn, value)
            damage = None
            while damage is None and (steps > 0 or self._tree.overdue):
                self._log.expire(txn, self._manifest.flushed, self._now_us)
                damage = self._tree.work(txn, self._next, self._now_us)
                steps -= 1
            self._room.look(txn)
        self._log.moved()
        return damage

    def step(self) -> bool:
        """One bounded step of work behind, for when no batches come; False when there was nothing to do.

        Raises DamageError (a merge has met it: merges stand still until a repair, operations go on), StoreError (the
        store is poisoned).
        """
        if not self._tree.due():
            return False
        with self._guard.watch():
            _raise(self._step())
        return True

    def flush(self) -> None:
        """Write all of the memory table to runs. Not needed for durability. Raises as `step`."""
        with self._guard.watch():
            if self._log.waiting_bytes:
                self._step()
            while self._tree.due():
                _raise(self._step())
            if self._tree.pending:
                self._tree.freeze(self._next, self._now_us)
            while self._tree.due():
                _raise(self._step())

    def stats(self) -> DualStats:
        """What is held."""
        poisoned = self._guard.poison is not None
        tree = self._tree
        return DualStats(
            self._next,
            tree.memory_rows + self._log.recent.rows,
            tree.run_rows,
            tree.runs,
            tree.tombstones.size,
            self._log.batches,
            0 if self._guard.closed else self.environment.file_bytes(),
            self._now_us,
            poisoned,
        )

    def close(self) -> None:
        """Write the memory table (so that the next opening has nothing to do) and let go of the directory."""
        if self._guard.closed:
            return
        if self._guard.poison is None:
            with suppress(StoreError, DamageError):
                self.flush()
        self._guard.closed = True
        self.environment.close()


def _raise(damage: DamageError | None) -> None:
    if damage is not None:
        raise damage
