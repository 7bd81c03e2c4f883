"""What boxes bound beyond the columns that index them: a chain of terms a box, which candidates are asked about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...errors import LimitError
from ..boxes import Interval
from .growing import GrowingArray
from .ranks import Floats, Integers

COLUMNS_MAX: Final = 1_024
"""Columns that further terms are about."""
END: Final = -1
"""Of a chain."""


class FurtherTerms:
    """Chains of terms, known by the place of their first one."""

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._names: list[str] = []
        self._users: list[int] = []  # terms of each column
        self._unused: list[int] = []  # columns' numbers
        self._column = GrowingArray(np.int16)
        self._bounds = GrowingArray(np.float64, 2)
        self._next = GrowingArray(np.int32)
        self._used = 0
        self._free = END

    @property
    def nbytes(self) -> int:
        """What they take of memory, beside the columns' names."""
        return self._column.nbytes + self._bounds.nbytes + self._next.nbytes

    @property
    def names(self) -> set[str]:
        """The columns that terms are about."""
        return set(self._columns)

    @property
    def columns(self) -> list[str]:
        """The same by their numbers: what `hold` is to be given. ("": none at present.)"""
        return self._names

    def add(self, terms: Sequence[tuple[str, Interval]]) -> int:
        """A chain; its first term, END for no terms. Raises LimitError when there are COLUMNS_MAX columns."""
        new = {name for name, _ in terms} - self._columns.keys()
        if len(self._columns) + len(new) > COLUMNS_MAX:
            raise LimitError(
                f"content subscriptions ask about {COLUMNS_MAX:,} fields that are rarely asked about: end some"
            )
        first = END
        for name, interval in terms:
            place = self._place()
            self._column.array[place] = self._number(name)
            self._bounds.array[place] = interval
            self._next.array[place] = first
            first = place
        return first

    def remove(self, first: int) -> None:
        """Forget a chain."""
        while first != END:
            number = int(self._column.array[first])
            self._users[number] -= 1
            if not self._users[number]:
                del self._columns[self._names[number]]
                self._names[number] = ""
                self._unused.append(number)
            following = int(self._next.array[first])
            self._next.array[first] = self._free
            self._free, first = first, following

    def hold(self, firsts: Integers, events: Integers, values: Floats) -> NDArray[np.bool_]:
        """Whether all terms of a chain are true of an event, for each pair of (chain, event).

        values: [events x columns], in the order of `columns`.
        """
        held = np.ones(len(firsts), np.bool_)
        pairs = np.flatnonzero(firsts != END)
        at = firsts[pairs]
        while len(pairs):
            bounds = self._bounds.array.take(at, axis=0)
            own = values[events[pairs], self._column.array.take(at)]
            true = (bounds[:, 0] <= own) & (own <= bounds[:, 1])
            held[pairs[~true]] = False
            at = self._next.array.take(at)
            goes_on = true & (at != END)
            pairs, at = pairs[goes_on], at[goes_on]
        return held

    def _place(self) -> int:
        place = self._free
        if place != END:
            self._free = int(self._next.array[place])
            return place
        self._used += 1
        for each in (self._column, self._bounds, self._next):
            each.reserve(self._used)
        return self._used - 1

    def _number(self, name: str) -> int:
        number = self._columns.get(name)
        if number is None:
            if self._unused:
                number = self._unused.pop()
                self._names[number] = name
            else:
                number = len(self._names)
                self._names.append(name)
                self._users.append(0)
            self._columns[name] = number
        self._users[number] += 1
        return number
