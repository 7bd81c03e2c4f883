"""Blocks as Python clients' links get them where these differ from what is stored: frames of topic streams, and other
dictionaries than the publisher's, or none."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

from lexicast.cluster.blocks import FIRST_DICTIONARY, STREAMED, Block, Run, pack_meta
from lexicast.compression.link_dictionaries import NONE

from .tagging import Instead, SentBytes, SentRuns, Tagging, ViewedBlock, instead_of


def with_frames(view: ViewedBlock, streamed: Collection[int], joined: Collection[int]) -> Block:
    """The block for a Python client's link with frames of the topics `streamed` (STREAMED, see `cluster.blocks`); the
    past comes along of those that are `joined` too."""
    block, meta = view.block, view.block.meta
    # What the runs that stay need, and what key frames do; each id is 9 bytes on the link.
    named = dict.fromkeys([STREAMED, *[each.id for each in view.dictionaries(streamed)]])
    runs, payloads, at = [], list(view.stored()), 0
    for index, run in enumerate(meta.runs):
        end = at + run.count
        id = meta.dictionaries[run.encoding - FIRST_DICTIONARY] if run.encoding >= FIRST_DICTIONARY else None
        if run.topic in streamed and index in view.frames:
            payloads[at:end], id = view.frames_of(index, run.topic in joined), STREAMED
        if id is not None:
            named[id] = None
            run = run._replace(encoding=FIRST_DICTIONARY + list(named).index(id))
        runs.append(run)
        at = end
    return _encoded(block, runs, list(named), payloads)


def recoded(view: ViewedBlock, instead: Instead, tagging: Tagging) -> Block:
    """The block for a Python client's link that lacks dictionaries: their runs use others, or DEFLATE, or are raw."""
    block, meta = view.block, view.block.meta
    named: dict[int, None] = {}
    runs, payloads, at = [], list(view.stored()), 0
    for index, run in enumerate(meta.runs):
        end = at + run.count
        id = meta.dictionaries[run.encoding - FIRST_DICTIONARY] if run.encoding >= FIRST_DICTIONARY else NONE
        other = instead_of(id, instead)
        if other != id:
            raw = view.raw_runs(tagging.recoder, [index])
            if None in raw:
                # There is no room, or one is damaged: the client asks for the dictionary, and loses nothing.
                other = id
        if other != id:
            run, payloads[at:end], other = tagging.recoded(run, raw, other)
            tagging.note(view, index, other, sum(map(len, payloads[at:end])))
        if other != NONE:
            named[other] = None
            run = run._replace(encoding=FIRST_DICTIONARY + list(named).index(other))
        runs.append(run)
        at = end
    return _encoded(block, runs, list(named), payloads)


def _encoded(block: Block, runs: Sequence[Run], dictionaries: Sequence[int], payloads: Sequence[bytes]) -> Block:
    """The block with these runs, dictionaries and payloads in place of its own."""
    made = block.meta._replace(runs=tuple(runs), dictionaries=tuple(dictionaries))
    fields = (block.group, block.epoch, block.first, block.last, block.time_us, block.kind, pack_meta(made))
    lengths = array("I", map(len, payloads)).tobytes()
    return Block(*fields, lengths, b"".join(payloads), made)


def sent_on_link(block: Block, view: ViewedBlock, streamed: Collection[int], tagging: Tagging) -> SentBytes:
    """What a Python client's link carries of a block, which has frames of the topics `streamed` of what is viewed."""
    meta, lengths = block.meta, memoryview(block.lengths).cast("I")
    sent = SentRuns()
    for index, run in enumerate(view.block.meta.runs):
        if run.topic in streamed and index in view.frames:
            view.add_frames(sent, index)
    at = 0
    for run in meta.runs:
        size = sum(lengths[at : at + run.count])
        at += run.count
        if run.encoding < FIRST_DICTIONARY:
            sent.add(NONE, 0, size, None)
            continue
        used = meta.dictionaries[run.encoding - FIRST_DICTIONARY]
        if used != STREAMED:
            newest = tagging.newest(meta.topics[run.topic])
            newer = newest is not None and newest.id != used
            sent.add(used, size, 0, newest.family if newest is not None and newer else None)
    return sent.sent(tagging.savings)
