"""Any interleaving of operations, expiry, writing behind, merging, damage, closing and crashing, against the model."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lexicast.storage.dualdb import engine, tiers
from lexicast.storage.dualdb.batches import PUBLISH, RENEW, SUBSCRIBE, UNSUBSCRIBE
from lexicast.storage.dualdb.engine import DualDB
from lexicast.storage.dualdb.options import DualOptions
from lexicast.storage.dualdb.runs import SortedRun
from lexicast.storage.file.sealing import DamageError

from ..support.dualdb_model import Model, Operation, batch_of

SMALL = DualOptions(
    map_bytes=1 << 26,
    memory_rows_max=12,
    segment_rows=4,
    runs_fanout=2,
    tombstones_max=3,
    journal_bytes=600,
    reserve_bytes=0,
)
IDS = st.integers(0, 3)
TAGS = st.integers(0, 3)
STEPS = st.integers(-4, 6)
SPANS = st.integers(-3, 30)


@st.composite
def relative_operations(draw: st.DrawFn) -> tuple[int, int, int, int, int, int]:
    kind = draw(st.sampled_from([PUBLISH, PUBLISH, SUBSCRIBE, SUBSCRIBE, RENEW, UNSUBSCRIBE]))
    return kind, draw(IDS), draw(STEPS), draw(SPANS), draw(SPANS), draw(TAGS)


def damaged(*unused: object) -> NoReturn:
    raise DamageError("runs", 1, 0, "the segment does not match its checksum")


class DualDBMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # Few rows a step: so that tiers are asked, frozen and lost while they are being joined.
        self.patched = pytest.MonkeyPatch()
        for name, value in (
            ("FANOUT", 2),
            ("GROWN_ROWS", 3),
            ("MOVED_A_ROW", 1),
            ("MOVED_ROWS_MIN", 2),
            ("_TAKEN_ROWS", 4),
        ):
            self.patched.setattr(tiers, name, value)
        # Row by row, by columns through the journal, and by columns at once.
        self.patched.setattr(engine, "FEW", 3)
        self.directory = Path(tempfile.mkdtemp(prefix="dualdb"))
        self.db = DualDB.open(self.directory, SMALL)
        self.model = Model()
        self.time = 1_000

    def teardown(self) -> None:
        self.db.close()
        self.patched.undo()
        shutil.rmtree(self.directory)

    def operation(self, kind: int, id: int, step: int, back: int, ahead: int, tag: int) -> Operation:
        self.time += step
        payload = f"{len(self.model.stored)}/{id}".encode()
        return Operation(kind, id, self.time, self.time - back, self.time + ahead, tag, payload)

    @rule(parts=st.lists(relative_operations(), min_size=1, max_size=12))
    def apply(self, parts: list[tuple[int, int, int, int, int, int]]) -> None:
        self.applied([self.operation(*part) for part in parts])

    @rule(parts=st.lists(relative_operations(), min_size=1, max_size=12))
    def apply_while_runs_are_damaged(self, parts: list[tuple[int, int, int, int, int, int]]) -> None:
        """Answers may be refused, and merges stand still; what is stored is what it would be."""
        operations = [self.operation(*part) for part in parts]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(SortedRun, "segment", damaged)
            with suppress(DamageError):
                self.applied(operations)
            with suppress(DamageError):
                self.db.step()

    def applied(self, operations: list[Operation]) -> None:
        wanted = [self.model.apply(operation) for operation in operations]
        found = self.db.apply(batch_of(operations))
        for op, expected in enumerate(wanted):
            own = found.of(op)
            columns = (own.seq, own.low, own.high, own.tag)
            assert [tuple(map(int, row)) for row in zip(*columns, strict=True)] == expected
            if operations[op].kind == SUBSCRIBE:
                positions = [row[0] for row in expected]
                assert self.db.payloads(positions) == [self.model.stored[at].payload for at in positions]

    @rule(seconds=st.sampled_from([-50, 15, 60]))
    def clock_jumps(self, seconds: int) -> None:
        self.time += seconds

    @rule()
    def step(self) -> None:
        self.db.step()

    @rule()
    def flush(self) -> None:
        self.db.flush()
        assert self.db.stats().memory_rows == 0

    @rule()
    def close_and_open(self) -> None:
        self.db.close()
        self.db = DualDB.open(self.directory, SMALL)

    @rule()
    def crash_and_open(self) -> None:
        self.db.environment.close()
        self.db = DualDB.open(self.directory, SMALL)

    @precondition(lambda self: self.model.stored)
    @invariant()
    def memory_is_bounded(self) -> None:
        stats = self.db.stats()
        assert stats.operations == len(self.model.stored)
        assert stats.memory_rows <= 3 * (SMALL.memory_rows_max + 12)


TestDualDB = DualDBMachine.TestCase
TestDualDB.settings = settings(
    max_examples=120, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
