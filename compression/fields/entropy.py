"""Entropy coding in one Python integer: asymmetric numeral systems (Duda 2013, "range variant", arXiv 1311.2540).

A message becomes a list of steps `(start, count, total)`: a symbol that has `count` of `total` slots, from `start` on.
The integer that is the state takes a step by

    state -> state // count * total + start + state % count

which adds log2(total / count) bits; a decoder undoes the steps in the other order, so they are folded from the last
one on, and it reads them from the first. A uniform choice is a step with count 1. One integer of any length needs no
renormalisation, no power of two and no rounding of counts: for messages of some hundred bytes Python's long division
by a small number is a loop in C over a few digits. The state begins at 0, and so it has to end when it is decoded:
anything else is no frame.

Rejected: states of 64 bits with renormalisation: three times the bytecodes a symbol without mypyc, and 4 bytes a
message lost or one more rule for the first symbols.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, TypeAlias

from lexicast.cluster.errors import DictionaryError

Step: TypeAlias = tuple[int, ...]
"""(start, count, total). Of no fixed length to mypyc, which would take each apart and put it together again."""

TOTAL_MAX: Final = 1 << 24
"""Counts of a table together."""


def fold(steps: list[Step]) -> int:
    """The state that holds all steps, first one on top."""
    state = 0
    for start, count, total in reversed(steps):
        if count == 1:
            state = state * total + start
        else:
            high, low = divmod(state, count)
            state = high * total + start + low
    return state


class Unfolding:
    """A state that is read, step by step, for a message of at most `room` bytes."""

    __slots__ = ("room", "state")

    def __init__(self, state: int, room: int) -> None:
        self.state = state
        self.room = room

    def spend(self, length: int) -> None:
        """So many bytes of the message were read. Raises DictionaryError when it becomes too long.

        A symbol that is all of its table costs a frame nothing: this is what bounds the work of a hostile one.
        """
        self.room -= length
        if self.room < 0:
            raise DictionaryError("a frame of fields holds more than a message may have")

    def first_of(self, count: int, total: int) -> bool:
        """Of two symbols, the first one with `count` of `total` slots: whether it is that one."""
        high, slot = divmod(self.state, total)
        if slot < count:
            self.state = high * count + slot
            return True
        self.state = high * (total - count) + slot - count
        return False

    def uniform(self, total: int) -> int:
        """A choice of `total`."""
        self.state, value = divmod(self.state, total)
        return value

    def symbol(self, table: SymbolTable) -> int:
        """A symbol of a table: its index."""
        high, slot = divmod(self.state, table.total)
        index = bisect_right(table.starts, slot) - 1
        step = table.steps[index]
        self.state = high * step[1] + slot - step[0]
        return index


class SymbolTable:
    """Symbols by index, each with the count of slots that it has."""

    __slots__ = ("starts", "steps", "total")

    def __init__(self, counts: Sequence[int]) -> None:
        """Raises DictionaryError when a count is below 1, there is none, or all are more than TOTAL_MAX."""
        starts: list[int] = []
        total = 0
        for count in counts:
            if count < 1:
                raise DictionaryError("a field model has a symbol without a slot")
            starts.append(total)
            total += count
        if not 1 <= total <= TOTAL_MAX:
            raise DictionaryError(f"a table of a field model has {total} slots: 1 to {TOTAL_MAX} are allowed")
        self.starts = starts
        self.total = total
        self.steps: list[Step] = [(start, count, total) for start, count in zip(starts, counts, strict=True)]
