"""The best permutation of each of the thesis' other algorithms on a corpus, searched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Final

from lexicast.cluster.errors import UsageError
from lexicast.compression.codecs import DEFLATE_PRESET, ZSTD_DENSE
from lexicast.compression.dictionary_content import RECENT, SUBSTRINGS
from lexicast.compression.maintenance import Maintenance

from ..data.corpora import Corpus
from .baselines import (
    HISTORIES,
    IMPROVEMENTS,
    INTERVALS,
    MULTIPLIERS,
    SINGLEDICT_MULTIPLIERS,
    Adaptive,
    AdaptiveReading,
    FixedRate,
    SingleDict,
)
from .offline_runs import OfflineRun, SharedTrainer, simulate

_CODECS: Final = (DEFLATE_PRESET, ZSTD_DENSE)
_CPU_STRIDE: Final = 100

Point = tuple[int, ...]
"""Which value of each axis of a grid."""


@dataclass(frozen=True)
class Best:
    """The best permutation of an algorithm on one corpus."""

    name: str
    run: OfflineRun
    make: Callable[[], Maintenance | None]

    def cpu_s(self, corpus: Corpus) -> float:
        """The sampling broker's CPU for the whole corpus, which the search may have seen only the beginning of."""
        algorithm = self.make() if len(corpus.messages) > self.run.messages else None
        if algorithm is None:
            return self.run.sampling_cpu_s
        return simulate(corpus.messages, algorithm, trainer=SharedTrainer(), stride=_CPU_STRIDE).sampling_cpu_s

    @property
    def reduction(self) -> float:
        """BR with one publisher and one subscriber."""
        return self.run.reduction()


@dataclass(frozen=True)
class Grid:
    """The permutations of one algorithm: values an axis, and what they make."""

    axes: tuple[tuple[float | str, ...], ...]
    make: Callable[..., Maintenance | None]
    source: str

    def at(self, point: Point, length: int) -> Maintenance | None:
        """The algorithm at a point of the grid; None where a corpus of `length` messages is too short for it."""
        values = [axis[index] for axis, index in zip(self.axes, point, strict=True)]
        return self.make(*values, source=self.source, length=length)

    def name(self, point: Point) -> str:
        """The permutation for people."""
        return ", ".join(f"{axis[index]}" for axis, index in zip(self.axes, point, strict=True))


def _fixed_rate(
    multiplier: float, history: int, interval: int, codec: str, *, source: str, length: int
) -> Maintenance | None:
    return FixedRate(multiplier, history, interval, codec=codec, source=source) if history < length else None


def _adaptive(improvement: float, codec: str, *, source: str, length: int) -> Maintenance:
    return Adaptive(improvement, codec=codec, source=source)


def _adaptive_text(improvement: float, codec: str, *, source: str, length: int) -> Maintenance:
    return Adaptive(improvement, reading=AdaptiveReading.TEXT, codec=codec, source=source)


def _single_dict(multiplier: float, codec: str, *, source: str, length: int) -> Maintenance:
    return SingleDict(multiplier, samples=min(10_000, max(30, length // 10)), codec=codec, source=source)


_FIXED_RATE_AXES: Final = (MULTIPLIERS, HISTORIES, INTERVALS, _CODECS)
_ADAPTIVE_AXES: Final = (IMPROVEMENTS, _CODECS)

GRIDS: Final = {
    "FIXEDRATE": Grid(_FIXED_RATE_AXES, _fixed_rate, SUBSTRINGS),
    "FIXEDRATE recent": Grid(_FIXED_RATE_AXES, _fixed_rate, RECENT),
    "ADAPTIVE": Grid(_ADAPTIVE_AXES, _adaptive, SUBSTRINGS),
    "ADAPTIVE recent": Grid(_ADAPTIVE_AXES, _adaptive, RECENT),
    "ADAPTIVE text": Grid(_ADAPTIVE_AXES, _adaptive_text, SUBSTRINGS),
    "ADAPTIVE text recent": Grid(_ADAPTIVE_AXES, _adaptive_text, RECENT),
    "SINGLEDICT": Grid((SINGLEDICT_MULTIPLIERS, _CODECS), _single_dict, SUBSTRINGS),
}


class _Search:
    """The best point of a grid on one corpus: all of them, or a coarse lattice and from its best uphill."""

    def __init__(self, grid: Grid, corpus: Corpus, stride: int) -> None:
        self._grid = grid
        self._corpus = corpus
        self._stride = stride
        self._trainer = SharedTrainer()
        self._runs: dict[Point, OfflineRun] = {}

    def best(self, *, lattice: int, climb: bool) -> Best:
        """`lattice`: every so many-th value of each axis is tried first."""
        for point in product(*(range(0, len(axis), lattice if len(axis) > 2 else 1) for axis in self._grid.axes)):
            self._run(point)
        if not self._runs:
            # a corpus too short for all of the lattice has its smallest values at least
            raise UsageError(f"{self._corpus.name}: {len(self._corpus.messages)} messages are too few to compare on")
        best = max(self._runs, key=self._reduction)
        while climb:
            for point in self._neighbours(best):
                self._run(point)
            higher = max(self._runs, key=self._reduction)
            if higher == best:
                break
            best = higher
        make = partial(self._grid.at, best, len(self._corpus.messages))
        return Best(self._grid.name(best), self._runs[best], make)

    def _reduction(self, point: Point) -> float:
        return self._runs[point].reduction()

    def _run(self, point: Point) -> None:
        messages = self._corpus.messages
        algorithm = self._grid.at(point, len(messages)) if point not in self._runs else None
        if algorithm is not None:
            self._runs[point] = simulate(messages, algorithm, trainer=self._trainer, stride=self._stride)

    def _neighbours(self, point: Point) -> Iterator[Point]:
        for axis, values in enumerate(self._grid.axes):
            for index in (point[axis] - 1, point[axis] + 1):
                if 0 <= index < len(values):
                    yield (*point[:axis], index, *point[axis + 1 :])


def best_permutation(name: str, corpus: Corpus, encoded: int, *, every: bool, climb: bool) -> Best:
    """The best of the algorithm `name` (of GRIDS) on `corpus`, about `encoded` of whose messages are compressed.

    `every`: all permutations are tried; else a coarse lattice of them and, if `climb`, uphill from the best. Raises
    UsageError when the corpus is too short for any.
    """
    search = _Search(GRIDS[name], corpus, max(1, len(corpus.messages) // encoded))
    return search.best(lattice=1, climb=False) if every else search.best(lattice=4, climb=climb)
