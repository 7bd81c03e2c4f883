"""Sweeping: rows of the tables that nothing needs any more, looked for a piece of a table a step.

producers, marks   idle, or unreleased, for `producer_retention_s`
kept               retained publications that have expired since they were rescued
names              topics to which nothing refers: first those of blocks that went, else all in turn
"""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

from lexicast.cluster.clock import US_PER_S

from ..environment.environment import Environment
from ..environment.options import StoreOptions
from ..file.keys import parse_log_key
from ..file.table import ReadTransaction, Table, WriteTransaction
from ..index.log_index import LogIndex
from ..log.block_cuts import only_topic
from ..log.block_format import block_of
from ..log.block_log import Log
from ..tables.groups import StoredGroup
from ..tables.producers import idle_since
from ..tables.state import parse_mark_row, parse_retained_row
from ..tables.topics import TopicIds, find_topic, group_of, id_key, topic_id_of

ROWS_A_STEP: Final = 128
# Topics remembered because a block of theirs has gone; those beyond it are found when all topics are looked through.
_LEFT_MAX: Final = 65_536


class Sweep(NamedTuple):
    """Rows to go besides blocks: (table, key); (key in `kept`, topic) of expired ones; ids of topics to look at."""

    idle: list[tuple[Table, bytes]]
    kept: list[tuple[bytes, bytes]]
    topics: list[int]


class Sweeper:
    """See the module's docstring. Writer thread only."""

    def __init__(
        self,
        environment: Environment,
        log: Log,
        index: LogIndex,
        ids: TopicIds,
        groups: dict[int, StoredGroup],
        options: StoreOptions,
    ) -> None:
        self._databases = environment.databases
        self._log = log
        self._index = index
        self._ids = ids
        self._groups = groups
        self._options = options
        # Where the last step stopped in each table.
        self._swept: dict[str, bytes | None] = {}
        # Topics of blocks that have gone: the next steps look whether anything is left of them.
        self._left: dict[int, None] = {}

    @property
    def waiting(self) -> bool:
        """Topics are left to be looked at soon."""
        return bool(self._left)

    def look_later(self, topic_id: int) -> None:
        """A block of this topic has gone."""
        if len(self._left) < _LEFT_MAX:
            self._left[topic_id] = None

    def choose(self, txn: ReadTransaction, now_us: int) -> Sweep:
        """What is to go, of the next piece of each table."""
        return Sweep(self._idle(txn, now_us), self._expired_kept(txn, now_us), self._stale_topics(txn))

    def delete(self, txn: WriteTransaction, sweep: Sweep) -> None:
        """Delete what was chosen."""
        for table, key in sweep.idle:
            table.delete(txn, key)
        for key, topic in sweep.kept:
            self._clear_kept(txn, key, topic)
        for topic_id in sweep.topics:
            self._forget(txn, topic_id)

    def _rows(self, txn: ReadTransaction, table: Table) -> list[tuple[bytes, bytes]]:
        """The next rows of a table, from where the last step stopped, over and over."""
        rows = table.rows(txn, b"", self._swept.get(table.name), ROWS_A_STEP)
        self._swept[table.name] = rows[-1][0] if len(rows) == ROWS_A_STEP else None
        return rows

    def _idle(self, txn: ReadTransaction, now_us: int) -> list[tuple[Table, bytes]]:
        before_us = now_us - int(self._options.producer_retention_s * US_PER_S)
        producers, marks = self._databases.producers, self._databases.marks
        return [
            *[(producers, key) for key, row in self._rows(txn, producers) if idle_since(row) < before_us],
            *[(marks, key) for key, row in self._rows(txn, marks) if parse_mark_row(row)[1] < before_us],
        ]

    def _stale_topics(self, txn: ReadTransaction) -> list[int]:
        """Of the topics left bare by blocks that went, else of all topics in turn: those of which nothing is left."""
        topic_ids = list(islice(self._left, ROWS_A_STEP))
        if not topic_ids:
            topic_ids = [topic_id_of(key, "names") for key, _ in self._rows(txn, self._databases.names)]
        for topic_id in topic_ids:
            self._left.pop(topic_id, None)
        bare = self._index.bare(txn, topic_ids, [self._log_first(group_of(i)) - 1 for i in topic_ids])
        return [topic_id for topic_id, gone in zip(topic_ids, bare, strict=True) if gone]

    def _log_first(self, group: int) -> int:
        known = self._groups.get(group)
        return known.first if known is not None else 0

    def _expired_kept(self, txn: ReadTransaction, now_us: int) -> list[tuple[bytes, bytes]]:
        """(key in `kept`, topic) of rescued publications that have expired since."""
        found: list[tuple[bytes, bytes]] = []
        after = self._swept.get("kept")
        with txn.cursor(self._databases.kept) as cursor:
            there = cursor.first() if after is None else cursor.set_range(after + b"\0")
            self._swept["kept"] = None
            for _ in range(ROWS_A_STEP):
                if not there:
                    return found
                key, value = bytes(cursor.key()), cursor.value()
                head = self._log.sound_head(value, key, "kept")
                if head is not None and 0 < head.expire_all_us < now_us:
                    found.append((key, only_topic(block_of(value, head))))
                there = cursor.next()
            self._swept["kept"] = key
        return found

    def _clear_kept(self, txn: WriteTransaction, key: bytes, topic: bytes) -> None:
        txn.delete(key, db=self._databases.kept)
        topic_id = find_topic(self._databases, txn, topic)
        row = None if topic_id is None else self._databases.retained.get(txn, id_key(topic_id))
        if topic_id is not None and row is not None and parse_retained_row(row).offset == parse_log_key(key, "kept")[1]:
            self._databases.retained.delete(txn, id_key(topic_id))
            self.look_later(topic_id)

    def _forget(self, txn: WriteTransaction, topic_id: int) -> None:
        """Forget a topic of which no block is left; its entries in runs go when a merge meets them."""
        if self._databases.retained.get(txn, id_key(topic_id)) is None:
            self._ids.forget(txn, topic_id)
