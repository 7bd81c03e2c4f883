"""Cuts of blocks: the records of a block between two offsets, of one topic, not expired; columns stay columns.

What is left out in front of a run is counted in the run's `skip`, so a cut block still gives every record its own
offset. A cut block speaks for the offsets it was cut to, `first` to `last`, whether records remain there or not.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

from lexicast.cluster.blocks import CONTROL, RETAIN, U32, Block, Mark, Meta, ProducerRun, Run, pack_meta, unpack_meta
from lexicast.cluster.selection import narrowed

from ..file.keys import MAX_OFFSET
from ..file.sealing import Value
from .block_format import Head, meta_of


class Piece(NamedTuple):
    """`records` kept from one run: from record `at` of the block on, at `offset`."""

    at: int
    offset: int
    records: int
    run: Run


def publication_expires_us(time_us: int, expiry_ms: int) -> int:
    """When a publication expires (T_max); 0 = never."""
    return time_us + expiry_ms * 1_000 if expiry_ms else 0


def only_topic(block: Block) -> bytes:
    """The topic of a block of one record (a cut block still lists the topics of those cut away)."""
    meta = block.meta
    return meta.topics[meta.runs[0].topic]


def retained_topic_at(value: Value, head: Head, offset: int) -> bytes | None:
    """The topic of the retained publication at an offset of a stored block; None where there is no such one.

    Looks at the meta alone. Raises PeerError.
    """
    if head.kind == CONTROL or not head.first <= offset <= head.last:
        return None
    meta = unpack_meta(meta_of(value, head))
    at = head.first
    for run in meta.runs:
        at += run.skip
        if at <= offset < at + run.count:
            return meta.topics[run.topic] if run.flags & RETAIN else None
        at += run.count
    return None


def cut(
    block: Block,
    first: int = 0,
    last: int = MAX_OFFSET,
    now_us: int | None = None,
    topics: Callable[[bytes], bool] | None = None,
) -> Block | None:
    """The records of `block` from offset `first` to `last` (both included); None when there are none.

    With `now_us`, publications that expired before it are left out; with `topics`, those of topics that it does not
    accept, and what only they had in the meta.
    """
    first, last = max(first, block.first), min(last, block.last)
    if first > last:
        return None
    if block.kind == CONTROL:
        return _cut_control(block, first, last)
    pieces = pieces_of(block.meta, block.first, block.time_us, first, last, now_us, topics)
    if not pieces:
        return None
    if first == block.first and last == block.last and sum([p.records for p in pieces]) == block.count:
        return block
    return _assemble(block, first, last, pieces, narrow=topics is not None)


def pieces_of(
    meta: Meta,
    block_first: int,
    time_us: int,
    first: int,
    last: int,
    now_us: int | None,
    topics: Callable[[bytes], bool] | None,
) -> list[Piece]:
    """The pieces of a block that begins at `block_first` which `cut` keeps."""
    wanted = None if topics is None else list(map(topics, meta.topics))
    pieces = []
    index, offset = 0, block_first
    for run in meta.runs:
        offset += run.skip
        low, high = max(first - offset, 0), min(run.count, last - offset + 1)
        if (
            low < high
            and (wanted is None or wanted[run.topic])
            and not (now_us is not None and run.expiry_ms and time_us + run.expiry_ms * 1_000 < now_us)
        ):
            pieces.append(Piece(index + low, offset + low, high - low, run))
        index += run.count
        offset += run.count
    return pieces


def _cut_control(block: Block, first: int, last: int) -> Block:
    if first == block.first and last == block.last:
        return block
    low, high = first - block.first, last - block.first + 1
    lengths = memoryview(block.lengths).cast("I")
    start = sum(lengths[:low])
    body = block.body[start : start + sum(lengths[low:high])]
    return Block(
        block.group,
        block.epoch,
        first,
        last,
        block.time_us,
        CONTROL,
        block.meta_bytes,
        block.lengths[U32 * low : U32 * high],
        body,
    )


def _assemble(block: Block, first: int, last: int, pieces: list[Piece], narrow: bool) -> Block:
    meta = block.meta
    runs = []
    at = first
    for piece in pieces:
        runs.append(piece.run._replace(skip=piece.offset - at, count=piece.records))
        at = piece.offset + piece.records
    starts = [0, *accumulate(memoryview(block.lengths).cast("I"))]
    lengths = b"".join([block.lengths[U32 * p.at : U32 * (p.at + p.records)] for p in pieces])
    body = b"".join([block.body[starts[p.at] : starts[p.at + p.records]] for p in pieces])
    kept = meta._replace(runs=tuple(runs), producers=_cut_producers(meta, pieces), marks=_cut_marks(meta.marks, pieces))
    if narrow:
        kept = narrowed(kept)
    return Block(block.group, block.epoch, first, last, block.time_us, block.kind, pack_meta(kept), lengths, body, kept)


def _cut_producers(meta: Meta, pieces: list[Piece]) -> tuple[ProducerRun, ...]:
    kept = []
    start = 0
    for run in meta.producers:
        end = start + run.count
        for piece in pieces:
            low, high = max(start, piece.at), min(end, piece.at + piece.records)
            if low < high:
                kept.append(run._replace(sequence=run.sequence + low - start, count=high - low))
        start = end
    return tuple(kept)


def _cut_marks(marks: tuple[Mark, ...], pieces: list[Piece]) -> tuple[Mark, ...]:
    if not marks:
        return ()
    kept = []
    before = 0
    for piece in pieces:
        for mark in marks:
            if piece.at <= mark.index < piece.at + piece.records:
                kept.append(mark._replace(index=before + mark.index - piece.at))
        before += piece.records
    return tuple(kept)
