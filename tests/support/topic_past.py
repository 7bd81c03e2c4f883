"""One topic's past as tests ask for it: as coordinators do, by the index, else in a scan of the log."""

from __future__ import annotations

from lexicast.cluster.blocks import Block
from lexicast.cluster.selection import offsets_of
from lexicast.storage.log.block_cuts import cut
from lexicast.storage.log_reader import ReadResult
from lexicast.storage.store import Store
from lexicast.storage.tables.topics import group_of

BYTES = 1 << 20


def topic_past(
    store: Store, group: int, topic: bytes, since_us: int, until_us: int, *, limit: int, first: int = 0
) -> list[Block]:
    """Publications of exactly `topic` with times from `since_us` to `until_us`, in order, at most `limit` records.

    Go on with `first` = the offset after the last one.
    """
    at = max(first, store.offset_at(group, since_us))
    end = store.offset_at(group, until_us + 1) - 1
    found = store.by_topic.find(topic)
    ids = None if found is None else [t.topic_id for t in found[0] if group_of(t.topic_id) == group]
    span = None if ids is None else store.by_topic.span(group, ids, topic.__eq__)
    blocks: list[Block] = []
    while limit > 0 and at <= end:
        looked = None if span is None else span.look(at, end, 1.0)
        if span is not None and looked:
            result = span.read(at, BYTES, end, 1.0)
        elif looked is None:
            result, span = _scanned(store, group, at, end, topic), None
        else:
            continue
        for block in result.blocks:
            if limit > 0:
                offsets = offsets_of(block)[:limit]
                part = cut(block, block.first, offsets[-1])
                assert part is not None
                blocks.append(part)
                limit -= len(offsets)
        if result.next_offset <= at:
            break  # expiry took the rest
        at = result.next_offset
    return blocks


def _scanned(store: Store, group: int, at: int, end: int, topic: bytes) -> ReadResult:
    result = store.read(group, at, upto=end, topics=topic.__eq__, read_s=10.0)
    cuts = [cut(block, at, end, None, topic.__eq__) for block in result.blocks]
    return result._replace(blocks=[block for block in cuts if block is not None])
