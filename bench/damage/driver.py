"""Damaged stores: bits flipped in random rows of a store that holds every kind of row; a whole cluster starts on each
and has to serve everything else.

What is damaged are *rows*: bits of the keys and values that lie in the leaves of LMDB's tree, overflow pages included,
of every table (`file_rows`). LMDB's own structure (headers, branch pages, the list of free pages, lengths of nodes)
is not: there `lexicast store repair` helps, since LMDB gives up the whole file.

Each run flips one to eight bits in as many rows of a copy, then checks that

    the coordinator and the broker start
    each undamaged row of a table is there; ids and names of topics also where one of the two is damaged
    the history holds every record that no flipped bit lies in (a head, a key: the block; a payload: that record)
    retained publications arrive at a subscriber of all, sessions are resumed
    publishing at each QoS goes on, and housekeeping does
    the store opens once more

`damaged_served` counts the runs in which all of it held.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import random
import shutil
import tempfile
from collections.abc import Awaitable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from lexicast.actors.coordination.server import LocalCoordination
from lexicast.cluster.blocks import CONTROL
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.errors import LexicastError
from lexicast.storage.environment.environment import DATA_FILE
from lexicast.storage.file.keys import name_key, parse_log_key
from lexicast.storage.file.sealing import unseal
from lexicast.storage.file.table import Table
from lexicast.storage.log.block_format import block_of, record_offset, verified_head
from lexicast.storage.store import Store
from lexicast.storage.tables.state import parse_retained_row

from .. import report as reports
from ..report import DriverReport
from .file_rows import FileRow, FileRows
from .served_store import (
    COORDINATION,
    COORDINATOR_NAME,
    GROUPS,
    OPTIONS,
    SESSIONS,
    Served,
    SilentClient,
    fill_store,
    served,
)

FLIPS_MAX: Final = 8
RUNS_A_TASK: Final = 10
QUICK_RUNS: Final = 60
STEP_S: Final = 60.0

T = TypeVar("T")
Record = tuple[int, int]  # group, offset


class Flip(NamedTuple):
    """A bit of a row."""

    row: FileRow
    bit: int

    @property
    def in_value(self) -> int:
        """The byte of the value; negative in the key."""
        return self.bit // 8 - len(self.row.key)

    @property
    def at(self) -> int:
        """The byte of the file."""
        return self.row.key_at + self.bit // 8 if self.in_value < 0 else self.row.value_at + self.in_value

    def __str__(self) -> str:
        part = "key" if self.in_value < 0 else f"value byte {self.in_value}"
        return f"{self.row.table} {self.row.key!r} {part}"


class Known(NamedTuple):
    """What the undamaged store holds."""

    content: bytes
    rows: list[FileRow]
    records: dict[Record, tuple[str, bytes]]
    retained: dict[str, Record]

    def value(self, row: FileRow) -> bytes:
        """The value of a row."""
        return self.content[row.value_at : row.value_at + row.value_bytes]


class DamageOutcome(NamedTuple):
    """One run: its seed, what was flipped, and what was not served ("" = everything was)."""

    seed: int
    flips: list[str]
    problem: str


class NotServedError(Exception):
    """Something undamaged is missing."""


async def within(what: str, work: Awaitable[T]) -> T:
    """Wait for a step of a run. Raises NotServedError when it takes more than STEP_S."""
    try:
        async with asyncio.timeout(STEP_S):
            return await work
    except TimeoutError:
        raise NotServedError(f"{what} took more than {STEP_S:.0f} s") from None


def known_content(folder: Path) -> Known:
    """What the store in `folder` holds."""
    content = (folder / DATA_FILE).read_bytes()
    rows = list(FileRows(content))
    store = Store.open(
        folder, cluster_id=_cluster_id(folder), member=COORDINATOR_NAME, groups=GROUPS, options=OPTIONS,
        clock=SystemClock(),
    )  # fmt: skip
    try:
        records = {
            (group, r.offset): (r.topic.decode(), bytes(r.payload))
            for group in range(GROUPS)
            for block in store.read(group, 0, bytes_max=1 << 30).blocks
            if block.kind != CONTROL
            for r in block.records()
        }
        retained = {}
        for group in range(GROUPS):
            for topic in store.tables.topics(group):
                if (block := store.retained.record(group, topic)) is not None:
                    retained[topic.decode()] = (group, block.first)
    finally:
        store.close()
    return Known(content, rows, records, retained)


def _cluster_id(folder: Path) -> str:
    with LocalCoordination(folder.parent / COORDINATION, GROUPS, (COORDINATOR_NAME,)) as coordination:
        return asyncio.run(coordination.cluster()).cluster_id


def flips(known: Known, dice: random.Random) -> list[Flip]:
    """Bits in different rows: half of the rows are chosen evenly, half by their size."""
    count = dice.randint(1, FLIPS_MAX)
    weights = [row.size for row in known.rows]
    chosen = [
        dice.choice(known.rows) if dice.random() < 0.5 else dice.choices(known.rows, weights)[0] for _ in range(count)
    ]
    unique = {(row.table, row.key): row for row in chosen if row.size}
    return [Flip(row, dice.randrange(8 * row.size)) for row in unique.values()]


def lost(known: Known, flipped: Sequence[Flip]) -> set[Record]:
    """The records that a flipped bit lies in: not served, and nobody may mind."""
    found: set[Record] = set()
    for flip in flipped:
        if flip.row.table not in ("log", "kept"):
            continue
        value = known.value(flip.row)
        group, last = parse_log_key(flip.row.key)
        head = verified_head(value, group, last)
        block = block_of(value, head)
        body = len(value) - head.body_bytes
        if flip.in_value < body or block.kind == CONTROL:
            found.update((group, offset) for offset in range(head.first, last + 1))
        else:
            ends = list(accumulate(memoryview(block.lengths).cast("I")))
            index = next(i for i, end in enumerate(ends) if flip.in_value - body < end)
            found.add((group, record_offset(block, index)))
    return found


def check_tables(known: Known, flipped: Sequence[Flip], store: Store) -> None:
    """Each undamaged row of a table is there. Raises NotServedError."""
    hit = {(flip.row.table, flip.row.key) for flip in flipped}
    with store.environment.snapshot() as txn:
        for row in known.rows:
            table = getattr(store.environment.databases, row.table)
            if not isinstance(table, Table) or (row.table, row.key) in hit or row.table == "groups":
                continue
            if table.get(txn, row.key) != unseal(row.table, row.key, known.value(row)):
                raise NotServedError(f"the row {row.key!r} of {row.table} is missing")
        for key, topic in _topics(known):
            ids, names = store.environment.databases.ids, store.environment.databases.names
            both = ("names", key) in hit and ("ids", name_key(topic)) in hit
            if not both and (ids.get(txn, name_key(topic)) != key or names.get(txn, key) != topic):
                raise NotServedError(f"the topic {topic!r} has lost its id or name")


def _topics(known: Known) -> Iterator[tuple[bytes, bytes]]:
    return ((row.key, unseal("names", row.key, known.value(row))) for row in known.rows if row.table == "names")


async def check_served(cluster: Served, known: Known, flipped: Sequence[Flip]) -> None:
    """Everything undamaged is served. Raises NotServedError, LexicastError."""
    gone = lost(known, flipped)
    found = await within("the history", _history(cluster))
    for record, content in known.records.items():
        if record not in gone and found.get(record) != content:
            raise NotServedError(f"the record at {record} is missing, or another: {found.get(record)!r}")
    port = cluster.broker.mqtt.port
    reader = await within("CONNECT", SilentClient.connect(port, "reader", clean=True))
    await within("SUBSCRIBE", reader.subscribe("#", 0))
    try:
        await within("what is retained", reader.topics(expected_retained(known, flipped, gone)))
    except NotServedError as error:
        raise NotServedError(f"{error}: {', '.join(sorted(reader.missing)[:5])} of {len(reader.missing)}") from None
    await within("resuming the sessions", _check_sessions(port, known, flipped))
    for qos in range(3):
        await within(f"publishing with QoS {qos}", cluster.bus.publish("new/topic", b"%d" % qos, qos=qos))
    await within("the delivery of what was published", reader.topics({"new/topic"}))
    await reader.close()
    cluster.server.status()


async def _history(cluster: Served) -> dict[Record, tuple[str, bytes]]:
    past = cluster.bus.history("#", since="beginning")
    return {(m.position.group, m.position.offset): (m.topic, m.payload) async for m in past}


def expected_retained(known: Known, flipped: Sequence[Flip], gone: set[Record]) -> set[str]:
    """The topics whose retained publication has to arrive."""
    hit = {flip.row.key for flip in flipped if flip.row.table == "retained"}
    lost_places = {
        (int.from_bytes(row.key[:2], "big"), parse_retained_row(unseal("retained", row.key, known.value(row))).offset)
        for row in known.rows
        if row.table == "retained" and row.key in hit
    }
    return {topic for topic, place in known.retained.items() if place not in gone and place not in lost_places}


async def _check_sessions(port: int, known: Known, flipped: Sequence[Flip]) -> None:
    hit = b"".join([flip.row.key for flip in flipped if flip.row.table == "sessions"])
    for number in range(SESSIONS):
        name = f"device-{number}"
        device = await SilentClient.connect(port, name)
        if not device.connack.session_present and name.encode() not in hit:
            raise NotServedError(f"the session of {name} is lost")
        await device.close()


async def serve_damaged(
    known: Known, flipped: Sequence[Flip], told: Sequence[Flip], folder: Path, coordination: LocalCoordination
) -> str:
    """Serve a copy of the store with these bits flipped: what is not served although `told` does not excuse it."""
    content = bytearray(known.content)
    for flip in flipped:
        content[flip.at] ^= 1 << flip.bit % 8
    store = folder / COORDINATOR_NAME
    await asyncio.to_thread(_write, store, content)
    try:
        async with AsyncExitStack() as running:
            starting = running.enter_async_context(served(store, coordination, partial(check_tables, known, told)))
            await check_served(await within("the start", starting), known, told)
        async with AsyncExitStack() as running:
            await within("the second start", running.enter_async_context(served(store, coordination)))
    except (NotServedError, LexicastError, TimeoutError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _write(store: Path, content: bytes | bytearray) -> None:
    shutil.rmtree(store, ignore_errors=True)
    store.mkdir(mode=0o700)
    (store / DATA_FILE).write_bytes(content)


async def _run_once(known: Known, seed: int, folder: Path, coordination: LocalCoordination) -> DamageOutcome:
    flipped = flips(known, random.Random(seed))
    try:
        problem = await serve_damaged(known, flipped, flipped, folder, coordination)
    except Exception as error:  # whatever it is, this store was not served
        problem = f"unforeseen {error!r}"
    return DamageOutcome(seed, [str(flip) for flip in flipped], problem)


async def _run_some(known: Known, seeds: Sequence[int], folder: Path) -> list[DamageOutcome]:
    coordination = LocalCoordination(folder / COORDINATION, GROUPS, (COORDINATOR_NAME,))
    try:
        return [await _run_once(known, seed, folder, coordination) for seed in seeds]
    finally:
        coordination.close()


def run_some(made: Path, seeds: Sequence[int]) -> list[DamageOutcome]:
    """Runs one after the other, in a process of their own."""
    logging.getLogger("lexicast").setLevel(logging.CRITICAL)  # damage is what is wanted
    with tempfile.TemporaryDirectory(prefix="lexicast-damage-") as folder:
        copy = Path(folder)
        shutil.copytree(made, copy, dirs_exist_ok=True)
        known = known_content(copy / COORDINATOR_NAME)
        return asyncio.run(_run_some(known, seeds, copy))


def measure(report: DriverReport) -> None:
    """Make the store, damage and serve it again and again."""
    count = report.options.runs if not report.options.quick else min(report.options.runs, QUICK_RUNS)
    seeds = [report.options.seed * 1_000_000 + number for number in range(count)]
    tasks = [seeds[at : at + RUNS_A_TASK] for at in range(0, count, RUNS_A_TASK)]
    context = multiprocessing.get_context("spawn")
    outcomes: list[DamageOutcome] = []
    with tempfile.TemporaryDirectory(prefix="lexicast-damage-") as folder:
        asyncio.run(fill_store(Path(folder)))
        with (
            ProcessPoolExecutor(min(2, os.cpu_count() or 1), context) as pool,
            reports.Steps(report.console, len(tasks)) as steps,
        ):
            for done in pool.map(run_some, [Path(folder)] * len(tasks), tasks):
                outcomes += done
                served_runs = sum([not outcome.problem for outcome in outcomes])
                steps.step(f"{len(outcomes)} damaged stores, {served_runs} served")
    for outcome in outcomes:
        if outcome.problem:
            report.problem(f"seed {outcome.seed}: {outcome.problem}; flipped: {'; '.join(outcome.flips)}")
    report.samples["flips"] = sum([len(outcome.flips) for outcome in outcomes])
    report.figure("runs", len(outcomes))
    report.figure("damaged_served", sum([not outcome.problem for outcome in outcomes]))


def main(argv: Sequence[str] | None = None) -> int:
    """The driver; its exit code."""
    parser = reports.parser("damage", __doc__, default_targets="lexicast")
    parser.add_argument("--runs", type=reports.positive, default=1_000, help="damaged stores (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the damage (default %(default)s)")
    options: argparse.Namespace = parser.parse_args(argv)
    return reports.drive("damage", options, measure)
