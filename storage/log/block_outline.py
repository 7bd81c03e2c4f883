"""The outline of a block: what a commit has to know of it beyond its bytes, from its meta alone.

No single record is looked at. One row a topic for the index, the last word a topic for retained publications, the
positions of producers' runs and of QoS 2 marks, when records expire. Also the place where a block that contradicts
itself is refused.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from lexicast.cluster.blocks import CONTROL, RETAIN, U32, Block, payloads_bytes
from lexicast.cluster.errors import PeerError, UsageError
from lexicast.cluster.records import ControlRecord, unpack_record

from .block_cuts import publication_expires_us
from .block_format import HAS_MARKS, HAS_RETAINED

CLEARED: Final = -1


class TopicColumns(NamedTuple):
    """The publications of each topic of a block: its name, the first offset, how many there are, and when the last of
    them expires (0 = never). In columns: an object for each topic made an outline half as dear again."""

    names: list[bytes]
    firsts: list[int]
    records: list[int]
    expires_us: list[int]


class RetainedRow(NamedTuple):
    """The last retained publication of one topic in one block; `offset` is CLEARED when its payload is empty."""

    topic: bytes
    offset: int
    expires_us: int


class ProducerRow(NamedTuple):
    """Consecutive sequences of one producer at consecutive offsets."""

    producer: bytes
    incarnation: int
    sequence: int
    records: int
    offset: int


class MarkRow(NamedTuple):
    """The offset of a QoS 2 publication not yet released, and its session's generation (0: not known)."""

    session_uid: bytes
    packet_id: int
    offset: int
    generation: int = 0


class Outline(NamedTuple):
    """See the module's docstring."""

    block: Block
    flags: int
    expire_first_us: int
    expire_all_us: int
    topics: TopicColumns
    retained: tuple[RetainedRow, ...]
    producers: tuple[ProducerRow, ...]
    marks: tuple[MarkRow, ...]
    control: tuple[ControlRecord, ...]


class _Span(NamedTuple):
    """Records without a gap between them, from record `at` on, which is at `offset`."""

    at: int
    offset: int
    records: int


def outline(block: Block) -> Outline:
    """The outline of `block`. Raises UsageError when its parts contradict each other."""
    try:
        if block.count == 0 or len(block.lengths) % U32:
            raise UsageError("it holds no records")
        if payloads_bytes(block.lengths) != len(block.body):
            raise UsageError("its lengths and body disagree")
        return _outline_control(block) if block.kind == CONTROL else _outline_publications(block)
    except (UsageError, PeerError) as error:
        raise UsageError(f"the block at group {block.group} offset {block.first} cannot be stored: {error}") from None


def _outline_control(block: Block) -> Outline:
    if block.last - block.first + 1 != block.count:
        raise UsageError(f"{block.count} control records do not fill offsets {block.first} to {block.last}")
    records = tuple([unpack_record(payload) for payload in block.payloads()])
    return Outline(block, 0, 0, 0, TopicColumns([], [], [], []), (), (), (), records)


def _outline_publications(block: Block) -> Outline:
    meta, time_us = block.meta, block.time_us
    topics, spans = meta.topics, _spans(block)
    rows: dict[int, int] = {}
    firsts: list[int] = []
    records: list[int] = []
    expires_us: list[int] = []
    first_us = all_us = flags = 0
    never = False
    offset = block.first
    for skip, topic, run_flags, _, expiry_ms, _, _, count in meta.runs:
        offset += skip
        until = 0
        if expiry_ms:
            until = publication_expires_us(time_us, expiry_ms)
            first_us = min(first_us or until, until)
            all_us = max(all_us, until)
        else:
            never = True
        row = rows.setdefault(topic, len(firsts))
        if row == len(firsts):
            firsts.append(offset)
            records.append(count)
            expires_us.append(until)
        else:
            records[row] += count
            both = expires_us[row] and until
            expires_us[row] = max(expires_us[row], until) if both else 0
        flags |= run_flags
        offset += count
    retained = _retained(block) if flags & RETAIN else ()
    return Outline(
        block,
        (HAS_RETAINED if retained else 0) | (HAS_MARKS if meta.marks else 0),
        first_us,
        0 if never else all_us,
        TopicColumns([topics[topic] for topic in rows], firsts, records, expires_us),
        retained,
        _producers(block, spans),
        tuple([MarkRow(m.session_uid, m.packet_id, _offset(spans, m.index), m.generation) for m in meta.marks]),
        (),
    )


def _spans(block: Block) -> list[_Span]:
    """The block's records as spans of consecutive offsets: one, unless records were cut out before."""
    spans: list[_Span] = []
    topics = len(block.meta.topics)
    begun, index, begun_offset, offset = 0, 0, block.first, block.first
    for skip, topic, _, _, _, _, _, count in block.meta.runs:
        if not 0 <= topic < topics or count < 1 or skip < 0:
            raise UsageError(f"a run of {count} records, {skip} left out before it, of topic {topic} is out of range")
        if skip:
            if index > begun:
                spans.append(_Span(begun, begun_offset, index - begun))
            offset += skip
            begun, begun_offset = index, offset
        index += count
        offset += count
    spans.append(_Span(begun, begun_offset, index - begun))
    if index != block.count or offset > block.last + 1:
        raise UsageError(f"its runs hold {index} records up to offset {offset - 1}, its lengths {block.count}")
    return spans


def _offset(spans: list[_Span], index: int) -> int:
    for span in spans:
        if span.at <= index < span.at + span.records:
            return span.offset + index - span.at
    raise UsageError(f"there is no record {index}")


def _producers(block: Block, spans: list[_Span]) -> tuple[ProducerRow, ...]:
    producers = block.meta.producers
    if len(producers) == 1 and len(spans) == 1 and producers[0].count == spans[0].records:
        return (ProducerRow(*producers[0], spans[0].offset),)
    rows = []
    start = 0
    for run in producers:
        end = start + run.count
        for span in spans:
            low, high = max(start, span.at), min(end, span.at + span.records)
            if low < high:
                at = span.offset + low - span.at
                rows.append(ProducerRow(run.producer, run.incarnation, run.sequence + low - start, high - low, at))
        start = end
    if start > block.count:
        raise UsageError(f"its producers name {start} records, it holds {block.count}")
    return tuple(rows)


def _retained(block: Block) -> tuple[RetainedRow, ...]:
    topics = block.meta.topics
    lengths = memoryview(block.lengths).cast("I")
    rows: dict[int, RetainedRow] = {}
    index, offset = 0, block.first
    for run in block.meta.runs:
        offset += run.skip
        index += run.count
        offset += run.count
        if run.flags & RETAIN:
            at = offset - 1 if lengths[index - 1] else CLEARED
            rows[run.topic] = RetainedRow(topics[run.topic], at, publication_expires_us(block.time_us, run.expiry_ms))
    return tuple(rows.values())
