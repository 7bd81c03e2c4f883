"""The index of content subscriptions: in which boxes does each event of a batch lie?

A box is a conjunction of intervals, one a column; a key has one box or several. Boxes with the same columns are a
*group*, each with an index of its own (`column_group`). What that leaves open is settled so:

- of a box with more than DIMENSIONS_MAX columns the narrowest are its group's; the others are *further terms*, which
  what the group finds is asked about;
- there are at most GROUPS_MAX groups of several columns. When there are, a box of yet another set of columns goes to
  the group of its narrowest column alone, of which there are at most GROUPS_MAX too, with further terms; when there is
  none for it either, it is one of the *rare*, which every event is compared with. Of these there are at most RARE_MAX;
- so a batch costs by 2 GROUPS_MAX groups at most, of which those are left out that no event has all columns of, and by
  RARE_MAX boxes.

The answers are exact: each event is compared with the bounds as they are, and each key is told once. NaN lies in no
interval. Source: SREM (sections 2.1, 4.1) for the data model and segments; bitsets over blocks along a z-curve as in
`bit_blocks`. Pure: nothing is started, no clock is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from ..boxes import Box, Boxes, Interval
from .column_group import ColumnGroup
from .further_terms import FurtherTerms
from .key_places import KeyPlaces
from .ranks import Floats, Integers

DIMENSIONS_MAX: Final = 8
"""Columns that index a box."""
GROUPS_MAX: Final = 64
"""Groups of several columns, and groups of one."""
RARE_MAX: Final = 1_024
"""Boxes that no group takes."""
BOXES_A_KEY_MAX: Final = 16
EVENTS_AT_ONCE: Final = 256
"""Larger batches are cut."""

_GROUP_BITS: Final = 8  # of a place; the others are the row in the group
_RARE: Final = 0  # the group of no columns
_KEY_BOUND: Final = 1 << 63
_NOTHING: Final = np.empty(0, np.int64)


class BoxMatches(NamedTuple):
    """Pairs (events[n], keys[n]), each once, in no order. events: numbers of rows."""

    events: Integers
    keys: Integers


class PredicateIndex:
    """Keys and their boxes. Not for several threads."""

    def __init__(self) -> None:
        self._places = KeyPlaces()
        self._never: set[int] = set()  # keys without a box
        self._groups: dict[int, ColumnGroup] = {_RARE: ColumnGroup(())}
        self._numbers: dict[tuple[str, ...], int] = {(): _RARE}
        self._unused = list(range(2 * GROUPS_MAX, 0, -1))
        self._further = FurtherTerms()
        self._count = 0
        self._several = 0  # keys with several boxes
        self._turn = 0  # which group is next to be worked on

    def __len__(self) -> int:
        """How many keys there are."""
        return self._count

    def __contains__(self, key: int) -> bool:
        return key in self._never or bool(self._found(key))

    @property
    def columns(self) -> list[str]:
        """The columns that some box is about: what `match` is to be given."""
        names = {name for columns in self._numbers for name in columns}
        return sorted(names.union(filter(None, self._further.columns)))

    @property
    def nbytes(self) -> int:
        """What its arrays take of memory."""
        return self._places.nbytes + self._further.nbytes + sum([group.nbytes for group in self._groups.values()])

    @property
    def waiting(self) -> int:
        """Boxes that `step` has to move; matching is slower while they are many, and right all the time."""
        return sum([group.waiting for group in self._groups.values()])

    def add(self, key: int, boxes: Boxes) -> None:
        """Enter a key, a number of 64 bits.

        Raises UsageError, and changes nothing, when the key is there already, has more than BOXES_A_KEY_MAX boxes, or
        when there are as many boxes as there may be.
        """
        if not -_KEY_BOUND <= key < _KEY_BOUND:
            raise UsageError(f"the key {key} has more than 64 bits")
        if key in self:
            raise UsageError(f"the key {key} is in use: remove it first")
        if len(boxes.boxes) > BOXES_A_KEY_MAX:
            raise UsageError(f"{len(boxes.boxes)} boxes for one key: at most {BOXES_A_KEY_MAX}")
        if not boxes.boxes:
            self._never.add(key)
        try:
            for box in boxes.boxes:
                self._enter(key, box)
        except UsageError:
            for place in self._found(key):
                self._leave(key, place)
            raise
        self._count += 1
        self._several += len(boxes.boxes) > 1

    def remove(self, key: int) -> None:
        """Forget a key. Raises UsageError when it is not there."""
        places = self._found(key)
        if not places:
            if key not in self._never:
                raise UsageError(f"the key {key} is not in the index")
            self._never.remove(key)
        for place in places:
            self._leave(key, place)
        self._count -= 1
        self._several -= len(places) > 1

    def match(self, values: Floats, columns: Sequence[str]) -> BoxMatches:
        """Which keys match which events.

        values: [events x columns], NaN where an event has no value; a column that is not among `columns` has none.
        """
        at = {name: number for number, name in enumerate(columns)}
        found = [
            self._matched(values[first : first + EVENTS_AT_ONCE], at, first)
            for first in range(0, len(values), EVENTS_AT_ONCE)
        ]
        if len(found) == 1:
            return found[0]
        return BoxMatches(
            np.concatenate([each.events for each in found] or [_NOTHING]),
            np.concatenate([each.keys for each in found] or [_NOTHING]),
        )

    def step(self, budget: int) -> int:
        """Do some of the work that new boxes make: move `budget` boxes (a block of 64 more at most). To be called
        between other work, as long as it returns more than 0: how many it has moved."""
        moved = 0
        numbers = sorted(self._groups)
        for turn in range(len(numbers)):
            if moved >= budget:
                break
            number = numbers[(self._turn + turn) % len(numbers)]
            moved += self._groups[number].step(budget - moved)
        self._turn += 1
        return moved

    def _found(self, key: int) -> list[int]:
        """The places of a key's boxes."""
        places = self._places.find(key)
        return [place for place in places if self._groups[place & 0xFF].key(place >> _GROUP_BITS) == key]

    def _enter(self, key: int, box: Box) -> None:
        number, terms = self._home(box)
        group = self._groups[number]
        chain = self._further.add(terms)
        try:
            row = group.add(key, [box[name] for name in group.columns], chain)
        except UsageError:
            self._further.remove(chain)
            raise
        self._places.add(key, row << _GROUP_BITS | number)

    def _leave(self, key: int, place: int) -> None:
        number = place & 0xFF
        group = self._groups[number]
        self._further.remove(group.remove(place >> _GROUP_BITS))
        self._places.remove(key, place)
        if not len(group) and number != _RARE:
            del self._groups[number], self._numbers[group.columns]
            self._unused.append(number)

    def _home(self, box: Box) -> tuple[int, list[tuple[str, Interval]]]:
        """The group that takes a box, made where there is none yet, and the terms that are not its columns'."""
        narrowest = sorted(box, key=lambda name: (_openness(box[name]), name))
        for columns in (tuple(sorted(narrowest[:DIMENSIONS_MAX])), tuple(narrowest[:1])):
            number = self._numbers.get(columns)
            if number is None:
                number = self._made(columns)
            if number is not None:
                return number, [(name, interval) for name, interval in box.items() if name not in columns]
        if len(self._groups[_RARE]) == RARE_MAX:
            raise UsageError(
                f"{RARE_MAX:,} content subscriptions ask about fields that hardly another one asks about: withdraw some"
            )
        return _RARE, list(box.items())

    def _made(self, columns: tuple[str, ...]) -> int | None:
        """A new group, unless there are too many like it."""
        alike = sum([(len(each) > 1) == (len(columns) > 1) for each in self._numbers if each])
        if alike == GROUPS_MAX:
            return None
        number = self._unused.pop()
        self._numbers[columns] = number
        self._groups[number] = ColumnGroup(columns)
        return number

    def _matched(self, values: Floats, at: dict[str, int], first: int) -> BoxMatches:
        """Of a batch whose first event has the number `first`."""
        events, keys = [], []
        further: Floats | None = None
        for group in self._groups.values():
            if not len(group) or not all([name in at for name in group.columns]):
                continue
            own = values[:, [at[name] for name in group.columns]]
            whole = np.flatnonzero(~np.isnan(own).any(axis=1))
            if not len(whole):
                continue
            found, rows = group.match(own if len(whole) == len(own) else own[whole])
            found = whole.take(found)
            chains = group.chains(rows)
            if chains is not None:
                if further is None:
                    further = _chosen(values, at, self._further.columns)
                held = self._further.hold(chains, found, further)
                found, rows = found[held], rows[held]
            events.append(found + first)
            keys.append(group.keys(rows))
        if not events:
            return BoxMatches(_NOTHING, _NOTHING)
        matches = BoxMatches(np.concatenate(events), np.concatenate(keys))
        return _once(matches) if self._several else matches


def _openness(interval: Interval) -> int:
    """0: a point, 1: closed on both sides, 2: on one, 3: on none."""
    return (interval.low != interval.high) + (interval.low == -inf) + (interval.high == inf)


def _chosen(values: Floats, at: dict[str, int], names: Sequence[str]) -> Floats:
    """The values of those columns, NaN where there are none."""
    chosen = np.full((len(values), len(names)), np.nan)
    for number, name in enumerate(names):
        if name in at:
            chosen[:, number] = values[:, at[name]]
    return chosen


def _once(matches: BoxMatches) -> BoxMatches:
    """Each pair once."""
    order = np.lexsort((matches.keys, matches.events))
    events, keys = matches.events[order], matches.keys[order]
    new: NDArray[np.bool_] = np.ones(len(order), np.bool_)
    new[1:] = (events[1:] != events[:-1]) | (keys[1:] != keys[:-1])
    return BoxMatches(events[new], keys[new])
