"""DualDB alone: whether its millionth operation costs what its fifteen millionth does, and what memory it takes.

**Growth.** One store runs 14 parts of a long run (a part is a fifteenth: a million of 15). The last part is compared
with the second one *in turns*: beside the old store a young one, which has just done its first part, does its second,
a batch of the old and a batch of the young one, alternately. So a slow spell of machine or disk hits both; taken one
after the other, minutes apart, the same code gave 0.9 to 1.4 on a busy machine. The operations are those that the old
store had in its second part. A ratio is that of the whole parts' times, flushes, merges and waiting for the disk
included; it is taken in ROUNDS rounds, each with a new young store while the old one grows on (15 to 19 million), and
the figure is the median. The same is told in CPU time.

`file_growth` compares the old store's file in both halves of its first 15 parts.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lexicast.storage.dualdb.batches import SUBSCRIBE, OperationBatch
from lexicast.storage.dualdb.engine import DualDB
from lexicast.storage.dualdb.options import DualOptions

from ..report import median
from ..stage.servers import rss_anon_kib
from .baselines.one_database import OneDatabase
from .workload import START_US, Workload, workload_batches

PARTS = 15
ROUNDS = 5
YEAR_US = 365 * 86_400 * 1_000_000


class Took(NamedTuple):
    """Seconds, and those of them that the process was on a CPU."""

    wall: float
    cpu: float


class Growth(NamedTuple):
    """What a long run gave: time of each part, ratios a round, the file after each batch, the curve."""

    parts: list[Took]
    ratios: list[Took]
    file_bytes: list[int]
    cumulative: list[float]

    @property
    def wall(self) -> float:
        """Time of the last part over that of the second."""
        return median([each.wall for each in self.ratios]) or 0.0

    @property
    def cpu(self) -> float:
        """The same in CPU time."""
        return median([each.cpu for each in self.ratios]) or 0.0

    @property
    def file_growth(self) -> float:
        """The greatest file in the second half over the greatest in the first."""
        half = len(self.file_bytes) // 2
        return max(self.file_bytes[half:]) / max(self.file_bytes[:half])


def timed(engine: OneDatabase, batch: OperationBatch) -> Took:
    """How long a batch takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    engine.apply(batch)
    return Took(time.perf_counter() - wall, time.process_time() - cpu)


def summed(took: list[Took]) -> Took:
    """All of it together."""
    return Took(sum([each.wall for each in took]), sum([each.cpu for each in took]))


def grow(workload: Workload, operations: int, memory_rows: int, say: Callable[[str], None]) -> Growth:
    """See the module's docstring; `operations` is a multiple of 15 batches.

    A memory table of `memory_rows` makes as many flushes in a short run as in a long one.
    """
    part = operations // PARTS // workload.batch
    options = DualOptions(memory_rows_max=memory_rows)
    files: list[int] = []
    took: list[Took] = []
    ratios = []
    with ExitStack() as stack:
        old = empty_store(stack, options)
        stream = workload_batches(workload, operations + (ROUNDS - 1) * part * workload.batch)
        say(f"{operations * (PARTS - 1) // PARTS:,} operations")
        for batch in islice(stream, part * (PARTS - 1)):
            took.append(timed(old, batch))
            files.append(old.file_bytes())
        for number in range(ROUNDS):
            say(f"the last part beside a young store's second, {number + 1} of {ROUNDS}")
            with ExitStack() as young_stack:
                young = empty_store(young_stack, options)
                second = workload_batches(workload, 2 * part * workload.batch)
                for batch in islice(second, part):
                    young.apply(batch)
                of_old, of_young = in_turns(old, islice(stream, part), young, second)
            if number == 0:
                took += of_old
                files += [old.file_bytes()] * part  # it never shrinks
            ratios.append(took_ratio(summed(of_old), summed(of_young)))
    parts = [summed(took[at : at + part]) for at in range(0, len(took), part)]
    return Growth(parts, ratios, files, np.cumsum([each.wall for each in took]).tolist())


def empty_store(stack: ExitStack, options: DualOptions) -> OneDatabase:
    """An empty store, closed and deleted with `stack`."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lexicast-dualdb"))
    engine = OneDatabase(Path(folder), options)
    stack.callback(engine.close)
    return engine


def in_turns(
    old: OneDatabase, for_old: Iterator[OperationBatch], young: OneDatabase, for_young: Iterator[OperationBatch]
) -> tuple[list[Took], list[Took]]:
    """A batch of each alternately, each first in every other turn."""
    of_old: list[Took] = []
    of_young: list[Took] = []
    for number, (first, second) in enumerate(zip(for_old, for_young, strict=True)):
        turns = [(of_old, old, first), (of_young, young, second)]
        for found, engine, batch in turns if number % 2 == 0 else reversed(turns):
            found.append(timed(engine, batch))
    return of_old, of_young


def took_ratio(of_old: Took, of_young: Took) -> Took:
    """Times of the old store over those of the young one."""
    return Took(of_old.wall / of_young.wall, of_old.cpu / of_young.cpu)


# memory


def hold(
    folder: str, subscriptions: int, batch: int, cells: str, answer: multiprocessing.Queue[tuple[float, int]]
) -> None:
    """In a process of its own: hold that many live subscriptions, publish some, tell memory and answers."""
    places = np.load(cells)
    random = np.random.default_rng(1)
    db = DualDB.open(Path(folder))
    most = 0.0
    for first in range(0, subscriptions, batch):
        number = np.arange(first, first + batch)
        time_us = START_US + number
        cell = places[random.integers(0, len(places), batch)]
        kind = np.full(batch, SUBSCRIBE, np.uint8)
        db.apply(OperationBatch(kind, cell, time_us, time_us, time_us + YEAR_US, number.astype(np.uint64), []))
        most = max(most, rss_anon_kib(os.getpid()) / 1024)
    found = db.publish(int(places[0]), START_US + subscriptions, START_US + subscriptions, 1, b"")
    most = max(most, rss_anon_kib(os.getpid()) / 1024)
    answer.put((most, len(found)))
    db.close()


def subscriptions_mib(
    cells: np.ndarray[tuple[int], np.dtype[np.uint64]], subscriptions: int
) -> tuple[float | None, str]:
    """Anonymous memory of a process with so many live subscriptions, in MiB, and what went wrong ("": nothing)."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="lexicast-dualdb") as folder:
        places = Path(folder) / "cells.npy"
        np.save(places, cells)
        answer: multiprocessing.Queue[tuple[float, int]] = context.Queue()
        child = context.Process(target=hold, args=(folder, subscriptions, 10_000, str(places), answer))
        child.start()
        child.join()
        if child.exitcode != 0:
            return None, f"the process with {subscriptions} subscriptions ended with {child.exitcode}"
        most, answers = answer.get()
    return most, "" if answers else "a publication found none of the live subscriptions"
