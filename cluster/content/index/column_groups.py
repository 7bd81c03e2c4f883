"""Which columns index a box: the groups that there are, and how many there may be.

- Of a box with more than DIMENSIONS_MAX columns the narrowest are its group's; the others are further terms, which what
  the group finds is asked about.
- There are at most GROUPS_MAX groups of three columns and more, as many of two, as many of one. Where a set of columns
  finds no room, the box goes to the group of its two narrowest columns, or of its narrowest, with further terms.
- Where there is no room for that either, it is one of the *rare*, the group of no columns, which every event is
  compared with. Of these there are at most RARE_MAX.

So a batch costs by 3 GROUPS_MAX groups at most, and those are left out of which no event has all columns, and by
RARE_MAX boxes.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Final

from ...errors import LimitError
from ..boxes import Box, Interval
from .box_rows import DIMENSIONS_MAX
from .column_group import ColumnGroup

GROUPS_MAX: Final = 64
RARE_MAX: Final = 1_024
"""Not above what a group may have loose."""

_RARE: Final = 0
# Columns that index a box where there is no room for all that may.
_FEWER: Final = (2, 1)


class ColumnGroups:
    """Groups by their numbers, which are below 256."""

    def __init__(self) -> None:
        self._groups = {_RARE: ColumnGroup(())}
        self._numbers: dict[tuple[str, ...], int] = {(): _RARE}
        self._unused = list(range((len(_FEWER) + 1) * GROUPS_MAX, 0, -1))

    def __getitem__(self, number: int) -> ColumnGroup:
        return self._groups[number]

    def __iter__(self) -> Iterator[ColumnGroup]:
        return iter(self._groups.values())

    @property
    def columns(self) -> set[str]:
        """Those of all groups."""
        return {name for columns in self._numbers for name in columns}

    def home(self, box: Box) -> tuple[int, tuple[str, ...]]:
        """The group that takes a box, made where there is none yet: its number and columns. Raises LimitError."""
        names = tuple(sorted(box))
        number = self._numbers.get(names)
        if number:
            return number, names
        narrowest = sorted(box, key=lambda name: (_openness(box[name]), name))
        for count in (DIMENSIONS_MAX, *_FEWER):
            columns = tuple(sorted(narrowest[:count]))
            number = self._numbers.get(columns) or self._made(columns)
            if number:
                return number, columns
        if len(self._groups[_RARE]) == RARE_MAX:
            raise LimitError(
                f"{RARE_MAX:,} content subscriptions ask about fields that hardly another one asks about: end some"
            )
        return _RARE, ()

    def left(self, number: int) -> bool:
        """A box has left that group: whether the group went with it, as it was the last one."""
        group = self._groups[number]
        if len(group) or number == _RARE:
            return False
        del self._groups[number], self._numbers[group.columns]
        self._unused.append(number)
        return True

    def in_turn(self, turn: int) -> list[ColumnGroup]:
        """All groups, another one first each turn."""
        groups = list(self._groups.values())
        at = turn % len(groups)
        return groups[at:] + groups[:at]

    def _made(self, columns: tuple[str, ...]) -> int:
        """The number of a new group; _RARE when there are too many like it."""
        kind = min(len(columns), _FEWER[0] + 1)
        alike = [each for each in self._numbers if min(len(each), _FEWER[0] + 1) == kind]
        if not columns or len(alike) == GROUPS_MAX:
            return _RARE
        number = self._unused.pop()
        self._numbers[columns] = number
        self._groups[number] = ColumnGroup(columns)
        return number


def _openness(interval: Interval) -> int:
    """0: a point, 1: closed on both sides, 2: on one, 3: on none."""
    return (interval.low != interval.high) + (interval.low == -inf) + (interval.high == inf)
