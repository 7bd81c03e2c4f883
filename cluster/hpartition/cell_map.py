"""Where cells lie now and where they go: what a subscription is told to, who may be asked about an event. Pure.

A cell that is hot gets copies, or is split; the halves of one that is cold are joined. Each is a *handover* from the
places that there were to those that there will be:

    phase       subscriptions go to       events go to
    none        old                       old
    FILLING     old and new               old             the holders of the old places fill the new ones
    DRAINING    old and new               new             nobody asks the old places any more
    none        new                       new

Each step makes a new map. Members get it at different times, so the step after it waits until all have it (and, before
DRAINING, until the new places are filled): then at any time members have two maps at most, neighbours in this table,
and whoever is asked by either has what came by either. (So do databases that change their schema while they are used:
Rae et al. 2013, F1.) Invariant: every candidate of an event holds all subscriptions that match it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from ..errors import UsageError
from .partition import CellId, Partition
from .placing import CellPlaces
from .segments import Floats
from .splits import Split, halves, part_of_event, parts_of_box

HANDOVERS_MAX: Final = 64
SPLITS_MAX: Final = 65_536
# Of one cell: each halves it, so it is as small as it can get long before.
DEPTH_MAX: Final = 32


class HandoverPhase(Enum):
    """See the module's table."""

    FILLING = "filling"
    DRAINING = "draining"


class Join(NamedTuple):
    """The halves of a cell become one again, which has so many copies."""

    copies: int


# What becomes of a cell: two halves, so many copies, or one out of its two halves.
Change = Split | int | Join


class Handover(NamedTuple):
    """See the module's table."""

    change: Change
    phase: HandoverPhase = HandoverPhase.FILLING


class CellPlace(NamedTuple):
    """A cell at one of its top clusters."""

    cell: CellId
    cluster: bytes


@dataclass(frozen=True, eq=False)
class CellMap:
    """One version of what all members know. `copies`: of cells that have others than `copies_each`."""

    partition: Partition
    places: CellPlaces
    splits: Mapping[CellId, Split] = field(default_factory=dict)
    copies: Mapping[CellId, int] = field(default_factory=dict)
    handovers: Mapping[CellId, Handover] = field(default_factory=dict)
    copies_each: int = 1

    def holders(self, low: Floats, high: Floats) -> set[CellPlace]:
        """Everywhere a subscription [dimensions] has to be."""
        found: set[CellPlace] = set()
        for base in self.partition.cells_of_box(low, high):
            found |= self.holders_in(base, low, high)
        return found

    def holders_in(self, base: CellId, low: Floats, high: Floats) -> set[CellPlace]:
        """Those of a cell of the partition that it overlaps."""
        found: set[CellPlace] = set()
        for cell in parts_of_box(self.splits, base, low, high):
            found.update(self._old(cell))
            if (handover := self.handovers.get(cell)) is not None:
                found.update(self._new(cell, handover, low, high))
            if cell.halves and (joined := self._joining.get(self._parent(cell))) is not None:
                found.update(self._at(self._parent(cell), joined.copies))
        return found

    @cached_property
    def _joining(self) -> Mapping[CellId, Join]:
        """The cells that are to be one again."""
        return {cell: each.change for cell, each in self.handovers.items() if isinstance(each.change, Join)}

    @cached_property
    def _asked_splits(self) -> Mapping[CellId, Split]:
        """The splits whose halves are asked, and not what they become."""
        drained = [cell for cell in self._joining if self.handovers[cell].phase is HandoverPhase.DRAINING]
        return {cell: split for cell, split in self.splits.items() if cell not in drained} if drained else self.splits

    def candidates(self, point: Sequence[float]) -> list[CellPlace]:
        """Everywhere an event [dimensions] can be matched; all are right."""
        cells = self.partition.cells_of_events(np.array([point], np.float64))[0].tolist()
        found: list[CellPlace] = []
        for group, number in enumerate(cells):
            found += self.candidates_in(self.part(CellId(group, number), point))
        return found

    def part(self, cell: CellId, point: Sequence[float]) -> CellId:
        """The part of a cell of the partition that is asked about a point of it."""
        cell = part_of_event(self._asked_splits, cell, point)
        handover = self.handovers.get(cell)
        if handover is not None and handover.phase is HandoverPhase.DRAINING and isinstance(handover.change, Split):
            return part_of_event({cell: handover.change}, cell, point)
        return cell

    def candidates_in(self, part: CellId) -> list[CellPlace]:
        """The places of what `part` has found."""
        handover = self.handovers.get(part)
        if handover is not None and handover.phase is HandoverPhase.DRAINING:
            match handover.change:
                case Join(copies):
                    return self._at(part, copies)
                case int(copies):
                    return self._at(part, copies)
        return self._old(part)

    # Steps

    def begun(self, cell: CellId, change: Change) -> CellMap:
        """`cell` begins to be split, to have so many copies, or to be joined.

        Raises UsageError: that is under way for this cell already, or it is none (any more); it is not split, or into
        more than two parts, of which something is under way; copies below one; too many handovers at once, splits, or
        splits of one cell.
        """
        able = self._can_be_joined(cell) if isinstance(change, Join) else self.is_whole(cell)
        if cell in self.handovers or not able or (cell.halves and self._parent(cell) in self.handovers):
            raise UsageError(f"{cell} is no cell that can be changed now")
        if len(self.handovers) >= HANDOVERS_MAX:
            raise UsageError(f"{HANDOVERS_MAX} handovers are under way: wait for one to end")
        if isinstance(change, Split) and (len(self.splits) >= SPLITS_MAX or len(cell.halves) >= DEPTH_MAX):
            raise UsageError(f"no more than {SPLITS_MAX} splits, {DEPTH_MAX} of one cell")
        if (change.copies if isinstance(change, Join) else change if isinstance(change, int) else 1) < 1:
            raise UsageError("a cell has a copy or more")
        return replace(self, handovers={**self.handovers, cell: Handover(change)})

    def filled(self, cell: CellId) -> CellMap:
        """All members have the map in which `cell` is FILLING, and its new places have all that the old ones have.

        Raises UsageError: it is not filling.
        """
        handover = self._in_phase(cell, HandoverPhase.FILLING)
        return replace(self, handovers={**self.handovers, cell: handover._replace(phase=HandoverPhase.DRAINING)})

    def drained(self, cell: CellId) -> CellMap:
        """All members have the map in which `cell` is DRAINING; its old places may forget it.

        Raises UsageError: it is not draining.
        """
        change = self._in_phase(cell, HandoverPhase.DRAINING).change
        handovers = {each: handover for each, handover in self.handovers.items() if each != cell}
        copies = {each: count for each, count in self.copies.items() if each != cell}
        if isinstance(change, int):
            return replace(self, handovers=handovers, copies={**copies, cell: change})
        if isinstance(change, Join):
            splits = {each: split for each, split in self.splits.items() if each != cell}
            copies = {each: count for each, count in copies.items() if each not in halves(cell)}
            if change.copies != self.copies_each:
                copies[cell] = change.copies
            return replace(self, handovers=handovers, splits=splits, copies=copies)
        # Halves begin with as many copies as the cell had: events made it hot before subscriptions did.
        inherited = {half: self.copies[cell] for half in halves(cell) if cell in self.copies}
        return replace(self, handovers=handovers, splits={**self.splits, cell: change}, copies={**copies, **inherited})

    def changed(self, cell: CellId, change: Change) -> CellMap:
        """All three steps at once, where nobody is between them (a map that nobody has yet, a simulation)."""
        return self.begun(cell, change).filled(cell).drained(cell)

    def is_whole(self, cell: CellId) -> bool:
        """Whether there is such a cell, not split any further."""
        if cell in self.splits or not 0 <= cell.group < len(self.partition.groups):
            return False
        if cell.halves:
            return self._parent(cell) in self.splits
        return 0 <= cell.number < self.partition.groups[cell.group].cells

    def _can_be_joined(self, cell: CellId) -> bool:
        """Whether it is split into two, of which nothing is under way."""
        return cell in self.splits and all(
            [self.is_whole(half) and half not in self.handovers for half in halves(cell)]
        )

    def _in_phase(self, cell: CellId, phase: HandoverPhase) -> Handover:
        handover = self.handovers.get(cell)
        if handover is None or handover.phase is not phase:
            raise UsageError(f"{cell} is not {phase.value}")
        return handover

    def _at(self, cell: CellId, copies: int) -> list[CellPlace]:
        return [CellPlace(cell, cluster) for cluster in self.places.homes(cell, copies)]

    def _old(self, cell: CellId) -> list[CellPlace]:
        """Where a cell is that is not handed over, or was before; halves of one that is have the copies it has."""
        copies = self.copies.get(cell)
        if copies is None and cell.halves:
            parent = self._parent(cell)
            copies = self.copies.get(parent) if parent in self.handovers and parent not in self._joining else None
        return self._at(cell, copies or self.copies_each)

    def _new(self, cell: CellId, handover: Handover, low: Floats, high: Floats) -> list[CellPlace]:
        """Where a subscription that overlaps the cell has to be as well."""
        if isinstance(handover.change, int):
            return self._at(cell, handover.change)
        assert isinstance(handover.change, Split), "a cell that is to be joined is split: no part is"
        parts = parts_of_box({cell: handover.change}, cell, low, high)
        return [place for part in parts for place in self._old(part)]

    @staticmethod
    def _parent(cell: CellId) -> CellId:
        return cell._replace(halves=cell.halves[:-1])
