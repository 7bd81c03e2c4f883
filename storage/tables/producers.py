"""The table of producers: what a group remembers of each, so that a repeat is answered with its first position.

Row: incarnation u64, last sequence u64, time_us i64 of the last publication, then up to RECENT_RUNS runs, oldest
first: sequence u64, records u32, first offset u64. A run grows while both sequence and offset follow on, so a producer
that owns its group's traffic has one run for all of it.

A newer incarnation replaces an older one and all its runs; an older one is ignored.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ..file.sealing import DamageError, unpacked, unpacked_head
from ..log.block_outline import ProducerRow

RECENT_RUNS: Final = 64

_HEAD: Final = struct.Struct("<QQq")
_RUN: Final = struct.Struct("<QIQ")
_COUNT_MAX: Final = 2**32 - 1


class SequenceRun(NamedTuple):
    """`records` consecutive sequences from `sequence` on, at consecutive offsets from `offset` on."""

    sequence: int
    records: int
    offset: int


class ProducerState(NamedTuple):
    """A producer as its group knows it."""

    producer: bytes
    incarnation: int
    sequence: int
    time_us: int
    runs: tuple[SequenceRun, ...]

    def offset_of(self, sequence: int) -> int | None:
        """The offset at which this incarnation's `sequence` was stored; None when it is not remembered."""
        for run in reversed(self.runs):
            if run.sequence <= sequence < run.sequence + run.records:
                return run.offset + sequence - run.sequence
        return None


def parse_producer_row(producer: bytes, row: bytes) -> ProducerState:
    """A row as a ProducerState."""
    incarnation, sequence, time_us = unpacked_head(_HEAD, row, "producers")
    starts = range(_HEAD.size, len(row), _RUN.size)
    runs = tuple([SequenceRun(*unpacked(_RUN, row[at : at + _RUN.size], "producers")) for at in starts])
    return ProducerState(producer, incarnation, sequence, time_us, runs)


def check_producer_row(row: bytes) -> None:
    """Raise DamageError when a row is no producer's."""
    if len(row) < _HEAD.size or (len(row) - _HEAD.size) % _RUN.size:
        raise DamageError("producers", -1, -1, f"{len(row)} bytes where a head and whole runs were expected")


def idle_since(row: bytes) -> int:
    """The time of the last publication in a row."""
    time_us: int = unpacked_head(_HEAD, row, "producers")[2]
    return time_us


def restated(row: bytes | None, incarnation: int, sequence: int, time_us: int) -> bytes:
    """The row after a ProducerSeen: the sequence is known, its offset is not."""
    if row is not None:
        known, last, _ = unpacked_head(_HEAD, row, "producers")
        if known > incarnation:
            return row
        if known == incarnation:
            return _HEAD.pack(incarnation, max(last, sequence), time_us) + row[_HEAD.size :]
    return _HEAD.pack(incarnation, sequence, time_us)


def extended(row: bytes | None, added: ProducerRow, time_us: int) -> bytes:
    """The row after publications `added` were stored."""
    last = added.sequence + added.records - 1
    runs = b""
    if row is not None:
        known, before, _ = unpacked_head(_HEAD, row, "producers")
        if known > added.incarnation:
            return row
        if known == added.incarnation:
            last = max(last, before)
            runs = row[_HEAD.size :]
    return _HEAD.pack(added.incarnation, last, time_us) + _append(runs, added)


def _append(runs: bytes, added: ProducerRow) -> bytes:
    if runs:
        sequence, count, offset = unpacked(_RUN, runs[-_RUN.size :], "producers")
        if added.offset < offset + count:
            return runs  # the row was installed when it had followed from these already
        follows = sequence + count == added.sequence and offset + count == added.offset
        if follows and count + added.records <= _COUNT_MAX:
            return runs[: -_RUN.size] + _RUN.pack(sequence, count + added.records, offset)
    runs += _RUN.pack(added.sequence, added.records, added.offset)
    return runs[-RECENT_RUNS * _RUN.size :]
