"""Whether those who asked have the same: what each kept beside what holds, and in which order.

The order that a cluster promises is that of each topic group's log. What it is the client tells that read all of it;
each topic's is its publisher's as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from ..demo.verdicts import Ints


@dataclass(frozen=True)
class Selected:
    """What one has kept. `wrong`: not asked for, altered or repeated. `fingerprint`: the same for those who have the
    same events in the same order within each topic group."""

    kept: int
    missing: int
    wrong: int
    out_of_order: int
    fingerprint: str

    @property
    def right(self) -> bool:
        """Whether it is what was asked for."""
        return not self.missing and not self.wrong and not self.out_of_order


def judge_selected(numbers: Ints, wanted: Ints, groups: Ints, topics: Ints, logged: Ints) -> Selected:
    """Compares what was kept, in order of arrival (-1: none of the events), with the numbers that are `wanted`.

    `groups`, `topics`: of each event; `logged`: events in an order that is the log's within each group. Out of order:
    deliveries that come directly after a later one of their group's log, or of their topic.
    """
    ours = numbers[np.isin(numbers, wanted)]
    found = np.unique(ours)
    place = np.full(len(groups), -1, dtype=np.int64)
    place[logged] = np.arange(len(logged))
    in_log = ours[place[ours] >= 0]
    return Selected(
        kept=len(numbers),
        missing=len(wanted) - len(found),
        wrong=len(numbers) - len(found),
        out_of_order=_steps_back(groups[in_log], place[in_log]) + _steps_back(topics[ours], ours),
        fingerprint=_fingerprint(numbers, groups),
    )


def _steps_back(kinds: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> int:
    """How often, among those of a kind, a place is followed by an earlier one."""
    order = np.argsort(kinds, kind="stable")
    same = np.diff(kinds[order]) == 0
    return int((same & (np.diff(places[order]) < 0)).sum())


def _fingerprint(numbers: Ints, groups: Ints) -> str:
    ours = numbers[numbers >= 0]
    by_group = ours[np.argsort(groups[ours], kind="stable")]
    strangers = len(numbers) - len(ours)
    return blake2b(by_group.tobytes() + strangers.to_bytes(8, "big"), digest_size=4).hexdigest()
