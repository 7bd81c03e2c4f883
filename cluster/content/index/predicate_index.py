"""The index of content subscriptions: in which boxes does each event of a batch lie?

A box is a conjunction of intervals, one a column; a key has one box or several. Boxes with the same columns are a group
with an index of its own (`column_group`); how many of these there may be, and what becomes of boxes that find none, is
settled in `column_groups`. The answers are exact: events are compared with the bounds as they are, each key is told
once an event, and NaN lies in no interval.

Source: SREM (sections 2.1, 4.1) for the data model and the segments; the index itself, bitsets over blocks along a
z-curve, is ours (`bit_blocks`). Pure: nothing is started, no clock is read. Not for several threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final, NamedTuple

from ...errors import LimitError, UsageError
from ..boxes import Box, Boxes
from .batch import Batch
from .column_groups import ColumnGroups
from .further_terms import END, FurtherTerms
from .key_places import KeyPlaces
from .pairs import joined_pairs, once
from .ranks import Floats, Integers

BOXES_A_KEY_MAX: Final = 16
EVENTS_AT_ONCE: Final = 256
"""Larger batches are cut."""

# A place: the row in a group, the group's number.
_GROUP_BITS: Final = 8
_GROUP: Final = (1 << _GROUP_BITS) - 1
_KEY_BOUND: Final = 1 << 63


class BoxMatches(NamedTuple):
    """Pairs (events[n], keys[n]), each once, in no order. events: numbers of rows."""

    events: Integers
    keys: Integers


class PredicateIndex:
    """Keys and their boxes."""

    def __init__(self) -> None:
        self._groups = ColumnGroups()
        self._further = FurtherTerms()
        self._places = KeyPlaces(self._key_at)
        self._never: set[int] = set()  # keys without a box
        self._count = 0
        self._columns: tuple[str, ...] | None = ()
        self._turn = 0

    def __len__(self) -> int:
        """How many keys there are."""
        return self._count

    def __contains__(self, key: int) -> bool:
        return key in self._never or bool(self._places.find(key))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that some box is about: what `match` is to be given."""
        if self._columns is None:
            self._columns = tuple(sorted(self._groups.columns.union(self._further.names)))
        return self._columns

    @property
    def nbytes(self) -> int:
        """What its arrays take of memory."""
        return self._places.nbytes + self._further.nbytes + sum([group.nbytes for group in self._groups])

    @property
    def waiting(self) -> int:
        """Boxes that `step` has to move; matching is slower while they are many, and right all the time."""
        return sum([group.waiting for group in self._groups])

    def add(self, key: int, boxes: Boxes) -> None:
        """Enter a key, a number of 64 bits.

        Raises UsageError when the key is there already, and LimitError when it has more than BOXES_A_KEY_MAX boxes or
        there are as many boxes as there may be; nothing has changed then.
        """
        if not -_KEY_BOUND <= key < _KEY_BOUND:
            raise UsageError(f"the key {key} has more than 64 bits")
        if key in self:
            raise UsageError(f"the key {key} is in use: remove it first")
        if len(boxes.boxes) > BOXES_A_KEY_MAX:
            raise LimitError(f"{len(boxes.boxes)} boxes for one key: at most {BOXES_A_KEY_MAX}")
        overlap = any([_overlap(one, other) for one, other in combinations(boxes.boxes, 2)])
        try:
            for box in boxes.boxes:
                self._enter(key, box, overlap)
        except LimitError:
            for place in self._places.find(key):
                self._leave(key, place)
            raise
        if not boxes.boxes:
            self._never.add(key)
        self._count += 1

    def remove(self, key: int) -> None:
        """Forget a key. Raises UsageError when it is not there."""
        places = self._places.find(key)
        if not places:
            if key not in self._never:
                raise UsageError(f"the key {key} is not in the index")
            self._never.remove(key)
        for place in places:
            self._leave(key, place)
        self._count -= 1

    def match(self, values: Floats, columns: Sequence[str]) -> BoxMatches:
        """Which keys match which events.

        values: [events x columns], NaN where an event has no value; a column that is not among `columns` has none.
        """
        found = []
        for first in range(0, len(values), EVENTS_AT_ONCE):
            events, keys = self._matched(Batch(values[first : first + EVENTS_AT_ONCE], columns))
            found.append((events + first if first else events, keys))
        return BoxMatches(*joined_pairs(found))

    def step(self, budget: int) -> bool:
        """Do some of the work that changes leave: move `budget` boxes, or 64 where that is more (ColumnGroup.step). To
        be called between other work as long as there is more to do, which it returns."""
        moved = 0
        self._turn += 1
        for group in self._groups.in_turn(self._turn):
            if moved >= budget:
                break
            moved += group.step(budget - moved)
        return any([group.waiting for group in self._groups])

    def _key_at(self, place: int) -> int:
        return self._groups[place & _GROUP].key(place >> _GROUP_BITS)

    def _enter(self, key: int, box: Box, overlap: bool) -> None:
        number, columns = self._groups.home(box)
        group = self._groups[number]
        if not len(group):
            self._columns = None
        chain = END
        try:
            if len(columns) < len(box):
                chain = self._further.add([(name, interval) for name, interval in box.items() if name not in columns])
                self._columns = None
            row = group.add(key, [box[name] for name in columns], chain, overlap)
        except LimitError:
            self._further.remove(chain)
            self._groups.left(number)
            raise
        self._places.add(key, row << _GROUP_BITS | number)

    def _leave(self, key: int, place: int) -> None:
        number = place & _GROUP
        self._places.remove(key, place)
        chain = self._groups[number].remove(place >> _GROUP_BITS)
        if self._groups.left(number) or chain != END:
            self._columns = None
        self._further.remove(chain)

    def _matched(self, batch: Batch) -> tuple[Integers, Integers]:
        """The pairs of one batch."""
        found: list[tuple[Integers, Integers]] = []
        repeated: list[tuple[Integers, Integers]] = []
        further: Floats | None = None
        for group in self._groups:
            asked = batch.of(group.columns) if len(group) else None
            if asked is None:
                continue
            values, whole = asked
            events, rows = group.match(values)
            events, keys = events if whole is None else whole.take(events), group.keys(rows)
            marks = group.marks(rows)
            if marks is None:
                found.append((events, keys))
                continue
            further = batch.all_of(self._further.columns) if further is None else further
            held = self._further.hold(marks.chains, events, further)
            for chosen, pairs in ((held & ~marks.overlaps, found), (held & marks.overlaps, repeated)):
                pairs.append((events[chosen], keys[chosen]))
        if repeated:
            found.append(once(*joined_pairs(repeated)))
        return joined_pairs(found)


def _overlap(one: Box, other: Box) -> bool:
    """Whether an event may lie in both boxes, as far as columns tell that both bound."""
    return all(
        [one[name].low <= other[name].high and other[name].low <= one[name].high for name in one if name in other]
    )
