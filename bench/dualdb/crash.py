"""The crash driver: the process that writes a store is killed at random moments, a hundred times; then, what is lost?

A child commits what a seed says and acknowledges each commit on a pipe; the parent kills it with SIGKILL after a random
time, opens the store and compares: everything acknowledged is there, what is there beyond it is whole (at most the one
commit that was under way), nothing is torn, and answers are those of the same operations without any crash. Half of the
kills hit a stand-alone DualDB whose memory table, runs and merges are small, so that writing behind is always under
way; the other half a coordinator's store.

`python -m lexicast.bench.dualdb.crash --kills 100`; figures `kills`, `lost`, `torn`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, pack_meta
from lexicast.cluster.clock import SystemClock
from lexicast.storage.dualdb.batches import PUBLISH, SUBSCRIBE, UNSUBSCRIBE, OperationBatch
from lexicast.storage.dualdb.engine import DualDB
from lexicast.storage.dualdb.options import DualOptions
from lexicast.storage.dualdb.rows import NEVER_US
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.maintenance import directory as maintenance
from lexicast.storage.store import Store

from .. import report as reports
from ..report import DriverReport

IDS = 16
START_US = 1_700_000_000_000_000
START_S = 30.0
"""How long a child may take to its first acknowledgement."""

DUAL = DualOptions(map_bytes=1 << 30, memory_rows_max=1_500, segment_rows=128, runs_fanout=3, tombstones_max=50)
STORE = StoreOptions(index_entries_max=60, index_step_topics=4, retention_s=0)


class KillOutcome(NamedTuple):
    """One kill: commits acknowledged, commits found, commits lost, and what was torn."""

    acknowledged: int
    found: int
    lost: int
    torn: str


# the stand-alone DualDB


def dual_batch(step: int) -> OperationBatch:
    """The operations of a step: nothing expires, a twentieth is unsubscribed."""
    dice = np.random.default_rng(step)
    count = int(dice.integers(1, 200))
    kind = dice.choice(np.array([PUBLISH, SUBSCRIBE, UNSUBSCRIBE], np.uint8), count, p=[0.5, 0.45, 0.05])
    id = dice.integers(0, IDS, count).astype(np.uint64)
    times = np.full(count, START_US + step)
    low, high = np.zeros(count, np.int64), np.full(count, NEVER_US)
    tag = dice.integers(0, 500, count).astype(np.uint64)
    payloads = [b"%d/%d" % (step, at) for at in np.flatnonzero(kind == PUBLISH).tolist()]
    return OperationBatch(kind, id, times, low, high, tag, payloads)


def write_dual(directory: Path, step: int, pipe: int) -> None:
    """The child: apply from `step` on, for ever."""
    db = DualDB.open(directory, DUAL)
    while True:
        db.apply(dual_batch(step))
        os.write(pipe, step.to_bytes(8, "big"))
        step += 1


def questions() -> OperationBatch:
    """A publication and a subscription of each ID: their answers are all that is stored."""
    kind = np.repeat(np.array([PUBLISH, SUBSCRIBE], np.uint8), IDS)
    ids = np.tile(np.arange(IDS, dtype=np.uint64), 2)
    now = np.full(2 * IDS, START_US + 10**9)
    tags = np.full(2 * IDS, 10**6, np.uint64)
    return OperationBatch(kind, ids, now, np.zeros(2 * IDS, np.int64), np.full(2 * IDS, NEVER_US), tags, [b""] * IDS)


def answers(directory: Path, payloads: bool = False) -> tuple[int, list[list[int]]]:
    """(operations, the numbers that answer each of `questions`) of a copy, so that the questions are not stored."""
    with tempfile.TemporaryDirectory(prefix="lexicast-crash") as folder:
        copy = Path(folder) / "copy"
        maintenance.backup(directory, copy)
        db = DualDB.open(copy, DUAL)
        operations = db.stats().operations
        found = db.apply(questions())
        rows = [sorted(int(s) for s in found.of(op).seq if s < operations) for op in range(2 * IDS)]
        if payloads:
            for op in range(IDS, 2 * IDS):
                db.payloads(rows[op])  # raises where one is damaged or gone
        db.close()
    return operations, rows


def judge_dual(directory: Path, acknowledged: int) -> KillOutcome:
    """Compare with a DualDB that nobody killed."""
    operations, rows = answers(directory, payloads=True)
    with tempfile.TemporaryDirectory(prefix="lexicast-crash") as folder:
        db = DualDB.open(Path(folder), DualOptions(map_bytes=1 << 30))
        found = 0
        while db.stats().operations < operations:
            db.append(dual_batch(found))
            found += 1
        whole = db.stats().operations == operations
        expected = db.apply(questions())
        wanted = [sorted(int(s) for s in expected.of(op).seq if s < operations) for op in range(2 * IDS)]
        db.close()
    torn = "" if whole else f"{operations} operations are no whole number of batches"
    if not torn and rows != wanted:
        torn = "the answers are not those of the operations stored"
    if not torn and not acknowledged <= found <= acknowledged + 1:
        torn = f"{found} commits found after {acknowledged}" if found > acknowledged else ""
    return KillOutcome(acknowledged, found, max(0, acknowledged - found), torn)


# a coordinator's store


def store_block(step: int) -> Block:
    """The block of a step."""
    dice = random.Random(step)
    payloads = [b"%d/%d/" % (step, at) + dice.randbytes(dice.randint(0, 200)) for at in range(5)]
    meta = pack_meta(Meta((b"t%d" % dice.randint(0, 30),), (Run(0, 0, 0, 0, 0, None, -1, 5),), (), (), (), ()))
    lengths = b"".join([len(payload).to_bytes(4, "little") for payload in payloads])
    return Block(0, 1, step * 5, step * 5 + 4, START_US + step, PUBLICATIONS, meta, lengths, b"".join(payloads))


def open_store(directory: Path) -> Store:
    """The store of the kills."""
    return Store.open(directory, cluster_id="c", member="m", groups=1, options=STORE, clock=SystemClock())


def write_store(directory: Path, step: int, pipe: int) -> None:
    """The child: commit from `step` on, for ever."""
    store = open_store(directory)
    while True:
        store.commit([store_block(step)])
        os.write(pipe, step.to_bytes(8, "big"))
        store.reclaim(0)
        step += 1


def indexed_records(store: Store, last: int) -> int:
    """How many publications of group 0, up to offset `last`, the index knows of."""
    found = store.by_topic.find(b"#")
    if found is None:
        return 0
    span = store.by_topic.span(0, [topic.topic_id for topic in found[0]], lambda topic: True)
    records = at = 0
    while at <= last and span.look(at, last, 1.0):
        some, at = span.count(at, last, 1.0)
        records += some
    return records


def judge_store(directory: Path, acknowledged: int) -> KillOutcome:
    """Compare log and index with what was committed."""
    store = open_store(directory)
    blocks: list[Block] = []
    offset = 0
    while (result := store.read(0, offset)).next_offset != offset:
        blocks += result.blocks
        offset = result.next_offset
    torn = ""
    if [block.to_wire() for block in blocks] != [store_block(step).to_wire() for step in range(len(blocks))]:
        torn = "the log holds other blocks than were committed"
    store.flush()  # the index catches up with what the log holds
    indexed = indexed_records(store, offset - 1)
    if indexed != 5 * len(blocks):
        torn = torn or f"the index knows {indexed} of {5 * len(blocks)} records"
    store.close()
    return KillOutcome(acknowledged, len(blocks), max(0, acknowledged - len(blocks)), torn)


WRITERS: dict[str, tuple[Callable[[Path, int, int], None], Callable[[Path, int], KillOutcome]]] = {
    "dual": (write_dual, judge_dual),
    "store": (write_store, judge_store),
}


def kill_once(name: str, directory: Path, step: int, delay_s: float) -> KillOutcome:
    """Let a child write from `step` on, kill it `delay_s` after its first commit, and judge."""
    writer, judge = WRITERS[name]
    reading, writing = os.pipe()
    # A forked child has everything loaded already: it writes within milliseconds, so the kill hits writing.
    child = multiprocessing.get_context("fork").Process(target=writer, args=(directory, step, writing))
    child.start()
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], START_S)
    if ready:
        time.sleep(delay_s)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    told = b""
    while part := os.read(reading, 1 << 16):
        told += part
    os.close(reading)
    whole = len(told) // 8 * 8
    acknowledged = int.from_bytes(told[whole - 8 : whole], "big") + 1 if whole else step
    return judge(directory, acknowledged)


def kills(name: str, count: int, seed: int, tell: Callable[[str], None] | None = None) -> list[KillOutcome]:
    """`count` kills of one writer, each going on where the one before was killed; a fresh store each ten."""
    dice = random.Random(seed)
    outcomes: list[KillOutcome] = []
    for first in range(0, count, 10):
        with tempfile.TemporaryDirectory(prefix="lexicast-crash") as folder:
            directory, step = Path(folder) / name, 0
            for number in range(first, min(first + 10, count)):
                if tell is not None:
                    tell(f"{name}: kill {number + 1}")
                outcomes.append(kill_once(name, directory, step, dice.random() ** 2 * 0.15))
                step = outcomes[-1].found
            report = maintenance.check(directory)
            if not report.sound:
                outcomes[-1] = outcomes[-1]._replace(torn=f"check: {report.damages[0]}")
    return outcomes


def measure(report: DriverReport) -> None:
    """Kill, and tell."""
    count = report.options.kills if not report.options.quick else min(report.options.kills, 20)
    outcomes: list[KillOutcome] = []
    with reports.Steps(report.console, count) as steps:
        for name, part in (("dual", count - count // 2), ("store", count // 2)):
            outcomes += kills(name, part, report.options.seed, steps.step)
    for outcome in outcomes:
        if outcome.torn or outcome.lost:
            report.problem(f"after {outcome.acknowledged} commits: {outcome.lost} lost; {outcome.torn or 'none torn'}")
    report.samples["commits"] = sum([outcome.found for outcome in outcomes])
    report.figure("kills", len(outcomes))
    report.figure("lost", sum([outcome.lost for outcome in outcomes]))
    report.figure("torn", sum([bool(outcome.torn) for outcome in outcomes]))


def main(argv: Sequence[str] | None = None) -> int:
    """The driver; its exit code."""
    parser = reports.parser("dualdb.crash", __doc__, default_targets="dualdb")
    parser.add_argument("--kills", type=reports.positive, default=120, help="processes to kill (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default %(default)s)")
    options: argparse.Namespace = parser.parse_args(argv)
    return reports.drive("dualdb_crash", options, measure)


if __name__ == "__main__":
    sys.exit(main())
