"""A population's boxes in the index: what entering takes, in time and in memory."""

from __future__ import annotations

import gc
import time
import tracemalloc
from math import inf
from typing import Final, NamedTuple

import psutil

from lexicast.cluster.content.boxes import Boxes, Interval
from lexicast.cluster.content.index.predicate_index import PredicateIndex

from .population import BoxPopulation

# What comes at once, and what the index moves after it, as at a broker.
COMING: Final = 50
STEP: Final = 256
_UNBOUNDED: Final = (-inf, inf)


class Filled(NamedTuple):
    """An index with all boxes of a population, by their numbers, and CPU seconds that it took."""

    predicates: PredicateIndex
    seconds: float


def columns(population: BoxPopulation) -> tuple[str, ...]:
    """The columns' names, in the order of the dimensions."""
    return tuple([f"c{dimension:02}" for dimension in range(population.setting.dimensions)])


def boxes_from(population: BoxPopulation, first: int, count: int) -> list[Boxes]:
    """The boxes of some subscriptions."""
    names = columns(population)
    low_ends, high_ends = [ends[first : first + count].tolist() for ends in (population.low, population.high)]
    made = []
    for low, high in zip(low_ends, high_ends, strict=True):
        bounds = zip(names, low, high, strict=True)
        box = {name: Interval(least, most) for name, least, most in bounds if (least, most) != _UNBOUNDED}
        made.append(Boxes((box,), exact=True))
    return made


def filled(population: BoxPopulation) -> Filled:
    """Enter them, and let the index come to rest."""
    index = PredicateIndex()
    seconds = 0.0
    for first in range(0, population.setting.subscriptions, COMING):
        boxes = boxes_from(population, first, COMING)
        begun = time.process_time()
        for key, each in enumerate(boxes, start=first):
            index.add(key, each)
        index.step(STEP)
        seconds += time.process_time() - begun
    begun = time.process_time()
    while index.step(STEP):
        pass
    return Filled(index, seconds + time.process_time() - begun)


def python_bytes(population: BoxPopulation) -> float:
    """Bytes a subscription that Python's and NumPy's allocators hold for an index, beside its own mappings."""
    gc.collect()
    tracemalloc.start()
    try:
        index = filled(population).predicates
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        return held / len(index)
    finally:
        tracemalloc.stop()


def resident_bytes() -> int:
    """Of this process."""
    return int(psutil.Process().memory_info().rss)
