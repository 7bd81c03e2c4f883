"""Rows in columns, and the one join that both look-ups of the paper are.

A row is an item of an ID's list: a publication or a subscription. Its key is the ID with a last bit that says which,
so that the two lists of an ID lie side by side (section 4.1: ID^P, ID^S).

    key    ID << 1 | kind
    seq    the operation's number in the whole store: what was before and what after
    low    T_P of a publication, T_min of a subscription
    high   T_max, when it expires
    tag    Pid or Sid

`GetData(ID^P, T_S, T_min)` and `GetSubscribers(ID^S, T_P)` are the same question with other bounds: rows of one key
with `low_min <= row.low <= low_max` and `row.high >= valid_at`. A batch asks all of its questions at once, sorted by
key, of each sorted tier or run: two searches and a few passes over columns, no Python a row.

Measured for 2,000 to 10,000 operations a batch (ns an operation, a busy machine with AVX-512):

    order a batch by key: NumPy's quicksort                9 to 15     kind="stable" 37 to 97: nobody needs its order
    search 100,000 keys for sorted needles                 34 to 140   for unsorted ones 180 to 300
    bring eight sorted tiers together, a row               22 to 26    kind="stable" 23 to 28
    a candidate row of a look-up, all of `probe`           39          59 before bounds made comparisons needless
    an operation of the whole engine, 4,000 a batch        830         920 when each query searched its key by itself
    the same, 10,000 a batch                               1,450       1,540; 1,790 when tiers were asked by kind, with
                                                           closer bounds for each
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

U64: TypeAlias = NDArray[np.uint64]
I64: TypeAlias = NDArray[np.int64]
Index: TypeAlias = NDArray[np.intp]

PUBLICATION: Final = 0
SUBSCRIPTION: Final = 1

# IDs are numbers below this: one bit of the key is taken. A name becomes an ID by `dualdb.id_of`.
ID_LIMIT: Final = 2**63

NEVER_US: Final = 2**63 - 1
EVER_US: Final = -(2**63)

_NEARBY: Final = 64


class RowColumns(NamedTuple):
    """Columns of equal length. `sorted_rows` and everything stored has them in the order of their keys."""

    key: U64
    seq: U64
    low: I64
    high: I64
    tag: U64

    @property
    def size(self) -> int:
        """How many rows."""
        return len(self.key)

    def take(self, chosen: Index | NDArray[np.bool_]) -> RowColumns:
        """The rows at these places, or where the mask is true."""
        return RowColumns._make([column[chosen] for column in self])

    def slice(self, start: int, end: int) -> RowColumns:
        """Rows from `start` to before `end`, without a copy."""
        return RowColumns._make([column[start:end] for column in self])

    def copy(self) -> RowColumns:
        """The same rows in columns of their own."""
        return RowColumns._make([column.copy() for column in self])

    def from_row(self, start: int) -> RowColumns:
        """Rows from `start` on, without a copy."""
        return self.slice(start, self.size)

    def alive(self, now_us: int) -> RowColumns:
        """The rows that have not expired; itself when that is all."""
        mask = self.high >= now_us
        return self if mask.all() else self.take(mask)


ROW_BYTES: Final = 40


def empty() -> RowColumns:
    """No rows."""
    return RowColumns(
        np.empty(0, np.uint64),
        np.empty(0, np.uint64),
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        np.empty(0, np.uint64),
    )


def joined(parts: Sequence[RowColumns]) -> RowColumns:
    """The rows of all parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    return RowColumns._make([np.concatenate(columns) for columns in zip(*parts, strict=True)]) if parts else empty()


def sorted_rows(rows: RowColumns) -> RowColumns:
    """The rows in the order of their keys; the order within a key is no one's concern (`seq` says it)."""
    return rows.take(np.argsort(rows.key))


def merged(parts: Sequence[RowColumns], now_us: int) -> RowColumns:
    """The unexpired rows of all parts in one order: expiry is applied before anything is sorted."""
    return sorted_rows(joined([part.alive(now_us) for part in parts]))


class Queries(NamedTuple):
    """Questions sorted by key; `op` is the place of each one's operation in its batch."""

    op: Index
    key: U64
    low_min: I64
    low_max: I64
    valid_at: I64
    seq: U64

    @property
    def size(self) -> int:
        """How many questions."""
        return len(self.key)

    def slice(self, start: int, end: int) -> Queries:
        """Questions from `start` to before `end`, without a copy."""
        return Queries._make([column[start:end] for column in self])

    def where(self, chosen: NDArray[np.bool_]) -> Queries:
        """The questions where the mask is true."""
        return Queries._make([column[chosen] for column in self])


def ordered(queries: Queries) -> Queries:
    """The questions sorted by key."""
    order = np.argsort(queries.key)
    return Queries._make([column[order] for column in queries])


class Matches(NamedTuple):
    """Answers: row (seq, low, high, tag) answers the operation at `op` of the batch. In no particular order."""

    op: Index
    seq: U64
    low: I64
    high: I64
    tag: U64

    @property
    def size(self) -> int:
        """How many answers."""
        return len(self.op)

    def of(self, op: int) -> Matches:
        """The answers of one operation, in the order in which their items were stored."""
        chosen = np.flatnonzero(self.op == op)
        return self.take(chosen[np.argsort(self.seq[chosen])])

    def take(self, chosen: Index | NDArray[np.bool_]) -> Matches:
        """The answers at these places, or where the mask is true."""
        return Matches._make([column[chosen] for column in self])


def joined_matches(parts: Sequence[Matches]) -> Matches:
    """All answers."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        none = empty()
        return Matches(np.empty(0, np.intp), none.seq, none.low, none.high, none.tag)
    return Matches._make([np.concatenate(columns) for columns in zip(*parts, strict=True)])


class Bounds(NamedTuple):
    """Of rows: the greatest `seq` and `low`, the least and greatest `high`. They make most comparisons needless."""

    seq_max: int
    low_max: int
    high_min: int
    high_max: int


def bounds_of(rows: RowColumns) -> Bounds:
    """The bounds of one row or more."""
    return Bounds(int(rows.seq.max()), int(rows.low.max()), int(rows.high.min()), int(rows.high.max()))


class BoundedQueries(NamedTuple):
    """Queries, and what all of them have in common; each key once, and how many ask for it."""

    queries: Queries
    keys: U64
    askers: Index
    seq_min: int
    low_max_min: int
    valid_at_min: int
    valid_at_max: int


def bounded_queries(queries: Queries) -> BoundedQueries:
    """One query or more, with their bounds."""
    key, valid = queries.key, queries.valid_at
    starts = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    askers = np.diff(starts, append=len(key))
    bounds = int(queries.seq.min()), int(queries.low_max.min()), int(valid.min()), int(valid.max())
    return BoundedQueries(queries, key[starts], askers, *bounds)


def probe(rows: RowColumns, bounds: Bounds, asking: BoundedQueries) -> Matches | None:
    """The answers that sorted `rows` hold, stored before the operation that asks; None when there are none."""
    queries = asking.queries
    if bounds.high_max < asking.valid_at_min:
        return None
    starts = np.searchsorted(rows.key, asking.keys, "left")
    counts = np.searchsorted(rows.key, asking.keys, "right") - starts
    starts, counts = np.repeat(starts, asking.askers), np.repeat(counts, asking.askers)
    total = int(counts.sum())
    if total == 0:
        return None
    at = np.arange(total)
    at += np.repeat(starts - (np.cumsum(counts) - counts), counts)
    low = rows.low.take(at)
    good = low >= np.repeat(queries.low_min, counts)
    if bounds.low_max > asking.low_max_min:
        good &= low <= np.repeat(queries.low_max, counts)
    if bounds.high_min < asking.valid_at_max:
        good &= rows.high.take(at) >= np.repeat(queries.valid_at, counts)
    if bounds.seq_max >= asking.seq_min:
        good &= rows.seq.take(at) < np.repeat(queries.seq, counts)
    op = np.repeat(queries.op, counts)
    if not good.all():
        chosen = np.flatnonzero(good)
        if not len(chosen):
            return None
        op, at, low = op.take(chosen), at.take(chosen), low.take(chosen)
    return Matches(op, rows.seq.take(at), low, rows.high.take(at), rows.tag.take(at))


Answer: TypeAlias = tuple[int, int, int, int]
"""A row that answers one question: seq, low, high, tag. A plain tuple, which is made in a third of the time."""


def matches_of(answers: Sequence[tuple[int, Answer]]) -> Matches:
    """The answers of operations, (its place in the batch, answer) each, in columns."""
    if not answers:
        return joined_matches([])
    seq, low, high, tag = zip(*[answer for _, answer in answers], strict=True)
    return Matches(
        np.array([op for op, _ in answers], np.intp),
        np.array(seq, np.uint64),
        np.array(low, np.int64),
        np.array(high, np.int64),
        np.array(tag, np.uint64),
    )


class Question(NamedTuple):
    """One question, asked by itself: what a row of `Queries` is, of rows that were all stored before it."""

    key: int
    low_min: int
    low_max: int
    valid_at: int


def find(rows: RowColumns, bounds: Bounds, asked: Question, found: list[Answer]) -> None:
    """Add the answers that sorted `rows` hold to `found`: what `probe` does, for a single question."""
    key, low_min, low_max, valid_at = asked
    if bounds.high_max < valid_at:
        return
    wanted = np.uint64(key)
    start = int(rows.key.searchsorted(wanted))
    # Most lists are short: the end of one is looked for nearby first.
    count = int(rows.key[start : start + _NEARBY].searchsorted(wanted, "right"))
    if not count:
        return
    end = start + count if count < _NEARBY else int(rows.key.searchsorted(wanted, "right"))
    _, seqs, lows, highs, tags = rows
    there = zip(
        seqs[start:end].tolist(),
        lows[start:end].tolist(),
        highs[start:end].tolist(),
        tags[start:end].tolist(),
        strict=True,
    )
    found += [row for row in there if low_min <= row[1] <= low_max and row[2] >= valid_at]
