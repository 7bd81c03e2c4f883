"""The last publications of a topic: looked for backwards, by the index, and read in order.

`look` goes back, entry by entry, until so many that have not expired are found; what it looks at is a block's head, and
its meta only where something in it expires. `read` then gives the blocks. Both work for a millisecond or two a call.
"""

from __future__ import annotations

from typing import Final

from lexicast.cluster.blocks import Block

from .dualdb.rows import RowColumns, empty
from .tables.matching_topics import FoundTopic
from .tables.topics import group_of
from .topic_reader import TopicReader

# Entries looked up at once.
_ENTRIES_A_LOOK: Final = 256


class TopicTail:
    """The last `count` publications of a topic at offsets from `first` to below `before`."""

    def __init__(self, reader: TopicReader, topic: FoundTopic, count: int, first: int, before: int) -> None:
        self._reader = reader
        self._group = group_of(topic.topic_id)
        self._topic = topic
        self._first = first
        self._before = before
        # Entries not looked at yet lie below this.
        self._below = before
        self._entries: RowColumns = empty()
        self._offsets: list[int] = []
        self._lacking = count
        self._most = count
        self._found = False
        self._at = 0

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
                self._lacking = 0
            if self._lacking <= 0:
                self._settle()
            elif clock.monotonic() >= until:
                return False
        return True

    def _look_up(self) -> bool:
        """The entries before those looked at; False when the index cannot tell."""
        if self._below:
            most, self._most = min(self._most, _ENTRIES_A_LOOK), 2 * self._most
            entries = self._reader.last_entries(self._group, self._topic.topic_id, self._below, most)
            if entries is None:
                return False
            self._entries = entries
            more = entries.size == most and int(entries.seq[0]) > self._first
            self._below = int(entries.seq[0]) if more else 0
        return True

    def _count_back(self, entries: RowColumns) -> None:
        alive = self._reader.alive(self._group, entries, self._first, self._before - 1, self._topic.name.__eq__)
        for offset, records in zip(entries.seq.tolist()[::-1], alive[::-1], strict=True):
            if records:
                self._offsets.append(offset)
                self._lacking -= records
            if self._lacking <= 0:
                return

    def _settle(self) -> None:
        """They are found. The first block may hold more of the topic than was asked for."""
        self._found = True
        self._offsets.reverse()
        if self._lacking < 0:
            begin = self._reader.offset_behind(
                self._group, self._offsets[0], -self._lacking, self._first, self._before - 1, self._topic.name.__eq__
            )
            if begin is None:  # what was found there has expired since, or left the log
                del self._offsets[0]
            else:
                self._first = begin

    def read(self, bytes_max: int, read_s: float) -> list[Block]:
        """The next blocks, oldest first, cut to the topic."""
        blocks, done = self._reader.blocks_at(
            self._group,
            self._offsets[self._at :],
            self._first,
            self._before - 1,
            bytes_max,
            read_s,
            self._topic.name.__eq__,
        )
        self._at += done
        return blocks

    @property
    def next(self) -> int | None:
        """Once they are found: the offset from which on nothing has been read; None when everything has."""
        return max(self._first, self._offsets[self._at]) if self._at < len(self._offsets) else None
