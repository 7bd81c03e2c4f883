"""Housekeeping: what an open store does between commits, a bounded step at a time, each kind in its turn.

writing     the index's memory table to disk (`index.index_writer`)
merging     the index's runs
reclaiming  what is too old, too much or expired (`reclaiming`)
compacting  what is superseded (`compaction`)
inspecting  all rows, once after opening (`row_inspection`)
"""

from __future__ import annotations

from lexicast.cluster.clock import Clock

from ..environment.environment import Environment
from ..environment.options import StoreOptions
from ..environment.space import Space
from ..index.index_writer import IndexWriter
from ..index.log_index import LogIndex
from ..log.block_log import Log
from ..tables.groups import StoredGroup
from ..tables.topics import TopicIds
from .compaction import Compaction
from .oldest_blocks import OldestBlocks
from .reclaiming import Reclaimed, Reclaimer
from .row_inspection import RowInspection
from .sweeping import Sweeper


class Housekeeping:
    """See the module's docstring. Writer thread only."""

    def __init__(
        self,
        environment: Environment,
        log: Log,
        index: LogIndex,
        ids: TopicIds,
        groups: dict[int, StoredGroup],
        index_writer: IndexWriter,
        inspection: RowInspection,
        space: Space,
        options: StoreOptions,
        clock: Clock,
    ) -> None:
        self._index_writer = index_writer
        self._inspection = inspection
        self._space = space
        self._oldest = OldestBlocks(log, groups)
        sweeper = Sweeper(environment, log, index, ids, groups, options)
        self._reclaimer = Reclaimer(
            environment, log, ids, groups, index_writer, self._oldest, sweeper, space, options, clock
        )
        self._compaction = Compaction(environment, log, ids, groups, index_writer, space, clock)
        self._turn = 0

    def begun(self, group: int) -> None:
        """A group whose log was empty has got a block."""
        self._oldest.moved(group)

    def forget_blocks(self, group: int) -> None:
        """The youngest blocks of a group leave as if they had never come."""
        self._reclaimer.forget_youngest(group)

    def step(self, now_us: int) -> Reclaimed:
        """One step of the kind whose turn it is and that has something to do: so none waits for ever."""
        self._space.look_at_readers()
        kinds = (self._write, self._merge, self._reclaimer.step, self._compact, self._inspect)
        for _ in kinds:
            self._turn = (self._turn + 1) % len(kinds)
            done = kinds[self._turn](now_us)
            if done is not None:
                return done
        return Reclaimed(0, 0, 0, False)

    def _write(self, now_us: int) -> Reclaimed | None:
        return Reclaimed(0, 0, 0, True) if self._index_writer.due and self._index_writer.step(now_us) else None

    def _merge(self, now_us: int) -> Reclaimed | None:
        return Reclaimed(0, 0, 0, True) if self._index_writer.merge_step(now_us) else None

    def _inspect(self, now_us: int) -> Reclaimed | None:
        del now_us
        return Reclaimed(0, 0, 0, True) if self._inspection.step() else None

    def _compact(self, now_us: int) -> Reclaimed | None:
        done = self._compaction.step(now_us)
        if done is None:
            return None
        for group in done.groups:
            self._oldest.moved(group)
        return Reclaimed(done.blocks, done.records, done.bytes, done.more)
