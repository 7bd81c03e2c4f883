"""Tombstones: what unsubscribing and renewing leave, since nothing is read to be written.

A tombstone takes away the subscriptions of its (ID, Sid) that were stored before it. It is remembered until everything
it can lie over has expired (`until`: the greatest T_max that any subscription had when it was left) or until a merge of
all runs has applied it to every older row. Merges apply tombstones on the way.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .rows import I64, U64, Answer, Matches, Queries, RowColumns, joined

_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(29)


def _names(key: U64, tag: U64) -> U64:
    """One number a (key, tag); that two of them agree is decided by comparing, not believed."""
    mixed = (key * _FACTOR) ^ tag
    mixed ^= mixed >> _SHIFT
    return np.asarray(mixed * _FACTOR)


class _Covered(NamedTuple):
    """Pairs of a subscription (its place) and a tombstone of its (ID, Sid)."""

    at: NDArray[np.intp]
    seq: U64


class _Tier(NamedTuple):
    """Tombstones by their names."""

    names: U64
    rows: RowColumns


def _tier(rows: RowColumns) -> _Tier:
    names = _names(rows.key, rows.tag)
    order = np.argsort(names)
    return _Tier(names[order], rows.take(order))


class Tombstones:
    """All tombstones still needed, in memory: 48 bytes each. As rows: `high` is `until`, `low` unused.

    In tiers, each more than twice as large as the next: a tombstone is sorted again as often as there are tiers, not
    whenever another one is added.
    """

    __slots__ = ("_tiers",)

    def __init__(self, rows: RowColumns | None = None) -> None:
        self._tiers = [] if rows is None or not rows.size else [_tier(rows)]

    @property
    def rows(self) -> RowColumns:
        """All of them."""
        return joined([tier.rows for tier in self._tiers])

    @property
    def size(self) -> int:
        """How many are remembered."""
        return sum([tier.rows.size for tier in self._tiers])

    def before(self, seq: int) -> int:
        """How many are numbered before `seq`."""
        return sum([int(np.count_nonzero(tier.rows.seq < seq)) for tier in self._tiers])

    def add(self, rows: RowColumns) -> None:
        """Remember more of them."""
        while self._tiers and self._tiers[-1].rows.size <= 2 * rows.size:
            rows = joined([self._tiers.pop().rows, rows])
        if rows.size:
            self._tiers.append(_tier(rows))

    def forget(self, now_us: int, below: int) -> None:
        """Forget those whose time is over, and those numbered before `below`, which every older row has met."""
        tiers, self._tiers = self._tiers, []
        for tier in tiers:
            keep = (tier.rows.high >= now_us) & (tier.rows.seq >= below)
            if keep.all():
                self._tiers.append(tier)
            elif keep.any():
                self._tiers.append(_Tier(tier.names[keep], tier.rows.take(keep)))

    def _covered(self, key: U64, tag: U64) -> _Covered:
        names = _names(key, tag)
        found = [_covered_by(tier, names, key, tag) for tier in self._tiers]
        return _Covered(np.concatenate([each.at for each in found]), np.concatenate([each.seq for each in found]))

    def apply(self, rows: RowColumns) -> RowColumns:
        """`rows` without the subscriptions that lie under a tombstone."""
        if not self.size or not rows.size:
            return rows
        covered = self._covered(rows.key, rows.tag)
        gone = covered.at[rows.seq[covered.at] < covered.seq]
        if not len(gone):
            return rows
        keep = np.ones(rows.size, np.bool_)
        keep[gone] = False
        return rows.take(keep)

    def living(self, key: int, found: list[Answer]) -> list[Answer]:
        """Of the answers to a question that is asked after all of them, those of `key` that lie under no tombstone."""
        if not self._tiers or not found:
            return found
        tags = np.array([row[3] for row in found], np.uint64)
        covered = self._covered(np.full(len(found), key, np.uint64), tags)
        pairs = zip(covered.at.tolist(), covered.seq.tolist(), strict=True)
        gone = {at for at, seq in pairs if found[at][0] < seq}
        return [row for at, row in enumerate(found) if at not in gone] if gone else found

    def apply_to_matches(self, matches: Matches, queries: Queries, first: int) -> Matches:
        """`matches` without what lay under a tombstone when its operation (the batch begins with `first`) asked."""
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


def _covered_by(tier: _Tier, names: U64, key: U64, tag: U64) -> _Covered:
    start = np.searchsorted(tier.names, names, "left")
    counts = np.searchsorted(tier.names, names, "right") - start
    at = np.repeat(np.arange(len(key)), counts)
    tombstone = np.arange(len(at)) + np.repeat(start - (np.cumsum(counts) - counts), counts)
    same = (tier.rows.key[tombstone] == key[at]) & (tier.rows.tag[tombstone] == tag[at])
    return _Covered(at[same], tier.rows.seq[tombstone[same]])


def tombstone_rows(key: U64, seq: U64, tag: U64, until_us: int) -> RowColumns:
    """Tombstones as rows."""
    low: I64 = np.zeros(len(key), np.int64)
    return RowColumns(key, seq, low, np.full(len(key), until_us, np.int64), tag)
