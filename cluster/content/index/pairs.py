"""Pairs as two arrays of the same length: events, and what matches them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from .ranks import Integers

NONE: Final = np.empty(0, np.int64)


def joined_pairs(some: Sequence[tuple[Integers, Integers]]) -> tuple[Integers, Integers]:
    """All pairs; those of one part are not copied."""
    if len(some) == 1:
        return some[0]
    if not some:
        return NONE, NONE
    return np.concatenate([each for each, _ in some]), np.concatenate([each for _, each in some])


def once(events: Integers, keys: Integers) -> tuple[Integers, Integers]:
    """Each pair once."""
    order = np.lexsort((keys, events))
    events, keys = events[order], keys[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (events[1:] != events[:-1]) | (keys[1:] != keys[:-1])
    return events[new], keys[new]
