"""Parts of blocks: some records of a block as a block of their own, offsets kept (`Run.skip` tells what is missing)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from .blocks import U32, Block, Mark, Meta, ProducerRun, Run, pack_meta


def offsets_of(block: Block) -> list[int]:
    """The offset of each record of a publications block, in order."""
    offsets: list[int] = []
    at = block.first
    for run in block.meta.runs:
        at += run.skip
        offsets.extend(range(at, at + run.count))
        at += run.count
    return offsets


def select(block: Block, keep: Sequence[bool]) -> Block | None:
    """The records of `block` for which `keep` is true (one flag a record), or None when that is none of them.

    `last` stays the block's, so a reader's cursor still passes what was left out. A selection keeps no topics, origins
    or dictionaries fewer than the whole (indices stay valid).
    """
    if all(keep):
        return block
    if not any(keep):
        return None
    meta = block.meta
    runs: list[Run] = []
    record, skipped = 0, 0
    for run in meta.runs:
        skipped += run.skip
        for flag in keep[record : record + run.count]:
            if not flag:
                skipped += 1
            elif runs and skipped == 0 and same_run(runs[-1], run):
                runs[-1] = runs[-1]._replace(count=runs[-1].count + 1)
            else:
                runs.append(run._replace(skip=skipped, count=1))
                skipped = 0
        record += run.count
    kept = Meta(
        meta.topics,
        tuple(runs),
        _producers(meta.producers, keep),
        _marks(meta.marks, keep),
        meta.origins,
        meta.dictionaries,
    )
    lengths = memoryview(block.lengths).cast("I")
    ends = list(accumulate(lengths))
    parts = [block.body[end - n : end] for end, n, flag in zip(ends, lengths, keep, strict=True) if flag]
    packed = b"".join([len(part).to_bytes(U32, "little") for part in parts])
    return _of(block, kept, packed, b"".join(parts))


def _of(block: Block, meta: Meta, lengths: bytes, body: bytes) -> Block:
    return Block(
        block.group,
        block.epoch,
        block.first,
        block.last,
        block.time_us,
        block.kind,
        pack_meta(meta),
        lengths,
        body,
        meta,
    )


def cut_in_two(block: Block, record: int) -> tuple[Block, Block]:
    """A block in two: the records before `record` and those from there on, some in each. A reader's cursor passes the
    first, and comes to the first record of the second."""
    offsets, count = offsets_of(block), block.count
    before = select(block, [at < record for at in range(count)])
    behind = select(block, [at >= record for at in range(count)])
    assert before is not None
    assert behind is not None
    first, meta = offsets[record], behind.meta
    meta = meta._replace(runs=(meta.runs[0]._replace(skip=0), *meta.runs[1:]))
    rest = Block(
        block.group,
        block.epoch,
        first,
        block.last,
        block.time_us,
        block.kind,
        pack_meta(meta),
        behind.lengths,
        behind.body,
        meta,
    )
    return replace(before, last=first - 1), rest


class Picker:
    """A publications block of which different readers get different records, few each: what is looked up once.

    `runs` and `offsets`: of each record, in order.
    """

    __slots__ = ("_ends", "_lengths", "block", "offsets", "runs")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.runs: list[Run] = [run for run in block.meta.runs for _ in range(run.count)]
        self.offsets = offsets_of(block)
        self._lengths = memoryview(block.lengths).cast("I")
        self._ends = list(accumulate(self._lengths))

    def pick(self, records: Sequence[int], topics: tuple[bytes, ...], numbers: Sequence[int]) -> Block:
        """These records, by number in ascending order, each as one of `topics` (indices of these, one a record), as
        readers take them: without producers and marks. `last` stays the block's."""
        block, runs = self.block, list[Run]()
        every, offsets, expected = self.runs, self.offsets, block.first
        # What is gathered into a run: the block's run that it is of, the topic that this has, what it skips.
        source: Run | None = None
        topic, skip, count = 0, 0, 0
        for record, number in zip(records, numbers, strict=True):
            run, offset = every[record], offsets[record]
            if (
                offset == expected
                and source is not None
                and number == topic
                and (run is source or same_but_topic(run, source))
            ):
                count += 1
            else:
                if source is not None:
                    runs.append(source._replace(skip=skip, topic=topic, count=count))
                source, topic, skip, count = run, number, offset - expected, 1
            expected = offset + 1
        if source is not None:
            runs.append(source._replace(skip=skip, topic=topic, count=count))
        meta = Meta(topics, tuple(runs), (), (), block.meta.origins, block.meta.dictionaries)
        body, lengths, ends = block.body, self._lengths, self._ends
        parts = [body[ends[record] - lengths[record] : ends[record]] for record in records]
        packed = array("I", map(len, parts)).tobytes()
        return _of(block, meta, packed, parts[0] if len(parts) == 1 else b"".join(parts))


def narrowed(meta: Meta) -> Meta:
    """The meta without the topics and publishers that none of its runs names."""
    topics = {old: new for new, old in enumerate(dict.fromkeys([run.topic for run in meta.runs]))}
    origins = {old: new for new, old in enumerate(dict.fromkeys([run.origin for run in meta.runs if run.origin >= 0]))}
    if len(topics) == len(meta.topics) and len(origins) == len(meta.origins):
        return meta
    return meta._replace(
        topics=tuple([meta.topics[old] for old in topics]),
        runs=tuple([run._replace(topic=topics[run.topic], origin=origins.get(run.origin, -1)) for run in meta.runs]),
        origins=tuple([meta.origins[old] for old in origins]),
    )


def for_readers(block: Block) -> Block:
    """The block without what only coordinators need (producers, marks), a fifth of a small block's bytes on a link, and
    without names that its records do not have: whoever gets a part may not be let know the others'."""
    whole = block.meta
    meta = narrowed(whole)
    if meta is whole and not (meta.producers or meta.marks):
        return block
    return _of(block, meta._replace(producers=(), marks=()), block.lengths, block.body)


def same_run(a: Run, b: Run) -> bool:
    """Whether two neighbouring runs agree in all but skip and count."""
    return a[1:7] == b[1:7]


def same_but_topic(a: Run, b: Run) -> bool:
    """Whether two runs agree in all but skip, topic and count."""
    return a[2:7] == b[2:7]


def _producers(producers: Sequence[ProducerRun], keep: Sequence[bool]) -> tuple[ProducerRun, ...]:
    kept: list[ProducerRun] = []
    record = 0
    for producer, incarnation, sequence, count in producers:
        joined = False
        for i in range(count):
            if not keep[record + i]:
                joined = False
            elif joined:
                kept[-1] = kept[-1]._replace(count=kept[-1].count + 1)
            else:
                kept.append(ProducerRun(producer, incarnation, sequence + i, 1))
                joined = True
        record += count
    return tuple(kept)


def _marks(marks: Sequence[Mark], keep: Sequence[bool]) -> tuple[Mark, ...]:
    if not marks:
        return ()
    new_index = [n - 1 for n in accumulate(map(int, keep))]
    return tuple([mark._replace(index=new_index[mark.index]) for mark in marks if keep[mark.index]])


def select_topics(block: Block, wanted: Callable[[bytes], bool]) -> Block | None:
    """The records whose topic is wanted."""
    topics = block.meta.topics
    flags = [wanted(topic) for topic in topics]
    if all(flags):
        return block
    keep: list[bool] = []
    for run in block.meta.runs:
        keep += [flags[run.topic]] * run.count
    return select(block, keep)


def select_from(block: Block, offset: int) -> Block | None:
    """The records at or after `offset`."""
    if block.first >= offset:
        return block
    if block.last < offset:
        return None
    return select(block, [at >= offset for at in offsets_of(block)])
