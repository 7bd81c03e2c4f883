"""The last publications of a topic: looked for backwards, by the index, and read in order.

`look` goes back, entry by entry, until so many that have not expired are found; what it looks at is a block's head, and
its meta only where something in it expires. `read` then gives the blocks. Both work for a millisecond or two a call.
"""

from __future__ import annotations

from typing import Final

from lexicast.cluster.blocks import Block

from .dualdb.rows import RowColumns, empty
from .log.block_cuts import cut
from .topic_reader import TopicReader

# Entries looked up at once.
_ENTRIES_A_LOOK: Final = 256


class TopicTail:
    """The last `count` publications of a topic of `group` at offsets from `first` to below `before`."""

    def __init__(
        self, reader: TopicReader, group: int, topic: bytes, topic_id: int, count: int, first: int, before: int
    ) -> None:
        self._reader = reader
        self._group = group
        self._topic = topic
        self._id = topic_id
        self._first = first
        self._count = count
        self.before = before
        # Entries not looked at yet lie below this.
        self._below = before
        self._entries: RowColumns = empty()
        self._offsets: list[int] = []
        self._lacking = count
        self._most = count
        self._found = False
        self._at = 0
        self._given = 0
        self._total = -1

    def look(self, look_s: float) -> bool | None:
        """Go back for `look_s` seconds. True: `read` may begin. None: the index cannot tell."""
        clock = self._reader.clock
        until = clock.monotonic() + look_s
        while not self._found:
            if not self._entries.size and not self._look_up():
                return None
            if self._entries.size:
                some = self._entries.from_row(max(0, self._entries.size - _ENTRIES_A_LOOK // 8))
                self._entries = self._entries.slice(0, self._entries.size - some.size)
                self._count_back(some)
            elif not self._below:
                self._found = True
            if not self._found and clock.monotonic() >= until:
                return False
        return True

    def _look_up(self) -> bool:
        """The entries before those looked at; False when the index cannot tell."""
        if self._below:
            most, self._most = min(self._most, _ENTRIES_A_LOOK), 2 * self._most
            entries = self._reader.last_entries(self._group, self._id, self._below, most)
            if entries is None:
                return False
            self._entries = entries
            more = entries.size == most and int(entries.seq[0]) > self._first
            self._below = int(entries.seq[0]) if more else 0
        return True

    def _count_back(self, entries: RowColumns) -> None:
        alive = self._reader.alive(self._group, entries, self._first, self.before - 1, self._topic.__eq__)
        for offset, records in zip(entries.seq.tolist()[::-1], alive[::-1], strict=True):
            if records:
                self._offsets.append(offset)
                self._lacking -= records
            if self._lacking <= 0:
                self._found = True
                return

    def read(self, bytes_max: int, read_s: float) -> list[Block]:
        """The next blocks, oldest first, cut to the topic. `done` once there are no more."""
        if self._total < 0:
            self._total = self._count - max(0, self._lacking)
        offsets = self._offsets[::-1][self._at :]
        blocks, done = self._reader.blocks_at(
            self._group, offsets, self._first, self.before - 1, bytes_max, read_s, self._topic.__eq__
        )
        self._at += done
        found: list[Block] = []
        for block in blocks:
            # The first block may hold more of the topic than was asked for.
            surplus, self._lacking = min(block.count, max(0, -self._lacking)), min(0, self._lacking + block.count)
            part = cut(block, _offset_of(block, surplus)) if surplus < block.count else None
            if part is not None:
                found.append(part)
                self._given += part.count
        return found

    @property
    def left(self) -> int:
        """How many are to come, of those that were found."""
        return self._total - self._given

    @property
    def done(self) -> bool:
        """Nothing is left to be read."""
        return self._found and self._at >= len(self._offsets)


def _offset_of(block: Block, index: int) -> int:
    """The offset of a record of a block of publications."""
    offset = block.first
    for run in block.meta.runs:
        offset += run.skip
        if index < run.count:
            return offset + index
        index -= run.count
        offset += run.count
    return offset
