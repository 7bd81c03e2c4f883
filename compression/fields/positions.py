"""Runs whose characters depend on their place: the letters that begin a station's name, the digits of a year."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log2
from typing import Final

from .alphabets import ALPHABETS, BYTES, letter_values
from .entropy import SymbolTable
from .model import RunField

_POSITIONS_MAX: Final = 16
_LETTER_BITS: Final = 12
"""What a letter that was seen takes in a model, packed."""
_TABLE_BITS: Final = 8
_SEEN: Final = 4
"""A letter that was seen counts so much; one that was not, 1."""


def with_positions(run: RunField, runs: Sequence[bytes], weight: float) -> RunField:
    """The run with tables for those of its first characters where they pay; `runs`: samples, each for `weight`."""
    if run.alphabet == BYTES:
        return run
    values = [letter_values(each, run.alphabet) for each in runs]
    positions = [_position(run, [each[at] for each in values if len(each) > at], weight) for at in _first(run)]
    while positions and positions[-1] is None:
        positions.pop()
    return RunField(run.alphabet, run.least, run.most, positions)


def _first(run: RunField) -> range:
    return range(min(run.most, _POSITIONS_MAX))


def _position(run: RunField, letters: Sequence[int], weight: float) -> SymbolTable | None:
    counted = Counter(letters)
    slots = len(ALPHABETS[run.alphabet])
    table = SymbolTable([_SEEN * counted[letter] + 1 if letter in counted else 1 for letter in range(slots)])
    told = (_TABLE_BITS + _LETTER_BITS * len(counted)) / weight
    cost = sum([count * log2(table.total / table.steps[letter][1]) for letter, count in counted.items()])
    return table if cost + told < len(letters) * log2(slots) else None
