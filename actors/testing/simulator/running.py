"""Many stories, shared over processes; breaks, each played until it is caught."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from .auditor import Violation
from .breaks import BREAKS
from .story import run

# Stories that a process plays at a time, and pieces of work that wait for each process.
PIECE = 5
PIECES_WAITING = 3

# Pieces of work that are done: of each seed what was violated, if anything.
Played: TypeAlias = Generator[list[tuple[int, str | None]], None, None]


@dataclass
class Outcome:
    """What became of many stories: `violations` by seed."""

    runs: int = 0
    violations: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    interrupted: bool = False


def play(seeds: Sequence[int], broken: str | None) -> list[tuple[int, str | None]]:
    """Play these; of each what was violated, if anything."""
    return [(seed, violation_of(seed, broken)) for seed in seeds]


def violation_of(seed: int, broken: str | None = None) -> str | None:
    """What was violated in a story; None: nothing."""
    try:
        run(seed, BREAKS[broken] if broken else None)
    except Violation as violation:
        return str(violation)
    return None


def play_all(first: int, count: int, broken: str | None, processes: int, tell: Callable[[Outcome], None]) -> Outcome:
    """Play the stories of `count` seeds from `first` on; `tell` hears how far it is. Ctrl-C ends it early."""
    outcome, began_s = Outcome(), time.monotonic()
    played = _here(first, count, broken) if processes == 1 else _shared(first, count, broken, processes)
    try:
        for found in played:
            for seed, violated in found:
                outcome.runs += 1
                if violated is not None:
                    outcome.violations[seed] = violated
            outcome.seconds = time.monotonic() - began_s
            tell(outcome)
    except KeyboardInterrupt:
        outcome.interrupted = True
    finally:
        played.close()
    outcome.seconds = time.monotonic() - began_s
    return outcome


def _here(first: int, count: int, broken: str | None) -> Played:
    for seed in range(first, first + count):
        yield play([seed], broken)


def _shared(first: int, count: int, broken: str | None, processes: int) -> Played:
    pieces = iter([range(at, min(at + PIECE, first + count)) for at in range(first, first + count, PIECE)])
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context)
    under_way: set[Future[list[tuple[int, str | None]]]] = set()
    try:
        with _interrupts_for_none():
            # All processes start with the first piece of work.
            under_way.add(pool.submit(play, next(pieces), broken))
        while True:
            while len(under_way) < processes * PIECES_WAITING and (piece := next(pieces, None)) is not None:
                under_way.add(pool.submit(play, piece, broken))
            if not under_way:
                return
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for each in done:
                yield each.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _interrupts_for_none() -> Iterator[None]:
    """Processes that are started meanwhile leave Ctrl-C to the one that has started them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def seeds_until_caught(
    broken: str, first: int, most: int, tell: Callable[[int], None]
) -> tuple[int, str] | tuple[None, None]:
    """How many seeds from `first` on it takes until a story notices a break, and what it notices; or none of `most`
    does."""
    for at in range(most):
        tell(at + 1)
        found = violation_of(BREAKS[broken].first + first + at, broken)
        if found is not None:
            return at + 1, found
    return None, None
