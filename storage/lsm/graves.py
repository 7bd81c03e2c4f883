"""Graves: what unsubscribing and renewing leave, since nothing is read to be written.

A grave takes away the subscriptions of its (ID, Sid) that were stored before it. It is remembered until everything it
can lie over has expired (`until`: the greatest T_max that any subscription had when it was dug) or until a merge of all
runs has applied it to every older row. Merges apply graves on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .rows import I64, U64, Matches, Queries, Rows, empty, joined

_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(29)


def _names(key: U64, tag: U64) -> U64:
    """One number a (key, tag); that two of them agree is decided by comparing, not believed."""
    mixed = (key * _FACTOR) ^ tag
    mixed ^= mixed >> _SHIFT
    return np.asarray(mixed * _FACTOR)


class _Covered(NamedTuple):
    """Pairs of a subscription (its place) and a grave of its (ID, Sid)."""

    at: NDArray[np.intp]
    seq: U64


class Graves:
    """All graves still needed, in memory: 48 bytes each. As rows: `high` is `until`, `low` unused."""

    __slots__ = ("_names", "rows")

    def __init__(self, rows: Rows | None = None) -> None:
        self.rows = empty() if rows is None else rows
        self._names = np.empty(0, np.uint64)
        self._index()

    def _index(self) -> None:
        names = _names(self.rows.key, self.rows.tag)
        order = np.argsort(names)
        self._names, self.rows = names[order], self.rows.take(order)

    @property
    def size(self) -> int:
        """How many are remembered."""
        return self.rows.size

    def before(self, seq: int) -> int:
        """How many are numbered before `seq`."""
        return int(np.count_nonzero(self.rows.seq < seq))

    def dig(self, rows: Rows) -> None:
        """Remember more of them."""
        self.rows = joined([self.rows, rows])
        self._index()

    def forget(self, now_us: int, below: int) -> None:
        """Forget those whose time is over, and those numbered before `below`, which every older row has met."""
        keep = (self.rows.high >= now_us) & (self.rows.seq >= below)
        if not keep.all():
            self.rows = self.rows.take(keep)
            self._names = self._names[keep]

    def _covered(self, key: U64, tag: U64) -> _Covered:
        names = _names(key, tag)
        start = np.searchsorted(self._names, names, "left")
        counts = np.searchsorted(self._names, names, "right") - start
        at = np.repeat(np.arange(len(key)), counts)
        grave = np.arange(len(at)) + np.repeat(start - (np.cumsum(counts) - counts), counts)
        same = (self.rows.key[grave] == key[at]) & (self.rows.tag[grave] == tag[at])
        return _Covered(at[same], self.rows.seq[grave[same]])

    def apply(self, rows: Rows) -> Rows:
        """`rows` without the subscriptions that lie under a grave."""
        if not self.size or not rows.size:
            return rows
        covered = self._covered(rows.key, rows.tag)
        gone = covered.at[rows.seq[covered.at] < covered.seq]
        if not len(gone):
            return rows
        keep = np.ones(rows.size, np.bool_)
        keep[gone] = False
        return rows.take(keep)

    def apply_to_matches(self, matches: Matches, queries: Queries, first: int) -> Matches:
        """`matches` without what lay under a grave when its operation (the batch begins with `first`) asked."""
        if not self.size or not matches.size:
            return matches
        key_of = np.zeros(int(queries.op.max()) + 1, np.uint64)
        key_of[queries.op] = queries.key
        covered = self._covered(key_of[matches.op], matches.tag)
        asked = (matches.op[covered.at] + first).astype(np.uint64)
        gone = covered.at[(matches.seq[covered.at] < covered.seq) & (covered.seq < asked)]
        if not len(gone):
            return matches
        keep = np.ones(matches.size, np.bool_)
        keep[gone] = False
        return matches.take(keep)


def grave_rows(key: U64, seq: U64, tag: U64, until_us: int) -> Rows:
    """Graves as rows."""
    low: I64 = np.zeros(len(key), np.int64)
    return Rows(key, seq, low, np.full(len(key), until_us, np.int64), tag)


def without(parts: Sequence[Rows], graves: Graves) -> list[Rows]:
    """Each part without what lies under a grave."""
    return [graves.apply(part) for part in parts]
