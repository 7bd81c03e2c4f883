"""Pages of the past: parts of groups' logs that a broker has fetched, kept a while for whoever comes by the same place.

A page holds the publications of one group between two offsets. What it leaves out decides whom it serves: one that
leaves nothing out serves everybody; one of what the broker was interested in, those whose filters were all registered
by then; one of some filters, those who have no others.

Devices' blocks hold a message each, and a block takes 2 KB of memory however small it is: a page keeps the runs of its
blocks as rows, column by column (`PageColumns`), and makes blocks of some of them again for those who take blocks
(`blocks_of`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from lexicast.cluster.blocks import FIRST_DICTIONARY, PUBLICATIONS, U32, Block, Meta, Run, pack_meta
from lexicast.cluster.errors import PeerError
from lexicast.cluster.topics.names import TopicIndex

if TYPE_CHECKING:
    from ..subscriber import Subscriber

log = logging.getLogger(__name__)

PAGE_BYTES = 400
# What a row takes beside its payloads, and a topic beside its name.
ROW_BYTES = 450
TOPIC_BYTES = 150
# The version of a page of what came live: it serves those alone for whom the broker's cache does (`at_hand`).
FROM_CACHE = -1


class PageRow(NamedTuple):
    """A run of a block out of the past: where it stands, and what the block's columns say of it. `run` names neither
    its topic nor its publisher nor its dictionary: the numbers were the block's."""

    offset: int
    run: Run
    topic: bytes
    time_us: int
    epoch: int
    dictionary: int | None
    origin: str | None
    lengths: bytes
    body: bytes

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.run.count

    def payloads(self) -> list[bytes]:
        """As stored."""
        if self.run.count == 1:
            return [self.body]
        ends = list(accumulate(memoryview(self.lengths).cast("I"), initial=0))
        return [self.body[ends[at] : ends[at + 1]] for at in range(self.run.count)]


class _RowsBlock(NamedTuple):
    """What the rows of one block share."""

    epoch: int
    time_us: int
    topics: tuple[bytes, ...]
    origins: tuple[str, ...]
    dictionaries: tuple[int, ...]


class PageColumns:
    """The rows of a page, a column each: what most members get (`packets`) needs three of these, and no rows.

    `offsets`: where a row begins; `runs`; `bodies`: its payloads, joined.
    """

    __slots__ = ("_lengths", "_of", "bodies", "offsets", "runs")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.runs: list[Run] = []
        self.bodies: list[bytes] = []
        self._lengths: list[bytes] = []
        self._of: list[_RowsBlock] = []

    def __len__(self) -> int:
        return len(self.runs)

    def row(self, number: int) -> PageRow:
        """All of a row."""
        run, of = self.runs[number], self._of[number]
        return PageRow(
            self.offsets[number],
            run,
            of.topics[run.topic],
            of.time_us,
            of.epoch,
            of.dictionaries[run.encoding - FIRST_DICTIONARY] if run.encoding >= FIRST_DICTIONARY else None,
            of.origins[run.origin] if run.origin >= 0 else None,
            self._lengths[number],
            self.bodies[number],
        )

    def block_rows(self) -> list[int]:
        """The first row of each block."""
        of = self._of
        return [at for at in range(len(of)) if not at or (of[at] is not of[at - 1] and of[at][:2] != of[at - 1][:2])]

    def end(self, number: int) -> int:
        """The offset behind a row."""
        return self.offsets[number] + self.runs[number].count

    def add(self, block: Block, names: tuple[bytes, ...]) -> None:
        """The runs of a block. `names`: its topics'. Raises PeerError, and has added nothing then."""
        meta, lengths = block.meta, memoryview(block.lengths).cast("I")
        if sum(lengths) != len(block.body):
            raise PeerError(f"group {block.group} offset {block.first}: lengths and body of the block disagree")
        if len(meta.runs) == len(lengths):
            self._add_single(block, meta.runs, lengths)
        else:
            self._add_runs(block, meta.runs, lengths)
        self.runs += meta.runs
        self._of += [_RowsBlock(block.epoch, block.time_us, names, meta.origins, meta.dictionaries)] * len(meta.runs)

    def _add_single(self, block: Block, runs: tuple[Run, ...], lengths: Sequence[int]) -> None:
        """Runs of one record each, as where topics alternate and in devices' blocks."""
        body = block.body
        offsets: Iterable[int] = range(block.first, block.first + len(runs))
        if block.last != block.first + len(runs) - 1:
            offsets = map(add, accumulate([run[0] for run in runs]), offsets)
        self.offsets += offsets
        self.bodies += [body[end - size : end] for end, size in zip(accumulate(lengths), lengths, strict=True)]
        self._lengths += [b""] * len(runs)

    def _add_runs(self, block: Block, runs: tuple[Run, ...], lengths: Sequence[int]) -> None:
        body = block.body
        offset, number, at = block.first, 0, 0
        for run in runs:
            count = run.count
            offset += run.skip
            if count == 1:
                end, sizes = at + lengths[number], b""
            else:
                end = at + sum(lengths[number : number + count])
                sizes = block.lengths[U32 * number : U32 * (number + count)]
            self.offsets.append(offset)
            self.bodies.append(body[at:end])
            self._lengths.append(sizes)
            offset += count
            number += count
            at = end


def block_of_rows(group: int, rows: Sequence[PageRow]) -> Block:
    """Rows of one block, or some of them, as a block."""
    topics: dict[bytes, int] = {}
    origins: dict[str, int] = {}
    dictionaries: dict[int, int] = {}
    runs: list[Run] = []
    offset = rows[0].offset
    for row in rows:
        run = row.run
        runs.append(
            Run(
                row.offset - offset,
                topics.setdefault(row.topic, len(topics)),
                run.flags,
                run.encoding
                if row.dictionary is None
                else FIRST_DICTIONARY + dictionaries.setdefault(row.dictionary, len(dictionaries)),
                run.expiry_ms,
                run.properties,
                -1 if row.origin is None else origins.setdefault(row.origin, len(origins)),
                run.count,
            )
        )
        offset = row.end
    meta = Meta(tuple(topics), tuple(runs), (), (), tuple(origins), tuple(dictionaries))
    lengths = b"".join([row.lengths or len(row.body).to_bytes(4, "little") for row in rows])
    body = b"".join([row.body for row in rows])
    first = rows[0]
    fields = (group, first.epoch, first.offset, offset - 1, first.time_us, PUBLICATIONS, pack_meta(meta))
    return Block(*fields, lengths, body, meta)


class Stand:
    """Laggards that stand at one offset of a group.

    `past`: from where on the cache will do for all of them; `version`: by which all their filters were registered;
    `everything`: what is fetched for them leaves nothing out.
    """

    __slots__ = ("everything", "members", "offset", "past", "version")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.members: set[Subscriber] = set()
        self.past = 0
        self.version = 0
        self.everything = False


class Page:
    """See the module's docstring. `filters`: None when it was made for the broker's interest as of `version`."""

    __slots__ = (
        "_blocks",
        "_columns",
        "_index",
        "_payload_bytes",
        "end",
        "filters",
        "first_kept",
        "group",
        "start",
        "version",
        "whole",
    )

    def __init__(
        self,
        group: int,
        start: int,
        end: int,
        blocks: list[Block],
        *,
        whole: bool = False,
        version: int = 0,
        filters: frozenset[bytes] | None = None,
        first_kept: int = 0,
    ) -> None:
        self.group = group
        self.start = start
        self.end = end
        self.whole = whole
        self.version = version
        self.filters = filters
        self.first_kept = first_kept
        self._blocks: list[Block] | None = blocks
        self._columns = PageColumns()
        self._index: TopicIndex[list[int]] = TopicIndex()
        self._payload_bytes = 0

    def serves(self, version: int, members: Iterable[Subscriber]) -> bool:
        """Whether it lacks nothing that these want, whose filters were all registered as of `version`."""
        if self.whole:
            return True
        filters = self.filters
        if filters is None:
            return self.version >= version
        return all([member.subscriptions.keys() <= filters for member in members])

    @property
    def columns(self) -> PageColumns:
        """What it holds, in the order of offsets. A block that has not what it says costs itself."""
        if self._blocks is not None:
            topics: dict[bytes, bytes] = {}
            columns, index = self._columns, self._index
            for block in self._blocks:
                first = len(columns)
                try:
                    # Of names met before one object is enough.
                    names = tuple([topics.setdefault(topic, topic) for topic in block.meta.topics])
                    columns.add(block, names)
                except PeerError as error:
                    log.error("a block out of the past is left out: %s", error)
                    continue
                of_topic: dict[int, list[int]] = {}
                for number, run in enumerate(block.meta.runs, first):
                    numbers = of_topic.get(run[1])
                    if numbers is None:
                        numbers = of_topic[run[1]] = index.setdefault(names[run[1]], [])
                    numbers.append(number)
                self._payload_bytes += len(block.body) + len(block.lengths)
            self._blocks = None
        return self._columns

    @property
    def index(self) -> TopicIndex[list[int]]:
        """Topic -> its rows, by number in ascending order."""
        if self._blocks is not None:
            assert self.columns is not None
        return self._index

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return PAGE_BYTES + ROW_BYTES * len(self.columns) + TOPIC_BYTES * len(self._index) + self._payload_bytes

    def numbers(self, topics: Iterable[bytes], start: int) -> list[int]:
        """The rows of these topics that hold something at or after `start`, in order."""
        index, end = self.index, self._columns.end
        found = [number for topic in topics for number in index[topic]]
        found.sort()  # costs little where it is one topic's
        if found and end(found[0]) <= start:
            found = [number for number in found if end(number) > start]
        return found

    def reaches(self, topic: bytes, offset: int) -> bool:
        """Whether it holds something of a topic, of which it holds something, at or after an offset."""
        return self.columns.end(self.index[topic][-1]) > offset

    def blocks_of(self, numbers: Iterable[int]) -> list[Block]:
        """Rows, by number in ascending order, as the parts of blocks that they were."""
        chosen = map(self.columns.row, numbers)
        return [block_of_rows(self.group, list(part)) for _, part in groupby(chosen, _of_block)]


def _of_block(row: PageRow) -> tuple[int, int]:
    return row.epoch, row.time_us


class PageCache:
    """The pages fetched most recently, at most `bytes_max` of them. `gone`: told of each that it lets go."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.gone: Callable[[Page], None] = lambda page: None
        self._bytes = 0
        self._order: deque[tuple[Page, int]] = deque()
        self._pages: dict[int, deque[Page]] = {}

    def add(self, page: Page) -> None:
        """Keep a page; the oldest go."""
        size = page.size_bytes
        self._order.append((page, size))
        self._pages.setdefault(page.group, deque()).append(page)
        self._bytes += size
        while self._bytes > self._bytes_max and len(self._order) > 1:
            oldest, size = self._order.popleft()
            self._pages[oldest.group].popleft()
            self._bytes -= size
            self.gone(oldest)

    def find(self, group: int, offset: int, version: int, members: Iterable[Subscriber]) -> Page | None:
        """A page that holds `offset` and serves these."""
        for page in reversed(self._pages.get(group, ())):
            if page.start <= offset < page.end and page.serves(version, members):
                return page
        return None
