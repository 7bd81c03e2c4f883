"""Part `churn`: subscriptions that come and go while events are matched.

    index_churn_s          subscriptions that come and go in a second, one for one, flat out: the work that the index
                           does afterwards included, nothing matched; at 40,000 and a million (quick: 50,000) the less
    index_loop_ms          the longest turn of the event loop with RATE of them a second: 50 come and go, the index
                           moves 256 boxes, 256 events are matched, each a turn; its CPU time, so without what other
                           processes took of the core; index_loop_wall_ms: with that; the more of both
    index_churn_events_s   events a second that are matched meanwhile, in the CPU time that is left; the less of both
    index_churn_bytes      memory a subscription meanwhile, without what Python allocates: the most, of both

Boxes of width 10% (a million: 2%, skewed), in 4 dimensions; who goes is drawn by chance.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from lexicast.cluster.content.index.predicate_index import PredicateIndex

from ..report import DriverReport, Steps
from .filling import COMING, STEP, boxes_from, columns, filled
from .index_rates import BATCH, MAIN, MILLION, QUICK_MILLION
from .population import BoxSetting, Floats, drawn

RATE: Final = 10_000
_SECONDS: Final = 20
_QUICK_SECONDS: Final = 1
_BATCHES: Final = 64
_NEW: Final = 20_000


class _Turns:
    """What turns took, by what they did: [(wall ms, CPU ms)]."""

    def __init__(self) -> None:
        self.took: dict[str, list[tuple[float, float]]] = {"come and go": [], "step": [], "match": []}

    def turn(self, what: str, work: Callable[[], Any]) -> Any:
        """Do it, as one turn."""
        wall, cpu = time.perf_counter(), time.thread_time()
        result = work()
        self.took[what].append(((time.perf_counter() - wall) * 1e3, (time.thread_time() - cpu) * 1e3))
        return result

    def worst(self, clock: int) -> float:
        """The longest, by wall (0) or CPU time (1)."""
        return max([each[clock] for some in self.took.values() for each in some])


class Churned(NamedTuple):
    """What `_churned` measures."""

    flat_out_s: float
    loop_ms: float
    loop_wall_ms: float
    events_s: float
    held_bytes: float
    longest_ms: dict[str, float]


def steps(quick: bool) -> int:
    """How many steps `measure` announces."""
    return 2


def measure(report: DriverReport, progress: Steps) -> None:
    """See the module's docstring."""
    quick = report.options.quick
    found = []
    for setting in (MAIN, MILLION._replace(subscriptions=QUICK_MILLION) if quick else MILLION):
        progress.step(f"churn: {setting.subscriptions:,} subscriptions, {RATE:,} come and go a second")
        found.append(_churned(setting, _QUICK_SECONDS if quick else _SECONDS, report.options.seed))
    report.samples["churn"] = [each._asdict() for each in found]
    report.figure("index_churn_s", min([each.flat_out_s for each in found]))
    report.figure("index_loop_ms", max([each.loop_ms for each in found]))
    report.figure("index_loop_wall_ms", max([each.loop_wall_ms for each in found]))
    report.figure("index_churn_events_s", min([each.events_s for each in found]))
    report.figure("index_churn_bytes", max([each.held_bytes for each in found]))


class _Crowd:
    """A population in an index, of which some go and as many come."""

    def __init__(self, setting: BoxSetting, dice: np.random.Generator) -> None:
        population = drawn(setting, dice)
        self.index: PredicateIndex = filled(population).predicates
        self._new = boxes_from(drawn(setting._replace(subscriptions=_NEW), dice), 0, _NEW)
        self._keys = list(range(setting.subscriptions))
        self._last = setting.subscriptions
        self._gone = dice.integers(len(self._keys), size=1 << 20).tolist()
        self.batches: list[Floats] = [population.events(BATCH, dice) for _ in range(_BATCHES)]
        self.columns = columns(population)

    def change(self) -> None:
        """COMING of them."""
        for _ in range(COMING):
            at = self._gone[self._last % len(self._gone)]
            self.index.remove(self._keys[at])
            self.index.add(self._last, self._new[self._last % len(self._new)])
            self._keys[at] = self._last
            self._last += 1


def _churned(setting: BoxSetting, seconds: float, seed: int) -> Churned:
    crowd = _Crowd(setting, np.random.default_rng(seed))
    turns = _Turns()
    gc.collect()
    rounds = int(seconds * RATE / COMING)
    events = most_bytes = 0
    for _ in range(rounds):
        begun = time.process_time()
        turns.turn("come and go", crowd.change)
        while turns.turn("step", partial(crowd.index.step, STEP)):
            pass
        # What is left of the time in which so many come.
        while time.process_time() - begun < COMING / RATE:
            turns.turn("match", partial(crowd.index.match, crowd.batches[events // BATCH % _BATCHES], crowd.columns))
            events += BATCH
        most_bytes = max(most_bytes, crowd.index.nbytes)
    longest = {what: round(max([cpu for _, cpu in took], default=0.0), 3) for what, took in turns.took.items()}
    return Churned(
        flat_out_s=_flat_out(crowd, rounds),
        loop_ms=turns.worst(1),
        loop_wall_ms=turns.worst(0),
        events_s=events / (rounds * COMING / RATE),
        held_bytes=most_bytes / setting.subscriptions,
        longest_ms=longest,
    )


def _flat_out(crowd: _Crowd, rounds: int) -> float:
    """Subscriptions a second of CPU time that come and go when nothing else is done."""
    begun = time.process_time()
    for _ in range(rounds):
        crowd.change()
        while crowd.index.step(STEP):
            pass
    return rounds * COMING / (time.process_time() - begun)
